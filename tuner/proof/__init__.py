"""Holding a family's rules against JAX and ptxas, on points that the rules did not choose."""

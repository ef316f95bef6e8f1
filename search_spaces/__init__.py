"""What is legal: problems, architectures, rules and the spaces they leave. Imports numpy only."""

"""Operands, plain references and baselines of every kernel; all in ordinary JAX."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tuner.search_spaces.errors import MeasurementError
from tuner.search_spaces.problem import DTYPE_BITS, CopyProblem, MatmulProblem

# Unit roundoff of a float32 accumulation.
_ACCUMULATION_ROUNDOFF = 2.0**-24
# What reading a float32 operand as tf32 loses: of 23 mantissa bits 10 are kept (PTX ISA, .tf32).
_TF32_ROUNDOFF = 2.0**-10
# Hopper adds products of 8-bit floats to partial sums cut to 13 fraction bits. Those of random operands grow
# with sqrt(k): of sqrt(k) / 4 roundoffs, a half at most was seen (measured on an H200, k up to 4096).
_FLOAT8_ROUNDOFF = 2.0**-13
_BLOCK = 32
_RANDOM_BLOCKS = 8


def matmul_operands(problem: MatmulProblem, seed: int) -> tuple[jax.Array, jax.Array]:
    """lhs (m, k) and rhs (k, n) or (n, k), random; zeros would run up to 13 % faster (measured)."""
    lhs_key, rhs_key = jax.random.split(jax.random.key(seed))
    rhs_shape = (problem.k, problem.n) if problem.rhs == "kn" else (problem.n, problem.k)
    return (
        _random(lhs_key, (problem.m, problem.k), jnp.dtype(problem.dtype)),
        _random(rhs_key, rhs_shape, jnp.dtype(problem.rhs_dtype)),
    )


def _random(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """Normal for floats, uniform over every value for integers."""
    bits = DTYPE_BITS[dtype.name]
    if jnp.issubdtype(dtype, jnp.integer):
        drawn = jax.random.bits(key, shape, jnp.dtype(f"uint{max(bits, 8)}"))
        return drawn.astype(jnp.dtype(f"uint{bits}")).view(dtype)
    if bits <= 8:
        return jax.random.normal(key, shape, jnp.float32).astype(dtype)
    return jax.random.normal(key, shape, dtype)


def _dot(
    problem: MatmulProblem, out_dtype: Any, precision: lax.Precision | None = None
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    contract = ((1,), (0,)) if problem.rhs == "kn" else ((1,), (1,))

    def dot(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        dimensions = (contract, ((), ()))
        return lax.dot_general(
            lhs, rhs, dimensions, precision=precision, preferred_element_type=jnp.dtype(out_dtype)
        )

    return dot


def matmul_reference(
    problem: MatmulProblem, operands: tuple[jax.Array, jax.Array], seed: int
) -> tuple[jax.Array, jax.Array | None]:
    """What the output must be, and how far off an element may be beside its own rounding.

    Returns:
      expected (m, n) float32 and tolerance (m, n) float32 = r (|lhs| @ |rhs|) with r = 2 k 2^-24, twice
      the textbook bound of one accumulation in any order (Higham, Accuracy and Stability, 3.1), and what
      the tensor core loses of tf32 and 8-bit floats. For integers expected (m, n) int32 and None: every
      bit must agree.

    Raises:
      MeasurementError: XLA's own product disagrees with float64 in a corner or a random block.
    """
    # 8-bit floats are exact in bfloat16, whose products XLA adds in float32.
    wide = tuple(x.astype(jnp.bfloat16) if _is_float8(x) else x for x in operands)
    dot = jax.jit(_dot(problem, problem.acc_dtype, lax.Precision.HIGHEST))
    expected = dot(*wide)
    if problem.acc_dtype == "int32":
        _check_blocks(problem, operands, expected, None, seed)
        return expected, None
    magnitude = dot(*(jnp.abs(x) for x in wide))
    accumulation = jnp.multiply(magnitude, jnp.float32(2 * problem.k * _ACCUMULATION_ROUNDOFF))
    _check_blocks(problem, operands, expected, accumulation, seed)
    return expected, accumulation + magnitude * jnp.float32(_lost_in_hardware(problem))


def _is_float8(x: jax.Array) -> bool:
    return bool(DTYPE_BITS[x.dtype.name] == 8 and jnp.issubdtype(x.dtype, jnp.floating))


def _lost_in_hardware(problem: MatmulProblem) -> float:
    """What the tensor core itself may lose beside a float32 accumulation, relative to |lhs| @ |rhs|."""
    if problem.dtype == "float32":
        return 2 * _TF32_ROUNDOFF
    if problem.dtype.startswith("float8"):
        return float(problem.k**0.5) / 4 * _FLOAT8_ROUNDOFF
    return 0.0


def _check_blocks(
    problem: MatmulProblem,
    operands: tuple[jax.Array, jax.Array],
    expected: jax.Array,
    tolerance: jax.Array | None,
    seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    last_row, last_column = max(0, problem.m - _BLOCK), max(0, problem.n - _BLOCK)
    corners = [(r, c) for r in {0, last_row} for c in {0, last_column}]
    random = zip(
        rng.integers(0, last_row + 1, _RANDOM_BLOCKS),
        rng.integers(0, last_column + 1, _RANDOM_BLOCKS),
        strict=True,
    )
    for row, column in (*corners, *((int(r), int(c)) for r, c in random)):
        rows, columns = slice(row, row + _BLOCK), slice(column, column + _BLOCK)
        lhs = np.asarray(operands[0][rows]).astype(np.float64)
        rhs = operands[1][:, columns] if problem.rhs == "kn" else operands[1][columns].T
        exact = lhs @ np.asarray(rhs).astype(np.float64)
        allowed = 0.0 if tolerance is None else np.asarray(tolerance[rows, columns])
        if np.any(np.abs(np.asarray(expected[rows, columns]) - exact) > allowed):
            raise MeasurementError(
                f"XLA's own result for {problem} is off in the block at ({row}, {column})",
                fix="check the GPU and the installed jax; nothing can be verified against it",
            )


def matmul_baseline(problem: MatmulProblem) -> tuple[Callable[..., jax.Array], ...]:
    """What a user would call otherwise: XLA's dot_general with the same layouts and out_dtype."""
    return (_dot(problem, jnp.dtype(problem.out_dtype)),)


def copy_operands(problem: CopyProblem, seed: int) -> tuple[jax.Array]:
    """x (m, n), random."""
    return (_random(jax.random.key(seed), (problem.m, problem.n), jnp.dtype(problem.dtype)),)


def copy_reference(problem: CopyProblem, operands: tuple[jax.Array], seed: int) -> tuple[jax.Array, None]:
    """The operand itself; None asks for equality bit by bit."""
    del problem, seed
    return operands[0], None


def copy_baseline(problem: CopyProblem) -> tuple[Callable[..., jax.Array], ...]:
    """XLA's elementwise passes `-x` and `x + 1`; `jnp.copy` is a memcpy that kernel timing can't see."""
    one = jnp.ones((), jnp.dtype(problem.dtype))
    return (lambda x: -x, lambda x: x + one)

"""Operands, plain references and baselines of every kernel; all in ordinary JAX."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tuner.search_spaces.errors import MeasurementError
from tuner.search_spaces.problem import CopyProblem, MatmulProblem

# Unit roundoff of a float32 accumulation.
_ACCUMULATION_ROUNDOFF = 2.0**-24
_BLOCK = 32
_RANDOM_BLOCKS = 8


def matmul_operands(problem: MatmulProblem, seed: int) -> tuple[jax.Array, jax.Array]:
    """lhs (m, k) and rhs (k, n) or (n, k), normal; zeros would run up to 13 % faster (measured)."""
    lhs_key, rhs_key = jax.random.split(jax.random.key(seed))
    rhs_shape = (problem.k, problem.n) if problem.rhs == "kn" else (problem.n, problem.k)
    return (
        jax.random.normal(lhs_key, (problem.m, problem.k), jnp.dtype(problem.dtype)),
        jax.random.normal(rhs_key, rhs_shape, jnp.dtype(problem.rhs_dtype)),
    )


def _dot(problem: MatmulProblem, out_dtype: Any) -> Callable[[jax.Array, jax.Array], jax.Array]:
    contract = ((1,), (0,)) if problem.rhs == "kn" else ((1,), (1,))

    def dot(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return lax.dot_general(lhs, rhs, (contract, ((), ())), preferred_element_type=out_dtype)

    return dot


def matmul_reference(
    problem: MatmulProblem, operands: tuple[jax.Array, jax.Array], seed: int
) -> tuple[jax.Array, jax.Array]:
    """What the output must be, and how far off an element may be beside its own rounding.

    Returns:
      expected (m, n) float32 and tolerance (m, n) float32 = 2 k u (|lhs| @ |rhs|), u = 2^-24:
      twice the textbook bound of one accumulation in any order (Higham, Accuracy and Stability, 3.1).

    Raises:
      MeasurementError: XLA's own product disagrees with float64 in a corner or a random block.
    """
    dot = jax.jit(_dot(problem, jnp.float32))
    expected = dot(*operands)
    magnitude = dot(*(jnp.abs(x) for x in operands))
    tolerance = jnp.multiply(magnitude, jnp.float32(2 * problem.k * _ACCUMULATION_ROUNDOFF))
    _check_blocks(problem, operands, expected, tolerance, seed)
    return expected, tolerance


def _check_blocks(
    problem: MatmulProblem,
    operands: tuple[jax.Array, jax.Array],
    expected: jax.Array,
    tolerance: jax.Array,
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
        if np.any(np.abs(np.asarray(expected[rows, columns]) - exact) > np.asarray(tolerance[rows, columns])):
            raise MeasurementError(
                f"XLA's own result for {problem} is off in the block at ({row}, {column})",
                fix="check the GPU and the installed jax; nothing can be verified against it",
            )


def matmul_baseline(problem: MatmulProblem) -> tuple[Callable[..., jax.Array], ...]:
    """What a user would call otherwise: XLA's dot_general with the same layouts and out_dtype."""
    return (_dot(problem, jnp.dtype(problem.out_dtype)),)


def copy_operands(problem: CopyProblem, seed: int) -> tuple[jax.Array]:
    """x (m, n): normal for floats, uniform over every value for integers."""
    key, dtype, shape = jax.random.key(seed), jnp.dtype(problem.dtype), (problem.m, problem.n)
    if jnp.issubdtype(dtype, jnp.integer):
        return (jax.random.bits(key, shape, _unsigned(dtype)).view(dtype),)
    if dtype.itemsize == 1:
        return (jax.random.normal(key, shape, jnp.float32).astype(dtype),)
    return (jax.random.normal(key, shape, dtype),)


def copy_reference(problem: CopyProblem, operands: tuple[jax.Array], seed: int) -> tuple[jax.Array, None]:
    """The operand itself; None asks for equality bit by bit."""
    del problem, seed
    return operands[0], None


def copy_baseline(problem: CopyProblem) -> tuple[Callable[..., jax.Array], ...]:
    """XLA's elementwise passes `-x` and `x + 1`; `jnp.copy` is a memcpy that kernel timing can't see."""
    one = jnp.ones((), jnp.dtype(problem.dtype))
    return (lambda x: -x, lambda x: x + one)


def _unsigned(dtype: Any) -> Any:
    return jnp.dtype(f"uint{dtype.itemsize * 8}")

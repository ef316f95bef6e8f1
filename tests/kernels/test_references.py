"""What outputs are held against catches what kernels get wrong, and passes what is right."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tuner.compiling import operand_specs, resolve
from tuner.kernels import references
from tuner.search_spaces import copy, matmul_hopper
from tuner.search_spaces.architecture import reference_target
from tuner.search_spaces.errors import MeasurementError
from tuner.search_spaces.family import KernelFamily
from tuner.search_spaces.problem import DTYPE_BITS, CopyProblem, MatmulProblem, Problem
from tuner.verify import poisoned, worst_error

BF16 = MatmulProblem(m=96, n=160, k=512, dtype="bfloat16")
MATMULS = [
    BF16,
    MatmulProblem(m=96, n=160, k=512, dtype="float16", rhs="nk"),
    MatmulProblem(m=96, n=160, k=512, dtype="bfloat16", out_dtype="float32"),
]
each_matmul = pytest.mark.parametrize("problem", MATMULS, ids=str)
COPY_TYPES = [
    dtype
    for dtype in DTYPE_BITS
    if not copy.supports(CopyProblem(m=64, n=256, dtype=dtype), reference_target("sm_90"))
]


def product(problem: MatmulProblem, operands: tuple[jax.Array, ...], depth: int | None = None) -> np.ndarray:
    """The product of the first `depth` columns of lhs with as many rows of rhs, in float64."""
    lhs, rhs = (np.asarray(x).astype(np.float64) for x in operands)
    rhs = rhs if problem.rhs == "kn" else rhs.T
    return np.asarray(lhs[:, :depth] @ rhs[:depth])


def rounded(problem: MatmulProblem, exact: np.ndarray) -> np.ndarray:
    return np.asarray(exact, np.float32).astype(jnp.dtype(problem.out_dtype))


@functools.cache
def checked_of(problem: MatmulProblem) -> "Checked":
    return Checked(problem)


class Checked:
    """One problem with its operands, its right output, and how an output is judged."""

    def __init__(self, problem: MatmulProblem) -> None:
        self.problem = problem
        self.operands = references.matmul_operands(problem, 0)
        self.expected, self.tolerance = references.matmul_reference(problem, self.operands, 0)
        self.right = rounded(problem, product(problem, self.operands))

    def wrong(self, out: np.ndarray) -> int:
        """How many elements are wrong; the largest error agrees on whether any is."""
        error, wrong = worst_error(jnp.asarray(out), self.expected, self.tolerance)
        assert (error > 1) == (wrong > 0)
        return int(wrong)


@each_matmul
def test_the_correctly_rounded_product_passes(problem: MatmulProblem) -> None:
    checked = checked_of(problem)
    assert checked.wrong(checked.right) == 0


@each_matmul
def test_a_product_summed_in_another_order_passes(problem: MatmulProblem) -> None:
    """A tensor core adds in blocks of its own."""
    checked = checked_of(problem)
    lhs, rhs = (np.asarray(x).astype(np.float32) for x in checked.operands)
    rhs = rhs if problem.rhs == "kn" else rhs.T
    total = np.zeros(checked.right.shape, np.float32)
    for start in reversed(range(0, problem.k, 16)):
        total += lhs[:, start : start + 16] @ rhs[start : start + 16]
    assert checked.wrong(rounded(problem, total)) == 0


@each_matmul
@pytest.mark.parametrize("tile_k", [16, 64])
def test_a_dropped_k_tile_is_caught(problem: MatmulProblem, tile_k: int) -> None:
    checked = checked_of(problem)
    short = rounded(problem, product(problem, checked.operands, problem.k - tile_k))
    assert checked.wrong(short) > 0.9 * short.size


@each_matmul
@pytest.mark.parametrize("edge", [np.s_[-1, :], np.s_[:, -1], np.s_[0, :16]], ids=["row", "column", "part"])
def test_a_stale_edge_is_caught(problem: MatmulProblem, edge: Any) -> None:
    """What a correct run on other operands left behind, in one edge alone."""
    checked = checked_of(problem)
    out = checked.right.copy()
    out[edge] = rounded(problem, product(problem, references.matmul_operands(problem, 1)))[edge]
    assert checked.wrong(out) > 0.9 * out[edge].size


@each_matmul
@pytest.mark.parametrize("left", [np.nan, np.inf, -np.inf])
def test_one_element_that_is_no_number_is_caught(problem: MatmulProblem, left: float) -> None:
    checked = checked_of(problem)
    out = checked.right.copy()
    out[37, 111] = left
    assert checked.wrong(out) == 1


@each_matmul
def test_one_element_a_little_off_is_caught(problem: MatmulProblem) -> None:
    """Two units in the last place, and half as much again as a sum may err."""
    checked = checked_of(problem)
    at = np.unravel_index(np.argmax(checked.right.astype(np.float32)), checked.right.shape)
    unit = float(checked.right[at]) - float(np.nextafter(checked.right[at], checked.right.dtype.type(0)))
    off = np.asarray(checked.expected).copy()
    off[at] += 2.5 * unit + 1.5 * float(checked.tolerance[at])
    out = checked.right.copy()
    out[at] = rounded(problem, off)[at]
    assert checked.wrong(out) == 1


def test_a_reference_that_is_off_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    dot = references._dot
    monkeypatch.setattr(references, "_dot", lambda *spec: lambda *operands: dot(*spec)(*operands) + 0.5)
    operands = references.matmul_operands(BF16, 0)
    with pytest.raises(MeasurementError, match="XLA's own result"):
        references.matmul_reference(BF16, operands, 0)


@pytest.mark.parametrize(
    ("family", "problem"),
    [(matmul_hopper.FAMILY, p) for p in MATMULS]
    + [(copy.FAMILY, CopyProblem(m=64, n=256, dtype=dtype)) for dtype in COPY_TYPES],
    ids=lambda part: str(part) if isinstance(part, Problem) else "",
)
def test_operands_are_random_and_of_the_problems_type(family: KernelFamily, problem: Problem) -> None:
    operands = resolve(family.operands)(problem, 0)
    again = resolve(family.operands)(problem, 0)
    others = resolve(family.operands)(problem, 1)
    for one, same, other, spec in zip(operands, again, others, operand_specs(family, problem), strict=True):
        assert one.dtype == problem.dtype  # type: ignore[attr-defined]
        assert (one.shape, one.dtype) == (spec.shape, spec.dtype)
        bits, same_bits, other_bits = (
            np.asarray(x).view(f"u{one.dtype.itemsize}") for x in (one, same, other)
        )
        assert np.array_equal(bits, same_bits)
        assert np.mean(bits != other_bits) > 0.5
        # Zeros, or few values, would draw less power and run faster.
        assert len(np.unique(bits)) > 3
        assert np.mean(bits == 0) < 0.3


@pytest.mark.parametrize("dtype", COPY_TYPES)
def test_poison_differs_from_the_right_output_everywhere(dtype: str) -> None:
    """Whatever a kernel does not write is seen, element by element."""
    problem = CopyProblem(m=64, n=256, dtype=dtype)
    operands = references.copy_operands(problem, 0)
    expected, tolerance = references.copy_reference(problem, operands, 0)
    poison = poisoned(jnp.zeros_like(expected), expected, tolerance)
    assert poison.dtype == dtype
    assert worst_error(poison, expected, tolerance)[1] == expected.size
    assert worst_error(expected, expected, tolerance) == (0, 0)


@each_matmul
def test_poison_is_wrong_everywhere(problem: MatmulProblem) -> None:
    checked = checked_of(problem)
    poison = poisoned(jnp.asarray(checked.right), checked.expected, checked.tolerance)
    assert checked.wrong(np.asarray(poison)) == poison.size


def test_copies_are_held_bit_by_bit() -> None:
    # Two payloads of a quiet NaN, both zeros, a subnormal, an infinity.
    bits = np.array([0x7FC00000, 0x7FC00001, 0x00000000, 0x80000000, 0x00000001, 0x7F800000], np.uint32)
    x = jnp.asarray(bits.view(np.float32))
    assert worst_error(x, x, None) == (0, 0)
    for at, other in ((0, 0x7FC00001), (1, 0xFFC00001), (2, 0x80000000), (3, 0), (4, 0), (5, 0x7F7FFFFF)):
        changed = bits.copy()
        changed[at] = other
        error, wrong = worst_error(jnp.asarray(changed.view(np.float32)), x, None)
        assert wrong == 1
        assert error == np.inf

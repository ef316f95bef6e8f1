import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from tuner.results.nearest import distance, nearest
from tuner.results.records import Best
from tuner.search_spaces.problem import CopyProblem, MatmulProblem

Maker = Callable[..., Any]


def matmul(m: int, n: int = 1024, k: int = 1024, **fields: Any) -> MatmulProblem:
    return MatmulProblem(m=m, n=n, k=k, **{"dtype": "bfloat16", **fields})


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (matmul(1024), 0.0),
        (matmul(2048), 1.0),
        (matmul(512), 1.0),
        (matmul(8192, 16384), 5.0),
        (matmul(1024, batch=4), 2.0),
        (matmul(1024, dtype="float16"), None),
        (matmul(1024, out_dtype="float32"), None),
        (matmul(1024, rhs="nk"), None),
        (CopyProblem(m=1024, n=1024, dtype="bfloat16"), None),
    ],
    ids=str,
)
def test_distance(other: Any, expected: float | None) -> None:
    assert distance(matmul(1024), other) == expected
    assert distance(other, matmul(1024)) == expected


def test_distance_of_kernels_with_the_same_fields() -> None:
    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class OtherProblem(CopyProblem):
        kernel = "other"

    sizes = {"m": 8, "n": 8, "dtype": "int8"}
    assert distance(CopyProblem(**sizes), OtherProblem(**sizes)) is None


def test_distance_of_flags_and_zeros() -> None:
    """A field that is no size has to be equal."""

    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class FlaggedProblem(CopyProblem):
        kernel = "flagged"
        causal: bool = False
        offset: int = 0

    base = FlaggedProblem(m=8, n=8, dtype="int8")
    assert distance(base, dataclasses.replace(base, m=16)) == 1.0
    assert distance(base, dataclasses.replace(base, causal=True)) is None
    assert distance(base, dataclasses.replace(base, offset=4)) is None


def test_nearest_in_a_stable_order(measured: Maker) -> None:
    problems = [matmul(512), matmul(8192), matmul(2048), matmul(1024, 2048), matmul(1024, dtype="float16")]
    bests = [Best.of(measured(problem=problem)) for problem in problems]
    found = nearest(matmul(1024), bests, 3)
    assert [away for away, _ in found] == [1.0, 1.0, 1.0]
    assert found == nearest(matmul(1024), bests[::-1], 3)
    assert nearest(matmul(1024), bests, 9)[3][0] == 3.0
    assert len(nearest(matmul(1024), bests, 9)) == 4
    assert nearest(matmul(1024), bests, 0) == nearest(matmul(1024), [], 3) == []


def test_an_exact_one_comes_first(measured: Maker) -> None:
    bests = [Best.of(measured(problem=problem)) for problem in (matmul(2048), matmul(1024))]
    assert nearest(matmul(1024), bests, 1) == [(0.0, bests[1])]

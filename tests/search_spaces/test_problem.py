"""Problems are normalised once: equal problems have equal keys, and what means nothing is refused."""

import dataclasses
import math
from typing import Any

import hypothesis
import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies

from tuner.search_spaces.errors import UsageError
from tuner.search_spaces.problem import DTYPE_BITS, CopyProblem, MatmulProblem, Problem, dtype_name

MATMUL = MatmulProblem(m=128, n=256, k=64, dtype="bfloat16")
COPY = CopyProblem(m=128, n=256, dtype="float32")

sizes = strategies.integers(1, 2**20)
dtypes = strategies.sampled_from(sorted(DTYPE_BITS))
problems = strategies.builds(
    MatmulProblem,
    m=sizes,
    n=sizes,
    k=sizes,
    dtype=dtypes,
    batch=strategies.integers(1, 64),
    rhs_dtype=dtypes,
    acc_dtype=dtypes,
    out_dtype=dtypes,
    lhs=strategies.sampled_from(["mk", "km"]),
    rhs=strategies.sampled_from(["kn", "nk"]),
) | strategies.builds(CopyProblem, m=sizes, n=sizes, dtype=dtypes)


@hypothesis.given(one=problems, other=problems)
def test_keys_are_equal_exactly_where_problems_are(one: Problem, other: Problem) -> None:
    again = type(one).from_dict(one.to_dict())
    assert again == one
    assert again.key == one.key
    assert (one.key == other.key) == (one == other)


@pytest.mark.parametrize(
    "same",
    [
        MatmulProblem(dtype="bf16", k=64, n=256, m=128),
        MatmulProblem(m=np.int64(128), n=np.int32(256), k=np.uint8(64), dtype="BFLOAT16"),
        MatmulProblem(m=128, n=256, k=64, dtype=ml_dtypes.bfloat16),
        MatmulProblem(m=128, n=256, k=64, dtype=np.dtype(ml_dtypes.bfloat16)),
        MatmulProblem(
            m=128, n=256, k=64, dtype="bf16", rhs_dtype="bf16", acc_dtype="f32", out_dtype="bfloat16", batch=1
        ),
    ],
)
def test_one_problem_has_one_key(same: MatmulProblem) -> None:
    assert same == MATMUL
    assert same.key == MATMUL.key
    assert hash(same) == hash(MATMUL)
    assert {type(value) for value in same.to_dict().values()} == {int, str}


@pytest.mark.parametrize(
    "change",
    [
        {"m": 129},
        {"n": 257},
        {"k": 65},
        {"batch": 2},
        {"dtype": "float16", "rhs_dtype": "float16", "out_dtype": "float16"},
        {"rhs_dtype": "float16"},
        {"acc_dtype": "bfloat16"},
        {"out_dtype": "float32"},
        {"lhs": "km"},
        {"rhs": "nk"},
    ],
    ids=str,
)
def test_every_field_is_in_the_key(change: dict[str, Any]) -> None:
    assert dataclasses.replace(MATMUL, **change).key != MATMUL.key


def test_another_kernel_has_another_key() -> None:
    assert CopyProblem(m=1, n=1, dtype="int8").key != MatmulProblem(m=1, n=1, k=1, dtype="int8").key


BAD_NUMBERS = [True, np.bool_(False), 1.0, math.nan, math.inf, np.float32(8), "128", None, 0, -1, [128]]


@pytest.mark.parametrize("value", BAD_NUMBERS, ids=repr)
@pytest.mark.parametrize(
    ("problem", "name"),
    [(MATMUL, "m"), (MATMUL, "n"), (MATMUL, "k"), (MATMUL, "batch"), (COPY, "m"), (COPY, "n")],
    ids=lambda part: part if isinstance(part, str) else part.kernel,
)
def test_a_size_that_is_no_size_is_refused(problem: Problem, name: str, value: object) -> None:
    with pytest.raises(UsageError) as caught:
        type(problem).from_dict({**problem.to_dict(), name: value})
    told = str(caught.value)
    assert told.startswith(f"{name}=")
    assert str(value) in told
    assert "integer" in told
    assert "\n" not in told
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("bf16", "bfloat16"),
        ("half", "float16"),
        ("FP16", "float16"),
        ("f32", "float32"),
        ("s8", "int8"),
        ("u8", "uint8"),
        ("fp8_e4m3", "float8_e4m3fn"),
        (np.dtype("int8"), "int8"),
        (np.float16, "float16"),
        (ml_dtypes.float8_e5m2, "float8_e5m2"),
        # Not renamed to what JAX makes of it without x64.
        ("float64", "float64"),
        ("f64", "float64"),
    ],
    ids=str,
)
def test_aliases(given: object, name: str) -> None:
    assert dtype_name(given) == name
    assert CopyProblem(m=1, n=1, dtype=given).dtype == name  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("bfloat61", "did you mean bfloat16"),
        ("float", "did you mean float"),
        ("quux", "choose from bool"),
        (16, "dtype=16 is not a type name"),
        ("", "unknown dtype ''"),
    ],
)
def test_an_unknown_dtype_suggests_one(given: object, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        CopyProblem(m=1, n=1, dtype=given)  # type: ignore[arg-type]
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"mm": 1}, "unknown key 'mm' for matmul; did you mean m"),
        ({"outdtype": "f32"}, "unknown key 'outdtype' for matmul; did you mean out_dtype"),
        ({"quux": 1}, "choose from m, n, k, dtype"),
        ({"lhs": "mn"}, "lhs='mn' is unknown; choose from mk, km"),
        ({"rhs": "mk"}, "rhs='mk' is unknown; choose from kn, nk"),
    ],
    ids=str,
)
def test_an_unknown_key_or_layout_suggests_one(fields: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        MatmulProblem.from_dict({"m": 1, "n": 1, "k": 1, "dtype": "bf16", **fields})
    assert told in str(caught.value)


@pytest.mark.parametrize("name", ["m", "n", "k", "dtype"])
def test_a_missing_key_is_named(name: str) -> None:
    fields = {k: v for k, v in MATMUL.to_dict().items() if k != name}
    with pytest.raises(UsageError, match=f"matmul needs {name}="):
        MatmulProblem.from_dict(fields)


def test_what_is_implied_is_not_told() -> None:
    assert str(MATMUL) == "matmul m=128 n=256 k=64 dtype=bfloat16"
    assert str(dataclasses.replace(MATMUL, out_dtype="float32", rhs="nk")) == (
        "matmul m=128 n=256 k=64 dtype=bfloat16 out_dtype=float32 rhs=nk"
    )


@pytest.mark.parametrize(
    ("dtype", "acc_dtype"),
    [
        ("bfloat16", "float32"),
        ("float8_e5m2", "float32"),
        ("int8", "int32"),
        ("uint8", "int32"),
        ("f64", "float64"),
    ],
)
def test_the_natural_accumulator(dtype: str, acc_dtype: str) -> None:
    assert MatmulProblem(m=1, n=1, k=1, dtype=dtype).acc_dtype == acc_dtype


def test_work_and_traffic() -> None:
    assert MATMUL.flops == 2 * 128 * 256 * 64
    assert MATMUL.bytes == 2 * (128 * 64 + 64 * 256 + 128 * 256)
    wider = dataclasses.replace(MATMUL, batch=3, out_dtype="float32")
    assert wider.flops == 3 * MATMUL.flops
    assert wider.bytes == 3 * (2 * (128 * 64 + 64 * 256) + 4 * 128 * 256)
    assert COPY.flops == 0
    assert COPY.bytes == 2 * 128 * 256 * 4
    # Two elements a byte.
    assert CopyProblem(m=8, n=8, dtype="int4").bytes == 64


def test_problems_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        MATMUL.m = 1  # type: ignore[misc]

"""The rules of the mma.sync matmul: each broken alone, and what they leave."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.search_spaces.spaces import broken, space_of
from tuner.search_spaces.architecture import ARCHITECTURES, reference_target
from tuner.search_spaces.matmul_mma import ARCHITECTURES_WITH_MMA, FAMILY, OUT_DTYPES, RULES, TuningConfig
from tuner.search_spaces.problem import DTYPE_BITS, MatmulProblem
from tuner.search_spaces.space import LegalSpace

BF16 = MatmulProblem(m=768, n=1536, k=512, dtype="bfloat16")
NK = dataclasses.replace(BF16, rhs="nk")
DEEP = MatmulProblem(m=256, n=256, k=2048, dtype="bfloat16")
TALL = MatmulProblem(m=4608, n=64, k=64, dtype="bfloat16")
INT8 = MatmulProblem(m=256, n=256, k=256, dtype="int8", out_dtype="int32", rhs="nk")

# Each row: the one rule it breaks, problem, architecture, configuration.
WITNESSES: list[tuple[str, MatmulProblem, str, dict[str, Any]]] = [
    ("mma.tile", BF16, "sm_80", {"tile_m": 16, "tile_n": 48}),
    ("mma.tile", BF16, "sm_80", {"tile_m": 32, "tile_n": 24}),
    ("mma.tile", BF16, "sm_120", {"tile_m": 8, "barriers": "shared"}),
    ("mma.tile", BF16, "sm_120", {"tile_n": 4, "barriers": "shared"}),
    ("mma.tile_k", BF16, "sm_80", {"tile_k": 8}),
    ("mma.tile_k", INT8, "sm_80", {"tile_k": 16}),
    ("matmul.m_divisible", BF16, "sm_80", {"tile_m": 80}),
    ("matmul.m_divisible", BF16, "sm_80", {"tile_m": 256, "tile_n": 8, "tile_k": 32, "wg_dimension": "M"}),
    ("matmul.n_divisible", BF16, "sm_80", {"tile_n": 80}),
    ("matmul.k_divisible", BF16, "sm_80", {"tile_k": 48}),
    ("barrier.required", BF16, "sm_120", {}),
    ("barrier.forbidden", BF16, "sm_80", {"barriers": "shared"}),
    ("barrier.forbidden", BF16, "sm_89", {"barriers": "per_operand"}),
    ("cp_async.four_tiles", BF16, "sm_80", {"tile_n": 8, "tile_k": 16}),
    ("cp_async.four_tiles", NK, "sm_80", {"tile_n": 24, "tile_k": 16}),
    (
        "matmul.box",
        TALL,
        "sm_120",
        {
            "tile_m": 2304,
            "tile_n": 8,
            "tile_k": 16,
            "max_concurrent_steps": 1,
            "delay_release": 0,
            "barriers": "shared",
        },
    ),
    # 257 chunks of 16 bytes across; an even number of them would be swizzled, and half as many.
    (
        "matmul.box",
        MatmulProblem(m=64, n=2056, k=32, dtype="bfloat16"),
        "sm_120",
        {
            "tile_n": 2056,
            "tile_k": 16,
            "max_concurrent_steps": 1,
            "delay_release": 0,
            "barriers": "shared",
        },
    ),
    ("pipeline.steps", BF16, "sm_80", {"max_concurrent_steps": 1}),
    ("pipeline.steps", BF16, "sm_80", {"max_concurrent_steps": 0, "delay_release": 0}),
    ("pipeline.delay_release", BF16, "sm_80", {"delay_release": 2}),
    (
        "barrier.group_of_32",
        DEEP,
        "sm_120",
        {"tile_m": 16, "tile_n": 32, "tile_k": 16, "max_concurrent_steps": 33, "barriers": "per_operand"},
    ),
    ("smem.capacity", BF16, "sm_80", {"tile_m": 256, "tile_n": 256}),
    ("smem.capacity", BF16, "sm_86", {"tile_n": 128, "max_concurrent_steps": 4, "epilogue": "smem"}),
    ("raster.width", BF16, "sm_80", {"grid_tile_width": 0}),
    ("canonical.grid_tile_width", BF16, "sm_80", {"grid_tile_width": 25}),
    (
        "canonical.grid_minor_dim",
        BF16,
        "sm_80",
        {"tile_m": 384, "tile_n": 8, "tile_k": 32, "wg_dimension": "M", "grid_minor_dim": "M"},
    ),
    ("canonical.max_concurrent_steps", BF16, "sm_80", {"tile_k": 256, "max_concurrent_steps": 4}),
]


def test_every_rule_has_a_witness() -> None:
    """But whole lines of 128 bytes: 16 rows, or 8 columns, of 32 bytes are that already."""
    assert {rule.id for rule in RULES} - {rule for rule, *_ in WITNESSES} == {"matmul.copy_bytes"}


@pytest.mark.parametrize(("rule", "problem", "arch", "fields"), WITNESSES, ids=str)
def test_a_rule_broken_alone(rule: str, problem: MatmulProblem, arch: str, fields: dict[str, Any]) -> None:
    space = space_of(problem, reference_target(arch))
    config = FAMILY.config(fields)
    assert broken(space, config) == (rule,)
    assert config not in space
    assert space.nearest(config) in space


@pytest.mark.parametrize(
    ("arch", "fields"),
    [
        # As deep as cp.async rings go, no barrier limits them.
        ("sm_80", {"tile_m": 16, "tile_n": 32, "tile_k": 16, "max_concurrent_steps": 108}),
        ("sm_80", {"tile_n": 8, "tile_k": 32, "wg_dimension": "M", "epilogue": "smem"}),
        (
            "sm_120",
            {"tile_m": 16, "tile_n": 32, "tile_k": 16, "max_concurrent_steps": 32, "barriers": "shared"},
        ),
        ("sm_120", {"tile_n": 8, "tile_k": 16, "barriers": "per_operand", "epilogue": "smem"}),
    ],
    ids=str,
)
def test_corners_are_in_the_space(arch: str, fields: dict[str, Any]) -> None:
    assert FAMILY.config(fields) in space_of(DEEP, reference_target(arch))


@pytest.mark.parametrize("arch", ARCHITECTURES_WITH_MMA)
@pytest.mark.parametrize("problem", [BF16, NK, DEEP, INT8], ids=str)
def test_every_copy_is_whole_lines(arch: str, problem: MatmulProblem) -> None:
    """elements * itemsize % 128 == 0 follows from the other rules."""
    space = LegalSpace(FAMILY, problem, reference_target(arch))
    fields = space.columns(np.arange(0, len(space), 97))
    columns = FAMILY.columns(problem, space.target, fields)
    for name in ("lhs_stage_bytes", "rhs_stage_bytes", "out_smem_bytes"):
        assert np.all(columns[name] % 128 == 0)
    assert FAMILY.default_config(problem, space.target) in space
    assert np.all(FAMILY.columns(problem, space.target, fields).apply(FAMILY.predict_us) > 0)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_types_it_takes(arch: str) -> None:
    for dtype in DTYPE_BITS:
        out_dtype = OUT_DTYPES.get(dtype, (dtype,))[0]
        problem = MatmulProblem(m=64, n=64, k=64, dtype=dtype, out_dtype=out_dtype, rhs="nk")
        told = FAMILY.supports(problem, reference_target(arch))
        if arch not in ARCHITECTURES_WITH_MMA:
            assert arch in told
        elif dtype not in OUT_DTYPES or (dtype.startswith("float8") and arch in ("sm_80", "sm_86", "sm_87")):
            assert dtype in told
        else:
            assert told == ""


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"dtype": "int8", "out_dtype": "int32"}, "rhs stored (n, k), not (k, n)"),
        ({"dtype": "float8_e5m2", "out_dtype": "float32"}, "rhs stored (n, k), not (k, n)"),
        ({"dtype": "int8", "rhs": "nk"}, "writes int32, not int8"),
        ({"dtype": "bfloat16", "out_dtype": "float16"}, "writes bfloat16 or float32, not float16"),
        ({"dtype": "bfloat16", "rhs_dtype": "float16"}, "one type, not bfloat16 and float16"),
        (
            {"dtype": "float8_e4m3fn", "rhs_dtype": "float8_e5m2", "out_dtype": "float32", "rhs": "nk"},
            "one type",
        ),
        ({"dtype": "float16", "acc_dtype": "float16"}, "accumulates float16 in float32, not float16"),
        ({"dtype": "float16", "lhs": "km"}, "not (k, m)"),
        ({"dtype": "float16", "batch": 2}, "batch=2"),
    ],
    ids=str,
)
def test_what_it_refuses_by_name(fields: dict[str, Any], reason: str) -> None:
    problem = MatmulProblem(**{"m": 64, "n": 64, "k": 64, **fields})
    assert reason in FAMILY.supports(problem, reference_target("sm_89"))


def test_a_problem_no_tile_divides_is_told() -> None:
    space = LegalSpace(FAMILY, MatmulProblem(m=17, n=64, k=64, dtype="bfloat16"), reference_target("sm_80"))
    assert len(space) == 0
    with pytest.raises(Exception, match="m=17"):
        space.require_any()


def test_the_defaults_are_legal_where_they_divide() -> None:
    assert TuningConfig() in space_of(BF16, reference_target("sm_80"))

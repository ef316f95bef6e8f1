"""The Blackwell matmul's legal space: what its rules refuse, and that they keep nothing else out."""

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest

from tests.search_spaces.spaces import broken
from tuner.search_spaces.architecture import ARCHITECTURES, Target, reference_target
from tuner.search_spaces.family import Axis
from tuner.search_spaces.matmul_blackwell import FAMILY, RULES, TuningConfig, plan
from tuner.search_spaces.problem import MatmulProblem
from tuner.search_spaces.rule import violations
from tuner.search_spaces.space import LegalSpace

SM_100 = reference_target("sm_100")
BF16 = MatmulProblem(m=4096, n=8192, k=4096, dtype="bfloat16")
NK = dataclasses.replace(BF16, rhs="nk")
FP8 = dataclasses.replace(BF16, dtype="float8_e4m3fn", rhs_dtype="float8_e5m2")
INT8 = MatmulProblem(m=4096, n=8192, k=4096, dtype="int8", out_dtype="int32")
TYPES: tuple[tuple[str, str, str], ...] = (
    ("float16", "float16", "float16"),
    ("float16", "float16", "float32"),
    ("bfloat16", "bfloat16", "bfloat16"),
    ("bfloat16", "bfloat16", "float32"),
    ("float8_e4m3fn", "float8_e4m3fn", "bfloat16"),
    ("float8_e4m3fn", "float8_e5m2", "float16"),
    ("float8_e5m2", "float8_e4m3fn", "float32"),
    ("float8_e5m2", "float8_e5m2", "bfloat16"),
    ("int8", "int8", "int32"),
)


def problem_of(
    types: tuple[str, str, str], rhs: str, m: int = 512, n: int = 512, k: int = 256
) -> MatmulProblem:
    dtype, rhs_dtype, out_dtype = types
    return MatmulProblem(m=m, n=n, k=k, dtype=dtype, rhs_dtype=rhs_dtype, out_dtype=out_dtype, rhs=rhs)


@functools.cache
def space_of(problem: MatmulProblem, target: Target = SM_100) -> LegalSpace:
    return LegalSpace(FAMILY, problem, target)


@pytest.mark.parametrize("rhs", ["kn", "nk"])
@pytest.mark.parametrize("types", TYPES, ids=" ".join)
@pytest.mark.parametrize("arch", ["sm_100", "sm_103", "sm_110"])
def test_every_type_has_a_legal_default(arch: str, types: tuple[str, str, str], rhs: str) -> None:
    problem, target = problem_of(types, rhs), reference_target(arch)
    if arch == "sm_103" and types[0] == "int8":
        assert FAMILY.supports(problem, target) == "takes int8 on sm_100 and sm_110 only, not sm_103"
        return
    assert FAMILY.supports(problem, target) == ""
    assert FAMILY.default_config(problem, target) in space_of(problem, target)


@pytest.mark.parametrize("arch", sorted(set(ARCHITECTURES) - {"sm_100", "sm_103", "sm_110"}))
def test_other_architectures_are_refused_by_name(arch: str) -> None:
    told = FAMILY.supports(BF16, reference_target(arch))
    assert told == f"needs tcgen05, which only sm_100, sm_103, sm_110 have, not {arch}"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"dtype": "float32"}, "not float32: tcgen05 in Pallas has no tf32"),
        ({"dtype": "uint8", "out_dtype": "int32"}, "not uint8: JAX multiplies it as int8"),
        ({"dtype": "float64"}, "not float64"),
        ({"dtype": "int4", "out_dtype": "int32"}, "not int4"),
        ({"dtype": "float4_e2m1fn", "out_dtype": "float32"}, "not float4_e2m1fn"),
        ({"dtype": "float8_e3m4", "out_dtype": "float32"}, "not float8_e3m4"),
        ({"rhs_dtype": "float16"}, "takes operands of one type, not bfloat16 and float16"),
        ({"rhs_dtype": "float8_e5m2"}, "takes operands of one type, not bfloat16 and float8_e5m2"),
        ({"acc_dtype": "float16"}, "accumulates bfloat16 in float32, not float16"),
        ({"out_dtype": "float16"}, "writes bfloat16 or float32, not float16"),
        ({"dtype": "float8_e5m2"}, "writes bfloat16 or float16 or float32, not float8_e5m2"),
        ({"dtype": "int8"}, "writes int32, not int8"),
        ({"dtype": "int8", "acc_dtype": "float32", "out_dtype": "float32"}, "accumulates int8 in int32"),
        ({"lhs": "km"}, "takes lhs stored (m, k), not (k, m)"),
        ({"batch": 2}, "takes one matrix, not batch=2"),
    ],
    ids=str,
)
def test_what_it_does_not_take_is_named(fields: dict[str, Any], told: str) -> None:
    problem = MatmulProblem.from_dict({"m": 4096, "n": 4096, "k": 4096, "dtype": "bfloat16", **fields})
    assert told in FAMILY.supports(problem, SM_100)


# One configuration a rule that breaks it and no other.
WITNESSES: dict[str, tuple[MatmulProblem, dict[str, Any]]] = {
    "matmul.collective": (BF16, {"collective": 2}),
    "matmul.tile_m_mma": (BF16, {"tile_m": 256, "max_concurrent_steps": 2}),
    # Integers by two blocks come by 32 columns.
    "matmul.tile_n_mma": (
        dataclasses.replace(INT8, n=96, rhs="nk"),
        {"tile_n": 48, "collective": 1, "epi_tile_n": 8},
    ),
    "matmul.tile_n_16": (
        dataclasses.replace(NK, n=240, out_dtype="float32"),
        {"tile_n": 24, "epi_tile_n": 8},
    ),
    "matmul.tile_n_most": (BF16, {"tile_n": 256, "collective": 1, "max_concurrent_steps": 2}),
    "matmul.m_divisible": (dataclasses.replace(BF16, m=4160), {}),
    "matmul.n_divisible": (dataclasses.replace(BF16, n=4160), {}),
    "matmul.k_divisible": (dataclasses.replace(BF16, k=4160 + 32), {}),
    "matmul.lhs_swizzle": (dataclasses.replace(BF16, k=72), {"tile_k": 72, "max_concurrent_steps": 1}),
    "matmul.rhs_swizzle": (FP8, {"tile_n": 16, "epi_tile_n": 16}),
    "matmul.box": (
        dataclasses.replace(FP8, k=2304, n=64),
        {
            "tile_m": 64,
            "tile_n": 32,
            "tile_k": 2304,
            "epi_tile_n": 64,
            "collective": 1,
            "max_concurrent_steps": 1,
        },
    ),
    "matmul.epi_tile_n": (BF16, {"epi_tile_n": 48}),
    "matmul.epi_whole": (BF16, {"tile_m": 64, "collective": 1, "epi_tile_n": 128}),
    "matmul.epi_swizzle": (BF16, {"epi_tile_n": 8}),
    "pipeline.steps": (BF16, {"max_concurrent_steps": 0}),
    "barrier.group_of_32": (
        BF16,
        {"tile_m": 64, "tile_n": 32, "tile_k": 16, "epi_tile_n": 16, "max_concurrent_steps": 33},
    ),
    "smem.capacity": (BF16, {"max_concurrent_steps": 8}),
    "raster.width": (BF16, {"grid_tile_width": 0}),
    "canonical.grid_tile_width": (BF16, {"grid_tile_width": 65}),
    "canonical.grid_minor_dim": (dataclasses.replace(BF16, m=128), {"grid_minor_dim": "M"}),
    "canonical.max_concurrent_steps": (MatmulProblem(m=128, n=128, k=128, dtype="bfloat16"), {}),
}
# The other rules imply these two, which stay because they are stated nowhere else.
IMPLIED = {"matmul.copy_bytes", "tmem.columns"}


def test_every_rule_has_a_witness() -> None:
    assert set(WITNESSES) | IMPLIED == {rule.id for rule in RULES}


@pytest.mark.parametrize("rule", WITNESSES)
def test_a_rule_is_broken_alone(rule: str) -> None:
    problem, fields = WITNESSES[rule]
    config = TuningConfig(**fields)
    assert FAMILY.supports(problem, SM_100) == ""
    assert broken(space_of(problem), config) == (rule,)
    told = space_of(problem).explain(config)
    assert told.canonical is False
    # What would mend it is told, and it does.
    for violation in told.violations:
        assert "{" not in violation.message
    if len(space_of(problem)):
        assert told.repair in space_of(problem)


@pytest.mark.parametrize("problem", [BF16, FP8, INT8], ids=str)
def test_what_is_implied_never_stands_alone(problem: MatmulProblem) -> None:
    rng, reached = np.random.default_rng(4), set()
    for _ in range(600):
        config = TuningConfig(
            tile_m=int(rng.choice([8, 16, 64, 96, 128, 256])),
            tile_n=int(rng.choice([1, 4, 8, 24, 128, 512, 520, 1024])),
            tile_k=int(rng.choice([1, 8, 16, 48, 64, 256])),
            epi_tile_n=int(rng.choice([1, 4, 16, 64, 1024])),
            collective=int(rng.choice([0, 1])),
            max_concurrent_steps=1,
        )
        columns = FAMILY.config_columns(problem, SM_100, config)
        rules = {v.rule for v in violations(RULES, columns)}
        reached |= rules & IMPLIED
        assert not rules or rules - IMPLIED
    assert reached == IMPLIED


@pytest.mark.parametrize("rhs", ["kn", "nk"])
@pytest.mark.parametrize("types", [TYPES[2], TYPES[5], TYPES[8]], ids=" ".join)
def test_the_axes_leave_nothing_legal_out(types: tuple[str, str, str], rhs: str) -> None:
    """On axes of every integer the rules keep exactly what they keep on the family's own."""
    problem = problem_of(types, rhs, m=384, n=192, k=96)

    def every_integer(problem: MatmulProblem, target: Target) -> tuple[Axis, ...]:
        most = {"tile_m": 400, "tile_n": 600, "epi_tile_n": 600, "tile_k": 200, "max_concurrent_steps": 34}
        wide = {name: tuple(range(1, limit)) for name, limit in most.items()}
        wide |= {"collective": (0, 1, 2)}
        own = FAMILY.axes(problem, target)
        return tuple(dataclasses.replace(axis, values=wide.get(axis.name, axis.values)) for axis in own)

    wide = LegalSpace(dataclasses.replace(FAMILY, axes=every_integer), problem, SM_100)
    assert list(wide) == list(space_of(problem))
    assert len(wide) > 100


@pytest.mark.parametrize(
    ("fields", "acc_slots", "tmem_columns"),
    [
        ({"tile_n": 128}, 2, 256),
        ({"tile_n": 96}, 2, 256),
        ({"tile_n": 128, "collective": 1}, 2, 512),
        ({"tile_n": 96, "collective": 1}, 2, 512),
        ({"tile_n": 256}, 2, 512),
        # No room for a second one.
        ({"tile_n": 512}, 1, 512),
        # 64 rows fill half of the lanes, the other half takes half of the columns.
        ({"tile_m": 64, "tile_n": 256}, 2, 256),
        ({"tile_m": 64, "tile_n": 512}, 2, 512),
        ({"tile_m": 64, "tile_n": 16}, 2, 32),
    ],
    ids=str,
)
def test_tensor_memory(fields: dict[str, Any], acc_slots: int, tmem_columns: int) -> None:
    columns = FAMILY.config_columns(BF16, SM_100, TuningConfig(**fields))
    assert columns["acc_slots"] == acc_slots
    assert columns["tmem_columns"] == tmem_columns


def test_one_tile_a_block_needs_one_accumulator() -> None:
    problem = MatmulProblem(m=512, n=512, k=256, dtype="bfloat16")
    assert plan(problem, TuningConfig(), SM_100).acc_slots == 1
    assert plan(problem, TuningConfig(), dataclasses.replace(SM_100, sm_count=4)).acc_slots == 2


@pytest.mark.parametrize(
    ("problem", "fields", "swizzles"),
    [
        (BF16, {}, (128, 128, 128)),
        (BF16, {"tile_k": 32}, (64, 64, 128)),
        # The columns of one instruction bound the swizzle: 96 of two blocks, half of 96 of 64 rows.
        (dataclasses.replace(BF16, n=6144), {"tile_n": 96, "collective": 1}, (128, 64, 128)),
        (dataclasses.replace(BF16, n=6144), {"tile_m": 64, "tile_n": 96, "epi_tile_n": 48}, (128, 32, 32)),
        (dataclasses.replace(NK, n=6144), {"tile_n": 96}, (128, 128, 128)),
        (dataclasses.replace(NK, n=6144), {"tile_m": 64, "tile_n": 96}, (128, 64, 128)),
        (dataclasses.replace(NK, n=6144), {"tile_m": 64, "tile_n": 32, "epi_tile_n": 32}, (128, 32, 64)),
        # The halves of the columns apart: 96 of 2 bytes each.
        (
            dataclasses.replace(NK, n=6144),
            {"tile_m": 64, "tile_n": 96, "collective": 1, "epi_tile_n": 192},
            (128, 128, 64),
        ),
    ],
    ids=str,
)
def test_swizzles(problem: MatmulProblem, fields: dict[str, Any], swizzles: tuple[int, int, int]) -> None:
    found = plan(problem, TuningConfig(**fields), SM_100)
    assert (found.lhs_swizzle_bytes, found.rhs_swizzle_bytes, found.epi_swizzle_bytes) == swizzles


def test_collective_is_a_whole_number() -> None:
    """`collective=1` on the command line; Python's True is equal to it."""
    assert FAMILY.parse_config("collective=1") == TuningConfig(collective=True)


def test_the_prior_orders_what_is_known() -> None:
    def microseconds(problem: MatmulProblem = BF16, **fields: Any) -> float:
        columns = FAMILY.config_columns(problem, SM_100, TuningConfig(**fields))
        return float(columns.apply(FAMILY.predict_us))

    careful = microseconds(collective=1, grid_minor_dim="M", grid_tile_width=8)
    assert BF16.flops / (2.5e15 * 1e-6) < careful < 4 * BF16.flops / (2.5e15 * 1e-6)
    assert careful < microseconds(collective=0, tile_n=64) < microseconds(tile_m=64, tile_n=64)
    assert careful < microseconds(collective=1, grid_minor_dim="M", grid_tile_width=8, max_concurrent_steps=1)
    assert microseconds(FP8, tile_k=128) < microseconds()


def test_the_prior_is_finite_and_positive() -> None:
    for problem in (BF16, INT8, problem_of(TYPES[6], "nk")):
        space = space_of(problem)
        rows = np.random.default_rng(1).integers(0, len(space), 2000)
        predicted = FAMILY.columns(problem, SM_100, space.columns(rows)).apply(FAMILY.predict_us)
        assert np.isfinite(predicted).all()
        assert (predicted > 0).all()

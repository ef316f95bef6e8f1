"""The rules of copies by cp.async, each broken alone, and the space that they leave."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests.search_spaces.spaces import broken, space_of
from tuner.search_spaces.architecture import ARCHITECTURES, reference_target
from tuner.search_spaces.copy_cp_async import FAMILY, MAX_GROUPS, RULES, TuningConfig, plan
from tuner.search_spaces.problem import DTYPE_BITS, CopyProblem

ARCHS = ("sm_80", "sm_86", "sm_87", "sm_89")
SM_80 = reference_target("sm_80")
# Few blocks, so that each has many tiles.
FOUR_SMS = dataclasses.replace(SM_80, sm_count=4)
COPY = CopyProblem(m=768, n=1536, dtype="float32")
# Every axis in play, and small enough to look at every configuration.
SMALL = (
    CopyProblem(m=640, n=80, dtype="bfloat16"),
    CopyProblem(m=48, n=1280, dtype="int8"),
    CopyProblem(m=256, n=256, dtype="float4_e2m1fn"),
    CopyProblem(m=1, n=4096, dtype="float32"),
)

# Each row: the one rule that is broken, by which fields beside the defaults.
ALONE: list[tuple[str, CopyProblem, dict[str, Any]]] = [
    ("copy.m_divisible", COPY, {"tile_m": 160}),
    ("copy.n_divisible", COPY, {"tile_n": 160}),
    ("copy.contiguous", COPY, {"layout": "rows"}),
    ("copy.contiguous", COPY, {"layout": "rows", "tile_m": 2, "tile_n": 768}),
    ("copy.transfer", COPY, {"layout": "rows", "tile_m": 1, "tile_n": 96}),
    ("copy.transfer", CopyProblem(m=640, n=96, dtype="uint8"), {"layout": "rows", "tile_m": 8, "tile_n": 96}),
    (
        "copy.whole_bytes",
        CopyProblem(m=256, n=4064, dtype="int4"),
        {"tile_m": 64, "tile_n": 127, "swizzle_bytes": 16},
    ),
    ("copy.swizzle", COPY, {"swizzle_bytes": 8}),
    ("copy.swizzle", COPY, {"swizzle_bytes": 256}),
    ("copy.tiling", COPY, {"tile_m": 4, "tile_n": 512}),
    ("copy.tiling", COPY, {"tile_m": 128, "tile_n": 16}),
    ("copy.four_tiles", COPY, {"tile_m": 24, "tile_n": 64}),
    ("copy.four_tiles", COPY, {"tile_m": 8}),
    ("pipeline.steps", COPY, {"max_concurrent_steps": 0}),
    ("pipeline.steps", COPY, {"max_concurrent_steps": 1, "delay_release": 1}),
    ("smem.capacity", COPY, {"tile_m": 128, "tile_n": 96}),
    ("grid.blocks_per_sm", COPY, {"blocks_per_sm": 0}),
    ("canonical.swizzle_bytes", COPY, {"layout": "rows", "tile_m": 4, "tile_n": 1536, "swizzle_bytes": 32}),
    ("canonical.blocks_per_sm", COPY, {"blocks_per_sm": 17}),
    ("canonical.blocks_per_sm", COPY, {"grid_schedule": "hardware"}),
    ("canonical.max_concurrent_steps", COPY, {"tile_n": 4, "swizzle_bytes": 16, "max_concurrent_steps": 65}),
    ("canonical.max_concurrent_steps", COPY, {"tile_n": 384, "blocks_per_sm": 16, "max_concurrent_steps": 3}),
    ("canonical.delay_release", COPY, {"delay_release": 2}),
    ("canonical.delay_release", COPY, {"tile_n": 384, "blocks_per_sm": 16, "delay_release": 2}),
    (
        "canonical.grid_minor_dim",
        COPY,
        {"tile_m": 4, "tile_n": 1536, "layout": "rows", "grid_minor_dim": "M"},
    ),
]


@pytest.mark.parametrize(("rule", "problem", "fields"), ALONE, ids=str)
def test_each_rule_is_broken_alone(rule: str, problem: CopyProblem, fields: dict[str, Any]) -> None:
    assert broken(space_of(problem, FOUR_SMS), TuningConfig(**fields)) == (rule,)


def test_every_rule_has_a_witness() -> None:
    """But whole lines of 128 bytes: four tiles, or 4 bytes for each of 128 threads, are that already."""
    assert {rule.id for rule in RULES} - {rule for rule, *_ in ALONE} == {"copy.bytes"}
    config = TuningConfig(layout="rows", tile_m=1, tile_n=24, grid_schedule="hardware", blocks_per_sm=1)
    assert broken(space_of(COPY, SM_80), config) == ("copy.bytes", "copy.transfer")


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("problem", SMALL, ids=str)
def test_what_is_legal_is_whole_and_aligned(arch: str, problem: CopyProblem) -> None:
    target = reference_target(arch)
    space = space_of(problem, target)
    columns = space.columns()
    bits = DTYPE_BITS[problem.dtype]
    tile_row_bits = columns["tile_n"] * bits
    tile_bits = columns["tile_m"] * tile_row_bits
    derived = FAMILY.columns(problem, target, columns)
    transfer_bits = 8 * derived["transfer_bytes"]
    assert len(space) > 20
    assert not np.any(tile_bits % (128 * 8))
    assert set(derived["transfer_bytes"]) <= {4, 8, 16}
    # Tiles start, and rows of tiled windows follow, where a transfer may.
    assert not np.any(np.where(derived["rows"], tile_bits, tile_row_bits) % transfer_bits)
    assert not np.any(np.where(derived["rows"], 0, problem.n * bits) % transfer_bits)
    # Every thread moves the same whole number of transfers.
    assert not np.any(tile_bits % (128 * transfer_bits))
    assert np.all(derived["smem_bytes"] < target.smem_optin_bytes)
    assert np.all((derived["depth"] >= 1) & (derived["depth"] <= MAX_GROUPS))


@pytest.mark.parametrize(
    ("tile", "transfer_bytes"),
    [
        ({"layout": "rows", "tile_m": 1, "tile_n": 384}, 4),
        ({"layout": "rows", "tile_m": 1, "tile_n": 256}, 8),
        ({"swizzle_bytes": 128}, 16),
        ({"swizzle_bytes": 64}, 16),
        ({"swizzle_bytes": 32, "tile_n": 8}, 8),
        ({"swizzle_bytes": 32, "tile_n": 16}, 16),
        ({"swizzle_bytes": 32, "tile_m": 64, "tile_n": 8}, 16),
        ({"swizzle_bytes": 16, "tile_n": 4}, 4),
        ({"swizzle_bytes": 16, "tile_n": 8}, 8),
        ({"swizzle_bytes": 16, "tile_m": 64, "tile_n": 8}, 16),
        ({"swizzle_bytes": 16, "tile_m": 24, "tile_n": 16}, 4),
        ({"swizzle_bytes": 16, "tile_m": 24, "tile_n": 32}, 8),
    ],
    ids=str,
)
def test_bytes_of_a_transfer(tile: dict[str, Any], transfer_bytes: int) -> None:
    config = TuningConfig(**tile, max_concurrent_steps=1, grid_schedule="hardware", blocks_per_sm=1)
    assert config in space_of(COPY, SM_80)
    assert FAMILY.config_columns(COPY, SM_80, config)["transfer_bytes"] == transfer_bytes


def test_a_ring_is_no_deeper_than_a_wait_can_count() -> None:
    problem = CopyProblem(m=65536, n=128, dtype="float32")
    row = {"layout": "rows", "tile_m": 1, "tile_n": 128, "blocks_per_sm": 1}
    space = space_of(problem, SM_80)
    assert TuningConfig(**row, max_concurrent_steps=64) in space
    assert TuningConfig(**row, max_concurrent_steps=65, delay_release=1) in space
    deeper = TuningConfig(**row, max_concurrent_steps=65)
    assert broken(space, deeper) == ("canonical.max_concurrent_steps",)
    assert plan(problem, deeper, SM_80).depth == MAX_GROUPS


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_architectures(arch: str) -> None:
    told = FAMILY.supports(COPY, reference_target(arch))
    if arch in ARCHS:
        assert not told
    else:
        assert told == f"copies without barriers, which JAX does before sm_90 only, not on {arch}"


@pytest.mark.parametrize("dtype", DTYPE_BITS)
def test_types(dtype: str) -> None:
    told = FAMILY.supports(CopyProblem(m=64, n=256, dtype=dtype), SM_80)
    refused = ("bool", "int64", "uint64", "float64", "complex64", "complex128")
    assert told.endswith(f"not {dtype}") == bool(told) == (dtype in refused)


def test_types_narrower_than_a_byte_fill_bytes() -> None:
    assert "n=3 of int4" in FAMILY.supports(CopyProblem(m=64, n=3, dtype="int4"), SM_80)
    problem = CopyProblem(m=64, n=512, dtype="int2")
    found = plan(problem, TuningConfig(tile_n=512), SM_80)
    assert (found.dtype, found.n, found.tile_n) == ("uint8", 128, 128)


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("problem", [COPY, *SMALL], ids=str)
def test_the_default_is_legal_and_worth_a_try(arch: str, problem: CopyProblem) -> None:
    target = reference_target(arch)
    space = space_of(problem, target)
    assert space.family is FAMILY
    config = FAMILY.default_config(problem, target)
    assert config in space
    columns = FAMILY.columns(problem, target, space.columns())
    predicted = columns.apply(FAMILY.predict_us)
    assert np.all(np.isfinite(predicted))
    assert np.all(predicted > 0)


def test_what_is_not_contiguous_is_repaired() -> None:
    told = space_of(COPY, SM_80).explain(TuningConfig(layout="rows"))
    assert [v.rule for v in told.violations] == ["copy.contiguous"]
    assert "have layout=rows with a tile of 32 x 64 from rows of 1536" in told.violations[0].message
    assert told.repair in space_of(COPY, SM_80)

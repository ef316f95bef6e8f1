"""What people who tune GPU kernels ran into, as they reported it.

What was reported of JAX's own Hopper matmul is held by its description in tests/hopper_mgpu.py, the rest by
our families.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest

from tests import hopper_mgpu
from tests.search_spaces.spaces import broken, space_of
from tuner.search_spaces import copy, matmul_hopper
from tuner.search_spaces.architecture import Target, reference_target
from tuner.search_spaces.errors import NoLegalConfigError
from tuner.search_spaces.problem import CopyProblem, MatmulProblem
from tuner.search_spaces.space import LegalSpace

SM_90 = reference_target("sm_90")


def matmul(m: int, n: int, k: int, **fields: Any) -> MatmulProblem:
    return MatmulProblem(m=m, n=n, k=k, dtype="bfloat16", **fields)


def jax_space(problem: MatmulProblem, target: Target = SM_90) -> LegalSpace:
    return LegalSpace(hopper_mgpu.FAMILY, problem, target)


def no_legal_config(space: LegalSpace) -> str:
    """The one line a user reads."""
    assert len(space) == 0
    with pytest.raises(NoLegalConfigError) as caught:
        space.require_any()
    assert caught.value.code == "NO_LEGAL_CONFIG"
    assert caught.value.exit_code == 3
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_most_of_the_grid_does_not_fit_shared_memory() -> None:
    space = jax_space(matmul(8192, 8192, 4096))
    assert space.raw == 486
    assert {rule: count for rule, count in space.removed.items() if count} == {"smem.capacity": 210}
    assert len(space) == 276


@pytest.mark.parametrize(
    ("steps", "smem_bytes", "limit", "legal"),
    [
        (4, 229_440, 232_448, True),
        (5, 278_608, 232_448, False),
        # Strictly less than the limit: at equality the launch fails on an H200, measured.
        (4, 229_440, 229_441, True),
        (4, 229_440, 229_440, False),
        (4, 229_440, 101_376, False),
    ],
)
def test_the_boundary(steps: int, smem_bytes: int, limit: int, legal: bool) -> None:
    target = dataclasses.replace(SM_90, smem_optin_bytes=limit)
    config = hopper_mgpu.TuningConfig(
        tile_m=128, tile_n=128, tile_k=64, wg_dimension="N", max_concurrent_steps=steps
    )
    told = jax_space(matmul(8192, 8192, 4096), target).explain(config)
    assert told.derived["smem_bytes"] == smem_bytes
    assert told.legal == legal
    if not legal:
        assert [v.rule for v in told.violations] == ["smem.capacity"]
        assert told.violations[0].have.startswith(str(smem_bytes))
        assert str(limit) in told.violations[0].need


def closed_form_bytes(problem: MatmulProblem, config: dict[str, Any]) -> int:
    """Shared memory as JAX's kernel allocates it, with the ring no longer than k."""
    c = config
    steps = min(c["max_concurrent_steps"], problem.k // c["tile_k"])
    cta_m = c["tile_m"] * (2 if c["wg_dimension"] == "M" else 1)
    cta_n = c["tile_n"] * (2 if c["wg_dimension"] == "N" else 1)
    epilogue = c["epi_tile_m"] * c["epi_tile_n"]
    slots = min(2, c["tile_m"] * c["tile_n"] // epilogue)
    return steps * (cta_m + cta_n) * c["tile_k"] * 2 + 2 * slots * epilogue * 2 + 16 * steps


# Shape, how many of the 486 candidates divide it, and how many of those JAX lowers and an H200 can hold.
COUNTS = [
    ((4096, 4096, 4096), 486, 276),
    ((4096, 151936, 4096), 189, 125),
    ((4096, 128256, 4096), 351, 220),
    ((4096, 50304, 4096), 189, 125),
    ((4096, 50257, 4096), 0, 0),
    ((4096, 4096, 4095), 0, 0),
    ((128, 4096, 4096), 189, 125),
    ((64, 4096, 4096), 54, 34),
    ((17, 4096, 4096), 0, 0),
    ((1088, 2048, 2048), 54, 34),
    ((4096, 576, 7168), 54, 34),
    ((4096, 7168, 576), 324, 240),
]


@pytest.mark.parametrize(("shape", "divisible", "legal"), COUNTS, ids=str)
def test_counts_of_a_published_sweep(shape: tuple[int, int, int], divisible: int, legal: int) -> None:
    space = jax_space(matmul(*shape))
    assert len(space) == legal
    assert len(space) + sum(space.removed.values()) == space.raw == 486
    # A rule counts what it removes first, so what divides is counted with everything else out of the way.
    dividing = tuple(rule for rule in hopper_mgpu.RULES if rule.id.endswith("_divisible"))
    family = dataclasses.replace(hopper_mgpu.FAMILY, rules=dividing)
    assert len(LegalSpace(family, space.problem, SM_90)) == divisible


def test_is_what_legal_configurations_use() -> None:
    for shape in ((4096, 4096, 4096), (4096, 7168, 576)):
        space = jax_space(matmul(*shape))
        derived = space.family.columns(space.problem, SM_90, space.columns())["smem_bytes"]
        for config, smem_bytes in zip(space, derived, strict=True):
            assert smem_bytes == closed_form_bytes(space.problem, dataclasses.asdict(config))


@pytest.mark.parametrize(
    ("tile_m", "tile_n", "legal"),
    [
        (64, 64, True),
        (192, 64, True),
        (32, 64, False),
        (96, 64, False),
        (64, 8, False),
        (64, 72, False),
        (64, 96, False),
        (64, 160, False),
        (64, 256, True),
        (64, 320, False),
    ],
)
def test_tiles(tile_m: int, tile_n: int, legal: bool) -> None:
    config = hopper_mgpu.TuningConfig(
        tile_m=tile_m, tile_n=tile_n, epi_tile_m=tile_m, epi_tile_n=tile_n, max_concurrent_steps=1
    )
    problem = matmul(tile_m * 2, tile_n * 2, 4096)
    assert jax_space(problem).explain(config).legal == legal


@pytest.mark.parametrize("tile_k", [8, 16, 24, 32, 48, 64, 96, 128, 256])
def test_depths(tile_k: int) -> None:
    config = hopper_mgpu.TuningConfig(
        tile_m=64, tile_n=64, epi_tile_n=64, tile_k=tile_k, max_concurrent_steps=1
    )
    assert jax_space(matmul(4096, 4096, tile_k * 64)).explain(config).legal == (tile_k not in (8, 24))


@pytest.mark.parametrize(
    "tiles",
    [
        {"tile_m": 64, "epi_tile_m": 128},
        {"tile_n": 64, "epi_tile_n": 128},
        {"tile_m": 192, "epi_tile_m": 128},
        {"tile_n": 192, "epi_tile_n": 128},
    ],
    ids=str,
)
def test_lowers_is_the_fastest_and_is_wrong(tiles: dict[str, int]) -> None:
    small = {"tile_m": 64, "tile_n": 64, "tile_k": 64, "max_concurrent_steps": 1}
    config = hopper_mgpu.TuningConfig(**{**small, **tiles})
    told = jax_space(matmul(384, 384, 64)).explain(config)
    assert [v.rule for v in told.violations] == ["hopper_mgpu.epilogue"]
    ours = space_of(matmul(384, 384, 64)).explain(matmul_hopper.TuningConfig(**{**small, **tiles}))
    assert {v.rule for v in ours.violations} <= {"matmul.epi_tile_m", "matmul.epi_tile_n"}
    assert not ours.legal


@pytest.mark.parametrize("m", [1, 3, 7, 17])
def test_decode(m: int) -> None:
    told = no_legal_config(space_of(matmul(m, 4096, 4096)))
    assert f"m={m}," in told
    assert "matmul.m_divisible" in told
    assert told.endswith("the nearest size that has some is m=64")


@pytest.mark.parametrize("m", [64, 1088])
def test_only_tiles_that_divide_m(m: int) -> None:
    space = space_of(matmul(m, 4096, 4096))
    columns = space.family.columns(space.problem, SM_90, space.columns(np.arange(0, len(space), 7)))
    # 1088 = 64 * 17.
    assert set(np.unique(columns["cluster_tile_m"])) <= {64, 1088}
    assert 64 in columns["cluster_tile_m"]


@pytest.mark.parametrize("rhs", ["kn", "nk"])
def test_vocabularies(rhs: str) -> None:
    told = no_legal_config(space_of(matmul(4096, 50257, 4096, rhs=rhs)))
    assert "n=50257," in told
    assert "matmul.n_divisible" in told
    # 50264 is as near, and no tile divides it: 50264 = 8 * 6283.
    assert told.endswith("the nearest sizes that have some are n=50256 and n=50272")


@pytest.mark.parametrize("n", [50_304, 128_256, 151_936])
def test_padded_vocabularies(n: int) -> None:
    space = space_of(matmul(64, n, 256))
    columns = space.family.columns(space.problem, SM_90, space.columns(np.arange(0, len(space), 997)))
    assert np.all(n % columns["cluster_tile_n"] == 0)
    assert max(columns["cluster_tile_n"]) >= 128


def test_a_depth_that_no_stage_divides() -> None:
    told = no_legal_config(space_of(matmul(4096, 4096, 4095)))
    assert "matmul.k_divisible" in told
    assert "the nearest sizes that have some are k=4096 and k=40" in told


def test_several_dimensions_that_no_tile_divides() -> None:
    told = no_legal_config(space_of(matmul(17, 50257, 4095)))
    assert told.endswith("a size that has some is m=128 n=50304 k=4096")


@pytest.mark.parametrize(
    ("problem", "pitch", "nearest"),
    [
        (CopyProblem(m=4096, n=4100, dtype="bfloat16"), 8200, 4104),
        (CopyProblem(m=64, n=31, dtype="float32"), 124, 32),
        (CopyProblem(m=128, n=1001, dtype="int8"), 1001, 1008),
    ],
    ids=str,
)
def test_row_pitch(problem: CopyProblem, pitch: int, nearest: int) -> None:
    told = no_legal_config(space_of(problem))
    assert "copy.row_pitch" in told
    assert str(pitch) in told
    assert "a multiple of 16 bytes" in told
    assert f" n={nearest}" in told.partition("the nearest size")[2]
    assert len(space_of(dataclasses.replace(problem, n=nearest)))


def test_the_nearest_size_is_the_nearest() -> None:
    # No part of a row of 1040 bytes is whole lines of 128; eight rows of 16 bytes are.
    problem = CopyProblem(m=777, n=1040, dtype="int8")
    assert len(space_of(dataclasses.replace(problem, m=776)))
    assert no_legal_config(space_of(problem)).endswith("m=776 and m=784")


@pytest.mark.parametrize(
    ("problem", "config", "rule"),
    [
        (CopyProblem(m=1000, n=128, dtype="float32"), {"tile_m": 128, "tile_n": 64}, "copy.m_divisible"),
        (CopyProblem(m=104, n=104, dtype="float32"), {"tile_m": 8, "tile_n": 64}, "copy.n_divisible"),
        (CopyProblem(m=8, n=8, dtype="float32"), {"tile_m": 1, "tile_n": 8}, "copy.bytes"),
        (CopyProblem(m=4096, n=4096, dtype="bfloat16"), {"tile_m": 512, "tile_n": 64}, "copy.box"),
        (CopyProblem(m=4096, n=4096, dtype="bfloat16"), {"tile_m": 16, "tile_n": 512}, "copy.box"),
        (CopyProblem(m=4096, n=4096, dtype="float32"), {"tile_m": 256, "tile_n": 256}, "smem.capacity"),
        (CopyProblem(m=4096, n=4096, dtype="int8"), {"tile_m": 64, "tile_n": 8}, "copy.inner_bytes"),
    ],
    ids=str,
)
def test_blocks(problem: CopyProblem, config: dict[str, int], rule: str) -> None:
    space = space_of(problem)
    told = space.explain(copy.TuningConfig(**config, max_concurrent_steps=1, delay_release=0))
    assert [v.rule for v in told.violations] == [rule]
    if rule == "smem.capacity":
        assert told.derived["smem_bytes"] == 262_152
    # The first fix works.
    assert told.repair in space


@pytest.mark.parametrize(
    "fields",
    [
        {"m": 64, "n": 4096, "k": 4096, "max_concurrent_steps": 4},
        # A ring longer than k is legal: it is the shorter ring, spelt otherwise.
        {"m": 128, "n": 128, "k": 64, "max_concurrent_steps": 4},
    ],
    ids=str,
)
def test_one_tile(fields: dict[str, int]) -> None:
    space = space_of(matmul(fields["m"], fields["n"], fields["k"]))
    config = matmul_hopper.TuningConfig(
        tile_m=64, tile_n=64, tile_k=64, max_concurrent_steps=fields["max_concurrent_steps"]
    )
    told = space.explain(config)
    assert told.legal
    assert told.violations == ()
    if not told.canonical:
        assert broken(space, config) == ("canonical.max_concurrent_steps",)

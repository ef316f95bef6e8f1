"""JAX's own `jax.experimental.pallas.ops.gpu.hopper_matmul_mgpu`, described with our rule building blocks.

Its legal counts and shared memory were held against real lowering, so
they hold the building blocks. It is also a family of a user's own: `tests.hopper_mgpu:FAMILY`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from tuner.search_spaces.architecture import Target
from tuner.search_spaces.barriers import BARRIER_BYTES, MAX_BARRIERS_PER_GROUP, barriers_per_group
from tuner.search_spaces.family import Axis, KernelFamily, choice
from tuner.search_spaces.matmul_hopper import MAX_WGMMA_N, TILE_ROWS, WGMMA_M, WGMMA_N
from tuner.search_spaces.problem import MatmulProblem, itemsize_bytes
from tuner.search_spaces.resources import SMEM_CAPACITY, ceil_div, divides, smem_aligned
from tuner.search_spaces.rule import Rule
from tuner.search_spaces.tma import (
    COPY_BYTES,
    MAX_BOX_ELEMENTS,
    SWIZZLES_BYTES,
    TMA_ALIGNMENT_BYTES,
    box,
    largest_swizzle,
    row_pitch,
    whole_lines,
)

REVISION = 1
COMPUTE_WARPGROUPS = 2
_SOURCE = "jax/experimental/pallas/ops/gpu/hopper_matmul_mgpu.py"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TuningConfig:
    """JAX's own fields, with its own defaults."""

    tile_m: int = 128
    tile_n: int = 128
    tile_k: int = 64
    max_concurrent_steps: int = 4
    epi_tile_m: int = 64
    epi_tile_n: int = 64
    wg_dimension: str = choice("M", "N", default="N")
    cluster_dimension: str | None = choice(None, "M", "N", default=None)
    grid_minor_dim: str = choice("M", "N", default="N")
    grid_tile_width: int = 1


def _along(dimension: Any, name: str) -> Any:
    return 1 + (dimension == name) * 1


DERIVED = {
    "itemsize": lambda problem: itemsize_bytes(problem.dtype),
    "out_itemsize": lambda problem: itemsize_bytes(problem.out_dtype),
    "lhs_pitch_bytes": lambda k, itemsize: k * itemsize,
    "rhs_pitch_bytes": lambda n, itemsize: n * itemsize,
    "cta_tile_m": lambda tile_m, wg_dimension: tile_m * _along(wg_dimension, "M"),
    "cta_tile_n": lambda tile_n, wg_dimension: tile_n * _along(wg_dimension, "N"),
    "cluster_tile_m": lambda cta_tile_m, cluster_dimension: cta_tile_m * _along(cluster_dimension, "M"),
    "cluster_tile_n": lambda cta_tile_n, cluster_dimension: cta_tile_n * _along(cluster_dimension, "N"),
    "cluster_size": lambda cluster_dimension: 1 + (cluster_dimension != "") * 1,
    "swizzle_bytes": lambda tile_k, itemsize: largest_swizzle(tile_k * itemsize),
    "epi_swizzle_bytes": lambda epi_tile_n, out_itemsize: largest_swizzle(epi_tile_n * out_itemsize),
    "epi_slots": lambda tile_m, tile_n, epi_tile_m, epi_tile_n: np.minimum(
        2, tile_m * tile_n // (epi_tile_m * epi_tile_n)
    ),
    "steps": lambda max_concurrent_steps, k, tile_k: np.minimum(max_concurrent_steps, ceil_div(k, tile_k)),
    "lhs_stage_bytes": lambda cta_tile_m, tile_k, itemsize: cta_tile_m * tile_k * itemsize,
    "rhs_stage_bytes": lambda cta_tile_n, tile_k, itemsize: cta_tile_n * tile_k * itemsize,
    "epi_slot_bytes": lambda epi_tile_m, epi_tile_n, out_itemsize: epi_tile_m * epi_tile_n * out_itemsize,
    "smem_bytes": lambda steps, lhs_stage_bytes, rhs_stage_bytes, epi_slots, epi_slot_bytes: (
        smem_aligned(steps * lhs_stage_bytes)
        + smem_aligned(steps * rhs_stage_bytes)
        + smem_aligned(COMPUTE_WARPGROUPS * epi_slots * epi_slot_bytes)
        + 2 * BARRIER_BYTES * steps
    ),
}


def _divisible(dimension: str, tile: str, holds: Callable[..., Any]) -> Rule:
    return Rule(
        id=f"hopper_mgpu.{dimension}_divisible",
        holds=holds,
        have=f"{dimension}={{{dimension}}}",
        need=f"a multiple of {{{tile}}}",
        remedy=f"choose tiles that divide {dimension}",
        source=_SOURCE,
    )


RULES = (
    row_pitch(
        "hopper_mgpu.row_pitch",
        lambda lhs_pitch_bytes, rhs_pitch_bytes: (
            (lhs_pitch_bytes % TMA_ALIGNMENT_BYTES == 0) & (rhs_pitch_bytes % TMA_ALIGNMENT_BYTES == 0)
        ),
        "rows {lhs_pitch_bytes} and {rhs_pitch_bytes} bytes apart",
        "make k and n multiples of 16 bytes",
    ),
    _divisible("m", "cluster_tile_m", lambda m, cluster_tile_m: divides(cluster_tile_m, m)),
    _divisible("n", "cluster_tile_n", lambda n, cluster_tile_n: divides(cluster_tile_n, n)),
    _divisible("k", "tile_k", lambda k, tile_k: divides(tile_k, k)),
    Rule(
        id="hopper_mgpu.wgmma",
        holds=lambda tile_m, tile_n: (
            (tile_m % WGMMA_M == 0) & (tile_n % WGMMA_N == 0) & (tile_n <= MAX_WGMMA_N)
        ),
        have="a tile of {tile_m} x {tile_n}",
        need="multiples of 64 x 8, at most 256 columns",
        remedy="round the tile",
        source="jax/experimental/mosaic/gpu/wgmma.py",
    ),
    Rule(
        id="hopper_mgpu.swizzle",
        holds=lambda swizzle_bytes, epi_swizzle_bytes, tile_n, itemsize: (
            (swizzle_bytes >= min(SWIZZLES_BYTES))
            & (epi_swizzle_bytes >= min(SWIZZLES_BYTES))
            & (tile_n * itemsize % swizzle_bytes == 0)
        ),
        have="tile_k={tile_k}, tile_n={tile_n} and epi_tile_n={epi_tile_n}",
        need="multiples of a swizzle of 32, 64 or 128 bytes, tile_n of that of tile_k",
        remedy="make them multiples of 64",
        source="jax/_src/pallas/mosaic_gpu/core.py, SwizzleTransform and TilingTransform",
    ),
    Rule(
        id="hopper_mgpu.epilogue",
        holds=lambda tile_m, tile_n, epi_tile_m, epi_tile_n: (
            divides(epi_tile_m, tile_m) & divides(epi_tile_n, tile_n) & (epi_tile_m % WGMMA_M == 0)
        ),
        have="an epilogue of {epi_tile_m} x {epi_tile_n} in a tile of {tile_m} x {tile_n}",
        need="a part that divides the tile, in multiples of 64 rows",
        remedy="choose an epilogue tile that divides the tile",
        source="what the loops round away is never written",
        noticed="never",
    ),
    box(
        "hopper_mgpu.box",
        lambda cta_tile_m, tile_k: (
            (cta_tile_m // TILE_ROWS <= MAX_BOX_ELEMENTS) & (tile_k // TILE_ROWS <= MAX_BOX_ELEMENTS)
        ),
        "a stage of {cta_tile_m} rows, {tile_k} deep",
        "use smaller tiles",
    ),
    whole_lines(
        "hopper_mgpu.copy_bytes",
        lambda lhs_stage_bytes, rhs_stage_bytes, cluster_size: (
            (lhs_stage_bytes % (COPY_BYTES * cluster_size) == 0)
            & (rhs_stage_bytes % (COPY_BYTES * cluster_size) == 0)
        ),
        "stages of {lhs_stage_bytes} and {rhs_stage_bytes} bytes",
        "use larger tiles",
    ),
    Rule(
        id="pipeline.steps",
        holds=lambda max_concurrent_steps: max_concurrent_steps >= 1,
        have="max_concurrent_steps={max_concurrent_steps}",
        need="at least 1",
        remedy="raise it",
        source="jax/_src/pallas/mosaic_gpu/pipeline.py",
    ),
    Rule(
        id="raster.width",
        holds=lambda grid_tile_width: grid_tile_width >= 1,
        have="grid_tile_width={grid_tile_width}",
        need="at least 1",
        remedy="set grid_tile_width=1",
        source="planar_snake divides by it",
        noticed="never",
    ),
    barriers_per_group(lambda steps: steps <= MAX_BARRIERS_PER_GROUP),
    SMEM_CAPACITY,
)


def axes(problem: MatmulProblem, target: Target) -> tuple[Axis, ...]:
    """The 486 candidates of a published sweep."""
    return (
        Axis("tile_m", (64, 128, 256)),
        Axis("tile_n", (64, 128, 256)),
        Axis("tile_k", (32, 64, 128)),
        Axis("max_concurrent_steps", (2, 4, 6)),
        Axis("epi_tile_m", (64,)),
        Axis("epi_tile_n", (64,)),
        Axis("wg_dimension", ("M", "N")),
        Axis("cluster_dimension", (None, "M", "N")),
        Axis("grid_minor_dim", ("N",)),
        Axis("grid_tile_width", (1,)),
    )


def supports(problem: MatmulProblem, target: Target) -> str:
    """Why `problem` cannot run on `target` at all, or ""."""
    if target.arch != "sm_90":
        return f"needs WGMMA, which only sm_90 has, not {target.arch}"
    types = {problem.dtype, problem.rhs_dtype, problem.out_dtype}
    if types not in ({"bfloat16"}, {"float16"}) or (problem.lhs, problem.rhs) != ("mk", "kn"):
        return "takes one 16-bit type, lhs stored (m, k) and rhs stored (k, n)"
    return ""


def build(problem: MatmulProblem, config: TuningConfig, target: Target) -> Callable[..., Any]:
    """JAX's kernel with this configuration; it reads the SM count off the abstract device."""
    from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu as jax_kernel

    dimension = {None: None, "M": jax_kernel.MatmulDimension.M, "N": jax_kernel.MatmulDimension.N}
    fields = {k: dimension.get(v, v) for k, v in dataclasses.asdict(config).items()}
    return lambda lhs, rhs: jax_kernel.matmul(lhs, rhs, None, jax_kernel.TuningConfig(**fields))


FAMILY = KernelFamily(
    name="hopper_mgpu",
    revision=REVISION,
    problem_class=MatmulProblem,
    config_class=TuningConfig,
    axes=axes,
    rules=RULES,
    derived=DERIVED,
    default_config=lambda problem, target: TuningConfig(),
    supports=supports,
    predict_us=lambda smem_bytes: 1.0 + smem_bytes,
    build="tests.hopper_mgpu:build",
    operands="tuner.kernels.references:matmul_operands",
    reference="tuner.kernels.references:matmul_reference",
    baseline="tuner.kernels.references:matmul_baseline",
    reported=("smem_bytes", "steps"),
)

"""Matmul on Blackwell: what `kernels/matmul_blackwell.py` can be built with, and what of it is legal."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .architecture import WARPGROUP_THREADS, Target
from .barriers import BARRIER_BYTES, MAX_BARRIERS_PER_GROUP, barriers_per_group, load_barriers
from .family import Axis, KernelFamily, choice
from .problem import MatmulProblem, itemsize_bytes
from .resources import SMEM_CAPACITY, ceil_div, divides, smem_aligned
from .rule import Rule
from .tma import COPY_BYTES, MAX_BOX_ELEMENTS, SWIZZLES_BYTES, box, largest_swizzle, whole_lines

REVISION = 1

# PTX ISA, tensor memory: 128 lanes of 512 columns of 32 bits, allocated by powers of two from 32 on.
TMEM_COLUMNS = 512
MIN_TMEM_COLUMNS = 32
# PTX ISA, tcgen05.mma: rows of the accumulator that one block holds.
MMA_ROWS = (64, 128)
# JAX mosaic/gpu/tcgen05.py: a block's columns of rhs; several instructions cover 512, and two blocks share 256.
MAX_MMA_N = 512
MAX_COLLECTIVE_N = 128
# A block holds the accumulator it computes and the one it stores.
ACCUMULATORS = 2
# TMA tiles of shared memory are 8 rows of one swizzle's bytes (JAX, TilingTransform((8, se))).
TILE_ROWS = 8
# JAX mosaic/gpu/core.py: where the address of the tensor memory is kept.
TMEM_POINTER_BYTES = 4

ARCHITECTURES = ("sm_100", "sm_103")
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
# Output types of each operand type.
_OUTPUTS: Mapping[str, tuple[str, ...]] = {
    "float16": ("float16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    **dict.fromkeys(_FLOAT8, ("bfloat16", "float16", "float32")),
    "int8": ("int32",),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TuningConfig:
    """What is searched; JAX's own field names.

    tile_m, tile_n: rows of lhs and columns of rhs that one block loads.
    tile_k: depth of one stage. max_concurrent_steps: stages of the ring.
    epi_tile_n: columns of the accumulator that leave through shared memory at once.
    collective: 1 where two blocks multiply together, and each computes tile_m x 2 tile_n.
    barriers: one barrier a stage `shared` by both operands, or one `per_operand`.
    grid_minor_dim, grid_tile_width: raster order of the output tiles (planar snake).
    """

    tile_m: int = 128
    tile_n: int = 128
    tile_k: int = 64
    max_concurrent_steps: int = 4
    epi_tile_n: int = 64
    collective: int = 0
    barriers: str = choice("shared", "per_operand", default="shared")
    grid_minor_dim: str = choice("M", "N", default="N")
    grid_tile_width: int = 1


DERIVED: Mapping[str, Callable[..., Any]] = {
    "itemsize": lambda problem: itemsize_bytes(problem.dtype),
    "out_itemsize": lambda problem: itemsize_bytes(problem.out_dtype),
    "rhs_is_kn": lambda problem: problem.rhs == "kn",
    "cluster_size": lambda collective: 1 + (collective > 0) * 1,
    # M=64 of one block is two instructions side by side, each over half of the columns.
    "lane_groups": lambda tile_m, collective: 1 + ((tile_m == 64) & (collective == 0)) * 1,
    "acc_tile_n": lambda tile_n, cluster_size: tile_n * cluster_size,
    "cluster_tile_m": lambda tile_m, cluster_size: tile_m * cluster_size,
    "k_steps": lambda k, tile_k: ceil_div(k, tile_k),
    "grid_m": lambda m, cluster_tile_m: ceil_div(m, cluster_tile_m),
    "grid_n": lambda n, acc_tile_n: ceil_div(n, acc_tile_n),
    "tiles": lambda grid_m, grid_n: grid_m * grid_n,
    "grid": lambda tiles, sm_count, cluster_size: np.minimum(tiles, np.maximum(sm_count // cluster_size, 1)),
    "waves": lambda tiles, grid: ceil_div(tiles, grid),
    "total_steps": lambda waves, k_steps: waves * k_steps,
    "grid_is_line": lambda grid_m, grid_n: (grid_m == 1) | (grid_n == 1),
    "grid_minor_extent": lambda grid_m, grid_n, grid_minor_dim, grid_is_line: np.where(
        grid_is_line, 1, np.where(grid_minor_dim == "M", grid_m, grid_n)
    ),
    "lhs_swizzle_bytes": lambda tile_k, itemsize: largest_swizzle(tile_k * itemsize),
    "mma_row_bytes": lambda tile_n, itemsize, lane_groups: tile_n // lane_groups * itemsize,
    "rhs_swizzle_bytes": lambda tile_k, itemsize, mma_row_bytes, rhs_is_kn: (
        largest_swizzle(tile_k * itemsize, mma_row_bytes)
        if rhs_is_kn
        else largest_swizzle(tile_k * itemsize)
    ),
    "epi_swizzle_bytes": lambda epi_tile_n, out_itemsize: largest_swizzle(epi_tile_n * out_itemsize),
    "epi_tiles": lambda acc_tile_n, epi_tile_n: ceil_div(acc_tile_n, epi_tile_n),
    "epi_slots": lambda epi_tiles: np.minimum(2, epi_tiles),
    # Half the lanes hold M=64; the other half takes half of its columns.
    "acc_columns": lambda acc_tile_n, tile_m: acc_tile_n // np.where(tile_m == 64, 2, 1),
    # Two accumulators where they fit, so that one is stored while the other is computed.
    "acc_slots": lambda acc_columns, waves: np.where(
        (waves > 1) & (acc_columns * ACCUMULATORS <= TMEM_COLUMNS), ACCUMULATORS, 1
    ),
    "lhs_stage_bytes": lambda tile_m, tile_k, itemsize: tile_m * tile_k * itemsize,
    "rhs_stage_bytes": lambda tile_n, tile_k, itemsize: tile_n * tile_k * itemsize,
    "epi_slot_bytes": lambda tile_m, epi_tile_n, out_itemsize: tile_m * epi_tile_n * out_itemsize,
    # The ring never holds more stages than a block has steps.
    "steps": lambda max_concurrent_steps, total_steps: np.minimum(max_concurrent_steps, total_steps),
    "barrier_bytes": lambda steps, barriers, acc_slots: (
        BARRIER_BYTES * (steps * (2 + (barriers == "per_operand") * 1) + 2 * acc_slots)
    ),
    # JAX pallas/mosaic_gpu/lowering.py, resource estimation: aligned buffers, then barriers.
    "smem_bytes": lambda steps, lhs_stage_bytes, rhs_stage_bytes, epi_slots, epi_slot_bytes, barrier_bytes: (
        smem_aligned(steps * lhs_stage_bytes)
        + smem_aligned(steps * rhs_stage_bytes)
        + smem_aligned(epi_slots * epi_slot_bytes)
        + barrier_bytes
        + TMEM_POINTER_BYTES
    ),
}

RULES: tuple[Rule, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Everything the kernel builder needs, derived and in canonical form."""

    problem: MatmulProblem
    config: TuningConfig
    cluster_size: int
    acc_tile_n: int
    acc_slots: int
    tiles: int
    grid: int
    grid_m: int
    grid_n: int
    grid_minor_dim: str
    grid_tile_width: int
    k_steps: int
    steps: int
    lhs_swizzle_bytes: int
    rhs_swizzle_bytes: int
    epi_swizzle_bytes: int
    epi_tiles: int
    epi_slots: int


# The fields of a plan that are derived quantities as they stand.
_PLANNED = (
    "cluster_size",
    "acc_tile_n",
    "acc_slots",
    "tiles",
    "grid",
    "grid_m",
    "grid_n",
    "k_steps",
    "steps",
    "lhs_swizzle_bytes",
    "rhs_swizzle_bytes",
    "epi_swizzle_bytes",
    "epi_tiles",
    "epi_slots",
)


def plan(problem: MatmulProblem, config: TuningConfig, target: Target) -> Plan:
    """The derived quantities of one configuration; configurations of one canonical form share one."""
    columns = FAMILY.config_columns(problem, target, config)
    return Plan(
        problem=problem,
        config=config,
        grid_minor_dim="N" if columns["grid_is_line"] else config.grid_minor_dim,
        grid_tile_width=min(config.grid_tile_width, int(columns["grid_minor_extent"])),
        **{name: int(columns[name]) for name in _PLANNED},
    )


def axes(problem: MatmulProblem, target: Target) -> tuple[Axis, ...]:
    """Every value a rule could accept, from the architecture's limits and the problem's extents."""
    return ()


def supports(problem: MatmulProblem, target: Target) -> str:
    """Why `problem` cannot run on `target` at all, or ""."""
    return ""


def default_config(problem: MatmulProblem, target: Target) -> TuningConfig:
    """What a careful engineer would write down first: the legal configuration nearest to it."""
    return TuningConfig()


FAMILY = KernelFamily(
    name="matmul_blackwell",
    revision=REVISION,
    problem_class=MatmulProblem,
    config_class=TuningConfig,
    axes=axes,
    rules=RULES,
    derived=DERIVED,
    default_config=default_config,
    supports=supports,
    predict_us=lambda: 0,
    build="tuner.kernels.matmul_blackwell:build",
    operands="tuner.kernels.references:matmul_operands",
    reference="tuner.kernels.references:matmul_reference",
    baseline="tuner.kernels.references:matmul_baseline",
    reported=(),
)

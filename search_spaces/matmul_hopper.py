"""Matmul on Hopper: what `kernels/matmul_hopper.py` can be built with, and what of it is legal."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from . import prior
from .architecture import WARPGROUP_THREADS, Target
from .barriers import BARRIER_BYTES, MAX_BARRIERS_PER_GROUP, barriers_per_group, load_barriers
from .family import Axis, KernelFamily, choice
from .problem import MatmulProblem, itemsize_bytes
from .resources import SMEM_CAPACITY, ceil_div, divides, smem_aligned, whole_parts
from .rule import Rule
from .tiles import CANONICAL_MINOR_DIM, CANONICAL_WIDTH, RASTER, RASTER_WIDTH, along, divisible, multiples
from .tma import COPY_BYTES, MAX_BOX_ELEMENTS, SWIZZLES_BYTES, box, largest_swizzle, whole_lines

REVISION = 1

COMPUTE_WARPGROUPS = 2
# PTX, wgmma: 64 rows an instruction, N a multiple of 8 up to 256.
WGMMA_M = 64
WGMMA_N = 8
MAX_WGMMA_N = 256
# TMA tiles of shared memory are 8 rows of one swizzle's bytes (JAX, TilingTransform((8, se))).
TILE_ROWS = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TuningConfig:
    """What is searched; JAX's own field names.

    tile_m, tile_n: output tile of one compute warpgroup; two of them stand along `wg_dimension`.
    tile_k: depth of one stage. max_concurrent_steps: stages of the ring.
    delay_release: multiplications left running when a stage is handed back (0 or 1).
    epi_tile_m, epi_tile_n: part of the tile that leaves through shared memory at once.
    grid_minor_dim, grid_tile_width: raster order of the output tiles (planar snake).
    cluster_dimension: two blocks along it share the loads of the other operand by multicast.
    barriers: one barrier a stage `shared` by both operands, or one `per_operand`.
    """

    tile_m: int = 128
    tile_n: int = 128
    tile_k: int = 64
    max_concurrent_steps: int = 4
    delay_release: int = 0
    epi_tile_m: int = 64
    epi_tile_n: int = 64
    wg_dimension: str = choice("M", "N", default="N")
    cluster_dimension: str | None = choice(None, "M", "N", default=None)
    barriers: str = choice("shared", "per_operand", default="shared")
    grid_minor_dim: str = choice("M", "N", default="N")
    grid_tile_width: int = 1


DERIVED: Mapping[str, Callable[..., Any]] = {
    **RASTER,
    "itemsize": lambda problem: itemsize_bytes(problem.dtype),
    "out_itemsize": lambda problem: itemsize_bytes(problem.out_dtype),
    "is_int8": lambda problem: problem.dtype == "int8",
    "rhs_is_kn": lambda problem: problem.rhs == "kn",
    "cta_tile_m": lambda tile_m, wg_dimension: tile_m * along(wg_dimension, "M"),
    "cta_tile_n": lambda tile_n, wg_dimension: tile_n * along(wg_dimension, "N"),
    "cluster_m": lambda cluster_dimension: along(cluster_dimension, "M"),
    "cluster_n": lambda cluster_dimension: along(cluster_dimension, "N"),
    "cluster_size": lambda cluster_m, cluster_n: cluster_m * cluster_n,
    "cluster_tile_m": lambda cta_tile_m, cluster_m: cta_tile_m * cluster_m,
    "cluster_tile_n": lambda cta_tile_n, cluster_n: cta_tile_n * cluster_n,
    "k_steps": lambda k, tile_k: whole_parts(k, tile_k),
    "grid_m": lambda m, cluster_tile_m: whole_parts(m, cluster_tile_m),
    "grid_n": lambda n, cluster_tile_n: whole_parts(n, cluster_tile_n),
    "grid": lambda tiles, sm_count, cluster_size: np.minimum(tiles, np.maximum(sm_count // cluster_size, 1)),
    "waves": lambda tiles, grid: ceil_div(tiles, grid),
    "total_steps": lambda waves, k_steps: waves * k_steps,
    # The rhs swizzle spans k when rhs is (n, k), and each warpgroup's own columns when it is (k, n).
    "swizzle_bytes": lambda tile_k, tile_n, itemsize, rhs_is_kn: largest_swizzle(
        tile_k * itemsize, tile_n * itemsize if rhs_is_kn else tile_k * itemsize
    ),
    "epi_swizzle_bytes": lambda epi_tile_n, out_itemsize: largest_swizzle(epi_tile_n * out_itemsize),
    "epi_columns": lambda tile_n, epi_tile_n: ceil_div(tile_n, epi_tile_n),
    "epi_tiles": lambda tile_m, epi_tile_m, epi_columns: ceil_div(tile_m, epi_tile_m) * epi_columns,
    "epi_slots": lambda epi_tiles: np.minimum(2, epi_tiles),
    "accumulator_registers": lambda tile_m, tile_n: tile_m * tile_n // WARPGROUP_THREADS,
    "lhs_stage_bytes": lambda cta_tile_m, tile_k, itemsize: cta_tile_m * tile_k * itemsize,
    "rhs_stage_bytes": lambda cta_tile_n, tile_k, itemsize: cta_tile_n * tile_k * itemsize,
    # Swizzled tiles of the rhs block as it is stored, for (k, n) its rows are k; the lhs has 8 tiles or more.
    "rhs_row_tiles": lambda rhs_is_kn, tile_k, cta_tile_n: (tile_k if rhs_is_kn else cta_tile_n) // TILE_ROWS,
    "rhs_k_tiles": lambda tile_k, itemsize, swizzle_bytes: tile_k * itemsize // swizzle_bytes,
    "epi_slot_bytes": lambda epi_tile_m, epi_tile_n, out_itemsize: epi_tile_m * epi_tile_n * out_itemsize,
    # The ring never holds more stages than a block has steps.
    "steps": lambda max_concurrent_steps, total_steps: np.minimum(max_concurrent_steps, total_steps),
    "barrier_bytes": lambda steps, barriers: BARRIER_BYTES * steps * (2 + (barriers == "per_operand") * 1),
    # JAX pallas/mosaic_gpu/lowering.py, resource estimation: aligned buffers, then barriers.
    "smem_bytes": lambda steps, lhs_stage_bytes, rhs_stage_bytes, epi_slots, epi_slot_bytes, barrier_bytes: (
        smem_aligned(steps * lhs_stage_bytes)
        + smem_aligned(steps * rhs_stage_bytes)
        + smem_aligned(COMPUTE_WARPGROUPS * epi_slots * epi_slot_bytes)
        + barrier_bytes
    ),
}

RULES: tuple[Rule, ...] = (
    Rule(
        id="matmul.tile_m_wgmma",
        holds=lambda tile_m: (tile_m >= WGMMA_M) & (tile_m % WGMMA_M == 0),
        have="tile_m={tile_m}",
        need=f"a multiple of {WGMMA_M}, the rows of one WGMMA",
        remedy="round tile_m to a multiple of 64",
        source="PTX ISA, wgmma.mma_async; mosaic_gpu.wgmma verifier",
        # By epi_tile_m, a multiple of 64 that divides it.
        decides_on=(),
    ),
    Rule(
        id="matmul.tile_n_wgmma",
        holds=lambda tile_n: (tile_n >= WGMMA_N) & (tile_n % WGMMA_N == 0) & (tile_n <= MAX_WGMMA_N),
        have="tile_n={tile_n}",
        need=f"a multiple of {WGMMA_N} up to {MAX_WGMMA_N}, the columns of one WGMMA",
        remedy="round tile_n to a multiple of 8",
        source="jax/experimental/mosaic/gpu/wgmma.py; PTX ISA, wgmma.mma_async",
    ),
    Rule(
        id="matmul.tile_n_int8",
        holds=lambda tile_n, is_int8: (tile_n % 16 == 0) | (tile_n <= 24) | (not is_int8),
        have="tile_n={tile_n} of int8",
        need="8, 24 or a multiple of 16, the columns of one integer WGMMA",
        remedy="round tile_n to a multiple of 16",
        source="PTX ISA, wgmma.mma_async, shapes of .s8",
        noticed="compiled",
    ),
    divisible(
        "matmul.m_divisible",
        lambda m, cluster_tile_m: divides(cluster_tile_m, m),
        "{cluster_tile_m}, the rows of a cluster's tile",
        "choose tile_m, wg_dimension and cluster_dimension whose product divides m",
    ),
    divisible(
        "matmul.n_divisible",
        lambda n, cluster_tile_n: divides(cluster_tile_n, n),
        "{cluster_tile_n}, the columns of a cluster's tile",
        "choose tile_n, wg_dimension and cluster_dimension whose product divides n",
    ),
    divisible(
        "matmul.k_divisible",
        lambda k, tile_k: divides(tile_k, k),
        "tile_k={tile_k}",
        "choose a tile_k that divides k",
    ),
    Rule(
        id="matmul.swizzle",
        holds=lambda swizzle_bytes: swizzle_bytes >= min(SWIZZLES_BYTES),
        have="tile_k={tile_k} and tile_n={tile_n} of {itemsize} bytes",
        need="a common swizzle of 32, 64 or 128 bytes",
        remedy="make tile_k (and tile_n for rhs=kn) a multiple of 32 bytes",
        source="jax/_src/pallas/mosaic_gpu/core.py, SwizzleTransform; wgmma descriptors",
    ),
    box(
        "matmul.box",
        # Tiled (rows / 8, columns / swizzle, 8, swizzle): rows count by 8, and columns are fewer still.
        lambda cta_tile_m, cta_tile_n, tile_k: (
            (cta_tile_m // TILE_ROWS <= MAX_BOX_ELEMENTS)
            & (cta_tile_n // TILE_ROWS <= MAX_BOX_ELEMENTS)
            & (tile_k // TILE_ROWS <= MAX_BOX_ELEMENTS)
        ),
        "a stage of {cta_tile_m} rows, {cta_tile_n} columns, {tile_k} deep",
        "use smaller tiles",
    ),
    whole_lines(
        "matmul.copy_bytes",
        lambda lhs_stage_bytes, rhs_stage_bytes, cluster_m, cluster_n: (
            (lhs_stage_bytes % (COPY_BYTES * cluster_n) == 0)
            & (rhs_stage_bytes % (COPY_BYTES * cluster_m) == 0)
        ),
        "stages of {lhs_stage_bytes} and {rhs_stage_bytes} bytes over a cluster of {cluster_size}",
        "use larger tiles",
        # By 64 rows, or 8 columns, of 32 bytes.
        decides_on=(),
    ),
    Rule(
        id="matmul.multicast",
        # Two blocks halve the first extent above 1 of (rows / 8, k / swizzle, 8 rows).
        holds=lambda rhs_row_tiles, rhs_k_tiles, cluster_m: (
            (cluster_m == 1)
            | (rhs_row_tiles % 2 == 0)
            | ((rhs_row_tiles == 1) & ((rhs_k_tiles % 2 == 0) | (rhs_k_tiles == 1)))
        ),
        have="a rhs block of {rhs_row_tiles} x {rhs_k_tiles} swizzled tiles shared by {cluster_m} blocks",
        need="an even number of tiles of 8 rows",
        remedy="make tile_n a multiple of 16, or set cluster_dimension to none or N",
        source="jax/experimental/mosaic/gpu/launch_context.py, partition of a collective load",
    ),
    Rule(
        id="matmul.epi_tile_m",
        holds=lambda tile_m, epi_tile_m: divides(epi_tile_m, tile_m) & (epi_tile_m % WGMMA_M == 0),
        have="epi_tile_m={epi_tile_m} of tile_m={tile_m}",
        need="a multiple of 64 that divides tile_m",
        remedy="choose epi_tile_m that divides tile_m",
        source="WGMMA register layout; own kernel: parts of one size make up the tile",
    ),
    Rule(
        id="matmul.epi_tile_n",
        holds=lambda tile_n, epi_tile_n: divides(epi_tile_n, tile_n),
        have="epi_tile_n={epi_tile_n} of tile_n={tile_n}",
        need="a divisor of tile_n",
        remedy="choose epi_tile_n that divides tile_n",
        source="own kernel: parts of one size make up the tile",
    ),
    Rule(
        id="matmul.epi_swizzle",
        holds=lambda epi_swizzle_bytes: epi_swizzle_bytes >= min(SWIZZLES_BYTES),
        have="epi_tile_n={epi_tile_n} of {out_itemsize} bytes",
        need="a multiple of 32 bytes",
        remedy="make epi_tile_n a multiple of 32 bytes",
        source="jax/_src/pallas/mosaic_gpu/core.py, SwizzleTransform",
    ),
    Rule(
        id="pipeline.steps",
        holds=lambda max_concurrent_steps, delay_release: max_concurrent_steps > delay_release,
        have="max_concurrent_steps={max_concurrent_steps} with delay_release={delay_release}",
        need="more stages than are held back",
        remedy="raise max_concurrent_steps",
        source="a ring whose every slot is held back is never refilled: it hangs",
        noticed="never",
    ),
    Rule(
        id="pipeline.delay_release",
        holds=lambda delay_release: delay_release <= 1,
        have="delay_release={delay_release}",
        need="0 or 1",
        remedy="set delay_release=0 or 1",
        source="own kernel: it hands back the stage before the last, still read (PTX ISA, wgmma.wait_group)",
        noticed="never",
    ),
    barriers_per_group(lambda steps: steps <= MAX_BARRIERS_PER_GROUP),
    SMEM_CAPACITY,
    RASTER_WIDTH,
    CANONICAL_WIDTH,
    CANONICAL_MINOR_DIM,
    Rule(
        id="canonical.max_concurrent_steps",
        holds=lambda max_concurrent_steps, total_steps, delay_release: (
            max_concurrent_steps <= np.maximum(total_steps, delay_release + 1)
        ),
        have="max_concurrent_steps={max_concurrent_steps}",
        need="at most {total_steps}, the steps a block makes",
        remedy="set max_concurrent_steps={total_steps}",
        source="the ring holds no more stages than steps",
        kind="canonical",
        spelling=lambda total_steps, delay_release: {
            "max_concurrent_steps": np.maximum(total_steps, delay_release + 1)
        },
    ),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Everything the kernel builder needs, derived and in canonical form."""

    problem: MatmulProblem
    config: TuningConfig
    cta_tile_m: int
    cta_tile_n: int
    cluster_size: int
    tiles: int
    grid: int
    grid_m: int
    grid_n: int
    grid_minor_dim: str
    grid_tile_width: int
    k_steps: int
    steps: int
    swizzle_bytes: int
    epi_swizzle_bytes: int
    epi_columns: int
    epi_tiles: int
    epi_slots: int


# The fields of a plan that are derived quantities as they stand.
_PLANNED = (
    "cta_tile_m",
    "cta_tile_n",
    "cluster_size",
    "tiles",
    "grid",
    "grid_m",
    "grid_n",
    "k_steps",
    "steps",
    "swizzle_bytes",
    "epi_swizzle_bytes",
    "epi_columns",
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
    itemsize = itemsize_bytes(problem.dtype)
    limit = target.smem_optin_bytes
    # The other operand's least block: 64 rows, or 8 columns, of the least depth.
    depth = min(SWIZZLES_BYTES) // itemsize
    max_tile_m = min(problem.m, limit // (depth * itemsize), TILE_ROWS * MAX_BOX_ELEMENTS)
    max_tile_k = min(problem.k, limit // ((WGMMA_M + WGMMA_N) * itemsize))
    max_steps = min(MAX_BARRIERS_PER_GROUP, limit // ((WGMMA_M + WGMMA_N) * depth * itemsize))
    widest = max(ceil_div(problem.m, WGMMA_M), ceil_div(problem.n, WGMMA_N))
    return (
        Axis("tile_m", multiples(WGMMA_M, max_tile_m)),
        Axis("epi_tile_m", multiples(WGMMA_M, max_tile_m)),
        Axis("tile_n", multiples(WGMMA_N, min(problem.n, MAX_WGMMA_N))),
        Axis("epi_tile_n", multiples(WGMMA_N, min(problem.n, MAX_WGMMA_N))),
        Axis("wg_dimension", ("M", "N")),
        Axis("cluster_dimension", (None, "M", "N")),
        Axis("tile_k", multiples(depth, max_tile_k)),
        Axis("barriers", load_barriers(target.architecture, operands=2)),
        Axis("delay_release", (0, 1)),
        Axis("max_concurrent_steps", tuple(range(1, max_steps + 1))),
        Axis("grid_minor_dim", ("M", "N")),
        Axis("grid_tile_width", range(1, widest + 1), limit="grid_minor_extent"),
    )


FLOAT8 = {"float8_e4m3fn", "float8_e5m2"}
# JAX mosaic/gpu/wgmma.py: operand types, float32 as tf32, and what their accumulator is written as. It runs
# uint8 as int8, wrong without a word, so that type is not among them.
_OUT_DTYPES: Mapping[str, tuple[str, ...]] = {
    "bfloat16": ("bfloat16", "float32"),
    "float16": ("float16", "float32"),
    "float32": ("float32",),
    **dict.fromkeys(sorted(FLOAT8), ("bfloat16", "float16", "float32")),
    "int8": ("int32",),
}


def supports(problem: MatmulProblem, target: Target) -> str:
    """Why `problem` cannot run on `target` at all, or ""."""
    if target.arch != "sm_90":
        return f"needs WGMMA, which only sm_90 has, not {target.arch}"
    if problem.dtype not in _OUT_DTYPES:
        return f"takes {', '.join(_OUT_DTYPES)}, not {problem.dtype}"
    if problem.rhs_dtype != problem.dtype and not {problem.dtype, problem.rhs_dtype} <= FLOAT8:
        return (
            f"takes operands of one type, or of two 8-bit floats, not {problem.dtype} and {problem.rhs_dtype}"
        )
    if problem.rhs == "kn" and itemsize_bytes(problem.dtype) != 2:
        return f"takes {problem.dtype} with rhs=nk alone: WGMMA transposes 16-bit operands only"
    accumulator = "int32" if problem.dtype == "int8" else "float32"
    if problem.acc_dtype != accumulator:
        return f"accumulates {problem.dtype} in {accumulator}, not acc_dtype={problem.acc_dtype}"
    if problem.out_dtype not in (writes := _OUT_DTYPES[problem.dtype]):
        return f"writes {' or '.join(writes)} of {problem.dtype}, not out_dtype={problem.out_dtype}"
    if problem.lhs != "mk":
        return "takes lhs stored (m, k), not (k, m)"
    if problem.batch != 1:
        return f"takes one matrix, not batch={problem.batch}"
    return ""


def default_config(problem: MatmulProblem, target: Target) -> TuningConfig:
    """What a careful engineer would write down first: the legal configuration nearest to it."""
    from .space import LegalSpace

    wanted = TuningConfig(
        tile_m=128, tile_n=128, tile_k=64, wg_dimension="M", grid_minor_dim="M", grid_tile_width=8
    )
    return LegalSpace(FAMILY, problem, target).nearest(wanted) or wanted


_PROBES = (
    MatmulProblem(m=512, n=1024, k=512, dtype="bfloat16"),
    MatmulProblem(m=384, n=576, k=192, dtype="float16", rhs="nk", out_dtype="float32"),
    MatmulProblem(m=1024, n=960, k=4096, dtype="int8", out_dtype="int32", rhs="nk"),
    MatmulProblem(m=256, n=320, k=768, dtype="float8_e4m3fn", out_dtype="bfloat16", rhs="nk"),
    MatmulProblem(m=128, n=512, k=256, dtype="float32", rhs="nk"),
    MatmulProblem(m=67584, n=16, k=64, dtype="bfloat16"),
)
# jax/experimental/pallas/ops/gpu/hopper_matmul_mgpu.py, main().
_PUBLISHED = {
    "tile_m": (128, 256),
    "tile_n": (64, 128),
    "tile_k": (64,),
    "max_concurrent_steps": (4,),
    "epi_tile_m": (64,),
    "epi_tile_n": (64,),
    "grid_tile_width": (4, 8, 16),
}

FAMILY = KernelFamily(
    name="matmul_hopper",
    revision=REVISION,
    problem_class=MatmulProblem,
    config_class=TuningConfig,
    axes=axes,
    rules=RULES,
    derived=DERIVED,
    default_config=default_config,
    supports=supports,
    predict_us=prior.matmul_us,
    build="tuner.kernels.matmul_hopper:build",
    operands="tuner.kernels.references:matmul_operands",
    reference="tuner.kernels.references:matmul_reference",
    baseline="tuner.kernels.references:matmul_baseline",
    probes=_PROBES,
    published=_PUBLISHED,
    reported=(
        "smem_bytes",
        "accumulator_registers",
        "cta_tile_m",
        "cta_tile_n",
        "cluster_size",
        "grid",
        "waves",
        "k_steps",
        "swizzle_bytes",
    ),
)

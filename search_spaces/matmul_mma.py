"""Matmul by warp-level `mma.sync`: what `kernels/matmul_mma.py` can be built with, and what of it is legal.

For the architectures without WGMMA and without tensor memory: Ampere, Ada, consumer Blackwell.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .architecture import MAX_REGISTERS_PER_THREAD, REGISTERS_PER_SM, WARPGROUP_THREADS, Target
from .barriers import BARRIER_BYTES, MAX_BARRIERS_PER_GROUP, barriers_per_group, load_barriers
from .family import Axis, KernelFamily, choice
from .problem import MatmulProblem, itemsize_bytes
from .resources import SMEM_CAPACITY, ceil_div, divides, smem_aligned, whole_parts
from .rule import Rule
from .tiles import CANONICAL_MINOR_DIM, CANONICAL_WIDTH, RASTER, RASTER_WIDTH, along, divisible, multiples
from .tma import COPY_BYTES, MAX_BOX_ELEMENTS, SWIZZLES_BYTES, box, whole_lines

REVISION = 1

# How loads arrive.
_BY_CP_ASYNC = ("sm_80", "sm_86", "sm_87", "sm_89")
_BY_TMA = ("sm_120", "sm_121")
ARCHITECTURES_WITH_MMA = (*_BY_CP_ASYNC, *_BY_TMA)
# PTX, mma.sync m16n8: rows, columns, and the bytes of k of one instruction whatever the type.
MMA_M = 16
MMA_N = 8
MMA_K_BYTES = 32
# Tiles of shared memory are 8 rows of one swizzle's bytes (JAX, TilingTransform((8, se))).
TILE_ROWS = 8
# Such tiles need no swizzle where their rows are one 16-byte chunk.
UNSWIZZLED_BYTES = 16
# What an operand type may be written as.
OUT_DTYPES: Mapping[str, tuple[str, ...]] = {
    "float16": ("float16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    "int8": ("int32",),
    "float8_e4m3fn": ("bfloat16", "float16", "float32"),
    "float8_e5m2": ("bfloat16", "float16", "float32"),
}
# PTX, mma: .e4m3 and .e5m2 need sm_89.
_WITHOUT_FLOAT8 = ("sm_80", "sm_86", "sm_87")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TuningConfig:
    """What is searched; JAX's own field names.

    tile_m, tile_n: output tile of one warpgroup; wg_dimension: where a second one stands, if any.
    tile_k: depth of one stage. max_concurrent_steps: stages of the ring.
    delay_release: 1 refills the stage before the one being multiplied, ahead of the multiplication;
      0 refills the very stage, after it.
    barriers: `none` for cp.async groups (before Hopper); by TMA one barrier a stage `shared` by both
      operands, or one `per_operand`.
    epilogue: the output leaves from `registers`, or through `smem` (by TMA where there is one, else in
      16-byte rows).
    grid_minor_dim, grid_tile_width: raster order of the output tiles (planar snake).
    """

    tile_m: int = 64
    tile_n: int = 64
    tile_k: int = 64
    max_concurrent_steps: int = 3
    delay_release: int = 1
    wg_dimension: str | None = choice(None, "M", "N", default=None)
    barriers: str = choice("none", "shared", "per_operand", default="none")
    epilogue: str = choice("registers", "smem", default="registers")
    grid_minor_dim: str = choice("M", "N", default="N")
    grid_tile_width: int = 1


def _four_tiles(rows: Any, row_bytes: Any, swizzle_bytes: Any) -> Any:
    """Whether the four warps can share the tiles of a cp.async block: 4 x 1, 2 x 2 or 1 x 4 of them."""
    down, across = rows // TILE_ROWS, row_bytes // swizzle_bytes
    return (down % 4 == 0) | ((down % 2 == 0) & (across % 2 == 0)) | ((down % 2 == 1) & (across % 4 == 0))


def _swizzle(minor_bytes: Any, rows: Any, row_bytes: Any, has_tma: bool) -> Any:
    """The widest swizzle of a (rows, row_bytes) block that its parts of `minor_bytes` and its copy allow."""
    found: Any = UNSWIZZLED_BYTES
    for swizzle in reversed(SWIZZLES_BYTES):
        fits = (minor_bytes % swizzle == 0) & (has_tma | _four_tiles(rows, row_bytes, swizzle))
        found = found + (swizzle - found) * fits
    return found


def _out_swizzle(tile_m: Any, row_bytes: Any, out_itemsize: int) -> Any:
    """The widest swizzle through which JAX stores an accumulator without bank conflicts.

    It refuses others: 4-byte elements of warps that stand 2 x 2 or 1 x 4 have few (fragmented_array.py,
    plan_tiled_transfer).
    """
    found: Any = UNSWIZZLED_BYTES
    for swizzle, rows in ((32, 16), (64, 64), (128, 32)):
        fits = (row_bytes % swizzle == 0) & ((out_itemsize == 2) | (tile_m % rows == 0))
        found = found + (swizzle - found) * fits
    return found


DERIVED: Mapping[str, Callable[..., Any]] = {
    **RASTER,
    "has_tma": lambda target: target.architecture.has_tma,
    "itemsize": lambda problem: itemsize_bytes(problem.dtype),
    "out_itemsize": lambda problem: itemsize_bytes(problem.out_dtype),
    "rhs_is_kn": lambda problem: problem.rhs == "kn",
    "cta_tile_m": lambda tile_m, wg_dimension: tile_m * along(wg_dimension, "M"),
    "cta_tile_n": lambda tile_n, wg_dimension: tile_n * along(wg_dimension, "N"),
    "warpgroups": lambda wg_dimension: along(wg_dimension, "M") * along(wg_dimension, "N"),
    "k_steps": lambda k, tile_k: whole_parts(k, tile_k),
    "grid_m": lambda m, cta_tile_m: whole_parts(m, cta_tile_m),
    "grid_n": lambda n, cta_tile_n: whole_parts(n, cta_tile_n),
    # The rhs block as it is stored, and what of its rows one warpgroup reads.
    "rhs_rows": lambda rhs_is_kn, tile_k, cta_tile_n: tile_k if rhs_is_kn else cta_tile_n,
    "rhs_row_bytes": lambda rhs_is_kn, tile_k, cta_tile_n, itemsize: (
        (cta_tile_n if rhs_is_kn else tile_k) * itemsize
    ),
    "rhs_minor_bytes": lambda rhs_is_kn, tile_k, tile_n, itemsize: (
        (tile_n if rhs_is_kn else tile_k) * itemsize
    ),
    "lhs_swizzle_bytes": lambda tile_k, cta_tile_m, itemsize, has_tma: _swizzle(
        tile_k * itemsize, cta_tile_m, tile_k * itemsize, has_tma
    ),
    "rhs_swizzle_bytes": lambda rhs_minor_bytes, rhs_rows, rhs_row_bytes, has_tma: _swizzle(
        rhs_minor_bytes, rhs_rows, rhs_row_bytes, has_tma
    ),
    "out_swizzle_bytes": lambda tile_m, tile_n, out_itemsize: _out_swizzle(
        tile_m, tile_n * out_itemsize, out_itemsize
    ),
    # The longer side of what one copy moves, in tiles of 8 rows and a swizzle's bytes.
    "lhs_box": lambda cta_tile_m, tile_k, itemsize, lhs_swizzle_bytes: np.maximum(
        cta_tile_m // TILE_ROWS, tile_k * itemsize // lhs_swizzle_bytes
    ),
    "rhs_box": lambda rhs_rows, rhs_row_bytes, rhs_swizzle_bytes: np.maximum(
        rhs_rows // TILE_ROWS, rhs_row_bytes // rhs_swizzle_bytes
    ),
    "out_box": lambda tile_m, tile_n, out_itemsize, out_swizzle_bytes, epilogue: (
        np.maximum(tile_m // TILE_ROWS, tile_n * out_itemsize // out_swizzle_bytes) * (epilogue == "smem")
    ),
    # Elements a thread writes at once where the output leaves through shared memory without TMA.
    "out_vector": lambda tile_m, tile_n, out_itemsize: np.gcd(
        tile_m * tile_n // WARPGROUP_THREADS, 16 // out_itemsize
    ),
    "accumulator_registers": lambda tile_m, tile_n: tile_m * tile_n // WARPGROUP_THREADS,
    # With a stage for every step nothing is refilled, and nothing held back.
    "steps": lambda max_concurrent_steps, k_steps: np.minimum(max_concurrent_steps, k_steps),
    "lhs_stage_bytes": lambda cta_tile_m, tile_k, itemsize: cta_tile_m * tile_k * itemsize,
    "rhs_stage_bytes": lambda cta_tile_n, tile_k, itemsize: cta_tile_n * tile_k * itemsize,
    "out_smem_bytes": lambda cta_tile_m, cta_tile_n, out_itemsize, epilogue: (
        cta_tile_m * cta_tile_n * out_itemsize * (epilogue == "smem")
    ),
    "barrier_bytes": lambda steps, barriers, warpgroups: (
        BARRIER_BYTES
        * (steps * (barriers != "none") + steps * (barriers == "per_operand") + (warpgroups > 1))
    ),
    # JAX pallas/mosaic_gpu/lowering.py, resource estimation: aligned buffers, then barriers.
    "smem_bytes": lambda steps, lhs_stage_bytes, rhs_stage_bytes, out_smem_bytes, barrier_bytes: (
        smem_aligned(steps * lhs_stage_bytes)
        + smem_aligned(steps * rhs_stage_bytes)
        + smem_aligned(out_smem_bytes)
        + barrier_bytes
    ),
}

RULES: tuple[Rule, ...] = (
    Rule(
        id="mma.tile",
        holds=lambda tile_m, tile_n: (
            (tile_m >= MMA_M)
            & (tile_n >= MMA_N)
            & (
                ((tile_m % 64 == 0) & (tile_n % 8 == 0))
                | ((tile_m % 32 == 0) & (tile_n % 16 == 0))
                | ((tile_m % 16 == 0) & (tile_n % 32 == 0))
            )
        ),
        have="a tile of {tile_m} x {tile_n}",
        need="multiples of 64 x 8, 32 x 16 or 16 x 32, what four warps multiply at once",
        remedy="round tile_m and tile_n to such multiples",
        source="jax/experimental/mosaic/gpu/mma.py, MMALayouts.for_shape; PTX ISA, mma.m16n8",
    ),
    Rule(
        id="mma.tile_k",
        holds=lambda tile_k, itemsize: (tile_k >= 1) & (tile_k * itemsize % MMA_K_BYTES == 0),
        have="tile_k={tile_k} of {itemsize} bytes",
        need=f"a multiple of {MMA_K_BYTES} bytes, the depth of one mma.sync",
        remedy="round tile_k to a multiple of 32 bytes",
        source="jax/experimental/mosaic/gpu/mma.py, MMALayouts; PTX ISA, mma.m16n8k16 and k32",
    ),
    divisible(
        "matmul.m_divisible",
        lambda m, cta_tile_m: divides(cta_tile_m, m),
        "{cta_tile_m}, the rows of a block's tile",
        "choose tile_m and wg_dimension whose product divides m",
    ),
    divisible(
        "matmul.n_divisible",
        lambda n, cta_tile_n: divides(cta_tile_n, n),
        "{cta_tile_n}, the columns of a block's tile",
        "choose tile_n and wg_dimension whose product divides n",
    ),
    divisible(
        "matmul.k_divisible",
        lambda k, tile_k: divides(tile_k, k),
        "tile_k={tile_k}",
        "choose a tile_k that divides k",
    ),
    Rule(
        id="barrier.required",
        holds=lambda barriers, has_tma: (barriers != "none") | (not has_tma),
        have="barriers={barriers}",
        need="shared or per_operand: a TMA load completes on a barrier",
        remedy="set barriers=shared",
        source="jax/_src/pallas/mosaic_gpu/primitives.py, copy_gmem_to_smem",
        decides_on=_BY_TMA,
    ),
    Rule(
        id="barrier.forbidden",
        holds=lambda barriers, has_tma: (barriers == "none") | has_tma,
        have="barriers={barriers}",
        need="none: before Hopper a load completes with its cp.async group",
        remedy="set barriers=none",
        source="jax/_src/pallas/mosaic_gpu/primitives.py, copy_gmem_to_smem",
        decides_on=_BY_CP_ASYNC,
    ),
    Rule(
        id="cp_async.four_tiles",
        holds=lambda rhs_rows, rhs_row_bytes, rhs_swizzle_bytes, has_tma: (
            has_tma | _four_tiles(rhs_rows, rhs_row_bytes, rhs_swizzle_bytes)
        ),
        have="a rhs block of {rhs_rows} rows of {rhs_row_bytes} bytes",
        need="tiles of 8 rows and 16 bytes that four warps can share, 4 x 1, 2 x 2 or 1 x 4",
        remedy="make tile_n a multiple of 16 or double tile_k",
        source="jax/experimental/mosaic/gpu/fragmented_array.py, tiled_copy_smem_gmem_layout",
        decides_on=_BY_CP_ASYNC,
    ),
    whole_lines(
        "matmul.copy_bytes",
        lambda lhs_stage_bytes, rhs_stage_bytes: (
            (lhs_stage_bytes % COPY_BYTES == 0) & (rhs_stage_bytes % COPY_BYTES == 0)
        ),
        "stages of {lhs_stage_bytes} and {rhs_stage_bytes} bytes",
        "use larger tiles",
        # By 16 rows, or 8 columns, of 32 bytes.
        decides_on=(),
    ),
    box(
        "matmul.box",
        lambda lhs_box, rhs_box, out_box, has_tma: (
            (not has_tma)
            | ((lhs_box <= MAX_BOX_ELEMENTS) & (rhs_box <= MAX_BOX_ELEMENTS) & (out_box <= MAX_BOX_ELEMENTS))
        ),
        "copies of {lhs_box} (lhs), {rhs_box} (rhs) and {out_box} (out) tiles along a dimension",
        "use smaller tiles",
        decides_on=_BY_TMA,
    ),
    Rule(
        id="pipeline.steps",
        holds=lambda max_concurrent_steps, delay_release: max_concurrent_steps > delay_release,
        have="max_concurrent_steps={max_concurrent_steps} with delay_release={delay_release}",
        need="more stages than are held back",
        remedy="raise max_concurrent_steps",
        source="a ring whose every slot is held back is never filled: it hangs",
        noticed="never",
    ),
    Rule(
        id="pipeline.delay_release",
        holds=lambda delay_release: delay_release <= 1,
        have="delay_release={delay_release}",
        need="0 or 1",
        remedy="set delay_release=0 or 1",
        source="own kernel: it refills the stage being multiplied or the one before",
        noticed="never",
    ),
    barriers_per_group(
        lambda steps, barriers: (steps <= MAX_BARRIERS_PER_GROUP) | (barriers == "none"),
        decides_on=_BY_TMA,
    ),
    SMEM_CAPACITY,
    RASTER_WIDTH,
    CANONICAL_WIDTH,
    CANONICAL_MINOR_DIM,
    Rule(
        id="canonical.max_concurrent_steps",
        holds=lambda max_concurrent_steps, k_steps: max_concurrent_steps <= k_steps,
        have="max_concurrent_steps={max_concurrent_steps}",
        need="at most {k_steps}, the steps a block makes",
        remedy="set max_concurrent_steps={k_steps} and delay_release=0",
        source="with a stage for every step nothing is refilled",
        kind="canonical",
        spelling=lambda k_steps: {"max_concurrent_steps": k_steps, "delay_release": 0},
    ),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Everything the kernel builder needs, derived and in canonical form."""

    problem: MatmulProblem
    config: TuningConfig
    cta_tile_m: int
    cta_tile_n: int
    warpgroups: int
    has_tma: bool
    tiles: int
    grid_m: int
    grid_n: int
    grid_minor_dim: str
    grid_tile_width: int
    k_steps: int
    steps: int
    delay_release: int
    lhs_swizzle_bytes: int
    rhs_swizzle_bytes: int
    out_swizzle_bytes: int
    out_vector: int


# The fields of a plan that are derived quantities as they stand.
_PLANNED = (
    "cta_tile_m",
    "cta_tile_n",
    "warpgroups",
    "tiles",
    "grid_m",
    "grid_n",
    "k_steps",
    "steps",
    "lhs_swizzle_bytes",
    "rhs_swizzle_bytes",
    "out_swizzle_bytes",
    "out_vector",
)


def plan(problem: MatmulProblem, config: TuningConfig, target: Target) -> Plan:
    """The derived quantities of one configuration; configurations of one canonical form share one."""
    columns = FAMILY.config_columns(problem, target, config)
    return Plan(
        problem=problem,
        config=config,
        has_tma=target.architecture.has_tma,
        grid_minor_dim="N" if columns["grid_is_line"] else config.grid_minor_dim,
        grid_tile_width=min(config.grid_tile_width, int(columns["grid_minor_extent"])),
        delay_release=config.delay_release if config.max_concurrent_steps <= columns["k_steps"] else 0,
        **{name: int(columns[name]) for name in _PLANNED},
    )


def axes(problem: MatmulProblem, target: Target) -> tuple[Axis, ...]:
    """Every value a rule could accept, from the architecture's limits and the problem's extents."""
    depth = MMA_K_BYTES // itemsize_bytes(problem.dtype)
    limit = target.smem_optin_bytes
    # Least stage: 16 + 32 rows of 32 bytes.
    least_rows = MMA_M + 4 * MMA_N
    barriers = load_barriers(target.architecture, operands=2)
    max_steps = limit // (least_rows * MMA_K_BYTES)
    if target.architecture.has_tma:
        max_steps = min(max_steps, MAX_BARRIERS_PER_GROUP)
    widest = max(ceil_div(problem.m, MMA_M), ceil_div(problem.n, MMA_N))
    return (
        Axis("wg_dimension", (None, "M", "N")),
        Axis("tile_m", multiples(MMA_M, min(problem.m, limit // MMA_K_BYTES))),
        Axis("tile_n", multiples(MMA_N, min(problem.n, limit // MMA_K_BYTES))),
        Axis("tile_k", multiples(depth, min(problem.k, limit // (least_rows * MMA_K_BYTES) * depth))),
        Axis("epilogue", ("registers", "smem")),
        Axis("barriers", barriers),
        Axis("delay_release", (0, 1)),
        Axis("max_concurrent_steps", tuple(range(1, max_steps + 1))),
        Axis("grid_minor_dim", ("M", "N")),
        Axis("grid_tile_width", range(1, widest + 1), limit="grid_minor_extent"),
    )


def supports(problem: MatmulProblem, target: Target) -> str:
    """Why `problem` cannot run on `target` at all, or ""."""
    if target.arch not in ARCHITECTURES_WITH_MMA:
        return f"is for {', '.join(ARCHITECTURES_WITH_MMA)}, not {target.arch}"
    if problem.dtype not in OUT_DTYPES:
        return f"takes {', '.join(OUT_DTYPES)}, not {problem.dtype}"
    if problem.dtype.startswith("float8") and target.arch in _WITHOUT_FLOAT8:
        return f"takes {problem.dtype} from sm_89 on, not on {target.arch}"
    if problem.rhs_dtype != problem.dtype:
        return f"takes operands of one type, not {problem.dtype} and {problem.rhs_dtype}"
    accumulator = "int32" if problem.dtype == "int8" else "float32"
    if problem.acc_dtype != accumulator:
        return f"accumulates {problem.dtype} in {accumulator}, not {problem.acc_dtype}"
    if problem.out_dtype not in OUT_DTYPES[problem.dtype]:
        return f"writes {' or '.join(OUT_DTYPES[problem.dtype])}, not {problem.out_dtype}"
    if problem.lhs != "mk":
        return "takes lhs stored (m, k), not (k, m)"
    # ldmatrix transposes 16-bit elements; JAX's layout inference takes no other way (fragmented_array.py).
    if problem.rhs != "nk" and itemsize_bytes(problem.dtype) != 2:
        return f"takes a {problem.dtype} rhs stored (n, k), not (k, n)"
    if problem.batch != 1:
        return f"takes one matrix, not batch={problem.batch}"
    return ""


def default_config(problem: MatmulProblem, target: Target) -> TuningConfig:
    """What a careful engineer would write down first: the legal configuration nearest to it."""
    from .space import LegalSpace

    wanted = TuningConfig(
        tile_m=64,
        tile_n=128,
        tile_k=128 // itemsize_bytes(problem.dtype),
        max_concurrent_steps=4,
        wg_dimension="M",
        barriers=load_barriers(target.architecture, operands=2)[0],
        grid_minor_dim="M",
        grid_tile_width=8,
    )
    return LegalSpace(FAMILY, problem, target).nearest(wanted) or wanted


# Clocks from a load's issue to its data, and what one block leaves uncovered at its ends.
_LOAD_LATENCY_CLOCKS = 600
_TILE_OVERHEAD_CLOCKS = 1500
_STEP_CLOCKS = 40
_BYTES_PER_CLOCK = 128  # of shared memory, an SM
_L2_BYTES_PER_CLOCK = 40


def _predict_us(
    target: Target,
    itemsize: Any,
    tile_k: Any,
    cta_tile_m: Any,
    cta_tile_n: Any,
    tile_m: Any,
    tile_n: Any,
    warpgroups: Any,
    tiles: Any,
    k_steps: Any,
    steps: Any,
    delay_release: Any,
    accumulator_registers: Any,
    smem_bytes: Any,
    smem_limit_bytes: Any,
) -> Any:
    """Microseconds: each stage the slowest of tensor core, shared memory and L2, over resident blocks."""
    clock_hz = target.max_sm_clock_mhz * 1e6
    rate = (target.flops_per_clock_per_sm or 1024) * 2 / itemsize
    threads = warpgroups * WARPGROUP_THREADS
    # ptxas keeps the fragments of a whole stage beside the accumulator.
    registers = np.minimum(accumulator_registers + 128, MAX_REGISTERS_PER_THREAD)
    resident = np.minimum(smem_limit_bytes // (smem_bytes + 1024), REGISTERS_PER_SM // (threads * registers))
    resident = np.clip(resident, 1, ceil_div(tiles, target.sm_count))
    math = 2.0 * cta_tile_m * cta_tile_n * tile_k / rate
    # Each of four warps holds 16 rows of the tile and reads all of its columns.
    read = warpgroups * tile_k * itemsize * (tile_m + 4.0 * tile_n)
    stage_bytes = (cta_tile_m + cta_tile_n) * tile_k * itemsize
    busy = np.maximum(np.maximum(math, read / _BYTES_PER_CLOCK), stage_bytes / _L2_BYTES_PER_CLOCK)
    # One block alone waits for its loads and its warps; others fill the gaps.
    ahead = np.maximum(steps - delay_release, 0.5)
    alone = np.maximum(busy, (_LOAD_LATENCY_CLOCKS + busy) / ahead)
    stage = np.maximum(busy * resident, alone) + _STEP_CLOCKS + _LOAD_LATENCY_CLOCKS / 2 / ahead**2
    stage = stage * np.where(accumulator_registers > 128, accumulator_registers / 32.0, 1.0)
    waves = np.ceil(tiles / (target.sm_count * resident))
    return waves * (k_steps * stage + _TILE_OVERHEAD_CLOCKS) / clock_hz * 1e6


_PROBES = (
    MatmulProblem(m=256, n=256, k=512, dtype="bfloat16"),
    MatmulProblem(m=192, n=160, k=192, dtype="float16", rhs="nk", out_dtype="float32"),
    MatmulProblem(m=128, n=192, k=2048, dtype="int8", out_dtype="int32", rhs="nk"),
    MatmulProblem(m=4224, n=16, k=96, dtype="bfloat16"),
    MatmulProblem(m=64, n=192, k=256, dtype="float8_e4m3fn", out_dtype="bfloat16", rhs="nk"),
)

FAMILY = KernelFamily(
    name="matmul_mma",
    revision=REVISION,
    problem_class=MatmulProblem,
    config_class=TuningConfig,
    axes=axes,
    rules=RULES,
    derived=DERIVED,
    default_config=default_config,
    supports=supports,
    predict_us=_predict_us,
    build="tuner.kernels.matmul_mma:build",
    operands="tuner.kernels.references:matmul_operands",
    reference="tuner.kernels.references:matmul_reference",
    baseline="tuner.kernels.references:matmul_baseline",
    probes=_PROBES,
    reported=(
        "smem_bytes",
        "accumulator_registers",
        "cta_tile_m",
        "cta_tile_n",
        "tiles",
        "k_steps",
        "lhs_swizzle_bytes",
        "rhs_swizzle_bytes",
    ),
)

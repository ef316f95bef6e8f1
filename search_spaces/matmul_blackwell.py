"""Matmul on Blackwell: what `kernels/matmul_blackwell.py` can be built with, and what of it is legal."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .architecture import Target
from .barriers import BARRIER_BYTES, MAX_BARRIERS_PER_GROUP, barriers_per_group, load_barriers
from .family import Axis, KernelFamily, choice
from .problem import MatmulProblem, itemsize_bytes
from .resources import SMEM_CAPACITY, ceil_div, divides, smem_aligned, whole_parts
from .rule import Rule
from .tiles import CANONICAL_MINOR_DIM, CANONICAL_WIDTH, RASTER, RASTER_WIDTH, divisible, multiples
from .tma import COPY_BYTES, MAX_BOX_ELEMENTS, SWIZZLES_BYTES, box, largest_swizzle, whole_lines

REVISION = 1

# PTX ISA, tensor memory: 128 lanes of 512 columns of 32 bits, allocated by powers of two from 32 on.
TMEM_COLUMNS = 512
MIN_TMEM_COLUMNS = 32
# JAX mosaic/gpu/tcgen05.py: rows of the accumulator that one block holds; 64 of them fill half the lanes.
MMA_ROWS = (64, 128)
# PTX ISA, tcgen05.mma shapes: columns come by 16, and an instruction has at most 256 of them.
MMA_N = 16
MAX_MMA_N = 256
# One accumulator is computed while the other is stored.
ACCUMULATORS = 2
# TMA tiles of shared memory are 8 rows of one swizzle's bytes (JAX, TilingTransform((8, se))).
TILE_ROWS = 8
# JAX mosaic/gpu/core.py: where the address of the tensor memory is kept.
TMEM_POINTER_BYTES = 4

# PTX ISA, tcgen05.mma: the architectures that have it, and those whose tensor cores multiply integers.
TCGEN05_ARCHS = ("sm_100", "sm_103", "sm_110")
INTEGER_ARCHS = ("sm_100", "sm_110")
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
# What each type of operand may be written as.
_OUTPUTS: Mapping[str, tuple[str, ...]] = {
    "float16": ("float16", "float32"),
    "bfloat16": ("bfloat16", "float32"),
    **dict.fromkeys(_FLOAT8, ("bfloat16", "float16", "float32")),
    "int8": ("int32",),
}
_NOT_TAKEN: Mapping[str, str] = {
    "float32": ": tcgen05 in Pallas has no tf32",
    "uint8": ": JAX multiplies it as int8",
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


def _power_of_two(value: Any) -> Any:
    """The smallest power of two that is not below `value`."""
    return 2 ** np.ceil(np.log2(np.maximum(value, 1))).astype(np.int64)


def _widest_swizzle(row_bytes: Any) -> Any:
    """The widest swizzle that is no longer than a row; 16 when none is."""
    return np.select([row_bytes >= s for s in SWIZZLES_BYTES], SWIZZLES_BYTES, 16)


DERIVED: Mapping[str, Callable[..., Any]] = {
    **RASTER,
    "itemsize": lambda problem: itemsize_bytes(problem.dtype),
    "out_itemsize": lambda problem: itemsize_bytes(problem.out_dtype),
    "rhs_is_kn": lambda problem: problem.rhs == "kn",
    "is_integer": lambda problem: problem.acc_dtype == "int32",
    "cluster_size": lambda collective: 1 + (collective == 1) * 1,
    # Columns of the accumulator a block holds: with `collective`, those of both blocks' rhs.
    "acc_tile_n": lambda tile_n, cluster_size: tile_n * cluster_size,
    "cluster_tile_m": lambda tile_m, cluster_size: tile_m * cluster_size,
    # 64 rows of one block take two instructions, each over half of the columns (tcgen05.py, n_lane_groups).
    "lane_groups": lambda tile_m, cluster_size: 1 + ((tile_m == 64) & (cluster_size == 1)) * 1,
    "group_tile_n": lambda tile_n, lane_groups: tile_n // lane_groups,
    "group_row_bytes": lambda group_tile_n, itemsize: group_tile_n * itemsize,
    # Both JAX's: integers and pairs of blocks need twice the columns.
    "mma_n_unit": lambda cluster_size, is_integer: 8 * cluster_size * (1 + is_integer),
    "k_steps": lambda k, tile_k: whole_parts(k, tile_k),
    "grid_m": lambda m, cluster_tile_m: whole_parts(m, cluster_tile_m),
    "grid_n": lambda n, acc_tile_n: whole_parts(n, acc_tile_n),
    "grid": lambda tiles, sm_count, cluster_size: np.minimum(tiles, np.maximum(sm_count // cluster_size, 1)),
    "waves": lambda tiles, grid: ceil_div(tiles, grid),
    "total_steps": lambda waves, k_steps: waves * k_steps,
    "lhs_swizzle_bytes": lambda tile_k, itemsize: largest_swizzle(tile_k * itemsize),
    # The rhs swizzle spans k when rhs is (n, k) and an instruction's columns when it is (k, n). JAX holds
    # either to the columns of half a 64-row accumulator.
    "rhs_swizzle_bytes": lambda tile_k, itemsize, group_row_bytes, lane_groups, rhs_is_kn: largest_swizzle(
        tile_k * itemsize,
        group_row_bytes
        if rhs_is_kn
        else np.where(lane_groups == 2, _widest_swizzle(group_row_bytes), max(SWIZZLES_BYTES)),
    ),
    # The registers of 64 rows by two blocks hold the halves of the columns apart (fa_m64_collective_layout).
    "epi_whole": lambda tile_m, cluster_size: (tile_m == 64) & (cluster_size == 2),
    "epi_swizzle_bytes": lambda epi_tile_n, out_itemsize, epi_whole: largest_swizzle(
        epi_tile_n * out_itemsize // (1 + epi_whole)
    ),
    "epi_tiles": lambda acc_tile_n, epi_tile_n: ceil_div(acc_tile_n, epi_tile_n),
    "epi_slots": lambda epi_tiles: np.minimum(2, epi_tiles),
    # 64 rows fill half the lanes with half of the columns, and the other half with the rest.
    "acc_columns": lambda acc_tile_n, tile_m: acc_tile_n * tile_m // 128,
    # Two accumulators where they fit and a block has two tiles to compute.
    "acc_slots": lambda acc_columns, waves: np.where(
        (waves > 1) & (acc_columns * ACCUMULATORS <= TMEM_COLUMNS), ACCUMULATORS, 1
    ),
    "tmem_columns": lambda acc_columns, acc_slots: np.maximum(
        _power_of_two(acc_columns * acc_slots), MIN_TMEM_COLUMNS
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

_TCGEN05 = "jax/experimental/mosaic/gpu/tcgen05.py"

RULES: tuple[Rule, ...] = (
    Rule(
        id="matmul.collective",
        holds=lambda collective: (collective == 0) | (collective == 1),
        have="collective={collective}",
        need="0, or 1 for two blocks together",
        remedy="set collective=0 or 1",
        source="PTX ISA, tcgen05.mma: cta_group::1 and ::2",
    ),
    Rule(
        id="matmul.tile_m_mma",
        holds=lambda tile_m: (tile_m == MMA_ROWS[0]) | (tile_m == MMA_ROWS[1]),
        have="tile_m={tile_m}",
        need="64 or 128, the rows of an accumulator in tensor memory",
        remedy="set tile_m=64 or 128",
        source=_TCGEN05,
    ),
    Rule(
        id="matmul.tile_n_mma",
        # JAX counts the columns of one instruction.
        holds=lambda tile_n, lane_groups, mma_n_unit: (
            (tile_n >= mma_n_unit) & (tile_n % (mma_n_unit * lane_groups) == 0)
        ),
        have="tile_n={tile_n}",
        need="a multiple of {mma_n_unit} columns for each of {lane_groups} instructions",
        remedy="round tile_n to a multiple of 32",
        source=_TCGEN05,
        # Of other types than integers, a multiple of 16 is one.
        decides_on=INTEGER_ARCHS,
    ),
    Rule(
        id="matmul.tile_n_16",
        holds=lambda tile_n: tile_n % MMA_N == 0,
        have="tile_n={tile_n}",
        need=f"a multiple of {MMA_N}",
        remedy="round tile_n to a multiple of 16",
        source="PTX ISA, tcgen05.mma: N of M=128 is a multiple of 16; JAX and ptxas take 8",
        noticed="never",
    ),
    Rule(
        id="matmul.tile_n_most",
        holds=lambda tile_n, cluster_size: (
            (tile_n * cluster_size <= MAX_MMA_N) | ((tile_n == 2 * MAX_MMA_N) & (cluster_size == 1))
        ),
        have="tile_n={tile_n} with collective={collective}",
        need=f"at most {MAX_MMA_N} columns an instruction, or {2 * MAX_MMA_N} in two; with collective "
        f"{MAX_MMA_N // 2} a block",
        remedy="lower tile_n",
        source=_TCGEN05,
    ),
    Rule(
        id="tmem.columns",
        holds=lambda tmem_columns: tmem_columns <= TMEM_COLUMNS,
        have="{acc_slots} accumulators of {acc_columns} columns, {tmem_columns} as allocated",
        need=f"at most {TMEM_COLUMNS}",
        remedy="lower tile_n",
        source="PTX ISA, tcgen05.alloc: a power of two of columns",
        # By tile_n_most: one accumulator fits where two don't.
        decides_on=(),
    ),
    divisible(
        "matmul.m_divisible",
        lambda m, cluster_tile_m: divides(cluster_tile_m, m),
        "{cluster_tile_m}, the rows of a cluster's tile",
        "choose tile_m and collective whose product divides m",
    ),
    divisible(
        "matmul.n_divisible",
        lambda n, acc_tile_n: divides(acc_tile_n, n),
        "{acc_tile_n}, the columns of a cluster's tile",
        "choose tile_n and collective whose product divides n",
    ),
    divisible(
        "matmul.k_divisible",
        lambda k, tile_k: divides(tile_k, k),
        "tile_k={tile_k}",
        "choose a tile_k that divides k",
    ),
    Rule(
        id="matmul.lhs_swizzle",
        holds=lambda lhs_swizzle_bytes: lhs_swizzle_bytes >= min(SWIZZLES_BYTES),
        have="tile_k={tile_k} of {itemsize} bytes",
        need="a multiple of 32 bytes",
        remedy="make tile_k a multiple of 32 bytes",
        source="jax/_src/pallas/mosaic_gpu/core.py, SwizzleTransform; tcgen05.py, no swizzle",
    ),
    Rule(
        id="matmul.rhs_swizzle",
        holds=lambda rhs_swizzle_bytes, lhs_swizzle_bytes: (
            (rhs_swizzle_bytes >= min(SWIZZLES_BYTES)) | (lhs_swizzle_bytes < min(SWIZZLES_BYTES))
        ),
        have="{group_row_bytes} bytes of columns an instruction",
        need="for rhs=kn a multiple of 32 bytes, for rhs=nk at least 32 with tile_m=64",
        remedy="make tile_n a multiple of 32 bytes, of 64 with tile_m=64",
        source="jax/_src/pallas/mosaic_gpu/core.py, SwizzleTransform; layout_inference.py, n_lane_groups",
    ),
    box(
        "matmul.box",
        # Tiled (rows / 8, columns / swizzle, 8, swizzle): the columns of a row are fewer still.
        lambda tile_n, tile_k, rhs_is_kn: (tile_k if rhs_is_kn else tile_n) // TILE_ROWS <= MAX_BOX_ELEMENTS,
        "a rhs stage of {tile_n} columns, {tile_k} deep",
        "lower tile_k",
    ),
    whole_lines(
        "matmul.copy_bytes",
        lambda lhs_stage_bytes, rhs_stage_bytes, epi_slot_bytes: (
            (lhs_stage_bytes % COPY_BYTES == 0)
            & (rhs_stage_bytes % COPY_BYTES == 0)
            & (epi_slot_bytes % COPY_BYTES == 0)
        ),
        "stages of {lhs_stage_bytes} and {rhs_stage_bytes} bytes, stores of {epi_slot_bytes}",
        "use larger tiles",
        # By 64 rows, or 16 columns, of 32 bytes.
        decides_on=(),
    ),
    Rule(
        id="matmul.epi_tile_n",
        holds=lambda acc_tile_n, epi_tile_n: divides(epi_tile_n, acc_tile_n),
        have="epi_tile_n={epi_tile_n} of {acc_tile_n} columns",
        need="a divisor of the accumulator's columns",
        remedy="choose epi_tile_n that divides tile_n",
        source="own kernel: parts of one size make up the tile",
    ),
    Rule(
        id="matmul.epi_whole",
        holds=lambda epi_whole, acc_tile_n, epi_tile_n: (epi_whole == 0) | (epi_tile_n == acc_tile_n),
        have="epi_tile_n={epi_tile_n} of {acc_tile_n} columns, of 64 rows by two blocks",
        need="all {acc_tile_n} columns at once",
        remedy="set epi_tile_n={acc_tile_n}",
        source=f"{_TCGEN05}, fa_m64_collective_layout: its tile spans all columns",
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
        holds=lambda max_concurrent_steps: max_concurrent_steps >= 1,
        have="max_concurrent_steps={max_concurrent_steps}",
        need="at least 1",
        remedy="set max_concurrent_steps=1",
        source="own kernel: a ring without a stage loads nothing",
    ),
    barriers_per_group(lambda steps: steps <= MAX_BARRIERS_PER_GROUP),
    SMEM_CAPACITY,
    RASTER_WIDTH,
    CANONICAL_WIDTH,
    CANONICAL_MINOR_DIM,
    Rule(
        id="canonical.max_concurrent_steps",
        holds=lambda max_concurrent_steps, total_steps: max_concurrent_steps <= total_steps,
        have="max_concurrent_steps={max_concurrent_steps}",
        need="at most {total_steps}, the steps a block makes",
        remedy="set max_concurrent_steps={total_steps}",
        source="the ring holds no more stages than steps",
        kind="canonical",
        spelling=lambda total_steps: {"max_concurrent_steps": total_steps},
    ),
)


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
    itemsize, limit = itemsize_bytes(problem.dtype), target.smem_optin_bytes
    # The least stage: 64 rows and 16 columns of the least depth.
    least = min(SWIZZLES_BYTES)
    rows = MMA_ROWS[0] + MMA_N
    columns = (*range(MMA_N, MAX_MMA_N + 1, MMA_N), 2 * MAX_MMA_N)
    max_tile_k = min(problem.k, limit // (rows * itemsize))
    max_steps = min(MAX_BARRIERS_PER_GROUP, limit // (rows * least))
    widest = max(ceil_div(problem.m, MMA_ROWS[0]), ceil_div(problem.n, MMA_N))
    return (
        Axis("tile_m", MMA_ROWS),
        Axis("collective", (0, 1)),
        Axis("tile_n", tuple(n for n in columns if n <= max(problem.n, MMA_N))),
        Axis(
            "epi_tile_n", multiples(least // itemsize_bytes(problem.out_dtype), min(problem.n, columns[-1]))
        ),
        Axis("tile_k", multiples(least // itemsize, max_tile_k)),
        Axis("barriers", load_barriers(target.architecture, operands=2)),
        Axis("max_concurrent_steps", tuple(range(1, max_steps + 1))),
        Axis("grid_minor_dim", ("M", "N")),
        Axis("grid_tile_width", range(1, widest + 1), limit="grid_minor_extent"),
    )


def supports(problem: MatmulProblem, target: Target) -> str:
    """Why `problem` cannot run on `target` at all, or ""."""
    if target.arch not in TCGEN05_ARCHS:
        return f"needs tcgen05, which only {', '.join(TCGEN05_ARCHS)} have, not {target.arch}"
    if problem.dtype not in _OUTPUTS:
        return f"takes {', '.join(_OUTPUTS)}, not {problem.dtype}{_NOT_TAKEN.get(problem.dtype, '')}"
    if problem.dtype == "int8" and target.arch not in INTEGER_ARCHS:
        return f"takes int8 on {' and '.join(INTEGER_ARCHS)} only, not {target.arch}"
    if problem.rhs_dtype != problem.dtype and not {problem.dtype, problem.rhs_dtype} <= set(_FLOAT8):
        return f"takes operands of one type, not {problem.dtype} and {problem.rhs_dtype}"
    accumulator = "int32" if problem.dtype == "int8" else "float32"
    if problem.acc_dtype != accumulator:
        return f"accumulates {problem.dtype} in {accumulator}, not {problem.acc_dtype}"
    outputs = _OUTPUTS[problem.dtype]
    if problem.out_dtype not in outputs:
        return f"writes {' or '.join(outputs)}, not {problem.out_dtype}"
    if problem.lhs != "mk":
        return "takes lhs stored (m, k), not (k, m)"
    if problem.batch != 1:
        return f"takes one matrix, not batch={problem.batch}"
    return ""


def default_config(problem: MatmulProblem, target: Target) -> TuningConfig:
    """What a careful engineer would write down first: the legal configuration nearest to it."""
    from .space import LegalSpace

    tile_k = max(SWIZZLES_BYTES) // itemsize_bytes(problem.dtype)
    wanted = TuningConfig(tile_k=tile_k, collective=1, grid_minor_dim="M", grid_tile_width=8)
    return LegalSpace(FAMILY, problem, target).nearest(wanted) or wanted


# Guesses until measured: bytes a clock and SM from shared memory and L2; clocks of a load from DRAM, of a
# step's barriers and of an epilogue tile; columns above which an epilogue tile's registers spill.
_SMEM_BYTES_PER_CLOCK = 128
_L2_BYTES_PER_CLOCK = 48
_LOAD_LATENCY_CLOCKS = 700
_STEP_CLOCKS = 40
_EPI_CLOCKS = 60
_SPILL_COLUMNS = 128


def _predict_us(
    target: Target,
    problem: MatmulProblem,
    tile_m: Any,
    tile_n: Any,
    tile_k: Any,
    cluster_size: Any,
    acc_tile_n: Any,
    acc_slots: Any,
    itemsize: Any,
    out_itemsize: Any,
    grid: Any,
    grid_m: Any,
    grid_n: Any,
    grid_minor_dim: Any,
    grid_tile_width: Any,
    waves: Any,
    k_steps: Any,
    steps: Any,
    epi_tile_n: Any,
    epi_tiles: Any,
    lhs_swizzle_bytes: Any,
    rhs_swizzle_bytes: Any,
) -> Any:
    """Microseconds: the slowest of tensor core, shared memory, L2 and DRAM a stage, and the epilogues."""
    clock_hz = target.max_sm_clock_mhz * 1e6
    # 8-bit operands run at twice the rate; 64 rows use half of the tensor core.
    rate = target.flops_per_clock_per_sm * 2 / itemsize * (tile_m / 128)
    math = 2.0 * tile_m * acc_tile_n * tile_k / rate
    loaded = (tile_m * 128 / lhs_swizzle_bytes + tile_n * 128 / rhs_swizzle_bytes) * tile_k * itemsize
    l2 = (tile_m + tile_n) * tile_k * itemsize / _L2_BYTES_PER_CLOCK
    # A wave of clusters covers a band of the raster: its distinct rows and columns come from DRAM.
    width = np.minimum(grid_tile_width, np.where(grid_minor_dim == "M", grid_m, grid_n))
    length = np.maximum(grid / width, 1.0)
    across_m = np.where(grid_minor_dim == "M", width, length) * tile_m * cluster_size
    across_n = np.where(grid_minor_dim == "M", length, width) * acc_tile_n
    lines = np.minimum(across_m, problem.m) + np.minimum(across_n, problem.n)
    dram = lines * tile_k * itemsize / target.dram_bytes_per_s * clock_hz
    stage = np.maximum(np.maximum(math, loaded / _SMEM_BYTES_PER_CLOCK), np.maximum(l2, dram))
    stage = np.maximum(stage, (_LOAD_LATENCY_CLOCKS + stage) / steps) + _STEP_CLOCKS * (1 + 1 / steps)
    stored = tile_m * acc_tile_n * out_itemsize / _L2_BYTES_PER_CLOCK + _EPI_CLOCKS * epi_tiles
    stored = stored * np.where(epi_tile_n > _SPILL_COLUMNS, 1.5, 1.0)
    # With two accumulators the epilogue hides behind the next tile, but for the last one.
    mainloop = k_steps * stage
    hidden = waves * np.maximum(mainloop, stored) + np.minimum(mainloop, stored)
    return np.where(acc_slots > 1, hidden, waves * (mainloop + stored)) / clock_hz * 1e6


_PROBES = (
    MatmulProblem(m=512, n=1024, k=512, dtype="bfloat16"),
    MatmulProblem(m=384, n=576, k=192, dtype="float16", rhs="nk", out_dtype="float32"),
    MatmulProblem(m=256, n=640, k=4224, dtype="int8", out_dtype="int32"),
    MatmulProblem(m=256, n=640, k=256, dtype="int8", out_dtype="int32", rhs="nk"),
    MatmulProblem(m=256, n=320, k=4224, dtype="float8_e4m3fn", out_dtype="bfloat16"),
    MatmulProblem(m=128, n=512, k=1024, dtype="float8_e5m2", out_dtype="float16", rhs="nk"),
)
# jax/experimental/pallas/ops/gpu/blackwell_matmul_mgpu.py, main().
_PUBLISHED = {
    "tile_m": (128,),
    "tile_n": (128, 256),
    "tile_k": (64,),
    "max_concurrent_steps": (2, 4, 6),
    "epi_tile_n": (32,),
    "collective": (0, 1),
    "grid_tile_width": (1, 4, 8, 12, 16),
}

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
    predict_us=_predict_us,
    build="tuner.kernels.matmul_blackwell:build",
    operands="tuner.kernels.references:matmul_operands",
    reference="tuner.kernels.references:matmul_reference",
    baseline="tuner.kernels.references:matmul_baseline",
    probes=_PROBES,
    published=_PUBLISHED,
    reported=(
        "smem_bytes",
        "tmem_columns",
        "acc_slots",
        "acc_tile_n",
        "cluster_size",
        "grid",
        "waves",
        "k_steps",
        "lhs_swizzle_bytes",
        "rhs_swizzle_bytes",
    ),
)

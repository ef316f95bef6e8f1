"""Copy through a ring of shared memory by cp.async groups (Ampere and Ada).

Each load is one cp.async group, and waiting for groups takes the place of barriers. A slot is read
into registers and stored from there: shared memory has no other way out before Hopper.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .architecture import MAX_REGISTERS_PER_THREAD, REGISTERS_PER_SM, WARPGROUP_THREADS, Target
from .barriers import load_barriers
from .family import Axis, KernelFamily, choice
from .prior import MAX_BLOCKS_PER_SM
from .problem import DTYPE_BITS, CopyProblem, unmovable
from .resources import SMEM_CAPACITY, ceil_div, divides, smem_aligned
from .rule import Rule
from .tiles import CANONICAL_MINOR_DIM, RASTER, divisible, divisors, whole_bytes
from .tma import COPY_BYTES, SWIZZLES_BYTES, whole_lines

REVISION = 1

# JAX launch_context.py, async_copy by CP_ASYNC: every thread of a warpgroup moves at least 4 bytes.
_LEAST_BYTES = 4 * WARPGROUP_THREADS
# A wait leaves at most 63 groups running: ptxas lowers what PTX cp.async.wait_group asks for to that.
MAX_GROUPS = 64
# A shared-memory tile has 8 rows of `swizzle_bytes`; of 16 bytes it is tiled and not swizzled.
_TILE_ROWS = 8
_SWIZZLES_BYTES = (*SWIZZLES_BYTES, 16)
# A first prior: DRAM's share of its peak, a load's latency under load, and what a step of a block costs.
_DRAM_EFFICIENCY = 0.9
_LATENCY_CLOCKS = 1600
_CLOCKS_PER_STEP = 200
# How much of the lesser of memory and instructions the greater leaves uncovered.
_BARE = 0.2


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TuningConfig:
    """What is searched.

    tile_m, tile_n: rows and columns of one copy. layout: a slot holds the `rows` as they lie in
    global memory, or is `tiled` into 8 rows of `swizzle_bytes`, swizzled.
    max_concurrent_steps: slots of the ring. delay_release: with 1, one slot rests, so that the next
    load is issued before the current tile is read; the others have loads in flight.
    grid_schedule: `persistent` blocks loop over the tiles; with `hardware`, a block copies one
    ring-full of tiles and the hardware hands out the next block.
    blocks_per_sm: persistent blocks launched for each SM.
    grid_minor_dim: direction neighbouring tiles follow.
    """

    tile_m: int = 32
    tile_n: int = 64
    layout: str = choice("rows", "tiled", default="tiled")
    swizzle_bytes: int = 128
    max_concurrent_steps: int = 4
    delay_release: int = 0
    grid_schedule: str = choice("persistent", "hardware", default="persistent")
    blocks_per_sm: int = 2
    grid_minor_dim: str = choice("M", "N", default="N")
    barriers: str = choice("none", default="none")


def _transfer_bytes(rows: Any, tile_m: Any, tile_row_bytes: Any, tile_bytes: Any, swizzle_bytes: Any) -> Any:
    """Bytes one cp.async of one thread moves.

    Source: jax/experimental/mosaic/gpu/fragmented_array.py, WGStridedFragLayout.from_shaped_type
    and tiled_copy_smem_gmem_layout, where narrow tiles left over by the four warps are joined.
    """
    down, across = tile_m // _TILE_ROWS, tile_row_bytes // np.maximum(swizzle_bytes, 1)
    warps_down = np.where(down % 4 == 0, 4, np.where(down % 2 == 0, 2, 1))
    down, across = down // warps_down, across * warps_down // 4
    width = np.minimum(swizzle_bytes // 4, 16)
    for _ in range(2):
        beside = (width < 16) & (across % 2 == 0)
        below = (width < 16) & (across % 2 != 0) & (down % 2 == 0)
        across, down = across // (1 + beside), down // (1 + below)
        width = width * (1 + (beside | below))
    return np.where(rows, np.where(tile_bytes % (2 * _LEAST_BYTES) == 0, 8, 4), width)


DERIVED: Mapping[str, Callable[..., Any]] = {
    **RASTER,
    "bits": lambda problem: DTYPE_BITS[problem.dtype],
    "tile_row_bits": lambda tile_n, bits: tile_n * bits,
    # Types narrower than a byte are moved as whole bytes.
    "word_bits": lambda bits: np.maximum(bits, 8),
    "tile_words": lambda tile_row_bits, word_bits: ceil_div(tile_row_bits, word_bits),
    "tile_row_bytes": lambda tile_words, word_bits: tile_words * word_bits // 8,
    "tile_bytes": lambda tile_m, tile_row_bytes: tile_m * tile_row_bytes,
    "rows": lambda layout: layout == "rows",
    "tiled": lambda layout: layout == "tiled",
    "contiguous": lambda tile_m, tile_n, n: (tile_n == n) | (tile_m == 1),
    "transfer_bytes": _transfer_bytes,
    "tile_registers": lambda tile_bytes: ceil_div(tile_bytes, 4 * WARPGROUP_THREADS),
    "grid_m": lambda m, tile_m: ceil_div(m, tile_m),
    "grid_n": lambda n, tile_n: ceil_div(n, tile_n),
    "persistent": lambda grid_schedule: grid_schedule == "persistent",
    # A block that the hardware hands out fills each slot once, so none rests.
    "in_flight": lambda max_concurrent_steps, delay_release, persistent: (
        max_concurrent_steps - delay_release * persistent
    ),
    "depth": lambda in_flight: np.minimum(in_flight, MAX_GROUPS),
    # More than an SM has threads for would only wait.
    "blocks": lambda sm_count, blocks_per_sm: sm_count * np.minimum(blocks_per_sm, MAX_BLOCKS_PER_SM),
    "grid": lambda tiles, blocks, persistent, depth: np.where(
        persistent,
        np.minimum(tiles, blocks),
        ceil_div(tiles, depth),
    ),
    "block_steps": lambda tiles, grid, persistent, depth: np.where(
        persistent, ceil_div(tiles, grid), np.minimum(depth, tiles)
    ),
    "refills": lambda depth, block_steps: depth < block_steps,
    "steps": lambda depth, block_steps, refills, delay_release: np.where(
        refills, depth + np.minimum(delay_release, 1), block_steps
    ),
    "smem_bytes": lambda steps, tile_bytes: smem_aligned(steps * tile_bytes),
}

_CP_ASYNC = "jax/experimental/mosaic/gpu/launch_context.py, CP_ASYNC"

RULES: tuple[Rule, ...] = (
    divisible(
        "copy.m_divisible",
        lambda m, tile_m: divides(tile_m, m),
        "tile_m={tile_m}",
        "choose a tile_m that divides m",
        f"{_CP_ASYNC} reads what lies beyond the array",
    ),
    divisible(
        "copy.n_divisible",
        lambda n, tile_n: divides(tile_n, n),
        "tile_n={tile_n}",
        "choose a tile_n that divides n",
        f"{_CP_ASYNC} reads what lies beyond the array",
    ),
    whole_bytes(lambda tile_row_bits: tile_row_bits % 8 == 0),
    dataclasses.replace(
        whole_lines(
            "copy.bytes",
            lambda tile_bytes: (tile_bytes > 0) & (tile_bytes % COPY_BYTES == 0),
            "a copy of {tile_m} x {tile_n} x {bits} bits = {tile_bytes} bytes",
            "make tile_m * tile_n * itemsize a multiple of 128",
            # By transfer and four_tiles.
            decides_on=(),
        ),
        source=f"{_CP_ASYNC}: every thread moves at least 4 bytes, every warp at least a tile",
        noticed="lowered",
    ),
    Rule(
        id="copy.contiguous",
        holds=lambda tiled, contiguous: tiled | contiguous,
        have="layout=rows with a tile of {tile_m} x {tile_n} from rows of {n}",
        need="whole rows (tile_n = n) or part of one row (tile_m = 1)",
        remedy="use layout=tiled or tile_n={n}",
        source=f"{_CP_ASYNC}: an untiled copy counts through global memory as through shared memory",
        noticed="never",
    ),
    Rule(
        id="copy.transfer",
        holds=lambda tiled, tile_bytes: tiled | (tile_bytes % _LEAST_BYTES == 0),
        have="layout=rows with a tile of {tile_bytes} bytes",
        need=f"a multiple of {_LEAST_BYTES} bytes, 4 or 8 for each of {WARPGROUP_THREADS} threads",
        remedy=f"make tile_m * tile_n * itemsize a multiple of {_LEAST_BYTES}",
        source=f"{_CP_ASYNC}, at least 4 bytes per transfer; PTX cp.async, cp-size 4, 8 or 16",
    ),
    Rule(
        id="copy.swizzle",
        holds=lambda rows, swizzle_bytes: rows | np.isin(swizzle_bytes, _SWIZZLES_BYTES),
        have="swizzle_bytes={swizzle_bytes}",
        need="128, 64 or 32, or 16 for tiles without a swizzle",
        remedy="set swizzle_bytes=128",
        source="jax/_src/pallas/mosaic_gpu/core.py, SwizzleTransform",
    ),
    Rule(
        id="copy.tiling",
        holds=lambda rows, tile_m, tile_row_bytes, swizzle_bytes: (
            rows | (divides(_TILE_ROWS, tile_m) & divides(swizzle_bytes, tile_row_bytes))
        ),
        have="layout=tiled with {tile_m} rows of {tile_row_bytes} bytes",
        need=f"multiples of {_TILE_ROWS} rows and of {{swizzle_bytes}} bytes",
        remedy="change tile_m or tile_n, or lower swizzle_bytes",
        source="jax/_src/pallas/mosaic_gpu/core.py, TilingTransform",
    ),
    Rule(
        id="copy.four_tiles",
        holds=lambda rows, tile_bytes, swizzle_bytes: (
            rows | divides(4 * _TILE_ROWS * swizzle_bytes, tile_bytes)
        ),
        have="layout=tiled with {tile_m} rows of {tile_row_bytes} bytes",
        need=f"a multiple of 4 tiles of {_TILE_ROWS} x {{swizzle_bytes}} bytes, one for each warp",
        remedy="raise tile_m or tile_n, or lower swizzle_bytes",
        source="jax/experimental/mosaic/gpu/fragmented_array.py, tiled_copy_smem_gmem_layout",
    ),
    Rule(
        id="pipeline.steps",
        holds=lambda in_flight: in_flight >= 1,
        have="max_concurrent_steps={max_concurrent_steps} with delay_release={delay_release}",
        need="at least one load in flight",
        remedy="raise max_concurrent_steps",
        source="own kernel: without a load in flight there is nothing to wait for",
    ),
    SMEM_CAPACITY,
    Rule(
        id="grid.blocks_per_sm",
        holds=lambda blocks_per_sm, persistent: (blocks_per_sm >= 1) | (persistent == 0),
        have="blocks_per_sm={blocks_per_sm}",
        need="at least 1",
        remedy="set blocks_per_sm=1",
        source="CUDA: a grid has at least one block",
        noticed="compiled",
    ),
    Rule(
        id="canonical.swizzle_bytes",
        holds=lambda tiled, swizzle_bytes: tiled | (swizzle_bytes == _SWIZZLES_BYTES[0]),
        have="swizzle_bytes={swizzle_bytes} with layout=rows",
        need=f"{_SWIZZLES_BYTES[0]} where nothing is tiled",
        remedy=f"set swizzle_bytes={_SWIZZLES_BYTES[0]}",
        source="rows are not swizzled",
        kind="canonical",
        spelling=lambda: {"swizzle_bytes": _SWIZZLES_BYTES[0]},
    ),
    Rule(
        id="canonical.blocks_per_sm",
        holds=lambda blocks_per_sm, tiles, sm_count, persistent: np.where(
            persistent,
            (blocks_per_sm <= MAX_BLOCKS_PER_SM) & ((blocks_per_sm - 1) * sm_count < tiles),
            blocks_per_sm == 1,
        ),
        have="blocks_per_sm={blocks_per_sm} with grid_schedule={grid_schedule}",
        need=f"at most {MAX_BLOCKS_PER_SM} and no more blocks than tiles; 1 where blocks are not persistent",
        remedy="lower blocks_per_sm",
        source="own kernel: no more blocks than an SM has threads for (CUDA, 2048), and none without a tile",
        kind="canonical",
        spelling=lambda tiles, sm_count, persistent: {
            "blocks_per_sm": np.where(persistent, np.minimum(ceil_div(tiles, sm_count), MAX_BLOCKS_PER_SM), 1)
        },
    ),
    Rule(
        id="canonical.max_concurrent_steps",
        holds=lambda in_flight, block_steps: in_flight <= np.minimum(block_steps, MAX_GROUPS),
        have="max_concurrent_steps={max_concurrent_steps} with delay_release={delay_release}",
        need=f"at most {MAX_GROUPS} loads in flight, and {{block_steps}}, the tiles a block copies",
        remedy="lower max_concurrent_steps",
        source="own kernel: a ring as deep as a wait can tell groups apart (sm_80 SASS, DEPBAR, 6 bits)",
        kind="canonical",
        spelling=lambda block_steps, delay_release, persistent: {
            "max_concurrent_steps": np.minimum(block_steps, MAX_GROUPS) + delay_release * persistent
        },
    ),
    Rule(
        id="canonical.delay_release",
        # A slot has been read when the next step begins: more than one at rest is never filled.
        holds=lambda delay_release, refills: (delay_release == 0) | ((delay_release == 1) & refills),
        have="delay_release={delay_release} with {depth} loads in flight for {block_steps} tiles",
        need="at most 1, and 0 where no slot is filled twice",
        remedy="lower delay_release and max_concurrent_steps alike",
        source="own kernel: stores leave from registers, so a slot rests for one step at most",
        kind="canonical",
        spelling=lambda in_flight, refills: {
            "delay_release": refills * 1,
            "max_concurrent_steps": in_flight + refills * 1,
        },
    ),
    CANONICAL_MINOR_DIM,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Everything the kernel builder needs, derived and in canonical form.

    The kernel moves `dtype`, the unsigned integer as wide as the problem's type; of types narrower
    than a byte, whole bytes. `n` and `tile_n` count those.
    """

    m: int
    n: int
    dtype: str
    tile_m: int
    tile_n: int
    tiled: bool
    swizzle_bytes: int
    grid: int
    grid_m: int
    grid_n: int
    grid_minor_dim: str
    persistent: bool
    steps: int
    depth: int


def plan(problem: CopyProblem, config: TuningConfig, target: Target) -> Plan:
    """The derived quantities of one configuration; configurations of one canonical form share one."""
    columns = FAMILY.config_columns(problem, target, config)
    word = int(columns["word_bits"])
    return Plan(
        m=problem.m,
        n=problem.n * int(columns["bits"]) // word,
        dtype=f"uint{word}",
        tile_m=config.tile_m,
        tile_n=int(columns["tile_words"]),
        tiled=bool(columns["tiled"]),
        swizzle_bytes=config.swizzle_bytes if columns["tiled"] else _SWIZZLES_BYTES[0],
        grid=int(columns["grid"]),
        grid_m=int(columns["grid_m"]),
        grid_n=int(columns["grid_n"]),
        grid_minor_dim="N" if columns["grid_is_line"] else config.grid_minor_dim,
        persistent=bool(columns["persistent"]),
        steps=int(columns["steps"]),
        depth=int(min(columns["depth"], columns["block_steps"])),
    )


def axes(problem: CopyProblem, target: Target) -> tuple[Axis, ...]:
    """Every value a rule could accept; tiles are the divisors of the array's own sizes."""
    bits, limit = DTYPE_BITS[problem.dtype], target.smem_optin_bytes
    return (
        Axis("tile_m", divisors(problem.m, limit * 8 // bits)),
        Axis("tile_n", divisors(problem.n, limit * 8 // bits)),
        Axis("layout", ("rows", "tiled")),
        Axis("swizzle_bytes", _SWIZZLES_BYTES),
        Axis("max_concurrent_steps", tuple(range(1, min(MAX_GROUPS + 1, limit // _LEAST_BYTES) + 1))),
        Axis("grid_schedule", ("persistent", "hardware")),
        Axis("delay_release", (0, 1)),
        Axis("blocks_per_sm", tuple(range(1, MAX_BLOCKS_PER_SM + 1))),
        Axis("grid_minor_dim", ("M", "N")),
        Axis("barriers", load_barriers(target.architecture, 1)),
    )


def supports(problem: CopyProblem, target: Target) -> str:
    """Why `problem` cannot run on `target` at all, or ""."""
    if target.architecture.has_tma:
        return f"copies without barriers, which JAX does before sm_90 only, not on {target.arch}"
    return unmovable(problem)


def default_config(problem: CopyProblem, target: Target) -> TuningConfig:
    """What a careful engineer would write down first: the legal configuration nearest to it."""
    from .space import LegalSpace

    return LegalSpace(FAMILY, problem, target).nearest(TuningConfig()) or TuningConfig()


def _predict_us(
    target: Target,
    problem: CopyProblem,
    tile_bytes: Any,
    transfer_bytes: Any,
    tile_registers: Any,
    smem_bytes: Any,
    smem_limit_bytes: Any,
    depth: Any,
    blocks_per_sm: Any,
    persistent: Any,
    grid_minor_dim: Any,
) -> Any:
    """Microseconds of the ring: bytes in flight against latency, and instructions a byte."""
    clock_hz = target.max_sm_clock_mhz * 1e6
    fitting = np.maximum(smem_limit_bytes // np.maximum(smem_bytes + 1024, 1), 1)
    # A thread holds its part of a tile between shared and global memory, and some addresses.
    registers = np.minimum(tile_registers + 40, MAX_REGISTERS_PER_THREAD)
    fitting = np.minimum(fitting, np.maximum(REGISTERS_PER_SM // (registers * WARPGROUP_THREADS), 1))
    resident = np.minimum(np.where(persistent, blocks_per_sm, MAX_BLOCKS_PER_SM), fitting)
    clock_bytes = target.dram_bytes_per_s * _DRAM_EFFICIENCY / 2 / target.sm_count / clock_hz
    # Little's law: a rate needs that many bytes in flight for the latency of a load; its knee is round.
    wanting = clock_bytes * _LATENCY_CLOCKS / (resident * depth * tile_bytes)
    per_sm_bytes = problem.bytes / 2 / target.sm_count
    memory = per_sm_bytes / clock_bytes * np.sqrt(1.0 + wanting**2)
    memory = memory * np.where(persistent, 1.0, 1.03) * np.where(grid_minor_dim == "M", 1.02, 1.0)
    memory = memory * np.where(tile_registers + 40 > MAX_REGISTERS_PER_THREAD, 2.0, 1.0)
    # A load, a read and a store of one warp each clock; two barriers and a wait for each tile.
    issue = 3 * per_sm_bytes / (32 * transfer_bytes)
    issue = issue + per_sm_bytes / tile_bytes * _CLOCKS_PER_STEP / resident
    return (np.maximum(memory, issue) + _BARE * np.minimum(memory, issue)) / clock_hz * 1e6


_PROBES = (
    CopyProblem(m=1024, n=512, dtype="float32"),
    CopyProblem(m=96, n=1024, dtype="int8"),
    CopyProblem(m=320, n=640, dtype="bfloat16"),
    CopyProblem(m=1, n=65536, dtype="float16"),
    CopyProblem(m=256, n=4064, dtype="int4"),
)

FAMILY = KernelFamily(
    name="copy_cp_async",
    revision=REVISION,
    problem_class=CopyProblem,
    config_class=TuningConfig,
    axes=axes,
    rules=RULES,
    derived=DERIVED,
    default_config=default_config,
    supports=supports,
    predict_us=_predict_us,
    build="tuner.kernels.copy_cp_async:build",
    operands="tuner.kernels.references:copy_operands",
    reference="tuner.kernels.references:copy_reference",
    baseline="tuner.kernels.references:copy_baseline",
    probes=_PROBES,
    reported=("tile_bytes", "smem_bytes", "grid", "block_steps", "transfer_bytes", "tile_registers"),
)

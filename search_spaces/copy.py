"""Copy through a ring of shared memory by TMA (Hopper and newer)."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from . import prior
from .architecture import Target
from .barriers import BARRIER_BYTES, MAX_BARRIERS_PER_GROUP, barriers_per_group
from .family import Axis, KernelFamily, choice
from .prior import MAX_BLOCKS_PER_SM
from .problem import DTYPE_BITS, CopyProblem, unmovable
from .resources import SMEM_CAPACITY, ceil_div, divides, smem_aligned, whole_parts
from .rule import Rule
from .tiles import CANONICAL_MINOR_DIM, RASTER, divisible, divisors, whole_bytes
from .tma import COPY_BYTES, MAX_BOX_ELEMENTS, TMA_ALIGNMENT_BYTES, TMA_DTYPES, box, row_pitch, whole_lines

REVISION = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TuningConfig:
    """What is searched.

    tile_m, tile_n: rows and columns of one copy. max_concurrent_steps: slots of the ring.
    grid_schedule: `persistent` blocks loop over the tiles; with `hardware`, a block copies one
    ring-full of tiles and the hardware hands out the next block.
    delay_release: stores still reading their slot when the next load is issued.
    blocks_per_sm: persistent blocks launched for each SM.
    grid_minor_dim: direction neighbouring tiles follow.
    """

    tile_m: int = 64
    tile_n: int = 64
    max_concurrent_steps: int = 4
    grid_schedule: str = choice("persistent", "hardware", default="persistent")
    delay_release: int = 1
    blocks_per_sm: int = 1
    grid_minor_dim: str = choice("M", "N", default="N")


DERIVED: Mapping[str, Callable[..., Any]] = {
    **RASTER,
    "bits": lambda problem: DTYPE_BITS[problem.dtype],
    "row_bits": lambda n, bits: n * bits,
    "row_pitch_bytes": lambda row_bits: row_bits // 8,
    "tile_row_bits": lambda tile_n, bits: tile_n * bits,
    # Types narrower than a byte are moved as whole bytes.
    "word_bits": lambda bits: np.maximum(bits, 8),
    "tile_words": lambda tile_row_bits, word_bits: ceil_div(tile_row_bits, word_bits),
    "tile_row_bytes": lambda tile_words, word_bits: tile_words * word_bits // 8,
    "tile_bytes": lambda tile_m, tile_row_bytes: tile_m * tile_row_bytes,
    "row_words": lambda row_bits, word_bits: row_bits // word_bits,
    # Whole rows, or part of one, are one run of memory: no box, no tensor map (JAX launch_context.py,
    # is_simple_contiguous_copy).
    "contiguous": lambda tile_m, tile_words, row_words: (tile_words == row_words) | (tile_m == 1),
    "grid_m": lambda m, tile_m: whole_parts(m, tile_m),
    "grid_n": lambda n, tile_n: whole_parts(n, tile_n),
    "persistent": lambda grid_schedule: grid_schedule == "persistent",
    # More than an SM has threads for would only wait.
    "blocks": lambda sm_count, blocks_per_sm: sm_count * np.minimum(blocks_per_sm, MAX_BLOCKS_PER_SM),
    "grid": lambda tiles, blocks, persistent, max_concurrent_steps: np.where(
        persistent,
        np.minimum(tiles, blocks),
        ceil_div(tiles, max_concurrent_steps),
    ),
    "block_steps": lambda tiles, grid, persistent, max_concurrent_steps: np.where(
        persistent, ceil_div(tiles, grid), np.minimum(max_concurrent_steps, tiles)
    ),
    "steps": lambda max_concurrent_steps, block_steps: np.minimum(max_concurrent_steps, block_steps),
    "smem_bytes": lambda steps, tile_bytes: smem_aligned(steps * tile_bytes) + BARRIER_BYTES * steps,
}

RULES: tuple[Rule, ...] = (
    row_pitch(
        "copy.row_pitch",
        lambda row_bits: row_bits % (8 * TMA_ALIGNMENT_BYTES) == 0,
        "rows of n={n} x {bits} bits, {row_pitch_bytes} bytes apart",
        "make n a multiple of 16 bytes",
        # By tile_n, which divides n and is a multiple of 16 bytes.
        decides_on=(),
    ),
    divisible(
        "copy.m_divisible",
        lambda m, tile_m: divides(tile_m, m),
        "tile_m={tile_m}",
        "choose a tile_m that divides m",
    ),
    divisible(
        "copy.n_divisible",
        lambda n, tile_n: divides(tile_n, n),
        "tile_n={tile_n}",
        "choose a tile_n that divides n",
    ),
    whole_bytes(lambda tile_row_bits: tile_row_bits % 8 == 0),
    whole_lines(
        "copy.bytes",
        lambda tile_bytes: (tile_bytes > 0) & (tile_bytes % COPY_BYTES == 0),
        "a copy of {tile_m} x {tile_n} x {bits} bits = {tile_bytes} bytes",
        "make tile_m * tile_n * itemsize a multiple of 128",
    ),
    Rule(
        id="copy.inner_bytes",
        holds=lambda tile_row_bytes: tile_row_bytes % TMA_ALIGNMENT_BYTES == 0,
        have="tile rows of {tile_row_bytes} bytes",
        need=f"a multiple of {TMA_ALIGNMENT_BYTES} bytes",
        remedy="make tile_n a multiple of 16 bytes",
        source="jax/experimental/mosaic/gpu/launch_context.py, 128 bits along the last dimension",
    ),
    box(
        "copy.box",
        lambda tile_m, tile_words, contiguous: (
            ((tile_m <= MAX_BOX_ELEMENTS) & (tile_words <= MAX_BOX_ELEMENTS)) | (contiguous > 0)
        ),
        "a tile of {tile_m} x {tile_n}",
        "use tiles of at most 256 x 256, whole rows (tile_n = n), or part of one row (tile_m = 1)",
    ),
    Rule(
        id="pipeline.steps",
        holds=lambda max_concurrent_steps, delay_release: max_concurrent_steps > delay_release,
        have="max_concurrent_steps={max_concurrent_steps} with delay_release={delay_release}",
        need="more slots than stores held back",
        remedy="raise max_concurrent_steps",
        source="a refill as far back as the ring is long hangs (measured on an H200)",
        noticed="never",
    ),
    barriers_per_group(lambda steps: steps <= MAX_BARRIERS_PER_GROUP),
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
        holds=lambda max_concurrent_steps, block_steps: max_concurrent_steps <= block_steps,
        have="max_concurrent_steps={max_concurrent_steps}",
        need="at most {block_steps}, the tiles a block copies",
        remedy="set max_concurrent_steps={block_steps}",
        source="the ring holds no more slots than tiles",
        kind="canonical",
        spelling=lambda block_steps: {"max_concurrent_steps": block_steps, "delay_release": 0},
    ),
    Rule(
        id="canonical.delay_release",
        # With every tile in its own slot nothing is refilled, and nothing held back.
        holds=lambda delay_release, max_concurrent_steps, block_steps: (
            (delay_release == 0) | (max_concurrent_steps < block_steps)
        ),
        have="delay_release={delay_release} with a slot for each of {block_steps} tiles",
        need="0 where no slot is filled twice",
        remedy="set delay_release=0",
        source="nothing waits for a release",
        kind="canonical",
        spelling=lambda: {"delay_release": 0},
    ),
    CANONICAL_MINOR_DIM,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """Everything the kernel builder needs, derived and in canonical form.

    The kernel moves `dtype`: the problem's, or the unsigned integer of its width where TMA has no such
    type, whole bytes of narrower ones. `n` and `tile_n` count those.
    """

    m: int
    n: int
    dtype: str
    tile_m: int
    tile_n: int
    grid: int
    grid_m: int
    grid_n: int
    grid_minor_dim: str
    persistent: bool
    steps: int
    delay_release: int
    contiguous: bool


def plan(problem: CopyProblem, config: TuningConfig, target: Target) -> Plan:
    """The derived quantities of one configuration; configurations of one canonical form share one."""
    columns = FAMILY.config_columns(problem, target, config)
    refills = columns["block_steps"] > config.max_concurrent_steps
    return Plan(
        m=problem.m,
        n=int(columns["row_words"]),
        dtype=problem.dtype if problem.dtype in TMA_DTYPES else f"uint{columns['word_bits']}",
        tile_m=config.tile_m,
        tile_n=int(columns["tile_words"]),
        grid=int(columns["grid"]),
        grid_m=int(columns["grid_m"]),
        grid_n=int(columns["grid_n"]),
        grid_minor_dim="N" if columns["grid_is_line"] else config.grid_minor_dim,
        persistent=bool(columns["persistent"]),
        steps=int(columns["steps"]),
        delay_release=config.delay_release if refills else 0,
        contiguous=bool(columns["contiguous"]),
    )


def axes(problem: CopyProblem, target: Target) -> tuple[Axis, ...]:
    """Every value a rule could accept; tiles are the divisors of the array's own sizes."""
    limit = target.smem_optin_bytes
    steps = tuple(range(1, min(MAX_BARRIERS_PER_GROUP, limit // COPY_BYTES) + 1))
    return (
        Axis("tile_m", divisors(problem.m, limit // TMA_ALIGNMENT_BYTES)),
        Axis("tile_n", divisors(problem.n, limit * 8 // DTYPE_BITS[problem.dtype])),
        Axis("max_concurrent_steps", steps),
        Axis("grid_schedule", ("persistent", "hardware")),
        Axis("delay_release", (0, *steps[:-1])),
        Axis("blocks_per_sm", tuple(range(1, MAX_BLOCKS_PER_SM + 1))),
        Axis("grid_minor_dim", ("M", "N")),
    )


def supports(problem: CopyProblem, target: Target) -> str:
    """Why `problem` cannot run on `target` at all, or ""."""
    if not target.architecture.has_tma:
        return f"needs TMA, which starts at sm_90, not {target.arch}"
    return unmovable(problem)


def default_config(problem: CopyProblem, target: Target) -> TuningConfig:
    """What a careful engineer would write down first: the legal configuration nearest to it."""
    from .space import LegalSpace

    return LegalSpace(FAMILY, problem, target).nearest(TuningConfig()) or TuningConfig()


_PROBES = (
    CopyProblem(m=1028, n=512, dtype="float32"),
    CopyProblem(m=96, n=1008, dtype="int8"),
    CopyProblem(m=320, n=600, dtype="bfloat16"),
    CopyProblem(m=1, n=4096, dtype="float16"),
    CopyProblem(m=256, n=992, dtype="int4"),
    CopyProblem(m=256, n=1001, dtype="int8"),
)

FAMILY = KernelFamily(
    name="copy_tma",
    revision=REVISION,
    problem_class=CopyProblem,
    config_class=TuningConfig,
    axes=axes,
    rules=RULES,
    derived=DERIVED,
    default_config=default_config,
    supports=supports,
    predict_us=prior.copy_us,
    build="tuner.kernels.copy:build",
    operands="tuner.kernels.references:copy_operands",
    reference="tuner.kernels.references:copy_reference",
    baseline="tuner.kernels.references:copy_baseline",
    probes=_PROBES,
    reported=("tile_bytes", "smem_bytes", "grid", "block_steps", "contiguous"),
)

"""Expected time from roofline, waves and pipeline depth: it orders configurations, never forbids.

Both models take columns by name (arrays or scalars) and give microseconds. They are first priors:
only the order they give matters, and measured records always come before them.
"""

from typing import Any

import numpy as np

from .architecture import WARPGROUP_THREADS, Target

# Measured on an H200: matmuls sustain 0.77 of the peak at the maximum clock (power), DRAM 4.3 of 4.8 TB/s.
_SUSTAINED_CLOCK = 0.8
_DRAM_EFFICIENCY = 0.89
# Shared memory delivers 128 bytes a clock and SM (CUDA C++ Programming Guide, bank width x banks).
_SMEM_BYTES_PER_CLOCK = 128
# Measured on an H200: L2 to one SM, all SMs reading.
_L2_BYTES_PER_CLOCK = 40
# Latency of a TMA load from DRAM, and what one block leaves uncovered between tiles.
_LOAD_LATENCY_CLOCKS = 550
_TILE_OVERHEAD_CLOCKS = 600
# CUDA: 2048 threads an SM; a copy's block is one warpgroup.
MAX_BLOCKS_PER_SM = 2048 // WARPGROUP_THREADS
# Measured on an H200: what one copy, one step of a block, one row of a box and one block cost an SM.
_CLOCKS_PER_COPY = 140
_CLOCKS_PER_STEP = 320
_CLOCKS_PER_ROW = 10
_CLOCKS_PER_BLOCK = 300
# ptxas spills above this many accumulators a thread (232 registers), and then serialises WGMMA (C7511).
_SPILL_REGISTERS = 192
_SPILL_FACTOR = 4.0


def matmul_us(
    target: Target,
    problem: Any,
    tile_m: Any,
    tile_n: Any,
    tile_k: Any,
    cta_tile_m: Any,
    cta_tile_n: Any,
    cluster_m: Any,
    cluster_n: Any,
    cluster_size: Any,
    wg_dimension: Any,
    waves: Any,
    k_steps: Any,
    steps: Any,
    grid: Any,
    grid_m: Any,
    grid_n: Any,
    grid_minor_dim: Any,
    grid_tile_width: Any,
    delay_release: Any,
    swizzle_bytes: Any,
    epi_tiles: Any,
    epi_tile_n: Any,
    accumulator_registers: Any,
    itemsize: Any,
    out_itemsize: Any,
) -> Any:
    """Microseconds of a persistent warp-specialised matmul: the slowest of tensor core, shared
    memory, L2 and DRAM for each stage, times stages and waves, plus what epilogues leave bare.
    """
    clock_hz = target.max_sm_clock_mhz * 1e6 * _SUSTAINED_CLOCK
    # Tensor cores take bytes: 8-bit types twice as fast as 16-bit ones, float32 (tf32) at half their rate.
    rate = target.flops_per_clock_per_sm * 2 / itemsize
    math = 2.0 * cta_tile_m * cta_tile_n * tile_k / rate
    # Each WGMMA of 64 rows reads its 64 x 16 of lhs and all of rhs from shared memory.
    smem_bytes = 2 * (tile_m / 64) * (64 + tile_n) * tile_k * itemsize
    smem = smem_bytes / _SMEM_BYTES_PER_CLOCK * np.where(swizzle_bytes >= 128, 1.0, 128 / swizzle_bytes)
    stage_bytes = (cta_tile_m / cluster_n + cta_tile_n / cluster_m) * tile_k * itemsize
    l2 = stage_bytes / _L2_BYTES_PER_CLOCK
    # A wave of `grid` clusters covers a band of the raster: its distinct rows and columns come from DRAM.
    clusters = np.minimum(grid, grid_m * grid_n)
    width = np.minimum(grid_tile_width, np.where(grid_minor_dim == "M", grid_m, grid_n))
    length = np.maximum(clusters / width, 1.0)
    across_m = np.where(grid_minor_dim == "M", width, length) * cta_tile_m * cluster_m
    across_n = np.where(grid_minor_dim == "M", length, width) * cta_tile_n * cluster_n
    dram_bytes = (np.minimum(across_m, problem.m) + np.minimum(across_n, problem.n)) * tile_k * itemsize
    dram = dram_bytes / (target.dram_bytes_per_s * _DRAM_EFFICIENCY) * clock_hz
    stage = np.maximum(np.maximum(math, smem), np.maximum(l2, dram))
    # A slot is refilled once its data has been used: the ring must cover a load's latency and that use.
    stage = np.maximum(stage, (_LOAD_LATENCY_CLOCKS + stage) / np.maximum(steps - delay_release, 0.5))
    stage = stage + 30.0 + np.where(delay_release == 0, 20.0, 0.0) + 60.0 / np.maximum(steps, 1)
    spilling = _SPILL_FACTOR * accumulator_registers / _SPILL_REGISTERS
    stage = stage * np.where(accumulator_registers > _SPILL_REGISTERS, spilling, 1.0)
    out_bytes = cta_tile_m * cta_tile_n * out_itemsize
    epilogue = _TILE_OVERHEAD_CLOCKS + out_bytes / _SMEM_BYTES_PER_CLOCK * 2 + 20.0 * epi_tiles
    prefetched = np.minimum(steps * stage, epilogue) * 0.5
    return waves * (k_steps * stage + epilogue - prefetched) / clock_hz * 1e6


def copy_us(
    target: Target,
    problem: Any,
    tile_bytes: Any,
    tile_row_bytes: Any,
    contiguous: Any,
    smem_bytes: Any,
    smem_limit_bytes: Any,
    steps: Any,
    delay_release: Any,
    blocks_per_sm: Any,
    persistent: Any,
    grid_minor_dim: Any,
) -> Any:
    """Microseconds of a copy ring: bytes in flight against latency, rows a second, and what blocks cost."""
    clock_hz = target.max_sm_clock_mhz * 1e6
    fitting = np.maximum(smem_limit_bytes // np.maximum(smem_bytes + 1024, 1), 1)
    resident = np.minimum(np.where(persistent, blocks_per_sm, MAX_BLOCKS_PER_SM), fitting)
    in_flight = resident * np.maximum(steps - delay_release, 0.5) * tile_bytes
    per_sm = target.dram_bytes_per_s * _DRAM_EFFICIENCY / 2 / target.sm_count
    # Little's law: a read rate needs that many bytes in flight for the latency of a load and a store.
    latency_s = 4 * _LOAD_LATENCY_CLOCKS / clock_hz
    rate = per_sm * np.minimum(1.0, in_flight / (per_sm * latency_s))
    # Measured on an H200: DRAM likes few bytes in flight over a compact run of tiles.
    rate = rate / (1.0 + 0.01 * np.log2(np.maximum(in_flight / (per_sm * latency_s), 1.0)))
    rate = rate * np.where(persistent, 0.96, 1.0) * np.where(grid_minor_dim == "M", 0.98, 1.0)
    per_sm_bytes = problem.bytes / 2 / target.sm_count
    # A tensor map moves a tile row by row; whole rows go as one run.
    copies = per_sm_bytes / tile_bytes
    clocks = copies * np.maximum(_CLOCKS_PER_COPY, _CLOCKS_PER_STEP / resident)
    clocks = clocks + np.where(contiguous > 0, 0.0, per_sm_bytes / tile_row_bytes * _CLOCKS_PER_ROW)
    blocks = np.where(persistent, 0.0, per_sm_bytes / (tile_bytes * steps) / resident * _CLOCKS_PER_BLOCK)
    return (np.maximum(per_sm_bytes / rate, clocks / clock_hz) + blocks / clock_hz) * 1e6

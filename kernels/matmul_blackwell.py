"""Persistent, warp-specialised matmul for Blackwell: TMA in, tcgen05.mma into tensor memory, TMA out.

One warpgroup feeds the tensor core: a warp of it loads a ring of shared-memory slots that never drains
between output tiles, another issues the multiplications. The other warpgroup stores one accumulator
while the next is computed. With `collective`, two blocks of a cluster multiply together.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from tuner.search_spaces import matmul_blackwell as space
from tuner.search_spaces.architecture import Target
from tuner.search_spaces.problem import MatmulProblem

_FEED_WARPGROUP, _STORE_WARPGROUP = 0, 1
_LOAD_WARP, _MMA_WARP = 0, 1


def build(problem: MatmulProblem, config: space.TuningConfig, target: Target) -> Callable[..., jax.Array]:
    """The kernel as a function `(lhs (m, k), rhs (k, n) or (n, k)) -> out (m, n)`.

    Values the rules call illegal are not checked here: what they do is what JAX does with them.
    """
    return from_plan(space.plan(problem, config, target))


def from_plan(plan: space.Plan) -> Callable[..., jax.Array]:
    """The kernel of a plan; tests plant faults in one to see them caught."""
    problem = plan.problem
    kernel: Callable[..., jax.Array] = plgpu.kernel(
        functools.partial(_body, plan=plan),
        out_type=jax.ShapeDtypeStruct((problem.m, problem.n), jnp.dtype(problem.out_dtype)),
        scratch_types=_scratch(plan),
        grid=(plan.grid,),
        grid_names=("clusters",),
        cluster=(plan.cluster_size,),
        cluster_names=("cluster",),
        num_threads=2,
        thread_name="wg",
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )
    return kernel


def _transforms(swizzle_bytes: int, dtype: Any) -> tuple[Any, ...]:
    elements = swizzle_bytes // jnp.dtype(dtype).itemsize
    tiling = plgpu.TilingTransform((8, elements))  # type: ignore[abstract]
    return tiling, plgpu.SwizzleTransform(swizzle_bytes)  # type: ignore[abstract]


def _scratch(plan: space.Plan) -> dict[str, Any]:
    p, c, steps = plan.problem, plan.config, plan.steps
    rhs_block = (c.tile_k, c.tile_n) if p.rhs == "kn" else (c.tile_n, c.tile_k)
    loads, arrivals = (2, 1) if c.barriers == "per_operand" else (1, 2)
    # The tensor core tells when an accumulator is complete; the blocks that it belongs to, when it is stored.
    computed = plgpu.Barrier(num_arrivals=1, num_barriers=plan.acc_slots, orders_tensor_core=True)
    stored = (
        plgpu.ClusterBarrier(
            collective_axes=("cluster",), num_barriers=plan.acc_slots, orders_tensor_core=True
        )
        if c.collective
        else computed
    )
    return {
        "lhs_smem": plgpu.SMEM(
            (steps, c.tile_m, c.tile_k),
            jnp.dtype(p.dtype),
            transforms=_transforms(plan.lhs_swizzle_bytes, p.dtype),
        ),
        "rhs_smem": plgpu.SMEM(
            (steps, *rhs_block),
            jnp.dtype(p.rhs_dtype),
            transforms=_transforms(plan.rhs_swizzle_bytes, p.rhs_dtype),
        ),
        "out_smem": plgpu.SMEM(
            (plan.epi_slots, c.tile_m, c.epi_tile_n),
            jnp.dtype(p.out_dtype),
            transforms=_transforms(plan.epi_swizzle_bytes, p.out_dtype),
        ),
        "accumulators": [
            plgpu.TMEM((c.tile_m, plan.acc_tile_n), jnp.dtype(p.acc_dtype), collective=bool(c.collective))
            for _ in range(plan.acc_slots)
        ],
        "loaded": [plgpu.Barrier(num_arrivals=arrivals, num_barriers=steps) for _ in range(loads)],
        "released": plgpu.Barrier(num_arrivals=1, num_barriers=steps, orders_tensor_core=True),
        "computed": computed,
        "stored": stored,
    }


def _body(
    lhs_gmem: Any,
    rhs_gmem: Any,
    out_gmem: Any,
    *,
    lhs_smem: Any,
    rhs_smem: Any,
    out_smem: Any,
    accumulators: Any,
    loaded: Any,
    released: Any,
    computed: Any,
    stored: Any,
    plan: space.Plan,
) -> None:
    warpgroup = lax.axis_index("wg")

    @pl.when(warpgroup == _FEED_WARPGROUP)
    def _feed() -> None:
        @plgpu.warp_map
        def _warps(warp: jax.Array) -> None:
            @pl.when(warp == _LOAD_WARP)
            def _load() -> None:
                _load_tiles(lhs_gmem, rhs_gmem, lhs_smem, rhs_smem, loaded, released, plan)

            # The first block of a cluster multiplies for both.
            @pl.when((warp == _MMA_WARP) & (lax.axis_index("cluster") == 0))
            def _multiply() -> None:
                _multiply_tiles(lhs_smem, rhs_smem, accumulators, loaded, released, computed, stored, plan)

    @pl.when(warpgroup == _STORE_WARPGROUP)
    def _store() -> None:
        _store_tiles(accumulators, out_smem, out_gmem, computed, stored, plan)


def _tile_indices(plan: space.Plan, linear: jax.Array) -> tuple[Any, Any]:
    """Row and column of the output tile that a cluster computes at a linear position of the raster."""
    minor = 0 if plan.grid_minor_dim == "M" else 1
    m_index, n_index = plgpu.planar_snake(linear, (plan.grid_m, plan.grid_n), minor, plan.grid_tile_width)
    return m_index, n_index


def _load_tiles(
    lhs_gmem: Any, rhs_gmem: Any, lhs_smem: Any, rhs_smem: Any, loaded: Any, released: Any, plan: space.Plan
) -> None:
    c = plan.config
    rows_of_cluster = c.tile_m * plan.cluster_size
    # Every stage starts out released, so that each step waits alike.
    for slot in range(plan.steps):
        plgpu.barrier_arrive(released.at[slot])

    def load(source: Any, slot_smem: Any, barrier: Any, split: int) -> None:
        # Each block of a cluster loads its half, and the first one's barrier tells of both.
        plgpu.copy_gmem_to_smem(
            source,
            slot_smem,
            barrier,
            collective_axes="cluster" if c.collective else None,
            leader_tracked=plgpu.CopyPartition.PARTITIONED(split) if c.collective else None,
        )

    @plgpu.nd_loop((plan.tiles,), collective_axes="clusters")
    def _tile(loop: plgpu.NDLoopInfo) -> None:
        m_index, n_index = _tile_indices(plan, loop.index[0])
        rows = pl.ds(m_index * rows_of_cluster, rows_of_cluster)
        columns = pl.ds(n_index * plan.acc_tile_n, plan.acc_tile_n)

        def step(k_index: jax.Array, _: None) -> None:
            slot = lax.rem(loop.local_index * plan.k_steps + k_index, jnp.int32(plan.steps))
            depth = pl.ds(k_index * c.tile_k, c.tile_k)
            plgpu.barrier_wait(released.at[slot])
            load(lhs_gmem.at[rows, depth], lhs_smem.at[slot], loaded[0].at[slot], 0)
            if plan.problem.rhs == "kn":
                load(rhs_gmem.at[depth, columns], rhs_smem.at[slot], loaded[-1].at[slot], 1)
            else:
                load(rhs_gmem.at[columns, depth], rhs_smem.at[slot], loaded[-1].at[slot], 0)

        lax.fori_loop(0, plan.k_steps, step, None)

    for slot in range(plan.steps):
        plgpu.barrier_wait(released.at[slot])


def _each_accumulator(plan: space.Plan, tile: Any, use: Callable[[int], None]) -> None:
    """Calls `use` with the slot of a block's `tile`-th accumulator, a Python number in each branch."""
    for slot in range(plan.acc_slots):
        pl.when(lax.rem(tile, jnp.int32(plan.acc_slots)) == slot)(functools.partial(use, slot))


def _multiply_tiles(
    lhs_smem: Any,
    rhs_smem: Any,
    accumulators: Any,
    loaded: Any,
    released: Any,
    computed: Any,
    stored: Any,
    plan: space.Plan,
) -> None:
    axis = "cluster" if plan.config.collective else None

    @plgpu.nd_loop((plan.tiles,), collective_axes="clusters")
    def _tile(loop: plgpu.NDLoopInfo) -> None:
        tile = loop.local_index

        def accumulate(acc_slot: int) -> None:
            plgpu.barrier_wait(stored.at[acc_slot])

            def step(k_index: jax.Array, _: None) -> None:
                slot = lax.rem(tile * plan.k_steps + k_index, jnp.int32(plan.steps))
                for barrier in loaded:
                    plgpu.barrier_wait(barrier.at[slot])
                rhs = rhs_smem.at[slot]
                plgpu.tcgen05_mma(
                    accumulators[acc_slot],
                    lhs_smem.at[slot],
                    rhs if plan.problem.rhs == "kn" else rhs.transpose((1, 0)),
                    released.at[slot],
                    accumulate=k_index > 0,
                    collective_axis=axis,
                )

            lax.fori_loop(0, plan.k_steps, step, None)
            plgpu.tcgen05_commit_arrive(computed.at[acc_slot], collective_axis=axis)

        _each_accumulator(plan, tile, accumulate)

    for slot in range(plan.acc_slots):
        plgpu.barrier_wait(stored.at[slot])


def _store_tiles(
    accumulators: Any, out_smem: Any, out_gmem: Any, computed: Any, stored: Any, plan: space.Plan
) -> None:
    c = plan.config
    # Every accumulator starts out stored.
    for slot in range(plan.acc_slots):
        plgpu.barrier_arrive(stored.at[slot])

    @plgpu.nd_loop((plan.tiles,), collective_axes="clusters")
    def _tile(loop: plgpu.NDLoopInfo) -> None:
        m_index, n_index = _tile_indices(plan, loop.index[0])
        own_row = m_index * plan.cluster_size + lax.axis_index("cluster")
        own_tile = out_gmem.at[
            pl.ds(own_row * c.tile_m, c.tile_m), pl.ds(n_index * plan.acc_tile_n, plan.acc_tile_n)
        ]

        def store(acc_slot: int) -> None:
            plgpu.barrier_wait(computed.at[acc_slot])
            _store_tile(accumulators[acc_slot], stored.at[acc_slot], out_smem, own_tile, plan)

        _each_accumulator(plan, loop.local_index, store)

    plgpu.wait_smem_to_gmem(0)


def _store_tile(accumulator: Any, stored: Any, out_smem: Any, out_tile: Any, plan: space.Plan) -> None:
    """Tensor memory -> registers -> shared -> global memory, one epilogue tile at a time."""
    width = plan.config.epi_tile_n
    whole = None
    # JAX slices an accumulator of 64 rows in registers only, and only one of a single block.
    if plan.config.tile_m == 64:
        whole = plgpu.async_load_tmem(
            accumulator, layout=None if plan.config.collective else plgpu.Layout.WGMMA
        )
    for index in range(plan.epi_tiles):
        columns = slice(index * width, (index + 1) * width)
        part = plgpu.async_load_tmem(accumulator.at[:, columns]) if whole is None else whole[:, columns]
        if index == plan.epi_tiles - 1:
            # What is in registers leaves its place to the next tile but one.
            plgpu.wait_load_tmem()
            plgpu.barrier_arrive(stored)
        slot = index % plan.epi_slots
        # The first slot of a tile may be the last one the tile before it filled.
        plgpu.wait_smem_to_gmem(plan.epi_slots - 1 if index else 0, wait_read_only=True)
        out_smem[slot] = part.astype(out_smem.dtype)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(out_smem.at[slot], out_tile.at[:, columns])

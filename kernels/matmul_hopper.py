"""Persistent, warp-specialised matmul for Hopper: TMA in, WGMMA, TMA out.

One memory warpgroup runs ahead of two compute warpgroups through a ring of shared-memory slots that
never drains between output tiles, so the loads of the next tile overlap the epilogue of this one.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from tuner.search_spaces import matmul_hopper as space
from tuner.search_spaces.architecture import Target
from tuner.search_spaces.problem import MatmulProblem

# Registers a thread of the memory warpgroup keeps; JAX's advice for H100 (emit_pipeline_warp_specialized).
_MEMORY_REGISTERS = 40
_COMPUTE_REGISTERS = 232


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
        num_threads=space.COMPUTE_WARPGROUPS + 1,
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
    load = _transforms(plan.swizzle_bytes, p.dtype)
    rhs_block = (c.tile_k, plan.cta_tile_n) if p.rhs == "kn" else (plan.cta_tile_n, c.tile_k)
    slots = (space.COMPUTE_WARPGROUPS, plan.epi_slots, c.epi_tile_m, c.epi_tile_n)
    per_operand = c.barriers == "per_operand"
    loaded = [plgpu.Barrier(num_arrivals=1 if per_operand else 2, num_barriers=steps)]
    loaded += [plgpu.Barrier(num_arrivals=1, num_barriers=steps)] if per_operand else []
    arrivals = space.COMPUTE_WARPGROUPS
    released = (
        plgpu.Barrier(num_arrivals=arrivals, num_barriers=steps)
        if c.cluster_dimension is None
        else plgpu.ClusterBarrier(collective_axes=("cluster",), num_arrivals=arrivals, num_barriers=steps)
    )
    return {
        "lhs_smem": plgpu.SMEM((steps, plan.cta_tile_m, c.tile_k), p.dtype, transforms=load),
        "rhs_smem": plgpu.SMEM((steps, *rhs_block), p.rhs_dtype, transforms=load),
        "out_smem": plgpu.SMEM(
            slots, p.out_dtype, transforms=_transforms(plan.epi_swizzle_bytes, p.out_dtype)
        ),
        "loaded": loaded,
        "released": released,
    }


def _body(
    lhs_gmem: Any,
    rhs_gmem: Any,
    out_gmem: Any,
    *,
    lhs_smem: Any,
    rhs_smem: Any,
    out_smem: Any,
    loaded: Any,
    released: Any,
    plan: space.Plan,
) -> None:
    warpgroup = lax.axis_index("wg")

    @pl.when(warpgroup == space.COMPUTE_WARPGROUPS)
    def _memory() -> None:
        plgpu.set_max_registers(_MEMORY_REGISTERS, action="decrease")
        _load_tiles(lhs_gmem, rhs_gmem, lhs_smem, rhs_smem, loaded, released, plan)

    @pl.when(warpgroup < space.COMPUTE_WARPGROUPS)
    def _compute() -> None:
        plgpu.set_max_registers(_COMPUTE_REGISTERS, action="increase")
        # Every slot starts out released, so that the memory warpgroup waits alike at each step.
        for slot in range(plan.steps):
            plgpu.barrier_arrive(released.at[slot])
        _multiply_tiles(warpgroup, lhs_smem, rhs_smem, out_smem, out_gmem, loaded, released, plan)


def _tile_slices(plan: space.Plan, linear: jax.Array) -> tuple[Any, Any]:
    """Rows and columns of the output tile this block computes at a linear position of the raster."""
    minor = 0 if plan.grid_minor_dim == "M" else 1
    m_index, n_index = plgpu.planar_snake(linear, (plan.grid_m, plan.grid_n), minor, plan.grid_tile_width)
    if plan.config.cluster_dimension == "M":
        m_index = m_index * 2 + lax.axis_index("cluster")
    elif plan.config.cluster_dimension == "N":
        n_index = n_index * 2 + lax.axis_index("cluster")
    return (
        pl.ds(m_index * plan.cta_tile_m, plan.cta_tile_m),
        pl.ds(n_index * plan.cta_tile_n, plan.cta_tile_n),
    )


def _load_tiles(
    lhs_gmem: Any, rhs_gmem: Any, lhs_smem: Any, rhs_smem: Any, loaded: Any, released: Any, plan: space.Plan
) -> None:
    cluster = plan.config.cluster_dimension
    tile_k = plan.config.tile_k

    @plgpu.nd_loop((plan.tiles,), collective_axes="clusters")
    def _tile(loop: plgpu.NDLoopInfo) -> None:
        rows, columns = _tile_slices(plan, loop.index[0])

        def load(k_index: jax.Array, _: None) -> None:
            slot = lax.rem(loop.local_index * plan.k_steps + k_index, jnp.int32(plan.steps))
            depth = pl.ds(k_index * tile_k, tile_k)
            plgpu.barrier_wait(released.at[slot])
            plgpu.copy_gmem_to_smem(
                lhs_gmem.at[rows, depth],
                lhs_smem.at[slot],
                loaded[0].at[slot],
                collective_axes="cluster" if cluster == "N" else None,
            )
            plgpu.copy_gmem_to_smem(
                rhs_gmem.at[depth, columns] if plan.problem.rhs == "kn" else rhs_gmem.at[columns, depth],
                rhs_smem.at[slot],
                loaded[-1].at[slot],
                collective_axes="cluster" if cluster == "M" else None,
            )

        lax.fori_loop(0, plan.k_steps, load, None)

    # A block may not exit while its neighbour can still arrive on its barriers.
    for slot in range(plan.steps):
        plgpu.barrier_wait(released.at[slot])


def _multiply_tiles(
    warpgroup: jax.Array,
    lhs_smem: Any,
    rhs_smem: Any,
    out_smem: Any,
    out_gmem: Any,
    loaded: Any,
    released: Any,
    plan: space.Plan,
) -> None:
    c = plan.config
    along_m = c.wg_dimension == "M"
    own_rows = pl.ds(warpgroup * c.tile_m, c.tile_m) if along_m else pl.ds(0, c.tile_m)
    own_columns = pl.ds(0, c.tile_n) if along_m else pl.ds(warpgroup * c.tile_n, c.tile_n)

    @plgpu.nd_loop((plan.tiles,), collective_axes="clusters")
    def _tile(loop: plgpu.NDLoopInfo) -> None:
        rows, columns = _tile_slices(plan, loop.index[0])
        first = loop.local_index * plan.k_steps

        def slot_of(k_index: Any) -> jax.Array:
            return lax.rem(first + k_index, jnp.int32(plan.steps))

        @functools.partial(
            pl.run_scoped, acc_ref=plgpu.ACC((c.tile_m, c.tile_n), jnp.dtype(plan.problem.acc_dtype))
        )
        def _accumulate(acc_ref: Any) -> None:
            def multiply(k_index: Any, *, release: Any) -> None:
                slot = slot_of(k_index)
                for barrier in loaded:
                    plgpu.barrier_wait(barrier.at[slot])
                if plan.problem.rhs == "kn":
                    rhs = rhs_smem.at[slot, :, own_columns]
                else:
                    rhs = rhs_smem.at[slot, own_columns, :].transpose((1, 0))
                plgpu.wgmma(acc_ref, lhs_smem.at[slot, own_rows, :], rhs)
                plgpu.wgmma_wait(c.delay_release)
                if release is not None:
                    plgpu.barrier_arrive(released.at[slot_of(release)])

            if c.delay_release:
                multiply(0, release=None)
                lax.fori_loop(1, plan.k_steps, lambda k, _: multiply(k, release=k - 1), None)
                plgpu.wgmma_wait(0)
                plgpu.barrier_arrive(released.at[slot_of(plan.k_steps - 1)])
            else:
                lax.fori_loop(0, plan.k_steps, lambda k, _: multiply(k, release=k), None)
            own_tile = out_gmem.at[rows, columns].at[own_rows, own_columns]
            _store_tile(acc_ref[...].astype(out_gmem.dtype), out_smem.at[warpgroup], own_tile, plan)

    plgpu.wait_smem_to_gmem(0)


def _store_tile(acc: Any, out_smem: Any, out_tile: Any, plan: space.Plan) -> None:
    """Registers -> shared memory -> global memory, one epilogue tile at a time through its slots."""
    c = plan.config
    for index in range(plan.epi_tiles):
        row, column = divmod(index, plan.epi_columns)
        rows = slice(row * c.epi_tile_m, (row + 1) * c.epi_tile_m)
        columns = slice(column * c.epi_tile_n, (column + 1) * c.epi_tile_n)
        slot = index % plan.epi_slots
        # The first slot of a tile may be the last one the tile before it filled.
        plgpu.wait_smem_to_gmem(plan.epi_slots - 1 if index else 0, wait_read_only=True)
        out_smem[slot] = acc[rows, columns]
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(out_smem.at[slot], out_tile.at[rows, columns])

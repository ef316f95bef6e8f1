"""Matmul by warp-level `mma.sync`, for the architectures that have neither WGMMA nor tensor memory.

A block computes one output tile: one or two warpgroups, the accumulator in registers, the operands
through a ring in shared memory. cp.async fills it before Hopper, TMA after.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from tuner.search_spaces import matmul_mma as space
from tuner.search_spaces.architecture import Target
from tuner.search_spaces.problem import MatmulProblem


def build(problem: MatmulProblem, config: space.TuningConfig, target: Target) -> Callable[..., jax.Array]:
    """The kernel as a function `(lhs (m, k), rhs (k, n) or (n, k)) -> out (m, n)`.

    Values the rules call illegal are not checked here: what they do is what JAX does with them.
    """
    plan = space.plan(problem, config, target)
    kernel: Callable[..., jax.Array] = plgpu.kernel(
        functools.partial(_body, plan=plan),
        out_type=jax.ShapeDtypeStruct((problem.m, problem.n), jnp.dtype(problem.out_dtype)),
        scratch_types=_scratch(plan),
        grid=(plan.tiles,),
        grid_names=("tiles",),
        num_threads=plan.warpgroups,
        thread_name="wg",
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )
    return kernel


def _tiled(shape: tuple[int, ...], dtype: str, swizzle_bytes: int) -> Any:
    """Shared memory in tiles of 8 rows and `swizzle_bytes` columns; 16 bytes have nothing to swizzle."""
    columns = swizzle_bytes // jnp.dtype(dtype).itemsize
    transforms: list[Any] = [plgpu.TilingTransform((8, columns))]  # type: ignore[abstract]
    if swizzle_bytes > space.UNSWIZZLED_BYTES:
        transforms.append(plgpu.SwizzleTransform(swizzle_bytes))  # type: ignore[abstract]
    return plgpu.SMEM(shape, jnp.dtype(dtype), transforms=tuple(transforms))


def _scratch(plan: space.Plan) -> dict[str, Any]:
    p, c, steps = plan.problem, plan.config, plan.steps
    rhs_block = (c.tile_k, plan.cta_tile_n) if p.rhs == "kn" else (plan.cta_tile_n, c.tile_k)
    scratch = {
        "lhs_smem": _tiled((steps, plan.cta_tile_m, c.tile_k), p.dtype, plan.lhs_swizzle_bytes),
        "rhs_smem": _tiled((steps, *rhs_block), p.dtype, plan.rhs_swizzle_bytes),
    }
    if c.epilogue == "smem":
        shape, out_dtype = (plan.warpgroups, c.tile_m, c.tile_n), jnp.dtype(p.out_dtype)
        swizzled = _tiled(shape, p.out_dtype, plan.out_swizzle_bytes)
        scratch["out_smem"] = swizzled if plan.has_tma else plgpu.SMEM(shape, out_dtype)
    if plan.warpgroups > 1:
        scratch["together"] = plgpu.Barrier(num_arrivals=plan.warpgroups)
    if c.barriers == "shared":
        scratch["loaded"] = [plgpu.Barrier(num_arrivals=2, num_barriers=steps)]
    elif c.barriers == "per_operand":
        scratch["loaded"] = [plgpu.Barrier(num_barriers=steps) for _ in range(2)]
    return scratch


def _body(
    lhs_gmem: Any,
    rhs_gmem: Any,
    out_gmem: Any,
    *,
    lhs_smem: Any,
    rhs_smem: Any,
    plan: space.Plan,
    out_smem: Any = None,
    together: Any = None,
    loaded: Any = (),
) -> None:
    p, c = plan.problem, plan.config
    rows, columns = _tile_slices(plan)

    def load(step: Any) -> None:
        depth, slot = pl.ds(step * c.tile_k, c.tile_k), _slot_of(step, plan)
        rhs_tile = rhs_gmem.at[depth, columns] if p.rhs == "kn" else rhs_gmem.at[columns, depth]
        copies = ((lhs_gmem.at[rows, depth], lhs_smem), (rhs_tile, rhs_smem))
        for operand, (source, ring) in enumerate(copies):
            barrier = loaded[operand % len(loaded)].at[slot] if loaded else None

            # Of two warpgroups each loads one operand.
            @pl.when(plan.warpgroups == 1 or lax.axis_index("wg") == operand)
            def _copy(source: Any = source, ring: Any = ring, barrier: Any = barrier) -> None:
                plgpu.copy_gmem_to_smem(
                    source, ring.at[slot], barrier, oob_mode=plgpu.OOBFillMode.PROMISE_IN_BOUNDS
                )

    acc = _multiply_tile(lhs_smem, rhs_smem, load, loaded, together, plan)
    own_rows, own_columns = _own_slices(plan)
    _store_tile(
        acc.astype(out_gmem.dtype), out_smem, out_gmem.at[rows, columns].at[own_rows, own_columns], plan
    )


def _tile_slices(plan: space.Plan) -> tuple[Any, Any]:
    """Rows and columns of the output tile of this block."""
    minor = 0 if plan.grid_minor_dim == "M" else 1
    grid = (plan.grid_m, plan.grid_n)
    m_index, n_index = plgpu.planar_snake(lax.axis_index("tiles"), grid, minor, plan.grid_tile_width)
    return (
        pl.ds(m_index * plan.cta_tile_m, plan.cta_tile_m),
        pl.ds(n_index * plan.cta_tile_n, plan.cta_tile_n),
    )


def _own_slices(plan: space.Plan) -> tuple[Any, Any]:
    """Rows and columns of the block's tile that this warpgroup multiplies."""
    c, warpgroup = plan.config, lax.axis_index("wg")
    return (
        pl.ds(warpgroup * c.tile_m, c.tile_m) if c.wg_dimension == "M" else pl.ds(0, c.tile_m),
        pl.ds(warpgroup * c.tile_n, c.tile_n) if c.wg_dimension == "N" else pl.ds(0, c.tile_n),
    )


def _slot_of(step: Any, plan: space.Plan) -> jax.Array:
    return lax.rem(jnp.int32(step), jnp.int32(plan.steps))


def _multiply_tile(
    lhs_smem: Any, rhs_smem: Any, load: Callable[[Any], None], loaded: Any, together: Any, plan: space.Plan
) -> Any:
    """The (tile_m, tile_n) accumulator of this warpgroup."""
    p, c = plan.problem, plan.config
    own_rows, own_columns = _own_slices(plan)
    ahead = plan.steps - plan.delay_release
    # The cp.async groups that a warpgroup commits a step: one a copy.
    copies = 2 // plan.warpgroups

    def meet() -> None:
        """Every warpgroup has come this far."""
        if plan.warpgroups > 1:
            plgpu.barrier_arrive(together)
            plgpu.barrier_wait(together)

    def refill_after(step: Any) -> None:
        # What was read of the stage must be ordered before TMA, of another proxy, overwrites it.
        # Before Hopper the barrier that JAX puts before each load does that within a warpgroup.
        if loaded:
            plgpu.commit_smem()
        meet()
        load(step + ahead)

    def multiply(step: Any, acc: Any, *, refill: bool, in_flight: int) -> Any:
        slot = _slot_of(step, plan)
        for barrier in loaded:
            plgpu.barrier_wait(barrier.at[slot])
        if not loaded:
            plgpu.wait_gmem_to_smem(in_flight * copies)
        refill_first = refill and plan.delay_release == 1
        if refill_first:
            refill_after(step)
        elif not loaded:
            # A warpgroup's cp.async wait says nothing of what the other one loads.
            meet()
        if p.rhs == "kn":
            rhs = rhs_smem.at[slot, :, own_columns]
        else:
            rhs = rhs_smem.at[slot, own_columns, :].transpose((1, 0))
        acc = plgpu.mma(acc, lhs_smem[slot, own_rows, :], rhs[...])
        if refill and not refill_first:
            refill_after(step)
        return acc

    for step in range(ahead):
        load(step)
    refilled = plan.k_steps - ahead
    steady = functools.partial(multiply, refill=True, in_flight=ahead - 1)
    acc = lax.fori_loop(0, refilled, steady, jnp.zeros((c.tile_m, c.tile_n), jnp.dtype(p.acc_dtype)))
    if loaded:
        return lax.fori_loop(
            refilled, plan.k_steps, functools.partial(multiply, refill=False, in_flight=0), acc
        )
    # What may stay in flight is an immediate of the instruction: the last steps are unrolled.
    for step in range(refilled, plan.k_steps):
        acc = multiply(step, acc, refill=False, in_flight=plan.k_steps - 1 - step)
    return acc


def _store_tile(tile: Any, out_smem: Any, out_tile: Any, plan: space.Plan) -> None:
    """Registers -> global memory, straight or through shared memory."""
    if plan.config.epilogue == "registers":
        out_tile[...] = tile
        return
    own_smem = out_smem.at[lax.axis_index("wg")]
    own_smem[...] = tile
    if plan.has_tma:
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(own_smem, out_tile)
        plgpu.wait_smem_to_gmem(0)
    else:
        # Neighbouring threads write neighbouring vectors; the accumulator's layout scatters them.
        rows_in_turn = plgpu.Layout.WG_STRIDED(tile.shape, vec_size=plan.out_vector)
        out_tile[...] = plgpu.load(own_smem, layout=rows_in_turn)

"""Copy by TMA: global -> shared -> global memory through a ring, never through registers."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from tuner.search_spaces import copy as space
from tuner.search_spaces.architecture import Target
from tuner.search_spaces.problem import CopyProblem

from .words import from_words, to_words


def build(problem: CopyProblem, config: space.TuningConfig, target: Target) -> Callable[..., jax.Array]:
    """The kernel as a function `x (m, n) -> x (m, n)`.

    Values the rules call illegal are not checked here: what they do is what JAX does with them.
    """
    plan = space.plan(problem, config, target)
    dtype = jnp.dtype(plan.dtype)
    kernel: Callable[..., jax.Array] = plgpu.kernel(
        functools.partial(_body, plan=plan),
        out_type=jax.ShapeDtypeStruct((plan.m, plan.n), dtype),
        scratch_types={
            "ring": plgpu.SMEM((plan.steps, plan.tile_m, plan.tile_n), dtype),
            "loaded": plgpu.Barrier(num_barriers=plan.steps),
        },
        grid=(plan.grid,),
        grid_names=("blocks",),
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )
    if plan.dtype == problem.dtype:
        return kernel
    return lambda x: from_words(kernel(to_words(x, plan.n, plan.dtype)), x)


def _body(x_gmem: Any, out_gmem: Any, *, ring: Any, loaded: Any, plan: space.Plan) -> None:
    tiles, steps = plan.grid_m * plan.grid_n, plan.steps
    block = lax.axis_index("blocks")
    # A persistent block takes every grid-th tile, any other a run of `steps`; `own` is how many.
    if plan.persistent:
        first, stride, fewest = block, plan.grid, tiles // max(plan.grid, 1)
        own = lax.div(tiles - 1 - block, jnp.int32(plan.grid)) + 1
    else:
        first, stride, fewest = block * steps, 1, tiles - (plan.grid - 1) * steps
        own = lax.min(jnp.int32(steps), tiles - first)
    # Whole rows are copied as one run (cp.async.bulk), which needs the promise that they exist.
    promise = plgpu.OOBFillMode.PROMISE_IN_BOUNDS

    def tile_of(step: Any) -> tuple[Any, Any]:
        row, column = _position(first + step * stride, plan)
        return pl.ds(row * plan.tile_m, plan.tile_m), pl.ds(column * plan.tile_n, plan.tile_n)

    def load(step: Any, slot: Any) -> None:
        plgpu.copy_gmem_to_smem(x_gmem.at[tile_of(step)], ring.at[slot], loaded.at[slot], oob_mode=promise)

    # A block with fewer tiles than slots skips the loads it has no tile for.
    for step in range(steps):
        if step < fewest:
            load(step, step)
        else:
            pl.when(step < own)(functools.partial(load, step, step))

    @pl.loop(0, own)
    def _step(step: jax.Array) -> None:
        slot = lax.rem(step, jnp.int32(steps))
        plgpu.barrier_wait(loaded.at[slot])
        plgpu.copy_smem_to_gmem(ring.at[slot], out_gmem.at[tile_of(step)])
        if not plan.persistent:
            return
        # The store `delay_release` steps back has read its slot: that slot takes the next load.
        released = step - plan.delay_release
        following = released + steps

        @pl.when((released >= 0) & (following < own))
        def _refill() -> None:
            plgpu.wait_smem_to_gmem(plan.delay_release, wait_read_only=True)
            load(following, lax.rem(released, jnp.int32(steps)))

    plgpu.wait_smem_to_gmem(0)


def _position(linear: Any, plan: space.Plan) -> tuple[Any, Any]:
    """Row and column of a tile in the order `grid_minor_dim` gives."""
    if plan.grid_minor_dim == "N":
        return lax.div(linear, jnp.int32(plan.grid_n)), lax.rem(linear, jnp.int32(plan.grid_n))
    return lax.rem(linear, jnp.int32(plan.grid_m)), lax.div(linear, jnp.int32(plan.grid_m))

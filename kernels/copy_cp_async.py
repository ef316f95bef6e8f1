"""Copy by cp.async groups: global -> shared memory -> registers -> global memory, without barriers."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.experimental.pallas as pl
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
from jax import lax

from tuner.search_spaces import copy_cp_async as space
from tuner.search_spaces.architecture import Target
from tuner.search_spaces.problem import CopyProblem

from .words import from_words, to_words


def build(
    problem: CopyProblem, config: space.TuningConfig, target: Target
) -> Callable[[jax.Array], jax.Array]:
    """The kernel as a function `x (m, n) -> x (m, n)`.

    Values the rules call illegal are not checked here: what they do is what JAX does with them.
    """
    plan = space.plan(problem, config, target)
    kernel = plgpu.kernel(
        functools.partial(_body, plan=plan),
        out_type=jax.ShapeDtypeStruct((plan.m, plan.n), jnp.dtype(plan.dtype)),
        scratch_types={
            "ring": plgpu.SMEM(
                (plan.steps, plan.tile_m, plan.tile_n), jnp.dtype(plan.dtype), transforms=_transforms(plan)
            )
        },
        grid=(plan.grid,),
        grid_names=("blocks",),
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )

    def copy(x: jax.Array) -> jax.Array:
        return from_words(kernel(to_words(x, plan.n, plan.dtype)), x)

    return copy


def _transforms(plan: space.Plan) -> tuple[Any, ...]:
    if not plan.tiled:
        return ()
    elements = plan.swizzle_bytes // jnp.dtype(plan.dtype).itemsize
    tiling = plgpu.TilingTransform((8, elements))  # type: ignore[abstract]
    if plan.swizzle_bytes == 16:  # JAX spells "no swizzle" by leaving it out
        return (tiling,)
    return tiling, plgpu.SwizzleTransform(plan.swizzle_bytes)  # type: ignore[abstract]


def _body(x_gmem: Any, out_gmem: Any, *, ring: Any, plan: space.Plan) -> None:
    tiles, depth = plan.grid_m * plan.grid_n, plan.depth
    block = lax.axis_index("blocks")
    # A persistent block takes every grid-th tile, any other a run of `depth`; `own` is how many.
    if plan.persistent:
        first, stride, fewest = block, plan.grid, tiles // max(plan.grid, 1)
        own = lax.div(tiles - 1 - block, jnp.int32(plan.grid)) + 1
    else:
        first, stride, fewest = block * depth, 1, tiles - (plan.grid - 1) * depth
        own = lax.min(jnp.int32(depth), tiles - first)

    def tile_of(step: Any) -> tuple[Any, Any]:
        row, column = _position(first + step * stride, plan)
        return pl.ds(row * plan.tile_m, plan.tile_m), pl.ds(column * plan.tile_n, plan.tile_n)

    def slot(step: Any) -> Any:
        return ring.at[lax.rem(step, jnp.int32(plan.steps))]

    def load(step: Any) -> None:
        """One cp.async group."""
        promise = plgpu.OOBFillMode.PROMISE_IN_BOUNDS
        plgpu.copy_gmem_to_smem(x_gmem.at[tile_of(step)], slot(step), oob_mode=promise)

    def store(step: Any) -> None:
        out_gmem[tile_of(step)] = plgpu.load(slot(step), layout=_layout(plan))

    @pl.loop(0, lax.min(jnp.int32(depth), own))
    def _fill(step: jax.Array) -> None:
        load(step)

    # Groups complete in order, so `depth` in flight and one of them awaited is a constant of the program.
    @pl.loop(0, lax.max(own - depth, 0))
    def _step(step: jax.Array) -> None:
        plgpu.wait_gmem_to_smem(depth - 1)
        if plan.steps > depth:  # the slot at rest takes the next load at once
            load(step + depth)
            store(step)
        else:
            store(step)
            load(step + depth)

    def drain(left: int) -> None:
        plgpu.wait_gmem_to_smem(left - 1)
        store(own - left)

    # The last tiles have no load behind them: each finds one group fewer in flight.
    for left in range(depth, 0, -1):
        if left <= fewest:
            drain(left)
        else:
            pl.when(own >= left)(functools.partial(drain, left))


def _layout(plan: space.Plan) -> Any:
    """Registers laid out as cp.async wrote the tile: wide reads without conflicts, whole rows out."""
    if not plan.tiled:
        return None
    return plgpu.Layout.SMEM_GMEM_COPY(
        shape=(plan.tile_m, plan.tile_n), dtype=jnp.dtype(plan.dtype), swizzle=plan.swizzle_bytes
    )


def _position(linear: Any, plan: space.Plan) -> tuple[Any, Any]:
    """Row and column of a tile in the order `grid_minor_dim` gives."""
    if plan.grid_minor_dim == "N":
        return lax.div(linear, jnp.int32(plan.grid_n)), lax.rem(linear, jnp.int32(plan.grid_n))
    return lax.rem(linear, jnp.int32(plan.grid_m)), lax.div(linear, jnp.int32(plan.grid_m))

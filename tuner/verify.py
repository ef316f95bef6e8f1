"""Is the output right? Every element of it, in a buffer that held poison before the run."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from tuner.search_spaces.problem import DTYPE_BITS


@functools.partial(jax.jit, donate_argnums=0, keep_unused=True)
def poisoned(buffer: jax.Array, expected: jax.Array, tolerance: jax.Array | None) -> jax.Array:
    """`buffer` filled in place with what no right output holds.

    NaN; where every bit must agree (no tolerance), the complement of every element expected.
    """
    if tolerance is not None:
        return jnp.full_like(buffer, jnp.nan)
    return jax.lax.bitcast_convert_type(jnp.invert(_bits(expected)), buffer.dtype)


@jax.jit
def worst_error(
    out: jax.Array, expected: jax.Array, tolerance: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """The largest |out - expected| as a multiple of what is allowed, and how many elements exceed it.

    What is allowed is `tolerance` plus one unit in the last place of `out`; without a tolerance,
    nothing: every bit must agree.
    """
    if tolerance is None:
        wrong = _count(_bits(out) != _bits(expected))
        return jnp.where(wrong > 0, jnp.inf, 0.0), wrong
    value, wanted = out.astype(jnp.float32), expected.astype(jnp.float32)
    allowed = tolerance + _ulp(wanted, out.dtype)
    ratio = jnp.where(jnp.isfinite(value), jnp.abs(value - wanted) / allowed, jnp.inf)
    return jnp.max(ratio), _count(ratio > 1)


def _count(wrong: jax.Array) -> jax.Array:
    """How many are true, rounded; an int32 would come round to 0 at 2^32 of them."""
    return jnp.sum(wrong, dtype=jnp.float32)


def _bits(x: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{DTYPE_BITS[x.dtype.name]}"))


def _ulp(x: jax.Array, dtype: Any) -> jax.Array:
    """One unit in the last place of `dtype` at the magnitude of `x`."""
    info = jnp.finfo(dtype)
    _, exponent = jnp.frexp(jnp.maximum(jnp.abs(x), jnp.float32(info.tiny)))
    return jnp.ldexp(jnp.float32(info.eps), exponent - 1)

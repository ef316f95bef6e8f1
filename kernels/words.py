"""Arrays as unsigned integers of their width: a copy moves bytes, whatever they mean."""

import jax
import jax.numpy as jnp
from jax import lax


def to_words(x: jax.Array, columns: int, dtype: str) -> jax.Array:
    """The bytes of `x` (m, n) as (m, columns) of an unsigned type, narrow elements several to a word.

    XLA compiles it to nothing.
    """
    packed = x.shape[1] // columns
    shaped = x if packed == 1 else x.reshape(x.shape[0], columns, packed)
    return lax.bitcast_convert_type(shaped, jnp.dtype(dtype))


def from_words(words: jax.Array, like: jax.Array) -> jax.Array:
    """The inverse of `to_words`: shape and dtype of `like`."""
    return lax.bitcast_convert_type(words, like.dtype).reshape(like.shape)

"""Rules of copies by TMA (Hopper and newer): bytes, row pitch, box and swizzle.

Sources: jax/experimental/mosaic/gpu/launch_context.py for what JAX checks, PTX ISA 9.0
("cp.async.bulk.tensor", "Tensor-map") for what the hardware needs.
"""

from collections.abc import Callable
from typing import Any

from .rule import Rule

# PTX: global strides but the innermost, and the innermost box extent, are multiples of 16 bytes.
TMA_ALIGNMENT_BYTES = 16
# PTX: a box has at most 256 elements along each dimension.
MAX_BOX_ELEMENTS = 256
# The user's rule: what one copy moves, and the slot it lands in, is whole 128-byte lines. JAX
# checks it under Lane semantics only; slots of 48 or 64 bytes fault on an H200 (measured).
COPY_BYTES = 128
# JAX mosaic_gpu/core.py, SwizzleTransform: 16 bytes ("none") is not a swizzle it accepts.
SWIZZLES_BYTES = (128, 64, 32)

# JAX launch_context.py: element types a tensor map can be encoded for, but 64-bit integers: JAX has those
# only in its 64-bit mode.
TMA_DTYPES = (
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32)),
    "float16",
    "bfloat16",
    "float32",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e8m0fnu",
)


def largest_swizzle(*minor_bytes: Any) -> Any:
    """The widest swizzle (128, 64, 32 bytes) that divides every minor extent; 16 when none does."""
    found: Any = 16
    for swizzle in reversed(SWIZZLES_BYTES):
        fits: Any = True
        for extent in minor_bytes:
            fits = fits & (extent % swizzle == 0)
        found = found + (swizzle - found) * fits
    return found


def whole_lines(
    id: str, holds: Callable[..., Any], have: str, remedy: str, *, decides_on: tuple[str, ...] | None = None
) -> Rule:
    """elements * itemsize % 128 == 0 for one copy and its slot."""
    return Rule(
        id=id,
        holds=holds,
        have=have,
        need=f"a multiple of {COPY_BYTES} bytes",
        remedy=remedy,
        source="jax/_src/pallas/mosaic_gpu/primitives.py (Lane); faults on an H200 under Warpgroup",
        noticed="ran",
        decides_on=decides_on,
    )


def row_pitch(
    id: str, holds: Callable[..., Any], have: str, remedy: str, *, decides_on: tuple[str, ...] | None = None
) -> Rule:
    """Rows of an array in global memory start 16 bytes apart or a multiple of that."""
    return Rule(
        id=id,
        holds=holds,
        have=have,
        need=f"a multiple of {TMA_ALIGNMENT_BYTES} bytes",
        remedy=remedy,
        source="jax/experimental/mosaic/gpu/launch_context.py, GMEM strides; PTX tensor map",
        decides_on=decides_on,
    )


def box(
    id: str, holds: Callable[..., Any], have: str, remedy: str, *, decides_on: tuple[str, ...] | None = None
) -> Rule:
    """At most 256 elements along each dimension of one copy."""
    return Rule(
        id=id,
        holds=holds,
        have=have,
        need=f"at most {MAX_BOX_ELEMENTS} elements along each dimension of a copy",
        remedy=remedy,
        source="jax/experimental/mosaic/gpu/launch_context.py, <=256 elements; PTX tensor map",
        decides_on=decides_on,
    )

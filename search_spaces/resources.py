"""Shared-memory arithmetic and the capacity rule, shared by every family."""

from typing import Any

from .rule import Rule

# JAX pallas/mosaic_gpu/core.py: every shared-memory allocation starts at a 1024-byte boundary.
SMEM_ALIGNMENT_BYTES = 1024


def smem_aligned(size_bytes: Any) -> Any:
    """`size_bytes` rounded up to the next allocation boundary."""
    return -(-size_bytes // SMEM_ALIGNMENT_BYTES) * SMEM_ALIGNMENT_BYTES


def divides(part: Any, whole: Any) -> Any:
    """Whether `part` is at least 1 and divides `whole`; arrays or scalars."""
    positive = part >= 1
    return positive & (whole % (part + (1 - positive)) == 0)


def ceil_div(whole: Any, part: Any) -> Any:
    """Parts needed to cover the whole; `part` below 1 counts as 1."""
    positive = part >= 1
    return -(-whole // (part * positive + (1 - positive)))


def whole_parts(whole: Any, part: Any) -> Any:
    """Parts that lie wholly inside the whole; `part` below 1 counts as 1."""
    positive = part >= 1
    return whole // (part * positive + (1 - positive))


SMEM_CAPACITY = Rule(
    id="smem.capacity",
    # Strictly less: at equality the launch fails on an H200 (measured); the cubin holds one static byte.
    holds=lambda smem_bytes, smem_limit_bytes: smem_bytes < smem_limit_bytes,
    have="{smem_bytes} bytes of shared memory",
    need="fewer than {smem_limit_bytes} bytes a block",
    remedy="use fewer stages or smaller tiles",
    source="jax/experimental/mosaic/gpu/core.py; strictness measured on an H200",
)

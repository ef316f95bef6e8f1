"""Which synchronisation a load into shared memory may use on which architecture, and what it costs."""

from collections.abc import Callable
from typing import Any

from .architecture import Architecture
from .rule import Rule

# JAX mosaic/gpu/core.py: an mbarrier is 8 bytes, placed after all other shared memory.
BARRIER_BYTES = 8
# JAX mosaic/gpu/utils.py: barrier phases of one group live in one 32-bit register.
MAX_BARRIERS_PER_GROUP = 32


def load_barriers(architecture: Architecture, operands: int) -> tuple[str, ...]:
    """Names the field `barriers` may take for a load of `operands` operands a stage.

    Before Hopper a load is a cp.async group and a barrier is refused (JAX mosaic_gpu/primitives.py,
    copy_gmem_to_smem); from Hopper on a TMA load completes on a barrier and one is required: one a
    stage `shared` by the operands (its num_arrivals is their number), or one `per_operand`.
    """
    if not architecture.has_tma:
        return ("none",)
    return ("shared", "per_operand") if operands > 1 else ("shared",)


def barriers_per_group(
    depth: Callable[..., Any],
    what: str = "max_concurrent_steps",
    *,
    decides_on: tuple[str, ...] | None = None,
) -> Rule:
    """At most 32 barriers in a group; `depth` gives how many the kernel allocates."""
    return Rule(
        id="barrier.group_of_32",
        holds=depth,
        have=f"{what}={{{what}}}",
        need=f"at most {MAX_BARRIERS_PER_GROUP} barriers in a group",
        remedy=f"lower {what}",
        source="jax/experimental/mosaic/gpu/utils.py, BarrierRef",
        decides_on=decides_on,
    )

"""Families with one planted mistake each, that `prove` must see: their kernel is the copy by TMA."""

import dataclasses
from collections.abc import Callable
from typing import Any

from tuner.search_spaces import copy
from tuner.search_spaces.architecture import Target
from tuner.search_spaces.family import Axis, KernelFamily
from tuner.search_spaces.problem import CopyProblem
from tuner.search_spaces.rule import Rule

# One row of tiles too, where a raster has one order.
PROBES = (CopyProblem(m=1024, n=512, dtype="float32"), CopyProblem(m=1, n=4096, dtype="float16"))


def family(**fields: Any) -> KernelFamily:
    return dataclasses.replace(copy.FAMILY, probes=PROBES, **fields)


def without(rule: str) -> KernelFamily:
    return family(rules=tuple(r for r in copy.RULES if r.id != rule))


def changed(rule: str, **fields: Any) -> KernelFamily:
    rules = (dataclasses.replace(r, **fields) if r.id == rule else r for r in copy.RULES)
    return family(rules=tuple(rules))


def lacking(name: str, values: Callable[[Any], Any]) -> KernelFamily:
    """An axis with only some of its values."""

    def axes(problem: CopyProblem, target: Target) -> tuple[Axis, ...]:
        found = copy.axes(problem, target)
        return tuple(dataclasses.replace(a, values=values(a.values)) if a.name == name else a for a in found)

    return family(axes=axes)


def build_raising(problem: Any, config: Any, target: Target) -> Callable[..., Any]:
    """A kernel that tests legality itself, which is no verdict of JAX."""
    from tuner.kernels.copy import build

    if config.tile_m > 256:
        raise ValueError("tile_m is too large")
    return build(problem, config, target)


RAISING = family(build="tests.proof.mistaken:build_raising")
OTHER_SMEM = family(derived={**copy.DERIVED, "smem_bytes": lambda tile_bytes: tile_bytes + 8})
NARROW_BOX: dict[str, Any] = {"holds": lambda tile_m, tile_words: (tile_m <= 128) & (tile_words <= 4096)}

# What the mistake is, the family, and the start of a disagreement that tells it.
MISTAKES: tuple[tuple[str, KernelFamily, str], ...] = (
    ("a rule is missing", without("copy.box"), "legal, but jax says ValueError"),
    ("a rule is too strict", changed("copy.box", **NARROW_BOX), "illegal by copy.box, but JAX lowers it"),
    (
        "an axis lacks a value",
        lacking("tile_m", lambda v: v[::2]),
        "no rule is broken, but it is not in the space",
    ),
    ("an axis is short", lacking("max_concurrent_steps", lambda v: v[:4]), "no rule is broken, but"),
    (
        "nobody notices",
        changed("pipeline.steps", noticed="lowered"),
        "illegal by pipeline.steps, but JAX lowers",
    ),
    ("twins count twice", without("canonical.grid_minor_dim"), "the same program as another canonical"),
    (
        "a wrong spelling",
        changed("canonical.max_concurrent_steps", spelling=lambda: {"max_concurrent_steps": 1}),
        "not the program of its canonical form",
    ),
    ("the kernel judges", RAISING, "our own code raised"),
    ("shared memory", OTHER_SMEM, "shared memory is not as derived"),
)


def undecidable() -> KernelFamily:
    """With a rule that no point breaks."""
    rule = Rule(
        id="copy.never_broken",
        holds=lambda tile_m: tile_m >= 0,
        have="tile_m={tile_m}",
        need="at least 0",
        remedy="none",
        source="nowhere",
    )
    return family(rules=(*copy.RULES, rule))

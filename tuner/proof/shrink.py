"""The smallest point that still shows a disagreement."""

import dataclasses
from collections.abc import Callable
from typing import Any

from .points import Point, sorted_out

# A disagreement's kind: what is the same in every point that shows it.
Judge = Callable[[Point], str]


def smallest(point: Point, what: str, judge: Judge) -> Point:
    """`point` with as many fields as possible as in the default configuration, and judged alike.

    judge: what the two sides disagree about, or "". Field by field, so the result is small, not the least.
    """
    space = point.space
    default = space.family.default_config(space.problem, space.target)
    kind = kind_of(what)
    for field in dataclasses.fields(default):
        value = getattr(default, field.name)
        if getattr(point.config, field.name) == value:
            continue
        config = dataclasses.replace(point.config, **{field.name: value})
        beside = point.beside and dataclasses.replace(point.beside, **{field.name: value})
        tried = sorted_out(space, config, point.origin, beside)
        if tried.broken == point.broken and kind_of(judge(tried)) == kind:
            point = tried
    return point


def kind_of(what: str) -> str:
    """What points of one disagreement share: the text before the particulars."""
    return what.partition(":")[0].partition(" says ")[0]


def told(config: Any, default: Any) -> str:
    """The fields that differ from the default configuration, as `--config` takes them."""
    mine, usual = dataclasses.asdict(config), dataclasses.asdict(default)
    shown = {name: value for name, value in mine.items() if value != usual[name]} or mine
    return ",".join(f"{name}={'none' if value is None else value}" for name, value in shown.items())

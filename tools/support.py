"""What a kernel family runs, found by asking its `supports` and not by a list."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from tuner.search_spaces.architecture import ARCHITECTURES, reference_target
from tuner.search_spaces.family import KernelFamily, families
from tuner.search_spaces.problem import DTYPE_BITS, Problem

# A problem size that no alignment or divisibility speaks against.
_SIZE = 4096


@functools.cache
def supported(name: str, arch: str) -> frozenset[tuple[Any, ...]]:
    """Every choice of types, layouts and counts that family `name` runs on `arch`, by field.

    All of them are 24 types to the fourth power. Those that run hang together, one field apart: the search
    starts from each type with one other field varied, and goes on from whatever runs.
    """
    family, target = families()[name], reference_target(arch)
    asked = _choices(family.problem_class)
    layouts = {n: values for n, values in asked.items() if not n.endswith("dtype")}
    seeds = [
        dict(zip(layouts, layout, strict=True)) | {"dtype": dtype}
        for layout in itertools.product(*layouts.values())
        for dtype in DTYPE_BITS
    ]
    frontier = [seed | {n: v} for seed in seeds for n, v in _changes(asked)] + seeds
    found: set[tuple[Any, ...]] = set()
    while frontier:
        problem = family.problem_class.from_dict(frontier.pop())
        fields = problem.to_dict()
        if tuple(fields.values()) not in found and not family.supports(problem, target):
            found.add(tuple(fields.values()))
            frontier += [fields | {n: v} for n, v in _changes(asked)]
    return frozenset(found)


def support_table(family: KernelFamily) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows: architectures, then each field's values; any combination within a row runs."""
    asked = _choices(family.problem_class)
    places = {name: at for at, name in enumerate(asked) if len(asked[name]) > 1}
    told = sorted(places, key=lambda name: name != "dtype")

    def relative(name: str, choice: tuple[Any, ...]) -> Any:
        value = choice[places[name]]
        return "same" if name != "dtype" and value == choice[places["dtype"]] else value

    order = {name: [*values, "same"] for name, values in asked.items()}
    archs: dict[tuple[tuple[Any, ...], ...], list[str]] = {}
    for arch in ARCHITECTURES:
        choices = [tuple(relative(name, c) for name in told) for c in supported(family.name, arch)]
        choices.sort(key=lambda c: [order[name].index(value) for name, value in zip(told, c, strict=True)])
        if choices:
            archs.setdefault(tuple(choices), []).append(arch)
    rows = [
        (", ".join(names), *(_side(asked[name], side) for name, side in zip(told, box, strict=True)))
        for choices, names in archs.items()
        for box in _boxes(choices)
    ]
    return ("On", *(f"`{name}`" for name in told)), rows


def _choices(problem_class: type[Problem]) -> dict[str, tuple[Any, ...]]:
    """Every field with what is asked for: all types, all orders of a layout, a count and one more."""
    asked: dict[str, tuple[Any, ...]] = {}
    for field in dataclasses.fields(problem_class):  # type: ignore[arg-type]
        if field.name.endswith("dtype"):
            asked[field.name] = tuple(DTYPE_BITS)
        elif isinstance(field.default, str):
            asked[field.name] = tuple(map("".join, itertools.permutations(field.default)))
        elif isinstance(field.default, int):
            asked[field.name] = (field.default, field.default + 1)
        else:
            asked[field.name] = (_SIZE,)
    return asked


def _changes(asked: Mapping[str, tuple[Any, ...]]) -> Iterator[tuple[str, Any]]:
    return ((name, value) for name, values in asked.items() if len(values) > 1 for value in values)


def _boxes(rows: tuple[tuple[Any, ...], ...]) -> Iterator[tuple[tuple[Any, ...], ...]]:
    """`rows` as products of value sets; where they are none, split along the first field that varies."""
    sides = tuple(tuple(dict.fromkeys(side)) for side in zip(*rows, strict=True))
    if len(rows) == functools.reduce(lambda size, side: size * len(side), sides, 1):
        yield sides
        return
    at = next(i for i, side in enumerate(sides) if len(side) > 1)
    # Values whose rows are otherwise the same stay together.
    alike: dict[tuple[tuple[Any, ...], ...], list[Any]] = {}
    for value in sides[at]:
        for box in _boxes(tuple(row for row in rows if row[at] == value)):
            alike.setdefault((*box[:at], (), *box[at + 1 :]), []).append(value)
    for box, values in alike.items():
        yield (*box[:at], tuple(values), *box[at + 1 :])


def _side(asked: tuple[Any, ...], side: tuple[Any, ...]) -> str:
    if isinstance(asked[0], int) and set(asked) == set(side):
        return "any"
    return ", ".join(sorted(map(str, side), key=lambda value: value != "same"))

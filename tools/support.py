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
def supported(name: str, arch: str) -> frozenset[Problem]:
    """Every choice of types, layouts and counts that family `name` runs on `arch`.

    All of them are 24 types to the fourth power. Those that run hang together, one field apart: the search
    starts from each type with one other field varied, and goes on from whatever runs.
    """
    family, target = families()[name], reference_target(arch)
    frontier = list(_seeds(name))
    found: set[Problem] = set()
    while frontier:
        problem = frontier.pop()
        if problem not in found and not family.supports(problem, target):
            found.add(problem)
            changes = _changes(_choices(family.problem_class))
            frontier += [dataclasses.replace(problem, **{n: value}) for n, value in changes]  # type: ignore[type-var]
    return frozenset(found)


@functools.cache
def _seeds(name: str) -> tuple[Problem, ...]:
    problem_class = families()[name].problem_class
    asked = _choices(problem_class)
    # Types but the first are left out, to follow from it; of counts the first is as good as any.
    least = {n: vs[:1] if isinstance(vs[0], int) else vs for n, vs in asked.items() if not _is_late(n)}
    plain = [dict(zip(least, values, strict=True)) for values in itertools.product(*least.values())]
    fields = [*plain, *(seed | {n: value} for seed in plain for n, value in _changes(asked))]
    return tuple(dict.fromkeys(map(problem_class.from_dict, fields)))


def support_table(family: KernelFamily) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows: architectures, then each field's values; any combination within a row runs."""
    asked = _choices(family.problem_class)
    told = sorted((n for n, values in asked.items() if len(values) > 1), key=lambda name: name != "dtype")

    def relative(name: str, problem: Problem) -> Any:
        fields = problem.to_dict()
        return "same" if _is_late(name) and fields[name] == fields["dtype"] else fields[name]

    order = {name: [*values, "same"] for name, values in asked.items()}
    archs: dict[tuple[tuple[Any, ...], ...], list[str]] = {}
    for arch in ARCHITECTURES:
        choices = [tuple(relative(name, p) for name in told) for p in supported(family.name, arch)]
        choices.sort(key=lambda c: [order[name].index(value) for name, value in zip(told, c, strict=True)])
        if choices:
            archs.setdefault(tuple(choices), []).append(arch)
    rows = [
        (", ".join(names), *(_side(asked[name], side) for name, side in zip(told, box, strict=True)))
        for choices, names in archs.items()
        for box in _boxes(choices)
    ]
    return ("On", *(f"`{name}`" for name in told)), rows


def _is_late(name: str) -> bool:
    return name.endswith("_dtype")


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

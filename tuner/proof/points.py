"""Points to hold rules against: legal ones, their neighbours, and a grid wider than the axes.

The rules sort the points, and choose which of many to spend a compiler on; they never choose what is
drawn. A value that an axis lacks is drawn like any other, so that its absence shows.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from tuner.search_spaces.rule import Rule
from tuner.search_spaces.space import LegalSpace

Origin = Literal["legal", "near", "wide"]
Fields = Mapping[str, np.ndarray]

# Points drawn of each kind for a few hundred that are kept, and legal configurations they start from.
_POOL = 60_000
_BASES = 1_000
# Legal points looked up in the space.
_LOOKED_AT = 300


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """One configuration of one problem, and what the rules say of it.

    broken: illegal rules it breaks. spelt: canonical rules it breaks, if no other. twin: the canonical
    configuration that is to generate the same program. beside: the legal configuration a near one was
    stepped from, whose program is another. missing: legal and canonical, but not in the space.
    """

    space: LegalSpace
    config: Any
    origin: Origin
    broken: tuple[str, ...]
    spelt: tuple[str, ...]
    twin: Any | None
    beside: Any | None
    missing: bool

    @property
    def legal(self) -> bool:
        """No rule but canonical ones is broken."""
        return not self.broken


class WideGrid:
    """The values of each field: integers from 0 to twice its axis's greatest, and every name there is."""

    def __init__(self, space: LegalSpace, rng: np.random.Generator) -> None:
        self._rng = rng
        fields = {f.name: f for f in dataclasses.fields(space.family.config_class)}
        choices = {name: fields[name].metadata.get("choices") for name in space.axes}
        # None is spelt "" in columns.
        self._names = {
            name: np.array(["" if v is None else str(v) for v in values])
            for name, values in choices.items()
            if values is not None
        }
        self._axes = {name: axis.column for name, axis in space.axes.items() if choices[name] is None}
        self._published = {name: np.array(values) for name, values in space.family.published.items()}

    def draw(self, name: str, count: int) -> np.ndarray:
        """Values of a field: integers, multiples of its axis's unit, powers of two, its axis's, JAX's own."""
        rng = self._rng
        if name in self._names:
            return rng.choice(self._names[name], count)
        axis = self._axes[name]
        most, unit = 2 * int(axis[-1]), max(1, int(np.gcd.reduce(axis)))
        drawn = [
            rng.integers(0, most + 1, count),
            unit * rng.integers(1, most // unit + 1, count),
            2 ** rng.integers(0, most.bit_length(), count),
            rng.choice(axis, count),
        ]
        if len(known := self._published.get(name, ())):
            drawn.append(rng.choice(known, count))
        return np.asarray(np.choose(rng.integers(len(drawn), size=count), drawn))

    def step(self, name: str, values: np.ndarray) -> np.ndarray:
        """A step from each value: the next integer, a unit, twice or half, along the axis, one of JAX's."""
        rng, count = self._rng, len(values)
        if name in self._names:
            return rng.choice(self._names[name], count)
        axis = self._axes[name]
        sign, unit = rng.choice([-1, 1], count), max(1, int(np.gcd.reduce(axis)))
        beside = np.clip(np.searchsorted(axis, values) + sign, 0, len(axis) - 1)
        stepped = [
            values + sign,
            values + sign * unit,
            np.where(sign > 0, values * 2, values // 2),
            axis[beside],
        ]
        if len(known := self._published.get(name, ())):
            stepped.append(rng.choice(known, count))
        found = np.choose(rng.integers(len(stepped), size=count), stepped)
        return np.asarray(np.clip(found, 0, 2 * int(axis[-1])))


def draw_points(space: LegalSpace, count: int, rng: np.random.Generator) -> list[Point]:
    """About `count` points: a third legal, a third one step from a legal one, a third anywhere.

    Of the last two, each rule gets points that break it alone, as far as there are any. Where nothing is
    legal, all are of the last two.
    """
    grid, third = WideGrid(space, rng), max(1, count // 3)
    legal = _legal_bases(space, rng)
    points = [sorted_out(space, config, "legal") for config in _configs(space, legal, third)]
    taken = {point.config for point in points}
    for origin in ("near", "wide"):
        bases = _pooled(space, grid, legal, rng)
        changed = _near(grid, bases, rng) if origin == "near" else _wide(grid, bases, rng)
        for row in _spread(space, changed, _distance(bases, changed), third, rng):
            config = _config(space, changed, row)
            beside = _config(space, bases, row) if origin == "near" and len(legal) else None
            if config not in taken:
                taken.add(config)
                points.append(sorted_out(space, config, origin, beside))
    return points


def _legal_bases(space: LegalSpace, rng: np.random.Generator) -> np.ndarray:
    """Indices of legal configurations: half uniform, half with an axis's legal values equally likely."""
    if not len(space):
        return np.empty(0, dtype=np.int64)
    uniform = rng.integers(len(space), size=_BASES // 2)
    drawn = np.array([space.draw(rng) for _ in range(_BASES // 2)])
    return rng.permutation(np.concatenate([uniform, drawn]))


def _configs(space: LegalSpace, indices: np.ndarray, count: int) -> list[Any]:
    return [space.config(int(index)) for index in list(dict.fromkeys(indices.tolist()))[:count]]


def _pooled(space: LegalSpace, grid: WideGrid, legal: np.ndarray, rng: np.random.Generator) -> Fields:
    """Many legal configurations as columns, over and over; where there is none, points of the grid."""
    if len(legal):
        return space.columns(rng.choice(legal, _POOL))
    return {name: grid.draw(name, _POOL) for name in space.axes}


def _near(grid: WideGrid, bases: Fields, rng: np.random.Generator) -> Fields:
    which = rng.integers(len(bases), size=_POOL)
    return {
        name: np.where(which == place, grid.step(name, column), column)
        for place, (name, column) in enumerate(bases.items())
    }


def _wide(grid: WideGrid, bases: Fields, rng: np.random.Generator) -> Fields:
    """From two changed fields to all: with all, hardly a point breaks fewer than three rules."""
    share = rng.uniform(2 / len(bases), 1, _POOL)
    return {
        name: np.where(rng.random(_POOL) < share, grid.draw(name, _POOL), column)
        for name, column in bases.items()
    }


def _distance(bases: Fields, fields: Fields) -> np.ndarray:
    """How far each point is from what it was stepped from; a name counts as one."""
    apart = [
        (fields[name] != column) * 1 if column.dtype.kind == "U" else np.abs(fields[name] - column)
        for name, column in bases.items()
    ]
    return np.asarray(np.sum(apart, axis=0))


def _spread(
    space: LegalSpace, fields: Fields, distance: np.ndarray, count: int, rng: np.random.Generator
) -> list[int]:
    """`count` of the drawn points: what is legal and missing, for each rule some it decides alone, any.

    Of those alone, half are the smallest steps over the rule's edge.
    """
    broken = _broken(space, fields)
    how_many = broken.sum(axis=0)
    share = max(2, count // (2 * len(broken)))
    legal = rng.permutation(np.flatnonzero(how_many == 0))
    looked_at = [int(row) for row in legal[:_LOOKED_AT]]
    missing = [row for row in looked_at if _config(space, fields, row) not in space]
    alone = []
    for one in rng.permutation(broken):
        found = rng.permutation(np.flatnonzero((how_many == 1) & one))
        nearest = found[np.argsort(distance[found], kind="stable")][: -(-share // 2)]
        alone += [nearest, found[: share - len(nearest)]]
    anything = rng.permutation(_POOL)[:count]
    rows = np.concatenate([np.array(missing[: count // 4], int), *alone, legal[: count // 6], anything])
    return list(dict.fromkeys(rows.tolist()))[:count]


def _config(space: LegalSpace, fields: Fields, row: int) -> Any:
    """The configuration in one row of columns, where None is spelt ""."""
    family = space.family
    choices = {f.name: f.metadata.get("choices") for f in dataclasses.fields(family.config_class)}
    return family.config_class(
        **{
            name: int(column[row]) if choices[name] is None else str(column[row]) or None
            for name, column in fields.items()
        }
    )


def _broken(space: LegalSpace, fields: Fields) -> np.ndarray:
    """Which rule (rows) each point (columns) breaks; canonical ones only where no other is."""
    columns = space.family.columns(space.problem, space.target, fields)

    def breaks(rule: Rule) -> np.ndarray:
        return ~np.broadcast_to(np.asarray(columns.apply(rule.holds), dtype=bool), (_POOL,))

    with np.errstate(all="ignore"):
        found = np.array([breaks(rule) for rule in space.family.rules])
    illegal = np.array([rule.kind == "illegal" for rule in space.family.rules])
    found[~illegal] &= ~found[illegal].any(axis=0)
    return found


def sorted_out(space: LegalSpace, config: Any, origin: Origin, beside: Any | None = None) -> Point:
    """A configuration with what the rules say of it."""
    broken = space.broken(config)
    spelt = () if broken else space.broken(config, kind="canonical")
    twin = space.canonical(config) if spelt else None
    missing = not broken and not spelt and config not in space
    # What is legal and as canonical as its neighbour is another program.
    beside = None if broken or spelt or beside == config else beside
    return Point(space, config, origin, broken, spelt, twin, beside, missing)

"""The legal space of a problem on a target: enumerate, count, index, sample, explain, repair.

Enumeration is a progressive cross join: add an axis, apply each rule as soon as its columns exist.
Axes no rule reads, and the one axis bounded by a limit column, stay factored: an index maps to a
row of the joined table and to a position in the factored tail.
"""

import bisect
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from .architecture import Target
from .errors import NoLegalConfigError
from .family import Axis, KernelFamily, Value
from .problem import Problem
from .rule import Columns, Rule, Violation, broken_rules, parameters, plain, violations

if TYPE_CHECKING:
    import pandas as pd


# Multiples looked at for the nearest size that has a legal configuration.
_SIZE_STEPS = (8, 16, 32, 64, 128)
# What another spelling of a field weighs beside a change.
_SPELLING = 0.01
# Places of a cross join looked at together: what rules compute on the way stays in the cache.
_BLOCK = 1 << 16


@dataclasses.dataclass(frozen=True, slots=True)
class Explanation:
    """Why a configuration is legal or not; `repair` is the nearest legal one if it is not."""

    legal: bool
    violations: tuple[Violation, ...]
    canonical: bool
    derived: dict[str, Any]
    repair: Any | None

    def to_dict(self) -> dict[str, Any]:
        """The `explain --json` object."""
        return {
            "legal": self.legal,
            "violations": [v.to_dict() for v in self.violations],
            "canonical": self.canonical,
            "derived": self.derived,
            "repair": None if self.repair is None else dataclasses.asdict(self.repair),
        }


class LegalSpace:
    """Every canonical legal configuration of one problem on one target, in a fixed order.

    `removed` maps rule id to how many of the `raw` axis products it removed: they and `len()`
    add up to `raw`.
    """

    def __init__(self, family: KernelFamily, problem: Problem, target: Target) -> None:
        self.family, self.problem, self.target = family, problem, target
        axes = family.axes(problem, target)
        self.axes = {axis.name: axis for axis in axes}
        self._rules = {rule.id: rule for rule in family.rules}
        self._split(axes)
        self.raw = int(np.prod([len(a.values) for a in axes], dtype=object)) if axes else 0
        self.removed = dict.fromkeys(self._rules, 0)
        self._emptied_by = ""
        self._enumerate()

    def _split(self, axes: tuple[Axis, ...]) -> None:
        read = {name for rule in self.family.rules for name in self._inputs(rule)}
        limited = [a for a in axes if a.limit]
        self._limited = limited[0] if limited else None
        self._joined = [a for a in axes if a.name in read and not a.limit]
        self._free = [a for a in axes if a.name not in read and not a.limit]
        self._limit_rule = next(
            (r for r in self.family.rules if limited and {limited[0].name, limited[0].limit} <= set(r.reads)),
            None,
        )

    def _inputs(self, rule: Rule) -> set[str]:
        """The given columns a rule reads, through derived ones."""
        pending, given = list(rule.reads), set()
        while pending:
            name = pending.pop()
            function = self.family.derived.get(name)
            if function is None:
                given.add(name)
            else:
                pending.extend(parameters(function))
        return given

    def _enumerate(self) -> None:
        given = self.family.columns(self.problem, self.target, {})
        waiting = [r for r in self.family.rules if r is not self._limit_rule]
        table: dict[str, np.ndarray] = {}
        rest = self.raw
        waiting, (keep,) = self._sift(waiting, [(given, (1,))], rest)
        length = int(keep.sum())
        for axis in self._joined:
            rest //= len(axis.values)
            # Rules on this axis alone prune its values before they are multiplied out.
            waiting, values = self._prune(waiting, given, axis, rest * length)
            waiting, masks = self._sift(waiting, _cross_join(given, table, length, axis.name, values), rest)
            rows, chosen = np.nonzero(np.concatenate(masks))
            table = {name: column[rows] for name, column in table.items()} | {axis.name: values[chosen]}
            length = len(rows)
        self._table = table
        free = int(np.prod([len(a.values) for a in self._free], dtype=np.int64))
        self._tail, self._widths = np.empty(0, dtype=np.int64), np.ones(length, dtype=np.int64)
        if self._limited is not None and self._limit_rule is not None:
            waiting, self._tail = self._prune(waiting, given, self._limited, free * length)
            limits = np.broadcast_to(given.joined(table)[self._limited.limit], (length,))
            self._widths = np.searchsorted(self._tail, limits, side="right")
            self.removed[self._limit_rule.id] += free * int((len(self._tail) - self._widths).sum())
        self._offsets = np.concatenate(([0], np.cumsum(self._widths * free)))

    def _prune(
        self, waiting: list[Rule], given: Columns, axis: Axis, points: int
    ) -> tuple[list[Rule], np.ndarray]:
        """The values of an axis that every rule on it alone accepts; returns the rules still waiting too."""
        values = axis.column
        waiting, (keep,) = self._sift(waiting, [(given.joined({axis.name: values}), values.shape)], points)
        return waiting, values[keep]

    def _sift(
        self, waiting: list[Rule], blocks: Iterable[tuple[Columns, tuple[int, ...]]], points: int
    ) -> tuple[list[Rule], list[np.ndarray]]:
        """What every rule whose columns exist keeps of each block; returns the rules still waiting too.

        A place in a block stands for `points` points of the raw grid.
        """
        ready: list[Rule] = []
        masks, lost, left = [], dict.fromkeys(self._rules, 0), 0
        for columns, shape in blocks:
            ready = ready or [rule for rule in waiting if all(name in columns for name in rule.reads)]
            keep = np.ones(shape, dtype=bool)
            left += (alive := keep.size)
            for rule in ready if alive else ():
                with np.errstate(all="ignore"):  # of what an earlier rule removed, anything may come
                    keep &= np.asarray(columns.apply(rule.holds), dtype=bool)
                before, alive = alive, int(np.count_nonzero(keep))
                lost[rule.id] += before - alive
                if not alive:
                    break
            masks.append(keep)
        for rule in ready:
            self.removed[rule.id] += lost[rule.id] * points
            left -= lost[rule.id]
            if lost[rule.id] and not left:
                self._emptied_by = self._emptied_by or rule.id
        return [rule for rule in waiting if rule not in ready], masks

    def __len__(self) -> int:
        return int(self._offsets[-1])

    def columns(self, indices: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """One array per field at `indices` (all by default); "" stands for None."""
        wanted = np.arange(len(self)) if indices is None else np.asarray(indices, dtype=np.int64)
        rows = np.searchsorted(self._offsets, wanted, side="right") - 1
        position = wanted - self._offsets[rows]
        found = {name: column[rows] for name, column in self._table.items()}
        if self._limited is not None:
            position, within = np.divmod(position, self._widths[rows])
            found[self._limited.name] = self._tail[within]
        for axis in reversed(self._free):
            position, within = np.divmod(position, len(axis.values))
            found[axis.name] = axis.column[within]
        return {name: found[name] for name in self.axes}

    def config(self, index: int) -> Any:
        """The configuration at `index`."""
        if not 0 <= index < len(self):
            raise IndexError(f"{index} is outside a space of {len(self)}")
        row = self.columns(np.array([index]))
        return self.family.config_class(**{k: self._value(k, v[0]) for k, v in row.items()})

    def _value(self, name: str, item: Any) -> Value:
        if isinstance(item, np.integer):
            return int(item)
        return None if str(item) == "" and None in self.axes[name].values else str(item)

    def __iter__(self) -> Iterator[Any]:
        for start in range(0, len(self), 4096):
            block = self.columns(np.arange(start, min(start + 4096, len(self))))
            for row in zip(*block.values(), strict=True):
                yield self.family.config_class(
                    **{k: self._value(k, v) for k, v in zip(block, row, strict=True)}
                )

    @functools.cached_property
    def _codes(self) -> dict[str, np.ndarray]:
        """Each joined column as positions in its axis; the table is sorted by them, first axis first."""
        codes = {}
        for axis in self._joined:
            order = np.argsort(axis.column)
            codes[axis.name] = order[np.searchsorted(axis.column, self._table[axis.name], sorter=order)]
        return codes

    def legal_values(self, name: str) -> tuple[Value, ...]:
        """The values of one axis that some legal configuration has, in the axis's order."""
        axis = self.axes[name]
        if name in self._codes:
            return tuple(axis.values[code] for code in np.unique(self._codes[name]))
        if axis is self._limited:
            return tuple(axis.values[: int(self._widths.max(initial=0))])
        return tuple(axis.values)

    def _descend(self, choose: Callable[[Axis, np.ndarray], int]) -> int:
        """The row reached by choosing, axis by axis, one of the positions legal after the choices before."""
        low, high = 0, len(self._widths)
        for axis in self._joined:
            codes = self._codes[axis.name][low:high]
            bounds = np.searchsorted(codes, np.arange(len(axis.values) + 1))
            code = choose(axis, np.flatnonzero(np.diff(bounds)))
            low, high = low + int(bounds[code]), low + int(bounds[code + 1])
        return low

    def index(self, config: Any) -> int | None:
        """The index of a configuration, or None when it is not in the space."""
        snapped = self.snap(config)
        return snapped if snapped is not None and self.config(snapped) == config else None

    def snap(self, config: Any) -> int | None:
        """The index of a legal configuration near `config`; None only where the space is empty.

        Axis by axis, in their order, the value is kept where one is legal with it, else the closest taken.
        """
        if not len(self):
            return None
        fields = dataclasses.asdict(config)

        def closest(axis: Axis, legal: np.ndarray) -> int:
            return int(legal[np.argmin(np.abs(legal - self._position(axis, fields[axis.name])))])

        row = self._descend(closest)
        position = 0
        for axis in self._free:
            position = position * len(axis.values) + closest(axis, np.arange(len(axis.values)))
        if self._limited is not None:
            width = int(self._widths[row])
            within = int(np.searchsorted(self._tail, fields[self._limited.name]))
            position = position * width + min(max(within, 0), width - 1)
        return int(self._offsets[row]) + position

    @staticmethod
    def _position(axis: Axis, value: Value) -> int:
        """Where `value` stands in its axis, or would."""
        if value in axis.values:
            return axis.values.index(value)
        return bisect.bisect(axis.values, value) if isinstance(value, int) else 0  # type: ignore[type-var]

    def __contains__(self, config: object) -> bool:
        return isinstance(config, self.family.config_class) and self.index(config) is not None

    def sample(self, n: int, seed: int) -> list[Any]:
        """`n` distinct configurations drawn uniformly (all of them, shuffled, when there are fewer)."""
        rng = np.random.default_rng(seed)
        size = len(self)
        drawn = rng.permutation(size) if n * 2 >= size else rng.choice(size, size=n, replace=False)
        return [self.config(int(i)) for i in drawn[:n]]

    def draw(self, rng: np.random.Generator) -> int:
        """The index of one configuration drawn axis by axis, legal values equally likely.

        Unlike `sample`, it gives a rare value of an axis its share.
        """
        row = self._descend(lambda axis, legal: int(rng.choice(legal)))
        return int(rng.integers(self._offsets[row], self._offsets[row + 1]))

    def to_dataframe(self) -> "pd.DataFrame":
        """Every configuration as a row, one column a field."""
        import pandas as pd

        columns = {
            name: [self._value(name, v) for v in column.tolist()] if column.dtype.kind == "U" else column
            for name, column in self.columns().items()
        }
        return pd.DataFrame(columns)

    def broken(self, config: Any, kind: str = "illegal") -> tuple[str, ...]:
        """Ids of the rules a configuration breaks."""
        columns = self.family.config_columns(self.problem, self.target, config)
        return tuple(rule.id for rule in broken_rules(self.family.rules, columns, kind))

    def canonical(self, config: Any) -> Any:
        """The canonical spelling of a legal configuration: it generates the same program."""
        # One rule's spelling may break another; each is applied once or twice.
        for _ in range(2 * len(self.family.rules)):
            columns = self.family.config_columns(self.problem, self.target, config)
            broken = broken_rules(self.family.rules, columns, kind="canonical")
            spelling = next((rule.spelling for rule in broken if rule.spelling), None)
            if spelling is None:
                break
            fields = columns.apply(spelling)
            config = dataclasses.replace(config, **{name: plain(value) for name, value in fields.items()})
        return config

    def explain(self, config: Any) -> Explanation:
        """Every rule a configuration breaks, what derives from it, and the nearest legal repair."""
        columns = self.family.config_columns(self.problem, self.target, config)
        broken = violations(self.family.rules, columns)
        spelt = self.broken(config, kind="canonical")
        derived = {}
        for name in self.family.reported:
            try:
                derived[name] = plain(columns[name])
            except ZeroDivisionError:
                continue
        repair = None
        if broken:
            repair = self.nearest(config, {rule.partition(".")[2] for rule in spelt})
        elif spelt:
            repair = self.canonical(config)
        return Explanation(not broken, broken, not spelt and not broken, derived, repair)

    def nearest(self, config: Any, spelt: Collection[str] = ()) -> Any | None:
        """The configuration closest to `config`: fewest changed fields, then the smallest steps.

        A change of a field in `spelt`, which only has another canonical value, counts next to nothing.
        """
        if not len(self):
            return None
        fields = {k: "" if v is None else v for k, v in dataclasses.asdict(config).items()}
        size = len(next(iter(self._table.values())))
        changed, distance = np.zeros(size), np.zeros(size)
        for name, column in self._table.items():
            differs = column != fields[name]
            changed += differs * (_SPELLING if name in spelt else 1.0)
            if column.dtype.kind == "U":
                distance += differs
            else:
                distance += np.abs(np.log2(np.maximum(column, 1) / max(int(fields[name]), 1)))
        within = np.ones(size, dtype=np.int64)
        if self._limited is not None:
            asked = int(fields[self._limited.name])
            within = np.clip(np.searchsorted(self._tail, asked, side="right"), 1, self._widths)
            weight = _SPELLING if self._limited.name in spelt else 1.0
            changed += weight * (self._tail[within - 1] != asked)
        best = int(np.lexsort((distance, changed))[0])
        found = {name: self._value(name, column[best]) for name, column in self._table.items()}
        for axis in self._free:
            kept = fields[axis.name] in axis.column
            found[axis.name] = self._value(axis.name, fields[axis.name]) if kept else axis.values[0]
        if self._limited is not None:
            found[self._limited.name] = self._value(self._limited.name, self._tail[within[best] - 1])
        return self.family.config_class(**{name: found[name] for name in self.axes})

    def neighbours(self, config: Any) -> list[Any]:
        """The legal configurations that differ in one field, by one step of its axis."""
        near = []
        for name, axis in self.axes.items():
            value = getattr(config, name)
            if value not in axis.values:
                continue
            at = axis.values.index(value)
            for step in (at - 1, at + 1):
                if 0 <= step < len(axis.values):
                    other = dataclasses.replace(config, **{name: axis.values[step]})
                    if other in self:
                        near.append(other)
        return near

    def require_any(self) -> None:
        """Raises NoLegalConfigError, naming the rule that removed the last points, if there are none."""
        if len(self):
            return
        columns = self.family.config_columns(self.problem, self.target, self.family.config_class())
        broken = violations(tuple(r for r in self.family.rules if r.id == self._emptied_by), columns)
        told = (
            f"{self._emptied_by}: {broken[0].message}"
            if broken
            else f"{self._emptied_by} removed the last ones"
        )
        where = f"{self.family.name} configuration on {self.target.device_kind}"
        raise NoLegalConfigError(
            f"{self.problem} has no legal {where}; {told}",
            fix=self._nearest_sizes() or "change the shape or the type",
        )

    def _nearest_sizes(self) -> str:
        """The nearest problems that have a legal configuration: one size changed, else all rounded up."""
        sizes = {name: size for name in ("m", "n", "k") if (size := getattr(self.problem, name, 0))}
        changes = [
            (abs(other - size) / size, name, other)
            for name, size in sizes.items()
            for step in _SIZE_STEPS
            for other in (-(-size // step) * step, size // step * step)
            if 0 < other != size
        ]
        tried = [(name, other) for _, name, other in sorted(set(changes))]
        nearest = next((change for change in tried if self._has_some(dict([change]))), None)
        if nearest is None:
            rounded = {name: -(-size // _SIZE_STEPS[-1]) * _SIZE_STEPS[-1] for name, size in sizes.items()}
            told = " ".join(f"{name}={other}" for name, other in rounded.items())
            return f"a size that has some is {told}" if self._has_some(rounded) else ""
        name, size = nearest
        above = size > sizes[name]
        beyond = (o for n, o in tried if n == name and (o > sizes[name]) != above)
        other = next((o for o in beyond if self._has_some({name: o})), None)
        if other is None:
            return f"the nearest size that has some is {name}={size}"
        return f"the nearest sizes that have some are {name}={size} and {name}={other}"

    def _has_some(self, sizes: dict[str, int]) -> bool:
        problem = dataclasses.replace(self.problem, **sizes)  # type: ignore[type-var]
        return len(LegalSpace(self.family, problem, self.target)) > 0


def _cross_join(
    given: Columns, table: Mapping[str, np.ndarray], length: int, name: str, values: np.ndarray
) -> Iterator[tuple[Columns, tuple[int, int]]]:
    """Blocks of rows of `table` x `values`, never multiplied out: (rows, 1) against (values,).

    What is derived from the rows alone is computed once a row.
    """
    rows = max(1, _BLOCK // max(1, len(values)))
    for start in range(0, max(1, length), rows):
        block = {n: column[start : start + rows, None] for n, column in table.items()}
        yield given.joined(block | {name: values}), (min(rows, length - start), len(values))

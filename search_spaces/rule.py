"""A rule: one vectorised predicate over named columns, used to enumerate, to explain and to repair."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

# `lowered`, `compiled` and `ran` are the rung at which JAX, ptxas or the driver would have noticed;
# `never` is a wrong result or a hang that nobody reports.
Noticed = Literal["lowered", "compiled", "ran", "never"]


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """One reason a configuration is illegal, or not the canonical spelling of its program.

    `holds` takes columns by its parameter names (arrays or scalars; combine with `&`, never `and`).
    `have` and `need` are templates over the same columns. `source` is the JAX file, the hardware
    manual or "own kernel" where our kernel's structure is the reason. `decides_on` names
    the architectures where it may be the only broken rule, all by default; elsewhere, or with (), others
    imply it and it stands for its message. `spelling` of a canonical rule gives, of such columns too, the
    fields that spell the same program so that the rule holds.
    """

    id: str
    holds: Callable[..., Any]
    have: str
    need: str
    remedy: str
    source: str
    noticed: Noticed = "lowered"
    decides_on: tuple[str, ...] | None = None
    kind: Literal["illegal", "canonical"] = "illegal"
    spelling: Callable[..., Mapping[str, Any]] | None = None

    def decides(self, arch: str) -> bool:
        """Whether the rule may decide alone there."""
        return self.decides_on is None or arch in self.decides_on

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns the predicate reads."""
        return parameters(self.holds)


@dataclasses.dataclass(frozen=True, slots=True)
class Violation:
    """A broken rule, with what the configuration has and what it needs."""

    rule: str
    message: str
    have: str
    need: str

    def to_dict(self) -> dict[str, str]:
        """Plain strings, as `explain --json` prints them."""
        return dataclasses.asdict(self)


@functools.cache
def parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Parameter names of a predicate or of a derived quantity."""
    return tuple(inspect.signature(function).parameters)


class Columns:
    """Named values (arrays of one length, or scalars) with derived quantities computed on demand."""

    def __init__(self, given: Mapping[str, Any], derived: Mapping[str, Callable[..., Any]]) -> None:
        self._values = dict(given)
        self._derived = derived

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            function = self._derived[name]
            self._values[name] = function(*(self[p] for p in parameters(function)))
        return self._values[name]

    def __contains__(self, name: object) -> bool:
        if name in self._values:
            return True
        function = self._derived.get(str(name))
        return function is not None and all(p in self for p in parameters(function))

    def apply(self, function: Callable[..., Any]) -> Any:
        """`function` of the columns its parameters name."""
        return function(*(self[p] for p in parameters(function)))

    def joined(self, more: Mapping[str, Any]) -> "Columns":
        """These columns and `more`; arrays broadcast against each other."""
        return Columns({**self._values, **more}, self._derived)


def broken_rules(rules: tuple[Rule, ...], columns: Columns, kind: str = "illegal") -> tuple[Rule, ...]:
    """Every rule of `kind` that one configuration (scalar columns) breaks."""
    broken = []
    for rule in rules:
        # A rule whose inputs another broken rule left undefined (a division by zero) stays silent.
        if rule.kind != kind or not all(p in columns for p in rule.reads):
            continue
        with np.errstate(all="ignore"):
            try:
                holds = bool(columns.apply(rule.holds))
            except ZeroDivisionError:
                continue
        if not holds:
            broken.append(rule)
    return tuple(broken)


def violations(rules: tuple[Rule, ...], columns: Columns, kind: str = "illegal") -> tuple[Violation, ...]:
    """Every rule of `kind` that one configuration (scalar columns) breaks, and how."""
    fill = _Template(columns).fill
    found = []
    for rule in broken_rules(rules, columns, kind):
        have, need, remedy = map(fill, (rule.have, rule.need, rule.remedy))
        found.append(Violation(rule.id, f"have {have}, need {need}: {remedy}", have, need))
    return tuple(found)


class _Template:
    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def fill(self, template: str) -> str:
        return template.format_map(self)

    def __getitem__(self, name: str) -> Any:
        return plain(self._columns[name])


def plain(value: Any) -> Any:
    """A NumPy scalar, of whatever make, as the Python value it is."""
    return value.item() if isinstance(value, (np.generic, np.ndarray)) else value

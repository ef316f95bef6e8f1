"""Every rule counts: with one deleted, or one constant a step off, recorded verdicts no longer fit.

`make mutate`, or `python -m tests.proof.mutate`, holds each mutant of each rule against the verdicts in
tests/proof/verdicts, which `make prove` re-makes, and lists those that nothing tells from the real rule.
"""

import dataclasses
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tuner.proof.corpus import Verdicts, read_corpus
from tuner.search_spaces.family import KernelFamily, families
from tuner.search_spaces.rule import Columns, Rule

FOLDER = Path(__file__).with_name("verdicts")


@dataclasses.dataclass(frozen=True, slots=True)
class Points:
    """The recorded points of one problem as columns, with what holds of each."""

    columns: Columns
    legal: np.ndarray
    canonical: np.ndarray


def recorded(name: str) -> list[Points]:
    """Every recorded point of a family, all architectures."""
    found = [v for path in sorted(FOLDER.glob("*.jsonl.gz")) for v in read_corpus(path) if v.family == name]
    return [_points(verdicts) for verdicts in found]


def _points(verdicts: Verdicts) -> Points:
    space = verdicts.space()
    fields = {
        name: np.array(["" if config[name] is None else config[name] for config in verdicts.configs])
        for name in verdicts.configs[0]
    }
    columns = space.family.columns(space.problem, space.target, fields)
    return Points(columns, np.array(verdicts.legal), np.array(verdicts.canonical))


def mutants(rule: Rule) -> Iterator[tuple[str, Callable[..., Any]]]:
    """The rule left out, and with each of its whole numbers one step up and one step down."""
    yield "deleted", lambda: True
    function = rule.holds
    code = function.__code__
    for place, value in enumerate(code.co_consts):
        for step in _steps(value):
            constants = (*code.co_consts[:place], value + step, *code.co_consts[place + 1 :])
            changed = types.FunctionType(
                code.replace(co_consts=constants), function.__globals__, closure=function.__closure__
            )
            yield f"{value} -> {value + step}", changed
    for name in code.co_names:
        for step in _steps(value := function.__globals__.get(name)):
            scope = {**function.__globals__, name: value + step}
            changed = types.FunctionType(code, scope, closure=function.__closure__)
            yield f"{name} = {value + step}", changed


def _steps(value: Any) -> tuple[int, ...]:
    return (-1, 1) if isinstance(value, int) and not isinstance(value, bool) else ()


def told_apart(rule: Rule, mutant: Callable[..., Any], family: KernelFamily, points: list[Points]) -> bool:
    """Whether some recorded verdict fits the rule and not the mutant."""
    others = [r for r in family.rules if r.kind == rule.kind and r is not rule]
    for found in points:
        with np.errstate(all="ignore"):
            rest = np.ones(len(found.legal), dtype=bool)
            for other in others:
                rest &= np.asarray(found.columns.apply(other.holds), dtype=bool)
            try:
                holds = np.broadcast_to(np.asarray(_applied(found, rule, mutant), dtype=bool), rest.shape)
            except IndexError:
                # A number that was a place in a tuple: no rule any more.
                return True
        fits = found.legal if rule.kind == "illegal" else found.canonical
        judged = np.ones(len(rest), dtype=bool) if rule.kind == "illegal" else found.legal
        if np.any(((rest & holds) != fits) & judged):
            return True
    return False


def _applied(found: Points, rule: Rule, mutant: Callable[..., Any]) -> Any:
    return mutant(*(found.columns[name] for name in rule.reads)) if mutant.__code__.co_argcount else mutant()


def survivors(family: KernelFamily) -> Iterator[tuple[str, str]]:
    """Rule and mutation that no recorded verdict tells from the rule; implied rules have none."""
    points = recorded(family.name)
    for rule in family.rules:
        if rule.decides_on == ():
            continue
        for what, mutant in mutants(rule):
            if not told_apart(rule, mutant, family, points):
                yield rule.id, what


def main() -> int:
    """Prints the survivors of every family; exit 1 when a deleted rule is among them."""
    deleted = 0
    for family in families().values():
        count = sum(1 for rule in family.rules for _ in mutants(rule))
        left = list(survivors(family))
        deleted += sum(what == "deleted" for _, what in left)
        sys.stdout.write(f"{family.name}: {count} mutants, {len(left)} not told apart\n")
        for rule, what in left:
            sys.stdout.write(f"  {rule}: {what}\n")
    return 1 if deleted else 0


if __name__ == "__main__":
    sys.exit(main())

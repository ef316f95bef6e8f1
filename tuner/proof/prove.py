"""Rules against JAX and ptxas: draws points, asks both sides, and keeps every disagreement."""

import concurrent.futures
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from tuner.compiling import CompileTask
from tuner.farm import Farm
from tuner.search_spaces.architecture import Target
from tuner.search_spaces.errors import UnsupportedError
from tuner.search_spaces.family import KernelFamily, families
from tuner.search_spaces.rule import Rule
from tuner.search_spaces.space import LegalSpace

from .points import Point, draw_points
from .verdict import verdict

Verdict = dict[str, Any]
# Rungs at which a rule's violation runs unnoticed past lowering and ptxas: it faults, hangs or is wrong.
_BEYOND_COMPILERS = ("ran", "never")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """A point on which rules and compilers differ; problem and configuration reproduce it."""

    family: str
    problem: str
    config: dict[str, Any]
    rules: tuple[str, ...]
    what: str


@dataclasses.dataclass(slots=True)
class RuleCount:
    """What one rule did: points it decided alone, and points it refuses that JAX and ptxas let pass."""

    alone: int = 0
    absorbed: int = 0


@dataclasses.dataclass(slots=True)
class Proof:
    """The outcome of one family on one target."""

    family: KernelFamily
    target: Target
    rung: str
    points: Counter[str] = dataclasses.field(default_factory=Counter)
    by_rule: dict[str, RuleCount] = dataclasses.field(default_factory=dict)
    disagreements: list[Disagreement] = dataclasses.field(default_factory=list)
    judged: list[tuple[Point, Verdict]] = dataclasses.field(default_factory=list)

    @property
    def undecided(self) -> tuple[str, ...]:
        """Rules no point was decided by alone, other than those marked as implied."""
        rules = (r for r in self.family.rules if not r.implied)
        return tuple(r.id for r in rules if not self.by_rule[r.id].alone)

    @property
    def holds(self) -> bool:
        """No disagreement, and no rule without a point."""
        return not self.disagreements and not self.undecided


def provable(target: Target, kernel: str = "") -> list[KernelFamily]:
    """The families with a probe problem that runs on the target.

    Raises:
      UnsupportedError: there is none.
    """
    found = [f for f in families().values() if kernel in ("", f.kernel, f.name) and spaces(f, target)]
    if not found:
        raise UnsupportedError(f"no kernel {kernel} runs on {target.arch}", fix="choose another --arch")
    return found


def spaces(family: KernelFamily, target: Target) -> list[LegalSpace]:
    """The spaces of the family's probe problems on the target."""
    return [LegalSpace(family, p, target) for p in family.probes if not family.supports(p, target)]


def prove(
    family: KernelFamily,
    target: Target,
    farm: Farm,
    *,
    samples: int,
    seed: int,
    compiled: int,
    listener: Callable[[int, int], None] = lambda done, of: None,
) -> Proof:
    """Holds a family's rules against JAX's lowering for the target, and against ptxas.

    samples: points in all, spread over the probe problems. compiled: legal points that ptxas is asked
    about, beside every illegal one that JAX lowers; 0 asks JAX alone, and needs no CUDA plugin.
    """
    rng = np.random.default_rng(seed)
    probes = spaces(family, target)
    share = -(-samples // len(probes))
    points = [point for space in probes for point in draw_points(space, share, rng)]
    proof = Proof(family, target, "compiled" if compiled else "lowered")
    proof.by_rule = {rule.id: RuleCount() for rule in family.rules}
    chosen = {id(p) for p in _choose([p for p in points if p.legal], compiled, rng)}
    asked: list[tuple[Point, Any]] = []
    for point in points:
        compile_it = compiled > 0 and (not point.legal or id(point) in chosen)
        asked.append((point, farm.submit(verdict, _task(point, point.config, bool(compiled), compile_it))))
    twins = {
        id(point): farm.submit(verdict, _task(point, point.twin, bool(compiled), False))
        for point in points
        if point.twin is not None
    }
    _judge_all(proof, asked, twins, listener)
    return proof


def _choose(points: Sequence[Point], count: int, rng: np.random.Generator) -> list[Point]:
    order = rng.permutation(len(points))[:count]
    return [points[int(i)] for i in order]


def _task(point: Point, config: Any, compilable: bool, compile_it: bool) -> dict[str, Any]:
    space = point.space
    task = CompileTask(
        family=space.family.address,
        problem=space.problem.to_dict(),
        config=dataclasses.asdict(config),
        target=space.target.to_dict(),
    )
    return {**task.to_dict(), "compilable": compilable, "compile": compile_it}


def _judge_all(
    proof: Proof,
    asked: Iterable[tuple[Point, "concurrent.futures.Future[Any]"]],
    twins: dict[int, "concurrent.futures.Future[Any]"],
    listener: Callable[[int, int], None],
) -> None:
    asked = list(asked)
    rules = {rule.id: rule for rule in proof.family.rules}
    seen: dict[tuple[str, str], Any] = {}
    for done, (point, future) in enumerate(asked, start=1):
        found = _answered(future)
        what = _judge(point, found, [rules[name] for name in point.broken])
        if not what and point.twin is not None:
            other = _answered(twins[id(point)])
            if found["digest"] != other["digest"]:
                what = f"not the program of its canonical form {_changed(point.config, point.twin)}"
        elif not what and point.legal and found["lowered"]:
            first = seen.setdefault((point.space.problem.key, found["digest"]), point.config)
            if first != point.config:
                what = f"the same program as another canonical configuration, {_changed(point.config, first)}"
        if what:
            proof.disagreements.append(_disagreement(point, what))
        _count(proof, point, found)
        proof.judged.append((point, found))
        listener(done, len(asked))


def _answered(future: "concurrent.futures.Future[Any]") -> Verdict:
    answer: Verdict = future.result()[0]
    if "lowered" in answer:
        return answer
    # The worker died of it, or outlived its deadline: LLVM aborts on what it cannot select.
    return {
        "lowered": True,
        "compiled": False,
        "refused_by": "ptxas",
        "reason": answer["reason"],
        "digest": "",
    }


def _judge(point: Point, found: Verdict, broken: Sequence[Rule]) -> str:
    """What the two sides disagree about, or ""."""
    told = f"{found['refused_by']} says {found['reason']}"
    if found["refused_by"] == "kernel":
        return f"our own code raised, which is no verdict: {found['reason']}"
    if point.missing:
        return "no rule is broken, but it is not in the space: an axis lacks a value"
    if point.legal:
        return "" if found["lowered"] and found["compiled"] is not False else f"legal, but {told}"
    if not found["lowered"] or found["compiled"] is False:
        return ""
    passed = "JAX lowers it" if found["compiled"] is None else "JAX and ptxas take it"
    claims = ("lowered",) if found["compiled"] is None else ("lowered", "compiled")
    wrong = [rule.id for rule in broken if rule.noticed in claims]
    return f"illegal by {', '.join(wrong)}, but {passed}" if wrong else ""


def _count(proof: Proof, point: Point, found: Verdict) -> None:
    proof.points[point.origin] += 1
    proof.points["legal" if point.legal else "illegal"] += 1
    if found["compiled"] is not None:
        proof.points["compiled"] += 1
    decided = point.broken or point.spelt
    if len(decided) == 1:
        proof.by_rule[decided[0]].alone += 1
    if point.broken and found["lowered"] and found["compiled"] is not False:
        for name in point.broken:
            proof.by_rule[name].absorbed += 1


def _disagreement(point: Point, what: str) -> Disagreement:
    return Disagreement(
        family=point.space.family.name,
        problem=str(point.space.problem),
        config=dataclasses.asdict(point.config),
        rules=point.broken,
        what=what,
    )


def _changed(config: Any, other: Any) -> str:
    """The fields of `other` that differ, as name=value."""
    mine, theirs = dataclasses.asdict(config), dataclasses.asdict(other)
    return " ".join(f"{name}={theirs[name]}" for name in mine if mine[name] != theirs[name])

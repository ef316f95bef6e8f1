"""Rules against JAX and ptxas: draws points, asks both sides, and keeps every disagreement."""

import concurrent.futures
import dataclasses
from collections import Counter
from collections.abc import Callable, Sequence
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
from .shrink import kind_of, smallest
from .verdict import verdict

Verdict = dict[str, Any]
Future = concurrent.futures.Future[Any]
Listener = Callable[[int, int], None]

# Kinds of disagreement that are shrunk to a small reproducer; the points of the others are told as drawn.
_MOST_SHRUNK = 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """Points on which rules and compilers differ alike; problem and configuration reproduce it.

    rules: the broken ones. count: how many points showed it.
    """

    point: Point
    rules: tuple[str, ...]
    what: str
    count: int


@dataclasses.dataclass(slots=True)
class RuleCount:
    """What one rule did: points it decided alone, and points it refuses that JAX and ptxas let pass."""

    alone: int = 0
    absorbed: int = 0


@dataclasses.dataclass(slots=True)
class Proof:
    """The outcome of one family on one target; `judged` holds every point and its verdict."""

    family: KernelFamily
    target: Target
    compiled: bool
    points: Counter[str] = dataclasses.field(default_factory=Counter)
    by_rule: dict[str, RuleCount] = dataclasses.field(default_factory=dict)
    disagreements: list[Disagreement] = dataclasses.field(default_factory=list)
    judged: list[Point] = dataclasses.field(default_factory=list)

    @property
    def undecided(self) -> tuple[str, ...]:
        """Rules that may decide alone here, and no point did they decide."""
        rules = (r for r in self.family.rules if r.decides(self.target.arch))
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
    found = [f for f in families().values() if kernel in ("", f.kernel, f.name) and probed(f, target)]
    if not found:
        what = f"no kernel {kernel!r}" if kernel else "no kernel"
        raise UnsupportedError(f"{what} runs on {target.arch}", fix="choose another architecture")
    return found


def probed(family: KernelFamily, target: Target) -> list[LegalSpace]:
    """The spaces of the family's probe problems on the target."""
    return [LegalSpace(family, p, target) for p in family.probes if not family.supports(p, target)]


def prove(
    family: KernelFamily,
    target: Target,
    farm: Farm,
    *,
    samples: int,
    seed: int,
    compiled: int = 0,
    listener: Listener = lambda done, of: None,
) -> Proof:
    """Holds a family's rules against JAX's lowering for the target, and against ptxas.

    samples: points in all, spread over the probe problems. compiled: legal points that ptxas is asked
    about, beside every illegal one that JAX lowers; 0 asks JAX alone, and needs no CUDA plugin.
    """
    rng = np.random.default_rng(seed)
    spaces = probed(family, target)
    points = [p for space in spaces for p in draw_points(space, -(-samples // len(spaces)), rng)]
    proof = Proof(family, target, compiled > 0)
    proof.by_rule = {rule.id: RuleCount() for rule in family.rules}
    trial = _Trial(proof, farm)
    legal = [point for point in points if point.legal]
    chosen = {id(legal[i]) for i in rng.permutation(len(legal))[:compiled]}
    asked = [trial.ask(point, compile_it=not point.legal or id(point) in chosen) for point in points]
    for done, (point, futures) in enumerate(zip(points, asked, strict=True), start=1):
        trial.judge(point, futures)
        listener(done, len(points))
    proof.disagreements = trial.shrunk()
    return proof


class _Trial:
    """Asks workers, compares what they say with the rules, and counts."""

    def __init__(self, proof: Proof, farm: Farm) -> None:
        self._proof, self._farm = proof, farm
        self._rules = {rule.id: rule for rule in proof.family.rules}
        self._programs: dict[tuple[str, str], Any] = {}
        self._found: dict[tuple[tuple[str, ...], str], list[tuple[Point, str]]] = {}

    def ask(self, point: Point, *, compile_it: bool) -> tuple[Future, Future | None]:
        """Futures of the verdicts on the point, and on its twin or the neighbour it is beside."""
        space, compilable = point.space, self._proof.compiled

        def submit(config: Any, *, compiling: bool) -> Future:
            task = CompileTask(
                family=space.family.address,
                problem=space.problem.to_dict(),
                config=dataclasses.asdict(config),
                target=space.target.to_dict(),
            )
            request = {**task.to_dict(), "compilable": compilable, "compile": compiling}
            return self._farm.submit(verdict, request)

        own = submit(point.config, compiling=compilable and compile_it)
        other = point.twin or point.beside
        return own, None if other is None else submit(other, compiling=False)

    def judge(self, point: Point, futures: tuple[Future, Future | None]) -> None:
        """Compares rules and compilers on one point, and counts it."""
        own, other = futures
        found = _answer(own)
        what = self._difference(point, found, None if other is None else _answer(other))
        if what:
            self._found.setdefault((point.broken, kind_of(what)), []).append((point, what))
        self._count(point, found)

    def _difference(self, point: Point, found: Verdict, other: Verdict | None) -> str:
        if what := _disagreement(point, found, [self._rules[name] for name in point.broken]):
            return what
        if "" in (found["digest"], "-" if other is None else other["digest"]):
            return ""
        same = other is not None and found["digest"] == other["digest"]
        if point.twin is not None:
            return "" if same else f"not the program of its canonical form: {_changed(point, point.twin)}"
        if not point.legal:
            return ""
        first = point.beside if same else self._first_with(point, found["digest"])
        if first == point.config:
            return ""
        return f"the same program as another canonical configuration: {_changed(point, first)}"

    def _first_with(self, point: Point, digest: str) -> Any:
        """The first configuration seen to generate the program."""
        return self._programs.setdefault((point.space.problem.key, digest), point.config)

    def _count(self, point: Point, found: Verdict) -> None:
        proof, decided = self._proof, point.broken or point.spelt
        proof.judged.append(point)
        proof.points.update((point.origin, "legal" if point.legal else "illegal"))
        proof.points["compiled"] += found["compiled"] is not None
        if len(decided) == 1:
            proof.by_rule[decided[0]].alone += 1
        if found["lowered"] and found["compiled"] is not False:
            for name in point.broken:
                proof.by_rule[name].absorbed += 1

    def shrunk(self) -> list[Disagreement]:
        """One disagreement a kind, with a small reproducer."""

        def again(point: Point) -> str:
            own, other = self.ask(point, compile_it=True)
            return self._difference(point, _answer(own), None if other is None else _answer(other))

        kept = []
        for place, ((rules, _), shown) in enumerate(self._found.items()):
            point, what = shown[0]
            if place < _MOST_SHRUNK:
                point = smallest(point, what, again)
                what = again(point) or what
            kept.append(Disagreement(point=point, rules=rules, what=what, count=len(shown)))
        return kept


def _answer(future: Future) -> Verdict:
    answer: Verdict = future.result()[0]
    if "lowered" in answer:
        return answer
    # LLVM aborts on what it cannot select, and takes the worker with it. To run out of time refuses nothing.
    reason, in_time = answer["reason"], not answer["reason"].startswith("TIMEOUT")
    return {
        "lowered": True,
        "compiled": False if in_time else None,
        "refused_by": "ptxas" if in_time else "",
        "reason": reason,
        "digest": "",
        "smem_bytes": None,
    }


def _disagreement(point: Point, found: Verdict, broken: Sequence[Rule]) -> str:
    """What rules and compilers disagree about, or ""."""
    if found["refused_by"] == "kernel":
        return f"our own code raised, which is no verdict: {found['reason']}"
    if point.missing:
        return "no rule is broken, but it is not in the space"
    refused = not found["lowered"] or found["compiled"] is False
    if point.legal:
        if refused:
            return f"legal, but {found['refused_by']} says {found['reason']}"
        wanted, launched = _smem_bytes(point), found["smem_bytes"]
        return "" if None in (wanted, launched) or wanted == launched else _other_smem(wanted, launched)
    if refused:
        return ""
    passed = "JAX lowers it" if found["compiled"] is None else "JAX and ptxas take it"
    claims = ("lowered",) if found["compiled"] is None else ("lowered", "compiled")
    wrong = [rule.id for rule in broken if rule.noticed in claims]
    return f"illegal by {', '.join(wrong)}, but {passed}" if wrong else ""


def _smem_bytes(point: Point) -> int | None:
    """Shared memory as the family derives it; None where it does not."""
    space = point.space
    columns = space.family.config_columns(space.problem, space.target, point.config)
    return int(columns["smem_bytes"]) if "smem_bytes" in columns else None


def _other_smem(derived: int | None, launched: int) -> str:
    return f"shared memory is not as derived: {derived} bytes, and the launch asks for {launched}"


def _changed(point: Point, other: Any) -> str:
    """The fields of `other` that differ, as name=value."""
    mine, theirs = dataclasses.asdict(point.config), dataclasses.asdict(other)
    return " ".join(f"{name}={theirs[name]}" for name in mine if mine[name] != theirs[name])

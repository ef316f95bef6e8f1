"""Verdicts on file: points with what rules, JAX and ptxas agreed on, one JSON object a line, compressed."""

import dataclasses
import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from tuner.search_spaces.architecture import reference_target
from tuner.search_spaces.family import named_family
from tuner.search_spaces.space import LegalSpace

from .prove import Proof


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """The points of one problem on one architecture.

    configs: field mappings. legal: whether each runs and is right. canonical: whether a legal one is spelt
    the one way that counts.
    """

    family: str
    arch: str
    problem: dict[str, Any]
    configs: Sequence[dict[str, Any]]
    legal: Sequence[bool]
    canonical: Sequence[bool]

    def space(self) -> LegalSpace:
        """The space the points were drawn for."""
        family = named_family(self.family)
        return LegalSpace(family, family.problem_class.from_dict(self.problem), reference_target(self.arch))


def write_corpus(path: str, proofs: Iterable[Proof]) -> None:
    """Writes every judged point, grouped by problem; the same proofs give the same bytes."""
    lines = [json.dumps(dataclasses.asdict(verdicts)) for proof in proofs for verdicts in _grouped(proof)]
    data = "".join(f"{line}\n" for line in lines).encode()
    with Path(path).open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=0) as packed:
        packed.write(data)


def _grouped(proof: Proof) -> Iterator[Verdicts]:
    for problem in dict.fromkeys(point.space.problem for point in proof.judged):
        points = [point for point in proof.judged if point.space.problem == problem]
        yield Verdicts(
            family=proof.family.name,
            arch=proof.target.arch,
            problem=problem.to_dict(),
            configs=[dataclasses.asdict(point.config) for point in points],
            legal=[point.legal for point in points],
            canonical=[not point.spelt for point in points],
        )


def read_corpus(path: Path) -> list[Verdicts]:
    """What `write_corpus` wrote."""
    with gzip.open(path, "rt") as file:
        return [Verdicts(**json.loads(line)) for line in file]

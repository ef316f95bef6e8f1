"""Legal spaces and configurations that several tests look at; a space is enumerated once."""

import csv
import dataclasses
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tuner.search_spaces import matmul_hopper
from tuner.search_spaces.architecture import Target, reference_target
from tuner.search_spaces.family import family_for
from tuner.search_spaces.problem import CopyProblem, MatmulProblem, Problem
from tuner.search_spaces.rule import violations
from tuner.search_spaces.space import LegalSpace

SM_90 = reference_target("sm_90")
LANDSCAPE_BEST = Path(__file__).with_name("landscape_best.csv")
BIG = MatmulProblem(m=4096, n=8192, k=4096, dtype="bfloat16")
# Small enough to look at closely, with every axis still in play.
PROBLEMS: tuple[Problem, ...] = (
    MatmulProblem(m=768, n=1536, k=512, dtype="float16", rhs="nk"),
    MatmulProblem(m=256, n=256, k=128, dtype="bfloat16", out_dtype="float32", rhs="nk"),
    MatmulProblem(m=128, n=64, k=32, dtype="bfloat16"),
    CopyProblem(m=768, n=1536, dtype="float32"),
    CopyProblem(m=3, n=200_000, dtype="bfloat16"),
    CopyProblem(m=32, n=128, dtype="int8"),
)


@functools.cache
def space_of(problem: Problem, target: Target = SM_90) -> LegalSpace:
    return LegalSpace(family_for(problem, target), problem, target)


def broken(space: LegalSpace, config: Any) -> tuple[str, ...]:
    """Every rule that `config` breaks, of either kind."""
    columns = space.family.config_columns(space.problem, space.target, config)
    found = (violations(space.family.rules, columns, kind=kind) for kind in ("illegal", "canonical"))
    return tuple(violation.rule for kind in found for violation in kind)


def changed(one: Any, other: Any) -> set[str]:
    """The fields in which two configurations differ."""
    fields = dataclasses.asdict(other)
    return {name for name, value in dataclasses.asdict(one).items() if value != fields[name]}


def landscape_best() -> Iterator[tuple[MatmulProblem, matmul_hopper.TuningConfig]]:
    """The ten fastest of JAX's own kernel for each recorded shape, in our fields and in canonical form."""
    with LANDSCAPE_BEST.open() as file:
        for row in csv.DictReader(file):
            problem = MatmulProblem(m=int(row["m"]), n=int(row["n"]), k=int(row["k"]), dtype="bfloat16")
            config = matmul_hopper.TuningConfig(
                tile_m=int(row["tile_m"]),
                tile_n=int(row["tile_n"]),
                tile_k=int(row["tile_k"]),
                max_concurrent_steps=int(row["max_concurrent_steps"]),
                # JAX's kernel takes None for the whole tile.
                epi_tile_m=int(row["epi_tile_m"] or row["tile_m"]),
                epi_tile_n=int(row["epi_tile_n"] or row["tile_n"]),
                grid_minor_dim=row["grid_minor_dim"],
                wg_dimension=row["wg_dimension"],
                cluster_dimension=row["cluster_dimension"] or None,
            )
            space = space_of(problem)
            extent = space.family.config_columns(problem, space.target, config)["grid_minor_extent"]
            width = min(int(row["grid_tile_width"]), int(extent))
            yield problem, dataclasses.replace(config, grid_tile_width=width)

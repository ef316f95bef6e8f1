"""The legal space is exactly the configurations that break no rule, however it is looked at."""

import dataclasses
import itertools
import json
from typing import Any

import hypothesis
import numpy as np
import pandas as pd
import pytest
from hypothesis import strategies

from tests.search_spaces import golden
from tests.search_spaces.spaces import BIG, PROBLEMS, broken, changed, landscape_best, space_of
from tuner.search_spaces.architecture import reference_target
from tuner.search_spaces.family import Axis, KernelFamily, families, family_for
from tuner.search_spaces.problem import CopyProblem, MatmulProblem, Problem
from tuner.search_spaces.rule import violations
from tuner.search_spaces.space import LegalSpace

SM_90 = reference_target("sm_90")
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=str)


def some_indices(space: LegalSpace, count: int) -> list[int]:
    drawn = np.random.default_rng(0).integers(0, len(space), count)
    return sorted({0, len(space) - 1, *map(int, drawn)})


@each_problem
def test_every_point_is_kept_or_removed_by_one_rule(problem: Problem) -> None:
    space = space_of(problem)
    assert len(space) + sum(space.removed.values()) == space.raw
    assert set(space.removed) == {rule.id for rule in space.family.rules}


@each_problem
def test_index_inverts_config(problem: Problem) -> None:
    space = space_of(problem)
    for index in some_indices(space, 300):
        assert space.index(space.config(index)) == index


@each_problem
def test_outside_the_space(problem: Problem) -> None:
    space = space_of(problem)
    for index in (-1, len(space)):
        with pytest.raises(IndexError, match=str(index)):
            space.config(index)
    other = next(p for p in PROBLEMS if p.kernel != problem.kernel)
    assert space_of(other).config(0) not in space
    assert space.config(0) in space


@each_problem
def test_iterates_in_index_order(problem: Problem) -> None:
    space = space_of(problem)
    # Blocks of 4096 are read at once: three of them, or all there is.
    first = list(itertools.islice(space, 10_000))
    assert len(first) == min(10_000, len(space))
    for index in {*range(0, len(first), 97), *range(4090, min(4100, len(first))), len(first) - 1}:
        assert first[index] == space.config(index)


@each_problem
def test_enumerated_configurations_break_nothing(problem: Problem) -> None:
    space = space_of(problem)
    indices = np.array(some_indices(space, 50_000))
    columns = space.family.columns(problem, space.target, space.columns(indices))
    for rule in space.family.rules:
        assert np.all(columns.apply(rule.holds)), rule.id
    for index in some_indices(space, 50):
        assert broken(space, space.config(index)) == ()


@each_problem
@hypothesis.settings(max_examples=200)
@hypothesis.given(data=strategies.data())
def test_in_the_space_exactly_if_no_rule_is_broken(problem: Problem, data: strategies.DataObject) -> None:
    """Drawn from a grid wider than the axes: legal there but not listed means an axis lacks a value."""
    space = space_of(problem)
    config = space.config(data.draw(strategies.integers(0, len(space) - 1)))
    for name in data.draw(strategies.lists(strategies.sampled_from(list(space.axes)), max_size=3)):
        values = strategies.sampled_from(space.axes[name].values)
        if isinstance(largest := space.axes[name].values[-1], int):
            values |= strategies.integers(0, 2 * largest + 8)
            values |= strategies.integers(0, largest // 4 + 1).map(lambda eighth: 8 * eighth)
        config = dataclasses.replace(config, **{name: data.draw(values)})
    rules = broken(space, config)
    assert (config in space) == (rules == ()), f"{config} breaks {rules}"


@each_problem
def test_no_axis_lacks_a_value(problem: Problem) -> None:
    """Every number up to twice the largest, in place of one field of a legal configuration."""
    space = space_of(problem)
    for config in space.sample(40, seed=4):
        fields = {name: "" if v is None else v for name, v in dataclasses.asdict(config).items()}
        for name, axis in space.axes.items():
            if not isinstance(largest := axis.values[-1], int):
                continue
            numbers = np.arange(2 * largest + 2)
            columns = space.family.columns(problem, space.target, {**fields, name: numbers})
            with np.errstate(all="ignore"):
                holds = [columns.apply(rule.holds) for rule in space.family.rules]
                legal = np.all(np.broadcast_arrays(numbers >= 0, *holds), axis=0)
            assert set(numbers[legal].tolist()) <= set(axis.values), name


def trimmed(family: KernelFamily, problem: Problem, **kept: tuple[Any, ...]) -> KernelFamily:
    """The family with some of its axes' values only, so that their product can be written out."""

    def axes(*arguments: Any) -> tuple[Axis, ...]:
        return tuple(
            dataclasses.replace(a, values=kept.get(a.name, a.values)) for a in family.axes(*arguments)
        )

    for axis in family.axes(problem, SM_90):
        assert set(kept.get(axis.name, ())) <= set(axis.values)
    return dataclasses.replace(family, axes=axes)


# Few values of the long axes: those on both sides of what fits, and of what the problem bounds.
MATMUL = {"max_concurrent_steps": (1, 2, 3, 32), "grid_tile_width": (1, 2, 8), "epi_tile_n": (8, 16, 48, 64)}
COPY = {
    "max_concurrent_steps": (1, 2, 3, 16, 31),
    "delay_release": (0, 1, 2, 15, 30),
    "blocks_per_sm": (1, 2, 16),
}


@pytest.mark.parametrize(
    ("problem", "kept"),
    [
        (MatmulProblem(m=128, n=64, k=32, dtype="bfloat16"), MATMUL),
        (MatmulProblem(m=128, n=64, k=32, dtype="float16", rhs="nk"), MATMUL),
        (MatmulProblem(m=128, n=64, k=32, dtype="bfloat16", out_dtype="float32", rhs="nk"), MATMUL),
        (MatmulProblem(m=64, n=64, k=65536, dtype="bfloat16"), {**MATMUL, "tile_k": (16, 64, 512, 1024)}),
        (CopyProblem(m=16, n=32, dtype="float32"), COPY),
        (CopyProblem(m=640, n=512, dtype="float32"), COPY),
        (CopyProblem(m=64, n=128, dtype="int8"), COPY),
    ],
    ids=str,
)
def test_equals_brute_force(problem: Problem, kept: dict[str, tuple[Any, ...]]) -> None:
    """The whole product of the axes, through one rule after the other, gives the same configurations."""
    target = dataclasses.replace(SM_90, sm_count=2)
    family = trimmed(family_for(problem, target), problem, **kept)
    space = LegalSpace(family, problem, target)
    axes = family.axes(problem, target)
    grids = np.meshgrid(*(a.column for a in axes), indexing="ij")
    product = {axis.name: grid.ravel() for axis, grid in zip(axes, grids, strict=True)}
    columns = family.columns(problem, target, product)
    keep = np.ones(space.raw, dtype=bool)
    with np.errstate(all="ignore"):
        for rule in family.rules:
            keep &= np.asarray(columns.apply(rule.holds), dtype=bool)
    expected = {tuple(row) for row in zip(*(c[keep].tolist() for c in product.values()), strict=True)}
    found = {tuple("" if v is None else v for v in dataclasses.astuple(c)) for c in space}
    order = [list(product).index(f.name) for f in dataclasses.fields(family.config_class)]
    assert found == {tuple(row[at] for at in order) for row in expected}
    assert 0 < len(found) == len(space) < space.raw


@each_problem
def test_samples_are_distinct(problem: Problem) -> None:
    space = space_of(problem)
    sample = space.sample(400, seed=1)
    assert len(set(sample)) == len(sample) == min(400, len(space))
    assert all(config in space for config in sample)
    assert sample == space.sample(400, seed=1)
    assert sample != space.sample(400, seed=2)


def test_a_sample_larger_than_the_space_is_the_space() -> None:
    space = space_of(CopyProblem(m=32, n=128, dtype="int8"))
    assert set(space.sample(10**6, seed=0)) == set(space)


@each_problem
def test_draws_and_snaps_are_legal(problem: Problem) -> None:
    space = space_of(problem)
    rng = np.random.default_rng(0)
    drawn = [space.config(space.draw(rng)) for _ in range(200)]
    for name, axis in space.axes.items():
        legal = space.legal_values(name)
        assert set(legal) <= set(axis.values)
        assert {getattr(config, name) for config in drawn} <= set(legal)
    for config in drawn[:50]:
        assert space.config(space.snap(config)) == config
        wild = dataclasses.replace(config, tile_m=config.tile_m + 1, max_concurrent_steps=1000)
        assert space.config(space.snap(wild)) in space


@pytest.mark.parametrize("problem", [PROBLEMS[1], PROBLEMS[5]], ids=str)
def test_dataframe(problem: Problem) -> None:
    space = space_of(problem)
    frame = space.to_dataframe()
    assert list(frame.columns) == list(space.axes)
    assert len(frame) == len(space)
    for index in some_indices(space, 100):
        row = frame.iloc[index].to_dict()
        config = dataclasses.asdict(space.config(index))
        assert {k: None if pd.isna(v) else v for k, v in row.items()} == config


@each_problem
def test_neighbours_are_every_legal_single_step(problem: Problem) -> None:
    space = space_of(problem)
    for index in some_indices(space, 30):
        config = space.config(index)
        expected = set()
        for name, axis in space.axes.items():
            at = axis.values.index(getattr(config, name))
            steps = (axis.values[i] for i in (at - 1, at + 1) if 0 <= i < len(axis.values))
            expected |= {dataclasses.replace(config, **{name: value}) for value in steps}
        neighbours = space.neighbours(config)
        assert set(neighbours) == {other for other in expected if not broken(space, other)}
        assert len(set(neighbours)) == len(neighbours)


@each_problem
@hypothesis.given(data=strategies.data())
def test_the_repair_is_legal_and_near(problem: Problem, data: strategies.DataObject) -> None:
    space = space_of(problem)
    legal = space.config(data.draw(strategies.integers(0, len(space) - 1)))
    name = data.draw(
        strategies.sampled_from([n for n, a in space.axes.items() if isinstance(a.values[-1], int)])
    )
    config = dataclasses.replace(legal, **{name: data.draw(strategies.integers(0, 3000))})
    explanation = space.explain(config)
    columns = space.family.config_columns(problem, space.target, config)
    assert explanation.legal == (violations(space.family.rules, columns) == ())
    if config in space:
        assert explanation.canonical
        assert explanation.repair is None
    else:
        assert explanation.repair in space
        # Taking the change back repairs it, so nothing farther than one field is the nearest; but for
        # fields that are only spelt otherwise.
        respelt = len(space.broken(config, kind="canonical"))
        assert explanation.legal or len(changed(explanation.repair, config)) <= 1 + respelt


@each_problem
def test_explanations_are_plain_values(problem: Problem) -> None:
    space = space_of(problem)
    for config in (
        space.config(0),
        space.family.config_class(),
        dataclasses.replace(space.config(0), tile_m=0),
    ):
        told = space.explain(config).to_dict()
        assert json.loads(json.dumps(told, allow_nan=False)) == told
        assert set(told["derived"]) <= set(space.family.reported)
        for violation in told["violations"]:
            assert violation["have"] in violation["message"]
            assert violation["need"] in violation["message"]


@each_problem
def test_an_explanation_names_every_broken_rule(problem: Problem) -> None:
    space = space_of(problem)
    config = dataclasses.replace(space.config(0), tile_m=7, tile_n=7, max_concurrent_steps=0)
    told = space.explain(config)
    assert {v.rule for v in told.violations} >= {"pipeline.steps", f"{problem.kernel}.n_divisible"}
    assert not told.legal
    assert not told.canonical


@pytest.mark.parametrize("family", families().values(), ids=families())
def test_every_rule_says_what_to_do(family: KernelFamily) -> None:
    assert len({rule.id for rule in family.rules}) == len(family.rules)
    for rule in family.rules:
        assert all((rule.have, rule.need, rule.remedy, rule.source)), rule.id
        assert rule.id.startswith("canonical.") == (rule.kind == "canonical")


def test_counts_are_as_reviewed() -> None:
    told = "if the rules changed on purpose: python -m tests.search_spaces.golden --write"
    assert golden.counts() == json.loads(golden.FILE.read_text()), told


def test_the_big_matmul_is_large_enough() -> None:
    assert len(space_of(BIG)) >= 100_000


def test_the_best_of_the_recorded_landscapes_are_in_our_space() -> None:
    best = list(landscape_best())
    assert len(best) == 30
    for problem, config in best:
        assert config in space_of(problem), broken(space_of(problem), config)


def test_an_empty_space_holds_nothing() -> None:
    space = LegalSpace(family_for(BIG, SM_90), dataclasses.replace(BIG, m=17), SM_90)
    config = space.family.config_class()
    assert len(space) == 0
    assert list(space) == []
    assert space.sample(3, seed=0) == []
    assert config not in space
    assert space.explain(config).repair is None
    assert len(space.to_dataframe()) == 0

import dataclasses
import itertools
from collections.abc import Iterable
from typing import Any

import optuna
import pytest
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler

from tests import stubs
from tuner.sampler import LegalSampler, SpaceExhausted, new_study
from tuner.search_spaces.family import Axis, KernelFamily, choice, family_for
from tuner.search_spaces.problem import CopyProblem, MatmulProblem, Problem
from tuner.search_spaces.rule import Rule
from tuner.search_spaces.space import LegalSpace

from .sweeps import indices, records, sweep


def space_of(problem: Problem) -> LegalSpace:
    return LegalSpace(family_for(problem, stubs.H200), problem, stubs.H200)


@pytest.fixture(scope="module")
def small() -> LegalSpace:
    return space_of(CopyProblem(m=8, n=64, dtype="float32"))


@pytest.fixture(scope="module")
def large() -> LegalSpace:
    return space_of(MatmulProblem(m=128, n=4096, k=4096, dtype="bfloat16"))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ToyConfig:
    tile: int = 64
    depth: int = 1
    order: str | None = choice(None, "M", "N", default=None)


def toy(
    tiles: tuple[int, ...] = (64, 128), depths: Iterable[int] = range(1, 9), orders: Any = (None, "M", "N")
) -> LegalSpace:
    """tile x depth x order, where tile * depth stays within 512."""
    family: KernelFamily = dataclasses.replace(
        stubs.FAMILY,
        config_class=ToyConfig,
        axes=lambda problem, target: (
            Axis("tile", tiles),
            Axis("depth", tuple(depths)),
            Axis("order", orders),
        ),
        rules=(Rule("toy.size", lambda tile, depth: tile * depth <= 512, "", "", "", ""),),
        derived={},
        predict_us=lambda tile, depth: 100.0 + tile,
    )
    return LegalSpace(family, stubs.PROBLEM, stubs.H200)


def ask(study: optuna.Study, sampler: LegalSampler) -> tuple[optuna.trial.Trial, dict[str, Any]]:
    trial = study.ask(fixed_distributions=dict(sampler.distributions))
    return trial, trial.params


def asked(space: LegalSpace, count: int, *, study: optuna.Study | None = None, **options: Any) -> list[Any]:
    """What is proposed when every answer is told before the next question."""
    sampler = LegalSampler(space, **options)
    study = new_study(sampler)
    found = []
    for _ in range(count):
        trial, fields = ask(study, sampler)
        found.append(space.family.config_class(**fields))
        study.tell(trial, time_us(space, found[-1]))
    return found


def time_us(space: LegalSpace, config: Any) -> float:
    index = space.index(config)
    assert index is not None
    return 100 + index / len(space)


@pytest.mark.parametrize("startup", [0, 48])
def test_every_configuration_once_and_then_the_end(small: LegalSpace, startup: int) -> None:
    sampler = LegalSampler(small, startup=startup)
    study = new_study(sampler)
    found = []
    for _ in range(len(small)):
        trial, fields = ask(study, sampler)
        found.append(small.family.config_class(**fields))
        study.tell(trial, time_us(small, found[-1]))
    assert len(set(found)) == len(small)
    assert set(found) == set(small)
    for _ in range(2):
        with pytest.raises(SpaceExhausted):
            ask(study, sampler)


def test_nothing_twice_and_nothing_illegal_in_a_large_space(large: LegalSpace) -> None:
    found = asked(large, 150)
    assert len(set(found)) == len(found)
    assert all(config in large for config in found)


def test_nothing_twice_while_answers_are_out(small: LegalSpace) -> None:
    """Several are on their way at once, and some never come back."""
    sampler = LegalSampler(small, startup=5)
    study = new_study(sampler)
    waiting, found = [], []
    for number in range(len(small)):
        trial, fields = ask(study, sampler)
        found.append(small.family.config_class(**fields))
        waiting.append(trial)
        if number % 3 == 2:
            study.tell(waiting.pop(0), 100.0 + number)
            study.tell(waiting.pop(0), state=optuna.trial.TrialState.FAIL)
    assert set(found) == set(small)


def test_what_is_seen_is_never_proposed(small: LegalSpace) -> None:
    seen = list(small)[::2]
    found = asked(small, len(small) - len(seen), seen=seen)
    assert set(found) == set(small) - set(seen)


def test_starts_come_first_in_their_order(large: LegalSpace) -> None:
    legal = large.sample(4, seed=1)
    illegal = dataclasses.replace(legal[0], tile_m=legal[0].tile_m + 1)
    starts = [legal[0], illegal, legal[1], legal[0], legal[2], legal[3]]
    found = asked(large, 6, starts=starts, seen=[legal[2]])
    assert found[:3] == [legal[0], legal[1], legal[3]]
    assert len(set(found)) == 6


def test_the_same_seed_gives_the_same_order(large: LegalSpace) -> None:
    first = asked(large, 70, seed=7, startup=20)
    assert asked(large, 70, seed=7, startup=20) == first
    assert asked(large, 70, seed=8, startup=20) != first


class Fixed(BaseSampler):
    """An inner sampler that wants the same point for ever."""

    def __init__(self, point: dict[str, Any]) -> None:
        self.point = point

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, BaseDistribution]:
        return {}

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        return dict(self.point)

    def sample_independent(self, study: Any, trial: Any, param_name: Any, param_distribution: Any) -> Any:
        raise NotImplementedError


def test_what_the_inner_sampler_wants_is_proposed_once() -> None:
    space = toy()
    wanted = {"tile": 128, "depth": 3, "order": "M"}
    found = asked(space, len(space), inner=Fixed(wanted))
    assert found[0] == ToyConfig(**wanted)
    assert set(found) == set(space)


def test_an_inner_sampler_that_wants_illegal_points_does_no_harm() -> None:
    space = toy()
    assert ToyConfig(tile=128, depth=8) not in space
    found = asked(space, len(space), inner=Fixed({"tile": 128, "depth": 8, "order": None}))
    assert set(found) == set(space)


def test_the_study_learns_what_was_drawn() -> None:
    """Deep rings are fast here, against the prior: most of what comes after the start-up must be deep."""
    space = toy(tiles=(16, 32, 64), depths=range(1, 9))
    sampler = LegalSampler(space, startup=12, seed=3)
    study = new_study(sampler)
    depths = []
    for _ in range(30):
        trial, fields = ask(study, sampler)
        depths.append(fields["depth"])
        study.tell(trial, 100.0 - 10 * fields["depth"])
    assert all(len(trial.params) == 3 for trial in study.trials)
    assert sum(depths[12:21]) / 9 > sum(depths[:12]) / 12 + 1


@pytest.mark.parametrize(
    "later",
    [
        {"tiles": (64, 128, 256)},
        {"tiles": (128, 64)},
        {"tiles": (256, 128, 64), "depths": range(8, 0, -1), "orders": ("N", None, "M")},
        {"tiles": (32, 64, 128), "depths": range(1, 12)},
    ],
    ids=["extended", "reordered", "both", "in front"],
)
def test_a_study_is_rebuilt_after_the_axes_changed(later: dict[str, Any]) -> None:
    """No "dynamic value space", and what was measured before still counts."""
    before = toy()
    told = [(config, 100.0 + number) for number, config in enumerate(before.sample(12, seed=0))]
    new_study(LegalSampler(before), told)
    space = toy(**later)
    sampler = LegalSampler(space, seen=[config for config, _ in told], startup=4)
    study = new_study(sampler, told)
    assert [trial.value for trial in study.trials] == [value for _, value in told]
    assert study.best_params == dataclasses.asdict(told[0][0])
    found = []
    for _ in range(len(space) - len(told)):
        trial, fields = ask(study, sampler)
        found.append(ToyConfig(**fields))
        study.tell(trial, 50.0)
    assert set(found) == set(space) - {config for config, _ in told}


def test_a_sweep_goes_on_after_the_axes_changed() -> None:
    sweep()
    first = records()
    outcome = sweep(kernel="tests.stubs:WIDER", trials=stubs.SIZE + 5)
    assert outcome.progress.skipped == stubs.SIZE
    assert records()[: stubs.SIZE] == first
    assert sorted(indices(records()[stubs.SIZE :])) == list(range(stubs.SIZE, stubs.SIZE + 5))
    assert len(outcome.ranked) == stubs.SIZE + 5
    assert outcome.complete


def test_distributions_are_fixed_and_categorical(large: LegalSpace) -> None:
    sampler = LegalSampler(large)
    study = new_study(sampler)
    assert list(sampler.distributions) == list(large.axes)
    assert all(isinstance(d, CategoricalDistribution) for d in sampler.distributions.values())
    spaces = [
        sampler.infer_relative_search_space(study, optuna.trial.create_trial(value=1.0)) for _ in range(2)
    ]
    assert spaces[0] == spaces[1] == sampler.distributions
    for name, values in itertools.islice(sampler.distributions.items(), 3):
        assert isinstance(values, CategoricalDistribution)
        assert set(values.choices) <= set(large.axes[name].values)

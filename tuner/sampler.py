"""Optuna over a legal space: only legal configurations, none twice, until none is left.

Each axis is one fixed categorical distribution, so a study never meets a dynamic value space. The
inner sampler (TPE) draws from the box of all axes; a draw that is illegal or seen is thrown away,
and after a few the next configuration of the prior's own order takes its place.
"""

import collections
import dataclasses
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import FrozenTrial

from tuner.search_spaces.space import LegalSpace

from .prediction import RANKED, predicted_us

# Draws from the box before the prior's order steps in.
_DRAWS = 8
# Share of start-up draws, and of replacements, taken uniformly so that a wrong prior cannot blind the search.
_UNIFORM_SHARE = 0.15


class SpaceExhausted(Exception):
    """Every configuration of the space has been proposed."""


class LegalSampler(BaseSampler):
    """Proposes configurations of `space`: `starts` first, then the prior's best, then the inner sampler.

    startup: told results before the inner sampler takes over.
    """

    def __init__(
        self,
        space: LegalSpace,
        *,
        starts: Iterable[Any] = (),
        seen: Iterable[Any] = (),
        inner: BaseSampler | None = None,
        startup: int = 48,
        seed: int = 0,
    ) -> None:
        self._space = space
        self._seen = set(seen)
        self._rng = np.random.default_rng(seed)
        self._inner = inner or _tpe(seed, startup)
        self._starts = collections.deque(c for c in starts if c in space)
        self._distributions: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(axis.values) for name, axis in space.axes.items()
        }
        self._ranked = self._by_prior()

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        """One fixed categorical distribution an axis."""
        return self._distributions

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """All axes, always."""
        del study, trial
        return self._distributions

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The next unseen legal configuration; raises SpaceExhausted after the last."""
        config = self._next(study, trial, search_space)
        self._seen.add(config)
        return dataclasses.asdict(config)

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Never called: every axis is relative."""
        raise KeyError(f"{param_name!r} is no axis of {self._space.family.name}")

    def _next(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> Any:
        while self._starts:
            config = self._starts.popleft()
            if config not in self._seen:
                return config
        for _ in range(_DRAWS):
            fields = self._inner.sample_relative(study, trial, search_space)
            if len(fields) < len(search_space):
                break  # the inner sampler's own start-up
            config = self._space.family.config_class(**fields)
            if config not in self._seen and config in self._space:
                return config
        if self._rng.random() >= _UNIFORM_SHARE:
            for config in self._ranked:
                if config not in self._seen:
                    return config
        return self._uniform()

    def _uniform(self) -> Any:
        size = len(self._space)
        if len(self._seen) * 2 < size:
            while True:
                config = self._space.config(int(self._rng.integers(size)))
                if config not in self._seen:
                    return config
        unseen = [i for i, config in enumerate(self._space) if config not in self._seen]
        if not unseen:
            raise SpaceExhausted
        return self._space.config(int(self._rng.choice(unseen)))

    def _by_prior(self) -> Iterator[Any]:
        """Configurations in the prior's order, the joint choice of tile and warpgroups varied first."""
        size = len(self._space)
        indices = (
            np.arange(size) if size <= RANKED else np.sort(self._rng.choice(size, RANKED, replace=False))
        )
        order = indices[np.argsort(predicted_us(self._space, indices), kind="stable")]
        axes = list(self._space.axes)[:_VARIED]
        for depth in (1, 2, 4, 8):
            taken: collections.Counter[tuple[Any, ...]] = collections.Counter()
            for index in order[: len(order) // 4 + 256]:
                config = self._space.config(int(index))
                key = tuple(getattr(config, name) for name in axes)
                taken[key] += 1
                if taken[key] <= depth:
                    yield config
        yield from (self._space.config(int(i)) for i in order)


# Leading axes (tiles, as every family lists them first) whose combinations are spread before others.
_VARIED = 5


def _tpe(seed: int, startup: int) -> TPESampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return TPESampler(seed=seed, n_startup_trials=startup, multivariate=True, constant_liar=False)


def new_study(sampler: LegalSampler, told: Sequence[tuple[Any, float]] = ()) -> optuna.Study:
    """A study in memory that minimises microseconds, rebuilt from what is already `told`."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="minimize", sampler=sampler)
    study.add_trials(
        [
            optuna.trial.create_trial(
                params=dataclasses.asdict(config), distributions=dict(sampler.distributions), value=value
            )
            for config, value in told
        ]
    )
    return study

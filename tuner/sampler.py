"""Optuna over a legal space: only legal configurations, none twice, until none is left.

Each axis is one fixed categorical distribution over the values that are legal somewhere, so a study
never meets a dynamic value space. The
inner sampler (TPE) draws from the box of all axes; a draw is snapped to a legal configuration near it,
and where those are all seen, the winner of a tournament takes its place: of some legal ones, the
prior's favourite.
"""

import collections
import dataclasses
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState

from tuner.search_spaces.space import LegalSpace

from .prediction import best_prediction_us, predicted_us

# Draws from the box before a tournament steps in.
_DRAWS = 8
# TPE's time grows with the trials it sees: beyond this many it is shown the best and a draw of the others.
_SHOWN = 400
_SHOWN_BEST = 100
_REFRESHED_EVERY = 32
# Entrants of a tournament: enough to skip the hopeless, few enough that a wrong prior cannot blind it.
_ENTRANTS = 12
_MOST_DRAWS = 10 * _ENTRANTS
# Drawn only when nothing else is left: of 3213 matmuls timed on an H200, none whose prediction was 4 times
# the best prediction came within 1.3 times the best time, and compiling one can take a minute.
_HOPELESS = 4.0


class SpaceExhausted(Exception):
    """Every configuration of the space has been proposed."""


class LegalSampler(BaseSampler):
    """Proposes configurations of `space`: `starts`, then tournaments, then the inner sampler.

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
        self._short: optuna.Study | None = None
        self._short_of = 0
        self._hopeless_us = _HOPELESS * best_prediction_us(space) if len(space) else 0.0
        self._starts = collections.deque(c for c in starts if c in space)
        self._distributions: dict[str, BaseDistribution] = {
            name: CategoricalDistribution(space.legal_values(name)) for name in space.axes
        }

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

    def _next(self, study: optuna.Study, trial: FrozenTrial, space: dict[str, BaseDistribution]) -> Any:
        while self._starts:
            config = self._starts.popleft()
            if config not in self._seen:
                return config
        shown = self._shown(study)
        for _ in range(_DRAWS):
            fields = self._inner.sample_relative(shown, trial, space)
            if len(fields) < len(space):
                break  # the inner sampler's own start-up
            near = self._space.snap(self._space.family.config_class(**fields))
            if near is None or predicted_us(self._space, np.array([near]))[0] > self._hopeless_us:
                continue
            if (config := self._space.config(near)) not in self._seen:
                return config
        return self._tournament()

    def _shown(self, study: optuna.Study) -> optuna.Study:
        """The study, or where it is long a short one of its best trials and some of the others."""
        trials = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        if len(trials) <= _SHOWN:
            return study
        if self._short is None or len(trials) >= self._short_of + _REFRESHED_EVERY:
            ranked = sorted(trials, key=lambda t: t.values[0])
            others = self._rng.choice(len(ranked) - _SHOWN_BEST, _SHOWN - _SHOWN_BEST, replace=False)
            self._short, self._short_of = optuna.create_study(sampler=self._inner), len(trials)
            self._short.add_trials(ranked[:_SHOWN_BEST] + [ranked[_SHOWN_BEST + int(i)] for i in others])
        return self._short

    def _tournament(self) -> Any:
        """The one the prior likes best of a few unseen configurations drawn at random."""
        if len(self._seen) * 2 >= len(self._space):
            return self._remaining()
        drawn: list[int] = []
        for _ in range(_MOST_DRAWS):
            index = self._space.draw(self._rng)
            if self._space.config(index) not in self._seen:
                drawn.append(index)
            if len(drawn) == _ENTRANTS:
                break
        if not drawn:
            return self._remaining()
        times_us = predicted_us(self._space, np.array(drawn))
        return self._space.config(drawn[int(np.argmin(times_us))])

    def _remaining(self) -> Any:
        """A random unseen configuration of a space that is nearly used up."""
        unseen = [i for i, config in enumerate(self._space) if config not in self._seen]
        if not unseen:
            raise SpaceExhausted
        return self._space.config(int(self._rng.choice(unseen)))


def _tpe(seed: int, startup: int) -> TPESampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return TPESampler(
            seed=seed,
            n_startup_trials=startup,
            multivariate=True,
            constant_liar=False,
        )


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

"""The public Python calls; `tuner/__init__.py` re-exports them lazily."""

import dataclasses
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tuner.results.records import DeviceIdentity, Measurement
from tuner.results.store import Store
from tuner.search_spaces.architecture import Target, device_target, reference_target
from tuner.search_spaces.errors import UsageError
from tuner.search_spaces.family import family_for
from tuner.search_spaces.problem import Problem
from tuner.search_spaces.space import LegalSpace

from .device import chosen_gpus
from .lookup import overlay, resolve_target
from .options import Options
from .sweep import Outcome, run_sweep

if TYPE_CHECKING:
    import pandas as pd


def legal_space(
    problem: Problem, *, arch: str | None = None, device: str | None = None, kernel: str = ""
) -> LegalSpace:
    """Every canonical legal configuration of `problem`: len(), iteration, sample, explain, to_dataframe.

    arch stands for its reference device; device for a known one; neither for the GPU at hand. kernel: a
    user's own family as `module:attribute`.

    Raises:
      UnsupportedError: no kernel runs the problem there. UsageError: an unknown name, or no device.
    """
    if arch is not None and device is not None:
        raise UsageError("arch and device were both given", fix="give one of them")
    target: Target
    if arch is not None:
        target = reference_target(arch)
    else:
        target = device_target(device) if device is not None else resolve_target(None)
    return LegalSpace(family_for(problem, target, kernel), problem, target)


class TuningResult:
    """What `tune` found. As a context manager it makes `best` the answer of `best_config` inside."""

    def __init__(self, outcome: Outcome, device: DeviceIdentity, kernel: str = "") -> None:
        self.outcome = outcome
        self._device, self._kernel = device, kernel

    @property
    def best(self) -> Any:
        """The winner of the paired final, or the fastest where none was held."""
        final = self.outcome.final
        return self.outcome.ranked[0][0] if final is None else self._members((final.winner,))[0]

    def _members(self, indices: tuple[int, ...]) -> tuple[Any, ...]:
        """Members of the final as configurations; each was timed before, so it is ranked."""
        final = self.outcome.final
        assert final is not None
        ranked = {tuple(sorted(dataclasses.asdict(c).items())): c for c, _, _ in self.outcome.ranked}
        fields = (final.members[i].config or {} for i in indices)
        return tuple(ranked[tuple(sorted(f.items()))] for f in fields)

    @property
    def ties(self) -> tuple[Any, ...]:
        """The configurations the final could not tell from the fastest, the winner among them."""
        final = self.outcome.final
        return () if final is None else self._members(final.ties)

    @property
    def ratio(self) -> float | None:
        """Baseline time over the winner's, paired; above 1 is faster than the baseline."""
        final = self.outcome.final
        return None if final is None else final.members[final.winner].ratio

    @property
    def records(self) -> tuple[Measurement, ...]:
        """The record of every timed configuration of this problem, fastest first."""
        return tuple(record for _, record, _ in self.outcome.ranked)

    def to_dataframe(self) -> "pd.DataFrame":
        """One row a timed configuration: its fields, time_us, ratio, registers, spills and shared memory."""
        import pandas as pd

        return pd.DataFrame(
            [
                {
                    **dataclasses.asdict(config),
                    "time_us": time_us,
                    "ratio": record.ratio,
                    "registers": record.registers,
                    "spill_bytes": record.spill_bytes,
                    "smem_bytes": record.smem_bytes,
                }
                for config, record, time_us in self.outcome.ranked
            ]
        )

    def __enter__(self) -> Self:
        self._overlay = overlay(self.outcome.progress.problem, self._device, self._kernel, self.best)
        self._overlay.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._overlay.__exit__(kind, error, trace)


def tune(
    problem: Problem,
    *,
    budget_s: float | None = None,
    trials: int | None = None,
    effort: str = "normal",
    fresh: bool = False,
    seed: int = 0,
    gpus: str | None = None,
    wait: bool = False,
    db: str | None = None,
    kernel: str = "",
) -> TuningResult:
    """Times legal configurations of `problem` on a GPU here, records them, and returns the best.

    The same sweep as `tuner sweep`; works from an unguarded script, standard input and a notebook.

    Raises:
      NoGpuError: no usable GPU. NoLegalConfigError, UnsupportedError: nothing to search.
      MeasurementError: every configuration failed. DatabaseError: the records cannot be stored.
    """
    options = Options(budget_s=budget_s, trials=trials, effort=effort, fresh=fresh, seed=seed, wait=wait)
    chosen = chosen_gpus(gpus)
    with Store.open(db) as store:
        outcome = run_sweep(problem, chosen, store, options, kernel=kernel)
    return TuningResult(outcome, DeviceIdentity.from_target(chosen[0].target), kernel)

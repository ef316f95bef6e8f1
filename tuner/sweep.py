"""A sweep from start to end: one path for the command line and for `tuner.tune`."""

import contextlib
import dataclasses
import queue
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tuner.results.nearest import nearest
from tuner.results.records import DeviceIdentity, Final, Measurement
from tuner.results.shipped import shipped
from tuner.results.store import Store
from tuner.search_spaces.architecture import Target
from tuner.search_spaces.errors import DatabaseError, MeasurementError
from tuner.search_spaces.family import family_for
from tuner.search_spaces.problem import Problem
from tuner.search_spaces.space import LegalSpace

from . import __version__
from .device import Gpu, driver_version, foreign_processes
from .farm import Farm
from .finalists import run_final
from .gpu import GpuDriver, exclusive
from .options import Listener, Options, Progress
from .recorder import Recorder
from .search import Search, predicted

# What the final and closing the processes take out of a budget (measured on an H200), at most a third of it.
_FINAL_RESERVE_S = 6.0
# Start points taken from the nearest recorded problems.
_NEAREST = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a sweep ended.

    ranked: configuration, record and microseconds (predicted where nothing was timed), best first.
    """

    progress: Progress
    ranked: tuple[tuple[Any, Measurement, float], ...]
    final: Final | None
    seconds: float
    complete: bool
    predicted: bool


def run_sweep(
    problem: Problem,
    gpus: Sequence[Gpu],
    store: Store,
    options: Options,
    *,
    kernel: str = "",
    listener: Listener = lambda progress: None,
) -> Outcome:
    """Times legal configurations of `problem` on GPUs of one kind, and holds the final.

    Raises:
      NoLegalConfigError, UnsupportedError: before anything starts. NoGpuError: the GPU is held.
      MeasurementError: every configuration failed. DatabaseError: a record could not be stored.
    """
    target = gpus[0].target
    space, progress = _prepare(problem, target, kernel)
    with contextlib.ExitStack() as stack:
        for gpu in gpus:
            stack.enter_context(exclusive(gpu, wait=options.wait))
        # Waiting costs no budget, and what the holder measured meanwhile is known.
        progress.started = time.monotonic()
        recorder = Recorder(store, space, progress, seed=options.seed, fresh=options.fresh)
        for gpu in gpus:
            if others := foreign_processes(gpu):
                progress.notes.append(
                    f"other processes use GPU {gpu.index}: pid {', '.join(map(str, others))}"
                )
        recorder.versions = {"project": __version__, "driver": driver_version()}
        with _unsaved_told(recorder):
            return _timed_sweep(recorder, gpus, options, listener, stack)


@contextlib.contextmanager
def _unsaved_told(recorder: Recorder) -> Iterator[None]:
    """Hands what a full or broken database did not take to whoever handles the error."""
    try:
        yield
    except DatabaseError as error:
        error.unsaved = tuple(recorder.unsaved)
        raise


def _prepare(problem: Problem, target: Target, kernel: str) -> tuple[LegalSpace, Progress]:
    family = family_for(problem, target, kernel)
    space = LegalSpace(family, problem, target)
    space.require_any()
    return space, Progress(problem, family.name, target, len(space))


def _timed_sweep(
    recorder: Recorder, gpus: Sequence[Gpu], options: Options, listener: Listener, stack: contextlib.ExitStack
) -> Outcome:
    progress = recorder.progress
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    opening = {
        "family": recorder.family.address,
        "problem": recorder.problem.to_dict(),
        "seed": options.seed,
    }
    drivers = []
    for gpu in gpus:
        driver = GpuDriver(gpu, opening, events, session=options.session, run_timeout_s=options.run_timeout_s)
        stack.callback(driver.stop)
        drivers.append(driver)
    farm = stack.enter_context(_farm(options))
    search = Search(
        recorder,
        farm,
        drivers,
        events,
        options,
        listener,
        starts=_starts(recorder, fresh=options.fresh),
        opened=lambda: _adopt_baseline(recorder, drivers),
    )
    try:
        search.run(_deadline(progress, options))
        _adopt_baseline(recorder, drivers)
    except MeasurementError as error:
        # The last GPU is lost, or no worker starts: what was timed before still has a best.
        if not recorder.ranked(progress.method):
            raise
        progress.notes.append(f"the search ended early: {error.message}")
    if not recorder.ranked(progress.method):
        raise _all_failed(progress)
    progress.phase = "final"
    listener(progress)
    living = next((d for d in drivers if not d.failure), None)
    final = run_final(recorder, search, farm, living, rounds=options.final_rounds) if living else None
    progress.phase = "done"
    listener(progress)
    ranked = tuple((c, r, r.median_us or 0.0) for c, r in recorder.ranked(progress.method))
    return Outcome(
        progress=progress,
        ranked=ranked,
        final=final,
        seconds=time.monotonic() - progress.started,
        complete=search.exhausted,
        predicted=False,
    )


def _adopt_baseline(recorder: Recorder, drivers: Sequence[GpuDriver]) -> None:
    """Waits for the first GPU process and takes over its method, baseline and versions."""
    if recorder.progress.method:
        return
    while not any(d.opened for d in drivers) and not all(d.ready.is_set() for d in drivers):
        time.sleep(0.02)
    opened = next((d.opened for d in drivers if d.opened), None)
    if opened is None:
        raise drivers[0].failure or MeasurementError("the GPU process cannot start")
    _check_device(recorder.target, opened["device"])
    baseline = opened["baseline"]
    recorder.versions = {**recorder.versions, **opened["versions"], "baseline": baseline["algorithm"]}
    recorder.begin(opened["method"], baseline["us"], baseline["algorithm"])


def _check_device(target: Target, found: dict[str, Any]) -> None:
    """What JAX says of the device must be what the configurations were generated for."""
    wanted = DeviceIdentity.from_target(target)
    for name, value in found.items():
        if value and value != getattr(wanted, name):
            raise MeasurementError(
                f"NVML says {name}={getattr(wanted, name)}, JAX says {value}",
                fix="report this GPU; its configurations cannot be trusted",
            )


def run_deviceless(
    problem: Problem,
    target: Target,
    store: Store,
    options: Options,
    *,
    kernel: str = "",
    listener: Listener = lambda progress: None,
) -> Outcome:
    """Compiles legal configurations for a target that is not here and orders them by prior and spills.

    Nothing is timed: the order is predicted, and told as such.

    Raises:
      NoLegalConfigError, UnsupportedError, DatabaseError; MeasurementError: nothing compiled.
    """
    space, progress = _prepare(problem, target, kernel)
    recorder = Recorder(store, space, progress, seed=options.seed, fresh=options.fresh)
    recorder.versions = {"project": __version__, **_installed_versions()}
    events: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with _farm(options) as farm:
        search = Search(
            recorder, farm, (), events, options, listener, starts=_starts(recorder, fresh=options.fresh)
        )
        with _unsaved_told(recorder):
            search.run(_deadline(progress, options))
    ranked = [(config, record, predicted(recorder, config, record)) for config, record in recorder.compiled()]
    if not ranked:
        raise _all_failed(progress)
    ranked.sort(key=lambda item: item[2])
    progress.phase = "done"
    return Outcome(
        progress=progress,
        ranked=tuple(ranked),
        final=None,
        seconds=time.monotonic() - progress.started,
        complete=search.exhausted,
        predicted=True,
    )


@contextlib.contextmanager
def _farm(options: Options) -> Iterator[Farm]:
    farm = Farm(options.workers, timeout_s=options.compile_timeout_s)
    try:
        yield farm
    finally:
        farm.shutdown()


def _starts(recorder: Recorder, *, fresh: bool) -> list[Any]:
    """The default, and the best configurations of the nearest recorded problems that are legal here."""
    shared = shipped(recorder.target.device_kind)
    bests = [*recorder.store.bests(family=recorder.family.name, device=recorder.device), *shared]
    usable = [
        best
        for best in bests
        if best.family == recorder.family.name
        and best.revision == recorder.family.revision
        # Of this very problem, unless its records are to be forgotten.
        and not (fresh and best.problem == recorder.problem)
    ]
    configs = [recorder.legal_config(best.config) for _, best in nearest(recorder.problem, usable, _NEAREST)]
    return [recorder.default, *(c for c in configs if c is not None)]


def _deadline(progress: Progress, options: Options) -> float | None:
    if (whole := options.whole_s) is None:
        return None
    return progress.started + whole - min(_FINAL_RESERVE_S, whole / 3)


def _all_failed(progress: Progress) -> MeasurementError:
    if not progress.reasons:
        return MeasurementError("the budget ended before a configuration was measured", fix="raise --budget")
    told = "; ".join(f"{count} x {reason}" for reason, count in progress.reasons.most_common(5))
    return MeasurementError(f"every configuration failed: {told}", fix="see tuner show for each one")


def _installed_versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in ("jax", "jaxlib"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found

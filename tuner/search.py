"""The search: keep the compilers busy, keep the GPU busy, tell the study, record everything."""

import concurrent.futures
import contextlib
import dataclasses
import queue
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import optuna
from optuna.trial import TrialState

from tuner.results.records import Measurement
from tuner.search_spaces.errors import DatabaseError, MeasurementError

from .compiling import CompileTask
from .farm import Farm
from .gpu import LOAD_TIMEOUT_S, GpuDriver, Job
from .options import Listener, Options
from .recorder import Recorder
from .sampler import LegalSampler, SpaceExhausted, new_study

# Programs kept in memory for the final.
KEPT_PROGRAMS = 24
# Failures without one success after which a sweep bounded by trials gives up.
_LEAST_FAILURES = 50
# How long an interrupted search waits for the answer of a program that runs.
_LAST_ANSWER_S = 2.0
# How long a search goes on without one worker that starts.
_NO_WORKER_S = 30.0


@dataclasses.dataclass(slots=True)
class _Attempt:
    """One configuration on its way; `trial` is None for a repeat after a fault."""

    config: Any
    trial: optuna.trial.Trial | None
    compiled: dict[str, Any] = dataclasses.field(default_factory=dict)


class Search:
    """Asks, compiles, times and records until the budget, the trials or the space end."""

    def __init__(
        self,
        recorder: Recorder,
        farm: concurrent.futures.Executor,
        drivers: Sequence[GpuDriver],
        events: "queue.SimpleQueue[Any]",
        options: Options,
        listener: Listener,
        *,
        starts: Iterable[Any],
        opened: Callable[[], None] = lambda: None,
    ) -> None:
        self.programs: dict[Any, bytes] = {}
        self.recorder, self._farm, self._drivers = recorder, farm, list(drivers)
        self._events, self._options, self._listener = events, options, listener
        known = recorder.settled()
        if not drivers:
            # Without a GPU a time says nothing new, and what compiled counts as the prior has it.
            known = {c: None for c, time_us in known.items() if time_us is None}
            known |= {c: predicted(recorder, c, record) for c, record in recorder.compiled()}
            recorder.progress.skipped = len(known)
        sampler = LegalSampler(recorder.space, starts=starts, seen=known, seed=options.seed)
        told = [(config, time_us) for config, time_us in known.items() if time_us is not None]
        self._study = new_study(sampler, told)
        self._distributions = sampler.distributions
        self.compile_function = options.compile_function
        # Called before the first answer is recorded: by then a GPU process has told method and baseline.
        self._opened = opened
        self._on_the_way = 0
        self._exhausted = self._draining = False
        self._current: tuple[Any, Any] | None = None
        self._without_worker_since: float | None = None
        self._last: dict[int, Job] = {}
        workers = farm.workers if isinstance(farm, Farm) else 8
        # Enough that no worker and no GPU waits, few enough that the study learns before it asks.
        self._most_on_the_way = 2 * workers + 4

    @property
    def exhausted(self) -> bool:
        """Whether every configuration of the space has been tried."""
        tried_all = len(self.recorder.settled()) >= len(self.recorder.space)
        return tried_all or (self._exhausted and not self._on_the_way)

    def run(self, deadline: float | None) -> None:
        """Searches until `deadline` (time.monotonic), the trials asked for, or the end of the space."""
        progress = self.recorder.progress
        progress.phase, progress.search_started = "searching", time.monotonic()
        patience_s = _LAST_ANSWER_S
        try:
            while deadline is None or time.monotonic() < deadline:
                self._ask()
                if not self._on_the_way:
                    break
                self._handle_one(deadline)
            # What runs is let finish, for the final needs the GPU; only an interruption has no time for it.
            patience_s = LOAD_TIMEOUT_S + max((d.deadline_s for d in self._drivers), default=0.0)
        finally:
            self._drain(patience_s)
            progress.search_s = time.monotonic() - progress.search_started

    def _wanted(self) -> int:
        if self._options.trials is None:
            return self._most_on_the_way
        progress = self.recorder.progress
        if done := progress.timed if self._drivers else progress.compiled:
            return min(self._most_on_the_way, self._options.trials - done)
        # Where nothing has worked, the trials end too: something else than the configurations is broken.
        trials = self._options.trials
        return min(self._most_on_the_way, trials, max(trials, _LEAST_FAILURES) - progress.failed)

    def _ask(self) -> None:
        while not self._exhausted and self._on_the_way < self._wanted():
            try:
                # Named distributions make the study keep what was drawn; without them it would learn nothing.
                trial = self._study.ask(fixed_distributions=self._distributions)
            except SpaceExhausted:
                self._exhausted = True
                return
            attempt = _Attempt(self.recorder.family.config_class(**trial.params), trial)
            self._on_the_way += 1
            self._submit(attempt)

    def _submit(self, attempt: _Attempt) -> None:
        future = self._farm.submit(self.compile_function, self.task(attempt.config))
        future.add_done_callback(lambda done: self._events.put((attempt, done)))

    def task(self, config: Any) -> dict[str, Any]:
        """What a worker needs to compile `config`."""
        recorder = self.recorder
        return CompileTask(
            family=recorder.family.address,
            problem=recorder.problem.to_dict(),
            config=dataclasses.asdict(config),
            target=recorder.target.to_dict(),
        ).to_dict()

    def _handle_one(self, deadline: float | None) -> None:
        wait_s = 0.25 if deadline is None else min(0.25, max(0.0, deadline - time.monotonic()))
        try:
            subject, answer = self._events.get(timeout=wait_s)
        except queue.Empty:
            pass
        else:
            self._current = subject, answer
            try:
                if isinstance(subject, _Attempt):
                    self._compiled(subject, answer)
                else:
                    self._timed(subject, answer)
            except DatabaseError:
                # The recorder keeps what the database did not take.
                self._current = None
                raise
            self._current = None
        self._check_drivers()
        self._listener(self.recorder.progress)

    def _check_drivers(self) -> None:
        """Moves the jobs of a GPU that is lost to the others; with none left, raises what lost it."""
        for driver in [d for d in self._drivers if d.failure]:
            self._drivers.remove(driver)
            self.recorder.progress.notes.append(f"GPU {driver.gpu.index} is lost: {driver.failure}")
            if not self._drivers:
                raise driver.failure or MeasurementError("the GPU process cannot start")
            for job in driver.take_jobs():
                self._give(job)

    def _give(self, job: Job) -> None:
        min(self._drivers, key=lambda d: d.jobs.qsize()).give(job)

    def _compiled(self, attempt: _Attempt, future: "concurrent.futures.Future[Any]") -> None:
        if future.cancelled():
            self._on_the_way -= 1
            return
        info, program = future.result()
        if info["stage"] == "worker":
            self._wait_for_worker(attempt, info["reason"])
            return
        self._without_worker_since = None
        attempt.compiled = info
        if program:
            self.recorder.progress.compiled += 1
        if program and self._drivers:
            self._give(Job(tag=attempt, program=program))
            return
        record = self.recorder.record(attempt.config, info, info)
        self._tell(attempt, predicted(self.recorder, attempt.config, record) if program else None)
        self._on_the_way -= 1

    def _wait_for_worker(self, attempt: _Attempt, reason: str) -> None:
        """Tries again, for a machine may be out of processes for a moment; but not for ever."""
        now = time.monotonic()
        self._without_worker_since = self._without_worker_since or now
        if now - self._without_worker_since > _NO_WORKER_S:
            raise MeasurementError(f"no worker can start: {reason}", fix="run tuner doctor")
        self._submit(attempt)

    def _timed(self, job: Job, answer: dict[str, Any]) -> None:
        attempt: _Attempt = job.tag
        gpu, fault = answer["gpu"], answer.get("fault", False)
        if not self.recorder.progress.method:
            self._opened()
        record = self.recorder.record(attempt.config, attempt.compiled, answer, repeat=attempt.trial is None)
        self._current = None
        self._on_the_way -= 1
        self._tell(attempt, record.median_us)
        if fault and (before := self._last.pop(gpu, None)) and not self._draining:
            # What a broken process measured just before its end is measured again.
            self._on_the_way += 1
            self._give(
                Job(tag=_Attempt(before.tag.config, None, before.tag.compiled), program=before.program)
            )
        if record.median_us is not None:
            self._last[gpu] = job
            for other in self._drivers:
                other.incumbent_us = min(record.median_us, other.incumbent_us or record.median_us)
            self._keep(attempt.config, job.program)

    def _tell(self, attempt: _Attempt, time_us: float | None) -> None:
        if attempt.trial is None:
            return
        if time_us is None:
            self._study.tell(attempt.trial, state=TrialState.FAIL)
        else:
            self._study.tell(attempt.trial, time_us)

    def _keep(self, config: Any, program: bytes) -> None:
        self.programs[config] = program
        if len(self.programs) > 2 * KEPT_PROGRAMS:
            best = [c for c, _ in self.recorder.ranked(self.recorder.progress.method)[:KEPT_PROGRAMS]]
            self.programs = {c: self.programs[c] for c in best if c in self.programs}

    def _drain(self, patience_s: float) -> None:
        """Records what is measured already and what is running, and drops what has not started."""
        self._draining = True
        # An interruption may have come between an answer and its record.
        with contextlib.suppress(DatabaseError):
            if not self.recorder.finish() and self._current and isinstance(self._current[0], Job):
                self._timed(*self._current)
        for driver in self._drivers:
            driver.take_jobs()
        for driver in self._drivers:
            driver.idle.wait(timeout=patience_s)
        while True:
            try:
                subject, answer = self._events.get_nowait()
            except queue.Empty:
                return
            if not isinstance(subject, _Attempt):
                # A database that takes no more must not hide what stopped the search.
                with contextlib.suppress(DatabaseError):
                    self._timed(subject, answer)


def predicted(recorder: Recorder, config: Any, record: Measurement) -> float:
    """Microseconds the prior gives a compiled configuration, its spills added.

    Measured on an H200: the first kilobyte of spills costs about as much again as the kernel.
    """
    columns = recorder.family.config_columns(recorder.problem, recorder.target, config)
    return float(columns.apply(recorder.family.predict_us)) * (1.0 + (record.spill_bytes or 0) / 1024)

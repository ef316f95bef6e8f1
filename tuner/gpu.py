"""The parent's side of a GPU process: one at a time a GPU, killable, replaced when it breaks."""

import contextlib
import dataclasses
import fcntl
import os
import queue
import tempfile
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tuner.search_spaces.errors import MeasurementError, NoGpuError

from .child import Child, ChildDied, ChildTimeout
from .device import Gpu

SESSION = "tuner.gpu_process:Session"
# Import of jax, CUDA start and XLA's autotuning of the baseline; 6 s on an H200 (measured).
OPEN_TIMEOUT_S = 180.0
LOAD_TIMEOUT_S = 30.0
FIRST_RUN_TIMEOUT_S = 10.0
LEAST_RUN_TIMEOUT_S = 1.0
RUN_TIMEOUT_FACTOR = 20.0
# A new process used an H200 2.7 s after a hung one was killed (measured).
_REOPEN_PAUSE_S = 3.0


@contextlib.contextmanager
def exclusive(gpu: Gpu, *, wait: bool) -> Iterator[None]:
    """Holds the GPU for one sweep; the lock file is named after its UUID and holds the holder's pid.

    Raises:
      NoGpuError: another sweep holds it and `wait` is false.
    """
    try:
        path = _lock_folder() / f"{gpu.uuid}.lock"
        opened = os.fdopen(_shared_file(path), "r+")
    except OSError as error:
        raise NoGpuError(
            f"GPU {gpu.index} cannot be locked: {error}", fix="set TMPDIR to a folder you may write"
        ) from error
    with opened as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            lock.seek(0)
            holder = lock.read().strip() or "unknown"
            raise NoGpuError(
                f"GPU {gpu.index} ({gpu.target.device_kind}) is held by the sweep with pid {holder}",
                fix="add --wait to wait for it, or choose another with --gpus",
            ) from None
        lock.seek(0)
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


def _shared_file(path: Path) -> int:
    """Opens a file every user may lock; one that is there is not created again (fs.protected_regular)."""
    # O_NOFOLLOW: somebody else may have put a link there, to a file that is not a lock.
    try:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        with contextlib.suppress(OSError):
            os.fchmod(descriptor, 0o666)
        return descriptor


def _lock_folder() -> Path:
    folder = Path(tempfile.gettempdir()) / "mosaic-tuner-locks"
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(OSError):
        folder.chmod(0o1777)
    return folder


def _fault(reason: str) -> dict[str, Any]:
    return {"rung": "compiled", "stage": "run", "reason": reason, "fault": True}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One compiled program to measure, with what the caller wants back with the answer."""

    tag: Any
    program: bytes


class GpuDriver:
    """Drives one GPU process from a thread of its own: jobs in, `(job, answer)` out.

    Answers have rung, stage and reason as records do. A crash, hang or sticky error is such an
    answer, and the process is replaced before the next job.
    """

    def __init__(
        self,
        gpu: Gpu,
        opening: Mapping[str, Any],
        answers: "queue.SimpleQueue[tuple[Job, dict[str, Any]]]",
        *,
        session: str = SESSION,
        run_timeout_s: float = FIRST_RUN_TIMEOUT_S,
        runs_us: float = 10_000,
    ) -> None:
        self.gpu = gpu
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self.opened: dict[str, Any] = {}
        self.failure: Exception | None = None
        self.ready = threading.Event()
        self.incumbent_us: float | None = None
        self._starting, self._stopping = threading.Lock(), threading.Event()
        self._counting, self._unanswered = threading.Lock(), 0
        self.idle = threading.Event()
        self.idle.set()
        self._opening, self._answers, self._session = dict(opening), answers, session
        self._run_timeout_s, self._runs_us = run_timeout_s, runs_us
        self._child: Child | None = None
        self._elsewhere: tuple[list[int], bytes] | None = None
        self._thread = threading.Thread(target=self._drive, name=f"gpu-{gpu.index}", daemon=True)
        self._thread.start()

    def _environment(self) -> dict[str, str]:
        return {
            "CUDA_VISIBLE_DEVICES": self.gpu.uuid,
            "JAX_PLATFORMS": "cuda",
            # The baseline is XLA's under its default flags.
            "XLA_FLAGS": "",
            "JAX_ENABLE_COMPILATION_CACHE": "false",
            "XLA_PYTHON_CLIENT_PREALLOCATE": os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE", "false"),
            "TF_CPP_MIN_LOG_LEVEL": "1",
        }

    def _start(self) -> Child:
        # Either `stop` sees the child, or no child is started after it.
        with self._starting:
            if self._stopping.is_set():
                raise MeasurementError("stopped")
            self._child = Child("tuner.gpu_process", self._session, environment=self._environment())
        return self._child

    def _open(self) -> None:
        """A fresh process with operands, reference and the faster of two processes' baselines."""
        if self._elsewhere is None:
            child = self._start()
            child.send({"call": "baselines", **self._opening})
            answer, programs = child.receive(OPEN_TIMEOUT_S)
            child.kill()
            if "error" in answer:
                raise MeasurementError(f"the baseline does not compile: {answer['error']}")
            self._elsewhere = answer["sizes"], programs
        sizes, programs = self._elsewhere
        child = self._start()
        child.send({"call": "open", **self._opening, "sizes": sizes}, programs)
        answer, _ = child.receive(OPEN_TIMEOUT_S)
        if "error" in answer:
            raise MeasurementError(answer["error"])
        self.opened = self.opened or answer

    def _drive(self) -> None:
        job: Job | None = None
        try:
            self._reopen()
            self.ready.set()
            while (job := self.jobs.get()) is not None:
                if self._child is None:
                    self._reopen()
                self._answers.put((job, {"gpu": self.gpu.index, **self._measure(job)}))
                self._count(-1)
        except Exception as error:  # noqa: BLE001 - a driver that ends must say so, whatever ended it
            # The job says nothing about its configuration: whoever finds the failure moves it elsewhere.
            if job is not None:
                self.jobs.put(job)
            self.failure = error if isinstance(error, MeasurementError) else MeasurementError(str(error))
        self.close_child()
        self.ready.set()
        self.idle.set()

    def give(self, job: Job) -> None:
        """Queues one job."""
        self._count(1)
        self.jobs.put(job)

    def _count(self, change: int) -> None:
        """Keeps `idle` true exactly while no job given is unanswered."""
        with self._counting:
            self._unanswered += change
            if self._unanswered:
                self.idle.clear()
            else:
                self.idle.set()

    def _reopen(self) -> None:
        """Opens the process; after a fault a card may need a moment, so twice before giving up."""
        for attempt in (1, 2):
            try:
                self._open()
            except (ChildDied, ChildTimeout, MeasurementError, OSError) as error:
                self.close_child()
                if attempt == 2 or self._stopping.wait(_REOPEN_PAUSE_S):
                    told = error.message if isinstance(error, MeasurementError) else error or "no answer"
                    raise MeasurementError(f"the GPU process cannot start: {told}") from error
            else:
                return

    def _measure(self, job: Job) -> dict[str, Any]:
        incumbent = self.incumbent_us
        request = {
            "call": "measure",
            "runs_us": self._runs_us,
            "hopeless_us": None if incumbent is None else 3 * incumbent,
        }
        limit_s = LOAD_TIMEOUT_S
        try:
            assert self._child is not None
            self._child.send(request, job.program)
            answer, _ = self._child.receive(limit_s)
            if answer.get("started"):
                limit_s = self.deadline_s
                answer, _ = self._child.receive(limit_s)
        except ChildTimeout:
            answer = _fault(f"TIMEOUT no answer in {limit_s:g} s")
        except ChildDied as error:
            answer = _fault(f"CRASHED {error}")
        if "error" in answer:
            answer = _fault(f"CRASHED {answer['error']}")
        if answer.get("fault"):
            self.close_child()
        return answer

    @property
    def deadline_s(self) -> float:
        """Seconds a program may run from its first launch to its answer."""
        if self.incumbent_us is None:
            return self._run_timeout_s
        whole_run_s = RUN_TIMEOUT_FACTOR * (self.incumbent_us + self._runs_us) / 1e6
        return min(self._run_timeout_s, max(LEAST_RUN_TIMEOUT_S, whole_run_s))

    def take_jobs(self) -> list[Job]:
        """Takes back every job that has not started."""
        taken: list[Job] = []
        with contextlib.suppress(queue.Empty):
            while True:
                if (job := self.jobs.get_nowait()) is not None:
                    taken.append(job)
        self._count(-len(taken))
        return taken

    def close_child(self) -> None:
        """Kills the GPU process; the next job starts another."""
        if self._child is not None:
            self._child.kill()
            self._child = None

    def final(self, programs: Mapping[str, bytes], *, rounds: int, runs: int, seed: int) -> dict[str, Any]:
        """Shuffled rounds of the named programs and the baseline: {"samples_ns": {name: [[ns]]}}.

        Runs in the caller's thread: call it when no job is queued.

        Raises:
          ChildDied, ChildTimeout: a program broke the process; MeasurementError: it answered an error.
        """
        if self._child is None:
            self._reopen()
        assert self._child is not None
        for name, program in programs.items():
            self._child.send({"call": "hold", "name": name}, program)
            answer, _ = self._child.receive(LOAD_TIMEOUT_S)
            if "error" in answer:
                raise MeasurementError(answer["error"])
        self._child.send({"call": "rounds", "rounds": rounds, "runs": runs, "seed": seed})
        answer, _ = self._child.receive(LOAD_TIMEOUT_S)
        if answer.get("started"):
            answer, _ = self._child.receive(self._run_timeout_s + 120)
        if "error" in answer:
            raise MeasurementError(answer["error"])
        return answer

    def stop(self) -> None:
        """Ends the thread and its process at once."""
        with self._starting:
            self._stopping.set()
            child = self._child
        self.take_jobs()
        self.jobs.put(None)
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.process.kill()
        self._thread.join(timeout=10)
        self.close_child()

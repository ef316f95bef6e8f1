"""The compile farm: CPU-only worker processes behind a `concurrent.futures.Executor`."""

import concurrent.futures
import os
import queue
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .child import Child, ChildDied, ChildTimeout

Answer = tuple[dict[str, Any], bytes]

COMPILE_TIMEOUT_S = 60.0
_START_TIMEOUT_S = 60.0
# After a worker that could not start: the machine may be out of processes for a moment.
_RESTART_PAUSE_S = 1.0
# JAX keeps every module and executable for the life of a process (mosaic/gpu/core.py, KNOWN_KERNELS).
TASKS_PER_WORKER = 200
WORKER_BYTES = 600_000_000

_ENVIRONMENT: Mapping[str, str] = {
    "JAX_PLATFORMS": "cpu",
    "CUDA_VISIBLE_DEVICES": "",
    "XLA_FLAGS": "",
    "MOSAIC_GPU_DUMP_PTXAS": "1",
    "JAX_ENABLE_COMPILATION_CACHE": "false",
    # One compilation at a time a process: more threads only get in each other's way.
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}


def usable_cpus() -> int:
    """CPUs this process may use: its affinity, bounded by a cgroup's quota."""
    count = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return count
    return count if quota == "max" else max(1, min(count, int(quota) // int(period)))


def usable_memory_bytes() -> int:
    """Memory that can be had without swapping, bounded by a cgroup's limit."""
    free = next(
        (
            int(line.split()[1]) * 1024
            for line in Path("/proc/meminfo").read_text().splitlines()
            if line.startswith("MemAvailable")
        ),
        WORKER_BYTES,
    )
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        counted = Path("/sys/fs/cgroup/memory.stat").read_text().splitlines()
    except (OSError, ValueError):
        return free
    # Page cache that can be dropped at once counts as used there.
    droppable = next((int(line.split()[1]) for line in counted if line.startswith("inactive_file ")), 0)
    return min(free, limit - used + droppable)


def worker_count() -> int:
    """As many workers as CPUs and memory allow."""
    return max(1, min(usable_cpus(), usable_memory_bytes() // WORKER_BYTES))


class Farm(concurrent.futures.Executor):
    """Runs `submit(function, argument)` in worker processes.

    `function` is module-level; its argument is plain values; its answer a dict and bytes. A call that
    crashes, or outlives `timeout_s`, costs its worker and answers with stage and reason.
    """

    def __init__(self, workers: int | None = None, *, timeout_s: float = COMPILE_TIMEOUT_S) -> None:
        self.workers = workers or worker_count()
        self._timeout_s = timeout_s
        self._calls: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._starting, self._stopping = threading.Lock(), threading.Event()
        self._children: set[Child] = set()
        # A child dies with the thread that started it, so each worker's thread lives as long as the farm.
        self._threads = [
            threading.Thread(target=self._drive, name=f"worker-{i}", daemon=True) for i in range(self.workers)
        ]
        for thread in self._threads:
            thread.start()

    def submit(  # type: ignore[override]
        self, function: Callable[[Any], Answer], argument: Mapping[str, Any], /
    ) -> "concurrent.futures.Future[Answer]":
        """Queues one call; the future's answer is `(dict, bytes)` and never an exception.

        Raises:
          RuntimeError: the farm was shut down.
        """
        if self._stopping.is_set():
            raise RuntimeError("the farm was shut down")
        future: concurrent.futures.Future[Answer] = concurrent.futures.Future()
        self._calls.put((future, f"{function.__module__}:{function.__qualname__}", argument))
        return future

    def _drive(self) -> None:
        child: Child | None = None
        calls = 0
        while (call := self._calls.get()) is not None:
            future, function, argument = call
            if self._stopping.is_set():
                future.cancel()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                if child is None or calls >= TASKS_PER_WORKER:
                    self._end(child)
                    child, calls = None, 0
                    child = self._start()
            except (ChildDied, ChildTimeout, OSError) as error:
                # Says nothing about what was to be compiled.
                future.set_result(_failure(f"NO_WORKER {error or 'did not start in time'}", stage="worker"))
                self._stopping.wait(_RESTART_PAUSE_S)
                continue
            try:
                calls += 1
                child.send({"function": function, "argument": argument})
                answer = child.receive(self._timeout_s)
            except ChildTimeout:
                answer = _failure(f"TIMEOUT compiling took over {self._timeout_s:g} s")
            except (ChildDied, OSError, ValueError) as error:
                answer = _failure(f"CRASHED {error}")
            else:
                future.set_result(answer)
                continue
            self._end(child)
            child = None
            future.set_result(answer)
        self._end(child)

    def _start(self) -> Child:
        # Either `shutdown` sees the child, or no child is started after it.
        with self._starting:
            if self._stopping.is_set():
                raise ChildDied("the farm was shut down")
            child = Child("tuner.worker", environment=_ENVIRONMENT)
            self._children.add(child)
        try:
            child.receive(_START_TIMEOUT_S)
        except (ChildDied, ChildTimeout):
            self._end(child)
            raise
        return child

    def _end(self, child: Child | None) -> None:
        if child is not None:
            self._children.discard(child)
            child.kill()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = True) -> None:
        """Kills every worker; what is compiling is dropped, what waits is cancelled."""
        del cancel_futures
        with self._starting:
            first, children = not self._stopping.is_set(), list(self._children)
            self._stopping.set()
        for _ in self._threads if first else ():
            self._calls.put(None)
        for child in children:
            child.process.kill()
        if wait:
            for thread in self._threads:
                thread.join(timeout=10)


def _failure(reason: str, *, stage: str = "compile") -> Answer:
    return {"rung": "legal", "stage": stage, "reason": reason}, b""

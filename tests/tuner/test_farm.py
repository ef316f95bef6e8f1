import concurrent.futures
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tuner import farm as farms
from tuner.child import Child
from tuner.farm import Farm, usable_cpus, usable_memory_bytes, worker_count

from . import tasks
from .processes import all_end, descendants, wait_until

GIGABYTE = 10**9


@pytest.fixture
def farm() -> Iterator[Farm]:
    with Farm(1, timeout_s=20) as started:
        yield started


def pid(farm: Farm) -> int:
    found: int = farm.submit(tasks.who, {}).result(timeout=30)[0]["pid"]
    return found


def test_answers_are_dict_and_bytes(farm: Farm) -> None:
    assert isinstance(farm, concurrent.futures.Executor)
    argument = {"text": "a", "size": 2_000_000}
    assert farm.submit(tasks.echo, argument).result(timeout=30) == (argument, bytes(2_000_000))


def test_futures_behave_as_those_of_other_executors() -> None:
    with Farm(2, timeout_s=20) as farm:
        futures = [farm.submit(tasks.echo, {"number": n}) for n in range(10)]
        done, rest = concurrent.futures.wait(futures, timeout=30)
        assert not rest
        assert sorted(future.result()[0]["number"] for future in done) == list(range(10))
        told = threading.Event()
        farm.submit(tasks.echo, {}).add_done_callback(lambda future: told.set())
        assert told.wait(30)
        numbers = [{"number": n} for n in range(5)]
        assert [answer for answer, _ in farm.map(tasks.echo, numbers, timeout=30)] == numbers


def test_a_waiting_call_can_be_cancelled(farm: Farm) -> None:
    pid(farm)
    busy = farm.submit(tasks.sleep, {})
    waiting = farm.submit(tasks.echo, {})
    wait_until(busy.running, within_s=30, what="the first call to start")
    assert waiting.cancel()
    assert not busy.cancel()


def test_workers_are_our_own_processes(farm: Farm) -> None:
    answer, _ = farm.submit(tasks.who, {}).result(timeout=30)
    assert answer["main"] == "tuner.worker"
    assert answer["environment"]["JAX_PLATFORMS"] == "cpu"
    assert answer["environment"]["CUDA_VISIBLE_DEVICES"] == ""
    assert answer["nice"] == min(19, os.nice(0) + 10)
    assert os.environ.get("CUDA_VISIBLE_DEVICES") != ""


def test_a_crash_is_an_answer_and_costs_one_worker(farm: Farm) -> None:
    before = pid(farm)
    answer, program = farm.submit(tasks.crash, {}).result(timeout=30)
    assert (answer["rung"], answer["stage"], program) == ("legal", "compile", b"")
    assert answer["reason"] == "CRASHED killed by SIGABRT: LLVM ERROR: out of memory"
    assert pid(farm) != before


def test_a_hang_is_an_answer_and_costs_one_worker() -> None:
    with Farm(1, timeout_s=3) as farm:
        before = pid(farm)
        answer, program = farm.submit(tasks.sleep, {}).result(timeout=30)
        assert (answer["stage"], program) == ("compile", b"")
        assert answer["reason"].startswith("TIMEOUT")
        assert "3 s" in answer["reason"]
        all_end([before])
        assert pid(farm) != before


@pytest.mark.parametrize(
    ("task", "argument", "reason"),
    [
        (tasks.refuse, {"message": "\n\n first\nsecond"}, "ValueError first"),
        (tasks.refuse, {"message": ""}, "ValueError no message"),
        (tasks.assert_nothing, {}, "AssertionError no message"),
    ],
)
def test_an_exception_is_an_answer(farm: Farm, task: Any, argument: dict[str, Any], reason: str) -> None:
    before = pid(farm)
    answer, _ = farm.submit(task, argument).result(timeout=30)
    assert answer == {"rung": "legal", "stage": "compile", "reason": reason}
    assert pid(farm) == before


def test_workers_are_recycled(monkeypatch: pytest.MonkeyPatch, farm: Farm) -> None:
    monkeypatch.setattr(farms, "TASKS_PER_WORKER", 3)
    pids = [pid(farm) for _ in range(7)]
    assert len(set(pids)) == 3
    assert [pids.count(one) for one in dict.fromkeys(pids)] == [3, 3, 1]
    all_end(set(pids[:6]))


def test_a_worker_that_cannot_start_is_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_process(*arguments: Any, **more: Any) -> Child:
        raise BlockingIOError("fork: no more processes")

    with Farm(1, timeout_s=20) as farm:
        with monkeypatch.context() as patch:
            patch.setattr(farms, "Child", no_process)
            answer, _ = farm.submit(tasks.echo, {}).result(timeout=5)
        assert "fork" in answer["reason"]
        assert farm.submit(tasks.echo, {}).result(timeout=30) == ({}, b"")


def test_shutdown_ends_everything_at_once() -> None:
    farm = Farm(2, timeout_s=600)
    before = descendants(os.getpid())
    running = [farm.submit(tasks.sleep, {}) for _ in range(2)]
    waiting = [farm.submit(tasks.echo, {}) for _ in range(3)]
    wait_until(lambda: len(descendants(os.getpid()) - before) == 2, within_s=30, what="two workers")
    farm.shutdown()
    all_end(descendants(os.getpid()) - before)
    assert not any(thread.is_alive() for thread in farm._threads)
    # Whoever waits for a call must not wait for ever.
    _, rest = concurrent.futures.wait(running + waiting, timeout=5)
    assert not rest
    assert all(future.cancelled() for future in waiting)


def test_shutdown_twice_and_nothing_more_after_it() -> None:
    farm = Farm(1)
    farm.shutdown()
    farm.shutdown()
    with pytest.raises(RuntimeError):
        farm.submit(tasks.echo, {})


class Files:
    """`pathlib.Path` with the files of another machine."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def __call__(self, path: str) -> Any:
        texts = self._texts

        class File:
            def read_text(self) -> str:
                if path not in texts:
                    raise FileNotFoundError(path)
                return texts[path]

        return File()


@pytest.mark.parametrize(
    ("quota", "cpus"),
    [
        ("max 100000\n", 8),
        ("400000 100000\n", 4),
        ("250000 100000\n", 2),
        ("50000 100000\n", 1),
        ("9900000 100000\n", 8),
        ("garbage\n", 8),
        (None, 8),
    ],
)
def test_usable_cpus(monkeypatch: pytest.MonkeyPatch, quota: str | None, cpus: int) -> None:
    files = {} if quota is None else {"/sys/fs/cgroup/cpu.max": quota}
    monkeypatch.setattr(farms, "Path", Files(files))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert usable_cpus() == cpus


@pytest.mark.parametrize(
    ("limit", "used", "free"),
    [
        (None, None, 8 * GIGABYTE),
        ("max", str(GIGABYTE), 8 * GIGABYTE),
        (str(4 * GIGABYTE), str(GIGABYTE), 3 * GIGABYTE + GIGABYTE // 5),
        (str(64 * GIGABYTE), str(GIGABYTE), 8 * GIGABYTE),
    ],
)
def test_usable_memory(
    monkeypatch: pytest.MonkeyPatch, limit: str | None, used: str | None, free: int
) -> None:
    files = {"/proc/meminfo": "MemTotal: 16000000 kB\nMemFree: 1 kB\nMemAvailable: 7812500 kB\n"}
    if limit is not None and used is not None:
        # A fifth of what is used is page cache that can be dropped.
        cache = int(used) // 5
        files |= {
            "/sys/fs/cgroup/memory.max": limit,
            "/sys/fs/cgroup/memory.current": used,
            "/sys/fs/cgroup/memory.stat": f"anon 1\nactive_file 5\ninactive_file {cache}\n",
        }
    monkeypatch.setattr(farms, "Path", Files(files))
    assert usable_memory_bytes() == free


@pytest.mark.parametrize(
    ("cpus", "memory", "workers"),
    [(8, 100 * GIGABYTE, 8), (8, 2 * GIGABYTE, 3), (1, 100 * GIGABYTE, 1), (8, -GIGABYTE, 1), (8, 0, 1)],
)
def test_worker_count(monkeypatch: pytest.MonkeyPatch, cpus: int, memory: int, workers: int) -> None:
    monkeypatch.setattr(farms, "usable_cpus", lambda: cpus)
    monkeypatch.setattr(farms, "usable_memory_bytes", lambda: memory)
    assert worker_count() == workers


def test_this_machine() -> None:
    assert 1 <= worker_count() <= usable_cpus() <= (os.cpu_count() or 1)
    available = Path("/proc/meminfo").read_text().partition("MemTotal:")[2].split()[0]
    assert 0 < usable_memory_bytes() <= int(available) * 1024

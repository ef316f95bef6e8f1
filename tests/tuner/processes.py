"""Processes as /proc tells of them, to find whoever outlives a sweep."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat after the name: state, parent, ...; nothing for no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def alive(pid: int) -> bool:
    return _stat(pid)[:1] not in ([], ["Z"], ["X"])


def descendants(pid: int) -> set[int]:
    parents = {
        int(entry.name): int(stat[1])
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and (stat := _stat(int(entry.name)))
    }
    found, rising = set[int](), {pid}
    while rising:
        rising = {child for child, parent in parents.items() if parent in rising}
        found |= rising
    return {child for child in found if alive(child)}


def running(module: str, among: Iterable[int]) -> list[int]:
    """Which of these processes run `python -m module`."""
    found = []
    for pid in among:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if module.encode() in command:
            found.append(pid)
    return found


def wait_until(condition: Callable[[], object], *, within_s: float, what: str) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {within_s} s for {what}"
        time.sleep(0.02)


def all_end(pids: Iterable[int], *, within_s: float = 5) -> None:
    """Fails when one of these processes is still there after that time."""
    left = set(pids)
    wait_until(lambda: not any(map(alive, left)), within_s=within_s, what=f"the end of {left}")

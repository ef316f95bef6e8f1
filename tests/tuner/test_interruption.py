"""A sweep that is killed, interrupted or out of disk keeps what it measured, and leaves nobody behind."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import stubs
from tuner.results.records import Measurement
from tuner.results.store import Store

from .processes import all_end, descendants, running, wait_until
from .sweeps import Command, indices, misbehave, records, sweep

SLOWLY = {"STUB_SLEEP_S": "0.05"}
SWEEP = ("sweep", *stubs.ARGUMENTS, "--trials", "40")
Start = Callable[..., Command]


def children_of(started: Command) -> set[int]:
    """Its workers and its GPU process."""
    found = descendants(started.process.pid)
    assert running("tuner.worker", found)
    assert running("tuner.gpu_process", found)
    return found


@pytest.mark.parametrize("kill", [os.kill, os.killpg], ids=["parent", "group"])
def test_killed_after_ten_configurations(command: Start, kill: Callable[[int, int], None]) -> None:
    started = command(*SWEEP, **SLOWLY)
    started.wait_for_records(10)
    children = children_of(started)
    kill(started.process.pid, signal.SIGKILL)
    started.end()
    all_end(children)
    kept = records()
    assert 10 <= len(kept) < stubs.SIZE
    outcome = sweep()
    assert outcome.progress.skipped == len(kept)
    assert records()[: len(kept)] == kept
    assert sorted(indices(records())) == list(range(stubs.SIZE))
    assert outcome.final is not None


@pytest.mark.parametrize(
    ("number", "code", "told"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
    ids=["SIGINT", "SIGTERM"],
)
def test_stopped_by_a_signal(command: Start, number: int, code: int, told: str) -> None:
    started = command(*SWEEP, **SLOWLY)
    started.wait_for_records(5)
    children = children_of(started)
    seen = records()
    os.kill(started.process.pid, number)
    ended, out, err = started.end(within_s=15)
    assert (ended, out) == (code, "")
    assert err.splitlines()[-1] == f"tuner: {told}; everything measured is kept"
    assert "Traceback" not in err
    all_end(children)
    assert records()[: len(seen)] == seen
    assert len(set(indices(records()))) == len(records()) < stubs.SIZE


def test_stopped_with_one_json_object(command: Start) -> None:
    started = command(*SWEEP, "--json", **SLOWLY)
    started.wait_for_records(1)
    os.kill(started.process.pid, signal.SIGTERM)
    code, out, _ = started.end(within_s=15)
    assert code == 143
    assert json.loads(out)["error"]["code"] == "TERMINATED"


def test_stopped_while_the_first_kernel_hangs(command: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C ends within seconds, however long a kernel may run."""
    misbehave(monkeypatch, {"*": "hang"})
    started = command(*SWEEP, "--run-timeout", "40s")
    wait_until(
        lambda: running("tuner.gpu_process", descendants(started.process.pid)),
        within_s=30,
        what="a GPU process",
    )
    time.sleep(1)
    children = descendants(started.process.pid)
    os.kill(started.process.pid, signal.SIGINT)
    code, _, _ = started.end(within_s=12)
    assert code == 130
    all_end(children)


def test_stopped_while_the_gpu_process_starts(command: Start) -> None:
    """On a real card that takes some ten seconds, and another start after the signal as many again."""
    started = command(*SWEEP, STUB_OPEN_S="60")
    wait_until(
        lambda: running("tuner.gpu_process", descendants(started.process.pid)),
        within_s=30,
        what="a GPU process",
    )
    time.sleep(1)
    children = descendants(started.process.pid)
    os.kill(started.process.pid, signal.SIGINT)
    code, _, err = started.end(within_s=8)
    assert code == 130
    assert "Traceback" not in err
    all_end(children)


def test_stopped_before_anything_is_ready(command: Start) -> None:
    started = command(*SWEEP)
    wait_until(lambda: descendants(started.process.pid), within_s=30, what="a child")
    children = descendants(started.process.pid)
    os.kill(started.process.pid, signal.SIGINT)
    code, _, err = started.end(within_s=15)
    assert code == 130
    assert "Traceback" not in err
    all_end(children)


@pytest.fixture
def small_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of 2 MB where the database lies."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    try:
        failed = subprocess.run(mount, capture_output=True, text=True, check=False).returncode
    except FileNotFoundError:
        failed = True
    if failed:
        pytest.skip("needs the right to mount a tmpfs")
    monkeypatch.setenv("MOSAIC_TUNER_DB", str(place / "results.db"))
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(place: Path) -> Path:
    filler = place / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while file.write(b"\0" * size):
                    pass
            except OSError:
                continue
    return filler


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
def test_a_full_disk(command: Start, small_disk: Path, as_json: bool) -> None:
    started = command(*SWEEP, *["--json"][:as_json], **SLOWLY)
    started.wait_for_records(10)
    children = children_of(started)
    filler = fill(small_disk)
    code, out, err = started.end()
    all_end(children)
    assert code == 1, err
    assert "Traceback" not in err
    unsaved = [Measurement.from_dict(json.loads(line)) for line in err.splitlines() if line.startswith("{")]
    if as_json:
        assert json.loads(out)["error"]["code"] == "DISK_FULL"
    else:
        assert out == ""
        assert err.splitlines()[-1].startswith("tuner: no space left for ")
    while_full = records()
    filler.unlink()
    committed = records()
    assert committed == while_full
    assert len(committed) >= 10
    assert unsaved
    told = indices(committed) + indices(unsaved)
    assert len(told) == len(set(told)) < stubs.SIZE
    with Store.open() as store:
        assert store.add(unsaved[0])
    assert sweep().progress.skipped == len(committed) + 1

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import stubs
from tuner.cli import main
from tuner.device import Gpu
from tuner.gpu import exclusive
from tuner.search_spaces.errors import MeasurementError, NoGpuError

from .processes import wait_until
from .sweeps import ROOT, Command, records, sweep

SWEEP = ("sweep", *stubs.ARGUMENTS, "--trials", "3", "--effort", "quick")
OTHER = Gpu(1, "GPU-other", stubs.H200)


def test_a_second_sweep_is_refused_with_the_holders_pid(capsys: pytest.CaptureFixture[str]) -> None:
    with exclusive(stubs.GPU, wait=False), pytest.raises(SystemExit) as ended:
        main(list(SWEEP))
    assert ended.value.code == 5
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    assert f"held by the sweep with pid {os.getpid()}" in line
    assert "--wait" in line


def test_the_holder_is_another_process(command: Callable[..., Command]) -> None:
    started = command(*SWEEP[:-2], "--trials", "40", STUB_SLEEP_S="0.2")
    started.wait_for_records(1)
    with pytest.raises(NoGpuError, match=f"pid {started.process.pid};") as told:
        sweep()
    assert "--gpus" in told.value.fix
    os.kill(started.process.pid, signal.SIGKILL)
    started.end()
    assert len(sweep(trials=1).ranked) == len(records())


def wait_until_blocked(command: Command) -> None:
    def blocked() -> bool:
        assert command.process.poll() is None, command.process.communicate()
        waiting = [line.split() for line in Path("/proc/locks").read_text().splitlines() if "->" in line]
        return any(str(command.process.pid) in line for line in waiting)

    wait_until(blocked, within_s=60, what="a command that waits for a lock")


def test_waiting_for_the_holder(command: Callable[..., Command]) -> None:
    with exclusive(stubs.GPU, wait=False):
        waiting = command(*SWEEP, "--wait")
        wait_until_blocked(waiting)
        time.sleep(0.5)
        assert waiting.process.poll() is None
        assert records() == []
    code, _, err = waiting.end()
    assert code == 0, err
    assert len(records()) == 3


def test_stopped_while_waiting(command: Callable[..., Command]) -> None:
    with exclusive(stubs.GPU, wait=False):
        waiting = command(*SWEEP, "--wait")
        wait_until_blocked(waiting)
        os.kill(waiting.process.pid, signal.SIGINT)
        code, _, _ = waiting.end(within_s=10)
    assert code == 130


def test_gpus_are_held_one_by_one() -> None:
    with exclusive(stubs.GPU, wait=False):
        with exclusive(OTHER, wait=False):
            pass
        with pytest.raises(NoGpuError):
            sweep(gpus=(OTHER, stubs.GPU))
        # The refused sweep let go of the GPU that it had got.
        with exclusive(OTHER, wait=False):
            pass


def test_given_back_after_every_end() -> None:
    with pytest.raises(RuntimeError, match="inside"), exclusive(stubs.GPU, wait=False):
        raise RuntimeError("inside")
    with exclusive(stubs.GPU, wait=False):
        pass


def test_others_on_the_card_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.sweep.foreign_processes", lambda gpu: [4242, 4243])
    assert "other processes use GPU 0: pid 4242, 4243" in sweep(trials=1).progress.notes


def test_a_card_that_jax_sees_otherwise() -> None:
    """Nothing is recorded under limits that are not the card's."""
    odd = Gpu(0, "GPU-odd", dataclasses.replace(stubs.H200, sm_count=60))
    with pytest.raises(MeasurementError, match="NVML says sm_count=60, JAX says 132"):
        sweep(gpus=(odd,))
    assert records() == []


# Another user's process: it holds nothing, and must be told, or get the GPU, like our own.
SOMEBODY_ELSE = """
import os, sys, tempfile
sys.path.insert(0, sys.argv[1])
from tests import stubs
from tuner.gpu import exclusive
from tuner.search_spaces.errors import NoGpuError
os.setgroups([]); os.setgid(65534); os.setuid(65534)
try:
    with exclusive(stubs.GPU, wait=False):
        print("got it")
except NoGpuError as error:
    print(error.message)
"""


@pytest.fixture
def public_tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder as /tmp is: everybody may write, and nobody removes what is another's."""
    place = Path(tempfile.mkdtemp(dir="/tmp"))
    place.chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place
    shutil.rmtree(place)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can play two users")
def test_users_share_the_locks(public_tmp: Path) -> None:
    def somebody_else() -> str:
        done = subprocess.run(
            [sys.executable, "-c", SOMEBODY_ELSE, str(ROOT)],
            cwd="/",
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    with exclusive(stubs.GPU, wait=False):
        assert f"pid {os.getpid()}" in somebody_else()
    assert somebody_else() == "got it"
    with exclusive(stubs.GPU, wait=False):
        pass

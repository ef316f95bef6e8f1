"""Sweeps of the stub family: in this process, or as commands in one of their own."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import stubs
from tuner.device import Gpu
from tuner.options import Options, Progress
from tuner.results.records import Measurement
from tuner.results.store import Store
from tuner.sweep import Outcome, run_sweep

from .processes import wait_until

ROOT = Path(__file__).resolve().parents[2]


def isolate(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Gives locks, logs and the default database a place of their own, and this process a stub GPU."""
    for name in ("tmp", "db"):
        (folder / name).mkdir(exist_ok=True)
    patch.setenv("TMPDIR", str(folder / "tmp"))
    patch.setattr(tempfile, "tempdir", str(folder / "tmp"))
    for name in ("STUB_MISBEHAVING", "STUB_SLEEP_S", "STUB_OPEN_S", "STUB_BROKEN", "STUB_LOST"):
        patch.delenv(name, raising=False)
    patch.setenv("MOSAIC_TUNER_DB", str(folder / "db" / "results.db"))
    # A stub GPU needs no rest after a fault.
    patch.setattr("tuner.gpu._REOPEN_PAUSE_S", 0.1)
    stubs.install(patch.setattr)


def misbehave(patch: pytest.MonkeyPatch, behaviour: Mapping[Any, str]) -> None:
    patch.setenv("STUB_MISBEHAVING", json.dumps({str(index): what for index, what in behaviour.items()}))


def sweep(
    gpus: Sequence[Gpu] = (stubs.GPU,),
    listener: Callable[[Progress], None] = lambda progress: None,
    kernel: str = stubs.KERNEL,
    **options: Any,
) -> Outcome:
    """A sweep of the stub family in this process, into the default database, through the whole space."""
    how = {"workers": 2, "run_timeout_s": 2, "compile_timeout_s": 5, "trials": stubs.SIZE} | options
    with Store.open() as store:
        return run_sweep(
            stubs.PROBLEM,
            gpus,
            store,
            Options(session=stubs.SESSION, compile_function=stubs.compile_stub, **how),
            kernel=kernel,
            listener=listener,
        )


def records() -> list[Measurement]:
    """What the default database holds, oldest first."""
    with Store.open(create=False, read_only=True) as store:
        return store.measurements()


def indices(measurements: Sequence[Measurement]) -> list[int]:
    return [int(str(record.config["index"])) for record in measurements]


class Command:
    """`tuner` with a stub GPU in a process of its own."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.tuner.driver", *arguments],
            cwd=ROOT,
            env={**os.environ, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_for_records(self, count: int) -> None:
        def enough() -> bool:
            assert self.process.poll() is None, self.process.communicate()
            return Path(os.environ["MOSAIC_TUNER_DB"]).exists() and len(records()) >= count

        wait_until(enough, within_s=60, what=f"{count} records")

    def end(self, within_s: float = 60) -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        out, err = self.process.communicate(timeout=within_s)
        return self.process.returncode, out, err

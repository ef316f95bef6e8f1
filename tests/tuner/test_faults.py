"""What goes wrong with one configuration costs that configuration, and is told."""

import dataclasses
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import stubs
from tuner.child import Child
from tuner.cli import main
from tuner.device import Gpu
from tuner.options import Progress
from tuner.recorder import Recorder
from tuner.results.records import DeviceIdentity, Measurement
from tuner.results.store import Store
from tuner.search_spaces.errors import MeasurementError
from tuner.search_spaces.space import LegalSpace
from tuner.sweep import _adopt_baseline

from .processes import descendants, running
from .sweeps import Command, indices, isolate, misbehave, records, sweep

FAULTS = {
    3: ("crash", "run", "CRASHED killed by SIGSEGV"),
    5: ("hang", "run", "TIMEOUT"),
    7: ("wrong", "verify", "WRONG_OUTPUT"),
    9: ("impossible", "time", "IMPOSSIBLE_TIME 5 of 5 samples"),
    11: ("out_of_memory", "run", "OOM"),
    13: ("compile_failure", "compile", "JaxRuntimeError ptxas says no"),
    15: ("compile_crash", "compile", "CRASHED killed by SIGABRT"),
    17: ("compile_hang", "compile", "TIMEOUT"),
    19: ("sticky", "run", "CRASHED"),
    # An AssertionError without a message still has a reason.
    21: ("compile_error", "compile", "AssertionError no message"),
}
FINE = sorted(set(range(stubs.SIZE)) - set(FAULTS))


class Sweeps:
    """One sweep with every fault, and the same sweep again."""

    def __init__(self) -> None:
        self.first = sweep()
        self.first_records = records()
        self.again = sweep()
        self.again_records = records()[len(self.first_records) :]
        self.left = descendants(os.getpid())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def sweeps(folder: Path) -> Sweeps:
    with pytest.MonkeyPatch.context() as patch:
        isolate(patch, folder)
        misbehave(patch, {index: what for index, (what, _, _) in FAULTS.items()})
        return Sweeps()


def newest(measurements: list[Measurement]) -> dict[int, Measurement]:
    return dict(zip(indices(measurements), measurements, strict=True))


@pytest.mark.parametrize("index", FAULTS)
def test_a_fault_costs_its_configuration_with_stage_and_reason(sweeps: Sweeps, index: int) -> None:
    _, stage, reason = FAULTS[index]
    (record,) = (r for r in sweeps.first_records if r.config == {"index": index})
    assert record.failed
    assert record.failed_stage == stage
    assert record.reason.startswith(reason)
    assert record.median_us is None


def test_everything_else_is_timed_and_the_best_is_right(sweeps: Sweeps) -> None:
    progress = sweeps.first.progress
    assert sorted({i for i, r in newest(sweeps.first_records).items() if r.median_us}) == FINE
    assert (progress.timed, progress.failed) == (len(FINE), len(FAULTS))
    assert [config.index for config, _, _ in sweeps.first.ranked] == FINE
    final = sweeps.first.final
    assert final is not None
    assert final.members[final.winner].config == {"index": 0}
    assert sweeps.first.complete


def test_reasons_are_counted(sweeps: Sweeps) -> None:
    reasons = sweeps.first.progress.reasons
    assert sum(reasons.values()) == len(FAULTS)
    assert "compile: AssertionError no message" in reasons


def test_what_was_timed_just_before_a_fault_is_timed_again(sweeps: Sweeps) -> None:
    last: Measurement | None = None
    expected = []
    for record in sweeps.first_records:
        if record.rung == "timed":
            last = record
        elif record.failed_stage == "run" and last is not None:
            expected.append((last.config["index"], record.utc))
            last = None
    assert expected
    for index, fault_utc in expected:
        later = [r for r in sweeps.first_records if r.config == {"index": index} and r.utc > fault_utc]
        assert [r.rung for r in later] == ["timed"], index


def test_the_next_sweep_tries_none_of_them_again_but_the_out_of_memory(sweeps: Sweeps) -> None:
    assert indices(sweeps.again_records) == [11]
    assert sweeps.again.progress.skipped == stubs.SIZE - 1
    assert sweeps.again.progress.timed == 0
    assert [config.index for config, _, _ in sweeps.again.ranked] == FINE


def test_no_process_is_left(sweeps: Sweeps) -> None:
    assert not running("tuner.worker", sweeps.left)
    assert not running("tuner.gpu_process", sweeps.left)


def test_show_tells_each_failure_on_one_line(
    sweeps: Sweeps, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    del sweeps
    with pytest.raises(SystemExit) as ended:
        main(["show", *stubs.ARGUMENTS, "--failed", "--db", str(folder / "db/results.db")])
    assert ended.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    for index, (_, stage, reason) in FAULTS.items():
        # The out-of-memory was tried twice.
        (line, *_) = told = [line for line in lines if f" index={index} " in f"{line} "]
        assert f"{stage}: {reason}" in line
        assert len(told) == (2 if index == 11 else 1)


def test_ten_candidates_of_which_one_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    """One error of the driver is not ten."""
    misbehave(monkeypatch, {4: "sticky", **dict.fromkeys(range(10, stubs.SIZE), "compile_failure")})
    outcome = sweep()
    assert [config.index for config, _, _ in outcome.ranked] == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert [r.config["index"] for r in records() if "ILLEGAL_ADDRESS" in r.reason] == [4]
    count = len(records())
    sweep()
    assert len(records()) == count


def test_all_failing_is_an_error_with_a_histogram(monkeypatch: pytest.MonkeyPatch) -> None:
    misbehave(monkeypatch, {"*": "compile_failure", 1: "wrong", 2: "wrong"})
    with pytest.raises(MeasurementError) as told:
        sweep()
    assert "38 x compile: JaxRuntimeError ptxas says no" in told.value.message
    assert "2 x verify: WRONG_OUTPUT" in told.value.message
    assert told.value.exit_code == 1
    assert len(records()) == stubs.SIZE
    assert not any(r.median_us for r in records())


@pytest.mark.parametrize("how", ["wrong", "crash", "compile_failure"])
def test_a_failing_default_does_not_enter_the_final(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """The default is a member of the final by right, but not when it is wrong or breaks the GPU process."""
    misbehave(monkeypatch, {0: how})
    outcome = sweep()
    assert outcome.final is not None
    configs = [member.config for member in outcome.final.members]
    assert {"index": 0} not in configs
    assert outcome.final.members[outcome.final.winner].config == {"index": 1}


def test_a_finalist_that_breaks_the_final_does_not_cost_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    misbehave(monkeypatch, {1: "crash_in_final"})
    outcome = sweep()
    assert outcome.ranked[0][0].index == 0
    assert len(outcome.ranked) == stubs.SIZE


def test_a_lost_gpu_is_not_blamed_on_the_configurations(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    misbehave(monkeypatch, {20: "lose_gpu"})
    monkeypatch.setenv("STUB_LOST", str(tmp_path / "lost"))
    outcome = sweep()
    assert indices([r for r in records() if r.failed]) == [20]
    # What was timed before has a best; only the final is missing.
    assert outcome.ranked
    assert outcome.final is None
    assert any("GPU process cannot start" in note for note in outcome.progress.notes)


@pytest.mark.parametrize("broken", [0, 1])
def test_one_gpu_of_two_that_cannot_start(monkeypatch: pytest.MonkeyPatch, broken: int) -> None:
    gpus = [Gpu(index, f"GPU-{index}", stubs.H200) for index in range(2)]
    monkeypatch.setenv("STUB_BROKEN", gpus[broken].uuid)
    outcome = sweep(gpus=gpus, budget_s=12, trials=None)
    assert len(outcome.ranked) == stubs.SIZE
    assert outcome.final is not None
    assert any(f"GPU {broken}" in note for note in outcome.progress.notes)


def test_two_gpus_share_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_SLEEP_S", "0.02")
    other = Gpu(1, "GPU-other", stubs.H200)
    outcome = sweep(gpus=(stubs.GPU, other))
    assert sorted(indices(records())) == list(range(stubs.SIZE))
    assert outcome.complete


def test_a_killed_gpu_process_costs_one_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_SLEEP_S", "0.05")
    killed: list[int] = []

    def kill(progress: object) -> None:
        if not killed and getattr(progress, "timed", 0) >= 10:
            killed.extend(running("tuner.gpu_process", descendants(os.getpid())))
            os.kill(killed[0], signal.SIGKILL)

    outcome = sweep(listener=kill)
    failures = [r for r in records() if r.failed]
    assert [r.reason for r in failures] == ["CRASHED killed by SIGKILL"]
    assert len(outcome.ranked) == stubs.SIZE - 1


def test_the_command_succeeds_when_something_is_best(
    monkeypatch: pytest.MonkeyPatch, command: Callable[..., Command]
) -> None:
    misbehave(monkeypatch, {0: "wrong", 3: "crash"})
    code, out, err = command("sweep", *stubs.ARGUMENTS, "--trials", "40", "--run-timeout", "2s").end()
    assert code == 0, err
    assert out == ""
    assert "2 failed" in err


def test_the_command_fails_when_everything_failed(
    monkeypatch: pytest.MonkeyPatch, command: Callable[..., Command]
) -> None:
    misbehave(monkeypatch, {"*": "wrong"})
    code, out, err = command("sweep", *stubs.ARGUMENTS).end()
    assert code == 1
    assert out == ""
    assert "every configuration failed: 40 x verify: WRONG_OUTPUT" in err.splitlines()[-1]


def test_trials_end_where_nothing_works(monkeypatch: pytest.MonkeyPatch) -> None:
    """No budget and no success must not mean walking through millions of configurations."""
    misbehave(monkeypatch, {"*": "compile_failure"})
    monkeypatch.setattr("tuner.search._LEAST_FAILURES", 6)
    with pytest.raises(MeasurementError, match="every configuration failed"):
        sweep(trials=3)
    assert 3 <= len(records()) <= 12


class Starts:
    """Lets the first `failures` starts of a worker fail, as on a machine that is out of processes."""

    def __init__(self, failures: float) -> None:
        self.failures = failures

    def __call__(self, *arguments: Any, **more: Any) -> Child:
        self.failures -= 1
        if self.failures >= 0:
            raise BlockingIOError("fork: no more processes")
        return Child(*arguments, **more)


def test_a_moment_without_processes_costs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.farm.Child", Starts(30))
    monkeypatch.setattr("tuner.farm._RESTART_PAUSE_S", 0.02)
    outcome = sweep()
    assert len(outcome.ranked) == stubs.SIZE
    assert not any(record.failed for record in records())


def test_without_any_worker_a_sweep_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.farm.Child", Starts(float("inf")))
    monkeypatch.setattr("tuner.farm._RESTART_PAUSE_S", 0.02)
    monkeypatch.setattr("tuner.search._NO_WORKER_S", 0.3)
    with pytest.raises(MeasurementError, match="no worker can start: NO_WORKER fork"):
        sweep()
    assert records() == []


def test_the_first_gpu_that_opens_is_enough() -> None:
    """A card that takes minutes to open must hold up neither records nor Ctrl-C."""
    identity = DeviceIdentity.from_target(stubs.H200)
    opened = {
        "device": dataclasses.asdict(identity),
        "method": "cupti",
        "baseline": {"us": 5.0, "algorithm": "stub"},
        "versions": {},
    }
    slow = SimpleNamespace(opened={}, ready=threading.Event(), failure=None)
    quick = SimpleNamespace(opened=opened, ready=threading.Event(), failure=None)
    with Store.open() as store:
        space = LegalSpace(stubs.FAMILY, stubs.PROBLEM, stubs.H200)
        progress = Progress(stubs.PROBLEM, stubs.FAMILY.name, stubs.H200, len(space))
        _adopt_baseline(Recorder(store, space, progress, seed=0, fresh=False), [slow, quick])
    assert (progress.method, progress.baseline_us) == ("cupti", 5.0)

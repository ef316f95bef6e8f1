import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from tests import stubs
from tests.stubs import StubConfig
from tuner.options import Options, Progress
from tuner.recorder import Recorder, least_possible_ns, rules_fingerprint
from tuner.results.errors import DiskFullError
from tuner.results.records import Measurement
from tuner.results.store import Store
from tuner.search_spaces.architecture import DEVICES, device_target
from tuner.search_spaces.problem import CopyProblem, MatmulProblem
from tuner.search_spaces.space import LegalSpace
from tuner.sweep import _starts, run_deviceless

from .sweeps import indices, misbehave, records, sweep

TIMED = {"rung": "timed", "stage": "", "reason": "", "max_error": 0.25}


@pytest.fixture
def store() -> Iterator[Store]:
    with Store.open() as opened:
        yield opened


def recorder(store: Store, *, fresh: bool = False, family: Any = stubs.FAMILY) -> Recorder:
    space = LegalSpace(family, stubs.PROBLEM, stubs.H200)
    progress = Progress(stubs.PROBLEM, family.name, stubs.H200, len(space))
    progress.method, progress.baseline_us = "cupti", 216.6
    return Recorder(store, space, progress, seed=3, fresh=fresh)


def timed(to: Recorder, index: int, samples_us: Any) -> Measurement:
    samples = samples_us and [None if us is None else us * 1000 for us in samples_us]
    return to.record(StubConfig(index=index), {"registers": 90}, {**TIMED, "samples_ns": samples})


def test_a_record_says_everything(store: Store) -> None:
    to = recorder(store)
    record = timed(to, 4, [108.4, 108.3, 108.2])
    assert store.measurements() == [record]
    assert (record.problem, record.config, record.rung) == (stubs.PROBLEM, {"index": 4}, "timed")
    assert record.samples_ns == (108400, 108300, 108200)
    assert record.median_us == 108.3
    assert (record.baseline_us, record.ratio) == (216.6, 2.0)
    assert (record.registers, record.smem_bytes, record.max_error) == (90, 1004, 0.25)
    assert (record.device.device_kind, record.device.sm_count) == ("NVIDIA H200", 132)
    assert (record.method, record.seed, record.run_id, record.source) == ("cupti", 3, to.run_id, "measured")
    assert (record.revision, record.rules) == (1, rules_fingerprint(stubs.FAMILY))
    assert record.host


# Impossible timings as reported, in microseconds; None and an empty list mean that nothing was seen.
@pytest.mark.parametrize(
    ("samples", "median", "invalid"),
    [
        ([108.4, 108.3, 108.2, 108.3, 1.8446744073817e13], 108.3, 1),
        ([851.0, 851.1, 1.8e13, 851.5, 1.8e13], 851.1, 2),
        ([851.0, 1.8e13, 1.8e13, 1.8e13, 851.5], None, 3),
        ([0.0] * 5, None, 5),
        ([-1.0] * 5, None, 5),
        ([float("nan"), float("inf"), 100.0, 100.0], 100.0, 2),
        ([float("nan")] * 3, None, 3),
        ([None, 100.0, 100.0], 100.0, 1),
        ([], None, 0),
        (None, None, 0),
        # Were a warm-up among them, the median would still be that of the others.
        ([215.84, 1.61, 1.60, 1.61], 1.61, 0),
    ],
)
def test_impossible_samples_are_dropped_and_counted(
    store: Store, samples: Any, median: float | None, invalid: int
) -> None:
    to = recorder(store)
    record = timed(to, 1, samples)
    assert record.median_us == median
    assert record.invalid_samples == invalid
    if median is None:
        assert (record.rung, record.failed_stage) == ("verified", "time")
        assert record.reason.startswith("IMPOSSIBLE_TIME")
        assert record.ratio is None
        assert store.bests() == []
        assert (to.progress.timed, to.progress.failed) == (0, 1)
    else:
        assert [best.time_us for best in store.bests()] == [median]
        assert to.settled() == {StubConfig(index=1): median}


def test_what_no_run_can_beat() -> None:
    """4096^3 in bf16 takes an H200 at least 128 us at its maximum clock; 10 us would be 13.7 PFLOP/s."""
    problem = MatmulProblem(m=4096, n=4096, k=4096, dtype="bfloat16")
    least_us = least_possible_ns(problem, stubs.H200) / 1000
    assert 10 < least_us < 150
    assert least_us == pytest.approx(2 * 4096**3 / (132 * 4096 * 1980e6 * 1.05) * 1e6)


def test_memory_bounds_only_what_l2_cannot_hold() -> None:
    large = CopyProblem(m=32768, n=16384, dtype="float32")
    assert least_possible_ns(large, stubs.H200) > 0.8 * large.bytes / 4.8e12 / 1.05 * 1e9
    small = CopyProblem(m=1024, n=1024, dtype="float32")
    assert least_possible_ns(small, stubs.H200) == 1


@pytest.mark.parametrize("device", DEVICES)
def test_every_device_has_a_bound(device: str) -> None:
    problem = MatmulProblem(m=4096, n=4096, k=4096, dtype="bfloat16")
    assert 1 < least_possible_ns(problem, device_target(device)) < 1e9


def test_an_impossible_matmul_is_not_timed(store: Store) -> None:
    problem = MatmulProblem(m=4096, n=4096, k=4096, dtype="bfloat16")
    family = dataclasses.replace(stubs.FAMILY, problem_class=MatmulProblem)
    space = LegalSpace(family, problem, stubs.H200)
    progress = Progress(problem, "stub", stubs.H200, len(space), method="cupti")
    to = Recorder(store, space, progress, seed=0, fresh=False)
    assert timed(to, 0, [10.0] * 5).reason.startswith("IMPOSSIBLE_TIME 5 of 5 samples")
    assert timed(to, 1, [150.0] * 5).median_us == 150
    assert progress.best_config == StubConfig(index=1)


def test_what_is_settled(store: Store) -> None:
    to = recorder(store)
    failed = {"rung": "compiled", "stage": "run", "samples_ns": None}
    timed(to, 0, [100.0])
    to.record(StubConfig(index=1), {}, {**failed, "reason": "CRASHED killed by SIGSEGV"})
    to.record(StubConfig(index=2), {}, {**failed, "reason": "TIMEOUT no answer in 1 s"})
    to.record(StubConfig(index=3), {}, {**failed, "reason": "OOM JaxRuntimeError RESOURCE_EXHAUSTED"})
    to.record(StubConfig(index=4), {}, {"rung": "compiled", "stage": "", "reason": ""})
    settled = {0: 100.0, 1: None, 2: None}
    assert {config.index: us for config, us in to.settled().items()} == settled
    again = recorder(store)
    assert {config.index: us for config, us in again.settled().items()} == settled
    assert again.progress.skipped == 3
    assert [config.index for config, _ in again.compiled()] == [4]
    assert [config.index for config, _ in again.ranked("cupti")] == [0]
    assert again.ranked("span") == []


def test_the_newest_record_of_a_configuration_decides(store: Store) -> None:
    """What a process measured just before it broke is taken back when it cannot be measured again."""
    to = recorder(store)
    timed(to, 0, [100.0])
    timed(to, 1, [150.0])
    to.record(StubConfig(index=0), {}, {"rung": "compiled", "stage": "run", "reason": "CRASHED"}, repeat=True)
    assert to.settled() == {StubConfig(index=0): None, StubConfig(index=1): 150.0}
    assert (to.progress.best_config, to.progress.best_us) == (StubConfig(index=1), 150.0)
    to.record(StubConfig(index=1), {}, {"rung": "compiled", "stage": "run", "reason": "CRASHED"})
    timed(to, 0, [120.0])
    assert to.settled() == {StubConfig(index=0): 120.0, StubConfig(index=1): None}
    assert [record.median_us for _, record in to.ranked("cupti")] == [120.0]


def test_fresh_forgets_but_deletes_nothing(store: Store) -> None:
    timed(recorder(store), 0, [100.0])
    to = recorder(store, fresh=True)
    assert to.settled() == {}
    assert to.progress.skipped == 0
    timed(to, 0, [101.0])
    assert len(store.measurements()) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"revision": 2},
        {"source": "imported", "utc": "2026-01-01T00:00:00.000000Z"},
        {"config": {"index": 99}},
        {"config": {"index": "0"}},
        {"config": {"index": 0, "warp_specialized": "true"}},
        {"device": dataclasses.replace(stubs.H200, device_kind="NVIDIA H100 80GB HBM3")},
        {"device": dataclasses.replace(stubs.H200, sm_count=78)},
        {"family": "other"},
        {"problem": CopyProblem(m=64, n=128, dtype="float32")},
    ],
    ids=lambda change: f"{next(iter(change))}",
)
def test_records_of_something_else_settle_nothing(store: Store, change: dict[str, Any]) -> None:
    to = recorder(store)
    record = timed(to, 0, [100.0])
    if "device" in change:
        change = {"device": type(record.device).from_target(change["device"])}
    other = dataclasses.replace(record, **change)
    with Store.open(f"{store.where}.other") as elsewhere:
        assert elsewhere.add(other)
        assert recorder(elsewhere).settled() == {}
        assert elsewhere.add(record)
        assert recorder(elsewhere).settled() == {StubConfig(index=0): 100.0}


def test_what_a_full_disk_does_not_take_is_kept(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    to = recorder(store)

    def full(measurement: Measurement) -> bool:
        raise DiskFullError("no space left")

    monkeypatch.setattr(store, "add", full)
    with pytest.raises(DiskFullError):
        timed(to, 0, [100.0])
    assert [(r.config, r.median_us) for r in to.unsaved] == [({"index": 0}, 100.0)]


def test_a_sweep_goes_on_where_it_stopped() -> None:
    first = sweep(trials=10)
    assert first.progress.timed == 10
    assert not first.complete
    second = sweep(trials=10)
    assert (second.progress.timed, second.progress.skipped) == (10, 10)
    assert len(second.ranked) == 20
    third = sweep()
    assert (third.progress.timed, third.progress.skipped) == (20, 20)
    assert third.complete
    assert sorted(indices(records())) == list(range(stubs.SIZE))


def test_a_fresh_sweep_measures_again() -> None:
    sweep(trials=5)
    outcome = sweep(trials=5, fresh=True, seed=1)
    assert (outcome.progress.timed, outcome.progress.skipped) == (5, 0)
    assert len(outcome.ranked) == 5
    assert len(records()) == 10


def test_trials_count_what_was_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    misbehave(monkeypatch, dict.fromkeys(range(0, stubs.SIZE, 2), "wrong"))
    outcome = sweep(trials=12)
    assert outcome.progress.timed == 12
    assert outcome.progress.failed > 0


def test_a_budget_ends_a_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STUB_SLEEP_S", "0.2")
    outcome = sweep(trials=None, budget_s=4)
    assert 1 <= outcome.progress.timed < stubs.SIZE
    assert outcome.final is not None
    assert not outcome.complete


def test_failures_of_a_run_in_which_nothing_worked_are_not_settled(store: Store) -> None:
    """A missing compiler fails every configuration, and says nothing about any."""
    to = recorder(store)
    broken = {"rung": "lowered", "stage": "compile", "reason": "JaxRuntimeError no ptxas"}
    for index in range(3):
        to.record(StubConfig(index=index), {}, broken)
    assert recorder(store).settled() == {}
    timed(to, 3, [100.0])
    assert len(recorder(store).settled()) == 4


def test_an_interruption_while_storing_loses_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    to = recorder(store)

    def interrupted(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(store), "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            timed(to, 0, [100.0])
    assert store.measurements() == []
    assert to.finish()
    assert not to.finish()
    assert [record.median_us for record in store.measurements()] == [100.0]
    assert to.progress.timed == 1


def test_a_sweep_without_a_gpu_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures included: a compiler that runs into its time limit is not waited for twice."""
    misbehave(monkeypatch, dict.fromkeys(range(5, stubs.SIZE), "compile_failure"))
    options = Options(compile_function=stubs.compile_stub, workers=2, trials=stubs.SIZE)
    for run in range(2):
        with Store.open() as store:
            outcome = run_deviceless(stubs.PROBLEM, stubs.H200, store, options, kernel=stubs.KERNEL)
        assert len(outcome.ranked) == 5
        assert len(records()) == stubs.SIZE
        assert outcome.progress.skipped == (stubs.SIZE if run else 0)


def test_the_shipped_best_of_the_problem_is_a_start(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    best = dataclasses.replace(timed(recorder(store), 30, [100.0]), rung="timed")
    with Store.open() as other:
        (kept,) = other.bests()
    assert kept.config == best.config
    monkeypatch.setattr("tuner.sweep.shipped", lambda device_kind: (kept,))
    started = recorder(store, fresh=True)
    assert StubConfig(index=30) in _starts(started, fresh=False)
    assert StubConfig(index=30) not in _starts(started, fresh=True)

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner.results.errors import BadRecordError
from tuner.results.plain import from_json
from tuner.results.records import (
    RUNGS,
    Best,
    DeviceIdentity,
    Final,
    FinalMember,
    Measurement,
    median_us,
    to_json,
    utc_now,
    valid_samples_ns,
)
from tuner.search_spaces.architecture import DEVICES
from tuner.search_spaces.problem import CopyProblem, MatmulProblem

Maker = Callable[..., Any]

TIMEOUT_NS = 10e9


def ns(*samples_ms: float) -> list[float]:
    return [ms * 1e6 for ms in samples_ms]


# Times of a shipped file of another project: the true time plus 2**64 ns.
@pytest.mark.parametrize(
    ("samples", "expected_us", "invalid"),
    [
        (ns(108.4, 108.3, 108.2, 108.3, 1.8446744073817e13), 108_300, 1),
        (ns(851.0, 851.1, 1.8e13, 851.5, 1.8e13), 851_100, 2),
        (ns(851.0, 1.8e13, 1.8e13, 851.5, 1.8e13), None, 3),
        ([0] * 5, None, 5),
        ([-1] * 5, None, 5),
        (None, None, 0),
        ([], None, 0),
        ([math.nan, math.inf, -math.inf, None, "7"], None, 5),
        ([1000, 0], 1.0, 1),
    ],
)
def test_impossible_samples_are_dropped(
    samples: list[float] | None, expected_us: float | None, invalid: int
) -> None:
    kept, dropped = valid_samples_ns(samples, timeout_ns=TIMEOUT_NS)
    assert dropped == invalid
    assert median_us(kept, dropped) == expected_us
    assert all(type(sample) is int for sample in kept)


def test_faster_than_the_device_is_impossible() -> None:
    problem = MatmulProblem(m=4096, n=4096, k=4096, dtype="bfloat16")
    target = DEVICES["NVIDIA H200"]
    peak_per_ns = target.sm_count * target.flops_per_clock_per_sm * target.max_sm_clock_mhz / 1e3
    least_ns = problem.flops / peak_per_ns / 1.05
    assert valid_samples_ns([10_000] * 5, least_ns=least_ns, timeout_ns=TIMEOUT_NS) == ((), 5)
    assert valid_samples_ns([200_000] * 5, least_ns=least_ns, timeout_ns=TIMEOUT_NS)[1] == 0


@pytest.mark.parametrize("samples", [None, [0] * 5, [-1] * 5, [5, 0, 0]])
def test_median_of_mostly_invalid_samples(samples: list[int] | None) -> None:
    assert median_us(samples) is None


def test_numpy_samples() -> None:
    kept, dropped = valid_samples_ns(np.array([3.0, 1.0, np.nan]), timeout_ns=TIMEOUT_NS)
    assert (kept, dropped) == ((3, 1), 1)
    assert all(type(sample) is int for sample in kept)


def test_median_is_derived(measured: Maker) -> None:
    assert measured(samples_ns=(1000, 3000, 2000)).median_us == 2.0
    assert measured(samples_ns=(1000, 2000), invalid_samples=2).median_us == 1.5
    assert measured(samples_ns=(1000, 2000), invalid_samples=3).median_us is None
    assert measured(samples_ns=()).median_us is None


def test_failed(measured: Maker) -> None:
    assert not measured().failed
    assert measured(rung="legal", failed_stage="lower", reason="SMEM too much").failed


def identity(kind: str, **fields: int) -> DeviceIdentity:
    return dataclasses.replace(DeviceIdentity.from_target(DEVICES[kind]), **fields)


def test_devices_of_one_architecture_are_distinct() -> None:
    kinds = [kind for kind, target in DEVICES.items() if target.arch == "sm_90"]
    matching = [(a, b) for a in kinds for b in kinds if identity(a).matches(identity(b))]
    assert matching == [(kind, kind) for kind in kinds]


def test_slices_and_power_limits_are_distinct() -> None:
    whole = identity("NVIDIA H200", power_limit_w=700)
    assert whole.matches(identity("NVIDIA H200"))
    assert identity("NVIDIA H200").matches(whole)
    assert not whole.matches(identity("NVIDIA H200", power_limit_w=500))
    assert not whole.matches(identity("NVIDIA H200", power_limit_w=700, sm_count=60))


def test_device_key_reads_back(h200: DeviceIdentity) -> None:
    assert DeviceIdentity.from_dict(from_json(h200.key)) == h200


sizes = st.integers(1, 2**31 - 1)
types = st.sampled_from(["bfloat16", "float32", "int8", "float8_e4m3fn"])
problems = st.builds(MatmulProblem, m=sizes, n=sizes, k=sizes, batch=sizes, dtype=types) | st.builds(
    CopyProblem, m=sizes, n=sizes, dtype=types
)
integers = st.integers(-(2**63) + 1, 2**63 - 1)
numbers = st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(max_size=20)
configs = st.dictionaries(texts, integers | texts | st.none(), max_size=4)
devices = st.builds(
    DeviceIdentity,
    device_kind=texts,
    compute_capability=texts,
    sm_count=integers,
    smem_optin_bytes=integers,
    power_limit_w=integers,
)
times = st.datetimes().map(lambda moment: f"{moment.isoformat(timespec='microseconds')}Z")
common = {
    "problem": problems,
    "family": texts,
    "revision": integers,
    "rules": texts,
    "device": devices,
    "method": texts,
    "run_id": texts,
    "utc": times,
    "versions": st.dictionaries(texts, texts, max_size=3),
    "host": texts,
    "commit": texts,
    "seed": integers,
}
maybe = {
    name: st.none() | integers for name in ("registers", "spill_bytes", "smem_bytes", "throttle_reasons")
}
maybe |= {name: st.none() | numbers for name in ("baseline_us", "ratio", "max_error", "power_w", "lower_s")}
measurements = st.builds(
    Measurement,
    **common,
    **maybe,
    config=configs,
    rung=st.sampled_from(RUNGS),
    samples_ns=st.lists(integers, max_size=5).map(tuple),
    reason=texts,
)
members = st.builds(
    FinalMember,
    role=st.sampled_from(["candidate", "default", "baseline"]),
    name=texts,
    config=st.none() | configs,
    samples_ns=st.lists(st.lists(integers, max_size=3).map(tuple), max_size=3).map(tuple),
    ratio=st.none() | numbers,
    ratio_low=st.none() | numbers,
    ratio_high=st.none() | numbers,
)
finals = st.builds(
    Final,
    **common,
    members=st.lists(members, min_size=1, max_size=3).map(tuple),
    rounds=integers,
    ties=st.just((0,)),
    winner=st.just(0),
)


@given(measurements | finals)
def test_records_round_trip(record: Measurement | Final) -> None:
    assert type(record).from_dict(from_json(to_json(record))) == record
    assert type(record).from_dict(record.to_dict()) == record


@pytest.mark.parametrize(
    "change",
    [
        {"warp_specialized": True},
        {"seed": None},
        {"seed": 1.0},
        {"seed": True},
        {"seed": 2**63},
        {"seed": "0"},
        {"problem": {"kernel": "matmul", "m": 0, "n": 1, "k": 1, "dtype": "bfloat16"}},
        {"problem": {"kernel": "matmul", "m": 1, "n": 1, "k": 1, "dtype": ["bfloat16"]}},
        {"problem": {"kernel": "matmul", "m": 1}},
        {"problem": {"kernel": "os:system"}},
        {"problem": {"kernel": ["matmul"]}},
        {"problem": {"m": 1}},
        {"problem": 7},
        {"config": [1]},
        {"config": {"tile_m": 1.5}},
        {"config": {"tile_m": True}},
        {"device": {"device_kind": "x"}},
        {"device": None},
        {"samples_ns": [1, "2"]},
        {"samples_ns": 5},
        {"ratio": "1.0"},
        {"utc": "yesterday"},
        {"rung": "finished"},
    ],
    ids=str,
)
def test_bad_fields_are_one_clear_error(measured: Maker, change: dict[str, Any]) -> None:
    (name,) = change
    with pytest.raises(BadRecordError, match=name):
        Measurement.from_dict(measured().to_dict() | change)


def test_missing_fields(measured: Maker) -> None:
    fields = measured().to_dict()
    with pytest.raises(BadRecordError, match="device, problem missing"):
        Measurement.from_dict({k: v for k, v in fields.items() if k not in ("problem", "device")})
    kept = Measurement.from_dict({k: v for k, v in fields.items() if k != "registers"})
    assert kept == measured()


def test_a_record_names_a_module_and_nothing_is_imported(measured: Maker, monkeypatch: Any) -> None:
    def refuse(*names: object) -> None:
        raise AssertionError(f"imported {names}")

    monkeypatch.setattr("importlib.import_module", refuse)
    problem = {"kernel": "antigravity:FAMILY", "m": 1}
    with pytest.raises(BadRecordError, match="unknown kernel"):
        Measurement.from_dict(measured().to_dict() | {"problem": problem})


def test_final_members_exist(finalist: Maker) -> None:
    with pytest.raises(BadRecordError, match="member 3"):
        finalist(winner=3)
    with pytest.raises(BadRecordError, match="member -1"):
        finalist(ties=(0, -1))


def parse_strictly(text: str) -> Any:
    def refuse(name: str) -> None:
        raise AssertionError(name)

    return json.loads(text, parse_constant=refuse)


@given(
    st.recursive(
        st.floats() | st.none() | texts, lambda inner: st.lists(inner) | st.dictionaries(texts, inner)
    )
)
def test_json_is_strict(value: Any) -> None:
    parse_strictly(to_json(value))


def test_json_of_what_is_not_finite(measured: Maker) -> None:
    record = measured(ratio=math.nan, max_error=math.inf, power_w=np.float32("nan"))
    fields = parse_strictly(to_json(record))
    assert [fields[name] for name in ("ratio", "max_error", "power_w")] == [None] * 3
    assert to_json({"b": np.int64(1), "a": np.float64(0.5)}) == '{"a":0.5,"b":1}'


@pytest.mark.parametrize("text", ['{"a":NaN}', '{"a":-Infinity}', "[]", "7", "", "{", "[" * 100_000, "\x00"])
def test_only_strict_json_objects_are_read(text: str) -> None:
    with pytest.raises(BadRecordError):
        from_json(text)


def test_best_of_a_measurement(measured: Maker) -> None:
    best = Best.of(measured(100.0, ratio=1.2))
    assert best is not None
    assert (best.time_us, best.ratio, best.rung, best.source) == (100.0, 1.2, "timed", "measured")
    assert best.beats_default is None
    assert Best.from_dict(best.to_dict()) == best


@pytest.mark.parametrize(
    "fields",
    [
        {"rung": "verified"},
        {"failed_stage": "verify", "reason": "WRONG_OUTPUT 7 elements"},
        {"samples_ns": ()},
        {"invalid_samples": 4},
    ],
    ids=str,
)
def test_no_best_of_what_failed(measured: Maker, fields: dict[str, Any]) -> None:
    assert Best.of(measured(**fields)) is None


def test_best_of_a_final(finalist: Maker) -> None:
    best = Best.of(finalist(90.0))
    assert best is not None
    assert (best.config, best.time_us, best.rung) == ({"tile_m": 256}, 90.0, "final")
    assert (best.ratio, best.ratio_low, best.ratio_high) == (1.1, 1.05, 1.15)
    assert best.beats_default is True


def test_best_of_a_final_that_the_default_would_have_won(finalist: Maker) -> None:
    won, default, baseline = finalist().members
    lost = finalist(members=(won, dataclasses.replace(default, ratio=1.2), baseline))
    assert Best.of(lost).beats_default is False
    assert Best.of(finalist(members=(won, baseline))).beats_default is None
    assert Best.of(finalist(members=(won, default, baseline), winner=2)) is None


def test_utc_now_is_accepted(measured: Maker) -> None:
    assert measured(utc=utc_now()).utc.endswith("Z")

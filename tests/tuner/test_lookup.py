import dataclasses
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import tuner
from tuner import lookup
from tuner.device import Gpu
from tuner.lookup import best_config, overlay
from tuner.results import shipped as shipping
from tuner.results.records import Best, DeviceIdentity, Final, FinalMember, Measurement
from tuner.results.store import Store
from tuner.search_spaces.architecture import device_target
from tuner.search_spaces.errors import (
    ConfigNotFoundError,
    DatabaseError,
    NoGpuError,
    NoLegalConfigError,
    UnsupportedError,
    UsageError,
)
from tuner.search_spaces.family import family_for
from tuner.search_spaces.problem import CopyProblem, MatmulProblem, Problem
from tuner.search_spaces.space import LegalSpace

from .sweeps import ROOT

H200, H100 = "NVIDIA H200", "NVIDIA H100 80GB HBM3"
COPY = CopyProblem(m=64, n=64, dtype="float32")


def matmul(m: int, **more: Any) -> MatmulProblem:
    return MatmulProblem(**({"m": m, "n": 4096, "k": 4096, "dtype": "bfloat16"} | more))


@pytest.fixture(autouse=True)
def _nothing_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "_warned", set())
    monkeypatch.setattr(lookup, "_answers", {})
    monkeypatch.setattr(lookup, "shipped", lambda device_kind: ())

    def no_gpu() -> list[Gpu]:
        raise NoGpuError("no NVIDIA driver answers")

    monkeypatch.setattr("tuner.device.gpus", no_gpu)
    monkeypatch.setattr(lookup, "_jax_target", lambda: None)


def space(problem: Problem, device: str = H200) -> LegalSpace:
    target = device_target(device)
    return LegalSpace(family_for(problem, target), problem, target)


def measurement(problem: Problem, config: Any = None, *, device: str = H200, **fields: Any) -> Measurement:
    """A record of 50 us of the first legal configuration, changed by `fields`."""
    here = space(problem, device)
    config = here.config(0) if config is None else config
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        config = dataclasses.asdict(config)
    common = {
        "problem": problem,
        "family": here.family.name,
        "revision": here.family.revision,
        "rules": "rules",
        "device": DeviceIdentity.from_target(here.target),
        "method": "cupti",
        "run_id": "run",
        "utc": "2026-01-01T00:00:00.000000Z",
        "versions": {"jax": "0.11.2", "driver": "580"},
        "host": "",
        "commit": "",
        "seed": 0,
        "config": config,
        "rung": "timed",
        "samples_ns": (50_000,) * 3,
        "baseline_us": 100.0,
        "ratio": 2.0,
    }
    return Measurement(**(common | fields))


def record(*measurements: Measurement | Final, db: str | None = None) -> None:
    with Store.open(db) as store:
        for one in measurements:
            if isinstance(one, Final):
                store.add_final(one)
            else:
                store.add(one)


def best_of(one: Measurement) -> Best:
    found = Best.of(one)
    assert found is not None
    return found


def ship(monkeypatch: pytest.MonkeyPatch, *measurements: Measurement) -> None:
    bests = [dataclasses.replace(best_of(one), source="shipped") for one in measurements]

    def shipped(device_kind: str) -> tuple[Best, ...]:
        return tuple(best for best in bests if best.device.device_kind == device_kind)

    monkeypatch.setattr(lookup, "shipped", shipped)


def test_layers_answer_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned, own, came_along, *_ = space(COPY).sample(5, seed=0)
    near = CopyProblem(m=128, n=64, dtype="float32")

    assert best_config(COPY, device=H200, on_miss="predict").source == "predicted"
    record(measurement(near, space(COPY).config(3)))
    with pytest.warns(UserWarning, match="nearest recorded problem copy m=128 n=64"):
        answer = best_config(COPY, device=H200, on_miss="predict")
    assert (answer.source, answer.config) == ("nearest", space(COPY).config(3))
    ship(monkeypatch, measurement(COPY, came_along))
    monkeypatch.setattr(lookup, "_answers", {})
    answer = best_config(COPY, device=H200)
    assert (answer.source, answer.config, answer.time_us, answer.ratio) == ("shipped", came_along, 50.0, 2.0)
    record(measurement(COPY, own))
    answer = best_config(COPY, device=H200)
    assert (answer.source, answer.config, answer.device) == ("measured", own, H200)
    with overlay(COPY, DeviceIdentity.from_target(device_target(H200)), "", pinned):
        answer = best_config(COPY, device=H200)
        assert (answer.source, answer.config) == ("overlay", pinned)
        assert best_config(near, device=H200).source == "measured"
    assert best_config(COPY, device=H200).config == own


def test_predicted_is_told_as_such() -> None:
    answer = best_config(COPY, device=H200, on_miss="predict")
    assert (answer.source, answer.time_us, answer.ratio) == ("predicted", None, None)
    assert "not measured" in answer.why
    assert answer.config in space(COPY)
    assert answer.to_dict()["config"] == dataclasses.asdict(answer.config)


@pytest.mark.parametrize("on_miss", ["nearest", "error"])
def test_a_miss_is_an_error_that_names_key_and_way_on(on_miss: Any) -> None:
    with pytest.raises(ConfigNotFoundError) as told:
        best_config(COPY, device=H200, on_miss=on_miss)
    assert isinstance(told.value, LookupError)
    assert "copy m=64 n=64 dtype=float32 for copy_tma on NVIDIA H200 (132 SMs)" in told.value.message
    assert "none" in told.value.message
    assert "tuner sweep copy m=64 n=64 dtype=float32" in told.value.fix


def test_a_miss_names_the_nearest_keys() -> None:
    record(*(measurement(CopyProblem(m=m, n=64, dtype="float32")) for m in (512, 256, 1024, 4096)))
    with pytest.raises(ConfigNotFoundError) as told:
        best_config(COPY, device=H200, on_miss="error")
    listed = told.value.message.partition("nearest recorded: ")[2]
    assert [part.split()[1] for part in listed.split(", ")] == ["m=256", "m=512", "m=1024"]


def test_exact_only_where_asked_for() -> None:
    record(measurement(CopyProblem(m=128, n=64, dtype="float32")))
    with pytest.raises(ConfigNotFoundError, match="nearest recorded: copy m=128"):
        best_config(COPY, device=H200, on_miss="error")


def test_unknown_on_miss() -> None:
    with pytest.raises(UsageError, match="on_miss"):
        best_config(COPY, device=H200, on_miss="nearst")  # type: ignore[arg-type]


def test_nearest_is_checked_for_legality() -> None:
    """Of m=128 with tile_m=128 and m=256, only a configuration that m=64 can run answers."""
    wide = next(c for c in space(matmul(128)) if c.tile_m == 128)
    record(measurement(matmul(128), wide))
    with pytest.raises(ConfigNotFoundError) as told:
        best_config(matmul(64), device=H200)
    assert "not legal here" in told.value.message
    fitting = space(matmul(64)).config(100)
    record(measurement(matmul(256), fitting))
    with pytest.warns(UserWarning, match="nearest recorded problem matmul m=256"):
        answer = best_config(matmul(64), device=H200)
    assert answer.config == fitting
    assert answer.source == "nearest"
    assert "m=256" in answer.why
    exact = space(matmul(64)).config(0)
    record(measurement(matmul(64), exact))
    answer = best_config(matmul(64), device=H200)
    assert (answer.source, answer.config) == ("measured", exact)


@pytest.mark.parametrize(
    "other",
    [
        matmul(128, dtype="float16"),
        matmul(128, rhs="nk"),
        matmul(128, out_dtype="float32"),
        CopyProblem(m=128, n=4096, dtype="bfloat16"),
    ],
    ids=["dtype", "layout", "out_dtype", "kernel"],
)
def test_nearest_means_the_same_types_and_layouts(other: Problem) -> None:
    record(measurement(other))
    with pytest.raises(ConfigNotFoundError, match="nearest recorded: none"):
        best_config(matmul(64), device=H200)


def test_an_outdated_revision_is_refused_and_told() -> None:
    family = space(COPY).family
    record(measurement(COPY, revision=family.revision + 1))
    with pytest.raises(ConfigNotFoundError) as told:
        best_config(COPY, device=H200)
    assert f"REVISION {family.revision + 1}" in told.value.message
    assert f"at {family.revision}" in told.value.message


@pytest.mark.parametrize(
    "change",
    [
        {"warp_specialized": "true"},
        {"warp_specialized": 1},
        {"tile_m": "64"},
        {"tile_m": None},
        {"grid_schedule": "sometimes"},
    ],
    ids=str,
)
def test_a_stored_config_of_another_time_is_a_miss_with_a_reason(change: dict[str, Any]) -> None:
    """No TypeError, and the others in the database still answer."""
    config = dataclasses.asdict(space(COPY).config(0))
    record(measurement(COPY, config | change))
    other = CopyProblem(m=32, n=64, dtype="float32")
    record(measurement(other))
    with pytest.raises(ConfigNotFoundError, match="BAD_RECORD"):
        best_config(COPY, device=H200, on_miss="error")
    assert best_config(other, device=H200).source == "measured"


def test_a_missing_field_takes_its_default() -> None:
    config = space(COPY).family.default_config(COPY, device_target(H200))
    known = {f.name: f.default for f in dataclasses.fields(config)}
    fields = {n: v for n, v in dataclasses.asdict(config).items() if v != known[n]}
    assert len(fields) < len(known)
    record(measurement(COPY, fields))
    assert best_config(COPY, device=H200).config == config


def test_a_config_that_is_illegal_today_is_never_served() -> None:
    config = dataclasses.replace(space(COPY).config(0), tile_m=3)
    record(measurement(COPY, config))
    with pytest.raises(ConfigNotFoundError, match="not legal here"):
        best_config(COPY, device=H200, on_miss="error")
    assert best_config(COPY, device=H200, on_miss="predict").source == "predicted"


def test_another_driver_or_jax_still_answers() -> None:
    record(measurement(COPY, versions={"jax": "0.10.0", "driver": "999"}))
    assert best_config(COPY, device=H200).source == "measured"


def test_a_record_of_another_device_never_answers() -> None:
    record(measurement(COPY, device=H100))
    for on_miss in ("nearest", "error"):
        with pytest.raises(ConfigNotFoundError):
            best_config(COPY, device=H200, on_miss=on_miss)  # type: ignore[arg-type]
    assert best_config(COPY, device=H200, on_miss="predict").source == "predicted"
    for spelling in (H100, "nvidia h100 80gb hbm3", "H100 80GB  HBM3"):
        assert best_config(COPY, device=spelling).source == "measured"


def test_devices_of_one_architecture_are_told_apart() -> None:
    names = [H100, "NVIDIA H100 PCIe", "NVIDIA H100 NVL", H200, "NVIDIA H200 NVL", "NVIDIA GH200 480GB"]
    configs = dict(zip(names, space(COPY).sample(len(names), seed=1), strict=True))
    record(*(measurement(COPY, config, device=name) for name, config in configs.items()))
    assert {name: best_config(COPY, device=name).config for name in names} == configs


def test_a_slice_of_a_device_is_another_device() -> None:
    record(measurement(COPY))
    small = dataclasses.replace(device_target(H200), sm_count=60)
    with pytest.raises(ConfigNotFoundError, match="60 SMs"):
        best_config(COPY, device=small)


def test_a_power_limit_tells_cards_apart_only_where_it_is_known() -> None:
    capped = dataclasses.replace(device_target(H200), power_limit_w=500)
    record(dataclasses.replace(measurement(COPY), device=DeviceIdentity.from_target(capped)))
    assert best_config(COPY, device=H200).source == "measured"
    assert best_config(COPY, device=capped).source == "measured"
    with pytest.raises(ConfigNotFoundError):
        best_config(COPY, device=dataclasses.replace(capped, power_limit_w=700))


def test_a_final_counts_for_more_than_a_time_of_another_method() -> None:
    once, won = space(COPY).sample(2, seed=2)
    timed = measurement(COPY, once, method="span")
    member = FinalMember(
        role="candidate", name="1", config=dataclasses.asdict(won), samples_ns=((60_000,),), ratio=1.5
    )
    shared = ("problem", "family", "revision", "rules", "device", "run_id", "versions", "host", "commit")
    final = Final(
        **{name: getattr(timed, name) for name in shared},
        method="cupti",
        utc="2026-01-02T00:00:00.000000Z",
        members=(member,),
        rounds=1,
        ties=(0,),
        winner=0,
        seed=0,
    )
    record(timed, final)
    answer = best_config(COPY, device=H200)
    assert (answer.config, answer.time_us, answer.ratio) == (won, 60.0, 1.5)


def test_imported_is_told() -> None:
    record(measurement(COPY, source="imported"))
    assert best_config(COPY, device=H200).source == "imported"


def test_failed_records_do_not_answer() -> None:
    record(measurement(COPY, rung="ran", failed_stage="verify", reason="WRONG_OUTPUT", samples_ns=()))
    with pytest.raises(ConfigNotFoundError):
        best_config(COPY, device=H200)


def test_the_warning_comes_once_and_points_at_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    record(measurement(CopyProblem(m=128, n=64, dtype="float32"), space(COPY).config(0)))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            best_config(COPY, device=H200)
            monkeypatch.setattr(lookup, "_answers", {})
    (warning,) = caught
    assert warning.filename == __file__


def test_a_changed_database_changes_the_answer() -> None:
    first, second = space(COPY).sample(2, seed=3)
    record(measurement(COPY, first))
    assert best_config(COPY, device=H200).config == first
    assert best_config(COPY, device=H200) is best_config(COPY, device=H200)
    record(measurement(COPY, second, samples_ns=(40_000,) * 3, utc="2026-01-02T00:00:00.000000Z"))
    assert best_config(COPY, device=H200).config == second
    with Store.open() as held:
        # Still in the journal only.
        held.add(measurement(COPY, first, samples_ns=(30_000,) * 3, utc="2026-01-03T00:00:00.000000Z"))
        assert best_config(COPY, device=H200).config == first


def test_two_databases(tmp_path: Path) -> None:
    here, there = str(tmp_path / "here.db"), f"sqlite:///{tmp_path}/there.db"
    first, second = space(COPY).sample(2, seed=4)
    record(measurement(COPY, first), db=here)
    record(measurement(COPY, second), db=there)
    assert best_config(COPY, device=H200, db=here).config == first
    assert best_config(COPY, device=H200, db=there).config == second


def test_a_damaged_database_is_told(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"not a database" * 1000)
    with pytest.raises(DatabaseError, match="damaged"):
        best_config(COPY, device=H200, db=str(damaged))


def test_what_cannot_run_there() -> None:
    with pytest.raises(UnsupportedError, match="sm_80"):
        best_config(dataclasses.replace(COPY, dtype="float64"), device="NVIDIA A100-SXM4-80GB")
    with pytest.raises(NoLegalConfigError, match="m=17"):
        best_config(matmul(17), device=H200, on_miss="predict")


def test_no_device() -> None:
    with pytest.raises(UsageError) as told:
        best_config(COPY)
    assert "device=" in told.value.fix


def test_unknown_device() -> None:
    with pytest.raises(UsageError, match="did you mean NVIDIA H100 NVL"):
        best_config(COPY, device="NVIDIA H100 NVLL")


def test_a_gpu_at_hand_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    card = dataclasses.replace(device_target(H200), sm_count=60)
    monkeypatch.setattr("tuner.device.gpus", lambda: [Gpu(0, "GPU-1", card)])
    for device in (None, H200, H200.lower()):
        with pytest.raises(ConfigNotFoundError, match="60 SMs"):
            best_config(COPY, device=device)


def test_threads_share_the_answers() -> None:
    problems = [CopyProblem(m=m, n=64, dtype="float32") for m in (8, 16, 32, 64)]
    configs = {problem: space(problem).config(5) for problem in problems}
    record(*(measurement(problem, config) for problem, config in configs.items()))
    wrong: list[Any] = []

    def ask(offset: int) -> None:
        for turn in range(20):
            problem = problems[(offset + turn) % len(problems)]
            try:
                answer = best_config(problem, device=H200)
            except Exception as error:  # noqa: BLE001 - told below
                wrong.append(error)
            else:
                if answer.config != configs[problem]:
                    wrong.append(answer)

    threads = [threading.Thread(target=ask, args=(offset,)) for offset in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_overlay_is_its_own_threads_only() -> None:
    record(measurement(COPY))
    pinned = space(COPY).config(7)
    answers: list[Any] = []
    with overlay(COPY, DeviceIdentity.from_target(device_target(H200)), "", pinned):
        thread = threading.Thread(target=lambda: answers.append(best_config(COPY, device=H200)))
        thread.start()
        thread.join()
    assert answers[0].source == "measured"


def test_shipped_records_that_are_broken_are_left_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "shipped"
    folder.mkdir()
    good = shipping.shipped_line(best_of(measurement(COPY)))
    (folder / "nvidia_h200.jsonl").write_text(f"{good}\nnot JSON\n")
    monkeypatch.setattr(shipping.importlib.resources, "files", lambda package: tmp_path)
    monkeypatch.setattr(lookup, "shipped", shipping.shipped.__wrapped__)
    with pytest.warns(UserWarning, match="line 2"):
        answer = best_config(COPY, device=H200)
    assert answer.source == "shipped"


LOADED = """
import sys, warnings
import tuner
from tuner import MatmulProblem
# What is shipped may be near, and says so.
warnings.filterwarnings("ignore", "no record of matmul")
problem = MatmulProblem(m=128, n=256, k=128, dtype="bfloat16")
first = tuner.best_config(problem, device="NVIDIA H100 PCIe", on_miss="predict")
assert "jax" not in sys.modules, "best_config loaded jax"

import jax, jax.numpy as jnp
from jax._src import xla_bridge
other = MatmulProblem(m=256, n=256, k=128, dtype="bfloat16")
tuner.best_config(other, device="NVIDIA H100 PCIe", on_miss="predict")
try:
    tuner.best_config(problem)
except tuner.UsageError as error:
    assert "device=" in error.fix
else:
    raise AssertionError("there is no GPU here")
assert not xla_bridge.backends_are_initialized(), "best_config initialised a backend"

@jax.jit
def double(x):
    config = tuner.best_config(problem, device="NVIDIA H100 PCIe", on_miss="predict").config
    return x * config.tile_m

assert float(double(jnp.float32(1))) == first.config.tile_m
try:
    tuner.best_config(problem)
except tuner.UsageError:
    pass
else:
    raise AssertionError("a CPU backend is no GPU")
"""


def test_in_a_program_of_ones_own() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LOADED],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


def test_a_space_as_a_table() -> None:
    here = tuner.legal_space(COPY, device=H200)
    table = here.to_dataframe()
    assert isinstance(table, pd.DataFrame)
    assert list(table.columns) == list(here.axes)
    assert len(table) == len(here)
    rows = [here.family.config_class(**row) for row in table.head(50).to_dict("records")]
    assert rows == [here.config(i) for i in range(50)]


def test_a_space_by_architecture_or_device() -> None:
    assert tuner.legal_space(COPY, arch="sm_90").target.reference
    with pytest.raises(UsageError, match="both"):
        tuner.legal_space(COPY, arch="sm_90", device=H200)
    with pytest.raises(UsageError, match="no GPU"):
        tuner.legal_space(COPY)

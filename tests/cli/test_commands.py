"""What each command prints and how it ends, with a stub GPU where it needs one."""

import csv
import io
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from tests import stubs
from tests.tuner.sweeps import ROOT, Command, misbehave, records
from tuner import __version__
from tuner.cli import tuner
from tuner.results.records import Best, Final, Measurement
from tuner.search_spaces.architecture import device_target
from tuner.search_spaces.family import family_for
from tuner.search_spaces.problem import CopyProblem
from tuner.search_spaces.space import LegalSpace

from .conftest import strict

Run = Callable[..., tuple[int, str, str]]

COPY = ("copy", "m=8", "n=64", "dtype=float32")
SWEEP = ("sweep", *stubs.ARGUMENTS, "--trials", "6", "--effort", "quick")
COMMANDS = ["best", "doctor", "explain", "export", "show", "space", "sweep"]


def python_m(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tuner", *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        **options,
    )


def here() -> LegalSpace:
    problem, target = CopyProblem(m=8, n=64, dtype="float32"), device_target("NVIDIA H200")
    return LegalSpace(family_for(problem, target), problem, target)


def test_help_and_version(run: Run) -> None:
    for option in ("-h", "--help"):
        code, out, err = run(option)
        assert (code, err) == (0, "")
        for name in COMMANDS:
            assert f"\n  {name} " in out
    for told in ("0 ok", "1 failed", "2 usage", "3 nothing", "4 regr", "5 no usable GPU", "130", "143"):
        assert told in " ".join(out.split())
    assert run("--version") == (0, f"tuner, version {__version__}\n", "")


def commands() -> list[click.Command]:
    context = click.Context(tuner)
    found = [tuner.get_command(context, name) for name in tuner.list_commands(context)]
    return [command for command in found if command is not None]


def test_the_commands() -> None:
    assert {command.name for command in commands()} >= set(COMMANDS)


@pytest.mark.parametrize("command", commands(), ids=lambda command: command.name)
def test_everything_has_help(run: Run, command: click.Command) -> None:
    assert command.help
    assert command.short_help
    code, out, err = run(str(command.name), "--help")
    assert (code, err) == (0, "")
    undocumented = [
        parameter.opts[0]
        for parameter in command.params
        if isinstance(parameter, click.Option) and not (parameter.help or "").strip()
    ]
    assert undocumented == []
    assert all(len(line) <= 100 for line in out.splitlines())


def test_python_m_tuner() -> None:
    with python_m("space", *COPY, "--arch", "sm_90") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert f"{len(here()):,} legal configurations of copy_tma" in out
    with python_m("space", "copy", "m=0", "n=64", "dtype=float32", "--arch", "sm_90") as process:
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err == "tuner: m=0 is below 1; give m as an integer of at least 1\n"


def test_a_reader_that_goes_away() -> None:
    """`tuner space ... --list | head -1`."""
    arguments = ("copy", "m=1024", "n=1024", "dtype=float32", "--arch", "sm_90", "--list")
    with python_m("space", *arguments) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("tile_m=")
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) in (0, 1)


def test_space_lists_what_it_counts(run: Run) -> None:
    space = here()
    code, out, err = run("space", *COPY, "--arch", "sm_90", "--list")
    assert (code, err) == (0, "")
    assert [space.family.parse_config(line) for line in out.splitlines()] == list(space)
    code, out, err = run("space", *COPY, "--device", "H200", "--csv")
    assert (code, err) == (0, "")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert len(rows) == len(space)
    first = rows[0]
    assert space.family.parse_config(",".join(f"{k}={v}" for k, v in first.items())) == space.config(0)


def test_space_tells_what_removed_the_others(run: Run) -> None:
    code, out, _ = run("space", *COPY, "--arch", "sm_90")
    space = here()
    assert code == 0
    for rule, count in space.removed.items():
        assert (f"{count:,} removed by {rule}" in out) is (count > 0)
    assert "the reference device of sm_90" in out
    assert f"{space.raw:,} products of {len(space.axes)} axes" in out


def test_explain(run: Run) -> None:
    problem = ("copy", "m=1024", "n=1024", "dtype=float32", "--arch", "sm_90")
    code, out, err = run("explain", *problem, "--config", "tile_m=64,tile_n=64")
    assert (code, err) == (0, "")
    assert "is legal for copy m=1024 n=1024 dtype=float32 on NVIDIA H200" in out
    code, out, err = run("explain", *problem, "--config", "tile_m=3,tile_n=5")
    assert (code, err) == (1, "")
    for rule in ("copy.m_divisible", "copy.n_divisible", "copy.bytes", "copy.inner_bytes"):
        assert f"  {rule}: have " in out
    repair = out.splitlines()[-1].removeprefix("nearest legal: ")
    assert run("explain", *problem, "--config", repair)[0] == 0
    code, out, _ = run("explain", *problem, "--config", "grid_schedule=hardware,blocks_per_sm=2")
    assert code == 0


@pytest.mark.usefixtures("gpu")
def test_sweep(run: Run, tmp_path: Path, database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    misbehave(monkeypatch, {1: "wrong"})
    code, out, err = run(*SWEEP[:-3], "40", "--effort", "quick", "--svg", str(tmp_path / "sweep.svg"))
    assert (code, out) == (0, "")
    for told in (
        "copy m=64 n=64 dtype=float32 on NVIDIA H200",
        "paired final, 12 shuffled rounds",
        "39 timed of 40 legal, the whole space, 1 failed",
        "winner",
        "1 x verify: WRONG_OUTPUT",
        "0 known before",
        "baseline 110.0 us",
    ):
        assert told in err
    assert "recorded in " in err
    assert str(database) in err.replace("\n", "")
    assert ET.parse(tmp_path / "sweep.svg").getroot().tag.endswith("svg")
    assert len(records()) == 40
    code, out, err = run(*SWEEP)
    assert (code, out) == (0, "")
    assert "40 known before" in err
    assert len(records()) == 40
    code, _, err = run(*SWEEP, "--fresh")
    assert code == 0
    assert "0 known before" in err
    assert "6 timed of 40 legal" in err
    assert len(records()) >= 46


@pytest.mark.usefixtures("gpu")
def test_a_sweep_through_the_whole_space_says_so(run: Run) -> None:
    code, _, err = run("sweep", *stubs.ARGUMENTS, "--effort", "quick")
    assert code == 0
    assert "40 timed of 40 legal, the whole space, 0 failed" in err


@pytest.mark.usefixtures("gpu")
def test_a_sweep_that_asks_for_the_gpu_it_gets(run: Run) -> None:
    for asked in (["--arch", "sm_90"], ["--device", "nvidia h200", "--gpus", "0"]):
        assert run(*SWEEP[:-3], "1", *asked)[0] == 0


@pytest.mark.usefixtures("gpu")
def test_a_sweep_without_a_gpu_is_told_as_predicted(run: Run) -> None:
    code, out, err = run(*SWEEP, "--deviceless", "--arch", "sm_90")
    assert (code, out) == (0, "")
    assert "predicted, not measured" in err
    assert "6 compiled of 40 legal" in err
    assert {record.rung for record in records()} == {"compiled"}
    assert not any(record.median_us for record in records())
    assert run("best", *stubs.ARGUMENTS, "--device", "H200")[0] == 3


@pytest.mark.usefixtures("gpu")
def test_sweeps_of_a_file(run: Run, tmp_path: Path) -> None:
    suite = tmp_path / "suite.toml"
    suite.write_text(
        "".join(
            f'[[problem]]\nkernel = "{stubs.KERNEL}"\nm = {m}\nn = 64\ndtype = "float32"\ntags = ["x"]\n'
            for m in (64, 128)
        )
    )
    code, out, err = run("sweep", "--problems", str(suite), "--trials", "2", "--effort", "quick")
    assert (code, out) == (0, "")
    assert "copy m=64 n=64" in err
    assert "copy m=128 n=64" in err
    assert [line.split()[5:8] for line in run("show")[1].splitlines()]
    assert {record.problem.m for record in records()} == {64, 128}  # type: ignore[attr-defined]


@pytest.mark.usefixtures("gpu")
def test_best_after_a_sweep(run: Run) -> None:
    assert run(*SWEEP)[0] == 0
    code, out, err = run("best", *stubs.ARGUMENTS, "--device", "H200")
    assert (code, out) == (0, "index=0\n")
    assert err.startswith("measured on NVIDIA H200, 100.00 us, 1.100 x the baseline")
    other = [stubs.KERNEL, "m=128", "n=64", "dtype=float32", "--device", "H200"]
    code, out, err = run("best", *other)
    assert (code, out) == (3, "")
    assert "nearest recorded: copy m=64 n=64 dtype=float32" in err
    code, out, err = run("best", *other, "--on-miss", "nearest")
    assert (code, out) == (0, "index=0\n")
    assert err.startswith("nearest on NVIDIA H200")
    (line,) = err.splitlines()
    assert "copy m=64 n=64 dtype=float32" in line
    # An H100 is no H200.
    code, out, _ = run("best", *stubs.ARGUMENTS, "--device", "NVIDIA H100 PCIe", "--on-miss", "nearest")
    assert (code, out) == (3, "")


@pytest.mark.usefixtures("gpu")
def test_show(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    misbehave(monkeypatch, {1: "wrong", 2: "compile_error"})
    assert run("sweep", *stubs.ARGUMENTS, "--effort", "quick")[0] == 0
    code, out, err = run("show")
    assert (code, err) == (0, "")
    (line,) = out.splitlines()
    assert line.split()[:3] == ["100.00", "us", "1.100"]
    code, out, err = run("show", *stubs.ARGUMENTS)
    assert code == 0
    assert len(out.splitlines()) == 20
    assert "20 more" in err
    times = [float(line.split()[0]) for line in out.splitlines()]
    assert times == sorted(times)
    code, out, err = run("show", *stubs.ARGUMENTS, "--limit", "100")
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == stubs.SIZE
    code, out, err = run("show", *stubs.ARGUMENTS, "--failed")
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == 2
    assert any("index=1  verify: WRONG_OUTPUT" in line for line in out.splitlines())
    assert any("index=2  compile: AssertionError no message" in line for line in out.splitlines())


@pytest.mark.usefixtures("gpu")
def test_export(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    misbehave(monkeypatch, {1: "impossible"})
    assert run(*SWEEP)[0] == 0
    kinds: dict[str, type[Measurement | Final | Best]] = {
        "measurement": Measurement,
        "final": Final,
        "best": Best,
    }
    texts = {}
    for name in ("json", "csv", "shipped"):
        code, texts[name], err = run("export", name)
        assert (code, err) == (0, "")
        code, out, err = run("export", name, str(tmp_path / name))
        assert (code, out, err) == (0, "", "")
        assert (tmp_path / name).read_text() == texts[name]
    lines = [strict(line) for line in texts["json"].splitlines()]
    found = [line.pop("kind") for line in lines]
    assert sorted(set(found)) == ["best", "final", "measurement"]
    read = [kinds[kind].from_dict(line) for kind, line in zip(found, lines, strict=True)]
    assert [one for one in read if isinstance(one, Measurement)] == records()
    rows = list(csv.DictReader(io.StringIO(texts["csv"])))
    assert [row["kind"] for row in rows].count("measurement") == len(records())
    assert {row["problem.m"] for row in rows} == {"64"}
    (shipped,) = texts["shipped"].splitlines()
    assert Best.from_dict(strict(shipped)).source == "shipped"


def test_doctor(run: Run, database: Path) -> None:
    code, out, err = run("doctor")
    assert (code, err) == (0, "")
    marks = {line[3:18].strip(): line[:3].strip() for line in out.splitlines()}
    assert marks["gpu"] == "no"
    assert marks["database"] == marks["python"] == marks["jax"] == "ok"
    assert str(database) in out
    assert "--deviceless --arch sm_90" in out


@pytest.mark.usefixtures("gpu")
def test_doctor_with_a_gpu(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tuner.device.driver_version", lambda: "580.1")
    code, out, _ = run("doctor")
    assert code == 0
    assert "0: NVIDIA H200 (sm_90, 132 SMs), driver 580.1" in out


def test_doctor_of_a_database_that_cannot_be_written(run: Run) -> None:
    code, out, err = run("doctor", "--db", "/proc/nowhere/results.db")
    assert (code, err) == (1, "")
    assert "no  database" in out
    assert "--db or MOSAIC_TUNER_DB" in out


def test_doctor_makes_no_database(run: Run, database: Path) -> None:
    assert run("doctor")[0] == 0
    assert not database.exists()


def test_sweeps_and_doctors_open_one_new_database_at_once(database: Path) -> None:
    sweep = ("sweep", *stubs.ARGUMENTS, "--deviceless", "--arch", "sm_90", "--trials", "1")
    started = [Command(*sweep).process for _ in range(6)] + [python_m("doctor") for _ in range(2)]
    ended = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0] * 8, ended
    assert len({record.run_id for record in records()}) == 6
    assert not list(database.parent.glob("*.lock"))


@pytest.mark.usefixtures("gpu")
def test_the_database_may_be_named_by_the_environment(run: Run, database: Path) -> None:
    assert not database.exists()
    assert run(*SWEEP)[0] == 0
    assert database.exists()
    told = run("show")
    assert told[0] == 0
    for name in (str(database), f"sqlite:///{database}"):
        assert run("show", "--db", name) == told


@pytest.mark.usefixtures("gpu")
def test_one_problem_of_a_list_does_not_stop_the_others(run: Run, tmp_path: Path) -> None:
    suite = tmp_path / "suite.toml"
    impossible = '[[problem]]\nkernel = "matmul"\nm = 17\nn = 4096\nk = 4096\ndtype = "bfloat16"\n'
    possible = f'[[problem]]\nkernel = "{stubs.KERNEL}"\nm = 64\nn = 64\ndtype = "float32"\n'
    suite.write_text(impossible + possible)
    code, out, err = run("sweep", "--problems", str(suite), "--trials", "2", "--json")
    assert code == 3, err
    first, second = json.loads(out)["sweeps"]
    assert first["error"]["code"] == "NO_LEGAL_CONFIG"
    assert second["counts"]["timed"] == 2

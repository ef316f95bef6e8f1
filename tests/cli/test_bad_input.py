"""What cannot mean anything: one clear line, the right exit code, nothing stored."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import stubs
from tests.tuner.sweeps import ROOT
from tuner import device
from tuner.device import Gpu
from tuner.results.store import Store
from tuner.search_spaces.architecture import device_target
from tuner.search_spaces.errors import UsageError
from tuner.search_spaces.family import named_family
from tuner.search_spaces.problem import CopyProblem, MatmulProblem

Run = Callable[..., tuple[int, str, str]]
Valid = Callable[[str, str], Any]

COPY = "copy m=64 n=64 dtype=float32"
MATMUL = "matmul m=128 n=256 k=128 dtype=bfloat16"
SEVENTEEN = "matmul m=17 n=4096 k=4096 dtype=bfloat16"
ON = "--arch sm_90"
ENORMOUS = "99999999999999999999999999999999"

USAGE, NOTHING, NO_GPU, FAILED = 2, 3, 5, 1

# Arguments, exit code, and what the line must say.
LINES: list[tuple[str, int, tuple[str, ...]]] = [
    # commands
    ("spaec copy", USAGE, ("spaec", "space")),
    (f"space {COPY} {ON} --lits", USAGE, ("--lits", "--list")),
    ("space", USAGE, ("KERNEL",)),
    (f"explain {COPY} {ON}", USAGE, ("--config",)),
    # problems
    (f"space copy m=0 n=64 dtype=float32 {ON}", USAGE, ("m=0", "at least 1")),
    (f"space copy m=-64 n=64 dtype=float32 {ON}", USAGE, ("m=-64",)),
    (f"space matmul m=4096 n=4096 k=0 dtype=bfloat16 {ON}", USAGE, ("k=0",)),
    (f"space copy m=64.0 n=64 dtype=float32 {ON}", USAGE, ("m='64.0'", "integer")),
    (f"space copy m=true n=64 dtype=float32 {ON}", USAGE, ("m='true'",)),
    (f"space copy m=nan n=64 dtype=float32 {ON}", USAGE, ("m='nan'",)),
    (f"space copy m= n=64 dtype=float32 {ON}", USAGE, ("m=''",)),
    (f"space copy m n=64 dtype=float32 {ON}", USAGE, ("'m'", "key=value")),
    (f"space copy m=64 m=128 n=64 dtype=float32 {ON}", USAGE, ("m", "twice")),
    (f"space copy m=64 dtype=float32 {ON}", USAGE, ("copy needs n=",)),
    (f"space matmul m=64 n=64 dtype=bfloat16 {ON}", USAGE, ("matmul needs k=",)),
    (f"space matmul m=64 n=64 k=64 dtpe=bfloat16 {ON}", USAGE, ("'dtpe'", "did you mean dtype")),
    (f"space copy m=64 n=64 k=64 dtype=float32 {ON}", USAGE, ("'k'",)),
    (f"space copy m=64 n=64 dtype=flaot32 {ON}", USAGE, ("'flaot32'", "did you mean float32")),
    (f"space copy m=64 n=64 dtype=3 {ON}", USAGE, ("dtype=3",)),
    (f"space {MATMUL} rhs=transposed {ON}", USAGE, ("rhs='transposed'", "kn, nk")),
    (f"space mtmul m=64 n=64 k=64 dtype=bfloat16 {ON}", USAGE, ("'mtmul'", "did you mean matmul")),
    (f"space no_such_module:FAMILY m=64 {ON}", USAGE, ("no_such_module",)),
    (f"space tests.stubs:NOTHING m=64 {ON}", USAGE, ("NOTHING",)),
    (f"space tests.stubs:GPU m=64 {ON}", USAGE, ("Gpu", "KernelFamily")),
    # devices
    (f"space {COPY}", USAGE, ("no GPU here", "--arch sm_90")),
    (f"explain {COPY} --config tile_m=64", USAGE, ("no GPU here", "--arch sm_90")),
    (f"best {COPY}", USAGE, ("no GPU here", "--arch sm_90")),
    (f"space {COPY} --arch sm_91", USAGE, ("'sm_91'", "did you mean sm_90")),
    (f"space {COPY} --arch hopper", USAGE, ("'hopper'", "sm_90")),
    (f"best {COPY} --device NVIDIA_H201", USAGE, ("'NVIDIA_H201'", "did you mean")),
    (f"best {COPY} --device H200 --arch sm_90", USAGE, ("--arch and --device",)),
    (f"space {COPY} --arch sm_75", NOTHING, ("sm_75 is below sm_80",)),
    (f"explain {COPY} --arch sm_75 --config tile_m=64", NOTHING, ("sm_75 is below sm_80",)),
    (f"best {COPY} --arch 7.5", NOTHING, ("7.5 is below sm_80",)),
    (f"sweep {COPY} --deviceless --arch sm_75", NOTHING, ("sm_75 is below sm_80",)),
    (f"sweep {COPY}", NO_GPU, ("NVIDIA GPU", "--deviceless --arch sm_90")),
    (f"sweep {COPY} --deviceless", USAGE, ("no GPU here", "--arch sm_90")),
    # what no kernel runs there
    ("space copy m=64 n=64 dtype=float64 --arch sm_80", NOTHING, ("64-bit mode", "not float64")),
    (f"space {MATMUL} rhs_dtype=float16 --arch sm_120", NOTHING, ("WGMMA", "not sm_120")),
    (f"sweep {MATMUL} rhs_dtype=float16 --deviceless --arch sm_89", NOTHING, ("WGMMA", "not sm_89")),
    (f"space matmul m=4096 n=4096 k=4096 dtype=float64 {ON}", NOTHING, ("not float64",)),
    (f"space matmul m=4096 n=4096 k=4096 dtype=fp8_e4m3 {ON}", NOTHING, ("float8_e4m3fn with rhs=nk alone",)),
    (f"best matmul m=64 n=64 k=64 dtype=int8 {ON}", NOTHING, ("int8 with rhs=nk alone",)),
    # shapes without a legal configuration
    (f"space matmul m=17 n=4096 k=4096 dtype=bfloat16 {ON}", NOTHING, ("m=17", "matmul.m_divisible", "m=64")),
    (f"space matmul m=4096 n=50257 k=4096 dtype=bfloat16 {ON}", NOTHING, ("n=50257", "nearest size")),
    (f"space copy m=4096 n=4100 dtype=bfloat16 {ON}", NOTHING, ("copy.row_pitch", "8200", "n=4104")),
    (f"best matmul m=17 n=4096 k=4096 dtype=bfloat16 {ON}", NOTHING, ("m=17",)),
    (f"sweep matmul m=17 n=4096 k=4096 dtype=bfloat16 --deviceless {ON}", NOTHING, ("m=17", "m=64")),
    # configurations
    (f"explain {COPY} {ON} --config tile_m=abc", USAGE, ("tile_m='abc'", "integer")),
    (f"explain {COPY} {ON} --config tile_m=64.0", USAGE, ("tile_m='64.0'",)),
    (f"explain {COPY} {ON} --config tile_m=true", USAGE, ("tile_m='true'",)),
    (f"explain {COPY} {ON} --config tile_m=NaN", USAGE, ("tile_m='NaN'",)),
    (f"explain {COPY} {ON} --config tile_m=", USAGE, ("tile_m=''",)),
    (f"explain {COPY} {ON} --config tile_m=none", USAGE, ("tile_m='none'",)),
    (f"explain {COPY} {ON} --config tile_m=-64", USAGE, ("tile_m=-64",)),
    (f"explain {COPY} {ON} --config tile_m", USAGE, ("'tile_m'", "name=value")),
    (f"explain {COPY} {ON} --config tileM=64", USAGE, ("'tileM'", "did you mean tile_")),
    (f"explain {COPY} {ON} --config grid_minor_dim=Q", USAGE, ("grid_minor_dim='Q'", "M, N")),
    (f"explain {COPY} {ON} --config tile_m=64,tile_m=32", USAGE, ("tile_m", "twice")),
    # options
    *(
        (f"sweep {COPY} --budget {value}", USAGE, ("--budget", value, "90s"))
        for value in ("0", "0s", "0.0m", "abc", "-5s", "nan", "inf", "1d", "1e3")
    ),
    (f"sweep {COPY} --run-timeout 0", USAGE, ("--run-timeout",)),
    *((f"sweep {COPY} --trials {value}", USAGE, ("--trials", value)) for value in ("0", "-1", "x", "1.5")),
    (f"sweep {COPY} --seed -1", USAGE, ("--seed",)),
    (f"sweep {COPY} --effort best", USAGE, ("--effort", "quick", "normal", "full")),
    (f"best {COPY} {ON} --on-miss nearst", USAGE, ("--on-miss", "nearest")),
    ("show --limit many", USAGE, ("--limit",)),
    ("show --limit -1", USAGE, ("--limit",)),
    ("show copy m=64", USAGE, ("copy needs n=",)),
    ("sweep", USAGE, ("--problems",)),
    ("sweep --problems /nonexistent/suite.toml", USAGE, ("/nonexistent/suite.toml",)),
    # nothing recorded
    (f"best {COPY} --device H200", NOTHING, ("no record", "NVIDIA H200 (132 SMs)", "tuner sweep copy")),
    (f"best {COPY} --device H200 --on-miss nearest", NOTHING, ("no record",)),
    ("show", NOTHING, ("holds no records", "run a sweep")),
    (f"show {COPY}", NOTHING, ("holds no records",)),
]


def told_on_one_line(answer: tuple[int, str, str], code: int, *parts: str) -> None:
    found, out, err = answer
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith("tuner: ")
    for part in parts:
        assert part in line
    assert found == code, line
    assert len(line) < 600


def nothing_stored(database: Path) -> bool:
    if not database.exists():
        return True
    with Store.open(str(database), create=False, read_only=True) as store:
        return not (store.measurements() or store.finals() or store.bests())


@pytest.mark.parametrize(("line", "code", "parts"), LINES, ids=[line for line, _, _ in LINES])
def test_one_clear_line(run: Run, database: Path, line: str, code: int, parts: tuple[str, ...]) -> None:
    told_on_one_line(run(*line.split()), code, *parts)
    assert nothing_stored(database)


@pytest.mark.parametrize(("line", "code", "parts"), LINES, ids=[line for line, _, _ in LINES])
def test_one_json_object(run: Run, valid: Valid, line: str, code: int, parts: tuple[str, ...]) -> None:
    found, out, err = run(*line.split(), "--json")
    error = valid("error", out)["error"]
    assert err == ""
    assert found == code
    for part in parts:
        assert part in f"{error['message']} {error['fix']}"


def test_export_of_an_unknown_format(run: Run) -> None:
    told_on_one_line(run("export", "jsno"), USAGE, "'jsno'", "did you mean json")


def test_export_of_nothing(run: Run) -> None:
    told_on_one_line(run("export", "json"), NOTHING, "holds no records")


def test_no_command_shows_the_help(run: Run) -> None:
    code, out, err = run()
    assert code == USAGE
    assert f"{out}{err}".startswith("Usage: tuner")
    assert "Exit codes" in f"{out}{err}"


@pytest.mark.parametrize(
    "arguments",
    [
        f"space matmul m={2**40} n=4096 k=4096 dtype=bfloat16 {ON}",
        f"space matmul m={ENORMOUS} n=4096 k=4096 dtype=bfloat16 {ON}",
        f"space copy m={ENORMOUS} n=64 dtype=float32 {ON}",
        f"best copy m={ENORMOUS} n=64 dtype=float32 --device H200",
    ],
    ids=["2^40", "matmul", "copy", "best"],
)
def test_sizes_that_no_memory_holds(arguments: str) -> None:
    done = subprocess.run(
        ["sh", "-c", 'ulimit -v 4000000; exec "$@"', "sh", sys.executable, "-m", "tuner", *arguments.split()],
        cwd=ROOT,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    told_on_one_line((done.returncode, done.stdout, done.stderr), USAGE, "m=")


@pytest.mark.parametrize("field", ["tile_m", "max_concurrent_steps", "blocks_per_sm"])
def test_fields_that_no_integer_column_holds(run: Run, field: str) -> None:
    code, out, err = run(*f"explain {COPY} {ON} --config {field}={ENORMOUS}".split())
    assert code in (FAILED, USAGE)
    assert field in f"{out}{err}"


def test_enormous_fields_of_a_matmul(run: Run) -> None:
    config = f"tile_m={ENORMOUS},grid_tile_width={ENORMOUS}"
    code, out, err = run(*f"explain {MATMUL} {ON} --config {config}".split())
    assert code in (FAILED, USAGE)
    assert "tile_m" in f"{out}{err}"


@pytest.mark.parametrize("source", ["raise RuntimeError('boom')", "def ("], ids=["raises", "syntax"])
def test_a_kernel_whose_module_breaks(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    (tmp_path / "broken_kernel.py").write_text(f"{source}\n")
    monkeypatch.syspath_prepend(tmp_path)
    told_on_one_line(run("space", "broken_kernel:FAMILY", "m=64", "--arch", "sm_90"), USAGE, "broken_kernel")


UNUSABLE = {
    "show": "show --db {db}",
    "show records": f"show {COPY} --db {{db}}",
    "best": f"best {COPY} --device H200 --db {{db}}",
    "export": "export csv --db {db}",
    "sweep": f"sweep {' '.join(stubs.ARGUMENTS)} --db {{db}}",
    "deviceless": f"sweep {COPY} --deviceless {ON} --db {{db}}",
}


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("command", UNUSABLE.values(), ids=UNUSABLE)
def test_a_corrupt_database(run: Run, tmp_path: Path, command: str) -> None:
    corrupt = tmp_path / "corrupt.db"
    corrupt.write_bytes(b"\xff\x00 no database" * 1000)
    before = corrupt.read_bytes()
    told_on_one_line(run(*command.format(db=corrupt).split()), FAILED, str(corrupt), "damaged", "mv ")
    assert corrupt.read_bytes() == before


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("place", ["/proc/nowhere/results.db", "/dev/null/results.db", "/"])
@pytest.mark.parametrize("command", ["sweep", "deviceless"])
def test_a_database_that_cannot_be_written(run: Run, command: str, place: str) -> None:
    arguments = UNUSABLE[command].format(db=place).split()
    told_on_one_line(run(*arguments), FAILED, place, "--db or MOSAIC_TUNER_DB")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("command", UNUSABLE.values(), ids=UNUSABLE)
@pytest.mark.parametrize(
    ("url", "code"),
    [
        ("mysql://me:hunter2@host/records", USAGE),
        ("postgresql://me:hunter2@127.0.0.1:1/records?connect_timeout=2", FAILED),
    ],
    ids=["mysql", "postgresql"],
)
def test_passwords_are_never_printed(run: Run, command: str, url: str, code: int) -> None:
    answer = run(*command.format(db=url).split())
    told_on_one_line(answer, code)
    assert "hunter2" not in f"{answer}"


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("asked", "parts"),
    [
        (["--arch", "sm_100"], ("NVIDIA H200", "sm_90", "not sm_100")),
        (["--device", "NVIDIA H100 PCIe"], ("NVIDIA H200", "not NVIDIA H100 PCIe")),
    ],
)
def test_another_device_than_asked(
    run: Run, database: Path, asked: list[str], parts: tuple[str, ...]
) -> None:
    told_on_one_line(run("sweep", *stubs.ARGUMENTS, *asked), NO_GPU, *parts, "--deviceless")
    assert nothing_stored(database)


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(
    ("gpus", "parts"), [("7", ("7", "0 to 0")), ("-1", ("-1",)), ("a", ("'a'", "0,1")), ("0,", ("0,1",))]
)
def test_gpus_that_are_not_here(run: Run, gpus: str, parts: tuple[str, ...]) -> None:
    told_on_one_line(run("sweep", *stubs.ARGUMENTS, "--gpus", gpus), USAGE, "--gpus", *parts)


def test_unlike_gpus(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [stubs.GPU, Gpu(1, "GPU-a100", device_target("NVIDIA A100-SXM4-80GB"))]
    stubs.install(monkeypatch.setattr)
    monkeypatch.setattr(device, "gpus", lambda: others)
    told_on_one_line(run("sweep", *stubs.ARGUMENTS, "--gpus", "0,1"), USAGE, "unlike")
    told_on_one_line(run("sweep", *MATMUL.split(), "rhs_dtype=float16", "--gpus", "1"), NOTHING, "not sm_80")


@pytest.mark.usefixtures("gpu")
def test_a_sweep_without_a_legal_configuration_stores_nothing(run: Run, database: Path) -> None:
    told_on_one_line(run("sweep", *SEVENTEEN.split()), NOTHING, "m=17", "m=64")
    assert nothing_stored(database)


SUITES = {
    "no TOML": ("[[problem", ("cannot be read",)),
    "empty": ("", ("no list of problems",)),
    "no problem": ("problem = []", ("no list of problems",)),
    "another table": ('[[problems]]\nkernel = "copy"', ("no list of problems",)),
    "no kernel": ("[[problem]]\nm = 64", ("problem 1", "kernel")),
    "unknown kernel": ('[[problem]]\nkernel = "coopy"\nm = 64', ("problem 1", "did you mean copy")),
    "unknown key": (
        '[[problem]]\nkernel = "copy"\nm = 64\nn = 64\ndtyp = "float32"',
        ("problem 1", "did you mean dtype"),
    ),
    "missing key": ('[[problem]]\nkernel = "copy"\nm = 64\nn = 64', ("problem 1", "needs dtype=")),
    "text": ('[[problem]]\nkernel = "copy"\nm = "64"\nn = 64\ndtype = "float32"', ("problem 1", "m='64'")),
    "bool": ('[[problem]]\nkernel = "copy"\nm = true\nn = 64\ndtype = "float32"', ("problem 1", "m=True")),
    "float": ('[[problem]]\nkernel = "copy"\nm = 64.0\nn = 64\ndtype = "float32"', ("problem 1", "m=64.0")),
    "nan": ('[[problem]]\nkernel = "copy"\nm = nan\nn = 64\ndtype = "float32"', ("problem 1", "m=nan")),
    "second": (
        "".join(f'[[problem]]\nkernel = "copy"\nm = {m}\nn = 64\ndtype = "float32"\n' for m in (64, 0)),
        ("problem 2", "m=0"),
    ),
    "tags": ('[[problem]]\nkernel = "copy"\ntags = "a"', ("problem 1", "tags")),
}


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize(("text", "parts"), SUITES.values(), ids=SUITES)
def test_a_suite_that_is_wrong(
    run: Run, tmp_path: Path, database: Path, text: str, parts: tuple[str, ...]
) -> None:
    suite = tmp_path / "suite.toml"
    suite.write_text(text)
    told_on_one_line(run("sweep", "--problems", str(suite)), USAGE, "suite.toml", *parts)
    assert nothing_stored(database)


@pytest.mark.usefixtures("gpu")
def test_a_suite_that_is_no_text(run: Run, tmp_path: Path) -> None:
    (tmp_path / "suite.toml").write_bytes(b"\xff\xfe\x00")
    told_on_one_line(run("sweep", "--problems", str(tmp_path / "suite.toml")), USAGE, "suite.toml")
    told_on_one_line(run("sweep", "--problems", str(tmp_path)), USAGE, str(tmp_path))


@pytest.mark.usefixtures("gpu")
def test_a_suite_beside_a_problem(run: Run, tmp_path: Path) -> None:
    suite = tmp_path / "suite.toml"
    suite.write_text('[[problem]]\nkernel = "copy"\nm = 64\nn = 64\ndtype = "float32"\n')
    told_on_one_line(run("sweep", *COPY.split(), "--problems", str(suite)), USAGE, "either")


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("place", ["/nonexistent/folder/out", "/dev/full"])
def test_an_export_that_cannot_be_written(run: Run, place: str) -> None:
    assert run("sweep", *stubs.ARGUMENTS, "--trials", "2")[0] == 0
    told_on_one_line(run("export", "json", place), FAILED, place)


@pytest.mark.usefixtures("gpu")
def test_a_picture_that_cannot_be_written(run: Run) -> None:
    """Told before the sweep, or after it without losing what it found."""
    code, out, err = run("sweep", *stubs.ARGUMENTS, "--trials", "2", "--svg", "/nonexistent/folder/out.svg")
    assert (code, out) in ((FAILED, ""), (USAGE, ""))
    assert err.splitlines()[-1].startswith("tuner: ")
    assert "/nonexistent/folder/out.svg" in err


@pytest.mark.parametrize("value", ["128", True, False, 128.0, float("nan"), None, np.float32(128), np.True_])
def test_what_is_no_tile(value: Any) -> None:
    for family in ("copy_tma", "matmul_hopper"):
        with pytest.raises(UsageError, match="tile_m"):
            named_family(family).config({"tile_m": value})
    with pytest.raises(UsageError, match="m="):
        CopyProblem(m=value, n=64, dtype="float32")


@pytest.mark.parametrize("integer", [np.int8, np.uint16, np.int32, np.int64])
def test_numpy_integers_are_integers(integer: Any) -> None:
    config = named_family("matmul_hopper").config({"tile_m": integer(64)})
    assert config == named_family("matmul_hopper").config({"tile_m": 64})
    assert {type(value) for value in dataclasses.asdict(config).values()} <= {int, str, type(None)}
    sizes = {"m": integer(64), "n": integer(64), "k": integer(64)}
    problem = MatmulProblem(**sizes, dtype="bf16")
    assert problem.key == MatmulProblem(m=64, n=64, k=64, dtype="bfloat16").key

"""`--json`: one object on standard output and nothing else, as the committed schemas say."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from jsonschema import Draft202012Validator, ValidationError

from tests import stubs
from tests.tuner.sweeps import misbehave
from tuner.cli import main, tuner

from .conftest import SCHEMAS, schema

Run = Callable[..., tuple[int, str, str]]
Valid = Callable[[str, str], Any]

COPY = "copy m=64 n=64 dtype=float32"
MATMUL = "matmul m=128 n=256 k=128 dtype=bfloat16"
NAMES = sorted(path.stem for path in SCHEMAS.glob("*.json"))


def commands_with_json() -> set[str]:
    context = click.Context(tuner)
    found = set()
    for name in tuner.list_commands(context):
        command = tuner.get_command(context, name)
        assert command is not None
        if any("--json" in parameter.opts for parameter in command.params):
            found.add(name)
    return found


def test_every_command_with_json_has_a_schema() -> None:
    assert set(NAMES) == commands_with_json() | {"error"}


@pytest.mark.parametrize("name", NAMES)
def test_schemas_are_schemas_and_closed(name: str) -> None:
    found = schema(name)
    Draft202012Validator.check_schema(found)
    assert found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert found["additionalProperties"] is False
    with pytest.raises(ValidationError):
        Draft202012Validator(found).validate({})


@pytest.mark.parametrize("problem", [COPY, MATMUL])
def test_space(run: Run, valid: Valid, problem: str) -> None:
    code, out, err = run("space", *problem.split(), "--arch", "sm_90", "--json")
    assert (code, err) == (0, "")
    found = valid("space", out)
    assert found["raw"] == found["size"] + sum(found["removed"].values())
    assert found["problem"]["kernel"] == problem.partition(" ")[0]
    assert found["target"]["reference"]


@pytest.mark.parametrize("problem", [COPY, MATMUL])
@pytest.mark.parametrize(
    ("config", "code"), [("tile_m=64,max_concurrent_steps=1", 0), ("tile_m=63", 1), ("tile_m=0", 1)]
)
def test_explain(run: Run, valid: Valid, problem: str, config: str, code: int) -> None:
    if problem == COPY:
        config += ",delay_release=0"
    ended, out, err = run("explain", *problem.split(), "--arch", "sm_90", "--config", config, "--json")
    found = valid("explain", out)
    assert (ended, err) == (code, "")
    assert found["legal"] is (code == 0)
    assert bool(found["violations"]) is (code == 1)
    assert found["derived"]["smem_bytes"] >= 0
    if code:
        assert found["repair"] is not None


@pytest.mark.usefixtures("gpu")
def test_a_sweep_and_what_it_recorded(run: Run, valid: Valid, monkeypatch: pytest.MonkeyPatch) -> None:
    misbehave(monkeypatch, {1: "wrong", 2: "impossible", 3: "compile_error"})
    sweep = ("sweep", *stubs.ARGUMENTS, "--trials", "12", "--effort", "quick", "--json")
    code, out, err = run(*sweep)
    assert code == 0
    assert "Traceback" not in err
    found = valid("sweep", out)
    assert found["counts"]["timed"] == 12
    assert found["counts"]["legal"] == stubs.SIZE
    assert found["best"]["config"] == {"index": 0}
    assert found["best"]["ratio"] == pytest.approx(1.1)
    assert found["final"]["members"][found["final"]["winner"]]["config"] == {"index": 0}
    assert not found["predicted"]

    code, out, err = run("show", "--json")
    assert (code, err) == (0, "")
    (best,) = valid("show", out)["bests"]
    assert (best["config"], best["rung"]) == ({"index": 0}, "final")

    code, out, err = run("show", *stubs.ARGUMENTS, "--json")
    assert (code, err) == (0, "")
    assert len(valid("show", out)["records"]) == 12 + found["counts"]["failed"]

    code, out, err = run("show", *stubs.ARGUMENTS, "--failed", "--json")
    assert all(record["failed_stage"] for record in valid("show", out)["records"])

    code, out, err = run("best", *stubs.ARGUMENTS, "--device", "H200", "--json")
    assert (code, err) == (0, "")
    answer = valid("best", out)
    assert (answer["config"], answer["source"], answer["time_us"]) == ({"index": 0}, "measured", 100)


@pytest.mark.usefixtures("gpu")
def test_a_sweep_without_a_gpu(run: Run, valid: Valid) -> None:
    sweep = ("sweep", *stubs.ARGUMENTS, "--deviceless", "--arch", "sm_90", "--trials", "5", "--json")
    code, out, _ = run(*sweep)
    found = valid("sweep", out)
    assert code == 0
    assert found["predicted"]
    assert found["best"]["time_us"] is None
    assert found["best"]["predicted_us"] == 100
    assert found["final"] is None
    assert (found["counts"]["timed"], found["counts"]["compiled"]) == (0, 5)


@pytest.mark.usefixtures("gpu")
def test_sweeps_of_a_file(run: Run, valid: Valid, tmp_path: Path) -> None:
    suite = tmp_path / "suite.toml"
    suite.write_text(
        "".join(
            f'[[problem]]\nkernel = "{stubs.KERNEL}"\nm = {m}\nn = 64\ndtype = "float32"\n' for m in (64, 128)
        )
    )
    code, out, _ = run("sweep", "--problems", str(suite), "--trials", "2", "--effort", "quick", "--json")
    found = valid("sweep", out)
    assert code == 0
    assert [one["problem"]["m"] for one in found["sweeps"]] == [64, 128]


@pytest.mark.usefixtures("gpu")
def test_a_sweep_that_fails(run: Run, valid: Valid, monkeypatch: pytest.MonkeyPatch) -> None:
    misbehave(monkeypatch, {"*": "wrong"})
    code, out, _ = run("sweep", *stubs.ARGUMENTS, "--json")
    assert code == 1
    error = valid("error", out)["error"]
    assert error["code"] == "MEASUREMENT"
    assert "40 x verify: WRONG_OUTPUT" in error["message"]


def test_best_that_is_predicted(run: Run, valid: Valid) -> None:
    code, out, err = run("best", *COPY.split(), "--device", "H200", "--on-miss", "predict", "--json")
    assert (code, err) == (0, "")
    answer = valid("best", out)
    assert (answer["source"], answer["time_us"]) == ("predicted", None)


def test_doctor(run: Run, valid: Valid) -> None:
    code, out, err = run("doctor", "--json")
    assert (code, err) == (0, "")
    checks = {check["name"]: check for check in valid("doctor", out)["checks"]}
    assert checks["database"]["ok"]
    assert not checks["gpu"]["ok"]
    assert checks["gpu"]["fix"]


def test_doctor_of_a_broken_database(run: Run, valid: Valid, tmp_path: Path) -> None:
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"\xff" * 8192)
    code, out, _ = run("doctor", "--json", "--db", str(broken))
    checks = {check["name"]: check for check in valid("doctor", out)["checks"]}
    assert code == 1
    assert not checks["database"]["ok"]
    assert "mv " in checks["database"]["fix"]


def test_interrupted_inside(run: Run, valid: Valid, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tuner.cli.space.problem_from", interrupted)
    code, out, _ = run("space", *COPY.split(), "--arch", "sm_90", "--json")
    assert code == 130
    assert valid("error", out)["error"]["code"] == "INTERRUPTED"


def test_schemas_lie_in_the_package() -> None:
    assert Path(main.__code__.co_filename).parent == SCHEMAS.parent

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest
from jsonschema import Draft202012Validator

from tests import stubs
from tests.tuner.sweeps import isolate
from tuner import device
from tuner.cli import main

SCHEMAS = Path(main.__code__.co_filename).parent / "schemas"

Answer = tuple[int, str, str]
Run = Callable[..., Answer]


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A database of its own, no shipped records, and no GPU even where there is one."""
    found = device.gpus
    isolate(monkeypatch, tmp_path)
    monkeypatch.setattr(device, "gpus", found)

    def no_driver() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    monkeypatch.setattr(pynvml, "nvmlInit", no_driver)
    monkeypatch.setattr("tuner.lookup.shipped", lambda device_kind: ())
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stub GPU."""
    stubs.install(monkeypatch.setattr)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """`run("space", "copy", ...)`: exit code, standard output, standard error."""

    def call(*arguments: str) -> Answer:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        return (int(str(ended.value.code)), *capsys.readouterr())

    return call


def strict(text: str) -> Any:
    """What strict JSON holds: no NaN, no Infinity."""

    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


def schema(name: str) -> Any:
    return json.loads((SCHEMAS / f"{name}.json").read_text())


@pytest.fixture
def valid() -> Callable[[str, str], Any]:
    """`valid("best", text)`: the one object that is all of the text, as its schema wants it."""

    def check(name: str, text: str) -> Any:
        found = strict(text)
        Draft202012Validator(schema(name)).validate(found)
        return found

    return check


@pytest.fixture
def database() -> Path:
    return Path(os.environ["MOSAIC_TUNER_DB"])

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from .processes import all_end, descendants
from .sweeps import Command, isolate


@pytest.fixture(autouse=True)
def _isolated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    isolate(monkeypatch, tmp_path)


@pytest.fixture(autouse=True)
def _no_process_left() -> Iterator[None]:
    before = descendants(os.getpid())
    yield
    all_end(descendants(os.getpid()) - before)


@pytest.fixture
def command() -> Iterator[Callable[..., Command]]:
    """Starts commands that end with the test."""
    started: list[Command] = []

    def start(*arguments: str, **environment: str) -> Command:
        started.append(Command(*arguments, **environment))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.communicate()

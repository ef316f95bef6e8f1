import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tuner.child import Child, ChildDied, ChildTimeout, telling_line
from tuner.farm import Farm

from . import tasks
from .processes import alive, all_end
from .sweeps import ROOT

ECHO = "tests.tuner.echo"


@pytest.fixture
def child() -> Iterator[Child]:
    started = Child(ECHO, environment={"STUB_SAID": "hello"})
    yield started
    started.kill()


@pytest.mark.parametrize("size", [0, 1, 65536, 5_000_000])
def test_round_trip(child: Child, size: int) -> None:
    header = {"text": "é\n\0", "number": 1.5, "none": None, "list": [1, [2]]}
    payload = os.urandom(size)
    child.send(header, payload)
    assert child.receive(20) == (header, payload)


def test_messages_keep_their_order(child: Child) -> None:
    for number in range(20):
        child.send({"number": number}, bytes([number]) * number)
    assert [child.receive(20) for _ in range(20)] == [({"number": n}, bytes([n]) * n) for n in range(20)]


def test_what_a_child_prints_is_no_message(child: Child) -> None:
    child.send({"do": "noise"}, b"payload")
    assert child.receive(20) == ({"do": "noise"}, b"payload")
    child.process.kill()
    with pytest.raises(ChildDied):
        child.receive(20)
    child._log.seek(0)
    log = child._log.read().decode()
    for noise in ("python noise", "raw noise", "libc noise", "shell noise"):
        assert noise in log


def test_a_child_reads_no_input_of_ours(child: Child) -> None:
    child.send({"do": "input"})
    assert child.receive(20)[0]["input"] == ""


def test_environment(child: Child) -> None:
    child.send({"do": "environment"})
    environment = child.receive(20)[0]["environment"]
    assert environment["STUB_SAID"] == "hello"
    assert environment["MOSAIC_TUNER_DB"] == os.environ["MOSAIC_TUNER_DB"]


def test_captured_log_holds_only_what_is_inside(child: Child) -> None:
    child.send({"do": "log"})
    assert child.receive(20)[0]["log"] == "inside\n"


def test_last_words_after_a_captured_log(child: Child) -> None:
    child.send({"do": "log"})
    child.receive(20)
    child.send({"do": "exit"})
    with pytest.raises(ChildDied, match=r"^exit 3: ptxas fatal: it broke$"):
        child.receive(20)


def test_no_answer_in_time(child: Child) -> None:
    child.send({})
    child.receive(20)
    child.send({"do": "sleep"})
    with pytest.raises(ChildTimeout):
        child.receive(0.1)
    child.kill()
    assert not alive(child.process.pid)


def test_an_exit_is_told_with_the_telling_line(child: Child) -> None:
    child.send({"do": "exit"})
    with pytest.raises(ChildDied, match=r"^exit 3: ptxas fatal: it broke$"):
        child.receive(20)


def test_a_kill_is_told_with_its_signal(child: Child) -> None:
    child.send({})
    child.receive(20)
    child.process.kill()
    with pytest.raises(ChildDied, match=r"^killed by SIGKILL$"):
        child.receive(20)


def test_a_message_that_breaks_off(child: Child) -> None:
    child.send({"do": "half"})
    with pytest.raises(ChildDied, match="exit 4"):
        child.receive(20)


def test_sending_to_a_dead_child(child: Child) -> None:
    child.process.kill()
    child.process.wait()
    with pytest.raises(ChildDied, match="SIGKILL"):
        child.send({}, bytes(1_000_000))


def test_killing_twice(child: Child) -> None:
    child.kill()
    child.kill()
    assert child.process.returncode == -9


def test_killing_ends_what_the_child_started(child: Child) -> None:
    child.send({"do": "spawn"})
    pid = child.receive(20)[0]["pid"]
    assert alive(pid)
    child.kill()
    all_end([pid])


def test_a_child_whose_parent_is_gone_already_ends() -> None:
    """Else one started just as its parent is killed would live for ever."""
    orphan = subprocess.Popen(
        [sys.executable, "-m", ECHO, "1"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with orphan:
        assert orphan.wait(timeout=20) == 1
    all_end([orphan.pid])


@pytest.mark.parametrize(
    ("log", "line"),
    [
        ("", ""),
        ("\n  \n", ""),
        ("one\ntwo\n", "two"),
        ("ptxas fatal   : out of registers\nnote: see above\n", "ptxas fatal   : out of registers"),
        ("Error: first\nError: second\ncleanup\n", "Error: second"),
        ("RESOURCE_EXHAUSTED: 1 GiB\ndone", "RESOURCE_EXHAUSTED: 1 GiB"),
        ("x" * 1000, "x" * 500),
    ],
)
def test_telling_line(log: str, line: str) -> None:
    assert telling_line(log) == line


def test_nothing_is_imported_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stranger's project may hold a `select.py`, and a `tuner/` of its own."""
    (tmp_path / "select.py").write_text("raise RuntimeError('mine')\n")
    (tmp_path / "tuner").mkdir()
    (tmp_path / "tuner" / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    # As in a notebook, or on standard input.
    monkeypatch.syspath_prepend("")
    with Farm(1, timeout_s=30) as farm:
        assert farm.submit(tasks.echo, {}).result(timeout=60) == ({}, b"")

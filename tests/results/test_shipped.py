import dataclasses
import importlib.resources
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tuner.results import shipped as module
from tuner.results.records import Best
from tuner.results.shipped import shipped, shipped_line, slug, write_shipped
from tuner.search_spaces.problem import CopyProblem

Maker = Callable[..., Any]

KIND = "NVIDIA H200"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where shipped files are looked for."""
    monkeypatch.setattr(importlib.resources, "files", lambda package: tmp_path)
    module.shipped.cache_clear()
    (tmp_path / "shipped").mkdir()
    yield tmp_path / "shipped"
    module.shipped.cache_clear()


@pytest.fixture
def bests(measured: Maker) -> list[Best]:
    problems = [CopyProblem(m=m, n=64, dtype=dtype) for m in (64, 128) for dtype in ("int8", "float32")]
    return [Best.of(measured(problem=problem)) for problem in problems]


def test_slug() -> None:
    assert slug("NVIDIA H100 80GB HBM3") == "nvidia_h100_80gb_hbm3"
    assert "/" not in slug("../x")


def test_written_and_read_back(folder: Path, bests: list[Best]) -> None:
    write_shipped(folder / f"{slug(KIND)}.jsonl", bests)
    found = shipped(KIND)
    assert {best.problem.key for best in found} == {best.problem.key for best in bests}
    assert {best.source for best in found} == {"shipped"}
    assert [best.problem.key for best in found] == sorted(best.problem.key for best in bests)
    assert [path.name for path in folder.iterdir()] == ["nvidia_h200.jsonl"]


def test_order_of_arrival_does_not_matter(folder: Path, bests: list[Best]) -> None:
    write_shipped(folder / "a", bests)
    write_shipped(folder / "b", bests[::-1])
    assert (folder / "a").read_bytes() == (folder / "b").read_bytes()


def test_no_file_is_no_record(folder: Path) -> None:
    assert shipped("NVIDIA H20") == ()
    assert shipped("../../etc/passwd") == ()


def test_bad_lines_are_left_out_and_told_once(folder: Path, bests: list[Best]) -> None:
    other = dataclasses.replace(
        bests[1], device=dataclasses.replace(bests[1].device, device_kind="NVIDIA H20")
    )
    lines = [
        shipped_line(bests[0]).encode(),
        b"{",
        b"\xff\xfe",
        shipped_line(other).encode(),
        b"",
        b'{"x": 1}',
    ]
    (folder / f"{slug(KIND)}.jsonl").write_bytes(b"\n".join(lines))
    with pytest.warns(UserWarning, match="left out") as told:
        assert [best.problem for best in shipped(KIND)] == [bests[0].problem]
    assert [int(str(w.message).split(" line ")[1].split()[0]) for w in told] == [2, 3, 4, 5, 6]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(shipped(KIND)) == 1


def test_a_failed_write_keeps_the_old_file(folder: Path, bests: list[Best], monkeypatch: Any) -> None:
    path = folder / f"{slug(KIND)}.jsonl"
    write_shipped(path, bests)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_shipped(path, bests[:1])
    assert path.read_bytes() == before
    assert [found.name for found in folder.iterdir()] == [path.name]


def test_what_ships_is_sound() -> None:
    """Every shipped file reads without a warning, is sorted, and is named after its device."""
    place = Path(module.__file__).parent / "shipped"
    for path in place.glob("*.jsonl"):
        lines = path.read_text().splitlines()
        kinds = {Best.from_dict(module.from_json(line)).device.device_kind for line in lines}
        assert [slug(kind) for kind in kinds] == [path.stem]
        assert module.shipped_lines(shipped(kinds.pop())) == lines

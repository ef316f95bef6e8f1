import csv
import io
import json
from collections.abc import Callable
from typing import Any

import pytest

from tuner.results.formats import FORMATS
from tuner.results.records import Best, Final, Measurement
from tuner.results.shipped import shipped_line
from tuner.results.store import Store
from tuner.search_spaces.problem import CopyProblem

Maker = Callable[..., Any]


@pytest.fixture
def filled(store: Store, measured: Maker, finalist: Maker) -> Store:
    """One inf, one NaN, one pruned and one good measurement, and a final."""
    store.add(measured(100, 0, ratio=float("inf")))
    store.add(measured(100, 1, ratio=float("nan"), problem=CopyProblem(m=8, n=8, dtype="int8")))
    store.add(measured(100, 2, samples_ns=(), rung="verified", reason='said "no",\nand left'))
    store.add(measured(90, 3, ratio=1.25))
    store.add_final(finalist(95, 4))
    return store


def exported(store: Store, name: str) -> str:
    stream = io.StringIO()
    FORMATS[name](store, stream)
    return stream.getvalue()


def test_formats_are_found() -> None:
    assert {"json", "csv", "shipped"} <= set(FORMATS)


def test_json_is_strict_and_complete(filled: Store) -> None:
    kinds = {"measurement": Measurement, "final": Final, "best": Best}
    found: dict[str, list[Any]] = {kind: [] for kind in kinds}
    for line in exported(filled, "json").splitlines():
        fields = json.loads(line, parse_constant=lambda name: pytest.fail(name))
        kind = fields.pop("kind")
        found[kind].append(kinds[kind].from_dict(fields))
    assert found == {"measurement": filled.measurements(), "final": filled.finals(), "best": filled.bests()}
    assert len(found["measurement"]) == 4


def test_csv_has_a_row_each(filled: Store) -> None:
    rows = list(csv.DictReader(io.StringIO(exported(filled, "csv"))))
    assert [row["kind"] for row in rows] == ["measurement"] * 4 + ["best"] * 2
    assert [row["time_us"] for row in rows] == ["100.0", "100.0", "", "90.0", "100.0", "95.0"]
    assert [row["ratio"] for row in rows[:4]] == ["", "", "", "1.25"]
    assert rows[2]["reason"] == 'said "no",\nand left'
    assert (rows[0]["problem.kernel"], rows[0]["problem.k"], rows[1]["problem.k"]) == ("matmul", "4096", "")
    assert rows[3]["config.tile_m"] == "128"
    assert json.loads(rows[3]["samples_ns"]) == [90_000] * 3
    assert rows[3]["device.device_kind"] == "NVIDIA H200"


def test_shipped_lines(filled: Store) -> None:
    lines = exported(filled, "shipped").splitlines()
    assert sorted(lines) == sorted(map(shipped_line, filled.bests()))


@pytest.mark.parametrize("name", ["json", "csv", "shipped"])
def test_an_empty_database(store: Store, name: str) -> None:
    assert len(exported(store, name).splitlines()) == (name == "csv")

"""Records to work with: each maker takes the fields that matter to a test."""

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from tuner.results import schema
from tuner.results.database import parsed
from tuner.results.records import DeviceIdentity, Final, FinalMember, Measurement
from tuner.results.store import Store
from tuner.search_spaces.architecture import DEVICES
from tuner.search_spaces.problem import MatmulProblem

Maker = Callable[..., Any]


def utc(second: float) -> str:
    return f"2026-01-01T00:00:{second:09.6f}Z"


@pytest.fixture(scope="session")
def h200() -> DeviceIdentity:
    return DeviceIdentity.from_target(dataclasses.replace(DEVICES["NVIDIA H200"], power_limit_w=700))


@pytest.fixture(scope="session")
def matmul() -> MatmulProblem:
    return MatmulProblem(m=4096, n=8192, k=4096, dtype="bfloat16")


@pytest.fixture(scope="session")
def shared(h200: DeviceIdentity, matmul: MatmulProblem) -> dict[str, Any]:
    """The fields that measurements and finals have in common."""
    return {
        "problem": matmul,
        "family": "family",
        "revision": 3,
        "rules": "rules",
        "device": h200,
        "method": "cupti",
        "run_id": "run",
        "versions": {"jax": "0.11.2", "driver": "580.1"},
        "host": "host",
        "commit": "c0ffee",
        "seed": 0,
    }


@pytest.fixture(scope="session")
def measured(shared: dict[str, Any]) -> Maker:
    """`measured(us, second)`: a measurement of that median, at that second."""

    def make(us: float = 100.0, second: float = 0, **fields: Any) -> Measurement:
        config = {"tile_m": 128, "cluster": None, "order": "N"}
        samples = (round(us * 1e3),) * 3
        timed = {"config": config, "utc": utc(second), "rung": "timed", "samples_ns": samples}
        return Measurement(**(shared | timed | fields))

    return make


@pytest.fixture(scope="session")
def finalist(shared: dict[str, Any]) -> Maker:
    """`finalist(us, second)`: a final that a candidate of that median won, at that second."""

    def make(us: float = 100.0, second: float = 0, **fields: Any) -> Final:
        rounds = ((round(us * 1e3),) * 3,) * 4
        members = (
            FinalMember(
                role="candidate",
                name="won",
                config={"tile_m": 256},
                samples_ns=rounds,
                ratio=1.1,
                ratio_low=1.05,
                ratio_high=1.15,
            ),
            FinalMember(role="default", name="default", config={"tile_m": 128}, ratio=1.0),
            FinalMember(role="baseline", name="baseline", ratio=1.0),
        )
        ended = {"utc": utc(second), "members": members, "rounds": 4, "ties": (0,), "winner": 0}
        return Final(**(shared | ended | fields))

    return make


@pytest.fixture
def server_url() -> Iterator[str]:
    """A PostgreSQL database without tables of ours, where MOSAIC_TUNER_TEST_POSTGRES names one."""
    url = os.environ.get("MOSAIC_TUNER_TEST_POSTGRES", "")
    if not url:
        pytest.skip("needs MOSAIC_TUNER_TEST_POSTGRES, a database that may be emptied")
    engine = sqlalchemy.create_engine(parsed(url))
    schema.SCHEMA.metadata.drop_all(engine)
    yield url
    schema.SCHEMA.metadata.drop_all(engine)
    engine.dispose()


@pytest.fixture(params=["sqlite", "postgresql"])
def any_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database that does not exist yet, on each kind of database in turn."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/fresh/folder/results.db"
    return str(request.getfixturevalue("server_url"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(str(tmp_path / "results.db")) as opened:
        yield opened

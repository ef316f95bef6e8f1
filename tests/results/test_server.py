"""The same store on PostgreSQL."""

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy

from tuner.results import schema
from tuner.results.database import parsed
from tuner.results.errors import NoDatabaseError
from tuner.results.store import Store
from tuner.search_spaces.errors import DatabaseError

Maker = Callable[..., Any]


def test_the_life_of_a_database(
    server_url: str, measured: Maker, finalist: Maker, h200: Any, matmul: Any
) -> None:
    for read_only in (False, True):
        with pytest.raises(NoDatabaseError):
            Store.open(server_url, create=False, read_only=read_only)
    with Store.open(server_url, read_only=True) as store:
        assert store.bests() == []
    with Store.open(server_url) as store:
        assert [store.add(measured(us, us)) for us in (50, 40, 45, 40)] == [True, True, True, False]
        assert store.best(matmul, "family", h200).time_us == 40
        assert store.add_final(finalist(42, 59))
        assert not store.add_final(finalist(42, 59))
        assert store.best(matmul, "family", h200).rung == "final"
        bests = store.bests()
        store.rebuild_best()
        assert store.bests() == bests
    with Store.open(server_url, create=False, read_only=True) as store:
        assert [m.median_us for m in store.measurements(method="cupti")] == [40, 45, 50]
        assert store.finals() == [finalist(42, 59)]


def test_a_newer_schema(server_url: str) -> None:
    Store.open(server_url).close()
    engine = sqlalchemy.create_engine(parsed(server_url))
    with engine.begin() as connection:
        connection.execute(schema.SCHEMA.update().values(version=99))
    engine.dispose()
    with pytest.raises(DatabaseError, match="schema 99"):
        Store.open(server_url)

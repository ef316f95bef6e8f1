import dataclasses
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.results import database, schema
from tuner.results.errors import BadRecordError
from tuner.results.records import Best, DeviceIdentity, Final, Measurement
from tuner.results.store import Store
from tuner.search_spaces.errors import DatabaseError
from tuner.search_spaces.problem import CopyProblem, MatmulProblem

Maker = Callable[..., Any]

FAMILY = "family"


def test_what_is_added_is_read_back(store: Store, measured: Maker, finalist: Maker) -> None:
    records = [measured(second=2), measured(second=1, rung="legal", failed_stage="lower", reason="SMEM")]
    assert [store.add(record) for record in records] == [True, True]
    assert store.add_final(finalist(second=3))
    assert store.measurements() == records[::-1]
    assert store.finals() == [finalist(second=3)]
    assert store.skipped == []


def test_filters(store: Store, measured: Maker, h200: DeviceIdentity) -> None:
    copy = CopyProblem(m=64, n=64, dtype="float32")
    other_device = dataclasses.replace(h200, device_kind="NVIDIA H100 80GB HBM3")
    capped = dataclasses.replace(h200, power_limit_w=500)
    unknown = dataclasses.replace(h200, power_limit_w=0)
    records = [
        measured(second=0),
        measured(second=1, problem=copy),
        measured(second=2, family="other"),
        measured(second=3, device=other_device),
        measured(second=4, device=capped),
        measured(second=5, device=unknown),
        measured(second=6, method="span"),
        measured(second=7, run_id="another"),
    ]
    for record in records:
        store.add(record)
    assert store.measurements(problem=copy) == [records[1]]
    assert store.measurements(family="other") == [records[2]]
    assert store.measurements(device=other_device) == [records[3]]
    assert store.measurements(device=capped) == [records[4], records[5]]
    assert store.measurements(method="span") == [records[6]]
    assert store.measurements(run_id="another") == [records[7]]
    assert store.measurements(problem=copy, family="other") == []
    assert store.bests(kernel="copy") == [Best.of(records[1])]
    assert store.bests(family="other") == [Best.of(records[2])]
    assert store.bests(device=other_device) == [Best.of(records[3])]


def test_the_key_tells_types_layouts_and_outputs_apart(store: Store, measured: Maker, h200: Any) -> None:
    sizes = {"m": 128, "n": 256, "k": 512}
    store.add(measured(problem=MatmulProblem(**sizes, dtype="bfloat16")))
    assert store.best(MatmulProblem(**sizes, dtype="bf16", out_dtype="bfloat16"), FAMILY, h200)
    for change in (
        {"dtype": "float16"},
        {"dtype": "bf16", "out_dtype": "float32"},
        {"dtype": "bf16", "rhs": "nk"},
    ):
        assert store.best(MatmulProblem(**sizes, **change), FAMILY, h200) is None


def test_the_same_record_counts_once(store: Store, measured: Maker, finalist: Maker) -> None:
    assert store.add(measured())
    assert not store.add(measured())
    assert not store.add(measured(source="imported"))
    assert store.add(measured(second=1))
    assert store.add_final(finalist())
    assert not store.add_final(finalist())
    assert (len(store.measurements()), len(store.finals())) == (2, 1)


def kept(store: Store, *records: Measurement | Final) -> Best:
    """What is best after these records came in this order."""
    for record in records:
        if isinstance(record, Final):
            store.add_final(record)
        else:
            store.add(record)
    (best,) = store.bests()
    return best


def test_a_faster_record_is_kept(store: Store, measured: Maker) -> None:
    assert kept(store, measured(100, 0), measured(90, 1), measured(95, 2)).time_us == 90


def test_a_final_counts_for_more_than_faster_timed_ones(
    store: Store, measured: Maker, finalist: Maker
) -> None:
    best = kept(store, measured(90, 0), finalist(95, 1), measured(80, 2))
    assert (best.rung, best.time_us) == ("final", 95)


def test_the_latest_final_is_kept(store: Store, finalist: Maker) -> None:
    assert kept(store, finalist(90, 2), finalist(80, 1), finalist(95, 3)).time_us == 95


def test_a_newer_revision_is_kept(store: Store, measured: Maker, finalist: Maker) -> None:
    best = kept(store, finalist(90, 0), measured(200, 1, revision=4), measured(50, 2), finalist(40, 3))
    assert (best.revision, best.time_us) == (4, 200)


def test_times_under_other_rules_start_over(store: Store, measured: Maker) -> None:
    best = kept(store, measured(90, 1), measured(200, 2, rules="others"), measured(50, 0, rules="others"))
    assert (best.rules, best.time_us) == ("others", 50)


def test_a_final_outlives_times_under_other_rules(store: Store, measured: Maker, finalist: Maker) -> None:
    """A sweep that is interrupted before its own final must not undo what an earlier one decided."""
    best = kept(store, finalist(90, 1), measured(200, 2, rules="others"), measured(50, 3, rules="others"))
    assert (best.rung, best.time_us) == ("final", 90)
    assert kept(store, finalist(95, 4, rules="others")).time_us == 95


def test_failures_and_empty_times_are_no_best(store: Store, measured: Maker) -> None:
    store.add(measured(failed_stage="verify", reason="WRONG_OUTPUT"))
    store.add(measured(second=1, samples_ns=(1000,), invalid_samples=4))
    assert store.bests() == []


def test_methods_and_devices_have_bests_of_their_own(
    store: Store, measured: Maker, h200: Any, matmul: Any
) -> None:
    capped = dataclasses.replace(h200, power_limit_w=500)
    unknown = dataclasses.replace(h200, power_limit_w=0)
    for record in (measured(100), measured(50, method="wall"), measured(120, device=capped)):
        store.add(record)
    assert store.best(matmul, FAMILY, h200, "cupti").time_us == 100
    assert store.best(matmul, FAMILY, h200, "wall").time_us == 50
    assert store.best(matmul, FAMILY, h200, "span") is None
    assert store.best(matmul, FAMILY, capped).time_us == 120
    assert len(store.bests(device=unknown)) == 3
    assert store.best(matmul, FAMILY, unknown, "cupti") is not None
    assert store.best(matmul, "other", h200) is None


def test_which_of_several_methods_answers(
    store: Store, measured: Maker, finalist: Maker, h200: Any, matmul: Any
) -> None:
    store.add_final(finalist(100, 0, method="span"))
    store.add(measured(90, 1))
    assert store.best(matmul, FAMILY, h200).method == "span"
    store.add(measured(90, 2, revision=4))
    assert store.best(matmul, FAMILY, h200).method == "cupti"


events = st.lists(
    st.tuples(st.booleans(), st.integers(50, 60), st.sampled_from([3, 4]), st.sampled_from(["a", "b"])),
    min_size=1,
    max_size=12,
)


@given(events)
@settings(max_examples=30, deadline=None)
def test_rebuilding_gives_the_same_best(
    tmp_path_factory: pytest.TempPathFactory, measured: Maker, finalist: Maker, events: list[Any]
) -> None:
    with Store.open(str(tmp_path_factory.mktemp("rebuild") / "results.db")) as store:
        for second, (is_final, us, revision, rules) in enumerate(events):
            make = finalist if is_final else measured
            best = kept(store, make(us, second, revision=revision, rules=rules))
        store.rebuild_best()
        assert store.bests() == [best]


def rows(path: Path, statement: str, *values: object) -> list[Any]:
    connection = sqlite3.connect(path)
    try:
        with connection:
            return connection.execute(statement, values).fetchall()
    finally:
        connection.close()


def test_rebuilding_restores_a_lost_table(store: Store, measured: Maker, finalist: Maker) -> None:
    best = kept(store, measured(90), finalist(95, 1))
    rows(Path(store.where), "DELETE FROM best")
    assert store.bests() == []
    store.rebuild_best()
    assert store.bests() == [best]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ('{"warp_specialized": true}', "unknown field 'warp_specialized'"),
        ("{}", "missing"),
        ('{"ratio": NaN}', "NaN"),
        ("\udcff", "JSON"),
        ("", "JSON"),
        ("[1]", "list"),
    ],
)
def test_a_bad_record_is_skipped_and_told(store: Store, measured: Maker, record: str, reason: str) -> None:
    for second in range(3):
        store.add(measured(second=second))
    text = record.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    for table in ("measurement", "best"):
        rows(
            Path(store.where),
            f"UPDATE {table} SET record = ? WHERE rowid = (SELECT min(rowid) FROM {table})",
            text,
        )
    assert store.measurements() == [measured(second=1), measured(second=2)]
    assert store.bests() == []
    assert [reason in told for told in store.skipped] == [True, True]
    store.measurements()
    assert len(store.skipped) == 2
    store.rebuild_best()
    assert store.bests() == [Best.of(measured(second=1))]


def test_the_record_column_is_strict_json(store: Store, measured: Maker) -> None:
    store.add(measured(ratio=float("nan"), max_error=float("inf")))
    ((text,),) = rows(Path(store.where), "SELECT record FROM measurement")
    json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert (store.measurements()[0].ratio, store.measurements()[0].max_error) == (None, None)


def test_a_kernel_of_the_users_own(store: Store, measured: Maker, h200: Any) -> None:
    @dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
    class OwnProblem(CopyProblem):
        kernel = "own"

    problem = OwnProblem(m=8, n=8, dtype="int8")
    store.add(measured(problem=problem))
    assert store.best(problem, FAMILY, h200).problem == problem


def test_a_lost_transaction_is_tried_again(
    store: Store, measured: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.results.store._RETRY_WAITS_S", (0.0, 0.0, 0.0))
    attempts = 0
    transaction = store._transaction

    def losing(work: Any) -> Any:
        nonlocal attempts
        attempts += 1
        if attempts < 3:
            locked = sqlite3.OperationalError("database is locked")
            locked.sqlite_errorname = "SQLITE_BUSY"
            raise sqlalchemy.exc.OperationalError("INSERT", {}, locked)
        return transaction(work)

    monkeypatch.setattr(store, "_transaction", losing)
    assert store.add(measured())
    assert attempts == 3
    attempts = -10
    with pytest.raises(DatabaseError, match="stayed locked"):
        store.add(measured(second=1))


def test_reading_does_not_write(store: Store, measured: Maker) -> None:
    store.add(measured())
    with Store.open(store.where, read_only=True) as reader:
        assert len(reader.measurements()) == 1
        with pytest.raises(DatabaseError, match="opened for reading"):
            reader.add(measured(second=1))
        store.add(measured(second=2))
        assert len(reader.measurements()) == 2


def test_integers_beyond_the_database(store: Store, measured: Maker) -> None:
    fields = measured().to_dict() | {"revision": 2**63}
    with pytest.raises(BadRecordError, match="revision"):
        Measurement.from_dict(fields)


@pytest.mark.parametrize(
    "dialect", [sqlalchemy.dialects.sqlite.dialect(), sqlalchemy.dialects.postgresql.dialect()]
)
def test_statements_are_portable(dialect: Any) -> None:
    for statement in (schema.keep_best(dialect.name), schema.insert_once(schema.MEASUREMENT, dialect.name)):
        assert "ON CONFLICT" in str(statement.compile(dialect=dialect))


def test_engine_is_closed(tmp_path: Path) -> None:
    with Store.open(str(tmp_path / "results.db")):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["results.db"]
    assert database.BUSY_TIMEOUT_S >= 30

"""The store: records appended the moment they exist, and the best of each problem kept beside them."""

import hashlib
import heapq
import random
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Self

import sqlalchemy
from sqlalchemy.exc import SQLAlchemyError

from tuner.search_spaces.errors import DatabaseError
from tuner.search_spaces.problem import Problem

from .database import default_url, is_passing, redacted, told
from .errors import BadRecordError
from .opening import opened
from .plain import from_json, to_json
from .records import Best, DeviceIdentity, Final, Measurement
from .schema import BEST, FINAL, MEASUREMENT, insert_once, keep_best

__all__ = ["Store", "default_url", "redacted"]

# Waits before a lost transaction is tried again, in seconds; each try waits for the lock on top.
_RETRY_WAITS_S = (0.05, 0.2, 1.0)


class Store:
    """A results database; any number of processes and threads may use one at once.

    where: its path, or its URL without the password. skipped: what reading left out so far, and why.
    Every method raises DatabaseError when the database fails, DiskFullError when it cannot grow.
    """

    def __init__(self, engine: sqlalchemy.Engine, where: str, *, read_only: bool = False) -> None:
        self.where = where
        self.skipped: list[str] = []
        self._engine, self._read_only = engine, read_only
        dialect = engine.dialect.name
        self._inserts = {table: insert_once(table, dialect) for table in (MEASUREMENT, FINAL)}
        self._keep_best = keep_best(dialect)

    @classmethod
    def open(cls, url: str | None = None, *, create: bool = True, read_only: bool = False) -> Self:
        """Opens the database of a URL or a path, `default_url()` by default.

        create: a missing database is made, or with read_only counts as an empty one.

        Raises:
          NoDatabaseError: it is missing and `create` is false.
          DatabaseError: it cannot be opened or written, is damaged, or is newer than this program.
          UsageError: a URL that names no SQLite or PostgreSQL database.
        """
        engine, where = opened(url, create=create, read_only=read_only)
        return cls(engine, where, read_only=read_only)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes every connection."""
        self._engine.dispose()

    def add(self, measurement: Measurement) -> bool:
        """Appends a measurement and, in the same transaction, keeps the best; False when it was there."""
        more = {"rung": measurement.rung, "median_us": measurement.median_us}
        return self._add(MEASUREMENT, measurement, more)

    def add_final(self, final: Final) -> bool:
        """Appends a final and, in the same transaction, keeps the best; False when it was there."""
        return self._add(FINAL, final, {})

    def _add(self, table: sqlalchemy.Table, record: Measurement | Final, more: dict[str, Any]) -> bool:
        fields = record.to_dict()
        text = to_json(fields)
        # A record that comes back from elsewhere is still the same one.
        digest = hashlib.blake2b(to_json(fields | {"source": ""}).encode(), digest_size=16).hexdigest()
        row = {
            "digest": digest,
            "problem": record.problem.key,
            "device_kind": record.device.device_kind,
            **{name: fields[name] for name in ("family", "revision", "method", "run_id", "utc")},
            **more,
            "record": text,
        }
        best = Best.of(record)

        def work(connection: sqlalchemy.Connection) -> bool:
            new = connection.execute(self._inserts[table], row).first() is not None
            if new and best is not None:
                connection.execute(self._keep_best, _best_row(best))
            return new

        return self._write(work)

    def _write[T](self, work: Callable[[sqlalchemy.Connection], T]) -> T:
        """Runs `work` in one transaction, again when another process made it fail."""
        if self._read_only:
            raise DatabaseError(f"{self.where} was opened for reading", fix="open it without read_only")
        with told(self.where):
            for wait_s in _RETRY_WAITS_S:
                try:
                    return self._transaction(work)
                except SQLAlchemyError as error:
                    if not is_passing(error):
                        raise
                time.sleep(wait_s * random.uniform(0.5, 1.5))
            return self._transaction(work)

    def _transaction[T](self, work: Callable[[sqlalchemy.Connection], T]) -> T:
        with self._engine.connect().execution_options(writes=True) as connection, connection.begin():
            return work(connection)

    def measurements(
        self,
        problem: Problem | None = None,
        family: str | None = None,
        device: DeviceIdentity | None = None,
        method: str | None = None,
        run_id: str | None = None,
    ) -> list[Measurement]:
        """The measurements with all of these, oldest first; a device matches with an unknown power limit."""
        key = None if problem is None else problem.key
        return self._read(MEASUREMENT, device, problem=key, family=family, method=method, run_id=run_id)

    def finals(
        self,
        problem: Problem | None = None,
        family: str | None = None,
        device: DeviceIdentity | None = None,
        method: str | None = None,
        run_id: str | None = None,
    ) -> list[Final]:
        """The finals with all of these, oldest first."""
        key = None if problem is None else problem.key
        return self._read(FINAL, device, problem=key, family=family, method=method, run_id=run_id)

    def best(
        self, problem: Problem, family: str, device: DeviceIdentity, method: str | None = None
    ) -> Best | None:
        """The best known configuration of exactly this problem, or None.

        Of several (methods, or power limits that may be the same) the one counts that was measured
        under this very power limit, then of the newest revision, then from a final, then the latest.
        """
        found: list[Best] = self._read(BEST, device, problem=problem.key, family=family, method=method)
        return max(
            found, key=lambda b: (b.device == device, b.revision, b.rung == "final", b.utc), default=None
        )

    def bests(
        self, kernel: str | None = None, family: str | None = None, device: DeviceIdentity | None = None
    ) -> list[Best]:
        """The best of every problem with all of these, oldest first."""
        return self._read(BEST, device, kernel=kernel, family=family)

    def rebuild_best(self) -> None:
        """Derives `best` again from every measurement and final, in the order of their times."""

        def work(connection: sqlalchemy.Connection) -> None:
            connection.execute(BEST.delete())
            timed = MEASUREMENT.c.median_us.is_not(None)
            sources = (self._rows(connection, MEASUREMENT, timed), self._rows(connection, FINAL))
            for record in heapq.merge(*sources, key=lambda record: str(record.utc)):
                best = Best.of(record)
                if best is not None:
                    connection.execute(self._keep_best, _best_row(best))

        self._write(work)

    def _read(self, table: sqlalchemy.Table, device: DeviceIdentity | None, **equal: str | None) -> list[Any]:
        if device is not None:
            equal["device_kind"] = device.device_kind
        conditions = [table.c[name] == value for name, value in equal.items() if value is not None]
        with told(self.where), self._engine.connect() as connection:
            found = list(self._rows(connection, table, *conditions))
        return [record for record in found if device is None or device.matches(record.device)]

    def _rows(
        self,
        connection: sqlalchemy.Connection,
        table: sqlalchemy.Table,
        *conditions: sqlalchemy.ColumnElement[bool],
    ) -> Iterator[Any]:
        """The records of a table by time; one that cannot be understood is skipped and told."""
        order = table.c.id if "id" in table.c else table.c.problem
        query = sqlalchemy.select(table.c.utc, table.c.problem, table.c.record).where(*conditions)
        for utc, problem, text in connection.execute(query.order_by(table.c.utc, order)):
            try:
                yield _RECORDS[table].from_dict(from_json(text))
            except BadRecordError as error:
                reason = f"{table.name} of {utc} for {problem}: {error}"
                if reason not in self.skipped:
                    self.skipped.append(reason)


_RECORDS: dict[sqlalchemy.Table, type[Measurement | Final | Best]] = {
    MEASUREMENT: Measurement,
    FINAL: Final,
    BEST: Best,
}


def _best_row(best: Best) -> dict[str, Any]:
    names = ("family", "method", "revision", "rules", "rung", "utc", "time_us")
    return {
        "problem": best.problem.key,
        "device": best.device.key,
        "kernel": best.problem.kernel,
        "device_kind": best.device.device_kind,
        **{name: getattr(best, name) for name in names},
        "record": to_json(best),
    }

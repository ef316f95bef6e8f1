"""Opening a database: created once however many processes try, read where nothing can be written."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy
from sqlalchemy.exc import DBAPIError

from tuner.search_spaces.errors import DatabaseError

from . import schema
from .database import (
    empty_engine,
    is_passing,
    parsed,
    redacted,
    server_engine,
    sqlite_engine,
    sqlite_name,
    told,
)
from .errors import NoDatabaseError


def opened(url: str | None, *, create: bool, read_only: bool) -> tuple[sqlalchemy.Engine, str]:
    """An engine of a database whose schema is known, and the database's name for messages.

    Raises:
      NoDatabaseError: there is none and `create` is false.
      DatabaseError: it cannot be opened, or is damaged or newer than this program.
      UsageError: a URL that names no SQLite or PostgreSQL database.
    """
    address = parsed(url)
    if address.get_backend_name() == "sqlite":
        path = Path(str(address.database))
        with told(str(path)):
            _require(path.exists() or create, str(path))
            return _for_reading(path) if read_only else _for_writing(path), str(path)
    where = redacted(address.render_as_string(hide_password=False))
    with told(where), _disposed_on_error(server_engine(address)) as engine:
        found = _version(engine)
        _require(found is not None or create, where)
        if read_only:
            return _checked_or_empty(engine, where), where
        if found is None:
            with engine.begin() as connection:
                schema.create(connection)
        schema.check(_version(engine), where)
        return engine, where


def _require(there: bool, where: str) -> None:
    if not there:
        raise NoDatabaseError(
            f"{where} holds no records", fix="run a sweep first, or check --db and MOSAIC_TUNER_DB"
        )


def _for_reading(path: Path) -> sqlalchemy.Engine:
    if not path.exists() or path.stat().st_size == 0:
        return _empty()
    try:
        return _checked_or_empty(sqlite_engine(path, "ro"), str(path))
    except DBAPIError as error:
        # A database in WAL mode needs files beside it, which a read-only folder refuses.
        if not sqlite_name(error).startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
            raise
        journal = path.with_name(f"{path.name}-wal")
        if journal.exists() and journal.stat().st_size:
            raise DatabaseError(
                f"{path} cannot be read where it is: its last records are still in {journal.name}",
                fix="copy both files to a folder that can be written, and open the copy",
            ) from error
        return _checked_or_empty(sqlite_engine(path, "ro&immutable=1"), str(path))


def _for_writing(path: Path) -> sqlalchemy.Engine:
    path.parent.mkdir(parents=True, exist_ok=True)
    for place in (path.parent, path):
        if place.exists() and not os.access(place, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(place))
    with _disposed_on_error(sqlite_engine(path, "rwc")) as engine:
        if not (path.exists() and path.stat().st_size and _is_ready(engine)):
            with _creation_lock(path):
                _create(engine)
        schema.check(_version(engine), str(path))
        return engine


@contextlib.contextmanager
def _creation_lock(path: Path) -> Iterator[None]:
    lock = path.with_name(f"{path.name}.lock")
    with lock.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield
        # Whoever still waits, or comes now with a new file, finds the tables made.
        lock.unlink(missing_ok=True)


def _create(engine: sqlalchemy.Engine) -> None:
    if _is_ready(engine):
        return
    connection = engine.raw_connection()
    try:
        connection.cursor().execute("PRAGMA journal_mode=WAL")
    finally:
        connection.close()
    with engine.connect().execution_options(writes=True) as writer, writer.begin():
        schema.create(writer)


def _is_ready(engine: sqlalchemy.Engine) -> bool:
    try:
        return _version(engine) is not None
    except DBAPIError as error:
        if is_passing(error):
            return False
        raise


def _version(engine: sqlalchemy.Engine) -> int | None:
    with engine.connect() as connection:
        return schema.version(connection)


def _checked_or_empty(engine: sqlalchemy.Engine, where: str) -> sqlalchemy.Engine:
    with _disposed_on_error(engine):
        found = _version(engine)
        if found is not None:
            schema.check(found, where)
            return engine
    engine.dispose()
    return _empty()


@contextlib.contextmanager
def _disposed_on_error(engine: sqlalchemy.Engine) -> Iterator[sqlalchemy.Engine]:
    try:
        yield engine
    except BaseException:
        engine.dispose()
        raise


def _empty() -> sqlalchemy.Engine:
    engine = empty_engine()
    with engine.begin() as connection:
        schema.create(connection)
    return engine

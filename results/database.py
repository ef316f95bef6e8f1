"""Where a database is, how its engine is made, and what its errors mean to a user."""

import contextlib
import errno
import os
import re
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tuner.search_spaces.errors import DatabaseError, UsageError

from .errors import DiskFullError

# How long a writer waits for another process's transaction.
BUSY_TIMEOUT_S = 30.0
# SQLite needs a few pages for its journal and index even to report that the disk is full.
_NO_SPACE_BYTES = 256 * 1024
_ELSEWHERE = "choose another place with --db or MOSAIC_TUNER_DB"


def default_url() -> str:
    """The database used where none is named, as a URL, its password included.

    `MOSAIC_TUNER_DB` (a path or a URL), else `$XDG_DATA_HOME/mosaic-tuner/results.db`, else the same
    in `~/.local/share`.

    Raises:
      UsageError: `MOSAIC_TUNER_DB` is a URL of no database we know.
    """
    return parsed().render_as_string(hide_password=False)


def _default_place() -> str:
    # The XDG specification: a relative path is invalid and ignored.
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    if not data.is_absolute():
        data = Path.home() / ".local" / "share"
    return os.environ.get("MOSAIC_TUNER_DB") or str(data / "mosaic-tuner" / "results.db")


def redacted(url: str) -> str:
    """A path as it is, SQLite's URLs too; other URLs with every password in them replaced by ***."""
    url = re.sub(r"^sqlite:///(?=.)", "", url)
    if "://" not in url:
        return url
    try:
        shown = sqlalchemy.make_url(url).render_as_string(hide_password=True)
    except (SQLAlchemyError, ValueError):
        shown = re.sub(r"://.*@", "://***@", url)
    return re.sub(r"([?&][^=&]*password[^=&]*=)[^&]*", r"\1***", shown, flags=re.IGNORECASE)


def parsed(url: str | None = None) -> sqlalchemy.URL:
    """A SQLAlchemy URL of a URL or a path; of the default place when there is neither.

    Raises:
      UsageError: a URL that cannot be read, or of a database that is neither SQLite nor PostgreSQL.
    """
    url = url or _default_place()
    if "://" not in url:
        return _file_url(url)
    choices = "give a path, sqlite:///PATH or postgresql://USER@HOST/NAME"
    try:
        found = sqlalchemy.make_url(url)
    except (SQLAlchemyError, ValueError) as error:
        raise UsageError(f"{redacted(url)} is not a database URL", fix=choices) from error
    match found.drivername.partition("+")[0]:
        case "sqlite" if found.database in (None, "", ":memory:") or found.query:
            raise UsageError(f"{redacted(url)} names no file, or has options", fix=choices)
        case "sqlite":
            return _file_url(str(found.database))
        case "postgresql" | "postgres":
            # Older SQLAlchemy versions would look for another driver than the one we install.
            return found.set(drivername="postgresql+psycopg")
        case other:
            raise UsageError(f"{other} databases are not supported", fix=choices)


def _file_url(path: str) -> sqlalchemy.URL:
    return sqlalchemy.URL.create("sqlite", database=str(Path(path).expanduser().absolute()))


def sqlite_engine(path: Path, mode: str) -> sqlalchemy.Engine:
    """An engine of a SQLite file; `mode` is what SQLite's URI takes: rwc, rw, ro, or ro&immutable=1."""

    def connect() -> sqlite3.Connection:
        address = f"{path.absolute().as_uri()}?mode={mode}"
        # No implicit transactions: they are begun below.
        connection = sqlite3.connect(
            address, uri=True, timeout=BUSY_TIMEOUT_S, check_same_thread=False, isolation_level=None
        )
        # In WAL mode a killed process loses nothing it committed: the kernel has the pages. Only a power
        # failure can cost the last records, which can be measured again; the file stays sound. FULL would
        # add a disk flush to every record.
        try:
            connection.execute("PRAGMA synchronous=NORMAL")
        except BaseException:
            connection.close()
            raise
        return connection

    engine = sqlalchemy.create_engine("sqlite://", creator=connect, poolclass=sqlalchemy.QueuePool)
    return _with_transactions(engine)


def empty_engine() -> sqlalchemy.Engine:
    """An engine of an empty database in memory."""
    engine = sqlalchemy.create_engine("sqlite://", poolclass=sqlalchemy.StaticPool)
    return _with_transactions(engine)


def _with_transactions(engine: sqlalchemy.Engine) -> sqlalchemy.Engine:
    @sqlalchemy.event.listens_for(engine, "begin")
    def begin(connection: sqlalchemy.Connection) -> None:
        # A reader that turns into a writer can deadlock with another one; a writer says so at once.
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def server_engine(url: sqlalchemy.URL) -> sqlalchemy.Engine:
    """An engine of a PostgreSQL server.

    Raises:
      DatabaseError: the driver is not installed.
    """
    try:
        return sqlalchemy.create_engine(url, pool_pre_ping=True)
    except ImportError as error:
        raise DatabaseError(
            f"the PostgreSQL driver is missing: {error}", fix="run: pip install 'mosaic-tuner[postgres]'"
        ) from error


def is_passing(error: SQLAlchemyError) -> bool:
    """Whether the same transaction may succeed when tried again."""
    if not isinstance(error, DBAPIError):
        return False
    # PostgreSQL: 40001 serialization failure, 40P01 deadlock.
    retried = getattr(error.orig, "sqlstate", None) in ("40001", "40P01")
    return retried or error.connection_invalidated or sqlite_name(error).startswith(_BUSY)


@contextlib.contextmanager
def told(where: str) -> Iterator[None]:
    """Turns every error of a database or its file into a DatabaseError that names it and what to do."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, OSError) as error:
        raise _explained(where, error) from error


_BUSY = ("SQLITE_BUSY", "SQLITE_LOCKED")
_BROKEN = ("SQLITE_NOTADB", "SQLITE_CORRUPT")
_CLOSED = ("SQLITE_CANTOPEN", "SQLITE_READONLY", "SQLITE_PERM", "SQLITE_AUTH")


def sqlite_name(error: BaseException) -> str:
    """SQLite's name of an error, such as SQLITE_BUSY; "" where it is none of SQLite's."""
    name: Any = getattr(getattr(error, "orig", error), "sqlite_errorname", "")
    return name or ""


def _explained(where: str, error: Exception) -> DatabaseError:
    cause = getattr(error, "orig", None) or error
    name, told_as = sqlite_name(error), _first_line(cause)
    if _is_full(where, error, name):
        return DiskFullError(f"no space left for {where}", fix="free some space; what was recorded is kept")
    if name.startswith(_BROKEN):
        return DatabaseError(
            f"{where} is damaged or is no database ({told_as})",
            fix=f"move it aside and run again: mv {where} {where}.broken "
            f"(what is left of it: sqlite3 {where}.broken .recover)",
        )
    if name.startswith(_BUSY):
        return DatabaseError(
            f"{where} stayed locked for {BUSY_TIMEOUT_S:g} s", fix="end the process that holds it, or wait"
        )
    if name.startswith(_CLOSED) or isinstance(error, OSError):
        return DatabaseError(
            f"{where} cannot be opened or written ({told_as})", fix=f"make it writable, or {_ELSEWHERE}"
        )
    return DatabaseError(f"{where} does not work ({told_as})", fix=f"check that it is up, or {_ELSEWHERE}")


def _is_full(where: str, error: Exception, name: str) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    # PostgreSQL: 53100 disk full.
    if name == "SQLITE_FULL" or getattr(getattr(error, "orig", None), "sqlstate", None) == "53100":
        return True
    # SQLite calls a failure to grow its shared index an input/output error.
    if not name.startswith("SQLITE_IOERR"):
        return False
    with contextlib.suppress(OSError):
        return shutil.disk_usage(Path(where).parent).free < _NO_SPACE_BYTES
    return False


def _first_line(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]

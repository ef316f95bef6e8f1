"""Tables, the version of their schema, and the one statement that keeps `best`.

`record` is the truth, strict JSON of a whole record; the other columns find it.
"""

from typing import Any

import sqlalchemy
from sqlalchemy import BigInteger, Column, Double, Index, Integer, MetaData, Table, Text, and_, or_
from sqlalchemy.dialects import postgresql, sqlite

from tuner.search_spaces.errors import DatabaseError

# Raised when the tables change; a database with a higher one is never touched.
SCHEMA_VERSION = 1

_METADATA = MetaData()
# Key of the lock that creation holds on a server: any number that no other program uses.
_SERVER_LOCK = 0x6D6F73616963

SCHEMA = Table("schema_version", _METADATA, Column("version", Integer, nullable=False))


def _history(name: str, *more: Column[Any]) -> Table:
    """An append-only table; `digest` makes adding a record twice the same as adding it once."""
    return Table(
        name,
        _METADATA,
        Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
        Column("digest", Text, nullable=False, unique=True),
        Column("problem", Text, nullable=False),
        Column("family", Text, nullable=False),
        Column("revision", BigInteger, nullable=False),
        Column("device_kind", Text, nullable=False),
        Column("method", Text, nullable=False),
        Column("run_id", Text, nullable=False, index=True),
        Column("utc", Text, nullable=False),
        *more,
        Column("record", Text, nullable=False),
        Index(f"ix_{name}_key", "problem", "family", "device_kind", "method"),
    )


MEASUREMENT = _history(
    "measurement", Column("rung", Text, nullable=False), Column("median_us", Double, nullable=True)
)
FINAL = _history("final")
BEST = Table(
    "best",
    _METADATA,
    Column("problem", Text, primary_key=True),
    Column("family", Text, primary_key=True),
    Column("device", Text, primary_key=True),
    Column("method", Text, primary_key=True),
    Column("kernel", Text, nullable=False),
    Column("device_kind", Text, nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("rules", Text, nullable=False),
    Column("rung", Text, nullable=False),
    Column("utc", Text, nullable=False),
    Column("time_us", Double, nullable=False),
    Column("record", Text, nullable=False),
)

_INSERTS: dict[str, Any] = {"sqlite": sqlite.insert, "postgresql": postgresql.insert}


def insert_once(table: Table, dialect: str) -> Any:
    """Appends a record and returns its id, or nothing when it was there."""
    return _INSERTS[dialect](table).on_conflict_do_nothing(index_elements=["digest"]).returning(table.c.id)


def keep_best(dialect: str) -> Any:
    """Puts a record into `best` unless what is there counts for more; one atomic statement.

    A newer revision counts for more. Within one revision the latest final does, and without any final
    the fastest timed record; under other rules the later one, for the faster may be illegal now.
    """
    statement = _INSERTS[dialect](BEST)
    new, old = statement.excluded, BEST.c
    latest_final = and_(new.rung == "final", or_(old.rung != "final", new.utc >= old.utc))
    faster = and_(new.rung != "final", old.rung != "final", new.time_us < old.time_us)
    later_under_other_rules = and_(new.rules != old.rules, new.utc > old.utc, old.rung != "final")
    counts_for_more = or_(
        new.revision > old.revision,
        and_(new.revision == old.revision, or_(latest_final, faster, later_under_other_rules)),
    )
    key = [column.name for column in BEST.primary_key]
    changed = {column.name: new[column.name] for column in BEST.columns if column.name not in key}
    return statement.on_conflict_do_update(index_elements=key, set_=changed, where=counts_for_more)


def version(connection: sqlalchemy.Connection) -> int | None:
    """The database's schema version; None where there are no tables of ours."""
    if not sqlalchemy.inspect(connection).has_table(SCHEMA.name):
        return None
    return connection.execute(sqlalchemy.select(sqlalchemy.func.max(SCHEMA.c.version))).scalar()


def create(connection: sqlalchemy.Connection) -> None:
    """Creates what is missing, inside the caller's transaction; any number of processes may try at once."""
    if connection.dialect.name == "postgresql":
        connection.execute(sqlalchemy.select(sqlalchemy.func.pg_advisory_xact_lock(_SERVER_LOCK)))
    if version(connection) is None:
        _METADATA.create_all(connection)
        connection.execute(SCHEMA.insert().values(version=SCHEMA_VERSION))


def check(found: int | None, where: str) -> None:
    """Raises DatabaseError unless this program knows the schema."""
    if found is None or found > SCHEMA_VERSION:
        raise DatabaseError(
            f"{where} has schema {found}, and this mosaic-tuner knows schemas up to {SCHEMA_VERSION}",
            fix="run: pip install --upgrade mosaic-tuner",
        )

"""Strict JSON, one record a line: every measurement, every final, every best, told apart by `kind`."""

from typing import TextIO

from tuner.results.plain import to_json
from tuner.results.records import Best, Final, Measurement
from tuner.results.store import Store

NAME = "json"


def write(store: Store, stream: TextIO) -> None:
    """Writes everything the store holds; null where a number is not finite."""
    records: list[Measurement | Final | Best] = [*store.measurements(), *store.finals(), *store.bests()]
    stream.writelines(f"{_line(record)}\n" for record in records)


def _line(record: Measurement | Final | Best) -> str:
    return to_json({"kind": type(record).__name__.lower(), **record.to_dict()})

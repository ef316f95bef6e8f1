"""CSV, one row a measurement or best, told apart by `kind`; nested fields are columns such as `problem.m`."""

import csv
from collections.abc import Iterator
from typing import Any, TextIO

from tuner.results.plain import to_json
from tuner.results.store import Store

NAME = "csv"


def write(store: Store, stream: TextIO) -> None:
    """Writes a header and every measurement and best; `time_us` is the median, lists are JSON."""
    rows = [
        {"kind": "measurement", "time_us": measurement.median_us, **dict(_flat(measurement.to_dict()))}
        for measurement in store.measurements()
    ]
    rows += [{"kind": "best", **dict(_flat(best.to_dict()))} for best in store.bests()]
    columns = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(stream, list(columns) or ["kind", "time_us"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _flat(fields: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in fields.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", to_json(value) if isinstance(value, list) else value

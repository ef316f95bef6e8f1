"""`tuner export`: the records in another format, on standard output or in a file."""

import sys
from pathlib import Path

import click

from ._common import db_option


@click.command("export", short_help="Write the records in another format.")
@click.argument("format_name", metavar="FORMAT")
@click.argument("file", type=click.Path(dir_okay=False, writable=True), required=False)
@db_option
def command(format_name: str, file: str | None, db: str | None) -> int:
    """Write the records as json, csv, or shipped (the lines shipped with this package).

    \b
    tuner export csv records.csv
    tuner export shipped > results/shipped/nvidia_h200.jsonl
    """
    from tuner.results.formats import FORMATS
    from tuner.results.store import Store
    from tuner.search_spaces.errors import UsageError, nearest_name

    if format_name not in FORMATS:
        raise UsageError(f"unknown format {format_name!r}", fix=nearest_name(format_name, FORMATS))
    with Store.open(db, create=False, read_only=True) as store:
        if file is None:
            FORMATS[format_name](store, sys.stdout)
        else:
            with Path(file).open("w", newline="") as stream:
                FORMATS[format_name](store, stream)
    return 0

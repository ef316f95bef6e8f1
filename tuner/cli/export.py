"""`tuner export`: the records in another format, on standard output or in a file."""

import io
import os
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
            text = io.StringIO()
            FORMATS[format_name](store, text)
            _write(Path(file), text.getvalue())
    return 0


def _write(path: Path, text: str) -> None:
    """Replaces the file at once, so that a full disk leaves the old one or none."""
    from tuner.search_spaces.errors import TunerError

    special = path.exists() and not path.is_file()
    place = path if special else path.with_name(f".{path.name}.{os.getpid()}")
    try:
        place.write_text(text, newline="")
        if not special:
            place.replace(path)
    except OSError as error:
        if not special:
            place.unlink(missing_ok=True)
        raise TunerError(f"{path} cannot be written: {error.strerror}", fix="choose another file") from error

"""Records that come with the package: `shipped/<device>.jsonl`, one best a line, sorted."""

import contextlib
import dataclasses
import functools
import importlib.resources
import os
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path

from .errors import BadRecordError
from .plain import from_json, to_json
from .records import Best


def slug(device_kind: str) -> str:
    """The name of a device's file, without its suffix."""
    return device_kind.lower().replace(" ", "_").replace("/", "_")


@functools.cache
def shipped(device_kind: str) -> tuple[Best, ...]:
    """The bests that come with the package for a device; none for a device without a file.

    A line that cannot be understood is left out and told by one warning.
    """
    file = importlib.resources.files(__package__) / "shipped" / f"{slug(device_kind)}.jsonl"
    if not file.is_file():
        return ()
    found = []
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        try:
            best = Best.from_dict(from_json(line.decode()))
            if best.device.device_kind != device_kind:
                raise BadRecordError(f"a record of {best.device.device_kind!r}")
        except ValueError as error:
            warnings.warn(f"{file.name} line {number} is left out: {error}", stacklevel=2)
        else:
            found.append(dataclasses.replace(best, source="shipped"))
    return tuple(found)


def shipped_line(best: Best) -> str:
    """One line of a shipped file, without its end."""
    return to_json(dataclasses.replace(best, source="shipped"))


def shipped_lines(bests: Iterable[Best]) -> list[str]:
    """The lines of a shipped file in their order: by problem, family, device and method."""
    keyed = sorted(bests, key=lambda best: (best.problem.key, best.family, best.device.key, best.method))
    return [shipped_line(best) for best in keyed]


def write_shipped(path: Path, bests: Iterable[Best]) -> None:
    """Writes a shipped file whole or not at all.

    Raises:
      OSError: the folder cannot be written, or the disk is full; the old file is kept.
    """
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=path.name, suffix=".tmp", delete=False
    ) as file:
        try:
            file.writelines(f"{line}\n" for line in shipped_lines(bests))
            file.flush()
            os.fsync(file.fileno())
            Path(file.name).chmod(0o644)
            Path(file.name).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(file.name).unlink()
            raise

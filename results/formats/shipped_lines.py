"""The lines of a shipped file: one best a line, sorted."""

from typing import TextIO

from tuner.results.shipped import shipped_lines
from tuner.results.store import Store

NAME = "shipped"


def write(store: Store, stream: TextIO) -> None:
    """Writes every best the store holds."""
    stream.writelines(f"{line}\n" for line in shipped_lines(store.bests()))

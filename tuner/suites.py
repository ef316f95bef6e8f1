"""Suites: small TOML files of problems, `[[problem]] kernel= m= ... tags=[]`."""

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

from tuner.search_spaces.errors import UsageError
from tuner.search_spaces.family import problem_class
from tuner.search_spaces.problem import Problem


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """One problem of a suite; `kernel` is the word or `module:attribute` it was named by."""

    kernel: str
    problem: Problem
    tags: tuple[str, ...] = ()


def read_suite(path: str | Path) -> list[Entry]:
    """Every problem of a suite file, in order.

    Raises:
      UsageError: not TOML, no problem, or an unknown key or value; the entry is named.
    """
    try:
        tables = tomllib.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}", fix="write [[problem]] tables") from error
    problems = tables.get("problem")
    if set(tables) != {"problem"} or not isinstance(problems, list) or not problems:
        raise UsageError(f"{path} is no list of problems", fix="write [[problem]] tables and nothing else")
    return [_entry(path, number, dict(table)) for number, table in enumerate(problems, start=1)]


def _entry(path: str | Path, number: int, table: dict[str, Any]) -> Entry:
    kernel, tags = table.pop("kernel", None), table.pop("tags", [])
    if not isinstance(kernel, str) or not isinstance(tags, list):
        raise UsageError(
            f"problem {number} of {path} needs kernel= (and tags= is a list)", fix='write kernel = "matmul"'
        )
    try:
        return Entry(kernel, problem_class(kernel).from_dict(table), tuple(map(str, tags)))
    except UsageError as error:
        raise UsageError(f"problem {number} of {path}: {error.message}", fix=error.fix) from error

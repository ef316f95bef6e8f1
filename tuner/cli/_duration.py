"""`90s`, `2m`, `1h` as seconds."""

import re
from typing import Any

import click

_UNIT_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


class Duration(click.ParamType):  # type: ignore[type-arg]
    """Seconds from a number with an optional unit s, m or h."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Parses one value; anything else is a usage error."""
        if isinstance(value, float):
            return value
        found = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", str(value))
        if found is None or float(found[1]) == 0:
            self.fail(f"{value!r} is not a duration; write 90s, 2m or 1h", param, ctx)
        return float(found[1]) * _UNIT_S[found[2]]


DURATION = Duration()

"""A family whose program moves its output around once more, as a careless wrapper would."""

import dataclasses
from collections.abc import Callable
from typing import Any

from tuner.search_spaces import copy

FAMILY = dataclasses.replace(
    copy.FAMILY,
    name="transposing",
    address="tests.kernels.transposing:FAMILY",
    build="tests.kernels.transposing:build",
)


def build(*arguments: Any) -> Callable[..., Any]:
    """The copy kernel and a transpose."""
    from tuner.kernels.copy import build as build_copy

    kernel = build_copy(*arguments)
    return lambda x: kernel(x).T

"""How near two problems are: by their sizes, and only where everything else is equal."""

import heapq
import math
from collections.abc import Iterable

from tuner.search_spaces.problem import Problem

from .records import Best


def distance(a: Problem, b: Problem) -> float | None:
    """Euclidean distance of the binary logarithms of the sizes: 1 is one size doubled.

    None unless kernel, types, layouts and everything else that is no size are equal.
    """
    ours, theirs = a.to_dict(), b.to_dict()
    if a.kernel != b.kernel or ours.keys() != theirs.keys():
        return None
    doublings = 0.0
    for name, size in ours.items():
        other = theirs[name]
        if size == other:
            continue
        if not (type(size) is int and type(other) is int and min(size, other) > 0):
            return None
        doublings += math.log2(size / other) ** 2
    return math.sqrt(doublings)


def nearest(problem: Problem, candidates: Iterable[Best], limit: int) -> list[tuple[float, Best]]:
    """The `limit` nearest candidates with their distances; equally near ones in the order of their keys."""
    near = [(away, best) for best in candidates if (away := distance(problem, best.problem)) is not None]
    return heapq.nsmallest(
        limit, near, key=lambda found: (found[0], found[1].problem.key, found[1].family, found[1].method)
    )

"""Tiles of an array: how they cover it, and in what order blocks take them. Shared by every family."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .rule import Rule

# A family whose tiles divide and which has no remedy for a partial one says so.
WHOLE_TILES = "own kernel: it works through whole tiles, and leaves a partial one out"

# What a raster derives from grid_m, grid_n and grid_minor_dim.
RASTER: Mapping[str, Callable[..., Any]] = {
    "tiles": lambda grid_m, grid_n: grid_m * grid_n,
    "grid_is_line": lambda grid_m, grid_n: (grid_m == 1) | (grid_n == 1),
    "grid_minor_extent": lambda grid_m, grid_n, grid_minor_dim, grid_is_line: np.where(
        grid_is_line, 1, np.where(grid_minor_dim == "M", grid_m, grid_n)
    ),
}


def along(dimension: Any, name: str) -> Any:
    """2 where `dimension` is the one named, else 1."""
    return 1 + (dimension == name) * 1


def multiples(unit: int, most: int) -> tuple[int, ...]:
    """The multiples of `unit` up to `most`; one of them at least."""
    return tuple(range(unit, max(most, unit) + 1, unit))


def divisors(whole: int, most: int) -> tuple[int, ...]:
    """The divisors of `whole` up to `most`."""
    candidates = np.arange(1, min(whole, most) + 1)
    return tuple(int(d) for d in candidates[whole % candidates == 0])


def divisible(id: str, holds: Callable[..., Any], need: str, remedy: str, source: str = WHOLE_TILES) -> Rule:
    """A size is a whole number of tiles; `id` ends in `m_divisible`, `n_divisible` or `k_divisible`."""
    size = id.partition(".")[2][0]
    return Rule(
        id=id,
        holds=holds,
        have=f"{size}={{{size}}}",
        need=f"a multiple of {need}",
        remedy=remedy,
        source=source,
        noticed="never",
    )


def whole_bytes(holds: Callable[..., Any]) -> Rule:
    """A row of a tile is whole bytes, also of types narrower than one."""
    return Rule(
        id="copy.whole_bytes",
        holds=holds,
        have="tile rows of {tile_n} x {bits} bits",
        need="a whole number of bytes",
        remedy="make tile_n even, or a multiple of 4 for types of 2 bits",
        source="own kernel: it moves bytes, and the tile would end within one",
        noticed="never",
    )


RASTER_WIDTH = Rule(
    id="raster.width",
    holds=lambda grid_tile_width: grid_tile_width >= 1,
    have="grid_tile_width={grid_tile_width}",
    need="at least 1",
    remedy="set grid_tile_width=1",
    source="planar_snake divides by it",
    noticed="never",
)

CANONICAL_WIDTH = Rule(
    id="canonical.grid_tile_width",
    holds=lambda grid_tile_width, grid_minor_extent: grid_tile_width <= grid_minor_extent,
    have="grid_tile_width={grid_tile_width}",
    need="at most {grid_minor_extent}, the tiles along grid_minor_dim",
    remedy="set grid_tile_width={grid_minor_extent}",
    source="a wider band is the whole grid",
    kind="canonical",
    spelling=lambda grid_minor_extent: {"grid_tile_width": grid_minor_extent},
)

CANONICAL_MINOR_DIM = Rule(
    id="canonical.grid_minor_dim",
    holds=lambda grid_minor_dim, grid_is_line: (grid_minor_dim == "N") | (grid_is_line == 0),
    have="grid_minor_dim={grid_minor_dim} on a grid of {grid_m} x {grid_n}",
    need="N where the grid is a line",
    remedy="set grid_minor_dim=N",
    source="a line has one order",
    kind="canonical",
    spelling=lambda: {"grid_minor_dim": "N"},
)

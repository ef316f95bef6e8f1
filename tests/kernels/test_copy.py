"""The copy ring copies every bit, in JAX's interpreter, without races."""

from typing import Any

import jax.experimental.pallas.mosaic_gpu as plgpu
import pytest

from tests.kernels.lowering import FOUR_SMS, SM_90, RaceError, interpreted, lowered
from tests.search_spaces.spaces import broken
from tuner.search_spaces.copy import FAMILY, TuningConfig
from tuner.search_spaces.problem import DTYPE_BITS, CopyProblem
from tuner.search_spaces.space import LegalSpace
from tuner.verify import worst_error

HARDWARE = {"grid_schedule": "hardware", "delay_release": 0}

# Each row: m, n, dtype, configuration.
CASES: list[tuple[int, int, str, dict[str, Any]]] = [
    (64, 128, "float32", {"tile_m": 8, "tile_n": 32, "max_concurrent_steps": 3, "delay_release": 0}),
    (64, 128, "float32", {"tile_m": 8, "tile_n": 32, "max_concurrent_steps": 3, "delay_release": 1}),
    (
        64,
        128,
        "bfloat16",
        {"tile_m": 4, "tile_n": 32, "max_concurrent_steps": 4, "delay_release": 3, "grid_minor_dim": "M"},
    ),
    # As deep as a block has tiles, so that nothing is refilled.
    (64, 128, "float32", {"tile_m": 4, "tile_n": 128, "max_concurrent_steps": 4, "delay_release": 0}),
    # Blocks with unequal numbers of tiles, some with fewer than the ring has slots: 18 tiles for 8 blocks.
    (36, 64, "float32", {"tile_m": 2, "max_concurrent_steps": 2, "delay_release": 1, "blocks_per_sm": 2}),
    (36, 64, "float32", {"tile_m": 2, "max_concurrent_steps": 3, "delay_release": 0, "blocks_per_sm": 2}),
    # Whole rows are one run, larger than a box; so is a part of one row.
    (32, 512, "int8", {"tile_m": 2, "tile_n": 512, "max_concurrent_steps": 2}),
    (4, 2048, "int8", {"tile_m": 1, "tile_n": 1024, "max_concurrent_steps": 1, **HARDWARE}),
    (64, 128, "float32", {"tile_m": 8, "tile_n": 32, "max_concurrent_steps": 3, **HARDWARE}),
    (
        64,
        128,
        "int8",
        {"tile_m": 8, "tile_n": 16, "max_concurrent_steps": 5, "grid_minor_dim": "M", **HARDWARE},
    ),
    (64, 128, "bfloat16", {"tile_m": 64, "tile_n": 128, "max_concurrent_steps": 1, **HARDWARE}),
]


def named(m: int, n: int, dtype: str, config: dict[str, Any]) -> str:
    return f"{m}x{n} {dtype} " + " ".join(f"{name}={value}" for name, value in config.items())


@pytest.mark.parametrize(("m", "n", "dtype", "fields"), CASES, ids=[named(*case) for case in CASES])
def test_copy(m: int, n: int, dtype: str, fields: dict[str, Any]) -> None:
    problem = CopyProblem(m=m, n=n, dtype=dtype)
    config = TuningConfig(**fields)
    assert broken(LegalSpace(FAMILY, problem, FOUR_SMS), config) == ()
    operands, out = interpreted(FAMILY, problem, config)
    assert out.shape == (m, n)
    assert out.dtype == dtype
    assert worst_error(out, operands[0], None)[1] == 0


def test_a_forgotten_wait_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter has teeth: without this, the absence of races above would say nothing."""
    wait = plgpu.wait_smem_to_gmem
    monkeypatch.setattr(plgpu, "wait_smem_to_gmem", lambda n, **more: wait(n + 1 if more else n, **more))
    problem = CopyProblem(m=64, n=128, dtype="float32")
    config = TuningConfig(tile_m=8, tile_n=32, max_concurrent_steps=3)
    with pytest.raises(RaceError):
        interpreted(FAMILY, problem, config)


SUPPORTED = [
    dtype for dtype in DTYPE_BITS if not FAMILY.supports(CopyProblem(m=64, n=256, dtype=dtype), SM_90)
]


@pytest.mark.parametrize("dtype", SUPPORTED)
def test_every_type_it_takes_lowers(dtype: str) -> None:
    problem = CopyProblem(m=64, n=256, dtype=dtype)
    lowered(FAMILY, problem, FAMILY.default_config(problem, SM_90))

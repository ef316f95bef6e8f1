"""The Hopper matmul computes what it should, in JAX's interpreter: right numbers, every element, no races."""

from typing import Any

import jax.experimental.pallas.mosaic_gpu as plgpu
import numpy as np
import pytest

from tests import hopper_mgpu
from tests.kernels.lowering import FOUR_SMS, RaceError, interpreted
from tests.search_spaces.spaces import broken
from tuner.kernels import references
from tuner.search_spaces.matmul_hopper import FAMILY, TuningConfig
from tuner.search_spaces.problem import MatmulProblem
from tuner.search_spaces.space import LegalSpace
from tuner.verify import worst_error

BF16 = {"dtype": "bfloat16"}
F16_NK = {"dtype": "float16", "rhs": "nk"}
TO_F32 = {"dtype": "bfloat16", "out_dtype": "float32"}


# Each row: m, n, k, the problem's other fields, the configuration's.
CASES: list[tuple[int, int, int, dict[str, str], dict[str, Any]]] = [
    # Several tiles a block, and a ring that does not divide the steps.
    (320, 128, 128, BF16, {"tile_k": 32, "max_concurrent_steps": 3}),
    (
        128,
        320,
        128,
        F16_NK,
        {"tile_k": 64, "max_concurrent_steps": 3, "delay_release": 1, "wg_dimension": "M"},
    ),
    (
        320,
        128,
        64,
        F16_NK,
        {"tile_k": 32, "barriers": "per_operand", "delay_release": 1, "epi_tile_n": 16},
    ),
    (128, 320, 64, TO_F32, {"tile_k": 32, "barriers": "per_operand", "wg_dimension": "M", "epi_tile_n": 8}),
    (384, 128, 128, BF16, {"tile_k": 32, "cluster_dimension": "M", "max_concurrent_steps": 2}),
    (
        256,
        256,
        128,
        {**F16_NK, "out_dtype": "float32"},
        {
            "tile_k": 32,
            "cluster_dimension": "N",
            "wg_dimension": "M",
            "max_concurrent_steps": 2,
            "delay_release": 1,
            "grid_minor_dim": "M",
        },
    ),
    (
        128,
        512,
        64,
        {**BF16, "rhs": "nk"},
        {"tile_k": 32, "cluster_dimension": "N", "barriers": "per_operand", "max_concurrent_steps": 2},
    ),
    # A ring longer than one tile's steps: loads run ahead into the next tile.
    (320, 128, 32, BF16, {"tile_k": 32, "max_concurrent_steps": 2}),
    (576, 128, 32, BF16, {"tile_k": 16, "max_concurrent_steps": 5, "delay_release": 1}),
    # An epilogue of three tiles in two slots, along each dimension, and of one.
    (128, 192, 32, BF16, {"tile_n": 96, "tile_k": 32, "epi_tile_n": 32, "max_concurrent_steps": 1}),
    (384, 128, 32, TO_F32, {"tile_m": 192, "tile_k": 32, "max_concurrent_steps": 1}),
    (256, 128, 32, BF16, {"tile_m": 128, "tile_k": 16, "epi_tile_m": 128, "max_concurrent_steps": 2}),
    # Rasters whose last band is narrower than the others.
    (192, 640, 32, BF16, {"tile_k": 32, "grid_tile_width": 2, "max_concurrent_steps": 3}),
    (
        192,
        640,
        32,
        BF16,
        {"tile_k": 32, "grid_tile_width": 2, "grid_minor_dim": "M", "max_concurrent_steps": 2},
    ),
]


def named(m: int, n: int, k: int, problem: dict[str, str], config: dict[str, Any]) -> str:
    return f"{m}x{n}x{k} " + " ".join(f"{name}={value}" for name, value in {**problem, **config}.items())


@pytest.mark.parametrize(
    ("m", "n", "k", "problem_fields", "config_fields"), CASES, ids=[named(*case) for case in CASES]
)
def test_matmul(
    m: int, n: int, k: int, problem_fields: dict[str, str], config_fields: dict[str, Any]
) -> None:
    problem = MatmulProblem.from_dict({"m": m, "n": n, "k": k, **problem_fields})
    config = TuningConfig(**{"tile_m": 64, "tile_n": 64, **config_fields})
    assert broken(LegalSpace(FAMILY, problem, FOUR_SMS), config) == ()
    operands, out = interpreted(FAMILY, problem, config)
    assert out.shape == (m, n)
    assert out.dtype == problem.out_dtype
    expected, tolerance = references.matmul_reference(problem, operands, 0)
    error, wrong = worst_error(out, expected, tolerance)
    assert wrong == 0
    assert error <= 1


def test_the_cases_cover_every_choice() -> None:
    configs = [TuningConfig(**{"tile_m": 64, "tile_n": 64, **case[-1]}) for case in CASES]
    for name, values in {
        "wg_dimension": {"M", "N"},
        "cluster_dimension": {None, "M", "N"},
        "barriers": {"shared", "per_operand"},
        "delay_release": {0, 1},
        "grid_minor_dim": {"M", "N"},
    }.items():
        assert {getattr(config, name) for config in configs} == values


@pytest.mark.parametrize("forgotten", ["commit_smem", "wait_smem_to_gmem"])
def test_a_forgotten_synchronisation_is_seen(forgotten: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter has teeth: without this, the absence of races above would say nothing."""
    monkeypatch.setattr(plgpu, forgotten, lambda *arguments, **more: None)
    problem = MatmulProblem(m=256, n=256, k=64, dtype="bfloat16")
    config = TuningConfig(tile_m=64, tile_n=64, tile_k=32, max_concurrent_steps=2, epi_tile_n=32)
    with pytest.raises((RaceError, RuntimeError), match=r"^$|copy_smem_to_gmem"):
        interpreted(FAMILY, problem, config)


EPILOGUES = pytest.mark.parametrize(
    ("tiles", "unwritten"),
    [
        ({"tile_m": 64, "epi_tile_m": 128}, 1.0),
        ({"tile_n": 64, "epi_tile_n": 128}, 1.0),
        ({"tile_m": 192, "epi_tile_m": 128}, 1 / 3),
        ({"tile_n": 192, "epi_tile_n": 128}, 1 / 3),
    ],
    ids=str,
)


@EPILOGUES
def test_an_epilogue_that_does_not_divide_leaves_output_unwritten(
    tiles: dict[str, int], unwritten: float
) -> None:
    """JAX's own kernel lowers with it, is fast, and never writes part of its output."""
    config = hopper_mgpu.TuningConfig(**{"tile_m": 64, "tile_n": 64, "max_concurrent_steps": 1, **tiles})
    problem = MatmulProblem(m=config.tile_m, n=2 * config.tile_n, k=64, dtype="bfloat16")
    operands, out = interpreted(hopper_mgpu.FAMILY, problem, config)
    assert np.isnan(np.asarray(out, np.float32)).mean() == pytest.approx(unwritten)
    expected, tolerance = references.matmul_reference(problem, operands, 0)
    assert worst_error(out, expected, tolerance)[1] == round(unwritten * out.size)


@EPILOGUES
def test_our_kernel_is_not_built_with_such_an_epilogue(tiles: dict[str, int], unwritten: float) -> None:
    """It could not be silently wrong: not even the interpreter takes it."""
    del unwritten
    config = TuningConfig(**{"tile_m": 64, "tile_n": 64, "max_concurrent_steps": 1, **tiles})
    problem = MatmulProblem(m=config.tile_m, n=2 * config.tile_n, k=64, dtype="bfloat16")
    with pytest.raises((ValueError, ZeroDivisionError)):
        interpreted(FAMILY, problem, config)

"""Whatever `benchmarks/enumeration.py` times finds the same legal points as we do."""

import importlib.util

import pytest

from benchmarks import enumeration
from tuner.search_spaces import matmul_hopper
from tuner.search_spaces.problem import MatmulProblem

MODULES = {"python-constraint2": "constraint", "pyATF": "pyatf"}
# Of k=64 a block makes so few steps that the rules on them count; m=128 makes the grid a line.
PROBLEMS = (
    MatmulProblem(m=256, n=512, k=256, dtype="bfloat16"),
    MatmulProblem(m=128, n=256, k=64, dtype="float16", out_dtype="float32"),
)
TINY = {
    "tile_m": (64, 128),
    "epi_tile_m": (64, 128),
    "tile_n": (8, 16, 64, 128, 256),
    "epi_tile_n": (8, 16, 48, 64),
    "tile_k": (16, 48, 64, 128),
    "max_concurrent_steps": (1, 2, 3, 8, 32),
    "grid_tile_width": (1, 2, 3),
}


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
@pytest.mark.parametrize("name", enumeration.OTHERS)
def test_counts_agree(name: str, problem: MatmulProblem) -> None:
    module = MODULES.get(name, name)
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{name} is not installed: pip install {name}")
    ours = enumeration.space(TINY, problem)
    axes = {axis.name: axis.values for axis in ours.axes.values()}
    assert 0 < len(ours) < ours.raw
    assert enumeration.OTHERS[name](axes, enumeration.constraints(problem))() == len(ours)


@pytest.mark.parametrize("kept", [enumeration.SLICE, enumeration.BILLION])
def test_slices_are_of_the_real_axes(kept: dict[str, tuple[int, ...]]) -> None:
    axes = matmul_hopper.axes(enumeration.PROBLEM, enumeration.TARGET)
    whole = {axis.name: set(axis.values) for axis in axes}
    assert all(set(values) <= whole[name] for name, values in kept.items())

"""What compiles for sm_90 without a GPU, through our own worker process: nothing that runs here has one."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kernels import transposing
from tests.search_spaces.spaces import space_of
from tuner.compiling import CompileTask, compile_program
from tuner.farm import Farm
from tuner.search_spaces import copy, matmul_hopper
from tuner.search_spaces.architecture import Target, reference_target
from tuner.search_spaces.family import KernelFamily
from tuner.search_spaces.problem import CopyProblem, MatmulProblem, Problem

pytestmark = pytest.mark.deviceless

SM_90 = reference_target("sm_90")
MATMUL = MatmulProblem(m=512, n=1024, k=512, dtype="bfloat16")
COPY = CopyProblem(m=1024, n=512, dtype="float32")

LEGAL: list[tuple[Problem, dict[str, Any]]] = [
    (MATMUL, {"tile_m": 64, "max_concurrent_steps": 3}),
    (
        dataclasses.replace(MATMUL, rhs="nk"),
        {
            "tile_m": 64,
            "tile_n": 64,
            "tile_k": 32,
            "wg_dimension": "M",
            "cluster_dimension": "N",
            "delay_release": 1,
            "grid_minor_dim": "M",
            "grid_tile_width": 2,
        },
    ),
    (
        dataclasses.replace(MATMUL, out_dtype="float32"),
        {"tile_n": 32, "epi_tile_n": 32, "cluster_dimension": "M", "barriers": "per_operand"},
    ),
    (
        MatmulProblem(m=512, n=1024, k=512, dtype="float16", rhs="nk"),
        {"tile_m": 128, "tile_n": 64, "tile_k": 16, "epi_tile_m": 128, "epi_tile_n": 16},
    ),
    (COPY, {"tile_m": 8, "tile_n": 16, "max_concurrent_steps": 3}),
    (
        COPY,
        {
            "tile_m": 8,
            "tile_n": 512,
            "max_concurrent_steps": 2,
            "grid_schedule": "hardware",
            "delay_release": 0,
        },
    ),
    (
        CopyProblem(m=4096, n=512, dtype="int8"),
        {"tile_m": 4, "tile_n": 32, "max_concurrent_steps": 5, "delay_release": 4, "blocks_per_sm": 3},
    ),
    (
        CopyProblem(m=4096, n=512, dtype="bfloat16"),
        {"tile_m": 1, "tile_n": 64, "max_concurrent_steps": 8, "delay_release": 2, "grid_minor_dim": "M"},
    ),
]


@pytest.fixture(scope="module")
def farm() -> Iterator[Farm]:
    found = Farm(1)
    yield found
    found.shutdown()


def compiled(
    farm: Farm, family: KernelFamily, problem: Problem, config: Any, target: Target = SM_90
) -> tuple[dict[str, Any], bytes]:
    task = CompileTask(
        family=family.address,
        problem=problem.to_dict(),
        config=dataclasses.asdict(config),
        target=target.to_dict(),
    )
    return farm.submit(compile_program, task.to_dict()).result(timeout=120)


@pytest.mark.parametrize(("problem", "fields"), LEGAL, ids=str)
def test_legal_configurations_compile(farm: Farm, problem: Problem, fields: dict[str, Any]) -> None:
    space = space_of(problem)
    config = space.family.config(fields)
    assert config in space
    info, payload = compiled(farm, space.family, problem, config)
    assert (info["rung"], info["stage"], info["reason"]) == ("compiled", "", "")
    # Three warpgroups share 65536 registers, a copy's one may have 255 a thread.
    assert 0 < info["registers"] <= (168 if problem.kernel == "matmul" else 255)
    assert info["spill_bytes"] == 0
    assert info["lower_s"] > 0
    assert info["compile_s"] > 0
    assert len(payload) > 1000


def test_spills_are_told(farm: Farm) -> None:
    """An accumulator of 256 registers a thread, of the 232 there are: slow, and not illegal."""
    config = matmul_hopper.TuningConfig(
        tile_m=128, tile_n=256, tile_k=64, max_concurrent_steps=2, wg_dimension="M"
    )
    assert config in space_of(MATMUL)
    info, payload = compiled(farm, matmul_hopper.FAMILY, MATMUL, config)
    assert info["rung"] == "compiled"
    assert info["spill_bytes"] > 0
    assert payload


@pytest.mark.parametrize(
    ("fields", "rung", "reason"),
    [
        ({"tile_m": 96, "epi_tile_m": 96}, "legal", "multiple of 64"),
        ({"max_concurrent_steps": 30}, "legal", "shared memory"),
        ({"tile_k": 8}, "legal", "ValueError"),
    ],
    ids=str,
)
def test_what_lowering_refuses_says_why(farm: Farm, fields: dict[str, int], rung: str, reason: str) -> None:
    info, payload = compiled(farm, matmul_hopper.FAMILY, MATMUL, matmul_hopper.TuningConfig(**fields))
    assert info["rung"] == rung
    assert info["stage"] == "lower"
    assert reason in info["reason"]
    assert payload == b""


def test_what_ptxas_refuses_says_why() -> None:
    """On sm_100 the Hopper kernel lowers, and only ptxas knows better."""
    target = reference_target("sm_100")
    config = matmul_hopper.TuningConfig(tile_m=64, max_concurrent_steps=3)
    # One process compiles for one architecture.
    blackwell = Farm(1)
    try:
        info, payload = compiled(blackwell, matmul_hopper.FAMILY, MATMUL, config, target)
    finally:
        blackwell.shutdown()
    assert (info["rung"], info["stage"]) == ("lowered", "compile")
    assert "wgmma" in info["reason"]
    assert payload == b""


def test_a_program_that_copies_beside_its_kernel_is_refused(farm: Farm) -> None:
    """Its kernel's time would not be the program's."""
    problem = CopyProblem(m=512, n=512, dtype="float32")
    info, payload = compiled(farm, transposing.FAMILY, problem, copy.TuningConfig(tile_m=8, tile_n=32))
    assert (info["rung"], info["stage"]) == ("lowered", "compile")
    assert info["reason"].startswith("HIDDEN_COPY")
    assert "transpose" in info["reason"]
    assert payload == b""


def test_the_worker_goes_on_after_a_failure(farm: Farm) -> None:
    bad = copy.TuningConfig(tile_m=0)
    info, payload = compiled(farm, copy.FAMILY, COPY, bad)
    assert info["stage"] == "lower"
    assert info["reason"]
    assert payload == b""
    info, payload = compiled(farm, copy.FAMILY, COPY, copy.TuningConfig(tile_m=8, tile_n=32))
    assert info["rung"] == "compiled"
    assert payload


def test_one_configuration_compiles_to_one_program(farm: Farm) -> None:
    """What is compiled again is the same code, so a record's times are of its configuration."""
    config = copy.TuningConfig(tile_m=8, tile_n=32)
    first, _ = compiled(farm, copy.FAMILY, COPY, config)
    second, _ = compiled(farm, copy.FAMILY, COPY, config)
    for name in ("registers", "spill_bytes"):
        assert first[name] == second[name]

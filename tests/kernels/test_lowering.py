"""Our rules against JAX's real lowering: what is legal lowers, and what JAX would refuse is illegal."""

import dataclasses
import random
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests import hopper_mgpu
from tests.kernels.lowering import SM_90, lowered
from tests.search_spaces.spaces import BIG, broken, space_of
from tuner.proof.verdict import module_text
from tuner.search_spaces import copy, matmul_hopper
from tuner.search_spaces.family import family_for
from tuner.search_spaces.problem import CopyProblem, MatmulProblem, Problem
from tuner.search_spaces.rule import violations
from tuner.search_spaces.space import LegalSpace

PROBLEMS: tuple[Problem, ...] = (
    BIG,
    MatmulProblem(m=768, n=1536, k=512, dtype="float16", rhs="nk"),
    MatmulProblem(m=1088, n=576, k=512, dtype="bfloat16", out_dtype="float32", rhs="nk"),
    CopyProblem(m=768, n=1536, dtype="float32"),
    CopyProblem(m=1024, n=512, dtype="int8"),
)
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=str)


@each_problem
def test_legal_configurations_lower(problem: Problem) -> None:
    space = space_of(problem)
    for config in space.sample(5, seed=11):
        lowered(space.family, problem, config)


# Values beyond those of the axes, and beside the steps between them.
BEYOND: dict[str, tuple[int, ...]] = {
    "tile_m": (8, 32, 96, 100, 320, 512, 768, 2048),
    "tile_n": (2, 4, 12, 24, 40, 72, 264, 320, 512),
    "tile_k": (4, 8, 24, 40, 72, 1024),
    "epi_tile_m": (8, 32, 96, 512),
    "epi_tile_n": (4, 12, 24, 40, 96, 512),
    "max_concurrent_steps": (0, 31, 32, 33, 64),
    "delay_release": (2, 5, 40),
}


def one_step_from_legal(problem: Problem, seed: int) -> Iterator[tuple[LegalSpace, Any, tuple[str, ...]]]:
    """Illegal configurations, each one field away from a legal one, with the rules they break."""
    space, drawn = space_of(problem), random.Random(seed)
    names = [name for name in space.axes if name in BEYOND]
    while True:
        name = drawn.choice(names)
        values = BEYOND[name] + tuple(v for v in space.axes[name].values if isinstance(v, int))
        legal = space.config(drawn.randrange(len(space)))
        config = dataclasses.replace(legal, **{name: drawn.choice(values)})
        if rules := broken(space, config):
            yield space, config, rules


@each_problem
def test_what_lowering_would_notice_does_not_lower(problem: Problem) -> None:
    """A rule with `noticed="lowered"` fires on nothing that JAX takes."""
    space = space_of(problem)
    early = {rule.id for rule in space.family.rules if rule.noticed == "lowered" and rule.kind == "illegal"}
    # At most three configurations of a kind, so that common rules do not crowd out the rare ones.
    seen: Counter[tuple[str, ...]] = Counter()
    tried = 0
    for _, config, rules in one_step_from_legal(problem, seed=5):
        if not early & set(rules) or seen[rules] >= 3:
            continue
        seen[rules] += 1
        tried += 1
        try:
            lowered(space.family, problem, config)
        except Exception:  # noqa: BLE001 - JAX refuses with whatever it likes
            pass
        else:
            pytest.fail(f"{sorted(early & set(rules))} refuse what JAX lowers: {config}")
        if tried == 8:
            break


@pytest.mark.parametrize("kernel", ["matmul", "copy"])
def test_every_rule_that_lowering_would_notice_is_tried(kernel: str) -> None:
    """Else the test above would say nothing of a rule that no configuration of its own reaches."""
    reached: set[str] = set()
    for problem in (p for p in PROBLEMS if p.kernel == kernel):
        space = space_of(problem)
        for _, (_, _, rules) in zip(range(1500), one_step_from_legal(problem, seed=5), strict=False):
            reached |= set(rules)
    early = {rule.id for rule in space.family.rules if rule.noticed == "lowered" and rule.kind == "illegal"}
    # These two need a problem of their own, below.
    assert early - reached <= {"copy.row_pitch", "matmul.box"}


def test_a_row_pitch_that_no_configuration_mends_does_not_lower() -> None:
    problem = CopyProblem(m=64, n=260, dtype="int8")
    config = copy.TuningConfig(tile_m=8, tile_n=16, max_concurrent_steps=2)
    with pytest.raises(Exception, match="16 bytes"):
        lowered(copy.FAMILY, problem, config)


def test_more_than_256_eights_of_rows_do_not_lower() -> None:
    problem = MatmulProblem(m=8192, n=64, k=64, dtype="bfloat16")
    config = matmul_hopper.TuningConfig(
        tile_m=2112,
        tile_n=8,
        tile_k=16,
        epi_tile_m=64,
        epi_tile_n=8,
        max_concurrent_steps=1,
        wg_dimension="N",
    )
    assert "matmul.box" in broken(LegalSpace(matmul_hopper.FAMILY, problem, SM_90), config)
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever JAX raises
        lowered(matmul_hopper.FAMILY, problem, config)


def jax_smem_bytes(family: Any, problem: Problem, config: Any) -> int:
    """What JAX says a kernel takes, read from its refusal on a device that has none."""
    with pytest.raises(ValueError, match="smem_bytes=") as caught:
        lowered(family, problem, config, dataclasses.replace(SM_90, smem_optin_bytes=1))
    found = re.search(r"smem_bytes=(\d+)", str(caught.value))
    assert found is not None
    return int(found[1])


@each_problem
def test_shared_memory_is_what_jax_counts(problem: Problem) -> None:
    space = space_of(problem)
    for config in space.sample(3, seed=3):
        columns = space.family.config_columns(problem, SM_90, config)
        assert jax_smem_bytes(space.family, problem, config) == columns["smem_bytes"], config


@pytest.mark.parametrize("problem", [PROBLEMS[1], PROBLEMS[4]], ids=str)
def test_exactly_the_limit_lowers_and_is_still_refused(problem: Problem) -> None:
    """JAX takes it, and the launch fails on an H200: at equality the rule is stricter than lowering."""
    config = space_of(problem).sample(1, seed=8)[0]
    family = family_for(problem, SM_90)
    smem_bytes = int(family.config_columns(problem, SM_90, config)["smem_bytes"])
    for limit, legal, lowers in ((-1, False, False), (0, False, True), (1, True, True)):
        target = dataclasses.replace(SM_90, smem_optin_bytes=smem_bytes + limit)
        rules = violations(family.rules, family.config_columns(problem, target, config))
        assert [v.rule for v in rules] == ([] if legal else ["smem.capacity"])
        if lowers:
            lowered(family, problem, config, target)
        else:
            with pytest.raises(ValueError, match="shared memory"):
                lowered(family, problem, config, target)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_concurrent_steps": 4},
        {"tile_m": 64, "tile_n": 256, "wg_dimension": "M", "cluster_dimension": "N"},
        {"tile_m": 256, "tile_k": 32, "epi_tile_m": 128, "epi_tile_n": 32, "max_concurrent_steps": 2},
        {"tile_k": 128, "max_concurrent_steps": 6, "epi_tile_m": 128, "epi_tile_n": 128},
    ],
    ids=str,
)
def test_the_description_of_jaxs_kernel_is_of_jaxs_kernel(fields: dict[str, Any]) -> None:
    problem, config = (
        MatmulProblem(m=8192, n=8192, k=512, dtype="bfloat16"),
        hopper_mgpu.TuningConfig(**fields),
    )
    columns = hopper_mgpu.FAMILY.config_columns(problem, SM_90, config)
    assert jax_smem_bytes(hopper_mgpu.FAMILY, problem, config) == columns["smem_bytes"]


@pytest.mark.parametrize(
    ("rule", "problem", "twin", "canonical"),
    [
        (
            "canonical.grid_tile_width",
            MatmulProblem(m=512, n=1024, k=128, dtype="bfloat16"),
            {"tile_m": 64, "tile_n": 64, "max_concurrent_steps": 2, "grid_tile_width": 100},
            {"grid_tile_width": 8},
        ),
        (
            "canonical.grid_tile_width",
            MatmulProblem(m=512, n=1024, k=128, dtype="bfloat16"),
            {
                "tile_m": 64,
                "tile_n": 64,
                "max_concurrent_steps": 2,
                "grid_minor_dim": "M",
                "cluster_dimension": "M",
                "grid_tile_width": 8,
            },
            {"grid_tile_width": 4},
        ),
        (
            "canonical.grid_minor_dim",
            MatmulProblem(m=64, n=1024, k=128, dtype="bfloat16"),
            {"tile_m": 64, "tile_n": 64, "max_concurrent_steps": 2, "grid_minor_dim": "M"},
            {"grid_minor_dim": "N"},
        ),
        (
            "canonical.max_concurrent_steps",
            MatmulProblem(m=128, n=128, k=128, dtype="float16", rhs="nk"),
            {"tile_m": 64, "tile_n": 64, "tile_k": 64, "max_concurrent_steps": 9, "barriers": "per_operand"},
            {"max_concurrent_steps": 2},
        ),
        (
            "canonical.blocks_per_sm",
            CopyProblem(m=64, n=128, dtype="float32"),
            {"tile_m": 4, "tile_n": 32, "max_concurrent_steps": 1, "delay_release": 0, "blocks_per_sm": 7},
            {"blocks_per_sm": 1},
        ),
        (
            "canonical.max_concurrent_steps",
            CopyProblem(m=5280, n=32, dtype="float32"),
            {"tile_m": 10, "tile_n": 32, "max_concurrent_steps": 32, "delay_release": 0},
            {"max_concurrent_steps": 4},
        ),
        (
            "canonical.delay_release",
            CopyProblem(m=64, n=128, dtype="float32"),
            {
                "tile_m": 4,
                "tile_n": 32,
                "max_concurrent_steps": 3,
                "delay_release": 2,
                "grid_schedule": "hardware",
            },
            {"delay_release": 0},
        ),
        (
            "canonical.grid_minor_dim",
            CopyProblem(m=64, n=128, dtype="float32"),
            {
                "tile_m": 4,
                "tile_n": 128,
                "max_concurrent_steps": 2,
                "delay_release": 0,
                "grid_minor_dim": "M",
                "grid_schedule": "hardware",
            },
            {"grid_minor_dim": "N"},
        ),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_twins_are_one_program(
    rule: str, problem: Problem, twin: dict[str, Any], canonical: dict[str, Any]
) -> None:
    """What a canonical rule removes is the same program as what stays in its place."""
    space = space_of(problem)
    removed = space.family.config(twin)
    kept = dataclasses.replace(removed, **canonical)
    assert broken(space, removed) == (rule,)
    assert kept in space
    one, other = (module_text(lowered(space.family, problem, config)) for config in (removed, kept))
    assert one == other


@pytest.mark.parametrize("problem", [PROBLEMS[1], PROBLEMS[3]], ids=str)
def test_neighbours_are_other_programs(problem: Problem) -> None:
    """No program is listed twice."""
    space = space_of(problem)
    config = space.sample(1, seed=2)[0]
    texts = [module_text(lowered(space.family, problem, c)) for c in (config, *space.neighbours(config)[:6])]
    assert len(set(texts)) == len(texts) >= 5


def test_a_run_of_one_row_needs_no_box() -> None:
    """A part of one row is a run of memory like whole rows are: JAX lowers it, so it is in the space."""
    problem = CopyProblem(m=768, n=1536, dtype="float32")
    config = copy.TuningConfig(tile_m=1, tile_n=384, grid_schedule="hardware", delay_release=0)
    lowered(copy.FAMILY, problem, config)
    assert config in space_of(problem)


@pytest.mark.parametrize("tile_k", [16, 48, 64, 128])
@pytest.mark.parametrize("tile_n", [8, 16, 56])
def test_a_rhs_block_two_blocks_can_share(tile_n: int, tile_k: int) -> None:
    """Our rule and JAX's partition agree on which blocks a cluster may load together, both ways."""
    problem = MatmulProblem(
        m=512, n=tile_n * 4, k=tile_k * 4, dtype="bfloat16", rhs="nk", out_dtype="float32"
    )
    config = matmul_hopper.TuningConfig(
        tile_m=64,
        tile_n=tile_n,
        tile_k=tile_k,
        max_concurrent_steps=2,
        epi_tile_n=8,
        wg_dimension="M",
        cluster_dimension="M",
    )
    broken = {v.rule for v in space_of(problem).explain(config).violations}
    assert broken <= {"matmul.multicast"}
    if "matmul.multicast" in broken:
        with pytest.raises(ValueError, match="collective size"):
            lowered(matmul_hopper.FAMILY, problem, config)
    else:
        lowered(matmul_hopper.FAMILY, problem, config)

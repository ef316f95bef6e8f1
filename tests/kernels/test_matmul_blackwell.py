"""The Blackwell matmul: right numbers in JAX's interpreter, its rules against JAX's lowering and ptxas.

The interpreter runs kernels of one block a cluster. Of `collective=1` the lowered code is looked at instead:
which instructions it has, how many barriers and how much tensor memory.
"""

import dataclasses
import random
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest

from tests.kernels.lowering import RaceError, interpreted, lowered
from tests.search_spaces.spaces import broken
from tuner.compiling import CompileTask, compile_program
from tuner.farm import Farm
from tuner.proof.verdict import module_text
from tuner.search_spaces import matmul_blackwell
from tuner.search_spaces.architecture import Target, reference_target
from tuner.search_spaces.matmul_blackwell import RULES, TuningConfig
from tuner.search_spaces.problem import MatmulProblem
from tuner.search_spaces.space import LegalSpace

SM_100 = reference_target("sm_100")
ARCHS = ("sm_100", "sm_103", "sm_110")
# Few blocks, so that a small problem keeps each of them busy for several tiles.
TWO_SMS = dataclasses.replace(SM_100, sm_count=2)


def operands(problem: MatmulProblem, seed: int) -> tuple[jax.Array, jax.Array]:
    """lhs (m, k) and rhs (k, n) or (n, k): normal, for integers uniform over every value."""
    lhs_key, rhs_key = jax.random.split(jax.random.key(seed))
    rhs_shape = (problem.k, problem.n) if problem.rhs == "kn" else (problem.n, problem.k)

    def operand(key: jax.Array, shape: tuple[int, int], dtype: str) -> jax.Array:
        if dtype == "int8":
            return jax.random.randint(key, shape, -128, 128, jnp.int8)
        return jax.random.normal(key, shape, jnp.float32).astype(dtype)

    return (
        operand(lhs_key, (problem.m, problem.k), problem.dtype),
        operand(rhs_key, rhs_shape, problem.rhs_dtype),
    )


FAMILY = dataclasses.replace(
    matmul_blackwell.FAMILY, operands=f"{__name__}:operands", address=f"{__name__}:FAMILY"
)

BF16 = {"dtype": "bfloat16"}
NK = {"rhs": "nk"}
F16 = {"dtype": "float16"}
TO_F32 = {"out_dtype": "float32"}
MIXED = {"dtype": "float8_e4m3fn", "rhs_dtype": "float8_e5m2", "out_dtype": "float16"}
E5M2 = {"dtype": "float8_e5m2"}
TO_BF16 = {"out_dtype": "bfloat16"}
INT8 = {"dtype": "int8", "out_dtype": "int32"}


def problem_of(m: int, n: int, k: int, *fields: dict[str, str]) -> MatmulProblem:
    merged: dict[str, Any] = {"m": m, "n": n, "k": k}
    for more in fields:
        merged |= more
    return MatmulProblem.from_dict(merged)


# Each configuration says what it changes of a small one.
SMALL: dict[str, Any] = {"tile_n": 32, "tile_k": 32, "epi_tile_n": 16, "max_concurrent_steps": 2}
CASES: list[tuple[MatmulProblem, dict[str, Any]]] = [
    # Several tiles a block in two accumulators, and a ring that does not divide the steps.
    (problem_of(640, 32, 96, BF16), {}),
    (problem_of(384, 64, 64, MIXED, NK), {"max_concurrent_steps": 3, "barriers": "per_operand"}),
    # Rasters whose last band is narrower; a ring longer than one tile's steps, and one of one stage.
    (
        problem_of(256, 160, 32, BF16, TO_F32),
        {"max_concurrent_steps": 3, "grid_tile_width": 2, "epi_tile_n": 8},
    ),
    (
        problem_of(384, 64, 64, INT8),
        {"max_concurrent_steps": 1, "grid_tile_width": 2, "grid_minor_dim": "M", "epi_tile_n": 8},
    ),
    # One accumulator: a block of one tile, and one that has no room for another.
    (problem_of(256, 32, 64, E5M2, TO_BF16), {}),
    (problem_of(384, 512, 16, BF16, NK), {"tile_n": 512, "tile_k": 16, "epi_tile_n": 256}),
    # 64 rows, by three parts in two slots and whole.
    (problem_of(192, 96, 64, F16), {"tile_m": 64, "tile_n": 96, "epi_tile_n": 32}),
    (problem_of(192, 64, 64, INT8, NK), {"tile_m": 64, "tile_n": 64, "epi_tile_n": 64}),
]


@pytest.mark.parametrize(("problem", "fields"), CASES, ids=str)
def test_matmul(problem: MatmulProblem, fields: dict[str, Any]) -> None:
    config = TuningConfig(**{**SMALL, **fields})
    assert FAMILY.supports(problem, TWO_SMS) == ""
    assert broken(LegalSpace(FAMILY, problem, TWO_SMS), config) == ()
    (lhs, rhs), out = interpreted(FAMILY, problem, config, TWO_SMS)
    assert out.shape == (problem.m, problem.n)
    assert out.dtype == problem.out_dtype
    exact = np.float64 if problem.acc_dtype == "float32" else np.int64
    left, right = np.asarray(lhs).astype(exact), np.asarray(rhs).astype(exact)
    right = right if problem.rhs == "kn" else right.T
    expected = left @ right
    error = np.abs(np.asarray(out).astype(exact) - expected)
    if problem.acc_dtype == "int32":
        assert not error.any()
        return
    # Half a unit in the last place of the output, and an accumulation in float32 in any order.
    rounding = np.abs(expected) * float(jnp.finfo(out.dtype).eps) / 2
    assert (error <= rounding + 2 * problem.k * 2.0**-24 * (np.abs(left) @ np.abs(right))).all()


def test_the_cases_cover_every_choice() -> None:
    configs = [TuningConfig(**{**SMALL, **fields}) for _, fields in CASES]
    assert {c.barriers for c in configs} == {"shared", "per_operand"}
    assert {c.grid_minor_dim for c in configs} == {"M", "N"}
    assert {c.tile_m for c in configs} == {64, 128}
    assert {(p.dtype, p.rhs) for p, _ in CASES} >= {
        (t, r) for t in ("bfloat16", "int8") for r in ("kn", "nk")
    }


@pytest.mark.parametrize("forgotten", ["commit_smem", "wait_smem_to_gmem", "wait_load_tmem"])
def test_a_forgotten_synchronisation_is_seen(forgotten: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter has teeth: without this, the absence of races above would say nothing."""
    monkeypatch.setattr(plgpu, forgotten, lambda *arguments, **more: None)
    with pytest.raises((RaceError, RuntimeError)):
        interpreted(FAMILY, problem_of(768, 32, 64, BF16), TuningConfig(**SMALL), TWO_SMS)


LOWERED = (
    problem_of(1536, 3072, 1536, BF16),
    problem_of(1536, 3072, 1536, F16, NK, TO_F32),
    problem_of(1536, 3072, 1536, MIXED),
    problem_of(1536, 3072, 1536, INT8, NK),
)
each_problem = pytest.mark.parametrize("problem", LOWERED, ids=str)


@each_problem
def test_legal_configurations_lower(problem: MatmulProblem) -> None:
    """And JAX counts the same shared memory, read from its refusal on a device that has none."""
    target = reference_target(ARCHS[LOWERED.index(problem) % 2 * 2])
    space = LegalSpace(FAMILY, problem, target)
    for seed in range(2):
        config = space.config(space.draw(np.random.default_rng(seed)))
        lowered(FAMILY, problem, config, target)
        with pytest.raises(ValueError, match="smem_bytes=") as caught:
            lowered(FAMILY, problem, config, dataclasses.replace(target, smem_optin_bytes=1))
        counted = re.search(r"smem_bytes=(\d+)", str(caught.value))
        assert counted is not None
        assert int(counted[1]) == FAMILY.config_columns(problem, target, config)["smem_bytes"], config


# Values beyond those of the axes, and beside the steps between them.
BEYOND: dict[str, tuple[int, ...]] = {
    "tile_m": (8, 32, 63, 96, 192, 256),
    "tile_n": (4, 8, 12, 24, 40, 72, 264, 320, 384, 528, 1024),
    "tile_k": (4, 8, 12, 24, 40, 72),
    "epi_tile_n": (2, 4, 12, 20, 24, 40),
    "max_concurrent_steps": (0, 31, 32, 33),
    "collective": (0, 1, 2),
}
EARLY = {rule.id for rule in RULES if rule.noticed == "lowered" and rule.kind == "illegal"}


def one_step_from_legal(problem: MatmulProblem, seed: int) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Illegal configurations, each one field away from a legal one, with the rules they break."""
    space, drawn = LegalSpace(FAMILY, problem, SM_100), random.Random(seed)
    rng = np.random.default_rng(seed)
    while True:
        name = drawn.choice(list(BEYOND))
        legal = space.config(space.draw(rng))
        config = dataclasses.replace(legal, **{name: drawn.choice(BEYOND[name])})
        if rules := broken(space, config):
            yield config, rules


@each_problem
def test_what_lowering_would_notice_does_not_lower(problem: MatmulProblem) -> None:
    """A rule with `noticed="lowered"` fires on nothing that JAX takes."""
    # One configuration of a kind, so that common rules do not crowd out the rare ones.
    seen: Counter[tuple[str, ...]] = Counter()
    for config, rules in one_step_from_legal(problem, seed=5):
        if not EARLY & set(rules) or seen[rules]:
            continue
        seen[rules] += 1
        try:
            lowered(FAMILY, problem, config, SM_100)
        except Exception:  # noqa: BLE001 - JAX refuses with whatever it likes
            pass
        else:
            pytest.fail(f"{sorted(EARLY & set(rules))} refuse what JAX lowers: {config}")
        if len(seen) == 6:
            break


# What JAX and ptxas take and the rules do not: wrong, hanging, or never verified.
NEVER: list[tuple[str, MatmulProblem, dict[str, Any]]] = [
    ("matmul.tile_n_16", problem_of(256, 48, 128, BF16, NK, TO_F32), {"tile_n": 24, "epi_tile_n": 8}),
    ("matmul.m_divisible", problem_of(192, 64, 128, BF16), {}),
    ("matmul.n_divisible", problem_of(256, 192, 128, BF16), {"tile_n": 128}),
    ("matmul.k_divisible", problem_of(256, 64, 320, BF16), {"tile_k": 128}),
    ("raster.width", problem_of(256, 64, 128, BF16), {"grid_tile_width": -1}),
]


@pytest.mark.parametrize(("rule", "problem", "fields"), NEVER, ids=[case[0] for case in NEVER])
def test_what_nobody_notices_lowers(rule: str, problem: MatmulProblem, fields: dict[str, Any]) -> None:
    config = TuningConfig(**{**SMALL, **fields})
    assert broken(LegalSpace(FAMILY, problem, SM_100), config) == (rule,)
    lowered(FAMILY, problem, config, SM_100)


def test_an_epilogue_that_does_not_divide_is_not_built() -> None:
    """It could not be silently wrong: our kernel stores no part beyond the accumulator."""
    config = TuningConfig(**{**SMALL, "tile_n": 64, "epi_tile_n": 48})
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever JAX raises
        lowered(FAMILY, problem_of(256, 128, 128, BF16), config, SM_100)


@pytest.mark.parametrize(
    ("rule", "problem", "twin", "canonical"),
    [
        (
            "canonical.grid_tile_width",
            problem_of(512, 256, 64, BF16),
            {"grid_tile_width": 100},
            {"grid_tile_width": 8},
        ),
        (
            "canonical.grid_tile_width",
            problem_of(512, 256, 64, BF16),
            {"grid_tile_width": 3, "grid_minor_dim": "M", "collective": 1},
            {"grid_tile_width": 2},
        ),
        (
            "canonical.grid_minor_dim",
            problem_of(128, 256, 64, BF16),
            {"grid_minor_dim": "M"},
            {"grid_minor_dim": "N"},
        ),
        (
            "canonical.max_concurrent_steps",
            problem_of(256, 64, 96, F16, NK),
            {"max_concurrent_steps": 9, "barriers": "per_operand"},
            {"max_concurrent_steps": 3},
        ),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_twins_are_one_program(
    rule: str, problem: MatmulProblem, twin: dict[str, Any], canonical: dict[str, Any]
) -> None:
    """What a canonical rule removes is the same program as what stays in its place."""
    space = LegalSpace(FAMILY, problem, SM_100)
    removed = TuningConfig(**{**SMALL, **twin})
    kept = dataclasses.replace(removed, **canonical)
    assert broken(space, removed) == (rule,)
    assert kept in space
    one, other = (module_text(lowered(FAMILY, problem, config, SM_100)) for config in (removed, kept))
    assert one == other


def test_neighbours_are_other_programs() -> None:
    """No program is listed twice."""
    problem = problem_of(1024, 512, 128, BF16)
    config = TuningConfig(**SMALL)
    space = LegalSpace(FAMILY, problem, SM_100)
    near = space.neighbours(config)[:6]
    texts = [module_text(lowered(FAMILY, problem, c, SM_100)) for c in (config, *near)]
    assert len(set(texts)) == len(texts) >= 7


STRUCTURE = [
    (problem_of(4096, 4096, 1024, BF16), {}),
    (problem_of(4096, 4096, 1024, BF16), {"collective": 1}),
    (problem_of(4096, 4096, 1024, F16, NK), {"collective": 1, "barriers": "per_operand", "epi_tile_n": 128}),
    (problem_of(4096, 4096, 1024, E5M2, TO_BF16), {"collective": 1, "tile_k": 128}),
    (problem_of(4096, 4096, 1024, INT8, NK), {"collective": 1, "tile_k": 32, "max_concurrent_steps": 5}),
    (problem_of(4096, 4096, 1024, BF16), {"collective": 1, "tile_m": 64, "epi_tile_n": 256}),
    (problem_of(512, 512, 1024, BF16), {"collective": 1}),
    # 512 columns are two instructions, and so are 64 rows of one block.
    (problem_of(4096, 4096, 1024, BF16), {"tile_n": 512, "max_concurrent_steps": 2}),
    (problem_of(4096, 4096, 1024, BF16, NK), {"tile_m": 64, "barriers": "per_operand"}),
]


@pytest.mark.parametrize(("problem", "fields"), STRUCTURE, ids=str)
def test_the_code_is_what_the_configuration_says(problem: MatmulProblem, fields: dict[str, Any]) -> None:
    """Multiplications, commits, loads, stores, barriers and tensor memory, each as many as derived."""
    config = TuningConfig(**{"max_concurrent_steps": 3, **fields})
    assert config in LegalSpace(FAMILY, problem, SM_100)
    columns = FAMILY.config_columns(problem, SM_100, config)
    text = module_text(lowered(FAMILY, problem, config, SM_100))
    blocks, slots, steps = (int(columns[name]) for name in ("cluster_size", "acc_slots", "steps"))
    kind = {"float16": "f16", "bfloat16": "f16", "int8": "i8"}.get(problem.dtype, "f8f6f4")
    # An instruction is 32 bytes deep, and at most 256 columns wide over all blocks.
    instructions = (
        config.tile_k * columns["itemsize"] // 32 * max(columns["lane_groups"], config.tile_n // 256)
    )
    assert text.count(f"tcgen05.mma.cta_group::{blocks}.kind::{kind}") == slots * instructions
    assert text.count("tcgen05.mma.") == slots * instructions
    # Each step releases its stage, each tile completes its accumulator; both blocks are told.
    commit = "tcgen05.commit.mc.cg2" if config.collective else "tcgen05.commit.cg1"
    assert text.count(commit) == text.count("tcgen05.commit.") == 2 * slots
    # A stage's two halves tell the first block's barrier.
    halves, whole = "complete_tx::bytes.cta_group::2", "nvvm.cp.async.bulk.tensor.shared.cluster.global"
    assert (text.count(halves), text.count(whole)) == ((2, 0) if config.collective else (0, 2))
    assert text.count("nvvm.cp.async.bulk.tensor.global.shared") == slots * columns["epi_tiles"]
    assert second_operands(text, "tcgen05.alloc") == Counter({int(columns["tmem_columns"]): 1})
    # A barrier that orders the tensor core counts one thread, of each block that arrives; others count 128.
    # Loads must not tell one that does, and multiplications must.
    loads, arrivals = (2, 1) if config.barriers == "per_operand" else (1, 2)
    ordering = Counter({1: steps + slots}) + Counter({blocks: slots})
    assert second_operands(text, "mbarrier.init") == ordering + Counter({128 * arrivals: loads * steps})
    assert 8 * text.count("mbarrier.init") == columns["barrier_bytes"]


def second_operands(text: str, instruction: str) -> Counter[int]:
    """The constants an instruction of a lowered kernel is given as its second operand."""
    constants: dict[str, int] = {}
    found: Counter[int] = Counter()
    for line in text.splitlines():
        if constant := re.search(r"(%\w+) = .*constant.*value = (\d+) : i32", line):
            constants[constant[1]] = int(constant[2])
        elif f"{instruction}." in line or f'{instruction}"' in line:
            operands = re.search(r"\((%\w+), (%\w+)", line)
            assert operands is not None
            found[constants[operands[2]]] += 1
    return found


COMPILED: list[tuple[MatmulProblem, dict[str, Any]]] = [
    (problem_of(512, 1024, 512, BF16), {}),
    (problem_of(512, 1024, 512, F16, NK, TO_F32), {"collective": 1, "barriers": "per_operand"}),
    (problem_of(512, 1024, 512, MIXED), {"tile_m": 64, "tile_k": 128}),
    (problem_of(512, 1024, 512, INT8, NK), {"collective": 1, "tile_m": 64, "epi_tile_n": 256}),
]


def compiled(farm: Farm, problem: MatmulProblem, config: TuningConfig, target: Target) -> dict[str, Any]:
    task = CompileTask(
        family=FAMILY.address,
        problem=problem.to_dict(),
        config=dataclasses.asdict(config),
        target=target.to_dict(),
    )
    info: dict[str, Any] = farm.submit(compile_program, task.to_dict()).result(timeout=120)[0]
    return info


@pytest.mark.deviceless
@pytest.mark.parametrize("arch", ARCHS)
def test_ptxas_takes_what_is_legal(arch: str) -> None:
    """Every type on every architecture; integers on sm_103, which the rules refuse, ptxas refuses too."""
    target = reference_target(arch)
    # One process compiles for one architecture.
    farm = Farm(1)
    try:
        for problem, fields in COMPILED:
            config = TuningConfig(**{"max_concurrent_steps": 3, **fields})
            info = compiled(farm, problem, config, target)
            if FAMILY.supports(problem, target):
                assert (arch, problem.dtype) == ("sm_103", "int8")
                assert (info["rung"], info["stage"]) == ("lowered", "compile")
                assert "kind::i8" in info["reason"]
                continue
            assert config in LegalSpace(FAMILY, problem, target)
            assert (info["rung"], info["reason"]) == ("compiled", "")
            # Two warpgroups may have 255 registers a thread.
            assert 0 < info["registers"] <= 255
            assert info["spill_bytes"] == 0
    finally:
        farm.shutdown()


@pytest.mark.deviceless
def test_ptxas_refuses_another_architecture() -> None:
    """Consumer Blackwell has no tensor memory: the kernel lowers, and only ptxas knows better."""
    target = reference_target("sm_120")
    farm = Farm(1)
    try:
        config = TuningConfig(tile_n=64, epi_tile_n=32, max_concurrent_steps=2)
        info = compiled(farm, COMPILED[0][0], config, target)
    finally:
        farm.shutdown()
    assert (info["rung"], info["stage"]) == ("lowered", "compile")
    assert "tcgen05" in info["reason"]
    assert FAMILY.supports(COMPILED[0][0], target).endswith("not sm_120")

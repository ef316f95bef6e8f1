"""The mma.sync matmul through JAX's real lowering, ptxas and, as far as it goes, JAX's interpreter.

The interpreter has no `mma` and no cp.async. It runs the kernel here with a plain product in the place of
the one and a plain assignment in that of the other: indices, slots, barriers and numbers are the kernel's
own, and races are looked for. What may be in flight at each cp.async wait is read off the lowered module.
"""

import dataclasses
import random
import re
from typing import Any

import jax
import jax.experimental.pallas.mosaic_gpu as plgpu
import jax.numpy as jnp
import numpy as np
import pytest
from jax._src.pallas.mosaic_gpu.interpret import gpu_callbacks  # no public way to ask for races

from tests.kernels.lowering import RaceError
from tests.search_spaces.spaces import broken, space_of
from tests.search_spaces.test_matmul_mma import WITNESSES
from tuner.compiling import CompileTask, compile_program
from tuner.farm import Farm
from tuner.kernels import matmul_mma
from tuner.lowering import lowering_for
from tuner.proof.verdict import module_text
from tuner.search_spaces.architecture import Target, reference_target
from tuner.search_spaces.matmul_mma import FAMILY, RULES, TuningConfig
from tuner.search_spaces.problem import MatmulProblem

SM_80, SM_89, SM_120 = (reference_target(arch) for arch in ("sm_80", "sm_89", "sm_120"))
each_target = pytest.mark.parametrize("target", [SM_80, SM_89, SM_120], ids=lambda t: t.arch)


def problems(target: Target) -> tuple[MatmulProblem, ...]:
    """One problem a type and layout, small enough that most tiles are."""
    takes = [
        {"dtype": "bfloat16"},
        {"dtype": "float16", "rhs": "nk", "out_dtype": "float32"},
        {"dtype": "int8", "rhs": "nk", "out_dtype": "int32"},
        {"dtype": "float8_e4m3fn", "rhs": "nk", "out_dtype": "bfloat16"},
        {"dtype": "float8_e5m2", "rhs": "nk", "out_dtype": "float16"},
    ]
    found = (MatmulProblem(m=96, n=320, k=192, **fields) for fields in takes)
    # What sm_89 adds to sm_80 is all that is of interest there.
    return tuple(
        problem
        for problem in found
        if not FAMILY.supports(problem, target) and (target is not SM_89 or FAMILY.supports(problem, SM_80))
    )


def specs(problem: MatmulProblem) -> tuple[jax.ShapeDtypeStruct, ...]:
    rhs = (problem.k, problem.n) if problem.rhs == "kn" else (problem.n, problem.k)
    shapes = ((problem.m, problem.k), rhs)
    return tuple(jax.ShapeDtypeStruct(shape, jnp.dtype(problem.dtype)) for shape in shapes)


def lowered(problem: MatmulProblem, config: TuningConfig, target: Target) -> Any:
    with lowering_for(target):
        kernel = matmul_mma.build(problem, config, target)
        return jax.jit(kernel).trace(*specs(problem)).lower(lowering_platforms=("cuda",))


@each_target
def test_legal_configurations_lower(target: Target) -> None:
    rng = np.random.default_rng(11)
    for problem in problems(target):
        space = space_of(problem, target)
        lowered(problem, space.config(space.draw(rng)), target)


NOTICED = {rule.id for rule in RULES if rule.noticed == "lowered" and rule.kind == "illegal"}


@pytest.mark.parametrize(
    ("rule", "problem", "arch", "fields"), [row for row in WITNESSES if row[0] in NOTICED], ids=str
)
def test_what_lowering_would_notice_does_not_lower(
    rule: str, problem: MatmulProblem, arch: str, fields: dict[str, Any]
) -> None:
    del rule
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever JAX raises
        lowered(problem, TuningConfig(**fields), reference_target(arch))


@each_target
def test_one_step_from_legal_jax_agrees(target: Target) -> None:
    """Tiles one step off a legal one lower exactly where no rule that lowering would notice is broken."""
    drawn, rng = random.Random(3), np.random.default_rng(3)
    for problem in problems(target):
        space = space_of(problem, target)
        for _ in range(2):
            config = space.config(space.draw(rng))
            name = drawn.choice(("tile_m", "tile_n", "tile_k"))
            step = drawn.choice((-16, -8, -4, 8, 16, 24))
            config = dataclasses.replace(config, **{name: max(getattr(config, name) + step, 4)})
            refused = NOTICED & set(broken(space, config))
            try:
                lowered(problem, config, target)
            except Exception as error:  # noqa: BLE001 - JAX refuses with whatever it likes
                said = repr(error)
            else:
                said = ""
            assert bool(said) == bool(refused), (config, refused, said)


@each_target
def test_shared_memory_is_what_jax_counts(target: Target) -> None:
    none = dataclasses.replace(target, smem_optin_bytes=1)
    for problem in problems(target):
        for config in space_of(problem, target).sample(2, seed=3):
            with pytest.raises(ValueError, match="smem_bytes=") as caught:
                lowered(problem, config, none)
            found = re.search(r"smem_bytes=(\d+)", str(caught.value))
            assert found is not None
            assert int(found[1]) == FAMILY.config_columns(problem, target, config)["smem_bytes"], config


TWINS = [
    ("canonical.grid_tile_width", {"grid_tile_width": 9}, {"grid_tile_width": 5}),
    ("canonical.grid_minor_dim", {"tile_n": 320, "grid_minor_dim": "M"}, {"grid_minor_dim": "N"}),
    (
        "canonical.max_concurrent_steps",
        {"tile_k": 96, "max_concurrent_steps": 3},
        {"max_concurrent_steps": 2, "delay_release": 0},
    ),
    (
        "canonical.max_concurrent_steps",
        {"tile_k": 192, "max_concurrent_steps": 9, "delay_release": 0},
        {"max_concurrent_steps": 1},
    ),
]


@pytest.mark.parametrize(("rule", "twin", "canonical"), TWINS, ids=str)
@pytest.mark.parametrize("target", [SM_80, SM_120], ids=lambda t: t.arch)
def test_twins_are_one_program(
    target: Target, rule: str, twin: dict[str, Any], canonical: dict[str, Any]
) -> None:
    problem = problems(target)[0]
    barriers = "shared" if target.architecture.has_tma else "none"
    removed = TuningConfig(**{"tile_m": 32, "tile_n": 64, "tile_k": 32, "barriers": barriers, **twin})
    kept = dataclasses.replace(removed, **canonical)
    space = space_of(problem, target)
    assert broken(space, removed) == (rule,)
    assert kept in space
    one, other = (module_text(lowered(problem, config, target)) for config in (removed, kept))
    assert one == other


def test_neighbours_are_other_programs() -> None:
    """No program is listed twice: each axis changes the code."""
    problem = MatmulProblem(m=384, n=320, k=192, dtype="bfloat16")
    space = space_of(problem, SM_120)
    config = TuningConfig(tile_n=32, tile_k=32, barriers="shared", grid_tile_width=2)
    near = space.neighbours(config)
    assert {f for n in near for f, v in dataclasses.asdict(n).items() if v != getattr(config, f)} == set(
        space.axes
    )
    texts = {module_text(lowered(problem, c, SM_120)) for c in (config, *near)}
    assert len(texts) == len(near) + 1


@pytest.mark.parametrize(
    ("steps", "delay", "wg_dimension", "waits"),
    [
        # Two copies a stage, and the last steps drain.
        (3, 1, None, [2, 2, 0]),
        (3, 0, None, [4, 4, 2, 0]),
        (1, 0, None, [0, 0]),
        # As deep as there are steps: the loop is empty.
        (6, 0, None, [10, 8, 6, 4, 2, 0]),
        # Each of two warpgroups waits for the one operand it loads.
        (3, 1, "M", [1, 1, 0]),
        (4, 0, "N", [3, 3, 2, 1, 0]),
    ],
)
def test_what_stays_in_flight_at_each_cp_async_wait(
    steps: int, delay: int, wg_dimension: str | None, waits: list[int]
) -> None:
    """The loop's wait, then those of the steps after the last refill."""
    problem = MatmulProblem(m=64, n=64, k=96, dtype="bfloat16")
    config = TuningConfig(
        tile_m=32,
        tile_n=32,
        tile_k=16,
        max_concurrent_steps=steps,
        delay_release=delay,
        wg_dimension=wg_dimension,
    )
    text = module_text(lowered(problem, config, SM_80))
    found = [int(n) for n in re.findall(r"cp\.async\.wait\.group\"\(\) \{n = (\d+)", text)]
    assert found == waits


@pytest.fixture
def interpretable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain arithmetic and plain copies where the interpreter has neither `mma` nor cp.async."""
    load = plgpu.copy_gmem_to_smem

    def copy(source: Any, destination: Any, barrier: Any, *, oob_mode: Any) -> None:
        assert oob_mode == plgpu.OOBFillMode.PROMISE_IN_BOUNDS
        if barrier is None:
            destination[...] = source[...]
        else:
            load(source, destination, barrier, oob_mode=oob_mode)

    def product(acc: jax.Array, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return acc + jnp.matmul(lhs, rhs, preferred_element_type=acc.dtype)

    monkeypatch.setattr(plgpu, "mma", product)
    monkeypatch.setattr(plgpu, "copy_gmem_to_smem", copy)
    monkeypatch.setattr(plgpu, "wait_gmem_to_smem", lambda n: None)
    monkeypatch.setattr(plgpu, "load", lambda ref, layout: ref[...])


def interpreted(
    problem: MatmulProblem, config: TuningConfig, target: Target
) -> tuple[tuple[jax.Array, ...], jax.Array]:
    keys = jax.random.split(jax.random.key(0))
    # Small integers: every type holds them, and every sum of them is exact.
    operands = tuple(
        jax.random.randint(key, spec.shape, -2, 3).astype(spec.dtype)
        for key, spec in zip(keys, specs(problem), strict=True)
    )
    try:
        with (
            lowering_for(target),
            plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams(detect_races=True)),
        ):
            out = jax.block_until_ready(matmul_mma.build(problem, config, target)(*operands))
        if gpu_callbacks.get_races().races_found:
            raise RaceError
    finally:
        gpu_callbacks.reset_gpu_interpret_mode_state()
    return operands, out


INT8 = {"dtype": "int8", "rhs": "nk", "out_dtype": "int32"}
FP8 = {"dtype": "float8_e4m3fn", "rhs": "nk", "out_dtype": "float16"}
# Each row: architecture, m, n, k, the problem's other fields, the configuration's.
CASES: list[tuple[Target, int, int, int, dict[str, str], dict[str, Any]]] = [
    (SM_120, 64, 32, 80, {"dtype": "bfloat16"}, {"barriers": "shared"}),
    (SM_120, 32, 32, 64, {"dtype": "float16", "rhs": "nk"}, {"barriers": "per_operand", "delay_release": 0}),
    (SM_120, 64, 32, 160, INT8, {"barriers": "shared", "wg_dimension": "M", "epilogue": "smem"}),
    (
        SM_120,
        32,
        64,
        128,
        FP8,
        {"barriers": "per_operand", "wg_dimension": "N", "delay_release": 0, "epilogue": "smem"},
    ),
    # Nothing is refilled; then a ring of one.
    (SM_120, 32, 32, 48, {"dtype": "bfloat16"}, {"barriers": "shared", "delay_release": 0}),
    (
        SM_120,
        32,
        32,
        48,
        {"dtype": "bfloat16"},
        {"barriers": "shared", "max_concurrent_steps": 1, "delay_release": 0},
    ),
    # A raster whose last band is narrower than the others.
    (
        SM_120,
        64,
        96,
        16,
        {"dtype": "bfloat16"},
        {"barriers": "shared", "grid_tile_width": 2, "max_concurrent_steps": 1, "delay_release": 0},
    ),
    (SM_80, 32, 64, 80, {"dtype": "bfloat16", "out_dtype": "float32"}, {"epilogue": "smem"}),
    (SM_80, 64, 32, 160, INT8, {"wg_dimension": "M"}),
    (SM_80, 32, 64, 80, {"dtype": "float16"}, {"wg_dimension": "N", "delay_release": 0, "epilogue": "smem"}),
]


@pytest.mark.parametrize(("target", "m", "n", "k", "problem_fields", "config_fields"), CASES)
@pytest.mark.usefixtures("interpretable")
def test_matmul(
    target: Target,
    m: int,
    n: int,
    k: int,
    problem_fields: dict[str, str],
    config_fields: dict[str, Any],
) -> None:
    problem = MatmulProblem.from_dict({"m": m, "n": n, "k": k, **problem_fields})
    depth = 32 // jnp.dtype(problem.dtype).itemsize
    config = TuningConfig(**{"tile_m": 32, "tile_n": 32, "tile_k": depth, **config_fields})
    assert broken(space_of(problem, target), config) == ()
    (lhs, rhs), out = interpreted(problem, config, target)
    assert out.dtype == problem.out_dtype
    lhs, rhs = np.asarray(lhs, np.float32), np.asarray(rhs, np.float32)
    np.testing.assert_array_equal(np.asarray(out, np.float32), lhs @ (rhs if problem.rhs == "kn" else rhs.T))


@pytest.mark.usefixtures("interpretable")
@pytest.mark.parametrize(
    ("forgotten", "target", "fields"),
    [
        ("commit_smem", SM_120, {"barriers": "shared"}),
        ("commit_smem", SM_120, {"barriers": "shared", "delay_release": 0}),
        # Two warpgroups that do not meet.
        ("barrier_wait", SM_80, {"wg_dimension": "M"}),
        ("barrier_wait", SM_80, {"wg_dimension": "M", "delay_release": 0}),
    ],
)
def test_a_forgotten_synchronisation_is_seen(
    forgotten: str, target: Target, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter has teeth: without this, the absence of races above would say nothing."""
    monkeypatch.setattr(plgpu, forgotten, lambda *arguments: None)
    if forgotten == "barrier_wait":
        monkeypatch.setattr(plgpu, "barrier_arrive", lambda *arguments: None)
    problem = MatmulProblem(m=64 if "wg_dimension" in fields else 32, n=32, k=64, dtype="bfloat16")
    config = TuningConfig(**{"tile_m": 32, "tile_n": 32, "tile_k": 16, **fields})
    with pytest.raises(RaceError):
        interpreted(problem, config, target)


COMPILED: list[tuple[str, dict[str, str], dict[str, Any]]] = [
    ("sm_80", {"dtype": "bfloat16"}, {"wg_dimension": "M", "epilogue": "smem"}),
    ("sm_80", {"dtype": "float16", "rhs": "nk", "out_dtype": "float32"}, {"delay_release": 0}),
    ("sm_89", {"dtype": "float8_e4m3fn", "rhs": "nk", "out_dtype": "bfloat16"}, {"wg_dimension": "N"}),
    ("sm_120", {"dtype": "bfloat16"}, {"wg_dimension": "M", "barriers": "shared", "epilogue": "smem"}),
    (
        "sm_120",
        {"dtype": "float8_e5m2", "rhs": "nk", "out_dtype": "float16"},
        {"barriers": "per_operand", "delay_release": 0},
    ),
]


@pytest.mark.deviceless
@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_120"])
def test_legal_configurations_compile(arch: str) -> None:
    # One process compiles for one architecture.
    farm = Farm(1)
    try:
        for _, problem_fields, fields in (row for row in COMPILED if row[0] == arch):
            problem = MatmulProblem.from_dict({"m": 512, "n": 512, "k": 512, **problem_fields})
            target = reference_target(arch)
            config = TuningConfig(**fields)
            assert config in space_of(problem, target)
            task = CompileTask(
                family=FAMILY.address,
                problem=problem.to_dict(),
                config=dataclasses.asdict(config),
                target=target.to_dict(),
            )
            info, payload = farm.submit(compile_program, task.to_dict()).result(timeout=120)
            assert (info["rung"], info["stage"], info["reason"]) == ("compiled", "", "")
            assert info["spill_bytes"] == 0
            assert payload
    finally:
        farm.shutdown()

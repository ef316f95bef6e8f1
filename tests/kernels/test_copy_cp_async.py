"""The copy by cp.async against JAX's lowering, and its PTX run on a machine of our own.

JAX's interpreter has no copy without a barrier, so no test here interprets: what the kernel does is seen in
what it lowers and compiles to.
"""

import dataclasses
import functools
import itertools
import random
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from tests.kernels import ptx
from tests.kernels.lowering import interpreted, lowered
from tests.search_spaces.spaces import broken, space_of
from tuner.compiling import CompileTask, compile_program
from tuner.farm import Farm
from tuner.kernels import copy_cp_async as kernel
from tuner.lowering import lowering_for
from tuner.proof.verdict import module_text
from tuner.search_spaces.architecture import Target, reference_target
from tuner.search_spaces.copy_cp_async import FAMILY, RULES, TuningConfig, plan
from tuner.search_spaces.problem import DTYPE_BITS, CopyProblem
from tuner.search_spaces.rule import violations

ARCHS = ("sm_80", "sm_86", "sm_87", "sm_89")
# Few blocks, so that a small problem keeps each of them busy for several tiles.
FOUR_SMS = dataclasses.replace(reference_target("sm_80"), sm_count=4)
COPY = CopyProblem(m=192, n=96, dtype="float32")
PROBLEMS = (
    COPY,
    CopyProblem(m=640, n=96, dtype="uint8"),
    CopyProblem(m=48, n=1280, dtype="bfloat16"),
    CopyProblem(m=7, n=3584, dtype="int8"),
    CopyProblem(m=64, n=512, dtype="float4_e2m1fn"),
)
each_problem = pytest.mark.parametrize("problem", PROBLEMS, ids=str)


@pytest.mark.parametrize("arch", ARCHS)
def test_legal_configurations_lower(arch: str) -> None:
    target = reference_target(arch)
    for seed, problem in enumerate(PROBLEMS):
        for config in space_of(problem, target).sample(1, seed=seed):
            lowered(FAMILY, problem, config, target)


EARLY = {rule.id for rule in RULES if rule.noticed == "lowered" and rule.kind == "illegal"}
# Values beyond those of the axes, and beside the steps between them.
BEYOND: dict[str, tuple[int, ...]] = {
    "tile_m": (3, 12, 20, 40, 96, 384),
    "tile_n": (3, 10, 36, 68, 192),
    "swizzle_bytes": (0, 8, 24, 48, 256),
    "max_concurrent_steps": (0, 30, 66),
    "delay_release": (2, 5),
    "blocks_per_sm": (0,),
}


def one_step_from_legal(problem: CopyProblem, seed: int) -> Iterator[tuple[TuningConfig, tuple[str, ...]]]:
    """Illegal configurations, each one field away from a legal one, with the rules they break."""
    space, drawn = space_of(problem, FOUR_SMS), random.Random(seed)
    while True:
        name = drawn.choice(list(BEYOND))
        values = BEYOND[name] + tuple(v for v in space.axes[name].values if isinstance(v, int))
        legal = space.config(drawn.randrange(len(space)))
        config = dataclasses.replace(legal, **{name: drawn.choice(values)})
        if rules := broken(space, config):
            yield config, rules


@each_problem
def test_what_lowering_would_notice_does_not_lower(problem: CopyProblem) -> None:
    """A rule with `noticed="lowered"` fires on nothing that JAX takes."""
    # At most two configurations of a kind, so that common rules do not crowd out the rare ones.
    seen: Counter[tuple[str, ...]] = Counter()
    for config, rules in one_step_from_legal(problem, seed=3):
        if not EARLY & set(rules) or seen[rules] >= 2:
            continue
        seen[rules] += 1
        try:
            lowered(FAMILY, problem, config, FOUR_SMS)
        except Exception:  # noqa: BLE001 - JAX refuses with whatever it likes
            pass
        else:
            pytest.fail(f"{sorted(EARLY & set(rules))} refuse what JAX lowers: {config}")
        if seen.total() == 8:
            break


def test_every_rule_that_lowering_would_notice_is_tried() -> None:
    reached = set()
    for problem in PROBLEMS:
        reached |= {
            rule
            for _, (_, rules) in zip(range(400), one_step_from_legal(problem, 3), strict=False)
            for rule in rules
        }
    assert reached >= EARLY


NEVER = [
    ("copy.contiguous", {"layout": "rows", "tile_n": 32}),
    ("copy.m_divisible", {"tile_m": 128}),
    ("copy.n_divisible", {"tile_n": 64}),
]


@pytest.mark.parametrize(("rule", "fields"), NEVER, ids=str)
def test_what_nobody_notices_lowers(rule: str, fields: dict[str, Any]) -> None:
    config = TuningConfig(**{"tile_n": 32, "max_concurrent_steps": 1, "blocks_per_sm": 1, **fields})
    found = violations(RULES, FAMILY.config_columns(COPY, FOUR_SMS, config))
    assert [v.rule for v in found] == [rule]
    lowered(FAMILY, COPY, config, FOUR_SMS)


@pytest.mark.parametrize(
    "dtype", [d for d in DTYPE_BITS if not FAMILY.supports(CopyProblem(m=64, n=512, dtype=d), FOUR_SMS)]
)
@pytest.mark.parametrize("layout", ["rows", "tiled"])
def test_every_type_it_takes_lowers(dtype: str, layout: str) -> None:
    problem = CopyProblem(m=64, n=512, dtype=dtype)
    config = TuningConfig(
        layout=layout, tile_m=32, tile_n=512, swizzle_bytes=32, max_concurrent_steps=1, blocks_per_sm=1
    )
    assert not violations(RULES, FAMILY.config_columns(problem, FOUR_SMS, config))
    with lowering_for(FOUR_SMS):
        copy = jax.jit(kernel.build(problem, config, FOUR_SMS))
        traced = copy.trace(jax.ShapeDtypeStruct((64, 512), dtype))
        assert (traced.out_info.shape, traced.out_info.dtype) == ((64, 512), dtype)
        traced.lower(lowering_platforms=("cuda",))


def test_a_bool_would_be_copied_as_one_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why supports() refuses it: JAX lowers it, and moves an eighth of the bytes."""
    problem = CopyProblem(m=64, n=1024, dtype="uint8")
    config = TuningConfig(layout="rows", tile_m=8, tile_n=1024, max_concurrent_steps=1)
    honest = _transfers(module_text(lowered(FAMILY, problem, config, FOUR_SMS)))
    as_bool = dataclasses.replace(plan(problem, config, FOUR_SMS), dtype="bool")
    monkeypatch.setattr(kernel.space, "plan", lambda *_: as_bool)
    monkeypatch.setattr(kernel, "to_words", lambda x, *_: x != 0)
    monkeypatch.setattr(kernel, "from_words", lambda words, x: words.astype(x.dtype))
    bits = _transfers(module_text(lowered(FAMILY, problem, config, FOUR_SMS)))
    assert sum(bits) * 8 == sum(honest)


def _transfers(text: str) -> list[int]:
    return [int(size) for size in re.findall(r"cp\.async\.shared\.global.* size = (\d+)", text)]


@each_problem
def test_what_a_thread_moves_is_what_the_rules_say(problem: CopyProblem) -> None:
    for config in space_of(problem, FOUR_SMS).sample(2, seed=4):
        columns = FAMILY.config_columns(problem, FOUR_SMS, config)
        text = module_text(lowered(FAMILY, problem, config, FOUR_SMS))
        transfer_bytes, tile_bytes = int(columns["transfer_bytes"]), int(columns["tile_bytes"])
        sizes, groups = _transfers(text), text.count("cp.async.commit.group")
        assert set(sizes) == {transfer_bytes}
        # A loop that fills the ring, one that refills it, and as many waits behind as loads in flight.
        assert groups == 2
        assert sum(sizes) * 128 == groups * tile_bytes
        depth = plan(problem, config, FOUR_SMS).depth
        waits = [int(n) for n in re.findall(r"cp\.async\.wait\.group.*\bn = (\d+)", text)]
        assert waits == [depth - 1, *range(depth - 1, -1, -1)]
        assert "mbarrier" not in text


@each_problem
def test_shared_memory_is_what_jax_counts(problem: CopyProblem) -> None:
    none = dataclasses.replace(FOUR_SMS, smem_optin_bytes=1)
    for config in space_of(problem, FOUR_SMS).sample(1, seed=3):
        smem_bytes = FAMILY.config_columns(problem, FOUR_SMS, config)["smem_bytes"]
        with pytest.raises(ValueError, match=f"smem_bytes={smem_bytes} "):
            lowered(FAMILY, problem, config, none)


BIG = CopyProblem(m=1536, n=192, dtype="float32")


@pytest.mark.parametrize(
    ("twin", "canonical"),
    [
        ({"layout": "rows", "tile_n": 192, "swizzle_bytes": 32}, {"swizzle_bytes": 128}),
        ({"tile_m": 96, "blocks_per_sm": 4, "max_concurrent_steps": 6}, {"max_concurrent_steps": 3}),
        ({"max_concurrent_steps": 6, "delay_release": 3}, {"max_concurrent_steps": 4, "delay_release": 1}),
        (
            {"tile_m": 96, "blocks_per_sm": 4, "max_concurrent_steps": 4, "delay_release": 1},
            {"max_concurrent_steps": 3, "delay_release": 0},
        ),
        (
            {"grid_schedule": "hardware", "blocks_per_sm": 1, "max_concurrent_steps": 3, "delay_release": 1},
            {"delay_release": 0},
        ),
        ({"grid_schedule": "hardware", "blocks_per_sm": 5}, {"blocks_per_sm": 1}),
        ({"tile_n": 192, "max_concurrent_steps": 2, "grid_minor_dim": "M"}, {"grid_minor_dim": "N"}),
    ],
    ids=str,
)
def test_twins_are_one_program(twin: dict[str, Any], canonical: dict[str, Any]) -> None:
    removed, space = TuningConfig(**twin), space_of(BIG, FOUR_SMS)
    kept = dataclasses.replace(removed, **canonical)
    assert broken(space, removed)
    assert all(rule.startswith("canonical.") for rule in broken(space, removed))
    assert kept in space
    one, other = (module_text(lowered(FAMILY, BIG, config, FOUR_SMS)) for config in (removed, kept))
    assert one == other


def test_neighbours_are_other_programs() -> None:
    space = space_of(BIG, FOUR_SMS)
    config = TuningConfig(max_concurrent_steps=3)
    texts = [module_text(lowered(FAMILY, BIG, c, FOUR_SMS)) for c in (config, *space.neighbours(config)[:12])]
    assert len(set(texts)) == len(texts) >= 8


def test_the_interpreter_does_not_run_it() -> None:
    """When it does one day, test_every_byte_arrives has a better way."""
    with pytest.raises(NotImplementedError, match="without a barrier"):
        interpreted(FAMILY, COPY, TuningConfig(tile_n=32), FOUR_SMS)


ONE = {"blocks_per_sm": 1, "max_concurrent_steps": 2}
HARDWARE = {"grid_schedule": "hardware", "blocks_per_sm": 1}
# Each row: m, n, dtype, configuration. Blocks have unequal numbers of tiles, some fewer than slots.
RUN: list[tuple[int, int, str, dict[str, Any]]] = [
    (192, 96, "float32", {"tile_n": 32, "max_concurrent_steps": 2}),
    (192, 96, "float32", {"tile_n": 32, **ONE, "max_concurrent_steps": 3, "delay_release": 1}),
    (192, 96, "float32", {"tile_m": 16, "tile_n": 96, "swizzle_bytes": 64, "max_concurrent_steps": 1}),
    (80, 64, "bfloat16", {"tile_m": 16, "tile_n": 32, "swizzle_bytes": 32, **ONE, "grid_minor_dim": "M"}),
    (640, 96, "uint8", {"tile_n": 16, "swizzle_bytes": 16, "max_concurrent_steps": 5, "delay_release": 1}),
    (96, 192, "int8", {"tile_n": 64, "swizzle_bytes": 16, "max_concurrent_steps": 2, **HARDWARE}),
    (10, 512, "float8_e4m3b11fnuz", {"layout": "rows", "tile_m": 1, "tile_n": 512, **ONE}),
    (21, 128, "float32", {"layout": "rows", "tile_m": 3, "tile_n": 128, **HARDWARE}),
    (128, 128, "float4_e2m1fn", {"layout": "rows", "tile_m": 16, "tile_n": 128, **ONE}),
]
# Partial rows as `rows`: the transfers follow one another in global memory as in shared memory.
WRONG = TuningConfig(layout="rows", tile_m=32, tile_n=32, max_concurrent_steps=2)


@functools.cache
def programs() -> tuple[str, ...]:
    """PTX of every row of RUN, and of WRONG at the end; one process compiles them."""
    tasks = [(CopyProblem(m=m, n=n, dtype=dtype), TuningConfig(**fields)) for m, n, dtype, fields in RUN]
    return tuple(ptx.compiled(FAMILY, FOUR_SMS, [*tasks, (COPY, WRONG)]))


def arrived(program: str, problem: CopyProblem, config: TuningConfig) -> np.ndarray:
    """Which bytes of a copy are right once every block has run."""
    size = problem.m * problem.n * DTYPE_BITS[problem.dtype] // 8
    source = np.random.default_rng(0).integers(0, 256, size, dtype=np.uint8)
    target = ~source
    machine = ptx.Machine(program, source, target)
    for block in range(plan(problem, config, FOUR_SMS).grid):
        machine.run(block)
    return source == target


@pytest.mark.deviceless
@pytest.mark.parametrize("row", range(len(RUN)), ids=[" ".join(map(str, row)) for row in RUN])
def test_every_byte_arrives(row: int) -> None:
    m, n, dtype, fields = RUN[row]
    problem, config = CopyProblem(m=m, n=n, dtype=dtype), TuningConfig(**fields)
    assert broken(space_of(problem, FOUR_SMS), config) == ()
    assert arrived(programs()[row], problem, config).all()


@pytest.mark.deviceless
@pytest.mark.parametrize("row", range(len(RUN)), ids=[" ".join(map(str, row)) for row in RUN])
def test_barriers_stand_between_the_uses_of_a_slot(row: int) -> None:
    """Threads read what others loaded, and load over what others read: in lockstep that goes unseen."""
    uses = [kind for line in programs()[row].splitlines() if (kind := _use(line.strip()))]
    assert {"barrier", "wait", "read", "load"} == set(uses)
    assert not {("wait", "read"), ("read", "load")} & set(itertools.pairwise(uses))


def _use(line: str) -> str:
    """What an instruction has to do with a slot."""
    known = {"bar.sync": "barrier", "cp.async.wait": "wait", "cp.async.c": "load", "ld": "read"}
    kind = next((kind for start, kind in known.items() if line.startswith(start)), "")
    return kind if kind in ("barrier", "wait") or ".shared" in line.split(" ", maxsplit=1)[0] else ""


@pytest.mark.deviceless
def test_partial_rows_untiled_are_silently_wrong() -> None:
    """The witness of copy.contiguous: it lowers and compiles, and the offsets on both sides are the same."""
    assert broken(space_of(COPY, FOUR_SMS), WRONG) == ("copy.contiguous",)
    copies = re.findall(r"cp\.async\.ca\S* \[%rd\d+(?:\+(\d+))?\], \[%rd\d+(?:\+(\d+))?\], 8", programs()[-1])
    offsets = [int(to or 0) for to, _ in copies[:4]]
    assert offsets == [int(source or 0) for _, source in copies[:4]] == [0, 1024, 2048, 3072]
    right = arrived(programs()[-1], COPY, WRONG)
    assert 0 < right.mean() < 0.5


@pytest.mark.deviceless
def test_a_wait_too_few_is_seen() -> None:
    """The machine has teeth: without this, bytes that arrive would say nothing of the waits."""
    m, n, dtype, fields = RUN[0]
    early = re.sub(r"wait_group\s+0", "wait_group 1", programs()[0])
    assert early != programs()[0]
    assert not arrived(early, CopyProblem(m=m, n=n, dtype=dtype), TuningConfig(**fields)).all()


@pytest.fixture(scope="module")
def farm() -> Iterator[Farm]:
    found = Farm(1)
    yield found
    found.shutdown()


def _compiled(farm: Farm, problem: CopyProblem, config: TuningConfig, target: Target) -> dict[str, Any]:
    task = CompileTask(
        family=FAMILY.name,
        problem=problem.to_dict(),
        config=dataclasses.asdict(config),
        target=target.to_dict(),
    )
    return farm.submit(compile_program, task.to_dict()).result(timeout=120)[0]


@pytest.mark.deviceless
def test_the_view_as_integers_costs_nothing(farm: Farm) -> None:
    """XLA compiles both bitcasts to nothing: no copy beside the kernel, of whatever type."""
    for dtype in ("float32", "bfloat16", "float8_e4m3b11fnuz", "float4_e2m1fn"):
        problem = CopyProblem(m=512, n=1024, dtype=dtype)
        target = reference_target("sm_89")
        info = _compiled(farm, problem, FAMILY.default_config(problem, target), target)
        assert (info["rung"], info["reason"]) == ("compiled", "")
        assert 0 < info["registers"] <= 255
        assert info["spill_bytes"] == 0

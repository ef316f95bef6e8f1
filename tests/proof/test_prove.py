"""`tuner prove` holds where rules and compilers agree, and sees every kind of mistake."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.proof import mistaken
from tuner.farm import Farm
from tuner.proof.corpus import read_corpus, write_corpus
from tuner.proof.points import draw_points
from tuner.proof.prove import Proof, probed, provable, prove
from tuner.proof.verdict import raised_by
from tuner.search_spaces import copy, matmul_hopper
from tuner.search_spaces.architecture import ARCHITECTURES, reference_target
from tuner.search_spaces.errors import UnsupportedError
from tuner.search_spaces.family import KernelFamily, families
from tuner.search_spaces.space import LegalSpace

SM_90 = reference_target("sm_90")


@pytest.fixture(autouse=True)
def _small_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough for the few points that are kept here."""
    monkeypatch.setattr("tuner.proof.points._POOL", 6_000)
    monkeypatch.setattr("tuner.proof.points._BASES", 400)


@pytest.fixture(scope="module")
def farm() -> Iterator[Farm]:
    with Farm(2) as found:
        yield found


def proof(family: KernelFamily, farm: Farm, arch: str = "sm_90", samples: int = 60) -> Proof:
    return prove(family, reference_target(arch), farm, samples=samples, seed=0)


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("copy_cp_async", "sm_86"),
        ("copy_tma", "sm_121"),
        ("matmul_mma", "sm_89"),
        ("matmul_mma", "sm_120"),
        ("matmul_hopper", "sm_90"),
        ("matmul_blackwell", "sm_103"),
    ],
)
def test_rules_and_jax_agree(farm: Farm, name: str, arch: str) -> None:
    """Few points each; `make prove` takes thousands, and ptxas with them."""
    found = proof(families()[name], farm, arch, samples=66)
    assert [d.what for d in found.disagreements] == []
    assert found.points["legal"] >= 22
    assert found.points["near"] >= 15
    assert found.points["wide"] >= 15


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_architecture_has_kernels_to_prove(arch: str) -> None:
    kernels = {family.kernel for family in provable(reference_target(arch))}
    assert kernels == {"copy", "matmul"}


def test_what_cannot_be_proved_is_an_error() -> None:
    with pytest.raises(UnsupportedError, match="no kernel 'matmul_hopper' runs on sm_80"):
        provable(reference_target("sm_80"), "matmul_hopper")


@pytest.mark.parametrize(
    ("family", "told"), [case[1:] for case in mistaken.MISTAKES], ids=[case[0] for case in mistaken.MISTAKES]
)
def test_a_mistake_is_seen(farm: Farm, family: KernelFamily, told: str) -> None:
    if family is mistaken.RAISING:
        family = dataclasses.replace(family, address="tests.proof.mistaken:RAISING")
    found = proof(family, farm, samples=120)
    assert not found.holds
    shown = [d for d in found.disagreements if d.what.startswith(told)]
    assert shown, [d.what for d in found.disagreements]
    # A small reproducer: hardly a field that the default does not have.
    default = family.default_config(shown[0].point.space.problem, SM_90)
    mine, usual = dataclasses.asdict(shown[0].point.config), dataclasses.asdict(default)
    assert sum(mine[name] != usual[name] for name in mine) <= 4


def test_a_rule_that_decides_nothing_is_told(farm: Farm) -> None:
    found = proof(mistaken.undecidable(), farm, samples=120)
    assert "copy.never_broken" in found.undecided
    assert not found.holds


@pytest.mark.parametrize("family", [copy.FAMILY, matmul_hopper.FAMILY], ids=lambda family: family.name)
def test_points_go_beyond_the_space(family: KernelFamily) -> None:
    space = probed(family, SM_90)[0]
    points = draw_points(space, 300, np.random.default_rng(0))
    assert points == draw_points(space, 300, np.random.default_rng(0))
    configs = [point.config for point in points]
    assert len(set(configs)) == len(configs)
    assert sum(point.origin == "legal" for point in points) >= len(points) // 4
    for name, axis in space.axes.items():
        if isinstance(axis.values[-1], int):
            values = {getattr(config, name) for config in configs}
            assert max(values) > axis.values[-1]
            assert max(values) <= 2 * axis.values[-1]
            assert values - set(axis.values), name


def test_near_points_are_one_step_from_a_legal_one() -> None:
    space = probed(copy.FAMILY, SM_90)[0]
    points = [p for p in draw_points(space, 120, np.random.default_rng(1)) if p.origin == "near"]
    assert points
    for point in points:
        repair = space.explain(point.config).repair
        if point.broken:
            mine, legal = dataclasses.asdict(point.config), dataclasses.asdict(repair)
            assert sum(mine[name] != legal[name] for name in mine) <= 2


def test_a_space_without_a_legal_configuration_has_points_too() -> None:
    problem = dataclasses.replace(copy.FAMILY.probes[0], n=511)
    space = LegalSpace(copy.FAMILY, problem, SM_90)
    assert len(space) == 0
    points = draw_points(space, 60, np.random.default_rng(0))
    assert len(points) >= 30
    assert not any(point.legal for point in points)


def test_verdicts_on_file(farm: Farm, tmp_path: Path) -> None:
    found = proof(copy.FAMILY, farm, samples=30)
    write_corpus(str(tmp_path / "one"), [found])
    write_corpus(str(tmp_path / "two"), [found])
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    verdicts = read_corpus(tmp_path / "one")
    assert sum(len(v.configs) for v in verdicts) == len(found.judged)
    for read in verdicts:
        space = read.space()
        for fields, legal, canonical in zip(read.configs, read.legal, read.canonical, strict=True):
            config = space.family.config(fields)
            assert legal == (not space.broken(config))
            assert (legal and canonical) == (config in space)


def _raise_here() -> None:
    raise ValueError("ours")


def _raise_in_jax() -> None:
    import jax.numpy as jnp

    jnp.zeros((2, 3)) @ jnp.zeros((2, 3))


@pytest.mark.parametrize(("function", "who"), [(_raise_here, "kernel"), (_raise_in_jax, "jax")])
def test_who_refused(function: Callable[[], None], who: str) -> None:
    import jax

    filtering: Any = jax.config.jax_traceback_filtering  # type: ignore[attr-defined]
    jax.config.update("jax_traceback_filtering", "off")
    try:
        with pytest.raises((ValueError, TypeError)) as caught:
            function()
    finally:
        jax.config.update("jax_traceback_filtering", filtering)
    assert raised_by(caught.value) == who

"""The recorded verdicts tell every rule from its absence."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from tests.proof import mutate
from tuner.search_spaces import matmul_hopper
from tuner.search_spaces.family import families
from tuner.search_spaces.rule import Rule


@pytest.mark.parametrize("name", families())
def test_no_rule_can_be_left_out(name: str) -> None:
    """`make mutate` tells what moving each number by one step would change, too."""
    points = mutate.recorded(name)
    assert points, "make prove records them"
    family = families()[name]
    kept = [rule for rule in family.rules if rule.decides_on != ()]
    assert [rule.id for rule in kept if not mutate.told_apart(rule, lambda: True, family, points)] == []


@pytest.mark.parametrize("name", families())
def test_the_rules_fit_what_is_recorded(name: str) -> None:
    family = families()[name]
    rule = family.rules[0]
    assert not mutate.told_apart(rule, rule.holds, family, mutate.recorded(name))


def mutation(rule: Rule, what: str) -> Callable[..., Any]:
    return dict(mutate.mutants(rule))[what]


def test_numbers_are_moved_one_at_a_time() -> None:
    rule = next(r for r in matmul_hopper.RULES if r.id == "matmul.tile_n_wgmma")
    names = [what for what, _ in mutate.mutants(rule)]
    assert len(set(names)) == len(names)
    assert {"deleted", "MAX_WGMMA_N = 255", "MAX_WGMMA_N = 257", "WGMMA_N = 9"} <= set(names)
    assert rule.holds(tile_n=256)
    assert not mutation(rule, "MAX_WGMMA_N = 255")(tile_n=256)
    assert mutation(rule, "MAX_WGMMA_N = 257")(tile_n=256)
    assert rule.holds(tile_n=256)


def test_a_looser_rule_is_told_apart() -> None:
    family = matmul_hopper.FAMILY
    rule = next(r for r in family.rules if r.id == "pipeline.steps")
    looser = dataclasses.replace(
        rule, holds=lambda max_concurrent_steps, delay_release: max_concurrent_steps >= 0
    )
    assert mutate.told_apart(rule, looser.holds, family, mutate.recorded("matmul_hopper"))

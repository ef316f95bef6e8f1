import random
from typing import Any

import numpy as np
import pytest

from tests import stubs
from tuner.final import TIE_BAND, paired_ratio, ranking
from tuner.results.store import Store

from .sweeps import indices, misbehave, records, sweep

Rounds = list[list[float]]


def rounds(*times: float) -> Rounds:
    """One sample a round."""
    return [[time] for time in times]


# Near ties as they were reported, in microseconds.
A = rounds(100, 100, 100, 100, 100)
B = rounds(101, 101, 80, 101, 101)
C = rounds(100.1, 100.1, 100.1, 100.1, 100.1)


@pytest.mark.parametrize(
    ("samples", "ties"),
    [
        ({"a": A, "b": B}, ("a",)),
        ({"a": A, "c": C}, ("a", "c")),
        ({"a": A, "b": B, "c": C}, ("a", "c")),
    ],
)
def test_one_fast_sample_wins_nothing(samples: dict[str, Rounds], ties: tuple[str, ...]) -> None:
    assert ranking(samples, {name: (place,) for place, name in enumerate(samples)}) == ("a", ties)


def test_a_tie_goes_to_the_fixed_order_not_to_the_fastest() -> None:
    winner, ties = ranking({"a": A, "c": C}, {"a": (2,), "c": (1,)})
    assert winner == "c"
    assert ties == ("a", "c")


@pytest.mark.parametrize(("excess", "tied"), [(0.9 * TIE_BAND, True), (1.1 * TIE_BAND, False)])
def test_the_tie_band(excess: float, tied: bool) -> None:
    slower = rounds(*[100 * (1 + excess)] * 5)
    _, ties = ranking({"a": A, "slower": slower}, {"a": (0,), "slower": (1,)})
    assert ("slower" in ties) is tied


def test_the_order_of_the_members_changes_nothing() -> None:
    noise = np.random.default_rng(0)
    samples = {
        str(n): [list(100 * (1 + 0.0008 * n) * noise.normal(1, 0.004, 3)) for _ in range(12)]
        for n in range(12)
    }
    tie_break = {name: (int(name) % 4, int(name)) for name in samples}
    wanted = ranking(samples, tie_break)
    for seed in range(20):
        names = random.Random(seed).sample(list(samples), len(samples))
        assert ranking({name: samples[name] for name in names}, tie_break) == wanted


def test_equal_times_too() -> None:
    samples = dict.fromkeys("dcba", A)
    assert ranking(samples, {name: (name,) for name in samples}) == ("a", ("a", "b", "c", "d"))


@pytest.mark.parametrize("seed", range(20))
def test_near_ties_in_noise_cost_next_to_nothing(seed: int) -> None:
    """28 configurations 0.08 % apart under 0.4 % noise; what counts is regret, not identity."""
    noise = np.random.default_rng(seed)
    true = {str(n): 100 * (1 + 0.0008 * n) for n in range(28)}
    samples = {name: [list(us * noise.normal(1, 0.004, 3)) for _ in range(20)] for name, us in true.items()}
    winner, ties = ranking(samples, {name: (int(name),) for name in true})
    assert true[winner] <= 100 * (1 + 2 * TIE_BAND)
    assert all(true[name] <= 100 * (1 + 3 * TIE_BAND) for name in ties)


def test_a_drift_that_hits_everybody_alike_changes_nothing() -> None:
    """Rounds get 10 % slower; only the ratio within a round counts."""
    drift = np.linspace(1, 1.1, 10)
    fast = [[100 * d] for d in drift]
    slow = [[102 * d] for d in drift]
    ratio = paired_ratio(fast, slow)
    assert ratio.median == pytest.approx(1.02)
    assert ratio.high - ratio.low < 1e-9


def noisy(us: float, count: int, seed: int) -> Rounds:
    noise = np.random.default_rng(seed)
    return [list(us * noise.normal(1, 0.01, 3)) for _ in range(count)]


@pytest.mark.parametrize("seed", range(5))
def test_the_interval_holds_the_median_and_narrows_with_rounds(seed: int) -> None:
    widths = []
    for count in (8, 32, 128):
        ratio = paired_ratio(noisy(100, count, seed), noisy(110, count, seed + 100))
        assert ratio.low <= ratio.median <= ratio.high
        widths.append(ratio.high - ratio.low)
    assert widths[0] > widths[1] > widths[2] > 0
    assert ratio.low < 1.1 < ratio.high + 0.01


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    covered = 0
    for seed in range(100):
        ratio = paired_ratio(noisy(100, 20, seed), noisy(105, 20, 1000 + seed), seed=seed)
        covered += ratio.low <= 1.05 <= ratio.high
    assert covered >= 88


def test_the_interval_is_the_same_each_time() -> None:
    own, baseline = noisy(100, 20, 1), noisy(110, 20, 2)
    assert paired_ratio(own, baseline, seed=3) == paired_ratio(own, baseline, seed=3)


def test_above_one_is_faster_than_the_baseline() -> None:
    assert paired_ratio(rounds(50, 50), rounds(100, 100)).median == 2
    assert paired_ratio(rounds(200, 200), rounds(100, 100)).median == 0.5


def test_a_member_without_all_rounds_is_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        paired_ratio(A[:3], B)


@pytest.fixture
def outcome() -> Any:
    return sweep(effort="quick")


def test_the_verdict_of_a_sweep(outcome: Any) -> None:
    final = outcome.final
    roles = [member.role for member in final.members]
    assert roles.count("baseline") == 1
    assert roles.count("default") == 1
    configs = [m.config["index"] for m in final.members if m.config is not None]
    assert sorted(configs) == list(range(8))
    assert final.rounds == 12
    assert all(len(m.samples_ns) == 12 for m in final.members)
    assert final.members[final.winner].config == {"index": 0}
    assert final.ties == (final.winner,)
    for member in final.members:
        us = 110 if member.config is None else 100 + member.config["index"]
        assert member.median_us == us
        assert member.ratio == member.ratio_low == member.ratio_high == pytest.approx(110 / us)
    with Store.open(create=False, read_only=True) as store:
        assert store.finals() == [final]
        (best,) = store.bests()
    assert (best.rung, best.config, best.time_us) == ("final", {"index": 0}, 100)
    assert best.ratio == pytest.approx(1.1)


def test_the_default_is_in_the_final_however_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Index 0 is the default; it is made slow by a family whose default is the last one."""
    outcome = sweep(kernel="tests.stubs:SLOW_DEFAULT", effort="quick")
    assert outcome.final is not None
    (default,) = (m for m in outcome.final.members if m.role == "default")
    assert default.config == {"index": stubs.SIZE - 1}
    assert outcome.final.members[outcome.final.winner].config == {"index": 0}


def test_ties_within_the_band_go_to_less_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fastest by a hair needs more shared memory than the one that wins."""
    misbehave(monkeypatch, {7: "hair_faster"})
    outcome = sweep(effort="quick")
    final = outcome.final
    assert final is not None
    assert indices(records()).count(7) == 1
    tied = [final.members[i].config for i in final.ties]
    assert tied == [{"index": 7}, {"index": 0}]
    assert final.members[final.winner].config == {"index": 0}

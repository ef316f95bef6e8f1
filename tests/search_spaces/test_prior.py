"""The prior orders configurations: what is known to be fast comes well before what is not."""

import numpy as np
import pytest

from tests.search_spaces.spaces import PROBLEMS, landscape_best, space_of
from tuner.prediction import predicted_best, predicted_us
from tuner.search_spaces.architecture import DEVICES, reference_target
from tuner.search_spaces.problem import CopyProblem, Problem


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_predictions_are_times(problem: Problem) -> None:
    space = space_of(problem)
    predicted = predicted_us(space, np.arange(0, len(space), 1 + len(space) // 20_000))
    assert np.all(np.isfinite(predicted))
    assert np.all(predicted > 0)
    # The slowest way to do so little takes less than a second.
    assert np.max(predicted) < 1e6
    assert len(np.unique(predicted)) > 1


@pytest.mark.parametrize("kind", sorted(k for k, row in DEVICES.items() if row.architecture.has_tma))
def test_copies_are_predicted_on_every_device(kind: str) -> None:
    space = space_of(CopyProblem(m=4096, n=4096, dtype="float32"), DEVICES[kind])
    predicted = predicted_us(space, np.arange(0, len(space), 101))
    assert np.all(np.isfinite(predicted))
    assert np.all(predicted > 0)
    # Nothing is predicted to beat the memory.
    assert np.min(predicted) > 0.8e6 * space.problem.bytes / space.target.dram_bytes_per_s


def test_the_best_recorded_are_predicted_well_before_random_ones() -> None:
    best = list(landscape_best())
    for problem in dict.fromkeys(problem for problem, _ in best):
        space = space_of(problem)
        indices = [space.index(config) for other, config in best if other == problem]
        random = np.random.default_rng(0).integers(0, len(space), 2000)
        fast = np.median(predicted_us(space, np.array(indices)))
        assert fast < np.percentile(predicted_us(space, random), 5)


@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_the_predicted_best_is_the_least_predicted(problem: Problem) -> None:
    space = space_of(problem)
    best = predicted_best(space)
    sample = np.random.default_rng(0).integers(0, len(space), 1000)
    least = np.min(predicted_us(space, sample))
    # Of a large space the prior sees evenly spaced configurations only.
    assert predicted_us(space, np.array([best]))[0] <= 1.05 * least


def test_a_faster_card_is_predicted_faster() -> None:
    problem = CopyProblem(m=32768, n=16384, dtype="float32")
    times = {}
    for kind in ("NVIDIA H100 PCIe", "NVIDIA H200"):
        space = space_of(problem, DEVICES[kind])
        times[kind] = predicted_us(space, np.array([predicted_best(space)]))[0]
    assert times["NVIDIA H200"] < times["NVIDIA H100 PCIe"]


def test_the_reference_card_is_predicted_as_its_row() -> None:
    problem = PROBLEMS[2]
    one, other = space_of(problem), space_of(problem, DEVICES[reference_target("sm_90").device_kind])
    indices = np.arange(len(one))
    assert np.array_equal(predicted_us(one, indices), predicted_us(other, indices))

"""The paired final: the best few, the default and the baseline, interleaved in shuffled rounds.

Only times taken side by side rank configurations: over minutes a card drifts by more than separates
the ten best (measured on an H200). Everything here is arithmetic on the samples.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

# Within this of the fastest, two configurations are tied: the same one timed in separate windows
# differs by 0.2-0.6 % (measured on an H200).
TIE_BAND = 0.005
_RESAMPLES = 2000


@dataclasses.dataclass(frozen=True, slots=True)
class Ratio:
    """Baseline time over own time, round by round; above 1 is faster than the baseline."""

    median: float
    low: float
    high: float


def paired_ratio(
    own: Sequence[Sequence[float]], baseline: Sequence[Sequence[float]], *, seed: int = 0
) -> Ratio:
    """Median over rounds of baseline / own (each round's median sample), with its 95 % bootstrap interval."""
    ratios = np.array([np.median(b) / np.median(o) for o, b in zip(own, baseline, strict=True)])
    rng = np.random.default_rng(seed)
    resampled = np.median(rng.choice(ratios, (_RESAMPLES, len(ratios))), axis=1)
    low, high = np.quantile(resampled, (0.025, 0.975))
    return Ratio(float(np.median(ratios)), float(low), float(high))


def ranking(
    samples: Mapping[str, Sequence[Sequence[float]]], tie_break: Mapping[str, tuple[object, ...]]
) -> tuple[str, tuple[str, ...]]:
    """The winner, and everything tied with the fastest (the winner included), fastest first.

    Ties are broken by `tie_break`, the smallest first, so that the same data give the same answer.
    """
    medians = {name: float(np.median([np.median(r) for r in rounds])) for name, rounds in samples.items()}
    order = sorted(medians, key=lambda name: (medians[name], tie_break[name]))
    fastest = samples[order[0]]
    slower = {
        name: float(
            np.median([np.median(o) / np.median(f) for o, f in zip(samples[name], fastest, strict=True)])
        )
        for name in order
    }
    ties = tuple(name for name in order if slower[name] <= 1 + TIE_BAND)
    return min(ties, key=lambda name: tie_break[name]), ties

"""The prior applied to a legal space: expected microseconds, for ordering only."""

import numpy as np

from tuner.search_spaces.space import LegalSpace

# Configurations the prior ranks at once; of a larger space, that many stand for the others.
RANKED = 200_000


def predicted_us(space: LegalSpace, indices: np.ndarray) -> np.ndarray:
    """The prior's microseconds of the configurations at `indices`, on the space's target."""
    columns = space.family.columns(space.problem, space.target, space.columns(indices))
    return np.broadcast_to(columns.apply(space.family.predict_us), indices.shape)


def predicted_best(space: LegalSpace) -> int:
    """The index of the configuration the prior likes best; of a large space, among evenly spaced ones."""
    indices = _spread(space)
    return int(indices[np.argmin(predicted_us(space, indices))])


def best_prediction_us(space: LegalSpace) -> float:
    """The least microseconds the prior gives in a space; of a large one, among evenly spaced ones."""
    return float(np.min(predicted_us(space, _spread(space))))


def _spread(space: LegalSpace) -> np.ndarray:
    size = len(space)
    return np.arange(size) if size <= RANKED else np.linspace(0, size - 1, RANKED).astype(np.int64)

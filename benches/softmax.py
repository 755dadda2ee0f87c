"""Softmax in NumPy, for the ways of NumPy to do what kernels do."""

from __future__ import annotations

import numpy as np


def scores_to_probabilities(scores: np.ndarray) -> None:
    """Turn the scores of classes into probabilities, in place.

    Classes are the last axis: shape (.., classes).
    """
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)

"""Statistics over the seeds of an experiment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import stats

CONFIDENCE = 0.95


def interval(values: npt.NDArray[np.float64]) -> float:
    """Half the width of Student's interval of the mean; NaN for one value."""
    if len(values) < 2:
        return np.nan
    factor = stats.t.ppf((1 + CONFIDENCE) / 2, len(values) - 1)
    return float(factor * values.std(ddof=1) / np.sqrt(len(values)))


def with_spread(mean: float, spread: float, digits: int) -> str:
    """Return a mean and its spread, if there is one, with `digits` decimals."""
    text = f"{mean:.{digits}f}"
    return text if np.isnan(spread) else f"{text} +- {spread:.{digits}f}"


def over_seeds(accuracies: Sequence[float]) -> dict[str, Any]:
    """Return mean, standard deviation (NaN for one seed) and number, by their names in cells."""
    spread = float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else np.nan
    return {"accuracy": float(np.mean(accuracies)), "spread": spread, "seeds": len(accuracies)}

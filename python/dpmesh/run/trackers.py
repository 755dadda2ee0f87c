"""Measurements of a run for a tracker: TensorBoard, MLflow, Weights & Biases or another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dpmesh.privacy.report import not_covered


def tracked(
    log: Callable[[str, float, int], object], *, released_only: bool = False
) -> Callable[[int, Mapping[str, Any]], None]:
    """Return a callback for `Metrics` that logs each measurement of the whole network.

    Parameters
    ----------
    log
        Called with a measurement's name, value and round, as are ``SummaryWriter.add_scalar`` of
        TensorBoard and ``mlflow.log_metric``.
    released_only
        Whether to leave out what no epsilon covers: losses, and accuracies of models before noise.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.run.tracked(print, released_only=True)(5, {"loss": 1.5, "released_accuracy": 0.5})
    released_accuracy 0.5 5
    """

    def callback(t: int, values: Mapping[str, Any]) -> None:
        hidden = not_covered(values, parameters_are_released=False) if released_only else ()
        for name, value in values.items():
            if np.ndim(value) == 0 and name not in hidden:
                log(name, float(value), t)

    return callback

"""Figures as functions that return matplotlib axes; needs the extra ``plots``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's colours, which colour-blind readers can tell apart; line styles for print.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
_STYLES = ("-", "--", "-.", ":")

_LABELS = {
    "accuracy": "test accuracy, nodes' own models",
    "released_accuracy": "test accuracy, released models",
    "loss": "mean loss on fresh records",
    "regret": "average regret per record",
    "worst_regret": "average regret of the worst node",
    "consensus_distance": "distance from the average model",
}


class Curves(Protocol):
    """Anything with measurements over rounds, such as a run's history."""

    def __getitem__(self, metric: str) -> npt.NDArray[np.float64]: ...

    def rounds(self, metric: str) -> npt.NDArray[np.int64]:
        """Rounds in which the metric was measured."""
        ...


def curves(histories: Mapping[str, Curves], metric: str, *, ax: Axes | None = None) -> Axes:
    """Draw one metric of several runs over the rounds.

    Parameters
    ----------
    histories
        For each label the history of a run.
    metric
        Name of the metric.
    ax
        Where to draw; by default a new figure.

    Returns
    -------
    The axes.

    Raises
    ------
    ValueError
        If a history lacks the metric.
    """
    import matplotlib.pyplot as plt

    if ax is None:
        _, ax = plt.subplots(figsize=(5, 3.5), layout="constrained")
    for i, (label, history) in enumerate(histories.items()):
        ax.plot(
            history.rounds(metric),
            history[metric],
            label=label,
            color=_COLOURS[i % len(_COLOURS)],
            linestyle=_STYLES[i % len(_STYLES)],
        )
    ax.set_xlabel("round")
    ax.set_ylabel(_LABELS.get(metric, metric))
    ax.grid(alpha=0.3)
    if len(histories) > 1:
        ax.legend(frameon=False)
    return ax

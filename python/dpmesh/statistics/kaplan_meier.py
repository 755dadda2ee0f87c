"""Kaplan-Meier curves from noisy counts, with the errors due to noise and due to sampling.

`Survival` releases the counts: for each group and bin of time, events and censored records. A
*cell* is one of these counts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpmesh.statistics.answers import Z
from dpmesh.statistics.bins import Floats

LARGEST_HAZARD = 1 - 1e-9
"""Largest hazard of a bin (share of persons at risk with an event), so that a curve stays above 0.
"""


class Curve(NamedTuple):
    """A survival curve at the ends of bins; all arrays have the shape (bins,).

    Attributes
    ----------
    survival
        Share of persons without an event; NaN from the first bin with too few persons at risk for
        the noise.
    noise, sampling
        Standard deviations due to privacy noise and due to sampling.
    """

    survival: Floats
    noise: Floats
    sampling: Floats


class Cells(NamedTuple):
    """Noisy counts of records of a group, or of several groups.

    Attributes
    ----------
    events, censored
        Numbers of events and of censored records in each bin of time, shape (.., bins).
    ended
        Number of records that were followed to the end, shape (..).
    """

    events: Floats
    censored: Floats
    ended: Floats

    @classmethod
    def of(cls, cells: Floats) -> Cells:
        """Return the counts of an array of shape (.., 2 bins + 1).

        The last axis holds events and censored records of each bin in turn, then `ended`.
        """
        return cls(cells[..., :-1:2], cells[..., 1:-1:2], cells[..., -1])

    @property
    def at_risk(self) -> Floats:
        """Number of records at risk in each bin, shape (.., bins): all that leave in it or later.

        Half of the records that are censored in a bin count as at risk in it, as in life tables.
        """
        leave = self.events + self.censored
        leave_later = np.cumsum(leave[..., ::-1], axis=-1)[..., ::-1]
        return np.asarray(leave_later + self.ended[..., np.newaxis] - self.censored / 2)


def curve(cells: Cells, noise: float) -> Curve:
    """Return the survival curve of one group from noisy counts.

    With d_i events among r_i at risk in bin i, and ``h_i = d_i / r_i``, the curve at the end of bin
    k is ``S_k = product of (1 - h_i) for i <= k``. The sampling error is Greenwood's: the variance
    of log S_k is ``sum of h_i / (r_i (1 - h_i))``. The noise error is first-order, from the
    derivatives of log S_k by all cells, see `_noise_variance`.

    Parameters
    ----------
    cells
        The cells of one group, shape (bins,).
    noise
        Standard deviation of the noise in each cell.
    """
    risk = cells.at_risk
    bins = len(risk)
    summed_cells = 2.0 * np.arange(bins, 0, -1) + 1  # number of cells in each number at risk
    is_lost_in_noise = risk <= Z * noise * np.sqrt(summed_cells)
    is_known = np.cumsum(is_lost_in_noise) == 0  # before the first bin that is lost
    safe_risk = np.where(is_known, risk, 1.0)
    hazard = np.clip(np.where(is_known, cells.events / safe_risk, 0.0), -1.0, LARGEST_HAZARD)
    survival = np.cumprod(1 - hazard)
    survival = np.minimum.accumulate(np.clip(survival, 0, 1))
    noise_variance = _noise_variance(hazard, safe_risk)
    greenwood = np.cumsum(np.clip(hazard, 0, 1) / (safe_risk * (1 - hazard)))
    return Curve(
        survival=np.where(is_known, survival, np.nan),
        noise=np.where(is_known, survival * noise * np.sqrt(noise_variance), np.nan),
        sampling=np.where(is_known, survival * np.sqrt(greenwood), np.nan),
    )


def _noise_variance(hazard: Floats, risk: Floats) -> Floats:
    """Return the variance of log S at the end of each bin due to noise of variance 1 in all cells.

    The term ``log(1 - h_i)`` of log S has the derivative ``h_i / (r_i (1 - h_i))`` by the number at
    risk r_i, and ``-1 / (r_i (1 - h_i))`` by the events d_i. Each r_i is the sum of the events of
    bin i and later bins, the censored records of later bins, half of the censored records of bin i,
    and the records followed to the end.

    Parameters
    ----------
    hazard
        Hazard h of each bin, shape (bins,).
    risk
        Number r at risk in each bin, shape (bins,).
    """
    bins = len(hazard)
    is_later = np.triu(np.ones((bins, bins)))  # [i, m]: 1 if records of bin m are at risk in bin i
    by_risk = hazard / risk / (1 - hazard)
    # derivatives of the term of bin i by the cells of bin m, shape (bins, bins)
    term_by_events = by_risk[:, np.newaxis] * is_later - np.diag(1 / risk / (1 - hazard))
    term_by_censored = by_risk[:, np.newaxis] * (is_later - np.eye(bins) / 2)
    # derivatives of log S at the end of each bin: sums of the terms of all bins up to it
    by_events = np.cumsum(term_by_events, axis=0)
    by_censored = np.cumsum(term_by_censored, axis=0)
    by_ended = np.cumsum(by_risk)
    variance = np.square(by_events).sum(axis=1) + np.square(by_censored).sum(axis=1)
    variance = variance + np.square(by_ended)
    return np.asarray(variance)

"""Kaplan-Meier curves of noisy cells, with the error of the noise and of the choice of records."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpmesh.statistics.answers import Z
from dpmesh.statistics.bins import Floats

LARGEST_HAZARD = 1 - 1e-9
"""Share of those at risk with an event in a bin, below 1 so that the curve does not reach 0."""


class Curve(NamedTuple):
    """A survival curve at the ends of bins, each of shape (bins,).

    Attributes
    ----------
    survival
        Shares that had no event; NaN where too few are at risk for the noise.
    noise, sampling
        Standard deviations.
    """

    survival: Floats
    noise: Floats
    sampling: Floats


class Cells(NamedTuple):
    """Counts of records.

    Attributes
    ----------
    events, censored
        In bins of time, shape (.., bins).
    ended
        Followed to the end, shape (..).
    """

    events: Floats
    censored: Floats
    ended: Floats

    @classmethod
    def of(cls, cells: Floats) -> Cells:
        """Return the parts of an array of shape (.., 2 bins + 1)."""
        return cls(cells[..., :-1:2], cells[..., 1:-1:2], cells[..., -1])

    @property
    def at_risk(self) -> Floats:
        """Number of records at risk in each bin: those that leave in it or later.

        Of those who are censored in a bin half are at risk in it, as in life tables.
        """
        leave = self.events + self.censored
        leave_later = np.cumsum(leave[..., ::-1], axis=-1)[..., ::-1]
        return np.asarray(leave_later + self.ended[..., np.newaxis] - self.censored / 2)


def curve(cells: Cells, noise: float) -> Curve:
    """Return the survival curve of one group's noisy counts.

    With d_i events among r_i at risk in bin i, and ``h_i = d_i / r_i``, the curve at the end of bin
    k is ``S_k = product of (1 - h_i) for i <= k``. Sampling errors are Greenwood's: the variance of
    log S_k is ``sum of h_i / (r_i (1 - h_i))``. Those of the noise are first-order, by the
    derivatives of log S_k with respect to all cells: see `_noise_variance`.

    Parameters
    ----------
    cells
        The cells of one group, shape (bins,).
    noise
        Standard deviation of the noise in each cell.
    """
    risk = cells.at_risk
    bins = len(risk)
    cells_at_risk = 2.0 * np.arange(bins, 0, -1) + 1  # cells that a number at risk sums up
    is_lost_in_noise = risk <= Z * noise * np.sqrt(cells_at_risk)
    is_known = np.cumsum(is_lost_in_noise) == 0  # up to the first bin that is lost
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
    """Return the variance of log S at the end of each bin by noise of variance 1 in all cells.

    The term ``log(1 - h_i)`` of log S has the derivative ``h_i / (r_i (1 - h_i))`` by the number at
    risk r_i, and ``-1 / (r_i (1 - h_i))`` by the events d_i. Each r_i is the sum of the events and
    censored of bins from i on, half of those censored in i, and those followed to the end.

    Parameters
    ----------
    hazard
        Share h of those at risk with an event, shape (bins,).
    risk
        Number r at risk, shape (bins,).
    """
    bins = len(hazard)
    is_later = np.triu(np.ones((bins, bins)))  # [i, m]: 1 if those of bin m are at risk in bin i
    by_risk = hazard / risk / (1 - hazard)
    # derivatives of the term of bin i by the cells of bin m, shape (bins, bins)
    term_by_events = by_risk[:, np.newaxis] * is_later - np.diag(1 / risk / (1 - hazard))
    term_by_censored = by_risk[:, np.newaxis] * (is_later - np.eye(bins) / 2)
    # derivatives of log S at the end of each bin: the sums of those of all terms up to it
    by_events = np.cumsum(term_by_events, axis=0)
    by_censored = np.cumsum(term_by_censored, axis=0)
    by_ended = np.cumsum(by_risk)
    variance = np.square(by_events).sum(axis=1) + np.square(by_censored).sum(axis=1)
    variance = variance + np.square(by_ended)
    return np.asarray(variance)

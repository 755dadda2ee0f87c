"""Kaplan-Meier curves of noisy cells, with the error of the noise and of the choice of records."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dpmesh.statistics.answers import Z
from dpmesh.statistics.bins import Floats


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
        leave = np.cumsum((self.events + self.censored)[..., ::-1], axis=-1)[..., ::-1]
        return np.asarray(leave + self.ended[..., np.newaxis] - self.censored / 2)


def curve(cells: Cells, noise: float) -> Curve:
    """Return the curve of one group's noisy counts, with noise of this scale in each.

    Sampling errors are Greenwood's; those of the noise follow by the derivatives of log S.
    """
    bins = len(cells.events)
    risk = cells.at_risk
    cells_at_risk = 2.0 * np.arange(bins, 0, -1) + 1
    known = np.cumsum(risk <= Z * noise * np.sqrt(cells_at_risk)) == 0
    safe = np.where(known, risk, 1.0)
    died = np.clip(np.where(known, cells.events / safe, 0.0), -1.0, 1 - 1e-9)
    survival = np.cumprod(1 - died)
    survival = np.minimum.accumulate(np.clip(survival, 0, 1))
    later = np.triu(np.ones((bins, bins)))  # [i, m]: those of bin m are at risk in bin i
    by_risk = died / safe / (1 - died)
    hazard_by_events = by_risk[:, np.newaxis] * later - np.diag(1 / safe / (1 - died))
    hazard_by_censored = by_risk[:, np.newaxis] * (later - np.eye(bins) / 2)
    slope_by_events = np.cumsum(hazard_by_events, axis=0)
    slope_by_censored = np.cumsum(hazard_by_censored, axis=0)
    slope_by_ended = np.cumsum(by_risk)
    variance = np.square(slope_by_events).sum(axis=1) + np.square(slope_by_censored).sum(axis=1)
    variance = variance + np.square(slope_by_ended)
    greenwood = np.cumsum(np.clip(died, 0, 1) / (safe * (1 - died)))
    return Curve(
        survival=np.where(known, survival, np.nan),
        noise=np.where(known, survival * noise * np.sqrt(variance), np.nan),
        sampling=np.where(known, survival * np.sqrt(greenwood), np.nan),
    )

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
    bins, risk = len(cells.events), cells.at_risk
    cells_at_risk = 2.0 * np.arange(bins, 0, -1) + 1
    known = np.cumsum(risk <= Z * noise * np.sqrt(cells_at_risk)) == 0
    safe = np.where(known, risk, 1.0)
    died = np.clip(np.where(known, cells.events / safe, 0.0), -1.0, 1 - 1e-9)
    survival = np.cumprod(1 - died)
    later = np.triu(np.ones((bins, bins)))  # [i, m]: those of bin m are at risk in bin i
    per = died / safe / (1 - died)
    of_events = per[:, np.newaxis] * later - np.diag(1 / safe / (1 - died))
    of_censored = per[:, np.newaxis] * (later - np.eye(bins) / 2)
    slopes = [np.cumsum(of, axis=0) for of in (of_events, of_censored)]
    variance = sum(np.square(slope).sum(axis=1) for slope in slopes)
    variance = variance + np.square(np.cumsum(per))
    shown = np.clip(died, 0, 1)
    greenwood = np.cumsum(shown / (safe * (1 - died)))
    survival = np.minimum.accumulate(np.clip(survival, 0, 1))
    result = [survival, survival * noise * np.sqrt(variance), survival * np.sqrt(greenwood)]
    return Curve(*(np.where(known, values, np.nan) for values in result))

"""Seconds of a round of gossip on P ranks: a model of five constants, fitted to measurements.

    seconds = round + coordinate * n d + message * k + byte * (b d size) + agreement * log2 P

for n nodes of d numbers of `size` bytes on a rank, of which b rows go to k other ranks. `message`
and `byte` are the alpha and beta of the usual model of messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from math import log2

import numpy as np
from scipy.optimize import nnls


@dataclass(frozen=True)
class Load:
    """The work of a rank in a round.

    Parameters
    ----------
    ranks
        P.
    nodes, dim
        n and d.
    rows, neighbours
        b and k.
    size
        Bytes of a number.
    """

    ranks: int
    nodes: float
    dim: int
    rows: float
    neighbours: int
    size: int = 4

    @classmethod
    def of_torus(cls, ranks: int, rows: float, columns: float, dim: int) -> Load:
        """Return the load of the best cut of a torus into equal rectangles."""
        cuts = []
        for down in (n for n in range(1, ranks + 1) if ranks % n == 0):
            across = ranks // down
            sides = {"down": (down, columns / across), "across": (across, rows / down)}
            boundary = sum(2 * side for parts, side in sides.values() if parts > 1)
            neighbours = sum(min(2, parts - 1) for parts, _ in sides.values())
            cuts.append((boundary, neighbours))
        boundary, neighbours = min(cuts)
        return cls(ranks, rows * columns / ranks, dim, boundary, neighbours)

    @property
    def bytes(self) -> float:
        """Bytes that leave the rank."""
        return self.rows * self.dim * self.size

    @property
    def terms(self) -> tuple[float, ...]:
        """The factors of the model's constants."""
        return (1.0, self.nodes * self.dim, self.neighbours, self.bytes, log2(self.ranks))


@dataclass(frozen=True)
class Times:
    """Seconds of a round, and of its parts timed alone.

    Parameters
    ----------
    round
        All of it.
    work
        Noise and mixing.
    travel
        Rows on their way.
    agreement
        The collective check that no rank has failed.
    """

    round: float
    work: float
    travel: float
    agreement: float


@dataclass(frozen=True)
class Model:
    """Seconds of each term."""

    round: float
    coordinate: float
    message: float
    byte: float
    agreement: float

    @classmethod
    def fit(cls, loads: Sequence[Load], times: Sequence[Times]) -> Model:
        """Return the non-negative constants that fit each part with the least relative error."""
        terms = np.array([load.terms for load in loads])
        several = [place for place, load in enumerate(loads) if load.ranks > 1]
        agreements = np.array([times[place].agreement for place in several])
        travels = np.array([times[place].travel for place in several])
        work = np.array([time.work for time in times])
        return cls(
            *_fit(terms[:, :2], work),
            *_fit(terms[several, 2:4], travels),
            *_fit(terms[several, 4:], agreements),
        )

    def seconds(self, load: Load) -> float:
        """Return the time of a round."""
        return float(np.dot(astuple(self), load.terms))


def _fit(terms: np.ndarray, seconds: np.ndarray) -> list[float]:
    relative = terms / seconds[:, np.newaxis]
    scale = relative.max(axis=0)
    constants, _ = nnls(relative / scale, np.ones(len(seconds)))
    return (constants / scale).tolist()


def predictions(model: Model, sides: tuple[int, int], dim: int) -> list[str]:
    """Return lines of a table: a fixed torus on more and more ranks, and one that grows."""
    rows, columns = sides
    lines = [f"{'ranks':>6}{'strong ms':>11}{'of the best':>12}{'weak ms':>9}{'of the best':>12}"]
    alone = model.seconds(Load.of_torus(1, rows, columns, dim))
    small = model.seconds(Load.of_torus(1, rows / 32, columns / 32, dim))
    for ranks in (1, 4, 16, 64, 256, 1024):
        side = ranks**0.5 / 32
        strong = model.seconds(Load.of_torus(ranks, rows, columns, dim))
        weak = model.seconds(Load.of_torus(ranks, side * rows, side * columns, dim))
        lines.append(
            f"{ranks:>6}{1e3 * strong:>11.2f}{alone / strong / ranks:>12.0%}"
            f"{1e3 * weak:>9.2f}{small / weak:>12.0%}"
        )
    return lines

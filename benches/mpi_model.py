"""Model of the seconds of a round of gossip on P MPI ranks: five constants, fitted to measurements.

    seconds = round + coordinate * n d + message * k + byte * (b d s) + agreement * log2 P

A rank holds n nodes with vectors of d numbers of s bytes. In a round it sends b of these vectors
(rows) to k other ranks. The constants are the fields of `Model`: `message` and `byte` are the alpha
(latency) and beta (inverse bandwidth) of the usual alpha-beta model; `agreement` is the collective
check that no rank has failed. `benches.mpi_scaling` measures, fits and predicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from math import log2

import numpy as np
from scipy.optimize import nnls


@dataclass(frozen=True)
class Load:
    """The work of the busiest rank in a round.

    Parameters
    ----------
    ranks
        Number of ranks, P.
    nodes
        Nodes of the rank, n; in predictions a fraction is possible.
    dim
        Numbers of a node's vector, d.
    rows
        Vectors that the rank sends in a round, b.
    neighbours
        Other ranks to which it sends, k.
    size
        Bytes of a number, s.
    """

    ranks: int
    nodes: float
    dim: int
    rows: float
    neighbours: int
    size: int = 4

    @classmethod
    def of_torus(cls, ranks: int, rows: float, columns: float, dim: int) -> Load:
        """Return the load under the cut of a torus into equal rectangles that sends fewest rows."""
        cuts = []
        for strips_of_rows in range(1, ranks + 1):
            if ranks % strips_of_rows:
                continue
            strips_of_columns = ranks // strips_of_rows
            sides = (
                (strips_of_rows, columns / strips_of_columns),
                (strips_of_columns, rows / strips_of_rows),
            )
            boundary, neighbours = 0.0, 0
            for strips, side_length in sides:
                if strips > 1:
                    boundary += 2 * side_length  # both sides of the rectangle
                    neighbours += min(2, strips - 1)  # of two strips, both sides meet one rank
            cuts.append((boundary, neighbours))
        boundary, neighbours = min(cuts)
        return cls(ranks, rows * columns / ranks, dim, boundary, neighbours)

    @property
    def bytes(self) -> float:
        """Bytes that the rank sends in a round."""
        return self.rows * self.dim * self.size

    @property
    def terms(self) -> tuple[float, ...]:
        """Factors of the model's constants, in the order of the fields of `Model`."""
        return (1.0, self.nodes * self.dim, self.neighbours, self.bytes, log2(self.ranks))


@dataclass(frozen=True)
class Times:
    """Seconds of a round, and of its parts timed alone.

    Parameters
    ----------
    round
        The whole round.
    work
        Noise and mixing.
    exchange
        Sending and receiving of rows.
    agreement
        The collective check that no rank has failed.
    """

    round: float
    work: float
    exchange: float
    agreement: float


@dataclass(frozen=True)
class Model:
    """The constants: seconds of a round, a coordinate, a message, a byte and log2 of the ranks."""

    round: float
    coordinate: float
    message: float
    byte: float
    agreement: float

    @classmethod
    def fit(cls, loads: Sequence[Load], times: Sequence[Times]) -> Model:
        """Return the non-negative constants that fit each part with least squared relative error.

        Work gives `round` and `coordinate`, exchanges `message` and `byte`. Runs on one rank have
        neither exchange nor agreement.
        """
        terms = np.array([load.terms for load in loads])
        parallel = [number for number, load in enumerate(loads) if load.ranks > 1]
        work = np.array([time.work for time in times])
        exchanges = np.array([times[number].exchange for number in parallel])
        agreements = np.array([times[number].agreement for number in parallel])
        return cls(
            *_fit(terms[:, :2], work),
            *_fit(terms[parallel, 2:4], exchanges),
            *_fit(terms[parallel, 4:], agreements),
        )

    def seconds(self, load: Load) -> float:
        """Return the predicted seconds of a round."""
        return float(np.dot(astuple(self), load.terms))


def _fit(terms: np.ndarray, seconds: np.ndarray) -> list[float]:
    """Return c >= 0 with least ``|terms c / seconds - 1|^2``."""
    relative = terms / seconds[:, np.newaxis]
    scale = relative.max(axis=0)  # columns differ by orders of magnitude
    constants, _ = nnls(relative / scale, np.ones(len(seconds)))
    return (constants / scale).tolist()


STRIPS = 32
"""Weak scaling predicts the full torus on STRIPS^2 ranks: one rank's part has 1 / STRIPS^2."""


def predictions(model: Model, sides: tuple[int, int], dim: int) -> list[str]:
    """Return a table of predictions, a line for each number of ranks.

    Strong: the torus with these sides. Weak: a torus whose area grows with the ranks, up to these
    sides on 1,024 ranks. "of the best": speedup over one rank, as a share of the number of ranks.
    """
    rows, columns = sides
    lines = [f"{'ranks':>6}{'strong ms':>11}{'of the best':>12}{'weak ms':>9}{'of the best':>12}"]
    strong_one_rank = model.seconds(Load.of_torus(1, rows, columns, dim))
    weak_one_rank = model.seconds(Load.of_torus(1, rows / STRIPS, columns / STRIPS, dim))
    for ranks in (1, 4, 16, 64, 256, 1024):
        scale = ranks**0.5 / STRIPS
        strong = model.seconds(Load.of_torus(ranks, rows, columns, dim))
        weak = model.seconds(Load.of_torus(ranks, scale * rows, scale * columns, dim))
        lines.append(
            f"{ranks:>6}{1e3 * strong:>11.2f}{strong_one_rank / strong / ranks:>12.0%}"
            f"{1e3 * weak:>9.2f}{weak_one_rank / weak:>12.0%}"
        )
    return lines

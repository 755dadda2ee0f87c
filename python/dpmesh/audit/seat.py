"""Audit of a view from the observer's seat: a likelihood ratio on what it sees, and nothing else.

The run is linear and Gaussian in one dimension: states ``x_(t+1)^i = c_t^i sum_j W_t[i, j] m_t^j``,
messages ``m_t^j = x_t^j + n_t^j``. Every such run with ``|c_t^i|`` at most the Lipschitz constants
that a view was accounted for is an instance of it, so its mu never exceeds the claimed one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import sqrt

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail, integer
from dpmesh.audit.claims import GaussianClaim
from dpmesh.audit.result import AuditResult, proved
from dpmesh.audit.statistics import best_threshold, count

Floats = npt.NDArray[np.float64]
Seen = npt.NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearRun:
    """A linear Gaussian run of gossip in one dimension.

    Parameters
    ----------
    matrices
        W_t of each round, shape (nodes, nodes).
    contractions
        c_t^i, shape (rounds, nodes): the derivative of node i's step after round t.
    moves
        How far the target's record moves its state of each round, shape (rounds,).
    noise
        Standard deviation of the messages of each round, shape (rounds,).
    target
        The node whose record differs.

    Raises
    ------
    ValueError
        If shapes do not fit.
    """

    matrices: Sequence[Floats]
    contractions: Floats
    moves: Floats
    noise: Floats
    target: int

    def __post_init__(self) -> None:
        rounds, nodes = np.shape(self.contractions)
        integer("target", self.target, below=nodes)
        if len(self.matrices) != rounds:
            fail("matrices", f"{rounds}, one for each round", len(self.matrices))
        for name in ("moves", "noise"):
            if np.shape(getattr(self, name)) != (rounds,):
                fail(name, f"shape {(rounds,)}", f"shape {np.shape(getattr(self, name))}")

    def shift(self, seen: Seen) -> Floats:
        """Return by how much the record shifts the mean of the seen messages."""
        return self._response[1][seen.reshape(-1)]

    def covariance(self, seen: Seen) -> Floats:
        """Return the covariance of the seen messages."""
        chosen = self._response[0][seen.reshape(-1)]
        return np.asarray(chosen @ chosen.T)

    def weights(self, seen: Seen) -> Floats:
        """Return the weights of the likelihood ratio of the seen messages."""
        return np.asarray(np.linalg.solve(self.covariance(seen), self.shift(seen)))

    def mu(self, seen: Seen) -> float:
        """Return the exact mu of the seen messages."""
        return sqrt(max(0.0, float(self.shift(seen) @ self.weights(seen))))

    def messages(self, runs: int, moved: bool, generator: np.random.Generator) -> Floats:
        """Return all messages of independent runs, shape (runs, rounds * nodes).

        Parameters
        ----------
        runs
            Number of runs.
        moved
            Whether the record is the one that moves the target's states.
        generator
            Where the noise comes from: an audit's noise protects nobody.
        """
        rounds, nodes = self.contractions.shape
        messages = np.empty((runs, rounds, nodes))
        states = np.zeros((runs, nodes))
        for t in range(rounds):
            if t:
                mixed = messages[:, t - 1] @ np.asarray(self.matrices[t - 1]).T
                states = mixed * self.contractions[t - 1]
            if moved:
                states[:, self.target] += self.moves[t]
            messages[:, t] = states + self.noise[t] * generator.normal(size=states.shape)
        return messages.reshape(runs, -1)

    @cached_property
    def _response(self) -> tuple[Floats, Floats]:
        """How messages depend on standard normal noise, a square matrix, and on the record."""
        rounds, nodes = self.contractions.shape
        size = rounds * nodes
        of_noise, of_record = np.zeros((size, size)), np.zeros(size)
        for t in range(rounds):
            now = slice(t * nodes, (t + 1) * nodes)
            if t:
                before = slice((t - 1) * nodes, t * nodes)
                step = self.contractions[t - 1][:, None] * np.asarray(self.matrices[t - 1])
                of_noise[now], of_record[now] = step @ of_noise[before], step @ of_record[before]
            of_noise[now, now] = self.noise[t] * np.eye(nodes)
            of_record[t * nodes + self.target] += self.moves[t]
        return of_noise, of_record


def from_scores(
    claim: GaussianClaim, positives: Floats, negatives: Floats, *, confidence: float, method: str
) -> AuditResult:
    """Return what the scores of runs on the two datasets prove.

    The threshold comes from the first tenth of them, or up to 200 if they are few.
    """
    pilot = max(len(positives) // 10, min(200, len(positives) // 2))
    threshold = best_threshold(claim, positives[:pilot], negatives[:pilot], confidence)
    tally = count(threshold, positives[pilot:], negatives[pilot:])
    return proved(claim, tally, confidence=confidence, method=method)

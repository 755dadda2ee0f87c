"""Linear Gaussian model of gossip, for audits of an adversary's view.

Its likelihood ratio uses the messages that the adversary sees, and no others.

The model has one dimension: states ``x_(t+1)^i = c_t^i sum_j W_t[i, j] m_t^j``,
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


Visible = npt.NDArray[np.bool_]
"""Shape (rounds, nodes): true where the observer sees a node's message of a round."""


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
        Movement of the target's state of each round by its record, shape (rounds,).
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
        for name, values in (("moves", self.moves), ("noise", self.noise)):
            if np.shape(values) != (rounds,):
                fail(name, f"shape {(rounds,)}", f"shape {np.shape(values)}")

    def shift(self, visible: Visible) -> Floats:
        """Return the shift of the mean of the visible messages by the record."""
        return self._record_response[visible.reshape(-1)]

    def covariance(self, visible: Visible) -> Floats:
        """Return the covariance of the visible messages."""
        response = self._noise_response[visible.reshape(-1)]
        return np.asarray(response @ response.T)

    def weights(self, visible: Visible) -> Floats:
        """Return the weights of the likelihood ratio of the visible messages."""
        return np.asarray(np.linalg.solve(self.covariance(visible), self.shift(visible)))

    def mu(self, visible: Visible) -> float:
        """Return the exact Gaussian-DP parameter mu of the visible messages."""
        mu_squared = float(self.shift(visible) @ self.weights(visible))
        return sqrt(max(0.0, mu_squared))

    def messages(self, runs: int, with_record: bool, generator: np.random.Generator) -> Floats:
        """Return all messages of independent runs, shape (runs, rounds * nodes).

        Parameters
        ----------
        runs
            Number of runs.
        with_record
            True for runs with the record, which adds ``moves[t]`` to the target's state of round t;
            False for runs without it.
        generator
            Source of the noise, which in an audit protects no one's data.
        """
        rounds, nodes = self.contractions.shape
        messages = np.empty((runs, rounds, nodes))
        states = np.zeros((runs, nodes))
        for t in range(rounds):
            if t:
                mixed = messages[:, t - 1] @ np.asarray(self.matrices[t - 1]).T
                states = mixed * self.contractions[t - 1]
            if with_record:
                states[:, self.target] += self.moves[t]
            messages[:, t] = states + self.noise[t] * generator.normal(size=states.shape)
        return messages.reshape(runs, -1)

    @property
    def _noise_response(self) -> Floats:
        """Messages by standard normal noise, shape (rounds * nodes, rounds * nodes)."""
        return self._responses[0]

    @property
    def _record_response(self) -> Floats:
        """Shift of the messages by the record, shape (rounds * nodes,)."""
        return self._responses[1]

    @cached_property
    def _responses(self) -> tuple[Floats, Floats]:
        rounds, nodes = self.contractions.shape
        size = rounds * nodes
        noise_response = np.zeros((size, size))
        record_response = np.zeros(size)
        for t in range(rounds):
            current = slice(t * nodes, (t + 1) * nodes)
            if t:
                previous = slice((t - 1) * nodes, t * nodes)
                step = self.contractions[t - 1][:, None] * np.asarray(self.matrices[t - 1])
                noise_response[current] = step @ noise_response[previous]
                record_response[current] = step @ record_response[previous]
            noise_response[current, current] = self.noise[t] * np.eye(nodes)
            record_response[t * nodes + self.target] += self.moves[t]
        return noise_response, record_response


def from_scores(
    claim: GaussianClaim, positives: Floats, negatives: Floats, *, confidence: float, method: str
) -> AuditResult:
    """Return the lower confidence bound that the scores of runs on two datasets prove.

    The first runs choose the threshold, and the other runs evaluate it. The first runs are a tenth
    of all, or up to 200 (at most half) if a tenth is less.

    Parameters
    ----------
    claim
        The guarantee.
    positives, negatives
        Scores of the runs with and without the record's movement, shape (runs,).
    confidence
        In (0, 1).
    method
        Description of the audit, for the result.
    """
    pilot_runs = max(len(positives) // 10, min(200, len(positives) // 2))
    threshold = best_threshold(claim, positives[:pilot_runs], negatives[:pilot_runs], confidence)
    tally = count(threshold, positives[pilot_runs:], negatives[pilot_runs:])
    return proved(claim, tally, confidence=confidence, method=method)

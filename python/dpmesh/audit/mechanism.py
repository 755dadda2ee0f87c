"""The audit of a bare mechanism: many releases of two rows as far apart as it should cover."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmesh._arrays import floats
from dpmesh._privacy_types import Floats, Sensitive
from dpmesh._validate import fail, instance, integer, require_methods
from dpmesh.algorithms.base import Algorithm
from dpmesh.algorithms.messages import Message, Round
from dpmesh.algorithms.worst_case import CROWD_DELTA, AuditSize, Coins, Crowd, Pair
from dpmesh.audit.claims import claim_of
from dpmesh.audit.contrast import numbers_for
from dpmesh.audit.result import AuditResult, Seen, tell_apart
from dpmesh.audit.scores import log_likelihood_ratio
from dpmesh.audit.transcript import fresh_keys
from dpmesh.keys import Key, Purpose
from dpmesh.noise.mechanisms import Mechanism
from dpmesh.noise.sensitivity import Sensitivity
from dpmesh.privacy.releases import Release
from dpmesh.problems.canaries import diagonal


@dataclass(frozen=True, kw_only=True)
class OneRelease(Algorithm[None, Floats]):
    """A bare mechanism as an algorithm, so that all audits of algorithms apply to it.

    Its problem is the rows that it releases in even rounds, shape (nodes, dim); in odd ones it
    releases their negatives, so that noise which rounds share cancels in the difference.

    Examples
    --------
    >>> from dpmesh.audit import OneRelease
    >>> from dpmesh.noise import Gaussian, Sensitivity
    >>> one = OneRelease(mechanism=Gaussian(2.0), sensitivity=Sensitivity(1.0, "l2", "a count"))
    >>> print(one.plan(4).cost(delta=1e-5))
    epsilon = 4.37718 (Gaussian differential privacy, exact, mu = 1)
    """

    mechanism: Mechanism
    sensitivity: Sensitivity

    travels = "gossip"

    def release_of(self, t: int) -> Release:
        """Return the release of the rows."""
        return Release(t, self.mechanism, self.sensitivity)

    def init(self, problem: Floats, key: Key) -> None:
        """Return no state."""

    def round(self, state: None, t: int, problem: Floats, key: Key) -> Round[None]:
        """Release the rows."""
        yield Message(Sensitive(problem if t % 2 == 0 else -problem), self.release_of(t))

    def parameters(self, state: None) -> Floats:
        """Return no parameters."""
        return np.empty((0, 0))

    def leaking_data(self, size: AuditSize) -> tuple[Pair, Crowd]:
        """Return two rows as far apart as the mechanism should cover, and a crowd of such rows.

        The pair has a second node, that does not differ.
        """
        dim = size.dim or 1
        one, other = worst_pair(self.sensitivity, dim)
        problem, neighbor = (np.array([row, np.zeros(dim)]) for row in (one, other))

        def problem_of(coins: Coins) -> Floats:
            return np.where(coins[:, np.newaxis], one, other)

        delta, canaries = size.delta_or(1e-5), size.canaries
        own: dict[str, Any] = {"algorithm": self, "rounds": size.rounds or 2, "delta": delta}
        few: dict[str, Any] = own | {"rounds": 1, "delta": CROWD_DELTA}
        return (
            Pair(problem=problem, neighbor=neighbor, **own),
            Crowd(problem_of=problem_of, canaries=canaries, **few),
        )


def audit_mechanism(
    mechanism: Mechanism,
    sensitivity: Sensitivity,
    *,
    pair: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
    dim: int = 1,
    runs: int = 100_000,
    delta: float = 0.0,
    confidence: float = 0.95,
    every_bit: bool = False,
    key: Key | None = None,
) -> AuditResult:
    """Return a lower confidence bound on the privacy loss of one release.

    The score is the likelihood ratio of the noise that the mechanism claims to add.

    Parameters
    ----------
    mechanism
        What is audited.
    sensitivity
        The sensitivity declared to the mechanism.
    pair
        Two neighbouring rows, shape (dim,); by default at the declared distance, centred at 0, in
        the worst direction for the norm.
    dim
        Length of the default rows.
    runs
        Releases of each row, and as many again for the pilot.
    delta
        Of the claim, in [0, 1); Gaussian noise is measured by its mu at any delta.
    confidence
        In (0, 1).
    every_bit
        Whether the last bits of floating-point numbers count: they reveal what the noise was added
        to (Mironov 2012). Noise on a grid must pass, real-valued noise need not.
    key
        Of all randomness; by default a new one from the operating system.

    Raises
    ------
    ValueError
        If an argument is out of range, or there is no noise.

    Examples
    --------
    >>> import dpmesh as dm
    >>> gaussian, unit = dm.noise.Gaussian(2.0), dm.noise.Sensitivity(1.0, "l2", "")
    >>> found = dm.audit.audit_mechanism(gaussian, unit, runs=1000, delta=1e-5)
    >>> found.lower_bound < found.claim.mu
    True
    """
    require_methods(
        "mechanism", mechanism, "a mechanism, such as Gaussian(2.0)", "release", "noise_scale"
    )
    wanted = 'a Sensitivity, such as Sensitivity(1.0, "l2", "values between 0 and 1")'
    instance("sensitivity", sensitivity, wanted, Sensitivity)
    claim = claim_of(OneRelease(mechanism=mechanism, sensitivity=sensitivity).plan(1), delta)
    rows = worst_pair(sensitivity, dim) if pair is None else _pair(*pair)
    scale = mechanism.noise_scale(sensitivity, rows[0].size)
    keys = fresh_keys(key)

    def look(positive: bool) -> Seen:
        values, own = Sensitive(np.tile(rows[0] if positive else rows[1], (runs, 1))), next(keys)
        released = mechanism.release(values, sensitivity, own.stream(Purpose.NOISE))
        law = mechanism.norm
        scores = log_likelihood_ratio(released, *rows, law, scale, every_bit=every_bit)
        return Seen(scores, np.float64(released[:, : numbers_for(runs)]))

    return tell_apart(claim, look, runs=runs, confidence=confidence, what=f"{mechanism}")


def worst_pair(sensitivity: Sensitivity, dim: int) -> tuple[Floats, Floats]:
    """Return two rows, centred at 0, as far apart as is allowed, in the worst direction.

    Raises
    ------
    ValueError
        If `dim` is not an integer of at least 1.
    """
    integer("dim", dim, at_least=1)
    direction = np.eye(dim)[0] if sensitivity.norm == "l1" else diagonal(dim)
    half = sensitivity.bound / 2 * direction
    return half, -half


def _pair(one: npt.ArrayLike, other: npt.ArrayLike) -> tuple[Floats, Floats]:
    row, neighbor = floats("pair", one, ndim=1), floats("pair", other, ndim=1)
    if row.shape != neighbor.shape:
        fail("pair", "two rows of one length", f"shapes {row.shape} and {neighbor.shape}")
    return row.astype(np.float64), neighbor.astype(np.float64)

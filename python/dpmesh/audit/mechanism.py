"""The audit of a bare mechanism: many releases of two rows as far apart as it should cover."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmesh._arrays import floats
from dpmesh._privacy_types import Floats, Sensitive
from dpmesh._validate import fail, instance, integer, require_methods
from dpmesh.algorithms.base import Algorithm
from dpmesh.algorithms.messages import Message, Round
from dpmesh.algorithms.worst_case import CROWD_DELTA, AuditSize, Coins, Crowd, Pair
from dpmesh.audit.claims import claim_of
from dpmesh.audit.contrast import contrast_length
from dpmesh.audit.result import AuditResult, Observations, tell_apart
from dpmesh.audit.scores import log_likelihood_ratio
from dpmesh.audit.transcript import fresh_keys
from dpmesh.keys import Key, Purpose
from dpmesh.noise.mechanisms import Mechanism
from dpmesh.noise.sensitivity import Sensitivity
from dpmesh.privacy.releases import Release
from dpmesh.problems.canaries import diagonal


@dataclass(frozen=True, kw_only=True)
class OneRelease(Algorithm[None, Floats]):
    """Algorithm that releases fixed vectors by one mechanism, for audits of the mechanism.

    The learning problem is an array with the vector of each node, shape (nodes, dim). Even rounds
    release the vectors, and odd rounds release their negatives. So noise that two such rounds share
    cancels in the difference of their releases, which reveals the vectors.

    Parameters
    ----------
    mechanism
        The mechanism.
    sensitivity
        The sensitivity declared to the mechanism.

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

    communication = "gossip"

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
        row, neighbor_row = worst_pair(self.sensitivity, dim)
        constant_row = np.zeros(dim)

        def problem_of(coins: Coins) -> Floats:
            return np.where(coins[:, np.newaxis], row, neighbor_row)

        pair = Pair(
            algorithm=self,
            problem=np.array([row, constant_row]),
            neighbor=np.array([neighbor_row, constant_row]),
            rounds=size.rounds or 2,
            delta=size.delta_or(1e-5),
        )
        crowd = Crowd(
            algorithm=self,
            problem_of=problem_of,
            canaries=size.canaries,
            rounds=1,
            delta=CROWD_DELTA,
        )
        return pair, crowd


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
    """Return a lower confidence bound on the privacy loss of one release by a mechanism.

    The mechanism releases two neighbouring vectors many times. A test by the likelihood ratio of
    the claimed noise distinguishes the releases, and its error rates give the bound. Pilot runs
    choose the threshold of the test, and fresh runs evaluate the test.

    Parameters
    ----------
    mechanism
        The mechanism to audit.
    sensitivity
        The sensitivity declared to the mechanism.
    pair
        Two neighbouring vectors, shape (dim,) each. By default their distance is the declared
        sensitivity, in the worst direction for the norm, and they are symmetric about 0.
    dim
        Length of the default vectors.
    runs
        Number of evaluated releases of each vector; the pilot runs are as many again.
    delta
        Delta of the claim, in [0, 1). For Gaussian noise the bound is on mu, at any delta.
    confidence
        Confidence level of the bound, in (0, 1).
    every_bit
        True if the test uses the low-order bits of floating-point noise, which can reveal the value
        (Mironov 2012). Noise on a grid must pass this test; real-valued noise may fail it.
    key
        Key of all randomness; by default a new key from the operating system.

    Raises
    ------
    ValueError
        If an argument is out of range, or there is no noise.

    Examples
    --------
    >>> import dpmesh as dm
    >>> gaussian, unit = dm.noise.Gaussian(2.0), dm.noise.Sensitivity(1.0, "l2", "")
    >>> result = dm.audit.audit_mechanism(gaussian, unit, runs=1000, delta=1e-5)
    >>> result.lower_bound < result.claim.mu
    True
    """
    require_methods(
        "mechanism", mechanism, "a mechanism, such as Gaussian(2.0)", "release", "noise_scale"
    )
    expectation = 'a Sensitivity, such as Sensitivity(1.0, "l2", "values between 0 and 1")'
    instance("sensitivity", sensitivity, expectation, Sensitivity)
    release = OneRelease(mechanism=mechanism, sensitivity=sensitivity)
    claim = claim_of(release.plan(1), delta)
    if pair is None:
        row, neighbor_row = worst_pair(sensitivity, dim)
    else:
        row, neighbor_row = _checked_pair(*pair)
    scale = mechanism.noise_scale(sensitivity, row.size)
    keys = fresh_keys(key)
    numbers_per_run = contrast_length(runs)

    def observe(positive: bool) -> Observations:
        released_row = row if positive else neighbor_row
        values = Sensitive(np.tile(released_row, (runs, 1)))
        stream = next(keys).stream(Purpose.NOISE)
        released = mechanism.release(values, sensitivity, stream)
        scores = log_likelihood_ratio(
            released, row, neighbor_row, mechanism.norm, scale, every_bit=every_bit
        )
        return Observations(scores, np.float64(released[:, :numbers_per_run]))

    return tell_apart(claim, observe, runs=runs, confidence=confidence, subject=f"{mechanism}")


def worst_pair(sensitivity: Sensitivity, dim: int) -> tuple[Floats, Floats]:
    """Return two rows, centred at 0, as far apart as is allowed, in the worst direction.

    Parameters
    ----------
    sensitivity
        Largest distance of two neighbouring rows, and its norm.
    dim
        Length of a row.

    Raises
    ------
    ValueError
        If `dim` is not an integer of at least 1.
    """
    integer("dim", dim, at_least=1)
    if sensitivity.norm == "l1":
        direction = np.eye(dim)[0]
    else:
        direction = diagonal(dim)
    half = sensitivity.bound / 2 * direction
    return half, -half


def _checked_pair(row: npt.ArrayLike, neighbor_row: npt.ArrayLike) -> tuple[Floats, Floats]:
    """Return two rows of one length as float64."""
    first = floats("pair", row, ndim=1)
    second = floats("pair", neighbor_row, ndim=1)
    if first.shape != second.shape:
        fail("pair", "two rows of one length", f"shapes {first.shape} and {second.shape}")
    return first.astype(np.float64), second.astype(np.float64)

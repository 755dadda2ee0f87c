"""Audit of correlated noise in one seeded run: which random stream entered which message.

The key of a run gives its standard normals again. On constant data, least squares finds the factors
F with which they entered the messages. F must be ``S C^-1`` (the inverse of the plan's recursion)
times the amplitudes of nodes' own noise and of noise shared by pairs. The mu that follows from F
must be at most the claimed mu. One seeded run shows mistakes that statistical audits need
thousands of runs for, and also mistakes that harm accuracy alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

import dpmesh.kernels as kernels
from dpmesh._arrays import FloatArray
from dpmesh.keys import Key, Purpose
from dpmesh.noise.correlated.joint import CorrelatedGaussian
from dpmesh.noise.correlated.sampler import CorrelatedNoise, NoiseState, pair_numbers

Array = npt.NDArray[np.float64]

_WHOLE = 1e-4
"""Rounding error of products of whole numbers, in steps of the grid."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ReadBack:
    """The random streams behind the noise of a run.

    Parameters
    ----------
    factors
        Shape (rounds * nodes, normals): factor of each normal vector in each message.
    error
        Largest difference from the factors of the plan, relative to their largest.
    residual
        Largest part of the noise that no known stream explains, relative to the noise.
    mu
        Gaussian DP parameter that follows from `factors` alone, for the sensitivities of the plan,
        records that are used once, and the coalition given.
    claim
        mu of the plan against that coalition.
    """

    factors: Array
    error: float
    residual: float
    mu: float
    claim: float

    def violations(self, *, tolerance: float = 1e-4) -> list[str]:
        """Return the faults in words; empty if the noise is that of the plan."""
        faults = []
        if self.residual > tolerance:
            faults.append(f"{self.residual:.2g} of the noise is from no stream of the plan")
        if self.error > tolerance:
            faults.append(f"streams entered with factors that are off by {self.error:.2g}")
        if self.mu > self.claim * (1 + tolerance):
            faults.append(f"mu is {self.mu:.4f}, above the claimed {self.claim:.4f}")
        return faults


def read_back(
    noise: FloatArray,
    key: Key,
    plan: CorrelatedNoise,
    *,
    coalition: tuple[int, ...] = (),
    claim: float | None = None,
) -> ReadBack:
    """Return the streams behind the noise of a run on constant data.

    Parameters
    ----------
    noise
        Messages minus the constant values, shape (rounds, nodes, dim), with dim at least the number
        of normal vectors (nodes and pairs, times rounds); four times as many is comfortable.
    key
        The seeded key of the run.
    plan
        The noise that the run should have drawn.
    coalition
        Nodes whose own noise and secrets the observer knows.
    claim
        mu that the run claims; None for the plan's. It covers records used in one round at most.
    """
    release = plan.release
    assert release.grid is None
    rounds, nodes, dim = noise.shape
    normals = _normals(key, plan, noise)
    assert dim >= len(normals)
    flat = noise.reshape(rounds * nodes, dim).astype(np.float64)
    factors = np.linalg.lstsq(normals.T, flat.T, rcond=None)[0].T
    unexplained = flat - factors @ normals
    planned = planned_factors(release, rounds, nodes)
    return ReadBack(
        factors=factors,
        error=float(np.abs(factors - planned).max() / np.abs(planned).max()),
        residual=float(np.linalg.norm(unexplained) / np.linalg.norm(flat)),
        mu=_mu(factors, release, nodes, coalition),
        claim=release.prefix(rounds).mu_of(coalition) if claim is None else claim,
    )


def replayed(
    plan: CorrelatedNoise, key: Key, row: int, nodes: npt.ArrayLike, dim: int
) -> NoiseState:
    """Return the state before a row, by drawing all earlier ones again."""
    state = plan.start(nodes, dim)
    for _ in range(row):
        _, state = plan.draw(key, state)
    return state


def read_back_on_grid(
    messages: FloatArray, values: FloatArray, key: Key, plan: CorrelatedNoise
) -> list[str]:
    """Return the faults of a run's messages on a grid, in words; empty if there is none.

    Every whole number of steps is drawn again, and what is left of a message must be the values,
    less the earlier noise as it was sent, rounded to the grid.

    Parameters
    ----------
    messages, values
        What was released, and what it was released of: shape (rounds, nodes, dim), float64.
    key, plan
        As in `read_back`.
    """
    release = plan.release
    rounds, nodes, dim = messages.shape
    grid = release.grid
    factors = release.recursion
    assert grid is not None
    scale = release.noise_to_sensitivity * release.widened(dim) / grid
    noise = np.subtract(messages, values, dtype=np.float64)
    faults = []
    for t in range(rounds):
        steps = _steps(key, plan, scale, t, nodes, dim)
        sent_steps = factors[t, 0] * messages[t] / grid
        centre = factors[t, 0] * values[t] / grid
        for k in range(1, min(t + 1, factors.shape[1])):
            centre -= factors[t, k] * noise[t - k] / grid
        whole_steps = np.rint(sent_steps)
        from_grid = float(np.abs(sent_steps - whole_steps).max())
        noise_error = float(np.abs(whole_steps - steps - centre).max())
        if from_grid > _WHOLE:
            faults.append(f"row {t} is {from_grid:.2g} steps away from the grid")
        elif noise_error > 0.5 + _WHOLE:
            faults.append(f"row {t} has noise that is {noise_error:.2g} steps off, rounding 0.5")
    return faults


def _steps(
    key: Key, plan: CorrelatedNoise, scale: float, row: int, nodes: int, dim: int
) -> npt.NDArray[np.int64]:
    """Return the noise of a row in steps of the grid, shape (nodes, dim)."""
    secrets = plan.release.secrets_of(row)
    own_scale = scale if secrets is None else scale * secrets.own
    stream = key.stream(plan.purpose, plan.first_round + row)
    steps = kernels.discrete_gaussian((nodes, dim), own_scale, stream)
    if secrets is None:
        return steps
    shared = kernels.discrete_gaussian(
        (len(secrets.pairs), dim),
        scale * secrets.shared,
        key.stream(Purpose.PAIR, plan.first_round + row),
        nodes=pair_numbers(secrets.pairs),
    )
    np.add.at(steps, secrets.pairs[:, 0], shared)
    np.subtract.at(steps, secrets.pairs[:, 1], shared)
    return steps


def planned_factors(release: CorrelatedGaussian, rounds: int, nodes: int) -> Array:
    """Return F of the plan: columns are nodes' own normals, then the pairs', of each round."""
    recursion = np.zeros((rounds, rounds))
    for k in range(min(rounds, release.recursion.shape[1])):
        np.fill_diagonal(recursion[k:], release.recursion[k:rounds, k])
    over_rounds = np.linalg.inv(recursion) * release.noise_to_sensitivity
    blocks = [np.kron(over_rounds[:, [s]], _between(release, s, nodes)) for s in range(rounds)]
    return np.hstack(blocks)


def _between(release: CorrelatedGaussian, row: int, nodes: int) -> Array:
    """Return the factors of a round's normals in its noise: nodes' own, then a column a pair."""
    secrets = release.secrets_of(row)
    if secrets is None:
        return np.eye(nodes)
    incidence = np.zeros((nodes, len(secrets.pairs)))
    incidence[secrets.pairs[:, 0], np.arange(len(secrets.pairs))] = secrets.shared
    incidence[secrets.pairs[:, 1], np.arange(len(secrets.pairs))] = -secrets.shared
    return np.hstack([secrets.own * np.eye(nodes), incidence])


def _normals(key: Key, plan: CorrelatedNoise, noise: FloatArray) -> Array:
    """Return the standard normals of all streams, drawn in the type of the noise."""
    rounds, nodes, dim = noise.shape
    normals: list[FloatArray] = []
    for t in range(rounds):
        own_stream = key.stream(plan.purpose, plan.first_round + t)
        normals.append(kernels.gaussian((nodes, dim), 1.0, own_stream, dtype=noise.dtype))
        secrets = plan.release.secrets_of(t)
        if secrets is not None and len(secrets.pairs):
            shared = key.stream(Purpose.PAIR, plan.first_round + t)
            ids = pair_numbers(secrets.pairs)
            shape = (len(secrets.pairs), dim)
            normals.append(kernels.gaussian(shape, 1.0, shared, dtype=noise.dtype, nodes=ids))
    return np.concatenate(normals).astype(np.float64)


def _mu(
    factors: Array, release: CorrelatedGaussian, nodes: int, coalition: tuple[int, ...]
) -> float:
    """Return the largest mu of a change of one honest node in one round.

    The coalition knows its own noise and secrets, so that only the other noise hides the change.
    Infinite if some combination of the messages that the shift moves has no noise at all.
    """
    rounds = len(factors) // nodes
    unknown = []
    for t in range(rounds):
        unknown += [node not in coalition for node in range(nodes)]
        secrets = release.secrets_of(t)
        if secrets is not None:
            unknown += [
                i not in coalition and j not in coalition for i, j in secrets.pairs.tolist()
            ]
    honest = np.array([node not in coalition for node in range(nodes)] * rounds)
    unknown_factors = factors[honest][:, np.array(unknown)]
    values, vectors = np.linalg.eigh(unknown_factors @ unknown_factors.T)
    hidden = values > 1e-12 * values[-1]
    count = int(honest.sum()) // rounds
    worst = 0.0
    for tau in range(rounds):
        for u in range(count):
            shift = np.zeros((rounds, count))
            shift[:, u] = _movement(release, rounds, tau)
            shift_along_axes = vectors.T @ shift.ravel()
            if np.linalg.norm(shift_along_axes[~hidden]) > 1e-6 * np.linalg.norm(shift_along_axes):
                return np.inf  # a combination of messages has no noise
            worst = max(worst, float(shift_along_axes[hidden] ** 2 @ (1 / values[hidden])))
    return float(np.sqrt(worst))


def _movement(release: CorrelatedGaussian, rounds: int, tau: int) -> Array:
    """Return the movement of this and later messages by a change of the state in row tau."""
    shift = np.zeros(rounds)
    value = float(np.asarray(release.sensitivities)[tau])
    for t in range(tau, rounds):
        value = value if t == tau else value * float(np.asarray(release.memory)[t])
        shift[t] = value
    return shift

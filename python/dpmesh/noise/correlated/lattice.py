"""Correlated noise on a grid: whole numbers of steps, whose sums hide the last bits of the values.

A round releases ``y_t = round(C_tt x_t / s_t - sum_k C[t, k] N_k / s_k) + g E_t`` on the multiples
of g, where E are whole numbers: discrete Gaussian ones of each node and of each pair. The message
is ``m_t = s_t y_t / C_tt``, and ``N_k = m_k - x_k`` as it was sent, so that the rounding of a round
is part of the noise that later rounds take back. Given equal messages, a record used in round tau
moves row t by at most ``|C[t, tau]| + g sqrt(dim)`` before its noise, and no row in which C is 0.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import dpmesh.kernels as kernels
from dpmesh._validate import fail
from dpmesh.keys import Stream
from dpmesh.noise.correlated.factorization import Factorization
from dpmesh.noise.correlated.secrets import Secrets
from dpmesh.noise.grid import MOST_STEPS, check_length

Steps = npt.NDArray[np.int64]


def widening(factorization: Factorization, secrets: Secrets | None, grid: float, dim: int) -> float:
    """Return the factor by which noise on a grid is larger, so that it hides rounding as well.

    Let a coalition leave ``e^2 = [(own^2 I + shared^2 L')^-1]_uu`` of node u. At noise ratio z
    row t is mu-Gaussian-DP with ``mu z = e (|C[t, tau]| + g sqrt(dim)) + g sqrt(dim) kappa``, but
    for how discrete noise differs from Gaussian noise (`CorrelatedGaussian.widened`): the least
    noise of each kind that makes up a whole shift is rounded to whole numbers, by at most 1/2,
    which ``kappa^2 = pairs / (4 shared^2) + sum(degree^2) / (4 own^2)`` covers. Over m rows with
    entries c that is at most ``e |c| + g sqrt(m dim) (e + kappa)`` (triangle inequality). The noise
    of this factor keeps ``e |c|`` for every leading part c of a column, so that runs that stop
    early and repeated uses cost what mu says.
    """
    columns = factorization.columns
    counts = np.arange(1, columns.shape[1] + 1)
    longest = float(np.sqrt(counts / np.cumsum(columns**2, axis=1)).max())
    rounding = 1.0
    if secrets is not None and len(secrets.pairs) and secrets.shared > 0:
        degrees = np.bincount(secrets.pairs.reshape(-1), minlength=secrets.nodes)
        pair_term = len(secrets.pairs) / (4 * secrets.shared**2)
        node_term = float((degrees**2).sum()) / (4 * secrets.own**2)
        kappa = np.sqrt(pair_term + node_term)
        rounding += float(kappa) / secrets.mu_of(())
    return 1 + grid * float(np.sqrt(dim)) * longest * rounding


def noise_steps(
    scale: float,
    secrets: Secrets | None,
    streams: tuple[Stream, Stream],
    nodes: npt.NDArray[np.uint32],
    dim: int,
    pairs: tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]] | None,
) -> Steps:
    """Draw the noise E of one row in whole steps, shape (nodes, dim).

    Parameters
    ----------
    scale
        Scale of local noise of size 1, in steps of the grid.
    secrets
        Secrets of this row of the run; None for independent nodes.
    streams
        Randomness of the nodes, and that of the pairs.
    nodes
        The node of each row of the result, shape (nodes,).
    dim
        Length of a message.
    pairs
        Numbers of the pairs and the rows of their ends, from `held_pairs`; None without secrets.

    Raises
    ------
    ValueError
        If the grid is too fine for the noise.
    """
    check_length(dim)
    local = 1.0
    shared = 0.0
    if secrets is not None:
        local = secrets.own
        shared = secrets.shared
    largest = scale * max(local, shared)
    if largest > MOST_STEPS:
        expected = f"at least a 2**-25th of the noise, {largest / MOST_STEPS:.3g} times as much"
        fail("grid", expected, "a finer one")
    own_stream, pair_stream = streams
    steps = kernels.discrete_gaussian((len(nodes), dim), scale * local, own_stream, nodes=nodes)
    if pairs is None:
        return steps
    numbers, ends = pairs
    pair_noise = kernels.discrete_gaussian(
        (len(numbers), dim), scale * shared, pair_stream, nodes=numbers
    )
    for noise, (adds, subtracts) in zip(pair_noise, ends.tolist(), strict=True):
        if adds >= 0:
            steps[adds] += noise
        if subtracts >= 0:
            steps[subtracts] -= noise
    return steps

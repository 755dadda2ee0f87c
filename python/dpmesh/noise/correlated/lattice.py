"""Correlated noise on a grid: whole numbers of steps, whose sums hide the last bits of the values.

With values x_t, sensitivities s_t and the step g of the grid, round t releases

    y_t = round_to_multiples_of_g(C[t, t] x_t / s_t - sum over k < t of C[t, k] N_k / s_k) + g E_t

where E are whole numbers: discrete Gaussian ones of each node and of each pair. The message is
``m_t = s_t y_t / C[t, t]``. ``N_k = m_k - x_k`` is the noise *as it was sent*, so that the rounding
of a round is part of the noise that later rounds take back.

Given equal messages, a record used in round tau moves row t before its noise by at most
``abs(C[t, tau]) + g sqrt(dim)``, and not at all where ``C[t, tau]`` is 0. Proof: Theorem 4 of
docs/privacy/correlated_noise_proofs.md.
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

    Let a coalition leave ``e^2 = [(own^2 I + shared^2 L')^-1]_uu`` of node u. By Theorem 4, at
    noise ratio z row t is mu-Gaussian-DP with

        mu z = e (abs(C[t, tau]) + g sqrt(dim)) + g sqrt(dim) kappa,
        kappa^2 = pairs / (4 shared^2) + sum of degree^2 / (4 own^2)

    but for how discrete noise differs from Gaussian noise (`CorrelatedGaussian.widened`). The term
    of kappa: the least noise of nodes and pairs that makes up the shift is rounded to whole
    numbers, by at most 1/2 for each pair. Over the m rows of a column with entries c this is at
    most ``e |c| + g sqrt(m dim) (e + kappa)`` (triangle inequality). With noise that is larger by

        1 + g sqrt(dim) (sqrt(m) / |c|) (1 + kappa / e)

    it is at most ``e |c|``. The factor is the largest over every leading part c of every column, so
    that runs that stop early and repeated uses cost what mu says. Its e is that of the worst node
    without a coalition; no claim of `CorrelatedGaussian` is for a smaller e.

    Parameters
    ----------
    factorization
        C.
    secrets
        Secrets of all rounds; None for independent nodes.
    grid
        Step g of the grid; its unit is a row's noise over the noise ratio.
    dim
        Length of a message.
    """
    columns = factorization.columns
    row_counts = np.arange(1, columns.shape[1] + 1)
    leading_squares = np.cumsum(columns**2, axis=1)
    largest_ratio = float(np.sqrt(row_counts / leading_squares).max())  # sqrt(m) / |c|
    rounding = 1.0
    if secrets is not None and len(secrets.pairs) and secrets.shared > 0:
        rounding += _kappa(secrets) / secrets.mu_of(())
    return 1 + grid * float(np.sqrt(dim)) * largest_ratio * rounding


def _kappa(secrets: Secrets) -> float:
    """Return kappa of `widening`: the rounding of a shift to whole numbers of nodes and pairs."""
    degrees = np.bincount(secrets.pairs.reshape(-1), minlength=secrets.nodes)
    pair_term = len(secrets.pairs) / (4 * secrets.shared**2)
    node_term = float((degrees**2).sum()) / (4 * secrets.own**2)
    return float(np.sqrt(pair_term + node_term))


def noise_steps(
    scale: float,
    secrets: Secrets | None,
    streams: tuple[Stream, Stream],
    nodes: npt.NDArray[np.uint32],
    dim: int,
    pairs: tuple[npt.NDArray[np.uint32], npt.NDArray[np.int64]] | None,
) -> Steps:
    """Draw the noise E of one row in whole steps, shape (nodes, dim).

    The smaller node of a pair adds its secret, the larger one subtracts it, exactly.

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

"""Theorem 1 of the quantized paper, as reconstructed: our text of the paper lacks its equations."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail, integer, positive
from dpmesh.accounting._arguments import open_probability, positives
from dpmesh.accounting.papers import NotProved
from dpmesh.algorithms import QuantizedGossip
from dpmesh.schedules import at


def theorem_1(
    *,
    target_delta: float,
    sensitivities: npt.ArrayLike,
    noise_stds: npt.ArrayLike,
    decay: float = 2.0,
) -> float:
    """Return the epsilon of Theorem 1: the classical Gaussian mechanism, and basic composition.

    ``sum_k sqrt(2 ln(1.25 / delta_k)) Delta_k / sigma_k`` with ``delta_k`` in proportion to ``(k +
    1)**-nu``, normalised to sum to `target_delta`: as they are, they sum to up to 0.645 at nu = 2.
    The exact epsilon is ``gdp_epsilon(target_delta, gdp_mu(noise_stds / sensitivities))``. For the
    schedules of Figure 5 to which the theorem applies, its epsilon is 12.9 to 22.3 times the exact
    one after 100 iterations, and 49.6 to 179 times after 2,000.

    Parameters
    ----------
    target_delta
        delta of the whole run, in (0, 1).
    sensitivities
        ``Delta_1, ..., Delta_K``, positive, shape (K,): how far replacing a record moves the
        states, L2 distances, given all earlier messages. Message 0 depends on no data.
    noise_stds
        ``sigma_1, ..., sigma_K``, positive, shape (K,).
    decay
        nu, greater than 1, so that the sum of all delta_k is finite.

    Raises
    ------
    NotProved
        If an ``epsilon_k`` is 1 or more, where the classical theorem does not apply.
    ValueError
        If an argument is out of its range, or lengths differ.
    """
    target_delta = open_probability("target_delta", target_delta)
    deltas = positives("sensitivities", sensitivities)
    stds = positives("noise_stds", noise_stds)
    if deltas.ndim != 1 or deltas.size == 0 or deltas.shape != stds.shape:
        fail("noise_stds", f"one for each of {deltas.shape} sensitivities", f"shape {stds.shape}")
    decay = positive("decay", decay)
    if decay <= 1:
        fail("decay", "a number greater than 1", decay)
    if 2.0**-decay == 0:
        fail("decay", "a number whose power 2**-decay is above 0", decay)
    delta_shares = np.arange(2, deltas.size + 2.0) ** -decay
    delta_shares *= target_delta / np.sum(delta_shares)
    epsilons = np.sqrt(2 * np.log(1.25 / delta_shares)) * deltas / stds
    largest = int(np.argmax(epsilons))
    if epsilons[largest] >= 1:
        raise NotProved(
            "noise_stds: the classical theorem wants an epsilon below 1 in each iteration, got"
            f" {epsilons[largest]:.4g} in iteration {largest + 1}"
        )
    return float(np.sum(epsilons))


def paper_budget(algorithm: QuantizedGossip, rounds: int, delta: float) -> float:
    """Return the epsilon of Theorem 1 for the messages of an algorithm.

    Parameters
    ----------
    algorithm
        One with noise; its `mode` chooses the sensitivities.
    rounds
        K + 1, at least 2.
    delta
        In (0, 1), for the whole run.

    Raises
    ------
    NotProved
        If an iteration has an epsilon of 1 or more.
    ValueError
        If an argument is out of range, or there is no noise.
    """
    integer("rounds", rounds, at_least=2)
    if algorithm.noise_std is None:
        fail("noise_std", "noise", None)
    stds = [at(algorithm.noise_std, k + 1) for k in range(1, rounds)]
    deltas = algorithm.sensitivities(rounds)[1:]  # Delta_0 is 0
    return theorem_1(target_delta=delta, sensitivities=deltas, noise_stds=stds)

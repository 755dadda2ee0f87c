"""Federated learning under secure sums: nobody sees a client's update, and one noise covers all.

A client is a site that adds up one vector: the clipped update of its own training. So what is
protected is the client with everything that it holds, by the numbers and proofs of secure sums for
one record.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from math import sqrt
from os import PathLike

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._validate import fail
from dpmesh.algorithms.federated import FederatedLearning
from dpmesh.engines.clipping import clipped
from dpmesh.engines.secure.server import Server
from dpmesh.engines.secure.site import Sums
from dpmesh.engines.secure.training import run_rounds
from dpmesh.keys import Key, Purpose
from dpmesh.privacy.secure import SecureSum
from dpmesh.privacy.types import Floats, Released

_log = logging.getLogger("dpmesh")


def federated_sum(
    algorithm: FederatedLearning, dim: int, rounds: int, *, colluding: int = 1, dropouts: int = 0
) -> SecureSum:
    """Return the public numbers of the sums of clients' updates, for their contract.

    Parameters
    ----------
    algorithm
        With ``sampling="poisson"`` each client takes part by its own secret coin; ``"uniform"``
        needs all clients in each round, a sampling rate of 1. Its `noise_multiplier` is that of the
        noise which the adversary does not know.
    dim
        Length of the model.
    rounds
        Number of rounds.
    colluding, dropouts
        As in `SecureSum`.

    Raises
    ------
    ValueError
        If the algorithm draws cohorts of a fixed size, which a server would know, has no noise, or
        expects clients to drop out (a secure sum opens only if all of its cohort answer), adapts
        its clipping norm, or correlates its noise.
    """
    cohorts = algorithm.cohorts
    if cohorts is None or (algorithm.sampling == "uniform" and cohorts.rate < 1):
        wanted = 'sampling="poisson", or sampling_rate=1: a server must not know the cohort'
        fail("algorithm", wanted, "cohorts that the server draws")
    if algorithm.noise_multiplier is None or algorithm.arrival_rate < 1:
        fail("algorithm", "one with noise, and an arrival_rate of 1", algorithm)
    if algorithm.adaptive_clipping is not None or algorithm.noise is not None:
        wanted = "a clipping norm that stays, and noise of each round by itself"
        fail("algorithm", wanted, algorithm)
    return SecureSum(
        dim=dim,
        sites=algorithm.clients,
        records=algorithm.clients,
        records_per_site=1,
        noise_multiplier=algorithm.noise_multiplier,
        clipping_norm=algorithm.clipping_norm,
        sampling_rate=cohorts.rate,
        neighboring_relation=algorithm.neighboring_relation,
        rounds=rounds,
        colluding=colluding,
        dropouts=dropouts,
    )


def client_update(numbers: SecureSum, train: Callable[[Floats], Floats]) -> Sums:
    """Return what a client adds up: its clipped update, where its coin decides that it takes part.

    Parameters
    ----------
    numbers
        Those of the contract.
    train
        Returns the trained model for a global one, shape (1, dim). If it fails, or its result is
        not finite, the update is 0, and the client's log states why.
    """

    def sums(w: Floats, t: int, coins: Key) -> Floats:
        update: Floats = np.zeros(w.shape)
        try:
            trained = np.asarray(train(w.copy()), np.float64)
            if trained.shape != w.shape or not kernels.all_finite(trained):
                fail("train", f"{w.size} finite numbers", "others")
            update = clipped(trained - w, numbers.clipping_norm)
        except Exception:
            _log.exception("training failed: the update is 0")
        rate, coin = numbers.sampling_rate, coins.stream(Purpose.SAMPLE, t)
        takes_part = rate == 1 or kernels.bernoulli(1, rate, coin)[0]
        return update if takes_part else np.zeros_like(update)

    return sums


def train_federated(
    server: Server,
    algorithm: FederatedLearning,
    start: Floats,
    *,
    checkpoint: str | PathLike[str] | None = None,
) -> Floats:
    """Run all rounds of a contract between the clients of a server, and end the run.

    Parameters
    ----------
    server
        Of a contract with `federated_sum` of the algorithm.
    algorithm
        What the server does with a noisy sum: global step size, estimator, averages of models.
    start
        The first model, shape (1, dim), which must not depend on private data.
    checkpoint
        As in `train`.

    Returns
    -------
    The model, shape (1, dim).

    Raises
    ------
    ValueError
        If the contract is not that of the algorithm, or too few clients are left.
    RefusedError
        If a client refuses.
    """
    numbers = server.contract.numbers
    lost = {"colluding": numbers.colluding, "dropouts": numbers.dropouts}
    if federated_sum(algorithm, numbers.dim, numbers.rounds, **lost) != numbers:
        fail("algorithm", f"that of the contract's sums, {numbers}", algorithm)
    noise = numbers.share * sqrt(numbers.sites) * numbers.grid  # if nobody is lost
    known = replace(algorithm, noise_multiplier=noise / algorithm.sensitivity(0).bound, grid=None)
    state = run_rounds(
        server,
        known.start_from(Released(start)),
        numbers.rounds,
        lambda state, total, t: known.absorb(state, Released(total.astype(start.dtype)), t),
        run={"algorithm": str(algorithm)},
        checkpoint=checkpoint,
    )
    server.close(state.output)
    return state.output

"""Federated learning under secure sums, between clients on machines of their own.

A contract's numbers are `FederatedLearning.secure_sum`. A client adds up `client_sums`, if it
trains as the algorithm says, or `client_update` of any training of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from os import PathLike
from typing import Any

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._validate import fail
from dpmesh.algorithms.federated import FederatedLearning
from dpmesh.algorithms.federated_updates import ClientUpdates
from dpmesh.engines.clipping import clipped
from dpmesh.engines.secure.contract import Contract
from dpmesh.engines.secure.server import Server
from dpmesh.engines.secure.site import Sums
from dpmesh.engines.secure.training import run_rounds
from dpmesh.keys import Key, Purpose
from dpmesh.privacy.secure import SecureSum
from dpmesh.privacy.types import Floats, Released

_log = logging.getLogger("dpmesh")


def client_update(contract: Contract, train: Callable[[Floats], Floats]) -> Sums:
    """Return what a client adds up: its clipped update, where its coin decides that it takes part.

    Parameters
    ----------
    contract
        Of ``unit="user"``.
    train
        Returns the trained model for a global one, shape (1, dim). If it fails, or its result is
        not finite, the update is 0, and the client's log states why.

    Raises
    ------
    ValueError
        If the contract protects records and not clients.
    """
    contract.check_unit("user")

    def update(w: Floats, *_: Any) -> Floats:
        trained = np.asarray(train(w.copy()), np.float64)
        if trained.shape != w.shape:
            fail("train", f"{w.size} numbers", f"shape {trained.shape}")
        moved: Floats = trained - w
        return moved

    return _where_it_takes_part(contract.numbers, update)


def client_sums(contract: Contract, algorithm: FederatedLearning, problem: Any) -> Sums:
    """Return what a client adds up that trains on all records of a problem of one node.

    If its training fails, the update is 0, and the client's log states why.

    Raises
    ------
    ValueError
        If the contract is not that of the algorithm or protects records and not clients, or the
        problem has several nodes.
    """
    _check(contract, algorithm)
    updates = algorithm.contribution
    assert isinstance(updates, ClientUpdates)  # of the contract's unit
    if problem.nodes != 1:
        fail("problem", "the records of one client, such as problem.for_nodes([0])", problem.nodes)

    def update(w: Floats, t: int, coins: Key) -> Floats:
        moved = updates.updates(Released(w), np.arange(1), t, problem, coins)
        return moved.astype(np.float64)

    return _where_it_takes_part(contract.numbers, update)


def _where_it_takes_part(numbers: SecureSum, update_of: Sums) -> Sums:
    """Return the clipped update, or 0 where the client's coin keeps it out or its training fails.

    It trains in either case, so that the time until it answers does not reveal its coin.
    """

    def sums(w: Floats, t: int, coins: Key) -> Floats:
        update: Floats = np.zeros(w.shape)
        try:
            moved = update_of(w, t, coins)
            if not kernels.all_finite(moved):
                fail("train", "finite numbers", "NaN or infinity")
            update = clipped(moved, numbers.clipping_norm)
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
        Of a contract with the algorithm's `secure_sum`.
    algorithm
        What the server does with a noisy sum: denoiser, optimizer, step, average.
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
        If the contract is not that of the algorithm or protects records and not clients, or too few
        clients are left.
    RefusedError
        If a client refuses.
    """
    _check(server.contract, algorithm)
    state = run_rounds(
        server,
        algorithm.start_from(Released(start)),
        server.contract.numbers.rounds,
        algorithm.absorb,
        run={"algorithm": str(algorithm)},
        checkpoint=checkpoint,
    )
    server.close(state.output)
    return state.output


def _check(contract: Contract, algorithm: FederatedLearning) -> None:
    contract.check_unit("user")
    if algorithm.secure_sum != contract.numbers:
        wanted = f"one whose secure_sum is that of the contract, {contract.numbers}"
        fail("algorithm", wanted, algorithm)

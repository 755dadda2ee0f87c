"""Training of one model by secure sums, at the server, which sees no records."""

from __future__ import annotations

from types import SimpleNamespace

from dpmesh._validate import fail
from dpmesh.algorithms.cross_silo import CrossSiloSGD
from dpmesh.engines.secure.server import Server
from dpmesh.privacy.types import Floats, Released


def train(
    server: Server, algorithm: CrossSiloSGD, start: Floats, *, regularization: float = 0.0
) -> Floats:
    """Run all rounds of an algorithm between the sites of a server, and end the run.

    Parameters
    ----------
    server
        Of a contract with the algorithm's sums.
    algorithm
        Distributed DP-SGD.
    start
        The first model, shape (1, dim), which must not depend on private data.
    regularization
        Factor of the weight decay.

    Returns
    -------
    The model, shape (1, dim).

    Raises
    ------
    ValueError
        If the contract is not that of the algorithm, or too few sites are left.
    RefusedError
        If a site refuses.
    """
    if algorithm.secure_sum != server.contract.numbers:
        fail("algorithm", f"one of the contract's sums, {server.contract.numbers}", algorithm)
    state, public = algorithm.start_from(Released(start)), SimpleNamespace()
    public.regularization = regularization
    for t in range(algorithm.rounds):
        state = algorithm.absorb(state, server.sum(t, state.w), t, public)
    server.close()
    return algorithm.parameters(state)

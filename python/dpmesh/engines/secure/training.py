"""Training of one model by secure sums, at the server, which sees no records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from types import SimpleNamespace
from typing import Any, TypeVar

from dpmesh._validate import fail
from dpmesh.algorithms.cross_silo import CrossSiloSGD
from dpmesh.engines.secure.server import Asked, Server
from dpmesh.privacy.types import Floats, Released
from dpmesh.run.checkpoint import Checkpoint, SavedRun

S = TypeVar("S")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a server that starts again needs: all of it is released or public."""

    state: Any
    rounds: int
    asked: Asked


def train(
    server: Server,
    algorithm: CrossSiloSGD,
    start: Floats,
    *,
    regularization: float = 0.0,
    checkpoint: str | PathLike[str] | None = None,
    progress: Callable[[int], object] = id,
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
    checkpoint
        File from which a server that was killed goes on, with the same bits and at no further cost.
        It holds models and attempts, and nothing private.
    progress
        Called with the number of rounds that are done.

    Returns
    -------
    The model, shape (1, dim).

    Raises
    ------
    ValueError
        If the contract is not that of the algorithm or protects no records, the checkpoint is of
        another run, or too few sites are left.
    RefusedError
        If a site refuses.
    """
    server.contract.check_unit("record")
    if algorithm.secure_sum != server.contract.numbers:
        fail("algorithm", f"one of the contract's sums, {server.contract.numbers}", algorithm)
    public = SimpleNamespace(regularization=regularization)
    state = run_rounds(
        server,
        algorithm.start_from(Released(start)),
        algorithm.rounds,
        lambda state, total, t: algorithm.absorb(state, total, t, public),
        run={"algorithm": str(algorithm), "regularization": regularization},
        checkpoint=checkpoint,
        progress=progress,
    )
    model = algorithm.parameters(state)
    server.close(model)
    return model


def run_rounds(
    server: Server,
    state: S,
    rounds: int,
    absorb: Callable[[S, Released, int], S],
    *,
    run: dict[str, Any],
    checkpoint: str | PathLike[str] | None = None,
    progress: Callable[[int], object] = id,
) -> S:
    """Release and absorb the sums of all rounds that are left.

    Parameters
    ----------
    server
        The server.
    state
        Its first state, which has a model `w`.
    rounds
        Rounds of the run.
    absorb
        Returns the state after a sum.
    run
        What else identifies the run: a checkpoint of another one is refused.
    checkpoint, progress
        As in `train`.
    """
    done, saved = 0, None
    if checkpoint is not None:
        known = {"contract": server.contract.hash.hex(), **run}
        saved = SavedRun(Checkpoint(checkpoint, every=1), known, [], "")
        begun = Progress(state=state, rounds=0, asked=server.asked)
        found = saved.resume(begun, server.contract.plan)
        state, done = found.state, found.rounds
        server.go_on(found.asked)

    def save() -> None:
        if saved is not None:
            saved.save(Progress(state=state, rounds=done, asked=server.asked))

    model: Any = state
    while done < rounds:
        total = server.sum(done, model.w, save)
        model = state = absorb(state, total, done)
        done += 1
        save()
        progress(done)
    return state

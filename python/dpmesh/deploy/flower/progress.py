"""What a server keeps in a file, so that it can be killed and started again."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dpmesh._extras import needed_by
from dpmesh.algorithms.federated import FederatedState
from dpmesh.privacy.releases import Release
from dpmesh.run.checkpoint import Checkpoint, SavedRun
from dpmesh.run.identity import without_addresses

with needed_by("the engine 'flower'"):
    from flwr.app import ArrayRecord


@dataclass(frozen=True, kw_only=True)
class ServerProgress:
    """What a server that starts again needs: all of it is released or public.

    Parameters
    ----------
    state
        The global model and its history.
    rounds
        How many are done.
    ledger
        All releases so far.
    parties
        The clients' numbers by their names.
    """

    state: FederatedState
    rounds: int
    ledger: list[Release]
    parties: dict[str, int]


def checkpoint_of(
    path: str | Path, key: str, salt: str, model: ArrayRecord, **settings: object
) -> SavedRun:
    """Return the file of a run with these settings, which refuses that of another run."""
    parts = zip(model, model.to_numpy_ndarrays(), strict=True)
    run = {name: without_addresses(value) for name, value in settings.items()}
    run["model"] = ", ".join(f"{name} {part.dtype}{part.shape}" for name, part in parts)
    return SavedRun(Checkpoint(path, every=1), run, [key], salt)

"""A rehearsal: all parties of a contract in one process, each with its own folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from dpmesh._validate import fail
from dpmesh.data import Dataset
from dpmesh.deploy.contract import Contract
from dpmesh.deploy.folder import Folder
from dpmesh.deploy.node import Node
from dpmesh.deploy.router import Router
from dpmesh.run import simulate


class Rehearsal(NamedTuple):
    """The result of a rehearsal.

    Attributes
    ----------
    released
        Each party's released model, shape (parties, dim).
    same
        Whether they have the bits of `simulate` under the contract's public key.
    bytes
        How many the router carried.
    """

    released: Any
    same: bool
    bytes: int


def rehearse(
    contract: Contract, files: Mapping[str, Path], *, progress: Callable[[Any], object] = id
) -> Rehearsal:
    """Run a contract in this process, with seeded noise and keys that are thrown away.

    Nodes and router exchange the bytes that they would exchange between machines.

    Parameters
    ----------
    contract
        The contract; the parties' signing keys in it are replaced.
    files
        Each party's records, by its name.
    progress
        Called with the router after each exchange.

    Raises
    ------
    ValueError
        If a party has no file, or its records are not those of the contract.
    """
    names = [party.name for party in contract.parties]
    missing = [name for name in names if name not in files]
    if missing:
        fail("data", f"a file for each party ({', '.join(names)})", f"none for {missing[0]}")
    with TemporaryDirectory() as place:
        content = _with_new_keys(contract, Path(place))
        rehearsed = Contract.of(content, contract.settings.module)
        records = [rehearsed.tables.read(files[name]) for name in names]
        folders = [Folder.open(Path(place) / name) for name in names]
        nodes = [
            Node(rehearsed, *pair, rehearsal=True) for pair in zip(folders, records, strict=True)
        ]
        router = Router(rehearsed)
        while not router.done:
            for party, message in router.requests().items():
                router.take(party, nodes[party].answer(message))
                if router.gone:
                    raise RuntimeError(f"the node of {names[party]} failed; the log says why")
            progress(router)
        released = np.concatenate([node.released for node in nodes])
        for folder in folders:
            folder.close()
    simulated = simulate(
        rehearsed.algorithm,
        _whole(rehearsed, records),
        rehearsed.topology,
        rounds=rehearsed.terms.rounds,
        key=rehearsed.public_key,
        delta=max(party.delta for party in rehearsed.parties),
        metrics=[],
    )
    expected = np.broadcast_to(simulated.released, released.shape)
    return Rehearsal(released, np.array_equal(released, expected), router.bytes)


def _with_new_keys(contract: Contract, place: Path) -> dict[str, Any]:
    """Make a folder for each party; return the contract's content with their keys."""
    content = deepcopy(contract.settings.content)
    for party, table in zip(contract.parties, content["party"], strict=True):
        folder = Folder.create(place / party.name, epsilon=party.epsilon, delta=party.delta)
        table["signing_key"] = folder.signing.public.hex()
        folder.close()
    return content


def _whole(contract: Contract, records: list[Dataset]) -> Any:
    """Return the problem of all parties' records in one place, for the simulator."""
    features = np.concatenate([np.asarray(site.features) for site in records])
    pooled = Dataset(features, np.concatenate([site.labels for site in records]), "all records")
    ends = np.cumsum(contract.records)[:-1]
    return contract.problem_of(pooled, np.split(np.arange(pooled.records), ends))

"""Rehearsal of a contract: all parties in one process, with seeded noise, which is NOT private.

``dpmesh contract rehearse`` calls it before the parties join, to see that their files and the
contract fit together, and that the nodes have the bits of the simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
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
from dpmesh.deploy.wire import refusal_reason
from dpmesh.run import simulate


class Rehearsal(NamedTuple):
    """The result of a rehearsal.

    Attributes
    ----------
    released
        Each party's released model, shape (parties, dim), NOT private.
    equals_simulation
        True if the models have the bits of `simulate` under the contract's public key.
    bytes
        Number of bytes that the router carried.
    """

    released: Any
    equals_simulation: bool
    bytes: int


def _ignore(_: Router) -> None:
    """Show no progress."""


def rehearse(
    contract: Contract, files: Mapping[str, Path], *, progress: Callable[[Router], object] = _ignore
) -> Rehearsal:
    """Run a contract in this process, and compare its models with those of the simulator.

    Nodes and router exchange the bytes that they would exchange between machines. The noise comes
    from the contract's public key. Folders and signing keys are temporary: no budget is charged.

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
    RuntimeError
        If a node fails. Its log states why.
    """
    names = [party.name for party in contract.parties]
    missing = [name for name in names if name not in files]
    if missing:
        fail("data", f"a file for each party ({', '.join(names)})", f"none for {missing[0]}")
    with TemporaryDirectory() as temporary, ExitStack() as open_folders:
        home = Path(temporary)
        content = _with_new_keys(contract, home)
        rehearsed = Contract.of(content, contract.settings.module)
        records = [rehearsed.tables.read(files[name]) for name in names]
        nodes: list[Node] = []
        for name, dataset in zip(names, records, strict=True):
            folder = Folder.open(home / name)
            open_folders.callback(folder.close)
            nodes.append(Node(rehearsed, folder, dataset, rehearsal=True))
        router = Router(rehearsed)
        _run_to_the_end(router, nodes, progress)
        released = np.concatenate([node.released for node in nodes])
    simulated = simulate(
        rehearsed.algorithm,
        _pooled_problem(rehearsed, records),
        rehearsed.topology,
        rounds=rehearsed.terms.rounds,
        key=rehearsed.public_key,
        delta=max(party.delta for party in rehearsed.parties),
        metrics=[],
    )
    expected = np.broadcast_to(simulated.released, released.shape)
    return Rehearsal(released, np.array_equal(released, expected), router.bytes)


def _run_to_the_end(
    router: Router, nodes: Sequence[Node], progress: Callable[[Router], object]
) -> None:
    """Carry all questions and answers in this process, until the run is over.

    A node may fail before its step is charged. A router asks such a node again, and in one process
    it would fail for ever: so a rehearsal ends at the first failure.

    Raises
    ------
    RuntimeError
        If a node fails, or refuses for good.
    """
    while not router.done:
        for party, message in router.requests().items():
            answer = nodes[party].answer(message)
            router.take(party, answer)
            has_failed = refusal_reason(answer) == "failed"
            if has_failed or router.gone:
                raise RuntimeError(f"the node of {nodes[party].name} failed; the log says why")
        progress(router)


def _with_new_keys(contract: Contract, home: Path) -> dict[str, Any]:
    """Make a folder for each party in `home`; return the contract's content with their keys."""
    content = deepcopy(contract.settings.content)
    for party, table in zip(contract.parties, content["party"], strict=True):
        folder = Folder.create(home / party.name, epsilon=party.epsilon, delta=party.delta)
        table["signing_key"] = folder.signing.public.hex()
        folder.close()
    return content


def _pooled_problem(contract: Contract, records: list[Dataset]) -> Any:
    """Return the problem of all parties with all records in one place, for the simulator."""
    features = np.concatenate([np.asarray(site.features) for site in records])
    pooled = Dataset(features, np.concatenate([site.labels for site in records]), "all records")
    ends = np.cumsum(contract.records)[:-1]
    return contract.problem_of(pooled, np.split(np.arange(pooled.records), ends))

"""A rehearsal: all parties of a contract on one machine, each in a process with its own folder."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from dpmesh._validate import fail
from dpmesh.data import Dataset
from dpmesh.deploy.contract import Contract
from dpmesh.deploy.folder import Folder
from dpmesh.deploy.http import RouterServer, run_node
from dpmesh.deploy.records import read_records
from dpmesh.deploy.travels import node_of, router_of
from dpmesh.run import simulate

HERE = "127.0.0.1"


class Rehearsal(NamedTuple):
    """What came of a rehearsal.

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
    contract: Contract,
    files: Mapping[str, Path],
    *,
    progress: Callable[[Any], object] = id,
) -> Rehearsal:
    """Run a contract on this machine, with seeded noise and keys that are thrown away.

    Parameters
    ----------
    contract
        The contract; the parties' signing keys in it are replaced.
    files
        Each party's records, by its name.
    progress
        Called with the router again and again.

    Raises
    ------
    ValueError
        If a party has no file, or its records are not those of the contract.
    """
    names = [party.name for party in contract.parties]
    if missing := [name for name in names if name not in files]:
        fail("data", f"a file for each party ({', '.join(names)})", f"none for {missing[0]}")
    context = multiprocessing.get_context("spawn")
    with TemporaryDirectory() as place:
        content = _with_new_keys(contract, Path(place))
        module = contract.settings.module
        own = Contract.of(content, module)
        whole = _whole(own, [read_records(own, files[name]) for name in names])
        router = router_of(own)
        server = RouterServer(router, HERE, 0)
        arguments = [(content, module, Path(place), n, files[n], server.port) for n in names]
        processes = [context.Process(target=_party, args=each, daemon=True) for each in arguments]
        for process in processes:
            process.start()

        def watch(router: Any) -> None:
            progress(router)
            for name, process in zip(names, processes, strict=True):
                if process.exitcode:
                    raise RuntimeError(f"the process of {name} failed")

        try:
            server.run(watch)
            for process in processes:
                process.join(30)
        finally:
            for process in processes:
                process.kill()
        kind = own.terms.numbers
        kept = [np.load(Path(place) / f"{name}.npy").astype(kind) for name in names]
        simulated = simulate(
            own.algorithm,
            whole,
            own.topology,
            rounds=own.terms.rounds,
            key=own.public_key,
            delta=max(party.delta for party in own.parties),
            metrics=[],
        )
        released = np.concatenate(kept)
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
    parts = [contract.problem(own, number) for number, own in enumerate(records)]
    features = np.concatenate([np.asarray(part.train.features) for part in parts])
    labels = np.concatenate([part.train.labels for part in parts])
    ends = np.cumsum([part.train.records for part in parts])[:-1]
    partition = np.split(np.arange(len(labels)), ends)
    return contract.problem_of(Dataset(features, labels, "all records"), partition)


def _party(
    content: dict[str, Any], module: str | None, place: Path, name: str, file: Path, port: int
) -> None:
    contract = Contract.of(content, module)
    records = read_records(contract, file)
    node = node_of(contract, Folder.open(place / name), records, rehearsal=True)
    with suppress(KeyboardInterrupt):
        run_node(node, f"http://{HERE}:{port}")
    np.save(place / f"{name}.npy", node.released)

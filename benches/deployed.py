"""Contracts on the wire: ``python -m benches.deployed [NAME ..]``, each case in a process.

Seconds and bytes of a round, beside the least that can travel. Results go to
``docs/results/deployed.csv``, a line for each case, and as text beside it; other lines stay.

A hundred parties post to a router over HTTP at the loopback address, each in a thread of one
process with the router, so that all of them share its processors. The least is each party's packed
integers up, and the total down to each. A warm node answers at a Unix socket, as a process that
Flower starts for a question asks it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from typing import Any

import numpy as np

import dpmesh as dm
from benches.machine import description
from dpmesh.deploy import Contract, Folder, Node, Router
from dpmesh.deploy.flower import WarmNode, ask
from dpmesh.deploy.http import RouterServer
from dpmesh.deploy.http_node import run_node
from dpmesh_papers.studies.results import read_rows, write_rows

FIELDS = ("case", "what", "rounds", "start", "starts", "seconds", "bytes", "least", "processor")
Answers = list[Callable[[bytes], bytes]]
RECORDS = 10
SUMS: dict[str, Any] = {
    "kind": "FederatedLearning",
    "contribution": {"kind": "RecordGradients"},
    "combination": {"kind": "SecureAggregation"},
    "noise_multiplier": 40.0,
}
GOSSIP: dict[str, Any] = {"kind": "GradientDescent", "records": RECORDS, "noise_multiplier": 10.0}


@contextmanager
def parties(
    algorithm: dict[str, Any], count: int, dim: int, rounds: int
) -> Iterator[tuple[Contract, list[Node]]]:
    """Make a contract and its nodes, each with a folder."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(count * RECORDS, dim))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    train = dm.Dataset(features, np.where(features[:, 0] > 0, 1, -1), "random")
    with TemporaryDirectory() as place:
        budget: dict[str, float] = {"epsilon": 1000.0, "delta": 1e-5}
        folders = [Folder.create(Path(place) / str(i), **budget) for i in range(count)]
        content: dict[str, Any] = {
            "format": 2,
            "contract": {
                "rounds": rounds,
                "public_key": "01" * 32,
                "deadline": 600.0,
                "quorum": count,
                "features": dim,
            },
            "problem": {"loss": "logistic", "feature_norm": 1.0},
            "algorithm": algorithm,
            "party": [
                {
                    "name": f"p{i}",
                    "signing_key": party_folder.signing.public.hex(),
                    "records": RECORDS,
                }
                | budget
                for i, party_folder in enumerate(folders)
            ],
        }
        if algorithm is GOSSIP:
            content["topology"] = {"kind": "ring"}
            content["contract"]["largest_row"] = 1e3
        contract = Contract.of(content)
        party_folder = (train.take(np.arange(i * RECORDS, (i + 1) * RECORDS)) for i in range(count))
        yield (
            contract,
            [Node(contract, *party_data) for party_data in zip(folders, party_folder, strict=True)],
        )
        for folder in folders:
            folder.close()


class Watch:
    """Seconds and bytes of a router's run: until its second round, to its last one, and then."""

    def __init__(self, router: Router) -> None:
        self.router, self._take, self._begin = router, router.take, time.perf_counter()
        self.reached: dict[int, tuple[float, int]] = {}
        router.take = self.take

    def take(self, party: int, answer: bytes) -> None:
        """Take an answer, and note when the run reaches another round."""
        self._take(party, answer)
        if (
            self.router.open_position is not None
            and self.router.open_position.round not in self.reached
        ):
            now = time.perf_counter() - self._begin, self.router.bytes
            self.reached[self.router.open_position.round] = now

    def line(self, rounds: int) -> dict[str, str]:
        """Return what the start with its first round took, and each of the others."""
        (start, before), (last, carried) = self.reached[1], self.reached[rounds]
        times = {"start": start, "seconds": (last - start) / (rounds - 1)}
        lengths = {"starts": before, "bytes": (carried - before) / (rounds - 1)}
        shown = {name: f"{value:.3g}" for name, value in times.items()}
        return shown | {name: f"{value:.0f}" for name, value in lengths.items()}


def over_http(count: int, dim: int, rounds: int) -> dict[str, str]:
    """Add up vectors of all parties over HTTP."""
    with parties(SUMS, count, dim, rounds) as (contract, nodes):
        watch = Watch(Router(contract))
        server = RouterServer(watch.router, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.port}"
        threads = [Thread(target=run_node, args=(node, url), daemon=True) for node in nodes]
        for thread in threads:
            thread.start()
        server.run()
        for thread in threads:
            thread.join()
        models = {node.released.tobytes() for node in nodes}
        assert len(models) == 1
        assert all(node.is_sealed for node in nodes)
        least = 2 * count * contract.planned.sum_at(0).message_bytes
    what = f"a secure sum of {count} parties' {dim:,} numbers over HTTP"
    return {"what": what, "rounds": str(rounds), "least": str(least), **watch.line(rounds)}


def by_hand(warm: bool, count: int, dim: int, rounds: int) -> dict[str, str]:
    """Carry rows of a ring in this process, to nodes themselves or at their sockets."""
    with parties(GOSSIP, count, dim, rounds) as (contract, nodes), TemporaryDirectory() as place:
        answers: Answers = [node.answer for node in nodes]
        served = [WarmNode(node, f"{place}/{node.name}") for node in nodes] if warm else []
        for warm_node in served:
            Thread(target=warm_node.serve_forever, daemon=True).start()
        if warm:
            answers = [partial(ask, f"{place}/{node.name}") for node in nodes]
        watch = Watch(Router(contract))
        router = watch.router
        while not router.done:
            for party, message in router.requests().items():
                router.take(party, answers[party](message))
        for warm_node in served:
            warm_node.shutdown()
            warm_node.server_close()
        least = 8 * dim * (count + contract.topology.matrix(0).messages)
    carrier = "asked at warm nodes' sockets" if warm else "in one process"
    what = f"gradient descent of {count} parties' {dim:,} numbers on a ring, {carrier}"
    return {"what": what, "rounds": str(rounds), "least": str(least), **watch.line(rounds)}


CASES: dict[str, Callable[[], dict[str, str]]] = {
    "sums-10": partial(over_http, 10, 1_000, 10),
    "sums-100": partial(over_http, 100, 1_000, 10),
    "mesh": partial(by_hand, False, 4, 1_000, 20),
    "warm": partial(by_hand, True, 4, 1_000, 20),
}


def as_text(rows: list[dict[str, str]]) -> str:
    """Return the lines as they stand on the page."""
    lines = [f"{'a round of':<86}  {'start':>6}  {'seconds':>7}  {'bytes':>7}  over the least"]
    for row in rows:
        more = float(row["bytes"]) / float(row["least"])
        took = f"{float(row['start']):>6.3g}  {float(row['seconds']):>7.3g}"
        lines.append(f"{row['what']:<86}  {took}  {float(row['bytes']):>7,.0f}  {more:.2f}")
    return "\n".join(lines) + "\n"


def main(names: list[str]) -> None:
    """Measure one case here, or each in a process of its own."""
    if names[:1] == ["--here"]:
        print(json.dumps({"case": names[1], **CASES[names[1]](), **description()}))
        return
    lines = {line["case"]: line for line in read_rows("deployed")}
    for name in names or CASES:
        command = [sys.executable, "-m", "benches.deployed", "--here", name]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        measurement = json.loads(done.stdout.splitlines()[-1])
        lines[name] = {field: measurement[field] for field in FIELDS}
        print(lines[name], flush=True)
        rows = [lines[case] for case in CASES if case in lines]
        write_rows("deployed", rows, as_text(rows))


if __name__ == "__main__":
    main(sys.argv[1:])

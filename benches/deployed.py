"""Measure contracts on the wire: seconds and bytes of a round, beside the least possible bytes.

    python -m benches.deployed [NAME ..]

A contract is a run among organizations (parties); a router passes their messages on. Each case runs
in a process of its own. Results go to ``docs/results/deployed.csv``, a row for each case, and as
text to ``deployed.txt``; rows of cases that are not named stay as they are.

Cases of sums: up to a hundred parties post to a router over HTTP at the loopback address. Each
party is a thread of one process with the router, so that all share its processors. The least bytes
are each party's packed integers up, and the total down to each. Cases of gossip: four parties on a
ring, called in this process, or as *warm* nodes. A warm node stays in memory and answers at a Unix
socket, to a process that Flower starts for each question.
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

COLUMNS = ("case", "what", "rounds", "start", "starts", "seconds", "bytes", "least", "processor")
"""Columns of the results. ``start`` and ``starts``: seconds and bytes of the start with the first
round. ``seconds`` and ``bytes``: mean of the later rounds."""

Answer = Callable[[bytes], bytes]
"""Returns a party's answer to a question of the router."""

RECORDS = 10
"""Records of a party."""
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
    """Create a contract of this algorithm and its nodes, each with a temporary folder.

    Parties have `RECORDS` random records of `dim` features. Folders are removed at the end.
    """
    rng = np.random.default_rng(0)
    features = rng.normal(size=(count * RECORDS, dim))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    train = dm.Dataset(features, np.where(features[:, 0] > 0, 1, -1), "random")
    with TemporaryDirectory() as place:
        budget: dict[str, float] = {"epsilon": 1000.0, "delta": 1e-5}
        folders = [Folder.create(Path(place) / str(i), **budget) for i in range(count)]
        party_tables = []
        for i, folder in enumerate(folders):
            table = {
                "name": f"p{i}",
                "signing_key": folder.signing.public.hex(),
                "records": RECORDS,
            }
            party_tables.append(table | budget)
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
            "party": party_tables,
        }
        if algorithm is GOSSIP:
            content["topology"] = {"kind": "ring"}
            content["contract"]["largest_row"] = 1e3
        contract = Contract.of(content)
        nodes = []
        for i, folder in enumerate(folders):
            records = train.take(np.arange(i * RECORDS, (i + 1) * RECORDS))
            nodes.append(Node(contract, folder, records))
        yield contract, nodes
        for folder in folders:
            folder.close()


class RouterTimer:
    """Records when a router's run reaches each round, and the bytes that it has passed on by then.

    It replaces the router's method `take`, and begins to count when it is made.
    """

    def __init__(self, router: Router) -> None:
        self.router = router
        self._take = router.take
        self._start = time.perf_counter()
        self.reached: dict[int, tuple[float, int]] = {}
        """Seconds and bytes until the round was reached, by round."""
        router.take = self.take

    def take(self, party: int, answer: bytes) -> None:
        """Pass an answer to the router, and record if the run reaches another round."""
        self._take(party, answer)
        position = self.router.open_position
        if position is not None and position.round not in self.reached:
            seconds = time.perf_counter() - self._start
            self.reached[position.round] = seconds, self.router.bytes

    def columns(self, rounds: int) -> dict[str, str]:
        """Return seconds and bytes of the start with the first round, and of each later round."""
        start_seconds, start_bytes = self.reached[1]
        all_seconds, all_bytes = self.reached[rounds]
        later_rounds = rounds - 1
        return {
            "start": f"{start_seconds:.3g}",
            "seconds": f"{(all_seconds - start_seconds) / later_rounds:.3g}",
            "starts": f"{start_bytes:.0f}",
            "bytes": f"{(all_bytes - start_bytes) / later_rounds:.0f}",
        }


def over_http(count: int, dim: int, rounds: int) -> dict[str, str]:
    """Run secure sums of all parties over HTTP; return the columns of a row."""
    with parties(SUMS, count, dim, rounds) as (contract, nodes):
        timer = RouterTimer(Router(contract))
        server = RouterServer(timer.router, "127.0.0.1", 0)
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
        message_bytes = contract.planned.sum_at(0).message_bytes
        least_bytes = 2 * count * message_bytes  # up and down
    what = f"a secure sum of {count} parties' {dim:,} numbers over HTTP"
    return {"what": what, "rounds": str(rounds), "least": str(least_bytes), **timer.columns(rounds)}


def gossip_on_a_ring(warm: bool, count: int, dim: int, rounds: int) -> dict[str, str]:
    """Run gossip in this process, by calls of nodes or at warm nodes' sockets."""
    with parties(GOSSIP, count, dim, rounds) as (contract, nodes), TemporaryDirectory() as place:
        answers: list[Answer] = [node.answer for node in nodes]
        warm_nodes = []
        if warm:
            warm_nodes = [WarmNode(node, f"{place}/{node.name}") for node in nodes]
            answers = [partial(ask, f"{place}/{node.name}") for node in nodes]
        for warm_node in warm_nodes:
            Thread(target=warm_node.serve_forever, daemon=True).start()
        timer = RouterTimer(Router(contract))
        router = timer.router
        while not router.done:
            for party, question in router.requests().items():
                router.take(party, answers[party](question))
        for warm_node in warm_nodes:
            warm_node.shutdown()
            warm_node.server_close()
        row_bytes = 8 * dim  # float64
        rows_up, rows_down = count, contract.topology.matrix(0).messages
        least_bytes = row_bytes * (rows_up + rows_down)
    carrier = "asked at warm nodes' sockets" if warm else "in one process"
    what = f"gradient descent of {count} parties' {dim:,} numbers on a ring, {carrier}"
    return {"what": what, "rounds": str(rounds), "least": str(least_bytes), **timer.columns(rounds)}


CASES: dict[str, Callable[[], dict[str, str]]] = {
    "sums-10": partial(over_http, 10, 1_000, 10),
    "sums-100": partial(over_http, 100, 1_000, 10),
    "mesh": partial(gossip_on_a_ring, False, 4, 1_000, 20),
    "warm": partial(gossip_on_a_ring, True, 4, 1_000, 20),
}


def as_text(rows: list[dict[str, str]]) -> str:
    """Return the rows as the table of the page."""
    lines = [f"{'a round of':<86}  {'start':>6}  {'seconds':>7}  {'bytes':>7}  over the least"]
    for row in rows:
        over_least = float(row["bytes"]) / float(row["least"])
        times = f"{float(row['start']):>6.3g}  {float(row['seconds']):>7.3g}"
        lines.append(f"{row['what']:<86}  {times}  {float(row['bytes']):>7,.0f}  {over_least:.2f}")
    return "\n".join(lines) + "\n"


def main(names: list[str]) -> None:
    """Measure the named cases, by default all, each in a process; ``--here NAME`` in this one."""
    if names[:1] == ["--here"]:
        print(json.dumps({"case": names[1], **CASES[names[1]](), **description()}))
        return
    row_by_case = {row["case"]: row for row in read_rows("deployed")}
    for name in names or CASES:
        command = [sys.executable, "-m", "benches.deployed", "--here", name]
        process = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        measurement = json.loads(process.stdout.splitlines()[-1])
        row_by_case[name] = {column: measurement[column] for column in COLUMNS}
        print(row_by_case[name], flush=True)
        rows = [row_by_case[case] for case in CASES if case in row_by_case]
        write_rows("deployed", rows, as_text(rows))


if __name__ == "__main__":
    main(sys.argv[1:])

"""A grid of Flower whose clients answer in this process, with faults on request."""

from __future__ import annotations

from dataclasses import replace
from uuid import uuid4

import flwr.app as flwr
import numpy as np
from federated_parts import changed

import dpmesh as dm
import dpmesh.noise.correlated
from dpmesh.deploy.flower import DPFedLS, flat, private_update
from dpmesh.deploy.flower.supernode import asks_for_name

CLIENTS = 6
DIM = 4
L = 0.3
STEP = 0.5


ALGORITHM = dm.FederatedLearning(
    dm.ClientUpdates(
        clients=CLIENTS,
        sampling_rate=1.0,
        clipping_norm=L,
        sampling="uniform",
        batch_size=50,
        steps=1,
        step_size=STEP,
    ),
    noise_multiplier=1.4,
    denoiser=dm.algorithms.denoisers.LaplacianSmoothing(1.0),
)


AVERAGED = replace(ALGORITHM, average=dm.algorithms.Average())
IN_TIME = changed(
    ALGORITHM,
    sampling="cyclic",
    sampling_rate=0.5,
    noise=dm.noise.correlated.InTime(topology=None, rounds=5),
)
NAMES = [f"client {i}" for i in range(CLIENTS)]


def make_problem() -> dm.LinearProblem:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(60, DIM))
    train = dm.Dataset(x, np.where(x[:, 0] > 0, 1, -1), "synthetic")
    parts = np.split(rng.permutation(60), CLIENTS)
    return dm.LinearProblem(train, tuple(parts), "logistic")


def model(w: np.ndarray) -> flwr.ArrayRecord:
    """Two tensors, as an app would send them."""
    parts = {"weight": w.ravel()[:-1].reshape(1, -1), "bias": w.ravel()[-1:]}
    return flwr.ArrayRecord({name: flwr.Array(part) for name, part in parts.items()})


class Clients:
    """A grid whose nodes answer in this process, in the reverse of the order asked.

    Client i is connected as node 100 + i; more ids can be added to `nodes`.
    """

    def __init__(self, problem: dm.LinearProblem, mod, nodes: int = CLIENTS) -> None:
        self.problem = problem
        self.mod = mod
        self.nodes = {100 + client: client for client in range(nodes)}
        self.silent: set[int] = set()  # clients
        self.dead: set[int] = set()  # nodes that the SuperLink answers for
        self.gone: set[int] = set()  # nodes that are no longer connected
        self.spoilt: dict[int, np.ndarray] = {}
        self.asked: list[list[int]] = []
        self.contexts = [
            flwr.Context(1, 100 + i, {"dpmesh-party": f"client {i}"}, flwr.RecordDict(), {})
            for i in range(nodes)
        ]
        self._pushed: dict[str, flwr.Message] = {}

    def get_node_ids(self):
        return sorted(self.nodes.keys() - self.gone, reverse=True)

    def push_messages(self, messages):
        for message in messages:
            name = str(uuid4())
            message.metadata.__dict__["_message_id"] = name
            self._pushed[name] = message
            yield name

    def pull_messages(self, names):
        return [self.answer(self._pushed.pop(name)) for name in names]

    def send_and_receive(self, messages, *, timeout=None):
        names = list(self.push_messages(messages))
        to = [self.nodes[self._pushed[name].metadata.dst_node_id] for name in names]
        self.asked.append(to)
        answering = zip(names, to, strict=True)
        return self.pull_messages([name for name, i in answering if i not in self.silent][::-1])

    def answer(self, message):
        """An app that fails becomes a message that says so, as on Flower."""
        node = message.metadata.dst_node_id
        if node in self.dead:
            reply = flwr.Message(flwr.Error(5, "Node unavailable"), reply_to=message)
            reply.metadata.__dict__["_src_node_id"] = 1
            return reply
        context = self.contexts[self.nodes[node]]
        mod = private_update(L) if asks_for_name(message) else self.mod
        try:
            return mod(message, context, self.train)
        except Exception as error:
            return flwr.Message(flwr.Error(0, f"{type(error)}: {error}"), reply_to=message)

    def train(self, message, context):
        client = self.nodes[message.metadata.dst_node_id]
        if client in self.spoilt:
            w = self.spoilt[client]
        else:
            (arrays,) = message.content.array_records.values()
            w = flat(arrays).astype(np.float64)
            batch = self.problem.records_of(np.array([client]))
            w = self.problem.step(w, STEP, batch, out=w.copy())
        content = flwr.RecordDict({"model": model(w), "m": flwr.MetricRecord({"loss": 1.0})})
        return flwr.Message(content, reply_to=message)


def run(strategy: DPFedLS, clients: Clients, rounds: int = 5):
    start = model(np.zeros(DIM))
    return strategy.start(clients, start, rounds)

"""A Flower app of logistic regression under dpmesh, for the test of a deployment."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

import dpmesh as dm
from dpmesh.engines.flower import DPFedLS, flat, private_update, unflat

CLIENTS, ROUNDS, STEP, KEY = 3, 2, 0.5, dm.Key.seeded(3)
ALGORITHM = dm.FederatedLearning(
    clients=CLIENTS,
    sampling_rate=1.0,
    clipping_norm=0.3,
    noise_multiplier=0.7,
    sampling="uniform",
    batch_size=50,
    local_steps=1,
    local_step_size=STEP,
)

client_app = ClientApp(mods=[private_update(ALGORITHM.clipping_norm)])
server_app = ServerApp()


def make_problem() -> dm.LinearProblem:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(30, 4))
    train = dm.Dataset(x, np.where(x[:, 0] > 0, 1, -1), "synthetic")
    return dm.LinearProblem(train, tuple(np.split(rng.permutation(30), CLIENTS)), "logistic")


@client_app.train()
def train(message: Message, context: Context) -> Message:
    start = message.content["arrays"]
    problem, node = make_problem(), int(context.node_config["partition-id"])
    w = flat(start)
    trained = problem.step(w, STEP, problem.records_of(np.array([node])), out=w.copy())
    content = RecordDict({"arrays": unflat(trained, start), "m": MetricRecord({"loss": 0.0})})
    return Message(content, reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = DPFedLS(ALGORITHM, delta=1e-5, key=KEY)
    start = ArrayRecord({"w": Array(np.zeros(4))})
    result = strategy.start(grid, start, num_rounds=ROUNDS)
    path = Path(os.environ["DPMESH_FLOWER_RESULT"])
    new = path.with_suffix(".npy")
    np.save(new, flat(result.arrays))
    new.replace(path)

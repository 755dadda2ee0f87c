"""A client of Flower's simulation, in NumPy, so that the simulation's cost is measured.

The simulation's processes import this module, so that each loads the records once.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from benches.bench_federated import clients
from benches.softmax import scores_to_probabilities
from dpmesh.problems import LinearProblem

EPOCHS = 5
BATCH = 10
STEP_SIZE = 0.1

client_app = ClientApp()


@cache
def problem() -> LinearProblem:
    """Return the clients' records, once in a process."""
    return clients()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train on a client's records as `bench_federated` does."""
    records_of_client = problem().partition[int(context.node_config["partition-id"])]
    x = problem().train.features[records_of_client]
    y = np.eye(10, dtype=np.float32)[problem().train.labels[records_of_client]]
    w = message.content["arrays"]["w"].numpy().copy()
    draw = np.random.default_rng()
    for _ in range(EPOCHS):
        for batch in draw.permutation(len(records_of_client)).reshape(-1, BATCH):
            slopes = x[batch] @ w
            scores_to_probabilities(slopes)
            slopes -= y[batch]
            w -= np.float32(STEP_SIZE / BATCH) * (x[batch].T @ slopes)
    content = {
        "arrays": arrays(w),
        "metrics": MetricRecord({"num-examples": len(records_of_client)}),
    }
    return Message(RecordDict(content), reply_to=message)


def arrays(w: np.ndarray) -> ArrayRecord:
    return ArrayRecord({"w": Array(w)})

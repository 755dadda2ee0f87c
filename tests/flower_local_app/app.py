"""A Flower app whose clients keep a budget of one answer, and whose server asks for more."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

import dpmesh as dm
from dpmesh.engines.flower import DPFedLS, private_update

CLIENTS = 2
ALGORITHM = dm.FederatedLearning(
    clients=CLIENTS,
    sampling_rate=1.0,
    clipping_norm=0.3,
    noise_multiplier=0.7,
    local_steps=1,
    grid=2.0**-20,
)


class Watched(DPFedLS):
    """Notes how many clients answered."""

    answers = 0

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        self.answers += sum(not reply.has_error() for reply in replies)
        return super().aggregate_train(server_round, replies)


STRATEGY = Watched(ALGORITHM, delta=1e-5, trust="local")
BUDGET = dm.privacy.Budget(STRATEGY.plan(1).cost(1e-5).epsilon, delta=1e-5)

private = private_update(0.3, 0.7, grid=2.0**-20, budget=BUDGET, simulation=True)
client_app = ClientApp(mods=[private])
server_app = ServerApp()


@client_app.train()
@client_app.evaluate()
def train(message: Message, context: Context) -> Message:
    content = RecordDict({"arrays": message.content["arrays"], "m": MetricRecord({"loss": 0.1})})
    return Message(content, reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    start = ArrayRecord({"w": Array(np.zeros(4))})
    STRATEGY.start(grid, start, num_rounds=1)
    content = RecordDict({"arrays": start})
    more = [
        Message(content, node, kind)
        for node in grid.get_node_ids()
        for kind in ("train", "evaluate")
    ]
    replies = grid.send_and_receive(more)
    told = [reply.error.reason if reply.has_error() else "an answer" for reply in replies]
    result = Path(os.environ["DPMESH_FLOWER_RESULT"])
    new = result.with_suffix(".new")
    new.write_text(json.dumps({"answers": STRATEGY.answers, "told": told}))
    new.replace(result)

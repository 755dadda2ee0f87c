"""An ordinary Flower app whose clients train with JAX, made private by two lines: a simulation.

``python tests/helpers/flower_simulation.py RESULT``: in the last round the client of partition 3
answers too late, and that of partition 4 fails.
"""

from __future__ import annotations

import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

import dpmesh as dm
from dpmesh.deploy.flower import DPFedLS, private_update

CLIENTS = 5
ROUNDS = 3
STEP = 0.5
KEY = dm.Key.seeded(3)
LATE = 3
BROKEN = 4
PATIENCE = 6.0

ALGORITHM = dm.FederatedLearning(
    dm.ClientUpdates(
        clients=CLIENTS,
        sampling_rate=1.0,
        clipping_norm=0.3,
        sampling="uniform",
        batch_size=50,
        steps=1,
        step_size=STEP,
    ),
    noise_multiplier=1.4,
    denoiser=dm.algorithms.denoisers.LaplacianSmoothing(1.0),
)


def make_problem() -> dm.LinearProblem:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(60, 4)).astype(np.float32)
    train = dm.Dataset(x, np.where(x[:, 0] > 0, 1, -1), "synthetic")
    return dm.LinearProblem(train, tuple(np.split(rng.permutation(60), CLIENTS)), "logistic")


@jax.jit
def gradient(w, x, y):
    return jax.grad(lambda w: jnp.mean(jnp.log1p(jnp.exp(-y * (x @ w)))))(w)


client_app = ClientApp(mods=[private_update(clipping_norm=0.3)])  # was: ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    node = int(context.node_config["partition-id"])
    problem = make_problem()
    if message.content["config"]["server-round"] == ROUNDS:
        if node == LATE:
            time.sleep(3 * PATIENCE)
        if node == BROKEN:
            raise RuntimeError("no more data")
    client_records = problem.partition[node]
    start = message.content["arrays"]["w"].numpy()
    w = start - STEP * gradient(
        start, problem.train.features[client_records], problem.train.labels[client_records]
    )
    arrays = ArrayRecord({"w": Array(np.asarray(w))})
    metrics = MetricRecord({"loss": 0.1, "num-examples": len(client_records)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


class Watched(DPFedLS):
    """Notes the model and the number of answers of each round; the last round is short of time."""

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self.models: list[np.ndarray] = []
        self.answers: list[int] = []

    def configure_train(self, server_round, arrays, config, grid):
        self.patience = PATIENCE if server_round == ROUNDS else 120
        send = type(grid).send_and_receive
        grid.send_and_receive = lambda messages, **_: send(grid, messages, timeout=self.patience)
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.answers.append(sum(not reply.has_error() for reply in replies))
        self.models.append(arrays["w"].numpy())
        return arrays, metrics


def main(result: str) -> None:
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = Watched(ALGORITHM, delta=1e-5, key=KEY)  # was: FedAvg()
        start = ArrayRecord({"w": Array(np.zeros(4, np.float32))})
        training = strategy.start(grid, start, num_rounds=ROUNDS)
        reported = [
            dict(training.train_metrics_clientapp[t])["epsilon"] for t in range(1, ROUNDS + 1)
        ]
        np.savez(result, models=strategy.models, answers=strategy.answers, epsilons=reported)

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": 2}}
    run_simulation(server, client_app, CLIENTS, backend_config=resources)


if __name__ == "__main__":
    main(sys.argv[1])

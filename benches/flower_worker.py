"""Federated averaging in Flower's simulation, clipped and noisy at the server; see `worker`."""

from __future__ import annotations

import sys

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg
from flwr.simulation import run_simulation

from benches.bench_federated import NOISE
from benches.flower_client import arrays, client_app, problem

CLIENTS = 1000
COHORT = 50
CLIPPING_NORM = 1.0


def accuracy(_: int, model: ArrayRecord) -> MetricRecord:
    """Measure the test set after every round."""
    guesses = (problem().test.features @ model["w"].numpy()).argmax(1)
    return MetricRecord({"accuracy": float((guesses == problem().test.labels).mean())})


def main(processes: int) -> None:
    server = ServerApp()
    answers = sys.stdout
    sys.stdout = sys.stderr  # Flower prints

    @server.main()
    def serve(grid: Grid, _: Context) -> None:
        start = arrays(np.zeros((784, 10), np.float32))
        for line in sys.stdin:
            averaging = FedAvg(COHORT / CLIENTS, 0.0, min_available_nodes=CLIENTS)
            strategy = DifferentialPrivacyServerSideFixedClipping(
                averaging, 2 * NOISE, CLIPPING_NORM, COHORT
            )
            strategy.start(grid, start, num_rounds=int(line), evaluate_fn=accuracy)
            print("done", file=answers, flush=True)

    resources = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"num_cpus": processes},
    }
    run_simulation(server, client_app, CLIENTS, backend_config=resources)


if __name__ == "__main__":
    main(int(sys.argv[1]))

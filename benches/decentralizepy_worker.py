"""The nodes of decentralizepy, a process each, and the one that starts them; see `worker`.

Each node is its D-PSGD node, with its own training, averaging and messages. It evaluates nothing
and logs nothing, has no noise and clips no gradient.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from multiprocessing import parent_process
from multiprocessing.connection import wait
from pathlib import Path

import torch
from decentralizepy.datasets.Dataset import Dataset
from decentralizepy.graphs.Regular import Regular
from decentralizepy.mappings.Linear import Linear
from decentralizepy.models.Model import Model
from decentralizepy.node.DPSGDNode import DPSGDNode
from torch.multiprocessing import get_context
from torch.utils.data import DataLoader, TensorDataset

from benches.bench_gossip import BATCH, CLASSES, DEGREE, NODES, STEP_SIZE, softmax_regression

NEVER = 10**9


class Digits(Dataset):
    """The records of one node."""

    def __init__(self, rank, machine_id, mapping, parts):
        super().__init__(rank, machine_id, mapping)
        self.records = parts[self.dataset_id]

    def get_trainset(self, batch_size, shuffle):
        return DataLoader(self.records, batch_size=batch_size, shuffle=shuffle)

    def get_testset(self):
        return None


class Softmax(Model):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(784, CLASSES, bias=False)

    def forward(self, features):
        return self.linear(features)


class WaitingNode(DPSGDNode):
    """A node that waits for more rounds after a run, until the process that started it ends."""

    def __init__(self, starter, **arguments):
        self.starter = starter
        super().__init__(**arguments)

    def run(self):
        while self.starter in wait([self.starter, parent_process().sentinel]):
            self.iterations = self.starter.recv()
            self.sharing.communication_round = 0
            super().run()
            self.starter.send("done")


def main() -> None:
    torch.set_num_threads(1)
    torch.optim.SGD(Softmax().parameters())  # what it imports is then shared by the nodes
    with tempfile.TemporaryDirectory() as folder:
        nodes = started(Path(folder))
        for line in sys.stdin:
            for node in nodes:
                node.send(int(line))
            running = set(nodes)
            while running:
                for node in wait(running):
                    node.recv()  # type: ignore[call-arg]  # raises if the node has ended
                    running.remove(node)
            print("done", flush=True)


def started(folder):
    """Start all nodes and return the connections to them."""
    problem = softmax_regression()
    features = torch.tensor(problem.train.features)
    labels = torch.tensor(problem.train.labels)
    parts = [TensorDataset(features[part], labels[part]) for part in problem.partition]
    addresses = folder / "addresses.json"
    addresses.write_text(json.dumps({"0": "127.0.0.1"}))
    shared = {
        "machine_id": 0,
        "mapping": Linear(1, NODES),
        "graph": Regular(NODES, DEGREE, seed=1),
        "config": configuration(parts, addresses),
        "log_dir": folder,
        "weights_store_dir": folder,
        "log_level": logging.ERROR,
        "test_after": NEVER,
        "train_evaluate_after": NEVER,
        "reset_optimizer": False,
    }
    fork = get_context("fork")
    nodes = []
    for rank in range(NODES):
        node, starter = fork.Pipe()
        process_arguments = {"starter": starter, "rank": rank}
        fork.Process(target=WaitingNode, kwargs=process_arguments | shared, daemon=True).start()
        starter.close()
        nodes.append(node)
    return nodes


def configuration(parts, addresses):
    return {
        "DATASET": {
            "dataset_package": __name__,
            "dataset_class": "Digits",
            "model_class": "Softmax",
            "parts": parts,
        },
        "OPTIMIZER_PARAMS": {
            "optimizer_package": "torch.optim",
            "optimizer_class": "SGD",
            "lr": STEP_SIZE,
        },
        "TRAIN_PARAMS": {
            "training_package": "decentralizepy.training.Training",
            "training_class": "Training",
            "loss_package": "torch.nn",
            "loss_class": "CrossEntropyLoss",
            "rounds": 1,
            "full_epochs": False,
            "batch_size": BATCH,
            "shuffle": True,
        },
        "COMMUNICATION": {
            "comm_package": "decentralizepy.communication.TCP",
            "comm_class": "TCP",
            "addresses_filepath": addresses,
        },
        "SHARING": {
            "sharing_package": "decentralizepy.sharing.Sharing",
            "sharing_class": "Sharing",
        },
    }


if __name__ == "__main__":
    main()

"""One of several processes of pfl-research that simulate the clients together; see `pfl_peer`.

For each line on the standard input it runs that many rounds and prints a line.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.internal.ops.selector import set_framework_module
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

from benches.bench_federated import NOISE, clients
from dpmesh.problems import LinearProblem

CLIPPING, COHORT, BATCH, STEP_SIZE, NEVER = 1.0, 50, 10, 0.1, 10**9


class Classifier(torch.nn.Sequential):
    """Layers with the methods that pfl expects of a model."""

    def loss(self, x, y, eval=False):
        self.train(not eval)
        return torch.nn.functional.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x, y, eval=True):
        return {"right": Weighted((self(x).argmax(1) == y).sum().item(), len(y))}


def linear() -> Classifier:
    return Classifier(torch.nn.Linear(784, 10))


def cnn() -> Classifier:
    """The network of `bench_cnn`."""
    return Classifier(
        torch.nn.Unflatten(1, (1, 28, 28)),
        torch.nn.Conv2d(1, 16, 5, padding=2),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 5, padding=2),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(1568, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 64),
        torch.nn.ReLU(),
        torch.nn.Linear(64, 10),
    )


def main(layers: str, epochs: int) -> None:
    torch.set_num_threads(1)
    set_framework_module(pytorch_ops)
    np.random.seed(0)  # noqa: NPY002 - pfl draws from it, and the same in all processes
    torch.manual_seed(0)
    problem: LinearProblem = clients()
    module = {"linear": linear, "cnn": cnn}[layers]()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    model = PyTorchModel(module, torch.optim.SGD, optimizer)
    own = [tensors(problem.train, part) for part in problem.partition]
    sampler = get_user_sampler("random", range(len(own)))
    noise = CentrallyAppliedPrivacyMechanism(GaussianMechanism(CLIPPING, 2 * NOISE))
    backend = SimulatedBackend(
        FederatedDataset(lambda user: Dataset(own[user]), sampler), None, [noise]
    )
    test = CentralEvaluationCallback(
        Dataset(tensors(problem.test, slice(None))), NNEvalHyperParams(None)
    )
    answers = sys.stdout
    for line in sys.stdin:
        with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
            FederatedAveraging().run(
                NNAlgorithmParams(int(line), NEVER, COHORT, 0),
                backend,
                model,
                NNTrainHyperParams(BATCH, epochs, STEP_SIZE),
                callbacks=[test],
            )
        print("done", file=answers, flush=True)


def tensors(records, some):
    return [torch.tensor(a) for a in (records.features[some], records.labels[some])]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

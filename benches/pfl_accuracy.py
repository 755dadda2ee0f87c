"""Accuracy of federated learning beside pfl-research's, at the same epsilon, model and start.

    DPMESH_DATA=folder python -m benches.pfl_accuracy [seeds]

MNIST at 1,000 clients of 50 images, 50 of whom take part in a round on average, 30 rounds, an epoch
of batches of 10, moves clipped to 0.3, delta 1000^-1.1. Either library finds its noise by its own
accountant, and adds its own practice: `AdaptiveClipping`, `ServerAdam`, FedProx. Ours draws cohorts
by coins, as both accountants assume; pfl's sampler takes 50 clients each time. Needs PyTorch, pfl.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.fedprox import FedProx, FedProxParams
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.internal.ops import pytorch_ops
from pfl.internal.ops.selector import set_framework_module
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.adaptive_clipping import AdaptiveClippingGaussianMechanism
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_accountant import PLDPrivacyAccountant
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

import dpmesh as dm
from benches.pfl_worker import NEVER, Classifier, linear, tensors
from dpmesh.algorithms import AdaptiveClipping, ServerAdam
from dpmesh.data import mnist
from dpmesh.keys import Key
from dpmesh.problems import TorchProblem
from dpmesh.reproduce.federated import mnist_clients, standardized

CLIENTS, COHORT, ROUNDS, BATCH, STEP_SIZE = 1000, 50, 30, 10, 0.1
CLIPPING_NORM, DELTA, EPSILONS = 0.3, CLIENTS**-1.1, (2.0, 8.0)
QUANTILE, BITS_STD, MU, ADAM = 0.5, COHORT / 20, 0.1, 0.01


def hidden_layer() -> Classifier:
    """A layer of 32 units: 25,450 parameters."""
    return Classifier(torch.nn.Linear(784, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


MODULES = {"linear": linear, "hidden layer": hidden_layer}
PRACTICES = ("plain", "adaptive clipping", "Adam", "FedProx")


def ours(problem: TorchProblem, practice: str, epsilon: float, key: Key) -> tuple[float, float]:
    """Return the noise multiplier and the accuracy."""

    def algorithm(z: float | None) -> dm.FederatedLearning:
        return dm.FederatedLearning(
            clients=CLIENTS,
            sampling_rate=COHORT / CLIENTS,
            clipping_norm=CLIPPING_NORM,
            noise_multiplier=z,
            batch_size=BATCH,
            local_epochs=1,
            local_step_size=STEP_SIZE,
            adaptive_clipping=AdaptiveClipping(quantile=QUANTILE, noise_std=BITS_STD)
            if practice == "adaptive clipping"
            else None,
            optimizer=ServerAdam() if practice == "Adam" else None,
            global_step_size=ADAM if practice == "Adam" else 1.0,
            proximal=MU if practice == "FedProx" else 0.0,
        )

    z = dm.privacy.Budget(epsilon, delta=DELTA).calibrate(algorithm, ROUNDS)
    run = dm.simulate(algorithm(z), problem, rounds=ROUNDS, key=key, metrics=[], progress=False)
    return z, float(problem.accuracy(run.released)[0])


def theirs(problem: TorchProblem, practice: str, epsilon: float, key: Key) -> tuple[float, float]:
    """Return the noise multiplier and the accuracy."""
    accountant = PLDPrivacyAccountant(
        ROUNDS, COHORT / CLIENTS, "gaussian", epsilon=epsilon, delta=DELTA
    )
    if practice == "adaptive clipping":  # its bits are -1 and 1, ours 0 and 1
        mechanism: Any = AdaptiveClippingGaussianMechanism.construct_from_privacy_accountant(
            accountant, CLIPPING_NORM, 2 * BITS_STD, QUANTILE
        )
    else:
        noise = GaussianMechanism.from_privacy_accountant(accountant, CLIPPING_NORM)
        mechanism = CentrallyAppliedPrivacyMechanism(noise)
    module = problem.model(problem.initial(key)[0])
    adam = torch.optim.Adam(module.parameters(), lr=ADAM, betas=(0.9, 0.99), eps=1e-3)
    central = torch.optim.SGD(module.parameters(), lr=1.0) if practice != "Adam" else adam
    own = [tensors(problem.train, part) for part in problem.partition]
    users = FederatedDataset(
        lambda user: Dataset(own[user]), get_user_sampler("random", range(CLIENTS))
    )
    backend = SimulatedBackend(users, None, [mechanism])
    algorithm, parameters = FederatedAveraging(), NNAlgorithmParams(ROUNDS, NEVER, COHORT, 0)
    if practice == "FedProx":
        algorithm, parameters = FedProx(), FedProxParams(ROUNDS, NEVER, COHORT, 0, MU)
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        algorithm.run(
            parameters,
            backend,
            PyTorchModel(module, torch.optim.SGD, central),
            NNTrainHyperParams(BATCH, 1, STEP_SIZE),
        )
    flat = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    return accountant.cohort_noise_parameter, float(problem.accuracy(flat[np.newaxis])[0])


def main(seeds: int = 2) -> None:
    """Print a row for each model, practice and epsilon."""
    torch.set_num_threads(1)
    set_framework_module(pytorch_ops)
    train, test = (standardized(mnist(part)) for part in ("train", "test"))
    print(
        "| model | practice | epsilon | noise, ours | pfl | accuracy, ours | pfl |\n|" + "---|" * 7
    )
    for name, module in MODULES.items():
        for practice in PRACTICES if name == "linear" else PRACTICES[:1]:
            for epsilon in EPSILONS:
                found = []
                for seed in range(seeds):
                    key = Key.seeded(seed)
                    np.random.seed(seed)  # noqa: NPY002 - pfl draws from it
                    torch.manual_seed(seed)
                    split = mnist_clients(train, test, CLIENTS, key)
                    problem = TorchProblem(split.train, split.partition, module, test=split.test)
                    found.append([way(problem, practice, epsilon, key) for way in (ours, theirs)])
                noise, rates = np.array(found)[0, :, 0], 100 * np.array(found)[:, :, 1]
                cells = [
                    f"{mean:.1f} ± {rates[:, i].std(ddof=1):.1f}" if seeds > 1 else f"{mean:.1f}"
                    for i, mean in enumerate(rates.mean(axis=0))
                ]
                row = [name, practice, f"{epsilon:g}", *(f"{z:.3f}" for z in noise), *cells]
                print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

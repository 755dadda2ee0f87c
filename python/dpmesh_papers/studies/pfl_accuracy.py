"""Accuracy of federated learning beside pfl-research's, at the same epsilon, model and start.

    DPMESH_DATA=folder python -m dpmesh_papers.studies.pfl_accuracy [seeds]

MNIST at 1,000 clients of 50 images, 50 of whom take part in a round on average, 30 rounds, an epoch
of batches of 10, moves clipped to 0.3, delta 1000^-1.1. Either library finds its noise by its own
accountant, and adds its own practice: `AdaptiveClipping`, `ServerAdam`, FedProx. Ours draws cohorts
by coins, as both accountants assume; pfl's sampler takes 50 clients each time. Seconds are a
run's processor time on one thread, without the search for the noise. Needs PyTorch, pfl. Results
go to ``docs/results/beside-pfl.csv``, and as the page's table beside it.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from time import process_time
from typing import Any, NamedTuple

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
from dpmesh.algorithms import AdaptiveClipping, ServerAdam
from dpmesh.data import mnist
from dpmesh.keys import Key
from dpmesh.problems import TorchProblem
from dpmesh_papers._scaffold import Row, over_seeds, pick
from dpmesh_papers.federated import mnist_clients, standardized
from dpmesh_papers.studies.pfl_models import NEVER, Classifier, linear, tensors
from dpmesh_papers.studies.results import (
    accuracy,
    in_one_cell,
    markdown_table,
    noise_multiplier,
    write_rows,
)

CLIENTS = 1000
COHORT = 50
"""Clients of a round, on average."""
ROUNDS = 30
BATCH = 10
STEP_SIZE = 0.1
CLIPPING_NORM = 0.3
DELTA = CLIENTS**-1.1
EPSILONS = (2.0, 8.0)
QUANTILE = 0.5
"""Share of the clients' moves that adaptive clipping leaves as they are."""
BITS_STD = COHORT / 20
"""Standard deviation of the noise on the number of these clients."""
PROXIMAL = 0.1
"""Weight of FedProx's proximal term."""
ADAM_STEP_SIZE = 0.01
"""Learning rate of server Adam."""


def hidden_layer() -> Classifier:
    """Return a network with a layer of 32 units: 25,450 parameters."""
    return Classifier(torch.nn.Linear(784, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


MODULES = {"linear": linear, "hidden layer": hidden_layer}
LIBRARIES = "dpmesh", "pfl"
PRACTICES = ("plain", "adaptive clipping", "Adam", "FedProx")


class Trained(NamedTuple):
    """A private run.

    Attributes
    ----------
    noise_multiplier
        Standard deviation of the noise over the clipping norm.
    accuracy
        Accuracy of the last model on the test records, in percent.
    seconds
        Processor time.
    """

    noise_multiplier: float
    accuracy: float
    seconds: float


def algorithm_of(practice: str, noise_multiplier: float | None) -> dm.FederatedLearning:
    """Return dpmesh's algorithm of a practice, at a noise multiplier."""
    updates = dm.ClientUpdates(
        clients=CLIENTS,
        sampling_rate=COHORT / CLIENTS,
        clipping_norm=CLIPPING_NORM,
        batch_size=BATCH,
        epochs=1,
        step_size=STEP_SIZE,
    )
    if practice == "adaptive clipping":
        clipping = AdaptiveClipping(quantile=QUANTILE, noise_std=BITS_STD)
        updates = replace(updates, adaptive_clipping=clipping)
    if practice == "FedProx":
        updates = replace(updates, proximal=PROXIMAL)
    if practice == "Adam":
        return dm.FederatedLearning(
            updates,
            noise_multiplier=noise_multiplier,
            optimizer=ServerAdam(),
            step_size=ADAM_STEP_SIZE,
        )
    return dm.FederatedLearning(updates, noise_multiplier=noise_multiplier)


@cache
def calibrated(practice: str, epsilon: float) -> dm.FederatedLearning:
    """Return dpmesh's algorithm with the least noise at an epsilon."""
    budget = dm.privacy.Budget(epsilon, delta=DELTA)
    multiplier = budget.calibrate(lambda multiplier: algorithm_of(practice, multiplier), ROUNDS)
    return algorithm_of(practice, multiplier)


@cache
def accountant_of(epsilon: float) -> PLDPrivacyAccountant:
    """Return pfl-research's accountant at an epsilon."""
    rate = COHORT / CLIENTS
    return PLDPrivacyAccountant(ROUNDS, rate, "gaussian", epsilon=epsilon, delta=DELTA)


def ours(problem: TorchProblem, practice: str, epsilon: float, key: Key) -> Trained:
    """Run dpmesh once."""
    algorithm = calibrated(practice, epsilon)
    begin = process_time()
    run = dm.simulate(
        algorithm, problem, rounds=ROUNDS, key=key, metrics=dm.Metrics([], progress=False)
    )
    seconds = process_time() - begin
    multiplier = algorithm.noise_multiplier or 0.0
    return Trained(multiplier, 100 * float(problem.accuracy(run.released)[0]), seconds)


def theirs(problem: TorchProblem, practice: str, epsilon: float, key: Key) -> Trained:
    """Run pfl-research once."""
    accountant = accountant_of(epsilon)
    module = problem.model(problem.initial(key)[0])
    server_optimizer: torch.optim.Optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    if practice == "Adam":
        server_optimizer = torch.optim.Adam(
            module.parameters(), lr=ADAM_STEP_SIZE, betas=(0.9, 0.99), eps=1e-3
        )
    datasets = [tensors(problem.train, part) for part in problem.partition]
    users = FederatedDataset(
        lambda user: Dataset(datasets[user]), get_user_sampler("random", range(CLIENTS))
    )
    backend = SimulatedBackend(users, None, [mechanism_of(practice, accountant)])
    algorithm = FederatedAveraging()
    parameters = NNAlgorithmParams(ROUNDS, NEVER, COHORT, 0)
    if practice == "FedProx":
        algorithm = FedProx()
        parameters = FedProxParams(ROUNDS, NEVER, COHORT, 0, PROXIMAL)
    model = PyTorchModel(module, torch.optim.SGD, server_optimizer)
    local_training = NNTrainHyperParams(BATCH, 1, STEP_SIZE)
    begin = process_time()
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        algorithm.run(parameters, backend, model, local_training)
    seconds = process_time() - begin
    flat = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    percent = 100 * float(problem.accuracy(flat[np.newaxis])[0])
    return Trained(accountant.cohort_noise_parameter, percent, seconds)


def mechanism_of(practice: str, accountant: PLDPrivacyAccountant) -> Any:
    """Return pfl-research's mechanism, with the noise of its accountant."""
    if practice == "adaptive clipping":
        return AdaptiveClippingGaussianMechanism.construct_from_privacy_accountant(
            accountant,
            CLIPPING_NORM,
            2 * BITS_STD,  # pfl's bits are -1 and 1, ours 0 and 1
            QUANTILE,
        )
    noise = GaussianMechanism.from_privacy_accountant(accountant, CLIPPING_NORM)
    return CentrallyAppliedPrivacyMechanism(noise)


def main(seeds: int = 5) -> None:
    """Print rows as they are measured, and keep them."""
    torch.set_num_threads(1)
    set_framework_module(pytorch_ops)
    train, test = (standardized(mnist(part)) for part in ("train", "test"))
    splits = [mnist_clients(train, test, CLIENTS, Key.seeded(seed)) for seed in range(seeds)]
    rows: list[Row] = []
    for (name, module), practice, epsilon in product(MODULES.items(), PRACTICES, EPSILONS):
        pairs = []
        for seed, split in enumerate(splits):
            problem = TorchProblem(split.train, split.partition, module, test=split.test)
            pairs.append(pair(problem, practice, epsilon, seed))
        for library, runs in zip(LIBRARIES, zip(*pairs, strict=True), strict=True):
            row = {
                "model": name,
                "practice": practice,
                "epsilon": epsilon,
                "library": library,
                "noise_multiplier": runs[0].noise_multiplier,
                **over_seeds([run.accuracy for run in runs]),
                "seconds": float(np.mean([run.seconds for run in runs])),
            }
            rows.append(row)
            print(row, flush=True)
    write_rows("beside-pfl", rows, as_text(rows))


def as_text(rows: list[Row]) -> str:
    """Return the page's table, a line for each practice and epsilon."""
    lines = []
    for model, practice, epsilon in product(MODULES, PRACTICES, EPSILONS):
        libraries = pick(rows, model=model, practice=practice, epsilon=epsilon)
        line = [model, practice, f"{epsilon:g}"]
        line.append(in_one_cell(libraries, noise_multiplier))
        line.append(in_one_cell(libraries, accuracy))
        line.append(in_one_cell(libraries, lambda row: f"{row['seconds']:.1f}"))
        lines.append(line)
    quantities = ("noise multiplier", "accuracy (%)", "seconds")
    heads = [f"{quantity}, here / pfl" for quantity in quantities]
    return markdown_table(["model", "practice", "epsilon", *heads], lines)


def pair(problem: TorchProblem, practice: str, epsilon: float, seed: int) -> list[Trained]:
    """Return our run and pfl's on the same clients, from the same start."""
    np.random.seed(seed)  # noqa: NPY002 - pfl draws from it
    torch.manual_seed(seed)
    key = Key.seeded(seed)
    return [library(problem, practice, epsilon, key) for library in (ours, theirs)]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

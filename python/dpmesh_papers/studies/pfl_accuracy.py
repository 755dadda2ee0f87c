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
from dpmesh_papers.studies.results import markdown_table, write_rows

CLIENTS = 1000
COHORT = 50
ROUNDS = 30
BATCH = 10
STEP_SIZE = 0.1
CLIPPING_NORM = 0.3
DELTA = CLIENTS**-1.1
EPSILONS = (2.0, 8.0)
QUANTILE = 0.5
BITS_STD = COHORT / 20
MU = 0.1
ADAM = 0.01


def hidden_layer() -> Classifier:
    """Return a network with a layer of 32 units: 25,450 parameters."""
    return Classifier(torch.nn.Linear(784, 32), torch.nn.ReLU(), torch.nn.Linear(32, 10))


MODULES = {"linear": linear, "hidden layer": hidden_layer}
LIBRARIES = "dpmesh", "pfl"
PRACTICES = ("plain", "adaptive clipping", "Adam", "FedProx")


class Trial(NamedTuple):
    """Noise, accuracy and seconds of one run."""

    noise_multiplier: float
    accuracy: float
    seconds: float


def algorithm_of(practice: str, z: float | None) -> dm.FederatedLearning:
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
        updates = replace(updates, proximal=MU)
    if practice == "Adam":
        return dm.FederatedLearning(
            updates, noise_multiplier=z, optimizer=ServerAdam(), step_size=ADAM
        )
    return dm.FederatedLearning(updates, noise_multiplier=z)


@cache
def calibrated(practice: str, epsilon: float) -> dm.FederatedLearning:
    """Return dpmesh's algorithm with the least noise at an epsilon."""
    budget = dm.privacy.Budget(epsilon, delta=DELTA)
    return algorithm_of(practice, budget.calibrate(lambda z: algorithm_of(practice, z), ROUNDS))


@cache
def accountant_of(epsilon: float) -> PLDPrivacyAccountant:
    """Return pfl-research's accountant at an epsilon."""
    rate = COHORT / CLIENTS
    return PLDPrivacyAccountant(ROUNDS, rate, "gaussian", epsilon=epsilon, delta=DELTA)


def ours(problem: TorchProblem, practice: str, epsilon: float, key: Key) -> Trial:
    """Run dpmesh once."""
    algorithm = calibrated(practice, epsilon)
    begin = process_time()
    run = dm.simulate(
        algorithm, problem, rounds=ROUNDS, key=key, metrics=dm.Metrics([], progress=False)
    )
    seconds = process_time() - begin
    z = algorithm.noise_multiplier or 0.0
    return Trial(z, 100 * float(problem.accuracy(run.released)[0]), seconds)


def theirs(problem: TorchProblem, practice: str, epsilon: float, key: Key) -> Trial:
    """Run pfl-research once."""
    accountant = accountant_of(epsilon)
    if practice == "adaptive clipping":  # its bits are -1 and 1, ours 0 and 1
        mechanism: Any = AdaptiveClippingGaussianMechanism.construct_from_privacy_accountant(
            accountant, CLIPPING_NORM, 2 * BITS_STD, QUANTILE
        )
    else:
        noise = GaussianMechanism.from_privacy_accountant(accountant, CLIPPING_NORM)
        mechanism = CentrallyAppliedPrivacyMechanism(noise)
    module = problem.model(problem.initial(key)[0])
    central: torch.optim.Optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    if practice == "Adam":
        central = torch.optim.Adam(module.parameters(), lr=ADAM, betas=(0.9, 0.99), eps=1e-3)
    datasets = [tensors(problem.train, part) for part in problem.partition]
    users = FederatedDataset(
        lambda user: Dataset(datasets[user]), get_user_sampler("random", range(CLIENTS))
    )
    backend = SimulatedBackend(users, None, [mechanism])
    algorithm = FederatedAveraging()
    parameters = NNAlgorithmParams(ROUNDS, NEVER, COHORT, 0)
    if practice == "FedProx":
        algorithm = FedProx()
        parameters = FedProxParams(ROUNDS, NEVER, COHORT, 0, MU)
    begin = process_time()
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        algorithm.run(
            parameters,
            backend,
            PyTorchModel(module, torch.optim.SGD, central),
            NNTrainHyperParams(BATCH, 1, STEP_SIZE),
        )
    seconds = process_time() - begin
    flat = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    accuracy = 100 * float(problem.accuracy(flat[np.newaxis])[0])
    return Trial(accountant.cohort_noise_parameter, accuracy, seconds)


def main(seeds: int = 5) -> None:
    """Print rows as they are measured, and keep them."""
    torch.set_num_threads(1)
    set_framework_module(pytorch_ops)
    train, test = (standardized(mnist(part)) for part in ("train", "test"))
    splits = [mnist_clients(train, test, CLIENTS, Key.seeded(seed)) for seed in range(seeds)]
    rows: list[Row] = []
    for (name, module), practice, epsilon in product(MODULES.items(), PRACTICES, EPSILONS):
        pairs = [
            pair(
                TorchProblem(split.train, split.partition, module, test=split.test),
                practice,
                epsilon,
                seed,
            )
            for seed, split in enumerate(splits)
        ]
        for library, trials in zip(LIBRARIES, zip(*pairs, strict=True), strict=True):
            noise, rates, seconds = zip(*trials, strict=True)
            cell = {"model": name, "practice": practice, "epsilon": epsilon, "library": library}
            cell |= {"noise_multiplier": noise[0], **over_seeds(rates)}
            rows.append(cell | {"seconds": float(np.mean(seconds))})
            print(rows[-1], flush=True)
    write_rows("beside-pfl", rows, as_text(rows))


def as_text(rows: list[Row]) -> str:
    """Return the page's table, a line for each practice and epsilon."""
    lines = []
    for model, practice, epsilon in product(MODULES, PRACTICES, EPSILONS):
        cell_rows = pick(rows, model=model, practice=practice, epsilon=epsilon)
        noise = " / ".join(f"{row['noise_multiplier']:.3f}" for row in cell_rows)
        rates = " / ".join(f"{row['accuracy']:.1f} ± {row['spread']:.1f}" for row in cell_rows)
        seconds = " / ".join(f"{row['seconds']:.1f}" for row in cell_rows)
        lines.append([model, practice, f"{epsilon:g}", noise, rates, seconds])
    heads = [f"{what}, here / pfl" for what in ("noise multiplier", "accuracy (%)", "seconds")]
    return markdown_table(["model", "practice", "epsilon", *heads], lines)


def pair(problem: TorchProblem, practice: str, epsilon: float, seed: int) -> list[Trial]:
    """Return our run and pfl's on the same clients, from the same start."""
    np.random.seed(seed)  # noqa: NPY002 - pfl draws from it
    torch.manual_seed(seed)
    return [way(problem, practice, epsilon, Key.seeded(seed)) for way in (ours, theirs)]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

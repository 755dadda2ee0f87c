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
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

from benches.bench_federated import NOISE, clients
from dpmesh.problems import LinearProblem
from dpmesh_papers.studies.pfl_models import NEVER, cnn, linear, tensors

CLIPPING_NORM = 1.0
COHORT = 50
BATCH = 10
STEP_SIZE = 0.1


def main(layers: str, epochs: int) -> None:
    torch.set_num_threads(1)
    set_framework_module(pytorch_ops)
    np.random.seed(0)  # noqa: NPY002 - pfl draws from it, and the same in all processes
    torch.manual_seed(0)
    problem: LinearProblem = clients()
    module = {"linear": linear, "cnn": cnn}[layers]()
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    model = PyTorchModel(module, torch.optim.SGD, optimizer)
    records_of_user = [tensors(problem.train, part) for part in problem.partition]
    sampler = get_user_sampler("random", range(len(records_of_user)))
    noise = CentrallyAppliedPrivacyMechanism(GaussianMechanism(CLIPPING_NORM, 2 * NOISE))
    backend = SimulatedBackend(
        FederatedDataset(lambda user: Dataset(records_of_user[user]), sampler), None, [noise]
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


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

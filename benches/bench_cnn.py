"""A round of federated learning of a convolutional network against pfl-research.

118,474 parameters, 50 of 1,000 clients of 50 MNIST images, an epoch of batches of 10, clipping and
noise, the test set after every round. Needs MNIST in the folder DPMESH_DATA names, and JAX.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from benches.bench_federated import NOISE, clients, dpmesh_way
from benches.measure import Case, skipped
from benches.pfl_peer import pfl
from dpmesh.algorithms.denoisers import Identity
from dpmesh_papers.federated import algorithm_of

EPOCHS = 1


def cases() -> Iterator[Case]:
    if skipped("jax") or not os.environ.get("DPMESH_DATA"):
        print("without JAX or DPMESH_DATA: skipped", file=sys.stderr)
        return
    from dpmesh.problems.jax_model import JaxProblem
    from dpmesh.problems.networks import convolutional

    images = clients()
    problem = JaxProblem(
        images.train,
        images.partition,
        *convolutional((28, 28, 1), channels=(16, 32), hidden=(64, 64)),
        test=images.test,
        record_shape=(28, 28, 1),
        nodes_at_once=1,
    )
    algorithm = algorithm_of("uniform", NOISE, Identity())
    updates: Any = algorithm.contribution
    algorithm = replace(algorithm, contribution=replace(updates, epochs=EPOCHS))
    run = dpmesh_way(problem, algorithm)
    yield Case(
        "federated, 118,474 parameters, a round",
        lambda: run(0),
        peers=pfl("cnn", epochs=EPOCHS, rounds=1),
        goals={"pfl": 1.0},
        rounds=3,
    )

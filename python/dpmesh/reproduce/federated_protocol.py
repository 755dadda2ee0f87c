"""Table 2 of the federated paper by the protocol of its own script.

The script measures on the first 1,010 test images (it breaks off after 101 batches of 10), at the
best of all rounds by 10,000 private validation images, which costs privacy that is not counted. Its
model has an intercept, starts at random, and smooths its two tensors one by one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dpmesh.algorithms.federated import FederatedLearning
from dpmesh.data import Dataset, iid
from dpmesh.data.preprocessing import with_constant
from dpmesh.denoisers import LaplacianSmoothing, Reordered
from dpmesh.keys import Key, Purpose, generator
from dpmesh.problems import LinearProblem
from dpmesh.run import Broadcast
from dpmesh.run.channel import run_rounds

TESTED = 1_010
CLASSES = 10


@dataclass(frozen=True)
class RandomStart(LinearProblem):
    """A linear model that starts within 1 / sqrt(features), as PyTorch's does."""

    def initial(self, key: Key) -> npt.NDArray[np.float64]:
        """Return the start of a key, shape (1, dim)."""
        bound = (self.train.dim - 1) ** -0.5  # the intercept's feature is none of PyTorch's
        return generator(key, Purpose.INIT).uniform(-bound, bound, (1, self.dim))


def with_intercept(
    train: Dataset, test: Dataset, clients: int, key: Key, *, at_clients: int, weight_decay: float
) -> tuple[RandomStart, RandomStart]:
    """Return the problem tested as the script tests, and the same with its validation images."""
    draw = generator(key, Purpose.SPLIT)
    order = draw.permutation(train.records)
    chosen, left = train.take(order[:at_clients]), train.take(order[at_clients:])
    first = test.take(np.arange(min(TESTED, test.records)))
    chosen, left, first = (with_constant(part) for part in (chosen, left, first))
    parts = iid(chosen, clients, draw, equal_sizes=True)
    problem = RandomStart(
        chosen, parts, "softmax", test=first, classes=CLASSES, regularization=weight_decay
    )
    return problem, replace(problem, test=left)


def by_tensor(smoothing: float, features: int) -> Reordered:
    """Return smoothing of the weights, class by class, and of the intercepts by themselves."""
    rows = np.arange(CLASSES * features).reshape(CLASSES, features)  # intercepts come last
    order = np.concatenate([rows[:, :-1].ravel(), rows[:, -1]])
    blocks = CLASSES * (features - 1), CLASSES
    return Reordered(LaplacianSmoothing(smoothing, blocks=blocks), order)


def best_accuracy(
    algorithm: FederatedLearning, tested: RandomStart, validated: RandomStart, rounds: int, key: Key
) -> float:
    """Return the test accuracy at the round that is best on the validation images."""
    found = []
    for step in run_rounds(algorithm, tested, Broadcast(), rounds=rounds, key=key):
        model = algorithm.parameters(step.state)
        found.append([float(part.accuracy(model)[0]) for part in (validated, tested)])
    return max(found, key=lambda pair: pair[0])[1]

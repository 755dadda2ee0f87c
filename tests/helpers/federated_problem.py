"""Logistic regression of many clients on small synthetic data."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpmesh import kernels


@dataclass
class Clients:
    features: np.ndarray
    labels: np.ndarray
    indptr: np.ndarray  # client j holds the records indptr[j] .. indptr[j + 1] - 1
    weight_decay: float = 0.0
    test = None

    @property
    def linear(self):
        return kernels.LinearModel(self.features, self.labels, "logistic")

    @property
    def nodes(self):
        return len(self.indptr) - 1

    def initial(self, key):
        return np.zeros((1, self.features.shape[1]))

    def records_of(self, clients):
        rows = [np.arange(self.indptr[j], self.indptr[j + 1]) for j in clients]
        return np.cumsum([0, *map(len, rows)]), np.concatenate([np.empty(0, np.int64), *rows])

    def local_training(self, start, walks, *, step_size, radius):
        updates, _ = self.linear.train(
            start, walks, step_size=step_size, radius=radius, regularization=self.weight_decay
        )
        return updates

    def objective(self, params, batches):
        return self.linear.losses(params, batches, regularization=self.weight_decay)

    def accuracy(self, params):
        raise AssertionError("there are no records to test on")


def make_clients(sizes, dim, *, weight_decay=0.0, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(sum(sizes), dim))
    y = np.where(x @ rng.normal(size=dim) + rng.normal(size=len(x)) > 0, 1.0, -1.0)
    return Clients(x, y, np.cumsum([0, *sizes]), weight_decay)

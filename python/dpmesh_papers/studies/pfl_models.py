"""Models and records as pfl-research takes them."""

from __future__ import annotations

import torch
from pfl.metrics import Weighted

NEVER = 10**9
"""Rounds between evaluations of a run that evaluates nothing."""


class Classifier(torch.nn.Sequential):
    """Layers with the methods that pfl expects of a model."""

    def loss(self, x, y, eval=False):
        """Return the cross-entropy of records x, shape (records, features), with labels y."""
        self.train(not eval)
        return torch.nn.functional.cross_entropy(self(x), y)

    @torch.no_grad()
    def metrics(self, x, y, eval=True):
        """Return the number of correct predictions, weighted by the number of records."""
        return {"right": Weighted((self(x).argmax(1) == y).sum().item(), len(y))}


def linear() -> Classifier:
    """Return softmax regression on 784 pixels."""
    return Classifier(torch.nn.Linear(784, 10))


def cnn() -> Classifier:
    """Return the convolutional network of `benches.bench_cnn`: 118,474 parameters."""
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


def tensors(records, indices):
    """Return features and labels of the records of a `Dataset` at these indices, as tensors."""
    return [torch.tensor(records.features[indices]), torch.tensor(records.labels[indices])]

"""Losses of one point and one record, as a problem for gossip: small enough to know its optimum."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpmesh._ragged import Indices, Ragged, rows
from dpmesh.keys import Key

Array = np.ndarray


@dataclass(frozen=True, eq=False)
class PointProblem:
    """A node has the records ``centres[node]``, shape (nodes, records, dim).

    `slope` and `loss` take points and records, shape (.., dim), and return gradients of this shape
    and losses without the last axis.
    """

    centres: Array
    slope: Callable[[Array, Array], Array]
    loss: Callable[[Array, Array], Array]
    start: float = 0.0
    regularization: float = 0.0
    test = None

    @property
    def nodes(self) -> int:
        return len(self.centres)

    def initial(self, key: Key) -> Array:
        return np.full((1, self.centres.shape[-1]), self.start)

    def records_of(self, nodes: Indices) -> Ragged:
        count = self.centres.shape[1]
        everything = np.arange(self.nodes + 1) * count, np.arange(self.nodes * count)
        return rows(everything, nodes)

    def gradient(self, params: Array, batches: Ragged, *, clipping_norm: float | None = None):
        slopes = self.slope(params[:, np.newaxis], self._batch(batches))
        if clipping_norm is not None:
            norms = np.linalg.norm(slopes, axis=-1, keepdims=True)
            slopes = slopes * (clipping_norm / np.maximum(norms, clipping_norm))
        return slopes.mean(axis=1)

    def objective(self, params: Array, batches: Ragged) -> Array:
        return self.loss(params[:, np.newaxis], self._batch(batches)).mean(axis=1)

    def accuracy(self, params: Array) -> Array:
        raise AssertionError("there are no records to test on")

    def _batch(self, batches: Ragged) -> Array:
        indices = batches[1].reshape(self.nodes, -1)
        return self.centres.reshape(-1, self.centres.shape[-1])[indices]

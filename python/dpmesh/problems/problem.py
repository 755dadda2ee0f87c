"""Protocols of a custom problem: the methods that runs and algorithms call.

Every run asks for the few names of a `Problem`. Algorithms that train a model on records ask for
those of a `ModelProblem`, and for gradients (`GradientProblem`) or for the updates of whole clients
(`ClientProblem`). `RecordSums` asks for vectors (`VectorProblem`). A `LinearProblem` is all of
these.

An engine that divides the nodes among processes also calls ``problem.for_nodes(nodes)``, which
returns the problem of these nodes alone. ``problem.all_records``, the number of records of each
node, lets a report count them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from dpmesh._privacy_types import Floats, Sensitive
from dpmesh._ragged import Indices, Numbers, Ragged, Walks
from dpmesh.data import Dataset
from dpmesh.keys import Key


class Problem(Protocol):
    """Protocol of a learning problem, with the members that each run uses."""

    @property
    def nodes(self) -> int:
        """Number of nodes."""

    @property
    def test(self) -> Dataset | None:
        """Test records; None if there are none."""

    def accuracy(self, params: Floats) -> Numbers:
        """Return the fraction of test records that each row of `params` classifies correctly."""


class VectorProblem(Problem, Protocol):
    """Protocol of a problem whose records are vectors, for `RecordSums`."""

    def vectors(self, node: int) -> Iterator[Sensitive]:
        """Yield the vectors of a node's records, in blocks of shape (records, dim).

        Each vector must be a function of its record and of public numbers: the guarantee rests on
        that alone.
        """


class ModelProblem(Problem, Protocol):
    """Protocol of a problem whose model is one vector of parameters."""

    def initial(self, key: Key) -> Floats:
        """Return parameters to start from, shape (1, dim), independent of the data."""

    def records_of(self, nodes: Indices) -> Ragged:
        """Return the records of these nodes, as ``(indptr, indices)``.

        Each record is at one node, once, in all rounds; a client may have none.
        """

    def objective(self, params: Floats, batches: Ragged) -> Numbers:
        """Return each node's objective on its batch, shape (nodes,), which runs report."""


class GradientProblem(ModelProblem, Protocol):
    """Protocol of a problem whose records have gradients."""

    @property
    def regularization(self) -> float:
        """Factor of ``|w|^2 / 2`` in each node's objective."""

    def gradient(
        self, params: Floats, batches: Ragged, *, clipping_norm: float | None = None
    ) -> Floats:
        """Return each node's gradient on its batch, shape (nodes, dim).

        This is the mean of the records' gradients, each clipped to `clipping_norm`, plus the
        regularizer's. A record's clipped gradient must not depend on other records: the guarantee
        rests on that alone.
        """


class ClientProblem(ModelProblem, Protocol):
    """Protocol of a problem whose clients train locally, for `ClientUpdates`."""

    def local_training(
        self, start: Floats, walks: Walks, *, step_size: float, radius: float
    ) -> Floats:
        """Train many clients from one model `start`, shape (1, dim), each on its own batches.

        With the gradient g of a client's objective on a batch, weight decay included, a step is::

            w <- start + Clip(w - step_size g(w) - start, radius)

        A client's update must not depend on other clients: the guarantee rests on that alone.
        It may take two more arguments by name, for settings of `ClientUpdates`: ``proximal``,
        the factor mu of ``mu (w - start)`` in each gradient, and ``correction``, shape (clients,
        dim), whose row for a client is added to each of its gradients.

        Returns
        -------
        The updates w - start, shape (clients, dim).
        """

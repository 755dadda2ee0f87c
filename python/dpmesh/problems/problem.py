"""Protocols of a custom problem: the methods that runs and algorithms call.

Every run needs the few members of a `Problem`. Algorithms that train a model need a `ModelProblem`
with gradients (`GradientProblem`) or with local training of clients (`ClientProblem`). `RecordSums`
needs vectors (`VectorProblem`). A `LinearProblem` has all of these methods.

`Ragged` batches are pairs ``(indptr, indices)`` of integer arrays: node i has the records
``indices[indptr[i]:indptr[i + 1]]``. `Walks` are the batches of each client's local steps.

An engine that divides the nodes among processes also calls ``problem.for_nodes(nodes)``, which
returns the problem with these nodes only. If the problem has ``all_records``, the number of records
of each node, privacy reports compare it with delta.
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
        """Test records; None without a test."""

    def accuracy(self, params: Floats) -> Numbers:
        """Return the fraction of test records that each row of `params` classifies correctly."""


class VectorProblem(Problem, Protocol):
    """Protocol of a problem whose records are vectors, for `RecordSums`."""

    def vectors(self, node: int) -> Iterator[Sensitive]:
        """Yield the vectors of a node's records, in blocks of shape (records, dim).

        Each vector must be a function of its record and of public numbers. The guarantee assumes
        this of the problem, and nothing else.
        """


class ModelProblem(Problem, Protocol):
    """Protocol of a problem whose model is one vector of parameters."""

    def initial(self, key: Key) -> Floats:
        """Return the initial parameters, shape (1, dim), which must not depend on private data."""

    def records_of(self, nodes: Indices) -> Ragged:
        """Return the record indices of these nodes, as ``(indptr, indices)``.

        Each record must be at one node only, once, and stay there in all rounds. A client of
        `ClientUpdates` may have no records.
        """

    def objective(self, params: Floats, batches: Ragged) -> Numbers:
        """Return each node's objective on its batch, shape (nodes,), for the metric ``"loss"``.

        Parameters
        ----------
        params
            Parameters of each node, shape (nodes, dim).
        batches
            Records of each node, as ``(indptr, indices)``.
        """


class GradientProblem(ModelProblem, Protocol):
    """Protocol of a problem whose records have gradients."""

    @property
    def regularization(self) -> float:
        """Factor lambda of the regularizer ``lambda |w|^2 / 2`` in each node's objective."""

    def gradient(
        self, params: Floats, batches: Ragged, *, clipping_norm: float | None = None
    ) -> Floats:
        """Return each node's gradient on its batch, shape (nodes, dim).

        It is the mean of the records' gradients, each clipped to the L2 norm `clipping_norm` (None
        for no clipping), plus the gradient of the regularizer. A record's clipped gradient must not
        depend on other records. The guarantee assumes this of the problem, and nothing else.
        """


class ClientProblem(ModelProblem, Protocol):
    """Protocol of a problem whose clients train locally, for `ClientUpdates`."""

    def local_training(
        self, start: Floats, walks: Walks, *, step_size: float, radius: float
    ) -> Floats:
        """Train clients from one common model by local gradient steps, and return their updates.

        Let g be the gradient of a client's objective on its next batch, weight decay included. One
        local step is::

            w <- start + Clip(w - step_size g(w) - start, radius)

        A client's update must not depend on other clients. The guarantee assumes this of the
        problem, and nothing else.

        The method may accept two more arguments by name, for settings of `ClientUpdates`:
        ``proximal``, the factor mu of ``mu (w - start)`` in each gradient; and ``correction``, of
        shape (clients, dim), whose row for a client is added to each of its gradients.

        Parameters
        ----------
        start
            The common model, shape (1, dim); it must not be changed.
        walks
            Batches of each client, in the order of its local steps.
        step_size
            Learning rate of the local steps.
        radius
            Largest L2 distance of a client's model from `start`.

        Returns
        -------
        The updates w - start, shape (clients, dim).
        """

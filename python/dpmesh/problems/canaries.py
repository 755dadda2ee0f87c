"""Made-up problems for audits, on which an algorithm's messages move as far as its clipping allows.

A *canary* is a record or client that an audit tries to detect; its *coin* decides between its two
forms. The other records or clients *pull* the model in the opposite direction: their gradients or
updates are so long that they are always clipped. `Algorithm.leaking_data` uses these problems.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from dpmesh._arrays import floats
from dpmesh._privacy_types import Floats
from dpmesh._ragged import Flags, Indices, Numbers, Ragged, Walks
from dpmesh._validate import fail, integer, non_negative, positive
from dpmesh.data import Dataset
from dpmesh.keys import Key
from dpmesh.problems import LinearProblem

_FAR = 1e6
"""Label of a canary, and length of a client's update: far beyond any clipping norm in use."""


def diagonal(dim: int) -> Numbers:
    """Return the unit vector ``(1, .., 1, -1) / sqrt(dim)``; for a `dim` of 1, ``(1,)``.

    It shows errors in clipping and noise. Clipping each coordinate instead of the norm would leave
    it sqrt(dim) times as long. Its L1 norm is the largest that its L2 norm allows. Noise that all
    coordinates wrongly share would cancel in the difference of two coordinates.
    """
    signs = np.where(np.arange(dim) + 1 < max(dim, 2), 1.0, -1.0)
    return signs / sqrt(dim)


def canary_records(
    coins: npt.ArrayLike, *, records: int, dim: int = 1, position: int = 0
) -> LinearProblem:
    """Return a linear regression with one canary record at each node.

    All records have the features `diagonal` and a label so extreme that their gradients are
    clipped. Canaries with a coin of True pull the model along the diagonal; all other records pull
    in the opposite direction. Problems that differ in one coin are neighbours (replace-one).

    Parameters
    ----------
    coins
        Coin of each node's canary, shape (nodes,).
    records
        Number of records of each node, at least 1.
    dim
        Length of the model.
    position
        Place of the canary among a node's records, from 0.

    Raises
    ------
    ValueError
        If there is no coin, or a number is out of range.
    """
    sides = floats("coins", coins, ndim=1)
    if not np.isin(sides, (0, 1)).all():
        fail("coins", "truth values", sides)
    heads = sides.astype(bool)
    integer("records", records, at_least=1)
    integer("position", position, below=records)
    features = np.tile(diagonal(integer("dim", dim, at_least=1)), (heads.size * records, 1))
    labels = np.full((heads.size, records), -_FAR)
    labels[heads, position] = _FAR
    parts = tuple(np.arange(labels.size).reshape(labels.shape))
    everything = Dataset(features, labels.ravel(), "canaries")
    return LinearProblem(everything, parts, "squared", label_bound=_FAR)


@dataclass(frozen=True, kw_only=True, eq=False)
class PullingClients:
    """Problem whose clients return updates far outside the radius, which must then be clipped.

    Parameters
    ----------
    pulls
        Direction of each client's update, shape (clients, dim).
    present
        True for clients with a record, shape (clients,). A client without records has an update of
        0, like an absent client.

    Raises
    ------
    ValueError
        If the shapes do not fit.
    """

    pulls: Numbers
    present: Flags

    def __post_init__(self) -> None:
        if self.pulls.ndim != 2 or self.present.shape != self.pulls.shape[:1]:
            got = f"pulls {self.pulls.shape}, present {self.present.shape}"
            fail("pulls", "shape (clients, dim), and present (clients,)", got)

    @property
    def nodes(self) -> int:
        """Number of clients."""
        return len(self.pulls)

    def initial(self, key: Key) -> Floats:
        """Return the model 0, shape (1, dim)."""
        return np.zeros((1, self.pulls.shape[1]))

    def records_of(self, nodes: Indices) -> Ragged:
        """Return the records of these clients as ``(indptr, indices)``: one, or none if absent."""
        has = self.present[nodes]
        return np.cumsum([0, *has]), nodes[has]

    def local_training(
        self, start: Floats, walks: Walks, *, step_size: float, radius: float
    ) -> Floats:
        """Return the updates, shape (clients, dim): a long multiple of the pull, or 0 if absent."""
        has_steps = np.diff(walks.steps) > 0  # clients without a record take no step
        indptr, records = walks.batches
        first_steps = walks.steps[:-1][has_steps]
        clients = records[indptr[first_steps]]  # the one record of a client has the client's index
        updates = np.zeros((len(has_steps), start.shape[1]))
        updates[has_steps] = _FAR * self.pulls[clients]
        return updates

    def objective(self, params: Floats, batches: Ragged) -> Numbers:
        """Return 0: these losses are not used."""
        return np.zeros(len(params))


@dataclass(frozen=True, kw_only=True, eq=False)
class Vectors:
    """Problem for `RecordSums` whose records are vectors, all at the first node.

    Parameters
    ----------
    rows
        Vectors of the records, shape (records, dim).
    nodes
        Number of nodes.
    """

    rows: Floats
    nodes: int

    def vectors(self, node: int) -> Iterator[Floats]:
        """Return the vectors of a node's records, in one block."""
        if node == 0:
            yield self.rows


@dataclass(frozen=True, kw_only=True, eq=False)
class HillProblem:
    """Problem with one parameter whose losses have a maximum at 0, and a canary at each node.

    A canary has a linear loss, with a gradient of plus or minus `pull`. All other records have the
    loss ``-curvature |w|^2 / 2``: once the canary has moved a model away from 0, their gradients
    move it further, as fast as a loss of this smoothness can.

    Parameters
    ----------
    coins
        Coin of each node's canary, shape (nodes,): True if a gradient step on the canary increases
        the model's parameter, False if it decreases it.
    records
        Number of records of each node, the canary included.
    pull
        Norm of a canary's gradient, positive.
    curvature
        Smoothness of the other records' loss, at least 0.

    Raises
    ------
    ValueError
        If there is no coin, or a number is out of range.
    """

    coins: Flags
    records: int
    pull: float
    curvature: float

    regularization: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        if self.coins.ndim != 1 or not self.coins.size:
            fail("coins", "shape (nodes,), not 0", f"shape {self.coins.shape}")
        integer("records", self.records, at_least=1)
        positive("pull", self.pull)
        non_negative("curvature", self.curvature)

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return len(self.coins)

    def initial(self, key: Key) -> Floats:
        """Return the maximum 0, shape (1, 1)."""
        return np.zeros((1, 1))

    def records_of(self, nodes: Indices) -> Ragged:
        """Return the records of these nodes as ``(indptr, indices)``; the first is the canary."""
        places = nodes[:, np.newaxis] * self.records + np.arange(self.records)
        return np.arange(len(nodes) + 1) * self.records, places.ravel()

    def gradient(
        self, params: Floats, batches: Ragged, *, clipping_norm: float | None = None
    ) -> Floats:
        """Return the mean clipped gradient of each node's batch, shape (nodes, 1)."""
        indptr, indices = batches
        nodes, places = np.divmod(indices, self.records)
        canaries = np.bincount(nodes[places == 0], minlength=self.nodes)
        record_gradients = -self.curvature * params
        canary_gradients = np.where(self.coins, -self.pull, self.pull)[:, np.newaxis]
        if clipping_norm is not None:
            record_gradients = record_gradients.clip(-clipping_norm, clipping_norm)
            canary_gradients = canary_gradients.clip(-clipping_norm, clipping_norm)
        canary_share = (canaries / np.diff(indptr))[:, np.newaxis]
        mean = (1 - canary_share) * record_gradients + canary_share * canary_gradients
        return np.asarray(mean)

    def objective(self, params: Floats, batches: Ragged) -> Numbers:
        """Return 0: these losses are not used."""
        return np.zeros(self.nodes)

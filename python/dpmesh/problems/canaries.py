"""Data on which an algorithm moves as far as its clipping allows."""

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
"""Label of a canary, and length of a client's pull: far beyond any clipping norm in use."""


def diagonal(dim: int) -> Numbers:
    """Return a unit vector whose numbers are equal but for the sign of the last of several.

    Clipping by coordinate leaves it sqrt(dim) times as long as clipping by norm, Laplace noise
    covers it least, and noise that coordinates share cancels in their difference, where it shows.
    """
    signs = np.where(np.arange(dim) + 1 < max(dim, 2), 1.0, -1.0)
    return signs / sqrt(dim)


def canary_records(
    coins: npt.ArrayLike, *, records: int, dim: int = 1, position: int = 0
) -> LinearProblem:
    """Return a problem with a canary on each node: a record whose coin chooses between two forms.

    Every record has the same features, those of `diagonal`, and a label so extreme that its
    gradient is clipped: canaries whose coin is True pull the model along the diagonal, all other
    records the opposite way. Problems that differ in one coin are neighbours (replace-one).

    Parameters
    ----------
    coins
        One for each node, shape (nodes,).
    records
        Of each node.
    dim
        Of the model.
    position
        Which of a node's records is its canary.

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
    """Clients whose local training ignores its radius and ends far out: they must be clipped.

    Parameters
    ----------
    pulls
        Shape (clients, dim): the direction in which each client pulls.
    present
        Shape (clients,): whether the client has a record; one without is as if absent.

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
        """Return the record of each of these clients that is present."""
        has = self.present[nodes]
        return np.cumsum([0, *has]), nodes[has]

    def local_training(
        self, start: Floats, walks: Walks, *, step_size: float, radius: float
    ) -> Floats:
        """Return updates far along the pulls of the clients that take a step."""
        active = np.diff(walks.steps) > 0
        indptr, records = walks.batches
        clients = records[indptr[walks.steps[:-1][active]]]
        updates = np.zeros((len(active), start.shape[1]))
        updates[active] = _FAR * self.pulls[clients]
        return updates

    def objective(self, params: Floats, batches: Ragged) -> Numbers:
        """Return 0: these losses are not used."""
        return np.zeros(len(params))


@dataclass(frozen=True, kw_only=True, eq=False)
class Vectors:
    """Records as vectors, shape (records, dim), all of them at the first of some nodes."""

    rows: Floats
    nodes: int

    def vectors(self, node: int) -> Iterator[Floats]:
        """Return the vectors of a node's records, in one block."""
        if node == 0:
            yield self.rows


@dataclass(frozen=True, kw_only=True, eq=False)
class HillProblem:
    """Nodes on a hilltop: one record of each is a canary that pushes down either side of it.

    The canary's loss is linear, those of all other records are -curvature |w|^2 / 2: their
    gradients carry a state further in the direction that the canary started, as fast as such a
    curvature can.

    Parameters
    ----------
    coins
        Shape (nodes,): the side to which each canary pushes.
    records
        Of each node, the canary included.
    pull
        Norm of a canary's gradient.
    curvature
        At least 0.

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
        """Return the hilltop 0, shape (1, 1)."""
        return np.zeros((1, 1))

    def records_of(self, nodes: Indices) -> Ragged:
        """Return the records of these nodes: each node's first is its canary."""
        places = nodes[:, np.newaxis] * self.records + np.arange(self.records)
        return np.arange(len(nodes) + 1) * self.records, places.ravel()

    def gradient(
        self, params: Floats, batches: Ragged, *, clipping_norm: float | None = None
    ) -> Floats:
        """Return the mean gradient of each node's batch."""
        indptr, indices = batches
        nodes, places = np.divmod(indices, self.records)
        canaries = np.bincount(nodes[places == 0], minlength=self.nodes)
        slopes = -self.curvature * params
        pushes = np.where(self.coins, -self.pull, self.pull)[:, np.newaxis]
        if clipping_norm is not None:
            slopes = slopes.clip(-clipping_norm, clipping_norm)
            pushes = pushes.clip(-clipping_norm, clipping_norm)
        canary_share = (canaries / np.diff(indptr))[:, np.newaxis]
        return np.asarray((1 - canary_share) * slopes + canary_share * pushes)

    def objective(self, params: Floats, batches: Ragged) -> Numbers:
        """Return 0: these losses are not used."""
        return np.zeros(self.nodes)

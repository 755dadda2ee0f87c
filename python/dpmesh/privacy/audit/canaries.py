"""Data on which an algorithm moves as far as its clipping lets it."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
import numpy.typing as npt

from dpmesh._ragged import Indices, Ragged
from dpmesh._validate import fail, integer
from dpmesh.data import Dataset
from dpmesh.keys import Key
from dpmesh.privacy.types import Floats
from dpmesh.problems import LinearProblem

_FAR = 1e6  # so strong a pull that it is always clipped


def canary_records(
    coins: npt.ArrayLike, *, records: int, dim: int = 1, position: int = 0
) -> LinearProblem:
    """Return a problem with a canary on each node: one record, in one of two forms by its coin.

    Every record has the same features, a unit vector along the diagonal (which Laplace noise covers
    least), and a label so far out that its gradient is clipped: canaries whose coin is True pull
    the model along the diagonal, all other records the opposite way. Problems that differ in one
    coin are neighbours (replace-one).

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
    heads = np.asarray(coins, dtype=bool).ravel()
    if not heads.size:
        fail("coins", "1 coin or more", 0)
    integer("records", records, at_least=1)
    integer("position", position, below=records)
    features = np.full((heads.size * records, integer("dim", dim, at_least=1)), 1 / sqrt(dim))
    labels = np.full((heads.size, records), -_FAR)
    labels[heads, position] = _FAR
    parts = tuple(np.arange(labels.size).reshape(labels.shape))
    everything = Dataset(features, labels.ravel(), "canaries")
    return LinearProblem(everything, parts, "squared", label_bound=_FAR)


@dataclass(frozen=True, eq=False)
class PullingClients:
    """Clients whose local steps end as far from the global model as clipping lets them.

    Each has one record, with the linear loss -<pull, w>.

    Parameters
    ----------
    pulls
        Shape (clients, dim): the direction in which each client pulls.
    present
        Shape (clients,): whether the client has its record; without it, it is as if it were not
        there.

    Raises
    ------
    ValueError
        If the shapes do not fit.
    """

    pulls: npt.NDArray[np.float64]
    present: npt.NDArray[np.bool_]

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

    def step(
        self,
        params: Floats,
        step_size: npt.NDArray[np.float64],
        batches: Ragged,
        *,
        out: Floats,
    ) -> Floats:
        """Return the models after a step along their pulls."""
        indptr, records = batches
        active = np.diff(indptr) > 0
        out[:] = params
        out[active] += step_size[active, np.newaxis] * _FAR * self.pulls[records]
        return out

    def objective(self, params: Floats, batches: Ragged) -> npt.NDArray[np.float64]:
        """Return 0: nobody looks at these losses."""
        return np.zeros(len(params))

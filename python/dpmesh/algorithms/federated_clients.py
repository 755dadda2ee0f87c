"""What clients learn whose updates are summed: the interface of a problem."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpmesh._ragged import Indices, Ragged, Walks
from dpmesh.keys import Key
from dpmesh.privacy.types import Floats


class ClientProblem(Protocol):
    """What many clients can learn together: a model as one vector, trained on their records."""

    @property
    def nodes(self) -> int:
        """Number of clients."""
        ...

    def initial(self, key: Key) -> Floats:
        """Return the first global model, shape (1, dim), independent of the clients' data."""
        ...

    def records_of(self, nodes: Indices) -> Ragged:
        """Return the records of these clients, possibly none."""
        ...

    def local_training(
        self, start: Floats, walks: Walks, *, step_size: float, radius: float
    ) -> Floats:
        """Train many clients from one model `start`, shape (1, dim), each on its own batches.

        With the gradient g of a client's objective on a batch, weight decay included, a step is::

            w <- start + Clip(w - step_size g(w) - start, radius)

        A client's update must not depend on other clients: the guarantee rests on that alone.
        It may take two more arguments by name, for settings of `ClientUpdates`: ``proximal``,
        the factor mu of ``mu (w - start)`` in each gradient, and ``correction``, shape (clients,
        dim), of which each client's gradients get their own row added.

        Returns
        -------
        The updates w - start, shape (clients, dim).
        """
        ...

    def objective(self, params: Floats, batches: Ragged) -> npt.NDArray[np.float64]:
        """Return each client's objective on its batch, shape (clients,), which runs report."""
        ...

"""What the clients of federated learning hold, and the updates that they send."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

import dpmesh.kernels as kernels
from dpmesh._arrays import floats, read_only
from dpmesh._ragged import Indices, Ragged, Walks
from dpmesh._validate import fail
from dpmesh.keys import Key
from dpmesh.privacy.types import Floats, Released, Sensitive


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
        It may take two more arguments by name, for settings of `FederatedLearning`: ``proximal``,
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


def trained_updates(
    problem: ClientProblem,
    w: Released,
    walks: Walks,
    *,
    step_size: float,
    radius: float,
    proximal: float = 0.0,
    correction: Floats | None = None,
) -> Sensitive:
    """Return each client's clipped update, shape (clients, dim), of the batches of its walk.

    A correction, shape (clients, dim), is added to each client's gradients.

    Raises
    ------
    ValueError
        If training gives anything but finite updates, one for each client.
    """
    more: dict[str, Any] = {"proximal": proximal} if proximal else {}
    if correction is not None:
        more["correction"] = correction
    start = read_only(w.copy())  # training in place would be a release without noise
    trained: Any = problem.local_training(start, walks, step_size=step_size, radius=radius, **more)
    updates = np.require(floats("local_training", trained), requirements="W")
    # The guarantee must not rely on the problem for one row per client, nor for the ball.
    if updates.shape != (shape := (len(walks.steps) - 1, w.shape[1])):
        fail("local_training", f"updates of shape {shape}", updates.shape)
    try:
        kernels.clip_rows(updates, radius, out=updates)
    except ValueError as error:
        if kernels.all_finite(updates):
            raise
        wanted = f"training that stays finite at a local_step_size of {step_size:g}"
        raise ValueError(f"problem: wanted {wanted}, got NaN or infinity") from error
    return Sensitive(updates)

"""What the controller of SGD without replacement sees before it decides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dpmesh._ragged import Ragged
from dpmesh.controllers import Observation
from dpmesh.data import Dataset
from dpmesh.kernels import LinearModel
from dpmesh.privacy.types import Floats, Released, Sensitive
from dpmesh.problems import LinearProblem


def unobserved(
    local: Sensitive,
    acting: npt.NDArray[np.bool_],
    released: Released,
    public_losses: Floats | None,
) -> Observation:
    """Return what every controller may see: NaN stands for all that is private.

    Parameters
    ----------
    local
        Local models, shape (M, K, d), of which only the shape counts.
    acting
        Which nodes act, shape (M,).
    released
        Global models, shape (K, d).
    public_losses
        Those of the global models on public records, shape (K,); None without such records.
    """
    unseen = np.broadcast_to(local.dtype.type(np.nan), local.shape)
    return Observation(
        acting=acting.copy(),
        local_models=Sensitive(unseen),
        losses=Sensitive(unseen[:, :, 0]),
        last_losses=Sensitive(unseen[:, :, 0]),
        released_models=Released(released.copy()),
        public_losses=public_losses,
    )


def with_answers(seen: Observation, answers: Released) -> Observation:
    """Return an observation with the noisy losses of the nodes that act, shape (acting, 1)."""
    noisy = seen.losses.astype(np.float64)
    noisy[seen.acting] = answers
    return replace(seen, losses=Sensitive(noisy))


def with_private(
    seen: Observation, local: Sensitive, problem: LinearProblem, batches: Ragged, last: Ragged
) -> Observation:
    """Return an observation with the local models and their losses, without noise.

    Parameters
    ----------
    batches, last
        The coming mini-batch of each node and the one before, possibly none.
    """
    w = local.reshape(len(local), -1)
    return replace(
        seen,
        local_models=Sensitive(local.copy()),
        losses=Sensitive(problem.class_objectives(w, batches)),
        last_losses=Sensitive(problem.class_objectives(w, last)),
    )


def losses_on(public: Dataset, released: Released, problem: LinearProblem) -> Floats:
    """Return the losses of the global models, shape (K, d), on public records, shape (K,)."""
    model = LinearModel(public.features, public.labels, problem.loss, classes=problem.classes)
    measure = model.losses if len(released) == 1 else model.class_losses
    everything = np.arange(public.records)[np.newaxis]
    losses = measure(released.reshape(1, -1), everything, regularization=problem.regularization)
    return losses.reshape(-1)

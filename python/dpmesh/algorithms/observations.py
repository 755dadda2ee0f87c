"""What the controller of SGD without replacement sees before it decides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

import dpmesh.kernels as kernels
from dpmesh._ragged import Ragged
from dpmesh.controllers import Observation
from dpmesh.data import Dataset
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
    x, y = public.features, public.labels
    arguments = released.reshape(1, -1), x, y, np.arange(len(y))[np.newaxis], problem.loss
    settings: Any = {"classes": problem.classes, "regularization": problem.regularization}
    measure = kernels.linear_loss if len(released) == 1 else kernels.linear_class_losses
    return measure(*arguments, **settings).reshape(-1)

"""Reaction of a run's messages to a record and to each other, in public numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from dpmesh._arrays import unmasked
from dpmesh._validate import fail, non_negative, one_of

Numbers: TypeAlias = npt.NDArray[np.float64]
Distribution: TypeAlias = Literal["gaussian", "discrete_gaussian", "laplace"]
DISTRIBUTIONS = ("gaussian", "discrete_gaussian", "laplace")


@dataclass(frozen=True, kw_only=True, eq=False)
class Reaction:
    """Public numbers from which a view is accounted.

    In round t node i sends ``m_t^i = x_t^i + n_t^i``, mixes what it receives with the weights W_t
    of the network, and steps: ``x_(t+1)^i = F_t^i(x_t^i, sum_j W_t[i, j] m_t^j)``.

    Parameters
    ----------
    sensitivity
        How far a record moves its node's x_t, given x_(t-1) and all messages: shape (rounds,).
        L2 norm, as all distances here.
    noise
        Scale of the noise of the messages: standard deviation, or Laplace's b. Shape (rounds,).
    lipschitz
        Lipschitz constant of the step that follows round t's mixing, in the mixed vector. Above 1
        the step expands. Shape (rounds,).
    own_state
        Lipschitz constant of x_(t+1) in x_t, messages being equal: 0 if x_(t+1) is made of messages
        alone. A number, or shape (rounds,).
    own_message
        If a node's step reacts to its own message in another way, too: shape (rounds, 2), the range
        of step size times curvature that is taken from the weight of its own message.
    distribution
        Of the noise.
    rounding
        Step of the grid of discrete noise, times sqrt(dim).
    one_round
        Whether each record moves one state only, so that the cost is the worst over rounds.

    Raises
    ------
    ValueError
        If lengths differ, a number is negative or not finite, or states carry on what a record did
        and `one_round` is set.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> ones = np.ones(3)
    >>> dm.privacy.views.Reaction(sensitivity=ones, noise=2 * ones, lipschitz=ones).distribution
    'gaussian'
    """

    sensitivity: Numbers
    noise: Numbers
    lipschitz: Numbers
    own_state: Numbers | float = 0.0
    own_message: Numbers | None = None
    distribution: Distribution = "gaussian"
    rounding: float = 0.0
    one_round: bool = False

    def __post_init__(self) -> None:
        sensitivity = _at_least_0("sensitivity", self.sensitivity)
        if sensitivity.ndim != 1 or len(sensitivity) == 0:
            fail("sensitivity", "shape (rounds,)", f"{sensitivity.shape}")
        object.__setattr__(self, "sensitivity", sensitivity)
        for name in ("noise", "lipschitz"):
            array = _at_least_0(name, getattr(self, name))
            if array.shape != (self.rounds,):
                fail(name, f"shape {(self.rounds,)}", f"shape {array.shape}")
            object.__setattr__(self, name, array)
        own_state = _at_least_0("own_state", self.own_state)
        if own_state.shape not in ((), (self.rounds,)):
            fail("own_state", f"a number, or shape {(self.rounds,)}", f"shape {own_state.shape}")
        object.__setattr__(self, "own_state", np.broadcast_to(own_state, (self.rounds,)))
        if self.own_message is not None and np.shape(self.own_message) != (self.rounds, 2):
            got = f"shape {np.shape(self.own_message)}"
            fail("own_message", f"shape {(self.rounds, 2)}", got)
        if self.one_round and own_state.any():
            fail("own_state", "0 where each record moves one state only", self.own_state)
        one_of("distribution", self.distribution, DISTRIBUTIONS)
        non_negative("rounding", self.rounding)

    @property
    def rounds(self) -> int:
        """Number of rounds."""
        return len(self.sensitivity)

    @property
    def is_noisy(self) -> bool:
        """True if messages have noise from the first round on in which a record moves a state."""
        moved = np.flatnonzero(self.sensitivity)
        return len(moved) == 0 or bool((self.noise[moved[0] :] > 0).all())


@dataclass(frozen=True, kw_only=True)
class NotProved:
    """Why nothing below the cost against everybody is proved for a run.

    Parameters
    ----------
    reason
        In words.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.privacy.views.NotProved(reason="the loss is not convex").reason
    'the loss is not convex'
    """

    reason: str


NO_NOISE = NotProved(reason="messages carry no noise")


def _at_least_0(name: str, value: npt.ArrayLike) -> Numbers:
    array = np.asarray(unmasked(name, value), dtype=np.float64)
    if not (np.isfinite(array) & (array >= 0)).all():
        fail(name, "finite numbers of at least 0", array)
    return array

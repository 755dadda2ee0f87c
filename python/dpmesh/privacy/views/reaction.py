"""Reaction of a run's messages to a record and to each other: public Lipschitz constants.

An algorithm states the `Reaction` of its run, or `NotProved`; `view_cost` needs it.
"""

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
    """Bounds on the change of messages with a record and with earlier messages.

    The epsilon against a view is computed from these public numbers.

    In round t node i sends ``m_t^i = x_t^i + n_t^i``, mixes what it receives with the weights W_t
    of the network, and steps: ``x_(t+1)^i = F_t^i(x_t^i, sum_j W_t[i, j] m_t^j)``.

    Parameters
    ----------
    sensitivity
        Largest distance by which a record moves the state x_t of its node, given x_(t-1) and all
        messages; shape (rounds,). All distances are in L2 norm.
    noise
        Scale of the noise of the messages: standard deviation of Gaussian noise, or scale b of
        Laplace noise; shape (rounds,).
    lipschitz
        Lipschitz constant of the step after the mixing of round t, as a function of the mixed
        vector; shape (rounds,). A step with a constant above 1 expands distances.
    own_state
        Lipschitz constant of x_(t+1) as a function of x_t, given all messages; 0 if x_(t+1) depends
        on messages alone. A number, or shape (rounds,).
    own_message
        Smallest and largest step size times curvature, shape (rounds, 2), for a step that takes the
        gradient at the node's own message. They are subtracted from the weight of this message.
        None for other steps.
    distribution
        Distribution of the noise: ``"gaussian"``, ``"discrete_gaussian"`` or ``"laplace"``.
    rounding
        Spacing of the grid of discrete noise times sqrt(dim); 0 without a grid.
    one_round
        True if each record moves one state only. Epsilon is then the largest over rounds.

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
    """Reason why no epsilon under a weaker adversary is proved for a run.

    Parameters
    ----------
    reason
        The reason, in words.

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

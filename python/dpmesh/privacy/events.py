"""What leaves a node: how sensitive it is, and with which noise it went."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp
from types import NoneType
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from dpmesh._validate import fail, instance, integer, non_negative, number, one_of
from dpmesh.kernels.projection import Norm
from dpmesh.privacy.sampling import FixedSizeSampling, PoissonSampling, Sampling

if TYPE_CHECKING:
    from dp_accounting import DpEvent

MechanismName = Literal["laplace", "gaussian", "discrete_laplace", "discrete_gaussian", "none"]

_NAMES = get_args(MechanismName)
A_SENSITIVITY = "a Sensitivity, such as Sensitivity(1.0, 'l2', 'why')"


@dataclass(frozen=True, slots=True)
class Sensitivity:
    """How far one neighbouring dataset can move a release, given all earlier releases.

    Parameters
    ----------
    bound
        Largest distance, in the units of the released values; 0 if they do not depend on the data.
        It is that of exact arithmetic: the rounding of the values' type must be small beside it.
    norm
        The norm of that distance.
    reason
        The argument for it, in a few words with its source.
    """

    bound: float
    norm: Norm
    reason: str

    def __post_init__(self) -> None:
        bound = non_negative("bound", self.bound)
        if bound is not self.bound:
            object.__setattr__(self, "bound", bound)
        one_of("norm", self.norm, ("l1", "l2"))


@dataclass(frozen=True, slots=True)
class Release:
    """What a mechanism released from nodes in one round.

    Parameters
    ----------
    round
        The round, from 0.
    mechanism
        Distribution of the noise, real-valued or on a grid; ``"none"`` for values released as they
        were.
    noise_multiplier
        Scale of the noise divided by the sensitivity in the mechanism's own norm: for Laplace noise
        scale / L1 sensitivity (so 1 / epsilon), for Gaussian noise standard deviation / L2
        sensitivity. 0 if there was none.
    sensitivity
        How far one neighbouring dataset moves the values.
    batch
        Which of each node's disjoint batches of records the values depend on, given all earlier
        releases; None if on all of them. Releases of different batches compose in parallel.
    sampling
        How the units that the values depend on were drawn; None if all of them took part.
    nodes
        The nodes, from 0, whose data the values depend on: those that released something; None for
        all. Nodes whose noise or sensitivity differ in a round have a release each.

    Raises
    ------
    ValueError
        If `mechanism` is unknown, `noise_multiplier` is not finite and positive, or not 0 for
        ``"none"``, `nodes` is not one or more distinct integers of at least 0, or another argument
        has the wrong type.
    """

    round: int
    mechanism: MechanismName
    noise_multiplier: float
    sensitivity: Sensitivity
    batch: int | None = None
    sampling: Sampling | None = None
    nodes: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        one_of("mechanism", self.mechanism, _NAMES)
        self._keep("round", integer("round", self.round))
        z, noisy = number("noise_multiplier", self.noise_multiplier), self.mechanism != "none"
        self._keep("noise_multiplier", z)
        if not (z > 0 if noisy else z == 0):
            wanted = "a finite number greater than 0" if noisy else "0 for the mechanism 'none'"
            fail("noise_multiplier", wanted, self.noise_multiplier)
        instance("sensitivity", self.sensitivity, A_SENSITIVITY, Sensitivity)
        if self.batch is not None:
            self._keep("batch", integer("batch", self.batch))
        if type(self.sampling) not in (PoissonSampling, FixedSizeSampling, NoneType):
            fail("sampling", "PoissonSampling or FixedSizeSampling", repr(self.sampling))
        if self.nodes is None:
            return
        nodes = np.asarray(self.nodes)
        whole = nodes.ndim == 1 and nodes.size > 0 and nodes.dtype.kind in "iu"
        if not whole or nodes.min() < 0 or len(set(nodes.tolist())) < nodes.size:
            fail("nodes", "a tuple of distinct integers of at least 0", self.nodes)
        if type(self.nodes) is not tuple:
            object.__setattr__(self, "nodes", tuple(nodes.tolist()))

    def _keep(self, name: str, value: float) -> None:
        """Convert a numpy scalar field to a Python number."""
        if value is not getattr(self, name):
            object.__setattr__(self, name, value)

    @property
    def event(self) -> DpEvent:
        """The release as an event of the dp-accounting library.

        For noise on a grid it is what is proved: zero-concentrated differential privacy for
        discrete Gaussian noise; pure differential privacy, as randomized response dominates it, for
        discrete Laplace noise.
        """
        import dp_accounting

        if self.sensitivity.bound == 0:
            return dp_accounting.NoOpDpEvent()
        if self.noise_multiplier == 0:
            return dp_accounting.NonPrivateDpEvent()
        z = self.noise_multiplier
        event = {
            "laplace": lambda: dp_accounting.LaplaceDpEvent(z),
            "gaussian": lambda: dp_accounting.GaussianDpEvent(z),
            "discrete_laplace": lambda: dp_accounting.RandomizedResponseDpEvent(
                2 * exp(-1 / z) / (1 + exp(-1 / z)), num_buckets=2
            ),
            "discrete_gaussian": lambda: dp_accounting.ZCDpEvent(1 / (2 * z**2)),
        }[self.mechanism]()
        return event if self.sampling is None else self.sampling.event(event)

"""Contributions of clients to a round of federated learning: the first of its parts.

All parts and `FederatedLearning` itself share one vocabulary:

=====================  =========================================================================
``clients``            who contributes, N of them: devices, hospitals, banks, any node with records
``sampling_rate``      probability with which what is protected takes part in a round
``clipping_norm``      largest L2 norm of what one unit (a client, a record) adds to the sum
``noise_multiplier``   standard deviation of the noise on the sum over ``clipping_norm``
``step_size``          how far a gradient moves a client's model, or the estimate the global one
``expected_size``      the public number S that a sum is divided by
``denoiser``           what is made of the noisy average, such as Laplacian smoothing
``optimizer``          how the server steps along it: momentum, Adam
``average``            which models the output is the average of
=====================  =========================================================================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from dpmesh._privacy_types import Floats, NeighboringRelation, Released, Sensitive, Unit
from dpmesh._ragged import Indices, Numbers
from dpmesh._validate import every, integer, positive, probability
from dpmesh.algorithms.worst_case import AuditSize, Crowd, Pair
from dpmesh.keys import Key
from dpmesh.noise.sensitivity import Sensitivity
from dpmesh.privacy.sampling import Sampling
from dpmesh.problems import ModelProblem

ProblemT = TypeVar("ProblemT", bound=ModelProblem, contravariant=True)

Vectors: TypeAlias = Iterator[tuple[Indices, Sensitive]]
"""Numbers of clients, and a row for each of them: what they contribute."""


@dataclass(frozen=True, kw_only=True)
class Contribution(ABC, Generic[ProblemT]):
    """Contributions of clients: vectors whose sum has a bounded sensitivity to the privacy unit.

    Parameters
    ----------
    clients, sampling_rate, clipping_norm
        As in the table above.
    """

    clients: int
    sampling_rate: float = 1.0
    clipping_norm: float = 1.0

    unit: ClassVar[Unit]
    """What is protected."""

    parties: ClassVar[str]
    """What a report calls the clients."""

    follows_from_sizes: ClassVar[tuple[str, ...]] = ("clients",)
    """Parameters that public sizes determine, as those of an `Algorithm`."""

    def __post_init__(self) -> None:
        every(self, integer, "clients", at_least=1, below=2**32)
        every(self, probability, "sampling_rate", zero=False)
        every(self, positive, "clipping_norm")

    @property
    def groups(self) -> int | None:
        """Number of groups of clients that take turns in public; None if none do."""
        return None

    @property
    def bits(self) -> int:
        """Number of scalars that a client sends beside its vector."""
        return 0

    @property
    def models(self) -> int:
        """Number of vectors of the model's length that a client receives in a round."""
        return 1

    @property
    @abstractmethod
    def neighboring_relation(self) -> NeighboringRelation:
        """The relation under which the sampling amplifies."""

    @property
    @abstractmethod
    def scheme(self) -> Sampling | None:
        """The secret sampling that amplifies privacy; None if there is none."""

    @property
    @abstractmethod
    def expected_size(self) -> float:
        """Number of units that take part in a round on average, which is public."""

    @property
    @abstractmethod
    def expected_clients(self) -> float:
        """Number of clients that take part in a round on average."""

    @property
    @abstractmethod
    def size(self) -> dict[str, Any]:
        """The numbers of a secure sum that count units: records, records_per_site."""

    @abstractmethod
    def sensitivity(self, bit_weight: float) -> Sensitivity:
        """Return how far one unit moves the sum."""

    @abstractmethod
    def assumptions(self, *, trusted: bool) -> tuple[str, ...]:
        """Return what a guarantee rests on beside the proof and the sum itself."""

    @abstractmethod
    def check_secure(self) -> None:
        """Fail if a secure sum cannot hide who takes part, or what they send."""

    @abstractmethod
    def check(self, problem: ProblemT) -> None:
        """Fail unless the problem has these clients, and the methods that they call."""

    @abstractmethod
    def cohort(self, t: int, key: Key, local_clients: int | None) -> Indices:
        """Return the clients that take part in round t, ascending.

        Parameters
        ----------
        t
            The round.
        key
            The key of the coins.
        local_clients
            Number of clients of this process, each of which draws a coin of its own, as secure
            sums need it. None if the server draws the cohort among all.
        """

    @abstractmethod
    def vectors(
        self, state: Any, cohort: Indices, t: int, problem: ProblemT, key: Key, bit_weight: float
    ) -> Vectors:
        """Yield what the clients of a cohort contribute in round t. It stays inside.

        What a client keeps for itself changes in ``state.controls``.
        """

    @abstractmethod
    def losses(self, w: Released, cohort: Indices, t: int, problem: ProblemT, key: Key) -> Numbers:
        """Return the losses of the clients that learn in round t, before they do."""

    @abstractmethod
    def moved(self, w: Released, direction: Floats, step_size: float, decay: float) -> Floats:
        """Return the global model after a step along an estimated average."""

    @abstractmethod
    def leaking_data(self, algorithm: Any, size: AuditSize) -> tuple[Pair, Crowd]:
        """Return data on which a `FederatedLearning` of it leaks as much as its plan allows."""

    def bounded(self, vectors: Sensitive) -> Sensitive:
        """Return vectors in float64 that keep the bound exactly, for sums of integers."""
        return vectors

    def precision(self, w: Released) -> npt.DTypeLike:
        """Return the type in which sums are made and averaged."""
        return np.float64

    def decay(self, problem: ProblemT) -> float:
        """Return the weight decay of the server's steps."""
        return 0.0

    def bit_weight(self, noise_multiplier: float, expected_size: float) -> float:
        """Return how far a bit beside the vector moves the sum, in units of the clipping norm."""
        return 0.0

    def next_norm(self, clipping_norm: float, share: float) -> float:
        """Return the clipping norm of the next round, from the noisy share of bits less 1/2."""
        return clipping_norm

    def next_control(self, control: Released, delta: Released, t: int, size: float) -> Floats:
        """Return the server's control variate after the estimated average of round t."""
        return control


AnyContribution: TypeAlias = Contribution[Any]

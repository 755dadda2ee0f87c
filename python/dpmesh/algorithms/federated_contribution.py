"""Contributions of clients to a round of federated learning: the first of its parts.

All parts and `FederatedLearning` itself share one vocabulary:

=====================  =========================================================================
``clients``            who contributes, N of them: devices, hospitals, banks, any node with records
``sampling_rate``      probability with which a unit of privacy takes part in a round
``clipping_norm``      largest L2 norm of what one unit (a client, a record) adds to the sum
``noise_multiplier``   standard deviation of the noise on the sum over ``clipping_norm``
``step_size``          learning rate of clients, and of the server's step along the estimate
``expected_size``      the public number S that a sum is divided by
``denoiser``           filter of the noisy average, such as Laplacian smoothing
``optimizer``          how the server steps along it: momentum, Adam
``average``            the global models whose average is the output
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
"""Some clients at a time: their indices, and the vector of each, shape (clients, dim)."""


@dataclass(frozen=True, kw_only=True)
class Contribution(ABC, Generic[ProblemT]):
    """Contributions of clients: vectors whose sum has a bounded sensitivity to the privacy unit.

    Parameters
    ----------
    clients
        Number of clients.
    sampling_rate
        Probability with which a unit of privacy takes part in a round, in (0, 1].
    clipping_norm
        Largest L2 norm of what one unit adds to the sum.
    """

    clients: int
    sampling_rate: float = 1.0
    clipping_norm: float = 1.0

    unit: ClassVar[Unit]
    """Unit of privacy: a record, or a client with all of its records."""

    parties: ClassVar[str]
    """Word for the clients in a report."""

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
        """Number of indicators, for adaptive clipping, that a client sends beside its vector."""
        return 0

    @property
    def models(self) -> int:
        """Number of vectors of the model's length that a client receives in a round."""
        return 1

    @property
    @abstractmethod
    def neighboring_relation(self) -> NeighboringRelation:
        """The neighbouring relation under which sampling amplifies privacy."""

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
        """Counts of units for secure aggregation: `records` in all, `records_per_site` at most."""

    @abstractmethod
    def sensitivity(self, bit_weight: float) -> Sensitivity:
        """Return how far one unit moves the sum."""

    @abstractmethod
    def assumptions(self, *, trusted: bool) -> tuple[str, ...]:
        """Return the assumptions of a guarantee beyond the sensitivity and the noise of the sum.

        `trusted` is True if a trusted server adds up the contributions.
        """

    @abstractmethod
    def check_secure(self) -> None:
        """Fail if secure aggregation cannot hide which clients take part, or their vectors.

        Raises
        ------
        ValueError
            If a setting of the contribution has no proof under secure aggregation.
        """

    @abstractmethod
    def check(self, problem: ProblemT) -> None:
        """Fail unless the problem has these clients, and the methods that their training calls."""

    @abstractmethod
    def cohort(self, t: int, key: Key, local_clients: int | None) -> Indices:
        """Return the clients that take part in round t, ascending.

        Parameters
        ----------
        t
            The round.
        key
            Key of the coins that draw the cohort.
        local_clients
            Number of clients of this process, each of which draws its own coin, as secure sums
            require. None if the server draws the cohort among all.
        """

    @abstractmethod
    def vectors(
        self, state: Any, cohort: Indices, t: int, problem: ProblemT, key: Key, bit_weight: float
    ) -> Vectors:
        """Yield the vectors of a cohort in round t, which are private until noise is added.

        The clients' own control variates, ``state.controls``, change in place.
        """

    @abstractmethod
    def losses(self, w: Released, cohort: Indices, t: int, problem: ProblemT, key: Key) -> Numbers:
        """Return the losses, at the model w, of the clients that learn in round t."""

    @abstractmethod
    def moved(self, w: Released, direction: Floats, step_size: float, decay: float) -> Floats:
        """Return the global model after a step along an estimated average."""

    @abstractmethod
    def leaking_data(self, algorithm: Any, size: AuditSize) -> tuple[Pair, Crowd]:
        """Return audits in which a `FederatedLearning` of it leaks as much as its plan allows."""

    def bounded(self, vectors: Sensitive) -> Sensitive:
        """Return the vectors in float64, none longer than the bound, for sums of integers."""
        return vectors

    def precision(self, w: Released) -> npt.DTypeLike:
        """Return the type in which sums are made and averaged."""
        return np.float64

    def decay(self, problem: ProblemT) -> float:
        """Return the weight decay of the server's steps."""
        return 0.0

    def bit_weight(self, noise_multiplier: float, expected_size: float) -> float:
        """Return the weight of an indicator beside the vector, in units of the clipping norm."""
        return 0.0

    def next_norm(self, clipping_norm: float, share: float) -> float:
        """Return the next clipping norm; `share` is the noisy share of set indicators less 1/2."""
        return clipping_norm

    def next_control(
        self, control: Released, average: Released, t: int, expected_size: float
    ) -> Floats:
        """Return the server's control variate after round t, from its denoised average."""
        return control


AnyContribution: TypeAlias = Contribution[Any]

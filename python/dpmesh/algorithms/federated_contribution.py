"""Contributions of clients to a round of federated learning: the first part of `FederatedLearning`.

A *contribution* decides which clients take part in a round (the *cohort*), which vectors they send,
and the sensitivity of the vectors' sum to one *unit* of privacy: a record, or a client with all of
its records. All parts of `FederatedLearning` share these names:

=====================  =========================================================================
``clients``            number N of nodes with records: devices, hospitals, banks
``sampling_rate``      probability with which a unit of privacy takes part in a round
``clipping_norm``      largest L2 norm of one unit's summand in the sum
``noise_multiplier``   standard deviation of the noise on the sum over ``clipping_norm``
``step_size``          learning rate of clients, and of the server's step
``expected_size``      public number S by which the sum is divided
``denoiser``           filter of the noisy average, such as Laplacian smoothing
``optimizer``          optimizer of the server along the filtered average: momentum, Adam
``average``            average of several global models, as the output
=====================  =========================================================================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeAlias, TypeVar

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
"""Iterator over groups of clients: their indices, and their vectors, shape (clients, dim)."""


class UnitCounts(NamedTuple):
    """Public numbers of units of a contribution: records, or clients.

    Attributes
    ----------
    total
        Number of units of all clients together.
    most_per_client
        Largest number of units of one client; None if only `total` bounds it.
    """

    total: int
    most_per_client: int | None


@dataclass(frozen=True, kw_only=True)
class Contribution(ABC, Generic[ProblemT]):
    """Base class of contributions: clients' vectors whose sum has a bounded sensitivity to a unit.

    Parameters
    ----------
    clients
        Number of clients.
    sampling_rate
        Probability with which a unit of privacy takes part in a round, in (0, 1].
    clipping_norm
        Largest L2 norm of one unit's summand in the sum.
    """

    clients: int
    sampling_rate: float = 1.0
    clipping_norm: float = 1.0

    unit: ClassVar[Unit]
    """Unit of privacy: a record, or a client with all of its records."""

    parties: ClassVar[str]
    """Word for the clients in reports, such as ``"sites"``."""

    follows_from_sizes: ClassVar[tuple[str, ...]] = ("clients",)
    """Names of parameters that public sizes determine: see `Algorithm.follows_from_sizes`."""

    def __post_init__(self) -> None:
        every(self, integer, "clients", at_least=1, below=2**32)
        every(self, probability, "sampling_rate", zero=False)
        every(self, positive, "clipping_norm")

    @property
    def groups(self) -> int | None:
        """Number of public groups of clients that take turns; None without such groups."""
        return None

    @property
    def bits(self) -> int:
        """Number of indicator bits of a client: 1 with adaptive clipping, else 0."""
        return 0

    @property
    def models(self) -> int:
        """Number of vectors of the model's length that a client receives in a round."""
        return 1

    @property
    @abstractmethod
    def neighboring_relation(self) -> NeighboringRelation:
        """Neighbouring relation of the guarantee: ``"replace_one"`` or ``"add_remove"``."""

    @property
    @abstractmethod
    def scheme(self) -> Sampling | None:
        """Secret sampling of units that amplifies privacy; None without amplification."""

    @property
    @abstractmethod
    def expected_size(self) -> float:
        """Expected number of units that take part in a round, a public number."""

    @property
    @abstractmethod
    def expected_clients(self) -> float:
        """Expected number of clients that take part in a round."""

    @property
    @abstractmethod
    def unit_counts(self) -> UnitCounts:
        """Public numbers of units, of all clients together and of one client."""

    @abstractmethod
    def sensitivity(self, bit_weight: float) -> Sensitivity:
        """Return the L2 sensitivity of the sum to one unit.

        Parameters
        ----------
        bit_weight
            Weight of an indicator bit of adaptive clipping; 0 without it. See `bit_weight`.
        """

    @abstractmethod
    def assumptions(self, *, trusted: bool) -> tuple[str, ...]:
        """Return the assumptions of the guarantee that this package cannot check, in words.

        Parameters
        ----------
        trusted
            True if a trusted server sums the contributions; False with secure aggregation.
        """

    @abstractmethod
    def check_secure(self) -> None:
        """Check that the settings have a proof under secure aggregation.

        Raises
        ------
        ValueError
            If a setting has no proof: for example, if the server would know the cohort, or if
            clients keep a state.
        """

    @abstractmethod
    def check(self, problem: ProblemT) -> None:
        """Check a problem before a run.

        Raises
        ------
        ValueError
            If the problem lacks a method that the clients' training calls, or records do not fit
            the stated numbers.
        """

    @abstractmethod
    def cohort(self, t: int, key: Key, local_clients: int | None) -> Indices:
        """Return the indices of the clients that take part in round t, ascending.

        Parameters
        ----------
        t
            Round, from 0.
        key
            Key of the coins that draw the cohort.
        local_clients
            Number of clients of this process, if each client draws a secret coin, as secure
            aggregation requires. None if the server draws the cohort.
        """

    @abstractmethod
    def vectors(
        self, state: Any, cohort: Indices, t: int, problem: ProblemT, key: Key, bit_weight: float
    ) -> Vectors:
        """Yield the vectors of a cohort in round t, without noise, some clients at a time.

        The clients' control variates ``state.controls`` are changed in place.

        Parameters
        ----------
        state
            `FederatedState` before the round.
        cohort
            Indices of the clients that take part.
        t, problem, key
            As in `Algorithm.round`.
        bit_weight
            Weight of an indicator bit of adaptive clipping; 0 without it.
        """

    @abstractmethod
    def losses(self, w: Released, cohort: Indices, t: int, problem: ProblemT, key: Key) -> Numbers:
        """Return the losses, at the global model w, of the clients that learn in round t."""

    @abstractmethod
    def moved(self, w: Released, direction: Floats, step_size: float, decay: float) -> Floats:
        """Return the global model after the server's step.

        Parameters
        ----------
        w
            Global model, shape (1, dim).
        direction
            Filtered average of the contributions, or the optimizer's direction, shape (1, dim).
        step_size
            Learning rate of the server.
        decay
            Weight decay.
        """

    @abstractmethod
    def leaking_data(self, algorithm: Any, size: AuditSize) -> tuple[Pair, Crowd]:
        """Return problems for audits of a `FederatedLearning`: see `Algorithm.leaking_data`."""

    def bounded(self, vectors: Sensitive) -> Sensitive:
        """Return the vectors in float64, clipped again after rounding, for secure aggregation."""
        return vectors

    def precision(self, w: Released) -> npt.DTypeLike:
        """Return the dtype in which vectors are summed and averaged."""
        return np.float64

    def decay(self, problem: ProblemT) -> float:
        """Return the weight decay of the server's steps."""
        return 0.0

    def bit_weight(self, noise_multiplier: float, expected_size: float) -> float:
        """Return the weight of an indicator bit of adaptive clipping, over the clipping norm.

        0 without adaptive clipping.
        """
        return 0.0

    def next_norm(self, clipping_norm: float, share: float) -> float:
        """Return the clipping norm of the next round.

        Parameters
        ----------
        clipping_norm
            Clipping norm of this round.
        share
            Noisy fraction of set indicator bits, minus 1/2.
        """
        return clipping_norm

    def next_control(
        self, control: Released, average: Released, t: int, expected_size: float
    ) -> Floats:
        """Return the server's control variate after round t (SCAFFOLD), shape (1, dim).

        Parameters
        ----------
        control
            Control variate before the round, shape (1, dim).
        average
            Denoised average of the round's updates, shape (1, dim).
        t
            Round, from 0.
        expected_size
            Expected number of clients in the cohort.
        """
        return control


AnyContribution: TypeAlias = Contribution[Any]
"""A contribution, whatever problems its clients learn."""

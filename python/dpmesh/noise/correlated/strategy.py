"""Strategies of noise: correlated in time, pairwise-cancelling between partners, or both.

An algorithm accepts a strategy as its ``noise`` and plans the noise of a whole run from it. The
strategy chooses the matrix C (`factorization`, `factorize`) and the amplitudes of the secrets
(`secrets`, `partner_secrets`) from public numbers, and `release` makes the joint release of both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache
from math import sqrt
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from dpmesh._validate import every, fail, integer, one_of, positive, refuse, require_methods
from dpmesh.accounting import analytic_gaussian_noise_to_sensitivity
from dpmesh.noise.correlated.amplitudes import changing_secrets, partner_secrets
from dpmesh.noise.correlated.changing import ChangingSecrets
from dpmesh.noise.correlated.factorization import Factorization
from dpmesh.noise.correlated.joint import CorrelatedGaussian
from dpmesh.noise.correlated.objective import Objective, average_matrix, gossip, server
from dpmesh.noise.correlated.participation import Participation
from dpmesh.noise.correlated.secrets import Secrets, links
from dpmesh.noise.correlated.solve import Method, factorize
from dpmesh.noise.grid import power_of_two
from dpmesh.topology import MixingMatrix, Static, Topology

Array = npt.NDArray[np.float64]
Shared: TypeAlias = "Secrets | tuple[Secrets, ...] | None"
"""Secrets of all rounds, of each round, or none."""

_LONGEST_STEP = 4.0
"""Largest step that `CorrelatedStrategy.step_size` returns."""

_UP = 1 + 1e-12
"""Factor that rounds a mu up."""


@dataclass(frozen=True, kw_only=True)
class CorrelatedStrategy(ABC):
    """Kind of correlation: `InTime`, `BetweenPartners` or `Both`.

    Parameters
    ----------
    topology
        The public network of the run; None where a server adds up the messages.
    rounds
        Number of rounds of the longest run. On a network the first round sends a public start
        without noise, so there are ``rounds - 1`` rows of noise; a server has a row in each round.
        A run that stops early counts only the rounds that it released.
    mixings
        Number of times that a round's messages are mixed before the next step. Several mixings cost
        traffic and no privacy.
    grid
        Step of the grid that messages are rounded to: a power of 2, small beside ``1 / sqrt(dim)``,
        such as 2**-16. Its unit is a row's noise over the noise ratio. All noise is then discrete
        Gaussian, a little larger, and the guarantee does not depend on the low-order bits of
        floating-point sums. Secrets must be shared along the same graph in every round. None for
        continuous noise.

    Raises
    ------
    ValueError
        If an argument is out of its range.
    """

    follows_from_sizes: ClassVar[tuple[str, ...]] = ("topology", "rounds")
    """Parameters that public sizes determine, as those of an `Algorithm`."""

    topology: Topology | None
    rounds: int
    mixings: int = 1
    grid: float | None = None

    def __post_init__(self) -> None:
        every(self, integer, "rounds", at_least=2)
        every(self, power_of_two, "grid")
        every(self, integer, "mixings", at_least=1)
        if self.topology is None:
            if self.mixings > 1:
                fail("mixings", "1 without a network", self.mixings)
        else:
            require_methods("topology", self.topology, "a network, such as torus(4, 4)", "matrix")

    @property
    def rows(self) -> int:
        """Number of rows of noise: one less than rounds on a network, whose start is public."""
        if self.topology is None:
            return self.rounds
        return self.rounds - 1

    @property
    @abstractmethod
    def correlates_time(self) -> bool:
        """True if later noise cancels part of earlier noise."""

    def secrets(self, sensitivities: tuple[float, ...]) -> Shared:
        """Return the secrets of partners: none here.

        Parameters
        ----------
        sensitivities
            Sensitivity of each row relative to the largest, shape (rows,).
        """
        return None

    def factorization(self, sensitivities: tuple[float, ...], use: Participation) -> Factorization:
        """Return the matrix C, of sensitivity 1: here a diagonal one, which correlates no rounds.

        Parameters
        ----------
        sensitivities
            Sensitivity of each row relative to the largest, shape (rows,).
        use
            Rows that may use one record.
        """
        rows = len(sensitivities)
        bands = np.full((rows, 1), 1 / np.sqrt(use.most(rows)))
        return Factorization(bands=bands, kind="diagonal", participation=use)

    def objective(
        self, sensitivities: tuple[float, ...], covariance: Array | None = None
    ) -> Objective | Array:
        """Return the objective of `factorize`: the noise in the mixed points, by rounds.

        Parameters
        ----------
        sensitivities
            Sensitivity of each row relative to the largest, shape (rows,).
        covariance
            Covariance of one round's noise between nodes, or of each round's; None for independent
            nodes.
        """
        rows = len(sensitivities)
        if self.topology is None:
            return server(rows, sensitivities=sensitivities)
        mixing_matrix = _constant(self.topology)
        if mixing_matrix is not None:
            return gossip(
                mixing_matrix,
                rows,
                mixings=self.mixings,
                sensitivities=sensitivities,
                covariance=covariance,
            )
        networks = [self.topology.matrix(t) for t in range(1, rows + 1)]
        return average_matrix(
            [networks], mixings=self.mixings, sensitivities=sensitivities, covariance=covariance
        )

    def release(
        self,
        noise_to_sensitivity: float,
        sensitivities: npt.ArrayLike,
        *,
        uses: int = 1,
        separation: int = 1,
        memory: npt.ArrayLike = 0.0,
    ) -> CorrelatedGaussian:
        """Return the noise of a run whose releases together are mu-Gaussian-DP.

        Here mu = 1 / `noise_to_sensitivity`, under the strategy's `assumptions`.

        Parameters
        ----------
        noise_to_sensitivity
            Standard deviation of the noise over the sensitivity of the whole run, 1 / mu.
        sensitivities
            L2 sensitivity of each row, shape (rows,).
        uses
            Largest number of rows that use one record.
        separation
            Number of rows from one use of a record to its next use. If it is 1, any rows may use
            the record; otherwise uses are exactly so far apart (epochs of fixed batches).
        memory
            Factor with which a message remains in the next one, as in `CorrelatedGaussian`.

        Raises
        ------
        ValueError
            If an argument is out of its range, or a combination is not proved, such as uses of a
            record that are closer than the bands of C.
        """
        row_sensitivities = np.asarray(sensitivities, dtype=np.float64)
        relative = tuple((row_sensitivities / row_sensitivities.max()).tolist())
        factorization, secrets = _planned(self, relative, _epochs(uses, separation))
        return CorrelatedGaussian(
            noise_to_sensitivity=noise_to_sensitivity,
            factorization=factorization,
            sensitivities=row_sensitivities,
            secrets=secrets,
            memory=memory,
            grid=self.grid,
        )

    def release_of_size(
        self, noise_stds: npt.ArrayLike, sensitivities: npt.ArrayLike
    ) -> CorrelatedGaussian:
        """Return noise as private as independent noise of these standard deviations.

        Every row uses all records, and no noise is correlated in time. Where the strategy shares
        secrets, it is pairwise-cancelling.

        Parameters
        ----------
        noise_stds
            Standard deviation of the independent noise of each row, shape (rows,).
        sensitivities
            L2 sensitivity of each row, shape (rows,).
        """
        row_sensitivities = np.asarray(sensitivities, np.float64)
        stds = np.asarray(noise_stds, np.float64)
        every_row = Participation(uses=self.rows)
        bands = (row_sensitivities / stds)[:, None]
        factorization = Factorization(bands=bands, kind="diagonal", participation=every_row)
        relative = tuple((row_sensitivities / row_sensitivities.max()).tolist())
        return CorrelatedGaussian(
            noise_to_sensitivity=1.0,
            factorization=factorization,
            sensitivities=row_sensitivities,
            secrets=_scaled(self.secrets(relative), factorization),
            grid=self.grid,
        )

    def step_size(
        self,
        *,
        epsilon: float,
        delta: float,
        records: int,
        dim: int,
        radius: float,
        clipping_norm: float = 1.0,
        uses: int = 1,
        separation: int = 1,
    ) -> float:
        """Return a constant step size (learning rate) by a rule over public numbers.

        It is the largest with which the noise of a mixed point, as a root mean square over nodes
        and rounds, is at most half of `radius`; and at most 4, up to which a step along softmax
        gradients of records of norm 1 moves no two models apart.

        Parameters
        ----------
        epsilon, delta
            Guarantee of the run for replacing one record.
        records
            Number of records in a node's gradient.
        dim
            Length of the model.
        radius
            L2 radius of the ball that contains the models.
        clipping_norm
            Largest L2 norm of a record's gradient.
        uses, separation
            As in `release`.
        """
        noise_ratio = analytic_gaussian_noise_to_sensitivity(
            target_epsilon=epsilon, target_delta=delta
        )
        gradient_std = 2 * positive("clipping_norm", clipping_norm) * noise_ratio / records
        noise = gradient_std * sqrt(dim) * self.mixed_noise(uses=uses, separation=separation)
        return min(_LONGEST_STEP, positive("radius", radius) / 2 / noise)

    def mixed_noise(self, *, uses: int = 1, separation: int = 1) -> float:
        """Return the noise of a mixed point at mu = 1 and sensitivity 1 in every round.

        It is the standard deviation of one coordinate, as a root mean square over nodes and rounds.
        Parameters are as in `release`.
        """
        ones = (1.0,) * self.rows
        factorization, secrets = _planned(self, ones, _epochs(uses, separation))
        objective = self.objective(ones, _covariance(secrets))
        if isinstance(objective, Objective):
            objective = objective.matrix()
        return float(np.sqrt(factorization.objective(objective) / len(ones)))

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the guarantee that this package cannot check, in words."""
        return ()


@dataclass(frozen=True, kw_only=True)
class InTime(CorrelatedStrategy):
    """Temporally correlated noise: later noise cancels part of earlier noise.

    It assumes no trusted party. It is for records that are used once, or in a few separated rounds,
    and cannot help where every round uses all records.

    Parameters
    ----------
    topology, rounds, mixings, grid
        As in `CorrelatedStrategy`.
    bands
        Number of diagonals of C: ``bands - 1`` earlier rows of noise stay in memory; None for all.
    method
        As in `factorize`: ``"optimal"`` up to 2,000 rounds, ``"toeplitz"`` for more.

    Examples
    --------
    >>> import dpmesh as dm
    >>> noise = dm.noise.correlated.InTime(topology=dm.topology.ring(8), rounds=20, bands=4)
    >>> dm.GradientDescent(records=100, noise_multiplier=40.0, batches=5, noise=noise).plan(20)
    Plan(20 releases, replace_one, record)
    """

    bands: int | None = None
    method: Method = "optimal"

    def __post_init__(self) -> None:
        super().__post_init__()
        every(self, integer, "bands", at_least=1, below=self.rounds)
        one_of("method", self.method, ("optimal", "toeplitz", "square_root"))

    @property
    def correlates_time(self) -> bool:
        """True."""
        return True

    def factorization(self, sensitivities: tuple[float, ...], use: Participation) -> Factorization:
        """Return the C that leaves least of the nodes' local noise in the mixed points.

        Secrets are left out: they cancel in the network's average, where local noise adds up.
        Parameters are as in `CorrelatedStrategy.factorization`.
        """
        bands = self.bands
        if self.method == "optimal" and bands is None and use.most(len(sensitivities)) > 1:
            bands = min(use.separation, len(sensitivities))
        objective = self.objective(sensitivities)
        return factorize(objective, bands=bands, participation=use, method=self.method)


@dataclass(frozen=True, kw_only=True)
class BetweenPartners(CorrelatedStrategy):
    """Pairwise-cancelling noise: the ends of a link add and subtract a secret, fresh every round.

    The guarantee is against an adversary who sees all messages and knows the secrets of any
    `coalition` nodes, but of no other link partner. Against all other nodes together, secrets hide
    nothing. Where the network changes, the links of a round share secrets in that round.

    Parameters
    ----------
    topology, rounds, mixings, grid
        As in `CorrelatedStrategy`. Use several mixings: after one, much of the secrets remains.
    coalition
        Largest number of nodes, in the worst choice of them, that collude with the observer.
    partners
        Network whose links share secrets; None for `topology`. One with more links withstands
        larger coalitions.
    star
        True if the guarantee counts only the node's direct partners, so that it does not depend on
        the behaviour of other nodes, as between parties of a contract. On complete graphs that
        costs nothing.

    Examples
    --------
    >>> import dpmesh as dm
    >>> from dpmesh.noise import correlated
    >>> from dpmesh.privacy import views
    >>> network = dm.topology.complete(8)
    >>> noise = correlated.BetweenPartners(topology=network, rounds=20, coalition=1)
    >>> algorithm = dm.GradientDescent(records=100, noise_multiplier=40.0, noise=noise)
    >>> cost = algorithm.plan(20).cost(1e-5, view=views.EverybodyButPartners(coalition=1))
    >>> cost.epsilon < algorithm.plan(20).cost(1e-5).epsilon
    True
    """

    follows_from_sizes = ("topology", "rounds", "star")

    coalition: int = 0
    partners: Topology | None = None
    star: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.topology is None:
            reason = (
                "linked nodes share noise that cancels in their mean, so it needs a network, such "
                "as topology=ring(8); at a server or with a token use InTime"
            )
            refuse("topology", reason)
        if self.partners is not None:
            require_methods("partners", self.partners, "a network, or None", "matrix")
        every(self, integer, "coalition")

    @property
    def correlates_time(self) -> bool:
        """False."""
        return False

    def secrets(self, sensitivities: tuple[float, ...]) -> Shared:
        """Return the secrets with mu = 1 that leave least noise in the mixed points.

        Here mu is the Gaussian-DP parameter at noise ratio 1, see `Secrets.mu`. Where the network
        changes, `changing_secrets` chooses the secrets of each round. Parameters are as in
        `CorrelatedStrategy.secrets`.
        """
        assert self.topology is not None
        partners = self.topology
        if self.partners is not None:
            partners = self.partners
        mixing = _constant(self.topology)
        sharing = _constant(partners)
        if mixing is None or sharing is None:
            graphs = [links(partners.matrix(t)) for t in range(1, len(sensitivities) + 1)]
            nodes = self.topology.nodes
            coalition = self.coalition
            return changing_secrets(graphs, nodes, coalition=coalition, star=self.star)
        return partner_secrets(
            mixing,
            rounds=len(sensitivities),
            mixings=self.mixings,
            coalition=self.coalition,
            sensitivities=sensitivities,
            pairs=links(sharing),
            star=self.star,
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumption that link partners do not collude."""
        exception = ""
        if self.coalition:
            exception = f", except for {self.coalition} of them"
        return (
            "link partners keep the noise that they share secret from the adversary"
            f"{exception} (in a simulation one process draws it for both)",
        )


@dataclass(frozen=True, kw_only=True)
class Both(InTime, BetweenPartners):
    """Noise correlated in time and between partners, with the guarantee of `BetweenPartners`.

    Parameters
    ----------
    topology, rounds, mixings, grid
        As in `CorrelatedStrategy`.
    bands, method
        As in `InTime`.
    coalition, partners, star
        As in `BetweenPartners`.

    Examples
    --------
    >>> import dpmesh as dm
    >>> noise = dm.noise.correlated.Both(topology=dm.topology.complete(8), rounds=20, bands=4)
    >>> dm.GradientDescent(records=100, noise_multiplier=40.0, batches=5, noise=noise).plan(20)
    Plan(20 releases, replace_one, record)
    """


def _epochs(uses: int, separation: int) -> Participation:
    """Return the participation of records in fixed batches, if `separation` is above 1."""
    has_epochs = uses > 1 and separation > 1
    return Participation(uses=uses, separation=separation, epochs=has_epochs)


@lru_cache(maxsize=64)
def _planned(
    strategy: CorrelatedStrategy, sensitivities: tuple[float, ...], use: Participation
) -> tuple[Factorization, Shared]:
    """Return C and the secrets for sensitivities of which the largest is 1."""
    factorization = strategy.factorization(sensitivities, use)
    secrets = strategy.secrets(sensitivities)
    return factorization, _scaled(secrets, factorization)


def _scaled(secrets: Shared, factorization: Factorization) -> Shared:
    """Scale secrets that change by round so that a run with C has the mu of independent noise.

    Each round's secrets have mu = 1 for the worst node of that round. The worst node differs
    between rounds, so that the whole run would have a smaller mu.
    """
    if secrets is None or isinstance(secrets, Secrets):
        return secrets
    distinct = {id(round_secrets): round_secrets for round_secrets in secrets}
    worst = ChangingSecrets(secrets).worst(factorization, secrets[0].coalition)
    mu = worst / factorization.sensitivity * _UP
    scaled = {
        identity: replace(
            round_secrets, own=round_secrets.own * mu, shared=round_secrets.shared * mu
        )
        for identity, round_secrets in distinct.items()
    }
    return tuple(scaled[id(round_secrets)] for round_secrets in secrets)


def _constant(topology: Topology) -> MixingMatrix | None:
    """Return the mixing matrix of all rounds if it is constant and symmetric, else None."""
    if isinstance(topology, Static) and topology.mixing_matrix.is_symmetric:
        return topology.mixing_matrix
    return None


def _covariance(secrets: Shared) -> Array | None:
    """Return the covariance of noise between nodes: one, or one for each round; else None."""
    if secrets is None:
        return None
    if isinstance(secrets, Secrets):
        return secrets.covariance
    return np.stack([round_secrets.covariance for round_secrets in secrets])

"""The noise of a whole run as one release, with one cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from math import hypot
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg.lapack import dtbtrs

from dpmesh._validate import fail, instance, positive
from dpmesh.accounting.discrete import FINE, SMOOTHING
from dpmesh.noise.correlated.changing import ChangingSecrets
from dpmesh.noise.correlated.factorization import Factorization, by_columns
from dpmesh.noise.correlated.lattice import widening
from dpmesh.noise.correlated.objective import sensitivities_of
from dpmesh.noise.correlated.secrets import Secrets
from dpmesh.noise.grid import power_of_two

Array = npt.NDArray[np.float64]

_CHUNK = 512
"""Columns of an inverse that are solved for at once."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CorrelatedGaussian:
    """Gaussian noise of a run that is correlated over rounds, between partners, or both.

    The noise of round t is row t of ``P S C^-1 E``, where row t of E is independent over rounds:
    standard normal times the noise ratio, or with secrets. All releases of a run together are
    ``mu``-Gaussian-DP; a row alone has no cost, and costs of rows must not be added.

    Parameters
    ----------
    noise_to_sensitivity
        Standard deviation of E at own noise 1.
    factorization
        C. Its rounds are those with data in their messages: a round that sends public values, such
        as x_0, has no row.
    sensitivities
        S: the largest change of the message of a round that uses the record, given all earlier
        messages; a positive number, or one for each round, for all nodes. The factor 2 of
        replace-one belongs here. With `memory`, that of the gradient's share of the message.
    secrets
        Of partners: the same in every round, or those of each round; None for independent nodes.
    memory
        For states that remember: the factor with which the message of the previous round stays in
        this one (1 - beta of quantized gossip, 1 - beta - alpha lambda with a regularized gradient
        at x). The noise of a round then goes on in the next ones as the state does, and
        ``P[t, s]`` is the product of the factors. 0 for none, a number, or one for each round.
    grid
        If given, a power of 2: row t is on multiples of ``grid s_t / C_tt``, and all noise is a
        whole number of steps, larger by `widened`, which covers the rounding: mu stays. It needs
        one graph of secrets and no `memory`.

    Raises
    ------
    ValueError
        If a number is out of range, the secrets are of different nodes or claims, or noise on a
        grid is not proved.

    Examples
    --------
    >>> import numpy as np
    >>> from dpmesh.noise import correlated
    >>> release = correlated.CorrelatedGaussian(
    ...     noise_to_sensitivity=4.0, factorization=correlated.from_matrix(np.eye(3))
    ... )
    >>> round(release.mu, 3)
    0.25
    """

    noise_to_sensitivity: float
    factorization: Factorization
    sensitivities: npt.ArrayLike = 1.0
    secrets: Secrets | Sequence[Secrets] | None = None
    memory: npt.ArrayLike = 0.0
    grid: float | None = None

    def __post_init__(self) -> None:
        instance("factorization", self.factorization, "a Factorization", Factorization)
        multiplier = positive("noise_to_sensitivity", self.noise_to_sensitivity)
        object.__setattr__(self, "noise_to_sensitivity", multiplier)
        object.__setattr__(self, "sensitivities", sensitivities_of(self.sensitivities, self.rounds))
        memory = np.broadcast_to(np.asarray(self.memory, dtype=np.float64), (self.rounds,)).copy()
        if not np.isfinite(memory).all():
            fail("memory", "finite numbers", self.memory)
        memory.flags.writeable = False
        object.__setattr__(self, "memory", memory)
        if self.secrets is not None and not isinstance(self.secrets, Secrets):
            object.__setattr__(self, "secrets", tuple(self.secrets))
            self._check_changing(tuple(self.secrets))
        if self.grid is not None:
            power_of_two("grid", self.grid)
            if self.claims_star:
                expected = (
                    "None: no proof covers whole numbers whose partners a router chooses after"
                )
                fail("grid", f"{expected} it has seen their rows", self.grid)
            if memory.any() or isinstance(self.secrets, tuple):
                expected = "None, or one graph of secrets for all rounds and no memory: noise on a"
                fail("grid", f"{expected} grid is proved for these alone", self.grid)

    def _check_changing(self, secrets: tuple[Secrets, ...]) -> None:
        if len(secrets) != self.rounds:
            fail("secrets", f"Secrets, or those of each of {self.rounds} rounds", len(secrets))
        for round_secrets in secrets:
            instance("secrets", round_secrets, "Secrets of each round", Secrets)
        claims = {(graph.nodes, graph.coalition, graph.star) for graph in secrets}
        if len(claims) > 1:
            fail("secrets", "the same nodes and the same coalition in every round", "others")

    @property
    def rounds(self) -> int:
        """Number of rows, T."""
        return self.factorization.rounds

    @cached_property
    def mu(self) -> float:
        """Gaussian DP parameter of all messages of the run together, for the worst record."""
        if self.secrets is None:
            return self.factorization.sensitivity / self.noise_to_sensitivity
        if isinstance(self.secrets, Secrets):
            return self.factorization.sensitivity * self.secrets.mu / self.noise_to_sensitivity
        return self._against(self.secrets[0].coalition)

    @property
    def mu_against_partners(self) -> float:
        """The same if everybody colludes: as though there were no secrets."""
        if self.secrets is None or isinstance(self.secrets, Secrets):
            own_noise = 1.0 if self.secrets is None else self.secrets.own
            return self.factorization.sensitivity / (own_noise * self.noise_to_sensitivity)
        return self._against(None)

    def _against(self, colluding: int | None) -> float:
        changing = ChangingSecrets(self._each_secrets)
        return changing.worst(self.factorization, colluding) / self.noise_to_sensitivity

    def mu_of(self, coalition: Sequence[int]) -> float:
        """Return mu against this coalition."""
        if self.secrets is None:
            return self.mu
        if isinstance(self.secrets, Secrets):
            exposed = self.secrets.mu_of(coalition)
            return self.factorization.sensitivity * exposed / self.noise_to_sensitivity
        changing = ChangingSecrets(tuple(self.secrets))
        return changing.worst_against(self.factorization, coalition) / self.noise_to_sensitivity

    def mus(self, uses: Iterable[Sequence[int]], colluding: int | None) -> list[float]:
        """Return mu of records that are used in exactly these rows.

        Parameters
        ----------
        uses
            For each record, its rows.
        colluding
            How many nodes, whichever they are, collude with the observer; None for all others, or
            for those of the claim where it counts a node's own secrets alone.
        """
        if colluding is None and self.claims_star:
            colluding = self._each_secrets[0].coalition
        if self.secrets is None or isinstance(self.secrets, Secrets):
            exposed = 1.0 if self.secrets is None else self.secrets.mu_against(colluding)
            shifts = [exposed * shift for shift in self.factorization.shifts(uses)]
        else:
            changing = ChangingSecrets(tuple(self.secrets))
            shifts = changing.shifts(self.factorization, list(uses), colluding)
        return [shift / self.noise_to_sensitivity for shift in shifts]

    @property
    def claims_star(self) -> bool:
        """True if the claim counts a node's local secrets alone: see `Secrets`."""
        return any(secrets.star for secrets in self._each_secrets)

    @property
    def _each_secrets(self) -> tuple[Secrets, ...]:
        if self.secrets is None:
            return ()
        if isinstance(self.secrets, Secrets):
            return (self.secrets,)
        return tuple(self.secrets)

    def widened(self, dim: int) -> float:
        """Return by how much larger noise is drawn for rows of this length: 1 without a grid."""
        if self.grid is None:
            return 1.0
        secrets = self.secrets
        assert not isinstance(secrets, Sequence)
        rounding = widening(self.factorization, secrets, self.grid, dim)
        sizes = (1.0,) if secrets is None else (secrets.own, secrets.shared or secrets.own)
        step = self.grid / (self.noise_to_sensitivity * min(sizes))  # over the least noise
        return max(hypot(rounding, SMOOTHING * step), FINE * step)

    def prefix(self, rounds: int) -> CorrelatedGaussian:
        """Return what a run that stopped after this many rows released: never more than the whole.

        The noise of these rows is the same. Stopping may depend on released values.
        """
        if rounds == self.rounds:
            return self
        factorization = self.factorization.prefix(rounds)
        secrets = self.secrets
        if secrets is not None and not isinstance(secrets, Secrets):
            secrets = tuple(secrets)[:rounds]
        return CorrelatedGaussian(
            noise_to_sensitivity=self.noise_to_sensitivity,
            factorization=factorization,
            sensitivities=np.asarray(self.sensitivities)[:rounds],
            secrets=secrets,
            memory=np.asarray(self.memory)[:rounds],
            grid=self.grid,
        )

    def secrets_of(self, row: int) -> Secrets | None:
        """Return the secrets of a row, from 0."""
        if self.secrets is None or isinstance(self.secrets, Secrets):
            return self.secrets
        return self.secrets[row]

    @cached_property
    def recursion(self) -> Array:
        """Rows of ``C S^-1 P^-1`` from the diagonal backwards, shape (rounds, bands).

        ``B[t, 0] N_t = E_t - sum_k B[t, k] N_(t-k)`` gives the noise of round t from earlier noise.
        """
        sensitivities = np.asarray(self.sensitivities)
        memory = np.asarray(self.memory)
        bands: Array = self.factorization.bands.copy()
        rounds, width = bands.shape
        for k in range(width):
            bands[k:, k] /= sensitivities[: rounds - k]
        if not memory.any():
            return bands
        remembering = np.zeros((rounds, min(width + 1, rounds)))
        remembering[:, :width] = bands
        for k in range(1, remembering.shape[1]):
            remembering[k:, k] -= bands[k:, k - 1] * memory[1 : rounds - k + 1]
        return remembering

    @cached_property
    def spreads(self) -> Array:
        """Standard deviation of each row's noise over its sensitivity, shape (rounds,).

        That of the node with most secrets.
        """
        columns = by_columns(self.recursion)
        rounds = self.rounds
        between = [1.0] * rounds
        if self.secrets is not None:
            variance = {
                id(secrets): np.diagonal(secrets.covariance).max() for secrets in self._each_secrets
            }
            between = [variance[id(self.secrets_of(t))] for t in range(rounds)]
        squares = np.zeros(rounds)
        for first in range(0, rounds, _CHUNK):
            block = np.arange(first, min(first + _CHUNK, rounds))
            unit = np.zeros((rounds, len(block)))
            unit[block, block - first] = np.sqrt(np.asarray(between)[block])
            squares += (dtbtrs(np.asfortranarray(columns.T), unit, uplo="L")[0] ** 2).sum(axis=1)
        spreads: Array = (
            self.noise_to_sensitivity * np.sqrt(squares) / np.asarray(self.sensitivities)
        )
        return spreads

    def as_dict(self) -> dict[str, Any]:
        """Return what a report stores, from which mu can be computed again."""
        return dict(self._stored)

    @cached_property
    def _stored(self) -> dict[str, Any]:
        return {
            "noise_to_sensitivity": self.noise_to_sensitivity,
            "factorization": self.factorization.as_dict(),
            "sensitivities": np.asarray(self.sensitivities).tolist(),
            "memory": np.asarray(self.memory).tolist(),
            "secrets": [secrets.as_dict() for secrets in self._each_secrets],
            "grid": self.grid,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> CorrelatedGaussian:
        """Return the release that `as_dict` gave."""
        secrets = [Secrets(**stored) for stored in fields["secrets"]]
        return cls(
            noise_to_sensitivity=fields["noise_to_sensitivity"],
            factorization=Factorization.from_dict(fields["factorization"]),
            sensitivities=fields["sensitivities"],
            secrets=(secrets[0] if len(secrets) == 1 else secrets) if secrets else None,
            memory=fields["memory"],
            grid=fields["grid"],
        )

    @cached_property
    def digest(self) -> str:
        """256 bits that differ for other noise."""
        star = ("star",) if self.claims_star else ()
        claims = [
            (secrets.nodes, secrets.own, secrets.shared, secrets.coalition, *star)
            for secrets in self._each_secrets
        ]
        strategy = self.factorization
        kind = (self.noise_to_sensitivity, self.grid, strategy.kind)
        digest = sha256(repr((*kind, strategy.participation, claims)).encode())
        arrays = [strategy.bands, self.sensitivities, self.memory]
        for array in (*arrays, *(secrets.pairs for secrets in self._each_secrets)):
            digest.update(repr(np.shape(array)).encode() + np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CorrelatedGaussian) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"CorrelatedGaussian({self}, sha256={self.digest[:16]})"

    def __str__(self) -> str:
        rounds, bands = self.factorization.bands.shape
        description = f"{rounds} rows"
        if bands > 1:
            description += f" correlated in time by {bands} bands"
        pairs = sorted({len(secrets.pairs) for secrets in self._each_secrets})
        if pairs:
            count = f"{pairs[0]}" if len(pairs) == 1 else f"{pairs[0]} to {pairs[-1]}"
            description += f", with secrets of {count} pairs"
        return description

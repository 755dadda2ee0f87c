"""Correlated noise of a whole run as one release with one mu (Gaussian DP).

`CorrelatedGaussian` is the joint event of all T rounds. The noise of a node's messages is
``N = P S C^-1 E``, with one row for each round:

    E    fresh noise: rows are independent over rounds; with *secrets*, correlated between nodes
    C    the factorization, lower triangular: correlation in time (`factorization`)
    S    diagonal matrix of the rounds' sensitivities
    P    *memory*: ``P[t, s]`` is the product of the factors with which the message of one round
         remains in the next, from round s to round t; the identity without memory

Plans and accounting read its `mu` (Theorems 1 and 3 of docs/privacy/correlated_noise_proofs.md).
The run draws its rows one after the other by its `recursion`, ``B = C S^-1 P^-1``.
"""

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
"""Columns of an inverse that are computed at once."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CorrelatedGaussian:
    """Gaussian noise of a run that is correlated over rounds, between partners, or both.

    The noise of round t is row t of ``P S C^-1 E``, where row t of E is independent over rounds:
    standard normal times the noise ratio, or with secrets. All releases of a run together are
    ``mu``-Gaussian-DP; a row alone has no cost, and costs of rows must not be added.

    Parameters
    ----------
    noise_to_sensitivity
        Standard deviation of E over the sensitivity, for local noise of size 1.
    factorization
        C, with a row for each round whose messages depend on data: a round that sends public
        values, such as x_0, has none.
    sensitivities
        S: L2 sensitivity of the message of a round that uses the record, given all earlier
        messages; a positive number, or one for each round, for all nodes. The factor 2 of
        replace-one belongs here. With `memory`, the sensitivity of the gradient's part of the
        message.
    secrets
        Secrets of partners: the same in every round, or one `Secrets` for each round; None for
        independent nodes.
    memory
        Factor with which the message of the previous round remains in the next one: 1 - beta in
        quantized gossip, 1 - beta - alpha lambda with a regularized gradient at x. The noise of a
        round then persists as the state does. 0 for none, a number, or one for each round.
    grid
        If given, a power of 2: row t is on multiples of ``grid s_t / C_tt``, and all noise is a
        whole number of steps, larger by `widened`, which covers the rounding: mu is the same. It
        needs one graph of secrets and no `memory`.

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
            self._check_grid(self.grid, memory)

    def _check_grid(self, grid: float, memory: Array) -> None:
        """Fail unless noise on this grid is proved."""
        power_of_two("grid", grid)
        if self.claims_star:
            fail(
                "grid",
                "None: no proof covers whole numbers whose partners a router chooses after it has "
                "seen their rows",
                grid,
            )
        if memory.any() or isinstance(self.secrets, tuple):
            fail(
                "grid",
                "None, or one graph of secrets for all rounds and no memory: noise on a grid is "
                "proved for these alone",
                grid,
            )

    def _check_changing(self, secrets: tuple[Secrets, ...]) -> None:
        """Fail unless there are secrets for each round, all with the same nodes and claim."""
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
        """Gaussian DP parameter if all other nodes collude, as though there were no secrets."""
        if self.secrets is None:
            return self.factorization.sensitivity / self.noise_to_sensitivity
        if isinstance(self.secrets, Secrets):
            local_ratio = self.secrets.own * self.noise_to_sensitivity
            return self.factorization.sensitivity / local_ratio
        return self._against(None)

    def _against(self, colluding: int | None) -> float:
        """Return mu against the worst coalition of this size where secrets change by round."""
        changing = ChangingSecrets(self._each_secrets)
        return changing.worst(self.factorization, colluding) / self.noise_to_sensitivity

    def mu_of(self, coalition: Sequence[int]) -> float:
        """Return mu of the run against these colluding nodes.

        On a grid, `widened` covers the rounding of secrets for nodes that are as exposed as the
        worst node without a coalition. If that node colludes and all others are less exposed, its
        mu stands for theirs.

        Raises
        ------
        ValueError
            If a member of the coalition is not a node.
        """
        if self.secrets is None:
            return self.mu
        if isinstance(self.secrets, Secrets):
            round_mu = self.secrets.mu_of(coalition)
            if self.grid is not None:
                round_mu = max(round_mu, self.secrets.mu_of())
            return self.factorization.sensitivity * round_mu / self.noise_to_sensitivity
        changing = ChangingSecrets(tuple(self.secrets))
        return changing.worst_against(self.factorization, coalition) / self.noise_to_sensitivity

    def mus(self, uses: Iterable[Sequence[int]], colluding: int | None) -> list[float]:
        """Return mu of records that are used in exactly these rows.

        Parameters
        ----------
        uses
            For each record, the rows that use it, ascending.
        colluding
            Number of nodes that collude with the observer, in the worst choice of them; None for
            all other nodes, or for the claimed coalition if the claim is that of a star.
        """
        if colluding is None and self.claims_star:
            colluding = self._each_secrets[0].coalition
        if self.secrets is None:
            shifts = self.factorization.shifts(uses)
        elif isinstance(self.secrets, Secrets):
            round_mu = self.secrets.mu_against(colluding)
            shifts = [round_mu * shift for shift in self.factorization.shifts(uses)]
        else:
            changing = ChangingSecrets(tuple(self.secrets))
            shifts = changing.shifts(self.factorization, list(uses), colluding)
        return [shift / self.noise_to_sensitivity for shift in shifts]

    @property
    def claims_star(self) -> bool:
        """True if the guarantee counts only the secrets of the node itself: see `Secrets`."""
        return any(secrets.star for secrets in self._each_secrets)

    @property
    def _each_secrets(self) -> tuple[Secrets, ...]:
        """Secrets as a tuple: empty, one `Secrets` of all rounds, or one for each round."""
        if self.secrets is None:
            return ()
        if isinstance(self.secrets, Secrets):
            return (self.secrets,)
        return tuple(self.secrets)

    def widened(self, dim: int) -> float:
        """Return the factor on the noise of rows of `dim` numbers that covers rounding to the grid.

        It is 1 without a grid. `widening` covers the rounding of values and of shifts. Besides, the
        least noise has a scale of at least `FINE` steps and `SMOOTHING` steps to spare, added in
        squares: discrete Gaussian noise then costs no more than Gaussian noise (Theorem 4).
        """
        if self.grid is None:
            return 1.0
        secrets = self.secrets
        assert not isinstance(secrets, Sequence)  # refused with a grid
        rounding = widening(self.factorization, secrets, self.grid, dim)
        least_noise = 1.0  # at noise ratio 1
        if secrets is not None:
            least_noise = min(secrets.own, secrets.shared or secrets.own)
        step = self.grid / (self.noise_to_sensitivity * least_noise)
        return max(hypot(rounding, SMOOTHING * step), FINE * step)

    def prefix(self, rounds: int) -> CorrelatedGaussian:
        """Return the release of a run that stops after so many rows; mu is no larger.

        The noise of these rows is the same. Stopping may depend on released values.

        Raises
        ------
        ValueError
            If `rounds` is not between 1 and the number of rows.
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
        """Return the secrets of the row with this index, from 0; None for independent nodes."""
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
        # P^-1 has the diagonal 1 and minus `memory` below it, so that there is one band more.
        with_memory = np.zeros((rounds, min(width + 1, rounds)))
        with_memory[:, :width] = bands
        for k in range(1, with_memory.shape[1]):
            with_memory[k:, k] -= bands[k:, k - 1] * memory[1 : rounds - k + 1]
        return with_memory

    @cached_property
    def spreads(self) -> Array:
        """Standard deviation of each row's noise over its sensitivity, shape (rounds,).

        Each E_t has the largest variance of a node in round t. So a value is exact for the node
        with most secrets, and an upper bound where another node has most in another round.
        """
        # The rows of the noise are B^-1 E, with B the triangular matrix of `recursion`.
        columns = by_columns(self.recursion)
        rounds = self.rounds
        variances = [1.0] * rounds
        if self.secrets is not None:
            largest_variance = {
                id(secrets): np.diagonal(secrets.covariance).max() for secrets in self._each_secrets
            }
            variances = [largest_variance[id(self.secrets_of(t))] for t in range(rounds)]
        squares = np.zeros(rounds)
        for first in range(0, rounds, _CHUNK):
            block = np.arange(first, min(first + _CHUNK, rounds))
            impulses = np.zeros((rounds, len(block)))
            impulses[block, block - first] = np.sqrt(np.asarray(variances)[block])
            responses = dtbtrs(np.asfortranarray(columns.T), impulses, uplo="L")[0]
            squares += (responses**2).sum(axis=1)
        spreads: Array = (
            self.noise_to_sensitivity * np.sqrt(squares) / np.asarray(self.sensitivities)
        )
        return spreads

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that a report stores, from which mu can be recomputed."""
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
        """Return the release from the fields that `as_dict` returned."""
        all_secrets = [Secrets(**stored) for stored in fields["secrets"]]
        secrets: Secrets | list[Secrets] | None = None
        if len(all_secrets) == 1:
            secrets = all_secrets[0]
        elif all_secrets:
            secrets = all_secrets
        return cls(
            noise_to_sensitivity=fields["noise_to_sensitivity"],
            factorization=Factorization.from_dict(fields["factorization"]),
            sensitivities=fields["sensitivities"],
            secrets=secrets,
            memory=fields["memory"],
            grid=fields["grid"],
        )

    @cached_property
    def digest(self) -> str:
        """SHA-256 digest, in hexadecimal, that differs between releases with different noise."""
        star: tuple[str, ...] = ()
        if self.claims_star:
            star = ("star",)
        claims = [
            (secrets.nodes, secrets.own, secrets.shared, secrets.coalition, *star)
            for secrets in self._each_secrets
        ]
        factorization = self.factorization
        kind = (self.noise_to_sensitivity, self.grid, factorization.kind)
        digest = sha256(repr((*kind, factorization.participation, claims)).encode())
        arrays = [factorization.bands, self.sensitivities, self.memory]
        arrays += [secrets.pairs for secrets in self._each_secrets]
        for array in arrays:
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
        pair_counts = sorted({len(secrets.pairs) for secrets in self._each_secrets})
        if pair_counts:
            count = f"{pair_counts[0]}"
            if len(pair_counts) > 1:
                count = f"{pair_counts[0]} to {pair_counts[-1]}"
            description += f", with secrets of {count} pairs"
        return description

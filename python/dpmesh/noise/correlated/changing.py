"""Guarantee of noise whose secrets are shared along another public graph in every round.

A record of node u that is used in round tau shifts the noise of round t by ``C[t, tau]``. The
secrets of round t are independent of all others, so the record adds

    sum over rounds t of C[t, tau]^2 exposed_t[u],
    exposed_t[u] = [(own_t^2 I + shared_t^2 L'_t)^-1]_uu

to mu^2, at noise ratio 1. ``L'_t`` is the Laplacian that a coalition leaves of the graph of round t
(see `coalitions`). Where the columns of C for two uses of a record overlap, these sums do not add
up; then mu is at most the sensitivity of C times the root of the largest ``exposed_t[u]``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmesh._validate import integer
from dpmesh.noise.correlated.coalitions import coalitions_of
from dpmesh.noise.correlated.factorization import Factorization
from dpmesh.noise.correlated.participation import squared_worst_sum
from dpmesh.noise.correlated.secrets import Secrets

Array = npt.NDArray[np.float64]

_UP = 1 + 1e-12
"""Factor that rounds a mu up, far above the rounding of the operations before it."""


@dataclass(frozen=True, eq=False)
class ChangingSecrets:
    """The secrets of each round, all of the same nodes and with the same claim.

    Parameters
    ----------
    secrets_by_round
        The secrets of each round, as many as C has rows.
    """

    secrets_by_round: tuple[Secrets, ...]

    def worst(self, factorization: Factorization, colluding: int | None) -> float:
        """Return mu at noise ratio 1 of the worst record against the worst coalition.

        Parameters
        ----------
        factorization
            C, which correlates the rounds.
        colluding
            Number of colluding nodes, as in `CorrelatedGaussian.mus`.
        """
        return max(self._worst(factorization, exposed) for exposed in self._exposures(colluding))

    def worst_against(self, factorization: Factorization, coalition: Sequence[int]) -> float:
        """Return mu at noise ratio 1 of the worst record against these colluding nodes.

        Raises
        ------
        ValueError
            If a member of the coalition is not a node.
        """
        nodes = self.secrets_by_round[0].nodes
        members = tuple(sorted({integer("coalition", node, 0, nodes) for node in coalition}))
        return self._worst(factorization, self._exposed(members))

    def shifts(
        self, factorization: Factorization, uses: Sequence[Sequence[int]], colluding: int | None
    ) -> list[float]:
        """Return mu at noise ratio 1 of records that are used in exactly these rounds.

        Parameters
        ----------
        uses
            For each record, the rounds that use it, ascending.
        colluding
            As in `CorrelatedGaussian.mus`.
        """
        bands = factorization.bands.shape[1]
        bounds = factorization.shifts(uses)
        squares = np.zeros(len(uses))
        for exposed in self._exposures(colluding):
            use_costs = _use_costs(factorization, exposed)
            largest = float(exposed.max())
            for i, used_rounds in enumerate(uses):
                squared = bounds[i] ** 2 * largest
                if (np.diff(used_rounds) >= bands).all():  # orthogonal columns: the sum is exact
                    node_sums = use_costs[list(used_rounds)].sum(axis=0)
                    squared = min(float(node_sums.max()), squared)
                squares[i] = max(squares[i], squared)
        return [float(mu) for mu in np.sqrt(squares) * _UP]

    def _worst(self, factorization: Factorization, exposed: Array) -> float:
        """Return mu of the worst node; an upper bound where columns of one record's uses overlap.

        `exposed` has shape (rounds, honest), as `_exposures` yields it.
        """
        participation = factorization.participation
        bands = factorization.bands.shape[1]
        if participation.most(factorization.rounds) > 1 and bands > participation.separation:
            return factorization.sensitivity * float(np.sqrt(exposed.max())) * _UP
        use_costs = _use_costs(factorization, exposed)
        squared = max(squared_worst_sum(node_costs, participation) for node_costs in use_costs.T)
        return float(np.sqrt(squared)) * _UP

    def _exposures(self, colluding: int | None) -> Iterator[Array]:
        """Yield the exposure of nodes to each coalition of that size, shape (rounds, honest)."""
        if colluding is None:  # all other nodes: local noise alone protects
            yield np.array([[secrets.own**-2] for secrets in self.secrets_by_round])
            return
        if self.secrets_by_round[0].star:
            yield np.array(
                [[secrets.mu_against(colluding) ** 2] for secrets in self.secrets_by_round]
            )
            return
        is_symmetric = all(secrets.is_complete for secrets in self.secrets_by_round)
        for coalition in coalitions_of(
            self.secrets_by_round[0].nodes, colluding, is_symmetric=is_symmetric
        ):
            yield self._exposed(coalition)

    def _exposed(self, coalition: tuple[int, ...]) -> Array:
        """Return ``exposed_t[u]`` of the module for each round, shape (rounds, honest)."""
        exposed_by_graph: dict[int, Array] = {}
        for secrets in self.secrets_by_round:
            if id(secrets) not in exposed_by_graph:
                exposed_by_graph[id(secrets)] = secrets.leverages(coalition)[1]
        return np.stack([exposed_by_graph[id(secrets)] for secrets in self.secrets_by_round])


def _use_costs(factorization: Factorization, exposed: Array) -> Array:
    """Return the mu^2 that one use in each round adds at each node, shape (rounds, nodes)."""
    columns = factorization.columns
    rounds, bands = columns.shape
    costs = np.zeros((rounds, exposed.shape[1]))
    for k in range(bands):
        costs[: rounds - k] += columns[: rounds - k, k, None] ** 2 * exposed[k:]
    return costs

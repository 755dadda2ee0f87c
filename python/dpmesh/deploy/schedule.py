"""Who sends at which position of a run, from the contract alone."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from dpmesh.deploy.contract import Contract
from dpmesh.deploy.wire import Position
from dpmesh.privacy.secure import SecureSum
from dpmesh.topology import MixingMatrix


class Schedule:
    """The positions of a run.

    Parameters
    ----------
    contract
        The contract.
    """

    def __init__(self, contract: Contract) -> None:
        self.contract, self.topology = contract, contract.topology
        self.end = Position(contract.steps, int(isinstance(contract.sums, SecureSum)))
        """After the last message, when the nodes take what was sent last; where one sum is for
        all, once they have signed what they took."""
        self._turns: list[tuple[int, ...]] = []
        self._counts = np.zeros(contract.nodes, np.int64)
        if self.topology is not None:
            self.matrix = lru_cache(maxsize=4)(self.topology.matrix)
        self._partners = lru_cache(maxsize=4)(self._partners_at)

    @property
    def gossips(self) -> bool:
        """Whether all nodes send at each position; by token one does."""
        return self.topology is not None

    def seat(self, node: int, key: Any) -> Any:
        """Return the key of a node's rows; where a token travels, rows name their nodes."""
        own_row = self.gossips or self.contract.sums is not None
        return key.for_nodes(np.array([node], np.uint32)) if own_row else key

    def holders(self, t: int) -> tuple[int, ...]:
        """Return the nodes that hold the token in round t, in their order."""
        contract = self.contract
        for r in range(len(self._turns), t + 1):
            key, so_far = contract.public_key, self._counts
            turns = contract.algorithm.senders(r, so_far, contract.records, key)
            self._counts = so_far + np.bincount(turns, minlength=contract.nodes)
            sends = contract.algorithm.release_of(r) != ()
            self._turns.append(tuple(turns.tolist()) if sends else ())
        return self._turns[t]

    def senders(self, at: Position) -> tuple[int, ...]:
        """Return the nodes that send at a position; nobody does at the end."""
        if not 0 <= at.round < self.end.round:
            return ()
        if self.contract.sums is not None:
            return tuple(range(self.contract.nodes))  # each time another attempt
        if self.gossips:
            within = at.exchange < self.contract.algorithm.exchanges
            return tuple(range(self.contract.nodes)) if within else ()
        return self.holders(at.round)[at.exchange : at.exchange + 1]

    def after(self, at: Position | None) -> Position:
        """Return the position that follows, `end` after the last one."""
        nxt = Position(0) if at is None else Position(at.round, at.exchange + 1)
        while nxt.round < self.end.round and not self.senders(nxt):
            nxt = Position(nxt.round + 1)
        return nxt

    def mixing(self, t: int, node: int, missing: set[int]) -> tuple[list[int], list[float]]:
        """Return whose rows a node mixes in round t, itself among them, and their weights.

        Both ends of a link to a missing node put its weight on themselves.
        """
        matrix: MixingMatrix = self.matrix(t)
        if missing:
            edges = matrix.edges
            down = np.isin(edges, list(missing)) & np.isin(edges[:, ::-1], [node])
            matrix = matrix.keep_edges(~down.any(axis=1))
        start, end = matrix.weights.indptr[node : node + 2]
        weights = matrix.weights
        return weights.indices[start:end].tolist(), weights.data[start:end].tolist()

    def heard(self, at: Position, node: int) -> set[int]:
        """Return the other nodes whose rows of a position a node may receive."""
        if self.gossips:
            return set(self.matrix(at.round).neighbours(node).tolist())
        return set(self.senders(at)) - {node}

    def partners(self, t: int, node: int) -> tuple[int, ...]:
        """Return with whom a node shares secrets in round t, ascending."""
        return self._partners(t).get(node, ())

    def _partners_at(self, t: int) -> dict[int, tuple[int, ...]]:
        if (secrets := self.contract.secrets_at(t)) is None:
            return {}
        of_nodes: dict[int, list[int]] = {}
        for i, j in secrets.pairs.tolist():
            of_nodes.setdefault(i, []).append(j)
            of_nodes.setdefault(j, []).append(i)
        return {node: tuple(sorted(others)) for node, others in of_nodes.items()}

    def sent(self, at: Position, node: int) -> set[int]:
        """Return the other nodes whose rows of a position go to a node: partners' too."""
        last = self.gossips and self.after(at).exchange == 0
        return self.heard(at, node) | {*(self.partners(at.round + 1, node) if last else ())}

    def confirming(self, at: Position, node: int) -> tuple[set[int], int]:
        """Return who knows whether a node released its row of a position, and how many must say so.

        As many of them may be silent as the quorum allows to be missing, but not all.
        """
        everybody = self.contract.nodes
        hear = self.heard(at, node) if self.gossips else set[int]()
        others = hear or {*range(everybody)} - {node}
        return others, max(1, len(others) - (everybody - self.contract.terms.quorum))

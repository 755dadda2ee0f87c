"""Schedule of a run: senders and sizes of messages at each position, from the contract alone."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from dpmesh.deploy.contract import Contract
from dpmesh.deploy.row import MIXED_BYTES, PROCESS_BYTES, Row
from dpmesh.deploy.signing import SigningKey, pack
from dpmesh.deploy.sums import Header, Part, Total
from dpmesh.deploy.turns import Turns
from dpmesh.deploy.wire import Ask, Position
from dpmesh.topology import MixingMatrix

_FIRST = 10
"""So many rounds are counted."""
EARLY = 2**31
"""The exchange at which the parties sign an early end: after all attempts at the open sum."""
_NOBODY = Header(Position(0), (), 0, bytes(60))


class Confirmers(NamedTuple):
    """Parties that can confirm a node's start.

    Attributes
    ----------
    parties
        They know whether the node released its next row before it started.
    needed
        How many of them must say so.
    """

    parties: set[int]
    needed: int


class Schedule:
    """The positions of a run.

    Parameters
    ----------
    contract
        The contract.
    """

    def __init__(self, contract: Contract) -> None:
        self.contract, self.topology = contract, contract.topology
        self.end = Position(contract.planned.steps, int(contract.has_one_model))
        """After the last message, when the nodes take what was sent last; where one sum is for
        all, once they have signed what they took."""
        self._turns = Turns(contract.algorithm, contract.records, contract.public_key)
        if self.topology is not None:
            self.matrix = lru_cache(maxsize=4)(self.topology.matrix)
        self._partners = lru_cache(maxsize=4)(self._partners_at)

    def closing(self, step: int) -> Position:
        """Return where the parties sign the end of a run after so many sums: of all, or early."""
        return Position(step, 0 if step == self.end.round else EARLY)

    def is_early(self, at: Position) -> bool:
        """Return True if the parties sign an early end at a position."""
        return self.contract.has_one_model and at.exchange >= EARLY

    def is_closing(self, at: Position) -> bool:
        """Return True if the rounds are over at a position, so that nothing is released there."""
        return at.round == self.end.round or self.is_early(at)

    def is_last(self, at: Position | None) -> bool:
        """Return True if no position follows."""
        if at is None:
            return False
        return at == self.end or (self.is_early(at) and at.exchange == EARLY + 1)

    @property
    def gossips(self) -> bool:
        """True if all nodes send at each position; by token one does."""
        return self.topology is not None

    def seat(self, node: int, key: Any) -> Any:
        """Return the key of a node's rows; where a token travels, rows name their nodes."""
        own_row = self.gossips or self.contract.planned.sums is not None
        return key.for_nodes(np.array([node], np.uint32)) if own_row else key

    def holders(self, t: int) -> tuple[int, ...]:
        """Return the nodes that hold the token in round t, in their order."""
        return self._turns.holders(t)

    def exchanges(self, t: int) -> int:
        """Return how often messages travel in round t, where all nodes send at once."""
        return self.contract.patterns.exchanges(t)

    def senders(self, at: Position) -> tuple[int, ...]:
        """Return the nodes that send at a position; nobody does at the end."""
        if not 0 <= at.round < self.end.round:
            return ()
        if self.contract.planned.sums is not None:
            return tuple(range(self.contract.nodes))  # each time another attempt
        if self.gossips:
            within = at.exchange < self.exchanges(at.round)
            return tuple(range(self.contract.nodes)) if within else ()
        return self.holders(at.round)[at.exchange : at.exchange + 1]

    def after(self, at: Position | None) -> Position:
        """Return the position that follows, `end` after the last one."""
        nxt = Position(0) if at is None else Position(at.round, at.exchange + 1)
        while nxt.round < self.end.round and not self.senders(nxt):
            nxt = Position(nxt.round + 1)
        return nxt

    def before(self, at: Position) -> Position | None:
        """Return the position of gossip before another one; None before the first."""
        if at.exchange > 0:
            return Position(at.round, at.exchange - 1)
        for t in reversed(range(at.round)):
            exchanges = self.exchanges(t)
            if exchanges > 0:
                return Position(t, exchanges - 1)
        return None

    def begun(self, at: Position) -> range:
        """Return the rounds that begin in the step of gossip that ends at a position.

        They are the round of the position, and those before it in which nothing travels.
        """
        if at.exchange > 0:
            return range(0)
        before = self.before(at)
        first = 0 if before is None else before.round + 1
        return range(first, min(at.round + 1, self.end.round))

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
        secrets = self.contract.planned.secrets_at(t)
        if secrets is None:
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

    def confirming(self, at: Position, node: int) -> Confirmers:
        """Return who knows whether a node released its row of a position, and how many must say so.

        As many of them may be silent as the quorum allows to be missing, but not all.
        """
        everybody = self.contract.nodes
        hear = self.heard(at, node) if self.gossips else set[int]()
        others = hear or {*range(everybody)} - {node}
        return Confirmers(others, max(1, len(others) - (everybody - self.contract.terms.quorum)))


def bytes_of_row(contract: Contract, mixed: int) -> int:
    """Return the length of a signed row made of so many others, without compression."""
    values = np.zeros((contract.models, contract.dim // contract.models), contract.terms.numbers)
    kind, shape = contract.terms.numbers, values.shape
    public, hashes = (contract.hash, Position(0), 0, 0, kind, shape), bytes(mixed * MIXED_BYTES)
    said = bytes(contract.planned.has_partners * PROCESS_BYTES * (1 + mixed))
    row = Row(*public, values.tobytes(), hashes, said)
    return len(row.signed(SigningKey.generate()))


def bytes_of_total(contract: Contract) -> int:
    """Return the length of the longest total with its header, as it goes to a node."""
    packed = bytes(_longest(contract))
    return len(Total(_NOBODY, packed, 0).as_bytes(contract))


def _longest(contract: Contract) -> int:
    """Return the length of the longest sum, packed."""
    planned = contract.planned
    return max(planned.sums_at(step).message_bytes for step in range(planned.steps))


def longest_question(contract: Contract) -> int:
    """Return the most bytes that a router sends a node in one message."""
    missed = (
        0 if contract.planned.sums is None else contract.planned.steps * bytes_of_total(contract)
    )
    return 2 * contract.nodes * bytes_of_row(contract, contract.nodes) + missed + 2**16


def longest_answer(contract: Contract) -> int:
    """Return the most bytes that a node sends a router in one message."""
    sums = contract.planned.sums
    parts = 0 if sums is None else sums.sites * (_longest(contract) + 2**8)
    rows = 4 if sums is not None else 4 + contract.nodes  # later ones of all that started
    return rows * bytes_of_row(contract, contract.nodes) + parts + 2**9 * contract.nodes + 2**16


def bytes_of_round(contract: Contract) -> int:
    """Return what the router receives and sends in a round, questions included, without losses.

    Each node's row goes to the router once, and once to each node that receives it. By token each
    model goes to the router and to the next holder. A part of a sum goes to the router, and the
    total to all; where sums differ in length, the longest counts.
    """
    if contract.planned.sums is not None:
        part = Part(_NOBODY, bytes(32), bytes(_longest(contract)), 0)
        parts = sum(map(len, contract.planned.sums.receivers))
        each = len(part.as_bytes(contract)) + len(_NOBODY.as_bytes(contract)) + 16
        question = len(Ask(Position(0), ()).as_bytes(contract)) + 24
        return parts * each + contract.nodes * (question + bytes_of_total(contract))
    schedule, by_token = Schedule(contract), bytes_of_row(contract, contract.models)
    question = len(pack(b"dpmesh ask 1", contract.hash, bytes(4), bytes(4)))
    rounds = min(_FIRST, contract.terms.rounds)
    total = 0
    for t in range(rounds):
        if not schedule.gossips:
            total += len(schedule.holders(t)) * (2 * by_token + question + 8)
            continue
        heard = schedule.matrix(t).messages
        row = bytes_of_row(contract, heard // contract.nodes)
        each = contract.nodes * (row + question) + heard * (row + 8)
        total += schedule.exchanges(t) * each
    return total // rounds

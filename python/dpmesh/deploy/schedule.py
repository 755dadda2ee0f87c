"""Schedule of a run: senders and sizes of messages at each position, from the contract alone."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from dpmesh.deploy.contract import Contract
from dpmesh.deploy.row import MIXED_ENTRY_BYTES, PROCESS_NONCE_BYTES, Row
from dpmesh.deploy.signing import LENGTH_BYTES, SigningKey, pack
from dpmesh.deploy.sums import Header, MaskedPart, Total
from dpmesh.deploy.turns import Turns
from dpmesh.deploy.wire import Position, StepQuestion
from dpmesh.topology import MixingMatrix

COUNTED_ROUNDS = 10
"""Number of rounds whose bytes are counted for the mean of a round."""
EARLY = 2**31
"""The exchange at which the parties sign an early end: after all attempts at the open sum."""
_EMPTY_HEADER = Header(Position(0), (), 0, bytes(60))
"""A header without a cohort, with a sealed secret of its usual length."""
_PART_EXTRA = 2**8
"""Bytes of a part of a sum beside its integers, at most."""
_PARTY_EXTRA = 2**9
"""Bytes of an answer for each party, at most: a secret sealed for it, or its signature."""
_MESSAGE_EXTRA = 2**16
"""Bytes of a question or an answer beside what is counted, at most."""
_ROWS_OF_AN_ANSWER = 4
"""Number of rows to whose length the fixed parts of an answer may add up."""


class PerNode(Protocol):
    """Randomness that names the nodes whose rows it is drawn for: a key, or a round's coins."""

    def for_nodes(self: AnyPerNode, nodes: Any) -> AnyPerNode:
        """Return the randomness of these nodes alone, in the order of `nodes`."""


AnyPerNode = TypeVar("AnyPerNode", bound=PerNode)


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


class MixingRow(NamedTuple):
    """A node's row of the mixing matrix of a round, without zeros.

    Attributes
    ----------
    parties
        The parties whose rows the node mixes, itself among them.
    weights
        The weight of each.
    """

    parties: list[int]
    weights: list[float]


class Schedule:
    """The positions of a run.

    Parameters
    ----------
    contract
        The contract.
    """

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self.topology = contract.topology
        self.end = Position(contract.planned.steps, int(contract.has_one_model))
        """After the last message, when the nodes take what was sent last; where one sum is for
        all, once they have signed what they took."""
        self._turns = Turns(contract.algorithm, contract.records, contract.public_key)
        if self.topology is not None:
            self.matrix = lru_cache(maxsize=4)(self.topology.matrix)
        self._partners = lru_cache(maxsize=4)(self._partners_at)

    def closing(self, step: int) -> Position:
        """Return the position at which the parties sign the end of a run after so many sums.

        It is another one if the run ends early.
        """
        if step == self.end.round:
            return Position(step)
        return Position(step, EARLY)

    def is_early(self, position: Position) -> bool:
        """Return True if the parties sign an early end at a position."""
        return self.contract.has_one_model and position.exchange >= EARLY

    def is_closing(self, position: Position) -> bool:
        """Return True if the rounds are over at a position, so that nothing is released there."""
        return position.round == self.end.round or self.is_early(position)

    def is_last(self, position: Position | None) -> bool:
        """Return True if no position follows."""
        if position is None:
            return False
        is_last_early = self.is_early(position) and position.exchange == EARLY + 1
        return position == self.end or is_last_early

    @property
    def gossips(self) -> bool:
        """True if all nodes send at each position; by token one does."""
        return self.topology is not None

    def seat(self, node: int, key: AnyPerNode) -> AnyPerNode:
        """Return the key of a node's rows: that of all nodes with a token, as rows name nodes."""
        if self.gossips or self.contract.planned.first_sum is not None:
            return key.for_nodes(np.array([node], np.uint32))
        return key

    def holders(self, t: int) -> tuple[int, ...]:
        """Return the nodes that hold the token in round t, in their order."""
        return self._turns.holders(t)

    def exchanges(self, t: int) -> int:
        """Return how often messages travel in round t, where all nodes send at once."""
        return self.contract.patterns.exchanges(t)

    def senders(self, position: Position) -> tuple[int, ...]:
        """Return the nodes that send at a position; none at the end."""
        if not 0 <= position.round < self.end.round:
            return ()
        if self.contract.planned.first_sum is not None:
            return tuple(range(self.contract.nodes))  # each exchange is another attempt
        if self.gossips:
            if position.exchange < self.exchanges(position.round):
                return tuple(range(self.contract.nodes))
            return ()
        holders = self.holders(position.round)
        return holders[position.exchange : position.exchange + 1]

    def after(self, position: Position | None) -> Position:
        """Return the position that follows, `end` after the last one."""
        if position is None:
            following = Position(0)
        else:
            following = Position(position.round, position.exchange + 1)
        while following.round < self.end.round and not self.senders(following):
            following = Position(following.round + 1)
        return following

    def before(self, position: Position) -> Position | None:
        """Return the position of gossip before another one; None before the first."""
        if position.exchange > 0:
            return Position(position.round, position.exchange - 1)
        for t in reversed(range(position.round)):
            exchanges = self.exchanges(t)
            if exchanges > 0:
                return Position(t, exchanges - 1)
        return None

    def begun(self, position: Position) -> range:
        """Return the rounds that begin in the step of gossip that ends at a position.

        They are the round of the position, and those before it in which nothing travels. The step
        is charged for all of them.
        """
        if position.exchange > 0:
            return range(0)
        before = self.before(position)
        first = 0
        if before is not None:
            first = before.round + 1
        return range(first, min(position.round + 1, self.end.round))

    def mixing(self, t: int, node: int, missing: set[int]) -> MixingRow:
        """Return the parties whose rows a node mixes in round t, and their weights.

        Both ends of a link to a missing node put its weight on themselves.
        """
        matrix: MixingMatrix = self.matrix(t)
        if missing:
            edges = matrix.edges
            to_missing = np.isin(edges, list(missing)) & np.isin(edges[:, ::-1], [node])
            matrix = matrix.keep_edges(~to_missing.any(axis=1))
        weights = matrix.weights
        start, end = weights.indptr[node : node + 2]
        return MixingRow(weights.indices[start:end].tolist(), weights.data[start:end].tolist())

    def mixed_by(self, position: Position, node: int) -> set[int]:
        """Return the other nodes whose rows of a position a node mixes or builds upon."""
        if self.gossips:
            return set(self.matrix(position.round).neighbours(node).tolist())
        return set(self.senders(position)) - {node}

    def delivered_to(self, position: Position, node: int) -> set[int]:
        """Return the other nodes whose rows of a position go to a node.

        They are those whose rows it mixes, and with the last row of a round its partners in the
        next one: rows name the processes that may share secrets.
        """
        senders = self.mixed_by(position, node)
        ends_round = self.gossips and self.after(position).exchange == 0
        if ends_round:
            return senders | {*self.partners(position.round + 1, node)}
        return senders

    def partners(self, t: int, node: int) -> tuple[int, ...]:
        """Return the nodes with which a node shares secrets in round t, ascending."""
        return self._partners(t).get(node, ())

    def _partners_at(self, t: int) -> dict[int, tuple[int, ...]]:
        """Return the partners of each node that shares secrets in round t."""
        secrets = self.contract.planned.secrets_at(t)
        if secrets is None:
            return {}
        partners: dict[int, list[int]] = {}
        for i, j in secrets.pairs.tolist():
            partners.setdefault(i, []).append(j)
            partners.setdefault(j, []).append(i)
        return {node: tuple(sorted(others)) for node, others in partners.items()}

    def confirming(self, position: Position, node: int) -> Confirmers:
        """Return the parties that know if a node released its row of a position, and the quorum.

        They are the receivers of the row, or all other parties if it has none, or by token. As many
        of them may be silent as the contract's quorum allows to be missing, but not all.
        """
        nodes = self.contract.nodes
        receivers = set[int]()
        if self.gossips:
            receivers = self.mixed_by(position, node)
        if not receivers:
            receivers = {*range(nodes)} - {node}
        may_be_silent = nodes - self.contract.terms.quorum
        return Confirmers(receivers, max(1, len(receivers) - may_be_silent))


def bytes_of_row(contract: Contract, mixed: int) -> int:
    """Return the bytes of an uncompressed signed row that mixes `mixed` rows of other nodes."""
    shape = (contract.models, contract.dim // contract.models)
    numbers = contract.terms.numbers
    processes = 0
    if contract.planned.has_partners:
        processes = 1 + mixed
    row = Row(
        contract.hash,
        Position(0),
        party=0,
        incarnation=0,
        dtype=numbers,
        shape=shape,
        encoded_values=np.zeros(shape, numbers).tobytes(),
        mixed_rows=bytes(mixed * MIXED_ENTRY_BYTES),
        process_nonces=bytes(processes * PROCESS_NONCE_BYTES),
    )
    return len(row.signed(SigningKey.generate()))


def bytes_of_total(contract: Contract) -> int:
    """Return the length of the longest total with its header, as it goes to a node."""
    packed = bytes(_longest_sum(contract))
    return len(Total(_EMPTY_HEADER, packed, 0).as_bytes(contract))


def _longest_sum(contract: Contract) -> int:
    """Return the bytes of the longest sum, packed."""
    planned = contract.planned
    return max(planned.sum_at(step).message_bytes for step in range(planned.steps))


def longest_question(contract: Contract) -> int:
    """Return the most bytes that a router sends a node in one message."""
    totals = 0
    if contract.planned.first_sum is not None:
        totals = contract.planned.steps * bytes_of_total(contract)  # if it missed them all
    row = bytes_of_row(contract, contract.nodes)
    return 2 * contract.nodes * row + totals + _MESSAGE_EXTRA


def longest_answer(contract: Contract) -> int:
    """Return the most bytes that a node sends a router in one message."""
    sums = contract.planned.first_sum
    parts = 0
    rows = _ROWS_OF_AN_ANSWER
    if sums is not None:
        parts = sums.sites * (_longest_sum(contract) + _PART_EXTRA)
    else:
        rows += contract.nodes  # later ones of all that started
    row = bytes_of_row(contract, contract.nodes)
    return rows * row + parts + _PARTY_EXTRA * contract.nodes + _MESSAGE_EXTRA


def bytes_of_round(contract: Contract) -> int:
    """Return the bytes that the router receives and sends in a round, without losses.

    Questions are among them. Each node's row goes to the router once, and once to each node that
    receives it. By token each model goes to the router and to the next holder. A part of a sum goes
    to the router, and the total to all; where sums differ in length, the longest counts.
    """
    if contract.planned.first_sum is not None:
        return _bytes_of_sums(contract, sum(map(len, contract.planned.first_sum.receivers)))
    schedule = Schedule(contract)
    rounds = min(COUNTED_ROUNDS, contract.terms.rounds)
    bytes_of_rounds = _bytes_of_gossip if schedule.gossips else _bytes_of_token
    return sum(bytes_of_rounds(schedule, t) for t in range(rounds)) // rounds


def _bytes_of_sums(contract: Contract, parts: int) -> int:
    """Return the bytes of a round with so many parts of sums."""
    part = MaskedPart(_EMPTY_HEADER, bytes(32), bytes(_longest_sum(contract)), 0)
    header = len(_EMPTY_HEADER.as_bytes(contract))
    part_and_header = len(part.as_bytes(contract)) + header + 2 * LENGTH_BYTES
    question = len(StepQuestion(Position(0), ()).as_bytes(contract)) + 3 * LENGTH_BYTES
    return parts * part_and_header + contract.nodes * (question + bytes_of_total(contract))


def _bytes_of_question(contract: Contract) -> int:
    """Return the bytes of a question for a row, without the rows attached."""
    return len(pack(b"dpmesh ask 1", contract.hash, bytes(4), bytes(4)))


def _bytes_of_token(schedule: Schedule, t: int) -> int:
    """Return the bytes of round t by token."""
    contract = schedule.contract
    model = bytes_of_row(contract, contract.models)
    turn = 2 * model + _bytes_of_question(contract) + LENGTH_BYTES
    return len(schedule.holders(t)) * turn


def _bytes_of_gossip(schedule: Schedule, t: int) -> int:
    """Return the bytes of round t of gossip."""
    contract = schedule.contract
    links = schedule.matrix(t).messages
    row = bytes_of_row(contract, links // contract.nodes)
    answers_and_questions = contract.nodes * (row + _bytes_of_question(contract))
    return schedule.exchanges(t) * (answers_and_questions + links * (row + LENGTH_BYTES))

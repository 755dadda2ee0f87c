"""Schedule of a run, from the contract alone: who sends what to whom, and how many bytes.

A *position* is a round, and an exchange of messages in it; where parties add up sums, a sum and an
attempt at it. A run has one of three communication patterns:

- gossip: at each position all nodes send a row to their neighbours, which mix it;
- token: at each position one node sends a row, the *holder* of the token in a turn of the round;
- sums: at each position all nodes send masked parts, which the router adds up.

At a *closing position* the rounds are over: nothing is released, and nodes sign the end. A run of
sums may end early, after fewer sums. Nodes and the router use the same `Schedule`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from dpmesh.deploy.contract import Contract
from dpmesh.deploy.row import MIXED_ENTRY_BYTES, PROCESS_NONCE_BYTES, Row
from dpmesh.deploy.signing import LENGTH_BYTES, SigningKey
from dpmesh.deploy.sums import Header, MaskedPart, Total
from dpmesh.deploy.turns import Turns
from dpmesh.deploy.wire import Position, StepQuestion
from dpmesh.topology import MixingMatrix

COUNTED_ROUNDS = 10
"""First rounds of a run over which the bytes of a round are averaged."""
EARLY_END_EXCHANGE = 2**31
"""The exchange at which the parties sign an early end. It is larger than the number of any attempt
at the open sum."""
_TYPICAL_HEADER = Header(Position(0), (), 0, bytes(60))
"""A header with a sealed tag secret of its usual length, to count bytes."""
_MOST_PART_EXTRA = 2**8
"""Most bytes of a part of a sum beside its integers."""
_MOST_PARTY_EXTRA = 2**9
"""Most bytes of an answer for each party: a secret sealed for it, or its signature."""
_MOST_MESSAGE_EXTRA = 2**16
"""Most bytes of a question or an answer beside those that are counted."""
_MOST_ANSWER_ROWS = 4
"""Most rows in an answer, beside one of each party that started."""


class PerNode(Protocol):
    """Randomness that differs between nodes: a `Key`, or the `RoundCoins` of a round."""

    def for_nodes(self: AnyPerNode, nodes: Any) -> AnyPerNode:
        """Return the randomness of these nodes, shape (nodes,), in their order."""


AnyPerNode = TypeVar("AnyPerNode", bound=PerNode)


class Confirmers(NamedTuple):
    """Parties that can confirm a node's start: that its folder lacks no release of the node.

    Attributes
    ----------
    parties
        Numbers of the parties. In a run of rows they would have the node's next row, if the node
        had sent it before its start. In a run of sums they are the present others of the cohort,
        which know how many attempts were charged.
    needed
        Number of them that must report on the node.
    """

    parties: set[int]
    needed: int


class MixingRow(NamedTuple):
    """A node's row of the mixing matrix of a round, without zeros.

    Attributes
    ----------
    parties
        Numbers of the parties whose rows the node mixes, itself among them.
    weights
        The weight of each of these rows.
    """

    parties: list[int]
    weights: list[float]


class Schedule:
    """The positions of a run in their order, with their senders and receivers.

    Parameters
    ----------
    contract
        The contract of the run.
    """

    def __init__(self, contract: Contract) -> None:
        self.contract = contract
        self.topology = contract.topology
        self.end = Position(contract.planned.steps, int(contract.has_one_model))
        """The last position of a whole run. Where parties send rows, nodes mix the last rows there.
        Where one sum is for all, nodes sign their transcripts at the position before (exchange 0),
        and receive the signatures of the others at this one (exchange 1)."""
        self._turns = Turns(contract.algorithm, contract.records, contract.public_key)
        if self.topology is not None:
            self.matrix = lru_cache(maxsize=4)(self.topology.matrix)
        self._partners_of_round = lru_cache(maxsize=4)(self._find_partners)

    def closing_position(self, step: int) -> Position:
        """Return the position at which nodes sign the end of a run of sums, after `step` sums.

        A whole run and a run that ends early have different positions.
        """
        if step == self.end.round:
            return Position(step)
        return Position(step, EARLY_END_EXCHANGE)

    def is_early(self, position: Position) -> bool:
        """Return True if nodes sign an early end at a position."""
        return self.contract.has_one_model and position.exchange >= EARLY_END_EXCHANGE

    def is_closing(self, position: Position) -> bool:
        """Return True if the rounds are over at a position, so that nothing is released there."""
        return position.round == self.end.round or self.is_early(position)

    def is_last(self, position: Position | None) -> bool:
        """Return True if no position follows on this one, in a whole run or at an early end.

        None stands for no position yet.
        """
        if position is None:
            return False
        ends_early = self.is_early(position) and position.exchange == EARLY_END_EXCHANGE + 1
        return position == self.end or ends_early

    @property
    def is_gossip(self) -> bool:
        """True if nodes gossip: all of them send a row at each position."""
        return self.topology is not None

    def key_of_node(self, node: int, key: AnyPerNode) -> AnyPerNode:
        """Return the randomness of one node, from that of all nodes.

        By token it stays the randomness of all nodes, from which algorithms select the nodes of
        their rows themselves.
        """
        if self.is_gossip or self.contract.planned.first_sum is not None:
            return key.for_nodes(np.array([node], np.uint32))
        return key

    def token_holders(self, t: int) -> tuple[int, ...]:
        """Return the nodes that hold the token in round t, in the order of their turns."""
        return self._turns.token_holders(t)

    def exchange_count(self, t: int) -> int:
        """Return the number of exchanges of messages in round t, in gossip."""
        return self.contract.patterns.exchange_count(t)

    def senders(self, position: Position) -> tuple[int, ...]:
        """Return the nodes that send a release at a position; none after the last round."""
        if not 0 <= position.round < self.end.round:
            return ()
        if self.contract.planned.first_sum is not None:
            return tuple(range(self.contract.nodes))  # each exchange is another attempt
        if self.is_gossip:
            if position.exchange < self.exchange_count(position.round):
                return tuple(range(self.contract.nodes))
            return ()
        holders = self.token_holders(position.round)
        return holders[position.exchange : position.exchange + 1]

    def after(self, position: Position | None) -> Position:
        """Return the position that follows: the first one after None, and `end` after the last."""
        if position is None:
            following = Position(0)
        else:
            following = Position(position.round, position.exchange + 1)
        while following.round < self.end.round and not self.senders(following):
            following = Position(following.round + 1)
        return following

    def before(self, position: Position) -> Position | None:
        """Return the position before another one, in gossip; None before the first."""
        if position.exchange > 0:
            return Position(position.round, position.exchange - 1)
        for t in reversed(range(position.round)):
            exchanges = self.exchange_count(t)
            if exchanges > 0:
                return Position(t, exchanges - 1)
        return None

    def rounds_begun(self, position: Position) -> range:
        """Return the rounds that a node begins in the step that ends at a position, in gossip.

        The first exchange of a round begins this round, and the rounds without messages before it.
        A step is charged for all rounds that begin in it.
        """
        if position.exchange > 0:
            return range(0)
        before = self.before(position)
        first = 0
        if before is not None:
            first = before.round + 1
        return range(first, min(position.round + 1, self.end.round))

    def mixing_row(self, t: int, node: int, missing: set[int]) -> MixingRow:
        """Return the parties whose rows a node mixes in round t, and their weights.

        The weight of a link to a missing party goes to the node's own row.

        Parameters
        ----------
        t
            Number of the round.
        node
            Number of the node.
        missing
            Numbers of the neighbours whose rows are missing.
        """
        matrix: MixingMatrix = self.matrix(t)
        if missing:
            edges = matrix.edges
            to_missing = np.isin(edges, list(missing)) & np.isin(edges[:, ::-1], [node])
            matrix = matrix.keep_edges(~to_missing.any(axis=1))
        weights = matrix.weights
        start, end = weights.indptr[node : node + 2]
        return MixingRow(weights.indices[start:end].tolist(), weights.data[start:end].tolist())

    def mixed_senders(self, position: Position, node: int) -> set[int]:
        """Return the other nodes whose rows of a position a node mixes.

        By token these are the position's senders, from whose models the node goes on.
        """
        if self.is_gossip:
            return set(self.matrix(position.round).neighbours(node).tolist())
        return set(self.senders(position)) - {node}

    def delivered_to(self, position: Position, node: int) -> set[int]:
        """Return the other nodes whose rows of a position are sent to a node.

        The node mixes these rows. After the last exchange of a round it also gets the rows of its
        partners in the next round, for the nonces in them.
        """
        senders = self.mixed_senders(position, node)
        ends_round = self.is_gossip and self.after(position).exchange == 0
        if ends_round:
            return senders | {*self.partners(position.round + 1, node)}
        return senders

    def partners(self, t: int, node: int) -> tuple[int, ...]:
        """Return the nodes with which a node shares secrets in round t, ascending."""
        return self._partners_of_round(t).get(node, ())

    def _find_partners(self, t: int) -> dict[int, tuple[int, ...]]:
        """Return the partners of each node that shares secrets in round t."""
        secrets = self.contract.planned.secrets_at(t)
        if secrets is None:
            return {}
        partners: dict[int, list[int]] = {}
        for i, j in secrets.pairs.tolist():
            partners.setdefault(i, []).append(j)
            partners.setdefault(j, []).append(i)
        return {node: tuple(sorted(others)) for node, others in partners.items()}

    def confirmers(self, position: Position, node: int) -> Confirmers:
        """Return the parties that know whether a node has released its row of a position.

        They are the receivers of the row; all other parties by token, or if the row has no
        receivers. As many of them may be silent as the contract's quorum lets be missing, but at
        least one must report.
        """
        nodes = self.contract.nodes
        receivers = set[int]()
        if self.is_gossip:
            receivers = self.mixed_senders(position, node)
        if not receivers:
            receivers = {*range(nodes)} - {node}
        may_be_silent = nodes - self.contract.terms.quorum
        return Confirmers(receivers, max(1, len(receivers) - may_be_silent))


def bytes_of_row(contract: Contract, mixed: int) -> int:
    """Return the length of a signed row without compression.

    Parameters
    ----------
    contract
        The contract.
    mixed
        Number of rows of other nodes that the row's node mixed, and of its partners, if any.
    """
    shape = (contract.models, contract.dim // contract.models)
    dtype = contract.terms.numbers
    nonces = 0
    if contract.planned.has_partners:
        nonces = 1 + mixed
    row = Row(
        contract.hash,
        Position(0),
        party=0,
        incarnation=0,
        dtype=dtype,
        shape=shape,
        encoded_values=np.zeros(shape, dtype).tobytes(),
        mixed_rows=bytes(mixed * MIXED_ENTRY_BYTES),
        process_nonces=bytes(nonces * PROCESS_NONCE_BYTES),
    )
    return len(row.signed(SigningKey.generate()))


def bytes_of_total(contract: Contract) -> int:
    """Return the length of the longest total, with its header, as the router sends it to a node."""
    packed = bytes(_longest_sum(contract))
    return len(Total(_TYPICAL_HEADER, packed, 0).as_bytes(contract))


def _longest_sum(contract: Contract) -> int:
    """Return the length of the longest packed sum, in bytes."""
    planned = contract.planned
    return max(planned.sum_at(step).message_bytes for step in range(planned.steps))


def longest_question(contract: Contract) -> int:
    """Return the most bytes of a question that a router sends to a node."""
    totals = 0
    if contract.planned.first_sum is not None:
        # a node that missed all totals gets them in one question
        totals = contract.planned.steps * bytes_of_total(contract)
    row = bytes_of_row(contract, contract.nodes)
    return 2 * contract.nodes * row + totals + _MOST_MESSAGE_EXTRA


def longest_answer(contract: Contract) -> int:
    """Return the most bytes of an answer that a node sends to a router."""
    sums = contract.planned.first_sum
    parts = 0
    rows = _MOST_ANSWER_ROWS
    if sums is not None:
        parts = sums.sites * (_longest_sum(contract) + _MOST_PART_EXTRA)
    else:
        rows += contract.nodes  # a rollback report has a row of each party that started
    row = bytes_of_row(contract, contract.nodes)
    return rows * row + parts + _MOST_PARTY_EXTRA * contract.nodes + _MOST_MESSAGE_EXTRA


def bytes_of_round(contract: Contract) -> int:
    """Return the bytes that the router receives and sends in a round, if no message is lost.

    Questions count, too. In gossip each row goes to the router once, and from it to each receiver.
    By token each model goes to the router, and from it to the next holder. Each part of a sum goes
    to the router, and the total to all nodes; if sums differ in length, the longest one counts.
    """
    if contract.planned.first_sum is not None:
        parts = sum(map(len, contract.planned.first_sum.receivers))
        return _bytes_of_sums(contract, parts)
    schedule = Schedule(contract)
    bytes_of_rounds = _bytes_of_gossip if schedule.is_gossip else _bytes_of_token
    rounds = min(COUNTED_ROUNDS, contract.terms.rounds)
    return sum(bytes_of_rounds(schedule, t) for t in range(rounds)) // rounds


def _bytes_of_sums(contract: Contract, parts: int) -> int:
    """Return the bytes of a round with this number of masked parts, all sums together."""
    part = MaskedPart(_TYPICAL_HEADER, bytes(32), bytes(_longest_sum(contract)), 0)
    header = len(_TYPICAL_HEADER.as_bytes(contract))
    part_and_header = len(part.as_bytes(contract)) + header + 2 * LENGTH_BYTES
    question = len(StepQuestion(Position(0), ()).as_bytes(contract)) + 3 * LENGTH_BYTES
    return parts * part_and_header + contract.nodes * (question + bytes_of_total(contract))


def _bytes_of_question(contract: Contract) -> int:
    """Return the bytes of a question for a row, without the rows attached."""
    return len(StepQuestion(Position(0), ()).as_bytes(contract))


def _bytes_of_token(schedule: Schedule, t: int) -> int:
    """Return the bytes of round t by token."""
    contract = schedule.contract
    model = bytes_of_row(contract, contract.models)
    turn = 2 * model + _bytes_of_question(contract) + LENGTH_BYTES
    return len(schedule.token_holders(t)) * turn


def _bytes_of_gossip(schedule: Schedule, t: int) -> int:
    """Return the bytes of round t of gossip."""
    contract = schedule.contract
    links = schedule.matrix(t).messages
    row = bytes_of_row(contract, links // contract.nodes)
    answers_and_questions = contract.nodes * (row + _bytes_of_question(contract))
    return schedule.exchange_count(t) * (answers_and_questions + links * (row + LENGTH_BYTES))

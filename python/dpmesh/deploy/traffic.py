"""How many bytes a contract's run moves through the router, before anybody joins."""

from __future__ import annotations

import numpy as np

from dpmesh.deploy.contract import Contract
from dpmesh.deploy.schedule import Schedule
from dpmesh.deploy.signing import SigningKey, pack
from dpmesh.deploy.sums import Header, Part, Total
from dpmesh.deploy.wire import MIXED_BYTES, PROCESS_BYTES, Ask, Position, Row

_FIRST = 10
"""So many rounds are counted."""
_NOBODY = Header(Position(0), (), 0, bytes(60))


def bytes_of_row(contract: Contract, mixed: int) -> int:
    """Return the length of a signed row made of so many others, without compression."""
    values = np.zeros((contract.models, contract.dim // contract.models), contract.terms.numbers)
    kind, shape = contract.terms.numbers, values.shape
    public, hashes = (contract.hash, Position(0), 0, 0, kind, shape), bytes(mixed * MIXED_BYTES)
    said = bytes(contract.has_partners * PROCESS_BYTES * (1 + mixed))
    row = Row(*public, values.tobytes(), hashes, said)
    return len(row.signed(SigningKey.generate()))


def bytes_of_total(contract: Contract) -> int:
    """Return the length of the longest total with its header, as it goes to a node."""
    packed = bytes(_longest(contract))
    return len(Total(_NOBODY, packed, 0).as_bytes(contract))


def _longest(contract: Contract) -> int:
    """Return the length of the longest sum, packed."""
    return max(contract.sums_at(step).message_bytes for step in range(contract.steps))


def longest_question(contract: Contract) -> int:
    """Return the most bytes that a router sends a node in one message."""
    missed = 0 if contract.sums is None else contract.steps * bytes_of_total(contract)
    return 2 * contract.nodes * bytes_of_row(contract, contract.nodes) + missed + 2**16


def longest_answer(contract: Contract) -> int:
    """Return the most bytes that a node sends a router in one message."""
    sums = contract.sums
    parts = 0 if sums is None else sums.sites * (_longest(contract) + 2**8)
    rows = 4 if sums is not None else 4 + contract.nodes  # later ones of all that started
    return rows * bytes_of_row(contract, contract.nodes) + parts + 2**6 * contract.nodes + 2**16


def bytes_of_round(contract: Contract) -> int:
    """Return what the router receives and sends in a round, questions included, without losses.

    Each node's row goes to the router once, and once to each node that receives it. By token each
    model goes to the router and to the next holder. A part of a sum goes to the router, and the
    total to all; where sums differ in length, the longest counts.
    """
    if contract.sums is not None:
        part = Part(_NOBODY, bytes(32), bytes(_longest(contract)), 0)
        parts = sum(map(len, contract.sums.receivers))
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
        total += contract.algorithm.exchanges * each
    return total // rounds

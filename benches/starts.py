"""Measure the router's processor time and traffic while a contract's run starts.

    python -m benches.starts [CASE ..]

A contract is a run among organizations (parties) over a network; a router passes their messages on.
At a start each party sends a signature and asks the others whether its folder lacks a release of it
(a rollback); others confirm that it released nothing before. The start ends when the first round is
over. Here parties are simulated in this process (`SimulatedParty`): they sign what a start needs
and send meaningless numbers, and only calls of the router are timed.

A case is a kind of run and a number of parties, such as ``sums-300``. Results go to
``docs/results/starts.csv``, a row for each case, and as text to ``starts.txt``; rows of cases that
are not named stay as they are.
"""

from __future__ import annotations

import os
import sys
import time
from functools import partial

import numpy as np

from dpmesh.deploy import Contract, Position, Router, Row, SigningKey
from dpmesh.deploy.row import MIXED_ENTRY_BYTES, RollbackReport
from dpmesh.deploy.schedule import Schedule
from dpmesh.deploy.signing import digest, pack
from dpmesh.deploy.sums import (
    HEADER,
    MASKED_PARTS,
    TAG_SECRET,
    TAG_SECRET_QUESTION,
    Header,
    MaskedPart,
)
from dpmesh.deploy.wire import (
    BEFORE,
    PRESENCE_QUESTION,
    ROLLBACK_QUESTION,
    Presence,
    ReleaseIndex,
    RollbackQuestion,
    Signature,
    StepQuestion,
    int_fields,
    kind_of,
    read_question,
)
from dpmesh_papers.studies.results import read_rows, write_rows

RECORDS = 10
"""Records of a party."""
DIM = 10
"""Features of a record."""
ROUNDS = 2
SEALED_BYTES = 60
"""Length of a secret for tags (message authentication of sums), encrypted for one party."""
NO_PROGRESS = b"".join(int_fields(0, 0, 0))
"""Progress of a party of sums that has released nothing: sum, attempt and incarnation 0."""
KINDS = {"gossip": "gossip on a 4-regular graph", "sums": "a secure sum"}
"""Names of the kinds of runs in the table of results."""


def contract_of(kind: str, keys: list[SigningKey]) -> Contract:
    """Return a contract among parties with these keys.

    ``"sums"`` is federated learning by secure aggregation, in which a tenth of the parties may
    collude and a tenth may drop out. ``"gossip"`` is gradient descent on a random 4-regular graph.
    """
    count = len(keys)
    terms = {"rounds": ROUNDS, "public_key": "05" * 32, "deadline": 600.0, "features": DIM}
    terms["quorum"] = count - count // 10
    content: dict[str, object] = {
        "format": 2,
        "contract": terms,
        "problem": {"loss": "logistic", "feature_norm": 1.0},
        "party": [
            {
                "name": f"p{number}",
                "signing_key": key.public.hex(),
                "records": RECORDS,
                "epsilon": 1e6,
                "delta": 1e-5,
            }
            for number, key in enumerate(keys)
        ],
    }
    if kind == "sums":
        content["algorithm"] = {
            "kind": "FederatedLearning",
            "noise_multiplier": 120.0,
            "step_size": 1.0,
            "contribution": {"kind": "RecordGradients"},
            "combination": {
                "kind": "SecureAggregation",
                "colluding": count // 10,
                "dropouts": count // 10,
            },
        }
        return Contract.of(content)
    terms["largest_row"] = 1e3
    content["topology"] = {"kind": "random_regular", "degree": 4}
    content["algorithm"] = {
        "kind": "GradientDescent",
        "records": RECORDS,
        "noise_multiplier": 40.0,
        "step_size": 1.0,
        "clipping_norm": 0.5,
    }
    return Contract.of(content)


class SimulatedParty:
    """A party that answers the router's questions of a start and of the first round.

    Its messages have valid signatures and their usual length; rows and sums are meaningless.

    Parameters
    ----------
    schedule
        Schedule of the run.
    number
        Number of the party.
    key
        The party's signing key.
    """

    def __init__(self, schedule: Schedule, number: int, key: SigningKey) -> None:
        self._schedule = schedule
        self._contract = schedule.contract
        self._number = number
        self._key = key
        self._has_sums = self._contract.planned.first_sum is not None

    def answer(self, question: bytes) -> bytes:
        """Return the answer to a question of the router."""
        kind = kind_of(question)
        if kind == PRESENCE_QUESTION:
            return self._presence()
        if kind == ROLLBACK_QUESTION:
            progress = NO_PROGRESS if self._has_sums else b""
            report = RollbackReport(self._number, digest(question), progress)
            return report.signed(self._contract, self._key)
        if kind == TAG_SECRET_QUESTION:
            sealed_secrets = [os.urandom(SEALED_BYTES)] * self._contract.nodes
            return pack(TAG_SECRET, self._contract.hash, *int_fields(self._number), *sealed_secrets)
        step_question = read_question(question, self._contract)
        assert isinstance(step_question, StepQuestion)
        if self._has_sums:
            return self._masked_parts(step_question)
        return self._row(step_question.position)

    def _presence(self) -> bytes:
        """Return the party's signature, with its question whether it released anything before."""
        contract, number = self._contract, self._number
        public_key = os.urandom(32) if self._has_sums else b""
        signature = Signature.of(contract, number, self._key, public_key)
        question = RollbackQuestion(number, ReleaseIndex(0, BEFORE), os.urandom(16))
        questions = RollbackQuestion.together(contract, [question])
        return Presence(signature, questions, None).as_bytes()

    def _masked_parts(self, question: StepQuestion) -> bytes:
        """Return a masked part of zeros for each sum that the question announces."""
        parts = []
        for message in question.attached:
            if kind_of(message) != HEADER:
                continue
            header = Header.read(message, self._contract)
            size = self._contract.planned.sum_at(header.position.round).message_bytes
            agreement, packed, tag = bytes(32), bytes(size), 5
            part = MaskedPart(header.common, agreement, packed, tag)
            parts.append(part.as_bytes(self._contract))
        return pack(MASKED_PARTS, *parts)

    def _row(self, position: Position) -> bytes:
        """Return a signed row of random numbers."""
        mixed_rows = b""
        if position.round > 0:
            mixed_count = len(self._schedule.mixed_senders(position, self._number)) + 1
            mixed_rows = bytes(MIXED_ENTRY_BYTES * mixed_count)
        values = np.random.default_rng(self._number).normal(size=DIM).tobytes()
        row = Row(
            contract=self._contract.hash,
            position=position,
            party=self._number,
            incarnation=0,
            dtype="float64",
            shape=(1, DIM),
            encoded_values=values,
            mixed_rows=mixed_rows,
        )
        return row.signed(self._key)


def measure_start(kind: str, count: int) -> dict[str, str]:
    """Start a run among `count` parties; return bytes and the router's processor seconds."""
    keys = [SigningKey.generate() for _ in range(count)]
    contract = contract_of(kind, keys)
    schedule = Schedule(contract)
    router = Router(contract)
    parties = [SimulatedParty(schedule, number, key) for number, key in enumerate(keys)]
    processor_seconds = 0.0
    sent_bytes = received_bytes = 0
    while router.open_position is None or router.open_position.round < 1:
        for number, party in enumerate(parties):
            start = time.process_time()
            question = router.request(number)
            processor_seconds += time.process_time() - start
            if question is None:
                continue
            answer = party.answer(question)
            sent_bytes += len(question)
            received_bytes += len(answer)
            start = time.process_time()
            router.take(number, answer)
            processor_seconds += time.process_time() - start
    return {
        "case": f"{kind}-{count}",
        "what": f"{KINDS[kind]} of {count:,} parties",
        "sent": str(sent_bytes),
        "received": str(received_bytes),
        "processor": f"{processor_seconds:.3g}",
    }


CASES = {
    f"{kind}-{count}": partial(measure_start, kind, count)
    for kind in KINDS
    for count in (100, 300, 1000)
}


def as_text(rows: list[dict[str, str]]) -> str:
    """Return the rows as the table of docs/operating.md."""
    lines = [f"{'the start of':<48}  MB sent  MB received  router's processor, s"]
    for row in rows:
        amounts = f"{int(row['sent']) / 1e6:>7.1f}  {int(row['received']) / 1e6:>11.2f}"
        lines.append(f"{row['what']:<48}  {amounts}  {float(row['processor']):>22.2f}")
    return "\n".join(lines) + "\n"


def main(names: list[str]) -> None:
    """Measure the named cases, by default all; write the results after each."""
    row_by_case = {row["case"]: row for row in read_rows("starts")}
    for name in names or CASES:
        row_by_case[name] = CASES[name]()
        print(row_by_case[name], flush=True)
        rows = [row_by_case[case] for case in CASES if case in row_by_case]
        write_rows("starts", rows, as_text(rows))


if __name__ == "__main__":
    main(sys.argv[1:])

"""What a start costs a router: ``python -m benches.starts [CASE ..]``.

Parties are stand-ins in this process: they sign what a start needs and compute nothing, so that the
seconds of processor are the router's own. A start ends when the first round is over: then each
party has the signatures of all, and the words of those who confirm that it sent nothing before.
Results go to ``docs/results/starts.csv``, a line for each case, and as text beside it.
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

RECORDS, DIM, ROUNDS = 10, 10, 2
SEALED_BYTES = 60
"""Length of a secret for tags that is sealed for one party."""
NOTHING_YET = b"".join(int_fields(0, 0, 0))
"""How far a party of sums says that it got: nowhere."""


def contract_of(kind: str, keys: list[SigningKey]) -> Contract:
    """Return a contract of sums, or of gossip on a random graph of degree 4."""
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
        lost = {"colluding": count // 10, "dropouts": count // 10}
        content["algorithm"] = {
            "kind": "FederatedLearning",
            "noise_multiplier": 120.0,
            "step_size": 1.0,
            "contribution": {"kind": "RecordGradients"},
            "combination": {"kind": "SecureAggregation", **lost},
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


class StandIn:
    """A party that answers a start, and the first round with numbers that mean nothing."""

    def __init__(self, schedule: Schedule, number: int, signing: SigningKey) -> None:
        self._schedule, self._number, self._signing = schedule, number, signing
        self._contract = schedule.contract
        self._sums = self._contract.planned.first_sum is not None

    def answer(self, question: bytes) -> bytes:
        """Return what a party would send, of the same length."""
        contract, number = self._contract, self._number
        kind = kind_of(question)
        if kind == PRESENCE_QUESTION:
            key = os.urandom(32) if self._sums else b""
            signature = Signature.of(contract, number, self._signing, key)
            fresh = RollbackQuestion(number, ReleaseIndex(0, BEFORE), os.urandom(16))
            return Presence(
                signature, RollbackQuestion.together(contract, [fresh]), None
            ).as_bytes()
        if kind == ROLLBACK_QUESTION:
            later = NOTHING_YET if self._sums else b""
            return RollbackReport(number, digest(question), later).signed(contract, self._signing)
        if kind == TAG_SECRET_QUESTION:
            sealed = [os.urandom(SEALED_BYTES)] * contract.nodes
            return pack(TAG_SECRET, contract.hash, *int_fields(number), *sealed)
        ask = read_question(question, contract)
        assert isinstance(ask, StepQuestion)
        return self._part(ask) if self._sums else self._row(ask.position)

    def _part(self, ask: StepQuestion) -> bytes:
        headers = [m for m in ask.attached if kind_of(m) == HEADER]
        parts = []
        for header in (Header.read(each, self._contract) for each in headers):
            size = self._contract.planned.sum_at(header.position.round).message_bytes
            part = MaskedPart(header.common, bytes(32), bytes(size), 5)
            parts.append(part.as_bytes(self._contract))
        return pack(MASKED_PARTS, *parts)

    def _row(self, position: Position) -> bytes:
        mixed = bytes(
            MIXED_ENTRY_BYTES * (len(self._schedule.mixed_senders(position, self._number)) + 1)
        )
        values = np.random.default_rng(self._number).normal(size=DIM).tobytes()
        named = self._contract.hash, position, self._number, 0, "float64", (1, DIM)
        return Row(*named, values, mixed if position.round else b"").signed(self._signing)


def start(kind: str, count: int) -> dict[str, str]:
    """Start a run, and measure the router."""
    keys = [SigningKey.generate() for _ in range(count)]
    contract = contract_of(kind, keys)
    schedule, router = Schedule(contract), Router(contract)
    parties = [StandIn(schedule, number, key) for number, key in enumerate(keys)]
    processor, sent, received = 0.0, 0, 0
    while router.open_position is None or router.open_position.round < 1:
        for number, party in enumerate(parties):
            begun = time.process_time()
            question = router.request(number)
            processor += time.process_time() - begun
            if question is None:
                continue
            answer = party.answer(question)
            sent, received = sent + len(question), received + len(answer)
            begun = time.process_time()
            router.take(number, answer)
            processor += time.process_time() - begun
    shown = {"sums": "a secure sum", "gossip": "gossip on a 4-regular graph"}
    return {
        "case": f"{kind}-{count}",
        "what": f"{shown[kind]} of {count:,} parties",
        "sent": str(sent),
        "received": str(received),
        "processor": f"{processor:.3g}",
    }


CASES = {
    f"{kind}-{count}": partial(start, kind, count)
    for kind in ("gossip", "sums")
    for count in (100, 300, 1000)
}


def as_text(rows: list[dict[str, str]]) -> str:
    """Return the lines as they stand on the page."""
    lines = [f"{'the start of':<48}  MB sent  MB received  router's processor, s"]
    for row in rows:
        amounts = f"{int(row['sent']) / 1e6:>7.1f}  {int(row['received']) / 1e6:>11.2f}"
        lines.append(f"{row['what']:<48}  {amounts}  {float(row['processor']):>22.2f}")
    return "\n".join(lines) + "\n"


def main(names: list[str]) -> None:
    """Measure each case, or those that are named."""
    lines = {line["case"]: line for line in read_rows("starts")}
    for name in names or CASES:
        lines[name] = CASES[name]()
        print(lines[name], flush=True)
        rows = [lines[case] for case in CASES if case in lines]
        write_rows("starts", rows, as_text(rows))


if __name__ == "__main__":
    main(sys.argv[1:])

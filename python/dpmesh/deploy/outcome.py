"""Outcome of a contract's run at a party: its progress, and a signed model or signed answers.

What a party signs of them shows where they came from, and who has the same.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from dpmesh._validate import fail
from dpmesh.defaults.choice import threat_model_of
from dpmesh.deploy.contract import Contract
from dpmesh.deploy.folder import Folder
from dpmesh.deploy.row import Row
from dpmesh.deploy.schedule import Schedule
from dpmesh.deploy.signing import SigningKey, digest, is_signed, unpack
from dpmesh.deploy.steps import Stored
from dpmesh.deploy.sums import Seal
from dpmesh.deploy.wire import BEFORE, Position
from dpmesh.privacy.report import Report, report
from dpmesh.statistics.ask import PUBLIC, Statistics
from dpmesh.tables.models import Model

NAME = "provenance"
_KINDS = {"contract": str, "party": str, "rounds": int, "seals": list, "signature": str}

Made: TypeAlias = "Model | dict[str, Any]"
"""What parties made: a model, or answers to questions in plain types."""
MadeT = TypeVar("MadeT", Model, dict[str, Any])


class Outcome:
    """A party's progress in a run, and the results that it may publish.

    Parameters
    ----------
    contract, folder
        The contract and the party's folder.

    Raises
    ------
    ValueError
        If the folder's key is not in the contract.
    """

    def __init__(self, contract: Contract, folder: Folder) -> None:
        self.contract, self.folder = contract, folder
        self.number = contract.party_of(folder.signing.public)
        self.schedule = Schedule(contract)

    @property
    def name(self) -> str:
        """The party's name in the contract."""
        return self.contract.parties[self.number].name

    @property
    def at(self) -> Position | None:
        """The position that it answered last; None before the first."""
        position = self.folder.last_sent(self.contract.hash).at
        if position == BEFORE:
            return None
        return position

    @property
    def rounds(self) -> int:
        """Number of whole rounds before the position that it answered last; 0 before the first."""
        if self.at is None:
            return 0
        return self.contract.planned.rounds_before(self.at.round)

    @property
    def is_done(self) -> bool:
        """True once it has answered the last question of the contract."""
        return self.schedule.is_last(self.at)

    @property
    def ended_early(self) -> bool:
        """True if all parties ended the run before its last round, as attempts were spent."""
        return self.at is not None and self.schedule.is_early(self.at)

    @property
    def is_sealed(self) -> bool:
        """True if the other parties have the same model.

        Where one sum is for all, so many parties signed the same totals that no two models can have
        as many. Where models differ, each is its own: then whether its last round reached it from
        anybody.
        """
        if self.contract.has_one_model:
            return len(self.seals) >= self.contract.sealing
        last = self.folder.last(self.contract)
        schedule = self.schedule
        if not self.is_done or last is None or not schedule.gossips:
            return self.is_done
        before = schedule.before(schedule.end)
        if before is None:
            return True
        return bool(last.rows) or not schedule.mixed_by(before, self.number)

    @property
    def seals(self) -> tuple[bytes, ...]:
        """Signed confirmations, one per party, that it accepted the same totals.

        There are none where models differ.
        """
        last = self.folder.last(self.contract)
        by_party = dict[int, bytes]()
        if last is None or last.row is None or not self.contract.has_one_model:
            return ()
        if not self.schedule.is_closing(last.at):
            return ()
        for message in (last.row, *last.rows):
            with suppress(ValueError):
                seal = Seal.read(message, self.contract)
                if seal.transcript == self.transcript:
                    by_party.setdefault(seal.party, message)
        return tuple(by_party.values())

    @property
    def transcript(self) -> bytes:
        """The hash of all totals that this party accepted, and of what was agreed on for each."""
        return self.transcript_at(self.folder.last(self.contract))

    def transcript_at(self, last: Stored | None) -> bytes:
        """Return the transcript as of a stored step."""
        stored = None if last is None else last.state
        if stored is None:
            return self.contract.hash
        return self.state_and_transcript(stored)[1]

    def state_and_transcript(self, stored: bytes) -> tuple[bytes, bytes]:
        """Return a node's state and its transcript from the bytes that the folder kept of a step.

        Nodes of sums store the transcript first.
        """
        first, second = unpack(stored)[:2]
        if self.contract.planned.sums is None:
            return (first, second)
        return (second, first)

    def is_over(self, proof: bytes) -> bool:
        """Return True if enough parties prove that they ended the run without this one."""
        ended: dict[int, set[int]] = {}
        with suppress(ValueError):
            for message in unpack(proof):
                last = (Row if self.contract.planned.sums is None else Seal).read(
                    message, self.contract
                )
                if self.schedule.is_closing(last.at):
                    ended.setdefault(last.at.round, set()).add(last.party)
        return max(map(len, ended.values()), default=0) >= self.contract.sealing

    @property
    def released(self) -> Any:
        """The model that follows from released rows alone, shape (1, dim); None at the start.

        It may be published, at the epsilon of the contract.
        """
        stored = self.folder.released(self.contract)
        kind = self.contract.terms.numbers
        if stored:
            return np.frombuffer(stored, kind).reshape(1, -1)
        return None

    def model(self) -> Model:
        """Return the released model, which predicts, with what it cost and who signed it.

        Raises
        ------
        ValueError
            If nothing was released, or this is a network of records that are no tables.
        """
        weights = self.released
        outline = self.contract.made_up.outline
        if weights is None:
            fail("weights", "a run with at least one released model", "none")
        if outline is None:
            fail("ranges", "a contract with [ranges] for a network", "none")
        released_model: Model = outline.model(weights, {"privacy": self._privacy().as_dict()})
        return self._signed(released_model)

    def statistics(self) -> Statistics:
        """Return the answers to the contract's questions, with what they cost and who signed them.

        Raises
        ------
        ValueError
            If nothing was released, or the parties ask no questions.
        """
        contract, total = self.contract, self.released
        if contract.tables.questions is None or total is None:
            fail("questions", "a contract with [questions] whose run is over", "another")
        privacy = self._privacy()
        records = int(contract.records.sum())
        released_answers = Statistics(
            answers=contract.tables.questions.answers(
                total[0], contract.planned.noise_scales, records
            ),
            sites=contract.nodes,
            records=records,
            threat_model=threat_model_of(contract.algorithm),
            privacy=replace(privacy, assumptions=(*privacy.assumptions, PUBLIC)),
            ledger=contract.plan,
        )
        return replace(released_answers, origin=self._signed(released_answers.as_dict())[NAME])

    def _privacy(self) -> Report:
        """Return what was released cost: in whole once more for each time it was restored."""
        contract, folder = self.contract, self.folder
        delta = max(party.delta for party in contract.parties)
        seeded = folder.is_seeded(contract)
        privacy = report(contract.plan, delta, seeded=seeded, nodes=contract.nodes)
        restored = folder.incarnation(contract.hash)
        if restored:
            epsilon = folder.reserved(contract, delta).epsilon
            releases = privacy.releases
            privacy = replace(privacy, epsilon=epsilon, releases=(1 + restored) * releases)
        return privacy

    def _signed(self, result: MadeT) -> MadeT:
        """Return what came of the run, signed, with the seals of all who have the same."""
        return signed(
            result,
            self.contract,
            self.folder.signing,
            party=self.name,
            rounds=self.rounds,
            seals=self.seals,
        )


class Origin(NamedTuple):
    """Where a model, or answers, came from.

    Attributes
    ----------
    party
        Who wrote and signed it.
    rounds
        How many rounds it is made of.
    sealed_by
        Who signed the totals that it is made of; nobody where the parties' models differ.
    """

    party: str
    rounds: int
    sealed_by: tuple[str, ...]


def signed(
    result: MadeT,
    contract: Contract,
    key: SigningKey,
    *,
    party: str,
    rounds: int,
    seals: tuple[bytes, ...],
) -> MadeT:
    """Return a model, or answers, with their signed origin.

    Parameters
    ----------
    result, contract
        A model or answers, and the contract under which they were made.
    key, party
        The party's key, and its name.
    rounds
        Number of rounds that the result is made of.
    seals
        Messages that parties signed at the end.
    """
    unsigned: dict[str, object] = {
        "contract": contract.hash.hex(),
        "party": party,
        "rounds": rounds,
        "seals": [seal.hex() for seal in seals],
        "signature": None,
    }
    signature = key.sign(*_fields(_with(result, unsigned)))
    return _with(result, unsigned | {"signature": signature.hex()})


def verified(result: Made, contract: Contract) -> Origin:
    """Return where a model, or answers, came from, as a party's signature shows.

    Raises
    ------
    ValueError
        If it comes from another contract or version, or its party or others did not sign it.
    """
    about: Any = _about(result) if isinstance(result, (Model, dict)) else {}
    origin = about.get(NAME)
    is_origin = isinstance(origin, dict) and {k: type(v) for k, v in origin.items()} == _KINDS
    if not is_origin or not all(isinstance(seal, str) for seal in origin["seals"]):
        fail("model", "one that dpmesh node wrote", "another")
    if origin["contract"] != contract.hash.hex():
        got = f"that of {origin['contract']}"
        fail("model", f"that of contract {contract.hash.hex()} under this version of dpmesh", got)
    parties = {party.name: party.public_key for party in contract.parties}
    signature = bytes.fromhex(origin["signature"])
    key = parties.get(origin["party"], b"")
    if not is_signed(key, signature, *_fields(result)):
        fail("model", f"as {origin['party']} signed it", "another, or one that was changed")
    seals = [Seal.read(bytes.fromhex(seal), contract) for seal in origin["seals"]]
    schedule = Schedule(contract)
    planned = contract.planned
    ended = [
        seal
        for seal in seals
        if schedule.is_closing(seal.at) and planned.rounds_before(seal.at.round) == origin["rounds"]
    ]
    signers = {seal.party for seal in ended}
    ends = {(seal.at.round, seal.transcript) for seal in seals}
    if len(ends) > 1 or len(ended) < len(seals):
        fail("model", "one whose parties signed the same totals", "one of which they differ")
    if contract.has_one_model and len(signers) < contract.sealing:
        fail("model", f"one that {contract.sealing} parties sealed", f"one that {len(signers)} did")
    names = tuple(contract.parties[party].name for party in sorted(signers))
    return Origin(origin["party"], origin["rounds"], names)


def _about(result: Made) -> dict[str, Any]:
    if isinstance(result, Model):
        return dict(result.about)
    return result


def _with(result: MadeT, origin: dict[str, Any]) -> MadeT:
    about = {**_about(result), NAME: origin}
    if isinstance(result, Model):
        return replace(result, about=about)
    return about


def _fields(result: Made) -> tuple[bytes, ...]:
    """Return what a party signs: all that the file holds but the signature."""
    about = {**_about(result), NAME: {**_about(result)[NAME], "signature": None}}
    if not isinstance(result, Model):
        return b"dpmesh answers 1", json.dumps(about, sort_keys=True).encode()
    text = json.dumps([result.as_dict(), about], sort_keys=True)
    return b"dpmesh model 1", text.encode(), digest(result.params.tobytes())

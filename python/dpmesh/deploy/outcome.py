"""Progress of a party in a contract's run, and its result: a signed model, or signed answers.

The result carries its provenance: contract, party, number of rounds, signature, and *seals*. A seal
is a party's signature of its transcript: the hash of all totals of secure sums that it accepted.
Parties whose seals agree have the same result.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias, TypeGuard, TypeVar

import numpy as np

from dpmesh._validate import fail
from dpmesh.defaults.choice import threat_model_of
from dpmesh.deploy.contract import Contract
from dpmesh.deploy.folder import Folder
from dpmesh.deploy.row import Row
from dpmesh.deploy.schedule import Schedule
from dpmesh.deploy.signing import SigningKey, digest, is_signed, unpack
from dpmesh.deploy.steps import StoredStep
from dpmesh.deploy.sums import Seal
from dpmesh.deploy.wire import BEFORE, Position
from dpmesh.privacy.report import Report, report
from dpmesh.statistics.ask import PUBLIC, Statistics
from dpmesh.tables.models import Model

NAME = "provenance"
"""Key of the provenance in a result."""
_TYPES = {"contract": str, "party": str, "rounds": int, "seals": list, "signature": str}
"""Types of the entries of a provenance."""

Result: TypeAlias = "Model | dict[str, Any]"
"""Result of a run: a model, or the answers to questions in plain types."""
ResultT = TypeVar("ResultT", Model, dict[str, Any])


class Outcome:
    """A party's progress in a run, and the result that it may publish, read from its folder.

    The base of a `Node`; the commands use it after the run. `model`, `statistics` and `released`
    are made of released values alone, and may be published at the epsilon of the contract.

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
        self.contract = contract
        self.folder = folder
        self.number = contract.party_of(folder.signing.public)
        """The party's number: its place in the contract."""
        self.schedule = Schedule(contract)

    @property
    def name(self) -> str:
        """The party's name in the contract."""
        return self.contract.parties[self.number].name

    @property
    def last_position(self) -> Position | None:
        """Position of the party's last answer; None before the first."""
        position = self.folder.last_sent(self.contract.hash).position
        if position == BEFORE:
            return None
        return position

    @property
    def rounds(self) -> int:
        """Number of whole rounds before the party's last answer."""
        if self.last_position is None:
            return 0
        return self.contract.planned.rounds_before(self.last_position.round)

    @property
    def is_done(self) -> bool:
        """True once the party has answered the last question of its run."""
        return self.schedule.is_last(self.last_position)

    @property
    def ended_early(self) -> bool:
        """True if all parties ended the run before its last round, having spent their attempts."""
        return self.last_position is not None and self.schedule.is_early(self.last_position)

    @property
    def is_sealed(self) -> bool:
        """True if the result is complete: for a model of all parties, sealed by enough of them.

        Where each party has a model of its own, it is complete once the run is over, if rows of
        other parties arrived in the last round.
        """
        if self.contract.has_one_model:
            return len(self.seals) >= self.contract.seals_needed
        if not self.is_done:
            return False
        last = self.folder.last_step(self.contract)
        if last is None or not self.schedule.is_gossip:
            return True
        position_before = self.schedule.before(self.schedule.end)
        if position_before is None:
            return True
        has_neighbours = bool(self.schedule.mixed_senders(position_before, self.number))
        return bool(last.received) or not has_neighbours

    @property
    def seals(self) -> tuple[bytes, ...]:
        """Seals of parties that accepted the same totals as this one, one message of each.

        There are none before the end of a run, and none where models differ.
        """
        last = self.folder.last_step(self.contract)
        if last is None or last.answer is None or not self.contract.has_one_model:
            return ()
        if not self.schedule.is_closing(last.position):
            return ()
        message_by_party: dict[int, bytes] = {}
        for message in (last.answer, *last.received):
            with suppress(ValueError):  # totals, and seals of another end
                seal = Seal.read(message, self.contract)
                if seal.transcript == self.transcript:
                    message_by_party.setdefault(seal.party, message)
        return tuple(message_by_party.values())

    @property
    def transcript(self) -> bytes:
        """The hash of all totals that this party has accepted, each with its agreement."""
        return self.transcript_at(self.folder.last_step(self.contract))

    def transcript_at(self, step: StoredStep | None) -> bytes:
        """Return the transcript as of a stored step; before the first step, the contract's hash."""
        if step is None or step.state is None:
            return self.contract.hash
        return self.state_and_transcript(step.state)[1]

    def state_and_transcript(self, stored: bytes) -> tuple[bytes, bytes]:
        """Return the algorithm's state and the transcript, as bytes, of a step's stored state.

        A run of sums stores the transcript first. Without sums the second value has no meaning.
        """
        first, second = unpack(stored)[:2]
        if self.contract.planned.first_sum is None:
            return (first, second)
        return (second, first)

    def is_over(self, proof: bytes) -> bool:
        """Return True if enough parties signed that the run is over, perhaps without this one.

        Parameters
        ----------
        proof
            The last messages of parties that ended, packed: rows, or seals of sums.
        """
        kind = Row if self.contract.planned.first_sum is None else Seal
        parties_by_round: dict[int, set[int]] = {}
        with suppress(ValueError):
            for message in unpack(proof):
                last = kind.read(message, self.contract)
                if self.schedule.is_closing(last.position):
                    parties_by_round.setdefault(last.position.round, set()).add(last.party)
        most = max(map(len, parties_by_round.values()), default=0)
        return most >= self.contract.seals_needed

    @property
    def released(self) -> Any:
        """The model that follows from releases alone, shape (1, dim); None before the first.

        It may be published, at the epsilon of the contract.
        """
        stored = self.folder.released(self.contract)
        if not stored:
            return None
        return np.frombuffer(stored, self.contract.terms.numbers).reshape(1, -1)

    def model(self) -> Model:
        """Return the released model, which predicts, with its epsilon and its signed provenance.

        Raises
        ------
        ValueError
            If nothing was released, or the contract has no ranges, so that it predicts no table.
        """
        weights = self.released
        outline = self.contract.dummy_problem.outline
        if weights is None:
            fail("weights", "a run with at least one released model", "none")
        if outline is None:
            fail("ranges", "a contract with [ranges] for a network", "none")
        released_model: Model = outline.model(weights, {"privacy": self._privacy().as_dict()})
        return self._signed(released_model)

    def statistics(self) -> Statistics:
        """Return the answers to the contract's questions, with epsilon and signed provenance.

        Raises
        ------
        ValueError
            If nothing was released, or the contract asks no questions.
        """
        contract = self.contract
        total = self.released
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
        """Return the privacy report; a restored folder counts the plan once more each time."""
        contract = self.contract
        folder = self.folder
        delta = max(party.delta for party in contract.parties)
        seeded = folder.is_seeded(contract)
        privacy = report(contract.plan, delta, seeded=seeded, nodes=contract.nodes)
        times_restored = folder.incarnation(contract.hash)
        if times_restored == 0:
            return privacy
        epsilon = folder.reserved(contract, delta).epsilon
        releases = (1 + times_restored) * privacy.releases
        return replace(privacy, epsilon=epsilon, releases=releases)

    def _signed(self, result: ResultT) -> ResultT:
        """Return a result with this party's signed provenance, and the seals of the others."""
        return signed(
            result,
            self.contract,
            self.folder.signing,
            party=self.name,
            rounds=self.rounds,
            seals=self.seals,
        )


class Origin(NamedTuple):
    """Verified provenance of a result.

    Attributes
    ----------
    party
        Name of the party that signed it.
    rounds
        Number of rounds that it is made of.
    sealed_by
        Names of the parties that signed its totals; none where each party has a model of its own.
    """

    party: str
    rounds: int
    sealed_by: tuple[str, ...]


def signed(
    result: ResultT,
    contract: Contract,
    key: SigningKey,
    *,
    party: str,
    rounds: int,
    seals: tuple[bytes, ...],
) -> ResultT:
    """Return a result with its provenance, signed by a party.

    Parameters
    ----------
    result, contract
        The result, and the contract of its run.
    key, party
        The party's signing key, and its name.
    rounds
        Number of rounds that the result is made of.
    seals
        Signed messages of all parties that accepted the same totals.
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


def verified(result: Result, contract: Contract) -> Origin:
    """Return the provenance of a result, once its signature and its seals are checked.

    Raises
    ------
    ValueError
        If the result comes from another contract or version of dpmesh, if its party or the parties
        of its seals did not sign it, or if too few parties sealed it.
    """
    provenance = _checked_provenance(result)
    if provenance["contract"] != contract.hash.hex():
        got = f"that of {provenance['contract']}"
        fail("model", f"that of contract {contract.hash.hex()} under this version of dpmesh", got)
    keys = {party.name: party.public_key for party in contract.parties}
    signature = bytes.fromhex(provenance["signature"])
    key = keys.get(provenance["party"], b"")
    if not is_signed(key, signature, *_fields(result)):
        expected = f"as {provenance['party']} signed it"
        fail("model", expected, "another, or one that was changed")
    seals = [Seal.read(bytes.fromhex(seal), contract) for seal in provenance["seals"]]
    signers = _signers_of_one_end(seals, provenance["rounds"], contract)
    needed = contract.seals_needed
    if contract.has_one_model and len(signers) < needed:
        fail("model", f"one that {needed} parties sealed", f"one that {len(signers)} did")
    names = tuple(contract.parties[party].name for party in sorted(signers))
    return Origin(provenance["party"], provenance["rounds"], names)


def _checked_provenance(result: Result) -> dict[str, Any]:
    """Return the provenance in a result; fail if it has none, or one with other entries."""
    about: dict[str, Any] = {}
    if isinstance(result, (Model, dict)):
        about = _about(result)
    provenance = about.get(NAME)
    if not _is_provenance(provenance):
        fail("model", "one that dpmesh node wrote", "another")
    return dict(provenance)


def _is_provenance(provenance: Any) -> TypeGuard[dict[str, Any]]:
    """Return True if a value has the entries of a provenance, with their types."""
    if not isinstance(provenance, dict):
        return False
    types = {name: type(entry) for name, entry in provenance.items()}
    return types == _TYPES and all(isinstance(seal, str) for seal in provenance["seals"])


def _signers_of_one_end(seals: Sequence[Seal], rounds: int, contract: Contract) -> set[int]:
    """Return the parties of seals; fail unless all signed the same totals after `rounds` rounds."""
    schedule = Schedule(contract)
    signers: set[int] = set()
    ends: set[tuple[int, bytes]] = set()
    for seal in seals:
        rounds_before = contract.planned.rounds_before(seal.position.round)
        if not schedule.is_closing(seal.position) or rounds_before != rounds:
            fail("model", "one whose parties signed the same totals", "one of which they differ")
        signers.add(seal.party)
        ends.add((seal.position.round, seal.transcript))
    if len(ends) > 1:
        fail("model", "one whose parties signed the same totals", "one of which they differ")
    return signers


def _about(result: Result) -> dict[str, Any]:
    """Return the part of a result that holds its provenance, as a copy for a model."""
    if isinstance(result, Model):
        return dict(result.about)
    return result


def _with(result: ResultT, provenance: dict[str, Any]) -> ResultT:
    """Return a result with another provenance."""
    about = {**_about(result), NAME: provenance}
    if isinstance(result, Model):
        return replace(result, about=about)
    return about


def _fields(result: Result) -> tuple[bytes, ...]:
    """Return the fields that a party signs: the whole result but for the signature itself."""
    about = _about(result)
    unsigned = {**about, NAME: {**about[NAME], "signature": None}}
    if not isinstance(result, Model):
        return b"dpmesh answers 1", json.dumps(unsigned, sort_keys=True).encode()
    text = json.dumps([result.as_dict(), unsigned], sort_keys=True)
    return b"dpmesh model 1", text.encode(), digest(result.params.tobytes())

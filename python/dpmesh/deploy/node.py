"""A node: one party's records and folder, which answer a router that they do not trust.

    folder = Folder.open("north")
    node = Node(contract, folder, records)
    answer = node.answer(message)           # bytes in, bytes out, over any transport

A step is two transactions. The first stores what arrived and charges the releases of the step; from
then on the step has these messages for ever. The second finishes the round before, runs the next
one up to its message, and stores the state and the message. Only then does the message leave. A
node that is killed between the two, or after both, answers the same bits when it is asked again.

What it releases leaves it as rows, see `node_rows`, or as parts of sums, see `node_sums`.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from threading import Lock
from typing import Any

from dpmesh.data import Dataset
from dpmesh.deploy.contract import Contract
from dpmesh.deploy.files import DISK
from dpmesh.deploy.folder import Folder
from dpmesh.deploy.member import Member
from dpmesh.deploy.node_rows import RowProtocol
from dpmesh.deploy.node_sums import SumProtocol
from dpmesh.deploy.row import RollbackReport
from dpmesh.deploy.signing import digest
from dpmesh.deploy.steps import StoredStep
from dpmesh.deploy.sums import RELAY_QUESTION, TAG_SECRET_QUESTION
from dpmesh.deploy.wire import (
    RECOVERY_QUESTION,
    ROLLBACK_QUESTION,
    ROLLBACK_REPORT,
    Position,
    Presence,
    RecoveryAnswer,
    RefusedError,
    RollbackQuestion,
    Signature,
    StepProgress,
    StepQuestion,
    first_total_wanted,
    kind_of,
    read_question,
    refusal,
)

_log = logging.getLogger("dpmesh")


class Node(Member):
    """One party of a contract.

    Parameters
    ----------
    contract
        The contract, from the parties and not from the router.
    folder
        The party's folder. Its budget is charged for the whole contract now.
    records
        The party's own records, as `Tables.dataset` or a file of arrays gives them.
    rehearsal
        True if all randomness but masks comes from the contract's public key, see `Member`: a run
        then has no privacy.

    Raises
    ------
    OverBudget, ValueError
        As a `Member` does.
    """

    def __init__(
        self, contract: Contract, folder: Folder, records: Dataset, *, rehearsal: bool = False
    ) -> None:
        super().__init__(contract, folder, records, rehearsal=rehearsal)
        self.protocol: RowProtocol | SumProtocol
        """The way in which releases leave the node: as rows, or as parts of sums."""
        if contract.planned.first_sum is None:
            self.protocol = RowProtocol(self)
        else:
            self.protocol = SumProtocol(self)
        self._lock = Lock()
        self._confirmed = rehearsal
        """True once enough other parties reported on the releases of this node."""
        self._has_signed = False
        """True once the folder knows that a signature of this node may have left it."""
        self._channel: Any = None
        """The channel of this node's rounds; None after a start, until the next step."""

    def answer(self, message: bytes) -> bytes:
        """Return the answer to a message of the router.

        It depends on private data only through what a mechanism released. A refusal has one of a
        few reasons, see `RefusedError`; what went wrong in detail is in the log, at the node.

        Raises
        ------
        OSError, sqlite3.Error
            If the disk fails: end the process. Nothing is lost, and the next one goes on.
        """
        with self._lock:
            try:
                return self._answer(message)
            except RefusedError as reason:
                return refusal(self.contract, str(reason))
            except DISK:
                raise
            except Exception:
                _log.exception("node %s fails, with nothing charged", self.name)
                return refusal(self.contract, "failed")

    def _answer(self, message: bytes) -> bytes:
        """Return the answer to a message, by its kind.

        The folder notes first that a signature of this party may have left it.
        """
        if not self._has_signed:
            self.folder.note_signature(self.contract)
            self._has_signed = True
        kind = kind_of(message)
        if isinstance(self.protocol, SumProtocol) and kind == TAG_SECRET_QUESTION:
            return self.protocol.tag_secret_answer(message)
        if isinstance(self.protocol, SumProtocol) and kind == RELAY_QUESTION:
            return self.protocol.relay_answer(message)
        if kind == RECOVERY_QUESTION:
            return self._recalled(first_total_wanted(message, self.contract))
        question = read_question(message, self.contract)
        if question is None:
            return self._presence()
        if isinstance(question, StepQuestion):
            return self._step(question)
        # questions of parties that started: answer with their later releases
        report = RollbackReport(
            self.number, digest(message), self.protocol.rollback_content(question)
        )
        return report.signed(self.contract, self.folder.signing)

    def _presence(self) -> bytes:
        """Return this node's signature, with its question to the others and its progress.

        It asks until enough others have confirmed its start.
        """
        signature = self._signature()
        last = self.folder.last_step(self.contract)
        if self._confirmed and last is None:
            return signature
        question = b""
        if not self._confirmed:
            question = self._question()
        reached = None
        if last is not None:
            reached = StepProgress(last.position, self.protocol.progress_header(last))
        return Presence(signature, question, reached).as_bytes()

    def _recalled(self, since: int | None) -> bytes:
        """Return the signatures with which the run began, or totals that were accepted."""
        if since is None:
            recalled = RecoveryAnswer(signatures=self.folder.signatures(self.contract))
        else:
            recalled = RecoveryAnswer(totals=self.protocol.accepted_totals(since))
        return recalled.as_bytes(self.contract)

    def _step(self, ask: StepQuestion) -> bytes:
        """Return the answer to a step, the same bytes however often it is asked for.

        A step that is computed is answered from the folder. One that is charged, but not computed,
        is computed from the messages that were stored with the charge. Any other one is checked and
        charged first. A node whose start is not confirmed asks its question instead, or computes
        the step and withholds the row: the row then stays in its folder.
        """
        contract = self.contract
        folder = self.folder
        travel = self.protocol
        position = ask.position
        step = folder.step(contract, position)
        if step is not None and step.answer is not None:
            if folder.has_stopped(contract):
                folder.update_mark(contract)  # the node may have stopped because this failed
            if travel.witness is not None:
                travel.witness.check_late_rows(ask, step)
            return travel.sent_answer(step, step.answer)
        if folder.has_stopped(contract):
            raise RefusedError("stopped")
        is_confirmed = self._confirmed or not travel.needs_confirmation(ask) or self._confirm(ask)
        if not is_confirmed and not travel.may_withhold(ask):
            return self._question()
        if step is None:
            declined = travel.withdrawal(ask, folder.last_step(contract))
            if declined is not None:
                return declined
            self._begin(ask, withheld=not is_confirmed)
        elif not is_confirmed:
            folder.withhold(contract, position)  # it was killed before it had computed the row
        return self._finished(position)

    def _begin(self, ask: StepQuestion, *, withheld: bool) -> None:
        """Check the messages of a step, then store them and charge the step; or refuse it.

        All checks come before the charge and use public numbers alone. Messages and charge are
        stored in one transaction: from then on the step has these messages for ever. No noise is
        drawn before.
        """
        contract = self.contract
        folder = self.folder
        travel = self.protocol
        last = folder.last_step(contract)
        if last is not None and last.answer is None and not self.schedule.is_gossip:
            self._finished(last.position)  # the process was killed in this turn or attempt
            last = folder.last_step(contract)
        if (last is not None and last.answer is None) or not travel.is_next(last, ask.position):
            raise RefusedError("not the next round")
        messages = travel.checked_messages(ask, last)
        charged = travel.releases_to_charge(ask.position)
        if travel.witness is not None:
            travel.witness.check_mixed_rows(messages, last)
        group = None
        if self._secrets is not None:
            group = self.pairwise_secrets(ask.attached)
        with folder.transaction():
            if travel.witness is not None:
                travel.witness.store_rows(messages)
            folder.charge_step(contract, ask.position, messages, charged, withheld=withheld)
            if last is None:
                folder.store_signatures(contract, self._signatures(ask))
            if last is None and group is not None and self._secrets is not None:
                folder.store_secrets(contract, self._secrets.as_bytes(*group.keys))
        self._pairwise_secrets = group

    def _signatures(self, ask: StepQuestion) -> dict[int, bytes]:
        """Return the parties' signatures in a question, and this node's own."""
        signatures = {self.number: self._signature()}
        for message in ask.attached:
            with suppress(ValueError):
                signatures.setdefault(Signature.read(message, self.contract).party, message)
        return signatures

    def _signature(self) -> bytes:
        """Return this node's signature under the contract, with its key and process of the run."""
        key = b""
        if self._secrets is not None:
            key = self._secrets.public_key
        key += self.protocol.process_nonce
        return Signature.of(self.contract, self.number, self.folder.signing, key)

    def _fresh(self) -> RollbackQuestion:
        """Return this node's question to the others after its start.

        It asks for releases of this node that are later than the last one in its folder, and names
        a random number of this start.
        """
        folder = self.folder
        contract = self.contract.hash
        return RollbackQuestion(
            self.number, folder.last_sent(contract), folder.marks.start_number(contract)
        )

    def _question(self) -> bytes:
        """Return this node's question to the others after its start, as a message."""
        return RollbackQuestion.together(self.contract, [self._fresh()])

    def _reports(self, ask: StepQuestion) -> dict[int, bytes]:
        """Return the signed reports of others on this node since its start, by party.

        Each report comes with the list of questions that it answers. It counts if this node's
        present question is in the list; a report on an earlier start has another random number.
        """
        fresh = self._fresh()
        reports = dict[int, bytes]()
        questions_by_hash: dict[bytes, tuple[RollbackQuestion, ...]] = {
            digest(self._question()): (fresh,)
        }
        for message in ask.attached:
            if kind_of(message) != ROLLBACK_QUESTION:
                continue
            with suppress(ValueError):
                questions = RollbackQuestion.read(message, self.contract)
                if fresh in questions:
                    questions_by_hash[digest(message)] = questions
        for message in ask.attached:
            if kind_of(message) != ROLLBACK_REPORT:
                continue
            with suppress(ValueError):
                report = RollbackReport.read(message, self.contract, questions_by_hash)
                reports[report.reporter] = report.content
        return reports

    def _confirm(self, ask: StepQuestion) -> bool:
        """Return True if enough parties have reported on this node since its start.

        Raises
        ------
        RefusedError
            If a later row shows that the folder was restored from an older copy, or a cohort of a
            sum is wrong.
        """
        reports = self._reports(ask)
        self._confirmed = self.protocol.confirms_start(
            ask, reports, self._fresh().last_release.position
        )
        if self._confirmed:
            self.folder.marks.erase_start_number(self.contract.hash)
        return self._confirmed

    def _finished(self, position: Position) -> bytes:
        """Compute a charged step, store its state and message, and return the answer to it.

        The message leaves only once it is stored, so that each start answers the same bits. Any
        failure but the disk's stops the node: were the step rolled back, a router could try other
        rows and learn from each refusal.
        """
        try:
            step = self.folder.step(self.contract, position)
            assert step is not None
            channel, message = self._computed(step)
            released = self.folder.released(self.contract)
            if channel.published is not None:
                released = channel.published.tobytes()
            with self.folder.transaction():
                self.folder.finish_step(
                    self.contract, position, channel.stored_state, message, released
                )
                if self.schedule.is_closing(position):
                    rounds = self.contract.planned.rounds_before(position.round)
                    self.folder.finish_run(self.contract, rounds)
            self.folder.update_mark(self.contract)
            self._channel = channel
        except DISK:
            raise  # the next start computes the step again, from what it has stored
        except Exception:
            _log.exception("node %s stops", self.name)
            with suppress(Exception):
                self.folder.stop(self.contract)
            raise RefusedError("stopped") from None
        return self.protocol.sent_answer(step, message)

    def _computed(self, step: StoredStep) -> tuple[Any, bytes]:
        """Run the node's rounds up to a step; return their channel and the signed message."""
        channel = self._channel or self._resumed(step.position)
        self._channel = None
        return channel, self.protocol.compute_step(channel, step)

    def _resumed(self, until: Position) -> Any:
        """Return the channel as of a position: the last stored state, and the steps after it."""
        steps = self.folder.steps_since_state(self.contract)
        base = next((step for step in reversed(steps) if step.state is not None), None)
        return self.protocol.restored_channel(
            base, [step for step in steps if step.position < until]
        )

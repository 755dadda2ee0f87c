"""A node: one party's records and folder, which answer the questions of an untrusted router.

    folder = Folder.open("north")
    node = Node(contract, folder, records)
    answer = node.answer(message)           # bytes in, bytes out, over any transport

A *step* of a node is one position of the run: the node sends one message there. A step has two
transactions of the folder. The first stores the messages that arrived, and charges the releases of
the step; from then on the step has these inputs for ever. The second stores the state and the
node's message, once the node has run the algorithm up to this message. Only then does the message
leave. A node that is killed between the two, or after both, answers the same bits when it is asked
again.

`RowProtocol` (`node_rows`) has what is special to runs in which nodes send rows, `SumProtocol`
(`node_sums`) what is special to secure sums.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from threading import Lock
from typing import Any

from dpmesh.data import Dataset
from dpmesh.deploy.contract import Contract
from dpmesh.deploy.files import DISK_ERRORS
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
    """One party of a contract, which answers a router's questions.

    To make a node joins the contract: the folder's budget is charged for the whole of it.

    Parameters
    ----------
    contract
        The contract, from the parties and not from the router.
    folder
        The party's folder. Its budget is charged, unless it was charged for this contract before.
    records
        The party's local records, as ``contract.tables.read(path)`` returns them.
    rehearsal
        True if all randomness but masks comes from the contract's public key. The run then has the
        bits of `simulate` under that key, and is NOT private.

    Raises
    ------
    OverBudget
        A `ValueError`, if the folder's budget has no room for the contract.
    ValueError
        If the folder's key is not in the contract, or if the records are not as the contract
        describes them, or are others than those with which the party joined it. The text may depend
        on the records, and must not leave the party.
    """

    def __init__(
        self, contract: Contract, folder: Folder, records: Dataset, *, rehearsal: bool = False
    ) -> None:
        super().__init__(contract, folder, records, rehearsal=rehearsal)
        self.protocol: RowProtocol | SumProtocol
        """What depends on the messages of the run: rows, or parts of sums."""
        if contract.planned.first_sum is None:
            self.protocol = RowProtocol(self)
        else:
            self.protocol = SumProtocol(self)
        self._lock = Lock()
        self._confirmed = rehearsal
        """True once enough other parties reported that they have no later release of this node."""
        self._has_signed = False
        """True once the folder has noted that a signature of this node may have left it."""
        self._channel: Any = None
        """The channel that runs the algorithm's rounds; None after a start, until the next step."""

    def answer(self, message: bytes) -> bytes:
        """Return the answer to a question of the router, which may be malicious.

        The answer depends on the party's records only through what mechanisms released. Each
        release is charged to the folder before its noise is drawn. A refusal has one of the reasons
        of `RefusedError`; the log, which stays with the party, has the details.

        Parameters
        ----------
        message
            The question, as bytes. It may be any bytes.

        Returns
        -------
        The answer or the refusal, as bytes.

        Raises
        ------
        OSError, sqlite3.Error
            If the disk fails. End the process then: nothing is lost, and a new process goes on.
        """
        with self._lock:
            try:
                return self._answer(message)
            except RefusedError as reason:
                return refusal(self.contract, str(reason))
            except DISK_ERRORS:
                raise
            except Exception:
                _log.exception("node %s fails, with nothing charged", self.name)
                return refusal(self.contract, "failed")

    def _answer(self, message: bytes) -> bytes:
        """Return the answer to a message, by its kind.

        Before the first answer the folder notes that a signature of this party may have left it.
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
            return self._recovery_answer(first_total_wanted(message, self.contract))
        question = read_question(message, self.contract)
        if question is None:
            return self._presence()
        if isinstance(question, StepQuestion):
            return self._step(question)
        content = self.protocol.rollback_content(question)
        report = RollbackReport(self.number, digest(message), content)
        return report.signed(self.contract, self.folder.signing)

    def _presence(self) -> bytes:
        """Return this node's signature, with its rollback question and its last step, if any.

        It has a rollback question until enough other parties have confirmed the node's start.
        """
        signature = self._signature()
        last = self.folder.last_step(self.contract)
        if self._confirmed and last is None:
            return signature
        question = b""
        if not self._confirmed:
            question = self._rollback_message()
        progress = None
        if last is not None:
            progress = StepProgress(last.position, self.protocol.progress_header(last))
        return Presence(signature, question, progress).as_bytes()

    def _recovery_answer(self, first_step: int | None) -> bytes:
        """Return the accepted totals from a step on; for None the signatures of all parties."""
        if first_step is None:
            answer = RecoveryAnswer(signatures=self.folder.signatures(self.contract))
        else:
            answer = RecoveryAnswer(totals=self.protocol.accepted_totals(first_step))
        return answer.as_bytes(self.contract)

    def _step(self, question: StepQuestion) -> bytes:
        """Return the answer to a step question, the same bytes however often it is asked.

        - A computed step is answered from the folder.
        - A step that is charged, but not computed, is computed from the messages that were stored
          with the charge.
        - Any other step is checked and charged first.

        A node whose start is not confirmed answers with its rollback question instead. If the
        router allows it, such a node computes the step and withholds the row: the row stays in its
        folder.
        """
        contract = self.contract
        folder = self.folder
        protocol = self.protocol
        position = question.position
        step = folder.step(contract, position)
        if step is not None and step.answer is not None:
            if folder.has_stopped(contract):
                folder.update_mark(contract)  # the node may have stopped because this failed
            if protocol.witness is not None:
                protocol.witness.check_late_rows(question, step)
            return protocol.sent_answer(step, step.answer)
        if folder.has_stopped(contract):
            raise RefusedError("stopped")
        is_confirmed = (
            self._confirmed
            or not protocol.needs_confirmation(question)
            or self._confirm_start(question)
        )
        if not is_confirmed and not protocol.may_withhold(question):
            return self._rollback_message()
        if step is None:
            withdrawal = protocol.withdrawal(question, folder.last_step(contract))
            if withdrawal is not None:
                return withdrawal
            self._begin_step(question, withheld=not is_confirmed)
        elif not is_confirmed:
            folder.withhold(contract, position)  # it was killed before it had computed the row
        return self._finish_step(position)

    def _begin_step(self, question: StepQuestion, *, withheld: bool) -> None:
        """Check the messages of a step, then store them and charge the step; or refuse it.

        All checks come before the charge, and use public numbers alone. Messages and charge are
        stored in one transaction. No noise is drawn before.
        """
        contract = self.contract
        folder = self.folder
        protocol = self.protocol
        last = folder.last_step(contract)
        if last is not None and last.answer is None and not self.schedule.is_gossip:
            self._finish_step(last.position)  # the process was killed in this turn or attempt
            last = folder.last_step(contract)
        is_unfinished = last is not None and last.answer is None
        if is_unfinished or not protocol.is_next(last, question.position):
            raise RefusedError("not the next round")
        messages = protocol.checked_messages(question, last)
        releases = protocol.releases_to_charge(question.position)
        if protocol.witness is not None:
            protocol.witness.check_mixed_rows(messages, last)
        pairwise_secrets = None
        if self._secrets is not None:
            pairwise_secrets = self.pairwise_secrets(question.attached)
        with folder.transaction():
            if protocol.witness is not None:
                protocol.witness.store_rows(messages)
            folder.charge_step(contract, question.position, messages, releases, withheld=withheld)
            if last is None:
                folder.store_signatures(contract, self._signatures(question))
            if last is None and pairwise_secrets is not None and self._secrets is not None:
                folder.store_secrets(contract, self._secrets.as_bytes(*pairwise_secrets.keys))
        self._pairwise_secrets = pairwise_secrets

    def _signatures(self, question: StepQuestion) -> dict[int, bytes]:
        """Return the signature messages of parties in a question, and this node's, by party."""
        signatures = {self.number: self._signature()}
        for message in question.attached:
            with suppress(ValueError):
                signatures.setdefault(Signature.read(message, self.contract).party, message)
        return signatures

    def _signature(self) -> bytes:
        """Return this node's signature under the contract, with its public key of the run."""
        key = b""
        if self._secrets is not None:
            key = self._secrets.public_key
        key += self.protocol.process_nonce
        return Signature.of(self.contract, self.number, self.folder.signing, key)

    def _rollback_question(self) -> RollbackQuestion:
        """Return this node's question to other parties, for later releases than its folder has."""
        folder = self.folder
        contract = self.contract.hash
        nonce = folder.marks.start_number(contract)
        return RollbackQuestion(self.number, folder.last_sent(contract), nonce)

    def _rollback_message(self) -> bytes:
        """Return this node's rollback question, as a message."""
        return RollbackQuestion.together(self.contract, [self._rollback_question()])

    def _rollback_reports(self, question: StepQuestion) -> dict[int, bytes]:
        """Return the content of each attached report on this node since its start, by reporter.

        The router attaches each report with the message of questions that it answers. A report
        counts if this node's question is in that message: the question of an earlier start has
        another nonce.
        """
        own_question = self._rollback_question()
        questions_by_hash: dict[bytes, tuple[RollbackQuestion, ...]] = {
            digest(self._rollback_message()): (own_question,)
        }
        for message in question.attached:
            if kind_of(message) != ROLLBACK_QUESTION:
                continue
            with suppress(ValueError):
                questions = RollbackQuestion.read(message, self.contract)
                if own_question in questions:
                    questions_by_hash[digest(message)] = questions
        reports: dict[int, bytes] = {}
        for message in question.attached:
            if kind_of(message) != ROLLBACK_REPORT:
                continue
            with suppress(ValueError):
                report = RollbackReport.read(message, self.contract, questions_by_hash)
                reports[report.reporter] = report.content
        return reports

    def _confirm_start(self, question: StepQuestion) -> bool:
        """Return True if enough parties have reported on this node since its start.

        Raises
        ------
        RefusedError
            If a report has a later row of this node, so that the folder was restored from an older
            copy, or if a cohort of a sum is wrong.
        """
        reports = self._rollback_reports(question)
        last_position = self._rollback_question().last_release.position
        self._confirmed = self.protocol.confirms_start(question, reports, last_position)
        if self._confirmed:
            self.folder.marks.erase_start_number(self.contract.hash)
        return self._confirmed

    def _finish_step(self, position: Position) -> bytes:
        """Compute a charged step, store its state and message, and return the answer to it.

        The message leaves only once it is stored, so that each start answers the same bits. Any
        failure but the disk's stops the node for this contract: were the step rolled back, a router
        could try other rows, and learn from each refusal.
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
        except DISK_ERRORS:
            raise  # a new process computes the step again, from what is stored
        except Exception:
            _log.exception("node %s stops", self.name)
            with suppress(Exception):
                self.folder.stop(self.contract)
            raise RefusedError("stopped") from None
        return self.protocol.sent_answer(step, message)

    def _computed(self, step: StoredStep) -> tuple[Any, bytes]:
        """Run the node's rounds up to a step; return their channel and the signed message.

        If this fails, the next step begins with a new channel.
        """
        channel = self._channel or self._resumed(step.position)
        self._channel = None
        return channel, self.protocol.compute_step(channel, step)

    def _resumed(self, until: Position) -> Any:
        """Return a channel just before a position, from the stored state and the steps after it."""
        steps = self.folder.steps_since_state(self.contract)
        base = next((step for step in reversed(steps) if step.state is not None), None)
        earlier_steps = [step for step in steps if step.position < until]
        return self.protocol.restored_channel(base, earlier_steps)

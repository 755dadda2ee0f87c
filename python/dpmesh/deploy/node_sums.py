"""The part of a node that adds to secure sums: checks of totals, charges, and masked parts.

A position of the run is a *step* (a sum for all parties, or one for each party over its
neighbours) and an *attempt* at it. A question brings a header for each sum that the node adds to in
this attempt, and totals of earlier steps. The node accepts each total that carries the right tag
under its own transcript. Then it answers the attempt once, with its masked part for each header:
the noise is fresh, and the attempt is charged. See `dpmesh.deploy.sums` for the words.

`dpmesh.deploy.node.Node` calls `SumProtocol`. `dpmesh.deploy.node_rows.RowProtocol` has the same
methods for rows.
"""

from __future__ import annotations

import logging
from contextlib import suppress

import numpy as np

from dpmesh.deploy.contract import Contract
from dpmesh.deploy.exchange import SumChannel
from dpmesh.deploy.member import Member
from dpmesh.deploy.row import read_sum_progress
from dpmesh.deploy.signing import pack, unpack
from dpmesh.deploy.steps import StoredStep
from dpmesh.deploy.sums import (
    HEADER,
    MASKED_PARTS,
    SEAL,
    TOTAL,
    Header,
    PairwiseSecrets,
    Seal,
    Total,
    Withdrawal,
    withdrawals_by_party,
    withdrawals_needed,
)
from dpmesh.deploy.wire import (
    BEFORE,
    Position,
    RefusedError,
    RollbackQuestion,
    StepQuestion,
    int_fields,
    kind_of,
    read_ints,
)
from dpmesh.keys import Key
from dpmesh.noise.secure.mechanism import Integers
from dpmesh.privacy.releases import Release

_log = logging.getLogger("dpmesh")

MOST_WRONG_TOTALS = 1000
"""Most totals with a wrong tag before a node stops: each is a guess of a router that forges one."""
MOST_RECALLED = 32
"""Most stored steps that a node reads for the totals of one recovery answer."""
LONGEST_RECALLED = 2**15
"""Bytes of totals after which a recovery answer gets no further total."""


class SumProtocol:
    """A node's checks of totals, its charges for attempts, and the masked parts that it sends.

    Parts leave the node after they are charged, noisy, masked and stored. The node's secrets of the
    run stay in its folder.

    After a restart from an older copy, a folder may not know of all attempts that were charged to
    it. So a node counts at least as many attempts of each kind of sum as any party of the cohort
    reports.

    Parameters
    ----------
    node
        The party that adds to sums: its contract, folder, problem and secrets.
    """

    witness = None
    """None: a node does not see the parts of other parties, so it has no evidence about them."""
    process_nonce = b""
    """Empty: no noise is shared with partners."""

    def __init__(self, node: Member) -> None:
        self._node = node
        self._schedule = node.schedule
        self._number = node.number
        self._contract = node.contract
        self._last_reported = BEFORE
        """The last attempt that was charged to another party, by reports since this start."""
        self._unknown_charges = (0,) * len(node.contract.planned.allowed_by_kind)
        """By kind of sum: excess of another party's charged attempts over this node's, at least 0.

        The folder of this node may have lost the record of so many attempts."""
        self._reported_progress: list[tuple[Position, tuple[int, ...]]] = []
        """Reports of other parties since this node's start: last attempt, and charges by kind."""
        self._charged_at_reports: tuple[int, ...] = ()
        """By kind of sum: attempts charged to this node when it received these reports."""
        self._wrong_totals = 0
        """Number of totals with a wrong tag so far."""
        self._warned: set[str] = set()
        """Keys of the warnings that were logged."""

    def needs_confirmation(self, question: StepQuestion) -> bool:
        """Return True if a question asks for masked parts, as all do but those that end a run."""
        return bool(self._headers(question))

    def may_withhold(self, question: StepQuestion) -> bool:
        """Return False: a sum needs all parts, so no part may stay with its node."""
        return False

    def sent_answer(self, step: StoredStep, message: bytes) -> bytes:
        """Return the message that leaves the node: the stored one."""
        return message

    def rollback_content(self, questions: tuple[RollbackQuestion, ...]) -> bytes:
        """Return the content of a `RollbackReport`, which `read_sum_progress` reads.

        It is the last attempt charged to this node, even if the node was killed in it, and for each
        kind of sum the number of attempts charged (`spent`).
        """
        position = BEFORE
        last = self._node.folder.last_step(self._contract)
        if last is not None:
            position = last.position
        return b"".join(int_fields(position.round + 1, position.exchange, *self.spent))

    def tag_secret_answer(self, message: bytes) -> bytes:
        """Return this node's tag secret, the key of the tags of a sum, sealed for other parties.

        It is sealed for each other party that adds to this node's sum.

        Parameters
        ----------
        message
            The router's question, with the signatures of the parties.

        Raises
        ------
        RefusedError
            If the node's run is over, so that its secrets are erased; or if the message is no such
            question under the contract.
        """
        try:
            _, contract, *signatures = unpack(message)
        except ValueError:
            raise RefusedError("malformed") from None
        if contract != self._contract.hash:
            raise RefusedError("another contract")
        if self._node.is_done:
            raise RefusedError("not dealt")
        return self._node.pairwise_secrets(tuple(signatures)).deal_tag_secret()

    def relay_answer(self, message: bytes) -> bytes:
        """Return the tag secret of a lost dealer, sealed by this node for all other parties.

        Parameters
        ----------
        message
            The router's question, which names the dealer.

        Raises
        ------
        RefusedError
            If this node does not have the secret, or if the message is no such question under the
            contract.
        """
        try:
            _, contract, number = unpack(message)
            (dealer,) = read_ints(number)
        except ValueError:
            raise RefusedError("malformed") from None
        if contract != self._contract.hash:
            raise RefusedError("another contract")
        try:
            secrets = self._node.pairwise_secrets()
            secrets.learn_tag_secrets(self._stored_headers())
            return secrets.relay_tag_secret(dealer)
        except ValueError:  # the run has not begun, or is over, or had another dealer
            raise RefusedError("not dealt") from None

    def _stored_headers(self) -> list[Header]:
        """Return the headers of all attempts and totals that this node has stored."""
        contract = self._contract
        headers: list[Header] = []
        for message in self._node.folder.received_after(contract, -1, -1):
            kind = kind_of(message)
            if kind == HEADER:
                headers.append(Header.read(message, contract))
            elif kind == TOTAL:
                headers.append(Total.read(message, contract).header)
        return headers

    def progress_header(self, step: StoredStep) -> bytes:
        """Return the field `StepProgress.header` of a stored step.

        For an attempt at a sum for all it is the header; for an early end, the packed withdrawals
        that justify it; else empty.
        """
        if self._schedule.is_early(step.position):
            return pack(
                *withdrawals_by_party(step.received, step.position.round, self._contract).values()
            )
        headers = [message for message in step.received if kind_of(message) == HEADER]
        if headers and self._contract.has_one_model:
            return headers[0]
        return b""

    def accepted_totals(self, first_step: int) -> tuple[bytes, ...]:
        """Return the totals that this node has accepted from a step on, ascending.

        An answer has at most `MOST_RECALLED` of them, and none after `LONGEST_RECALLED` bytes.
        """
        totals: dict[int, bytes] = {}
        stored = self._node.folder.received_after(self._contract, first_step, MOST_RECALLED)
        for message in stored:
            if kind_of(message) != TOTAL:
                continue
            step = Total.read(message, self._contract).header.position.round
            if step >= first_step:
                totals[step] = message
            if sum(map(len, totals.values())) > LONGEST_RECALLED:
                break
        return tuple(total for _, total in sorted(totals.items()))

    @property
    def _charged_here(self) -> tuple[int, ...]:
        """By kind of sum: number of attempts charged to this node, by its own folder."""
        planned = self._contract.planned
        charged = [0] * len(planned.allowed_by_kind)
        for step, count in self._node.folder.charged_steps(self._contract).items():
            charged[planned.kind_at(step)] += count
        return tuple(charged)

    def _charged_before(self, position: Position) -> tuple[int, ...]:
        """Return by kind the number of attempts charged to this node, without one at a position."""
        charged = [*self._charged_here]
        if self._node.folder.step(self._contract, position) is not None:
            charged[self._contract.planned.kind_at(position.round)] -= 1
        return tuple(charged)

    @property
    def spent(self) -> tuple[int, ...]:
        """By kind of sum: number of attempts charged to this node, or to another party if more."""
        return tuple(map(sum, zip(self._charged_here, self._unknown_charges, strict=True)))

    def confirms_start(
        self, question: StepQuestion, reports: dict[int, bytes], last: Position
    ) -> bool:
        """Return True if all other parties of the cohort reported their progress since this start.

        Some of them may have been charged for this very attempt. Under another header it opens no
        sum, as they answer it under the stored header alone. Under the same header this node's part
        has the same bytes.

        Parameters
        ----------
        question
            The question for the attempt, which brings the reports.
        reports
            The content of reports since this node's start, by reporter.
        last
            Position of the last attempt in this node's folder; not used.

        Raises
        ------
        RefusedError
            If a cohort of the attempt is wrong.
        """
        contract = self._contract
        headers = self._headers(question)
        self._check_cohorts(headers)
        cohort = {party for header in headers for party in header.cohort} - {self._number}
        if cohort - reports.keys():
            return False
        self._reported_progress = [
            read_sum_progress(report, contract) for by, report in reports.items() if by in cohort
        ]
        self._last_reported = max(
            (position for position, _ in self._reported_progress), default=BEFORE
        )
        self._charged_at_reports = self._charged_before(question.position)
        self._unknown_charges = self._charges_beyond(question.position, self._charged_at_reports)
        return True

    def _charges_beyond(self, position: Position, charged_here: tuple[int, ...]) -> tuple[int, ...]:
        """Return by kind how many more attempts another party was charged for than this node.

        An attempt at `position` itself counts for neither: this node is charged for it, too.

        Parameters
        ----------
        position
            The attempt that this node is asked for.
        charged_here
            By kind of sum: number of attempts charged to this node before that attempt.
        """
        kind_now = self._contract.planned.kind_at(position.round)
        beyond = [0] * len(charged_here)
        for last, charged_there in self._reported_progress:
            for kind, count_here in enumerate(charged_here):
                count = charged_there[kind]
                if last == position and kind == kind_now:
                    count -= 1  # this attempt
                beyond[kind] = max(beyond[kind], count - count_here)
        return tuple(beyond)

    def _headers(self, question: StepQuestion) -> list[Header]:
        """Return a question's headers, one for each sum that this node adds to; none at the end.

        Raises
        ------
        RefusedError
            If one is missing, or is of another attempt; or if two are for one sum, as these would
            get the same noise.
        """
        with suppress(ValueError):
            headers = _headers_in(question.attached, self._contract)
            count = 0
            if not self._schedule.is_closing(question.position):
                receivers = self._contract.planned.sum_at(0).receivers
                count = sum(self._number in senders for senders in receivers)
            dealers = {header.dealer for header in headers if header.position == question.position}
            if len(dealers) == len(headers) == count:
                return headers
        raise RefusedError("malformed")

    def is_next(self, last: StoredStep | None, position: Position) -> bool:
        """Return True if an attempt is later than the last one, and the run is not over.

        At a closing position only the next exchange follows.
        """
        before = BEFORE
        if last is not None:
            before = last.position
        if self._schedule.is_closing(before):
            following = Position(before.round, before.exchange + 1)
            return position == following and not self._schedule.is_last(before)
        return before < position <= self._schedule.end and position >= self._last_reported

    def withdrawal(self, question: StepQuestion, last: StoredStep | None) -> bytes | None:
        """Return this node's signed withdrawal, if it may take part in no attempt like this one.

        A withdrawal stands in the place of a refusal, and holds for ever: it justifies an early end
        of the run to all parties. None if the node may take part, and in sums over neighbours.
        """
        position = question.position
        contract = self._contract
        is_open = self.is_next(last, position) and not self._schedule.is_closing(position)
        if not is_open or not contract.has_one_model or not self._has_spent(position):
            return None
        statement = Withdrawal(position.round, self._number)
        return statement.signed(contract, self._node.folder.signing)

    def _has_spent(self, position: Position) -> bool:
        """Return True if no attempt of a position's kind is left, or the budget is spent."""
        if self._reported_progress and self._charged_here == self._charged_at_reports:
            # an earlier question was refused, so nothing was charged since the reports
            self._unknown_charges = self._charges_beyond(position, self._charged_at_reports)
        kind = self._contract.planned.kind_at(position.round)
        allowed = len(self._contract.planned.allowed_by_kind[kind])
        name = self._contract.parties[self._number].name
        if self._node.folder.is_over_budget:
            self._warn_once(
                f"{name} adds to no sum: its folder was restored, and is over its budget"
            )
            return True
        if self.spent[kind] >= allowed:
            text = f"{name} adds to no sum from step {position.round} on: it was charged for"
            self._warn_once(f"{text} all {allowed} attempts that the contract allows")
            return True
        return False

    def _warn_of_an_early_end(self, position: Position, attempts_left: int) -> None:
        """Warn once if fewer attempts are left than later sums, both of the kind of a position."""
        later = self._contract.planned.later_sums[position.round]
        if attempts_left < later:
            rounds = self._contract.terms.rounds
            text = f"only {attempts_left} more attempts are allowed at {later} more sums:"
            text = f"{text} the run will end before round {rounds}, with the model of the rounds"
            self._warn_once(f"{text} until then", "early end")

    def _warn_once(self, text: str, key: str | None = None) -> None:
        """Log a warning once for each key, which by default is its text."""
        if (key or text) not in self._warned:
            self._warned.add(key or text)
            _log.warning("%s", text)

    def checked_messages(
        self, question: StepQuestion, last: StoredStep | None
    ) -> tuple[bytes, ...]:
        """Check the totals and headers in a question, and return what the step stores.

        Parameters
        ----------
        question
            The question.
        last
            The last step of this node; None before the first step.

        Returns
        -------
        The new totals, the headers, and at a closing position withdrawals and seals.

        Raises
        ------
        RefusedError
            If a total has a wrong tag, if one is missing, or if a header or a key is wrong.
        """
        contract = self._contract
        headers = self._headers(question)
        step, transcript = self._open_step(last)
        totals: list[bytes] = []
        for message in question.attached:
            if kind_of(message) != TOTAL:
                continue
            try:
                total = Total.read(message, contract)
            except ValueError:
                raise RefusedError("malformed") from None
            if total.header.position.round < step:
                continue  # the router missed this node's last answer
            if total.header.position.round > step or not self._may_open(total, last):
                raise RefusedError("not the next round")
            secrets = self._secrets_for(total.header, question, last)
            try:
                _, transcript = secrets.open_total(total, transcript)
            except ValueError:
                raise self._bad_total() from None
            step = step + 1
            totals.append(message)
        if question.position.round != step:
            raise RefusedError("not the next round")
        self._check_cohorts(headers)
        for header in headers:
            secrets = self._secrets_for(header, question, last)
            try:
                secrets.agreement(header, transcript)
            except ValueError:  # the tag secret is missing
                raise RefusedError("bad key") from None
        seals: list[bytes] = []
        if not headers:
            seals = [message for message in question.attached if kind_of(message) == SEAL]
        withdrawals = self._withdrawals(question)
        header_messages = (header.as_bytes(contract) for header in headers)
        return (*totals, *header_messages, *withdrawals, *seals)

    def _secrets_for(
        self, header: Header, question: StepQuestion, last: StoredStep | None
    ) -> PairwiseSecrets:
        """Return the pairwise secrets, with the tag secret of a header if this node has stored it.

        A header without a sealed secret relies on the headers of the last step.
        """
        secrets = self._node.pairwise_secrets(question.attached)
        if last is not None and not header.sealed_tag_secret:
            secrets.learn_tag_secrets(_headers_in(last.received, self._contract))
        return secrets

    def _withdrawals(self, question: StepQuestion) -> list[bytes]:
        """Return the withdrawals that justify an early end; none at any other position.

        Raises
        ------
        RefusedError
            If there are too few.
        """
        if not self._schedule.is_early(question.position):
            return []
        step = question.position.round
        withdrawals = withdrawals_by_party(question.attached, step, self._contract)
        if len(withdrawals) < withdrawals_needed(self._contract):
            raise RefusedError("not the next round")
        return [*withdrawals.values()]

    def _check_cohorts(self, headers: list[Header]) -> None:
        """Refuse a cohort without this node, or with too few honest parties for the noise."""
        for header in headers:
            if self._number not in header.cohort or not self._has_enough_noise(header):
                raise RefusedError("bad cohort")

    def _has_enough_noise(self, header: Header) -> bool:
        """Return True if the noise of a cohort's honest parties is as large as planned."""
        sums = self._contract.planned.sum_at(header.position.round)
        return sums.is_cohort(header.cohort, header.dealer)

    def _bad_total(self) -> RefusedError:
        """Return the error that refuses a total with a wrong tag; stop the node after too many."""
        self._wrong_totals += 1
        if self._wrong_totals > MOST_WRONG_TOTALS:
            self._node.folder.stop(self._contract)
        return RefusedError("bad total")

    def _may_open(self, total: Total, last: StoredStep | None) -> bool:
        """Return True if a total is of the last attempt that this node answered, or a later one.

        In sums over neighbours, it must be this node's own sum. The node adds nothing to it, so it
        has no header to compare with.
        """
        header = total.header
        for_all = self._contract.has_one_model
        is_for_this_node = for_all or header.dealer == self._number
        if not self._has_enough_noise(header) or not is_for_this_node:
            return False
        if last is None or header.position > last.position:
            return True
        if last.position != header.position:
            return False
        if not for_all:
            return True
        answered_headers = _headers_in(last.received, self._contract)
        return header.common in [answered.common for answered in answered_headers]

    def releases_to_charge(self, position: Position) -> tuple[Release, ...]:
        """Return the release that is charged for an attempt; none at a closing position.

        Raises
        ------
        RefusedError
            If no attempt of this kind is left, or the folder is over its budget.
        """
        if self._schedule.is_closing(position):
            return ()
        if self._has_spent(position):
            raise RefusedError("over budget")
        kind = self._contract.planned.kind_at(position.round)
        allowed = self._contract.planned.allowed_by_kind[kind]
        if self._contract.has_one_model:
            self._warn_of_an_early_end(position, len(allowed) - self.spent[kind] - 1)
        return (allowed[self._charged_here[kind]],)

    def _open_step(self, last: StoredStep | None) -> tuple[int, bytes]:
        """Return the first step whose total this node lacks, and the transcript before it."""
        step = 0
        if last is not None and last.state is not None:
            step = last.position.round
        return step, self._node.transcript_at(last)

    def compute_step(self, channel: SumChannel, step: StoredStep) -> bytes:
        """Take the totals of a charged step, and compute this node's masked parts of the attempt.

        The key of the noise depends on the agreements of the attempt: other agreements get other
        noise.

        Returns
        -------
        The masked parts, one for each header; at a closing position the signed seal.
        """
        self._take_totals(channel, step)
        headers = _headers_in(step.received, self._contract)
        if not headers:
            seal = Seal(step.position, self._number, channel.transcript)
            return seal.signed(self._contract, self._node.folder.signing)
        secrets = self._node.pairwise_secrets()
        transcript = channel.transcript
        is_rehearsal = self._node.rehearsal
        agreements = [secrets.agreement(header, transcript) for header in headers]
        attempt_key = None
        if not is_rehearsal:
            attempt_key = _noise_key(secrets, *agreements)
        masked = channel.begin_attempt(attempt_key)
        parts: list[bytes] = []
        for header, agreement in zip(headers, agreements, strict=True):
            masked_sum = masked
            if not is_rehearsal:
                sum_key = _noise_key(secrets, agreement)
                masked_sum = channel.with_noise_of_sum(masked, sum_key)
            (noisy,) = masked_sum.part(secrets.sum_index(header.dealer))
            part = secrets.masked_part(header, transcript, noisy)
            parts.append(part.as_bytes(self._contract))
        return pack(MASKED_PARTS, *parts)

    def _take_totals(self, channel: SumChannel, step: StoredStep) -> None:
        """Give a channel the totals that were stored with a step, and that it has not taken yet."""
        for message in step.received:
            if kind_of(message) != TOTAL:
                continue
            total = Total.read(message, self._contract)
            if total.header.position.round == channel.step:
                secrets = self._node.pairwise_secrets()
                opened, transcript = secrets.open_total(total, channel.transcript)
                channel.end_step(opened[None], transcript)

    def restored_channel(self, base: StoredStep | None, steps: list[StoredStep]) -> SumChannel:
        """Return the channel of the node's rounds, from the state that the step `base` stored.

        Later steps stored no state, so that `steps` is not used.
        """
        node = self._node
        step, transcript = self._open_step(base)
        state = node.initial_state
        totals: list[Integers] = []
        if base is not None and base.state is not None:
            state = node.read_state(base.state)
            _, _, *stored_totals = unpack(base.state)
            totals = [np.frombuffer(total, np.int64)[None] for total in stored_totals]
        rehearsal_key = None
        if node.rehearsal:
            rehearsal_key = node.key
        return SumChannel(
            self._schedule,
            self._number,
            node.problem,
            rehearsal_key,
            state,
            step,
            transcript,
            totals,
        )


def _noise_key(secrets: PairwiseSecrets, *agreements: bytes) -> Key:
    """Return a secret key of this party for the noise under these agreements."""
    return Key.seeded(int.from_bytes(secrets.noise_seed(*agreements), "big"))


def _headers_in(messages: tuple[bytes, ...], contract: Contract) -> list[Header]:
    """Return the headers among messages; none at the end."""
    return [Header.read(message, contract) for message in messages if kind_of(message) == HEADER]

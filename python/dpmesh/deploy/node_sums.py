"""A node's parts of sums, sent under masks.

A position is a round and an attempt at its sums: one for all parties, or one for each over its
neighbours. The node takes its totals of the rounds before, each of which must carry the tag of an
agreement that names what this node has accepted so far, and then answers once for each attempt: its
parts of all sums that it adds to, one for each header, under masks, of a fresh draw, and charged.
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

MOST_TRIES = 1000
"""Totals without a right tag after which a node stops."""
MOST_RECALLED = 32
LONGEST_RECALLED = 2**15
"""Most steps whose totals go into one answer, and the bytes after which no other total does."""


class SumProtocol:
    """The sums of a node: checks of totals, charges for its parts, and the parts it sends.

    A `Node` makes it, and calls it for each question. Parts leave the node under masks, noisy and
    charged. The node's secrets of the run stay in its folder.

    Parameters
    ----------
    node
        The node.
    """

    witness = None
    """No evidence about other parties: a node sees no parts of theirs."""
    process_nonce = b""
    """No number of this process: partners share no secrets."""

    def __init__(self, node: Member) -> None:
        self._node = node
        self._schedule = node.schedule
        self._number = node.number
        self._contract = node.contract
        self._known = BEFORE
        """The last attempt charged to another party when this node started."""
        self._ahead = (0,) * len(node.contract.planned.allowed_by_kind)
        """By kind of sum: the number charged to another party beyond those charged to this node."""
        self._progress: list[tuple[Position, tuple[int, ...]]] = []
        """The progress that others reported since this node's start."""
        self._spent_at_reports: tuple[int, ...] = ()
        """By kind of sum: the number charged to this node before the attempt they came with."""
        self._tries = 0
        """Totals without a right tag so far."""
        self._warned = set[str]()
        """Warnings that were logged, by key."""

    def needs_confirmation(self, ask: StepQuestion) -> bool:
        """Return True if a question is for parts of sums; nothing is released at the end."""
        return bool(self._headers(ask))

    def may_withhold(self, ask: StepQuestion) -> bool:
        """Return False: a sum needs all parts, so none may stay with its node."""
        return False

    def sent_answer(self, step: StoredStep, message: bytes) -> bytes:
        """Return what leaves the node of a step: its message."""
        return message

    def rollback_content(self, questions: tuple[RollbackQuestion, ...]) -> bytes:
        """Return the last attempt charged to this node, and the number of each kind up to it.

        An attempt in which it was killed counts: it is charged, and its headers are stored.
        """
        position = BEFORE
        last = self._node.folder.last_step(self._contract)
        if last is not None:
            position = last.position
        return b"".join(int_fields(position.round + 1, position.exchange, *self.spent))

    def tag_secret_answer(self, message: bytes) -> bytes:
        """Return this node's secret for tags, sealed for each party that adds to its sum.

        Raises
        ------
        RefusedError
            If its run is over, so that its secrets are erased, or it is not asked for it.
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
        """Return the secret for tags of a dealer that is lost, sealed for the others.

        Raises
        ------
        RefusedError
            If this node does not have it, or is not asked for it.
        """
        try:
            _, contract, number = unpack(message)
            (dealer,) = read_ints(number)
        except ValueError:
            raise RefusedError("malformed") from None
        if contract != self._contract.hash:
            raise RefusedError("another contract")
        try:
            group = self._node.pairwise_secrets()
            group.learn_tag_secrets(self._stored_headers())
            return group.relay_tag_secret(dealer)
        except ValueError:  # its run has not begun, or is over, or it has had another dealer
            raise RefusedError("not dealt") from None

    def _stored_headers(self) -> list[Header]:
        """Return the headers of all steps, and of all totals that this node has taken."""
        contract = self._contract
        headers = list[Header]()
        for message in self._node.folder.received_after(contract, -1, -1):
            kind = kind_of(message)
            if kind == HEADER:
                headers.append(Header.read(message, contract))
            elif kind == TOTAL:
                headers.append(Total.read(message, contract).header)
        return headers

    def progress_header(self, step: StoredStep) -> bytes:
        """Return the header of a stored attempt at a sum for all.

        Of an early end these are the words of those who have spent their attempts.
        """
        if self._schedule.is_early(step.position):
            return pack(
                *withdrawals_by_party(step.received, step.position.round, self._contract).values()
            )
        headers = [message for message in step.received if kind_of(message) == HEADER]
        if headers and self._contract.has_one_model:
            return headers[0]
        return b""

    def accepted_totals(self, step: int) -> tuple[bytes, ...]:
        """Return accepted totals from a step on, ascending: as many as one answer has room for."""
        totals: dict[int, bytes] = {}
        for message in self._node.folder.received_after(self._contract, step, MOST_RECALLED):
            if kind_of(message) != TOTAL:
                continue
            position = Total.read(message, self._contract).header.position
            if position.round >= step:
                totals[position.round] = message
            if sum(map(len, totals.values())) > LONGEST_RECALLED:
                break
        return tuple(total for _, total in sorted(totals.items()))

    @property
    def _charged_here(self) -> tuple[int, ...]:
        """Number of sums of each kind that this node was charged for."""
        planned = self._contract.planned
        spent = [0] * len(planned.allowed_by_kind)
        for step, count in self._node.folder.charged_steps(self._contract).items():
            spent[planned.kind_at(step)] += count
        return tuple(spent)

    def _spent_before(self, position: Position) -> tuple[int, ...]:
        """Return by kind the number charged to this node before an attempt, which may be stored."""
        spent = [*self._charged_here]
        if self._node.folder.step(self._contract, position) is not None:
            spent[self._contract.planned.kind_at(position.round)] -= 1
        return tuple(spent)

    @property
    def spent(self) -> tuple[int, ...]:
        """Number of sums of each kind charged to this node, or to another party if more."""
        return tuple(map(sum, zip(self._charged_here, self._ahead, strict=True)))

    def confirms_start(self, ask: StepQuestion, reports: dict[int, bytes], last: Position) -> bool:
        """Return True if the rest of the cohort reported its progress since this node started.

        Some may have stored this very attempt: under another header it opens nothing, since they
        answer it under the stored one alone, and under the same one it has the same bytes.
        """
        contract = self._contract
        headers = self._headers(ask)
        self._check_cohorts(headers)
        cohort = {party for header in headers for party in header.cohort} - {self._number}
        if cohort - reports.keys():
            return False
        self._progress = [
            read_sum_progress(report, contract) for by, report in reports.items() if by in cohort
        ]
        self._known = max((position for position, _ in self._progress), default=BEFORE)
        self._spent_at_reports = self._spent_before(ask.position)
        self._ahead = self._ahead_of(ask.position, self._spent_at_reports)
        return True

    def _ahead_of(self, position: Position, spent: tuple[int, ...]) -> tuple[int, ...]:
        """Return by kind of sum how many more the party with the most was charged for.

        An attempt at `position` itself counts for neither: this node is charged for it, too.

        Parameters
        ----------
        position
            The attempt that this node is asked for.
        spent
            By kind of sum: the number charged to this node before that attempt.
        """
        kind_now = self._contract.planned.kind_at(position.round)
        ahead = [0] * len(spent)
        for last, charged in self._progress:
            for kind, own_count in enumerate(spent):
                is_this_attempt = last == position and kind == kind_now
                count = charged[kind]
                if is_this_attempt:
                    count -= 1
                ahead[kind] = max(ahead[kind], count - own_count)
        return tuple(ahead)

    def _headers(self, ask: StepQuestion) -> list[Header]:
        """Return a question's header for each sum that this node adds to, none at the end.

        Refuse those of another attempt, and two for one sum, which would get the same noise.
        """
        with suppress(ValueError):
            headers = _headers_in(ask.attached, self._contract)
            count = 0
            if not self._schedule.is_closing(ask.position):
                receivers = self._contract.planned.sum_at(0).receivers
                count = sum(self._number in senders for senders in receivers)
            dealers = {header.dealer for header in headers if header.position == ask.position}
            if len(dealers) == len(headers) == count:
                return headers
        raise RefusedError("malformed")

    def is_next(self, last: StoredStep | None, position: Position) -> bool:
        """Return True if an attempt is after the last one, and the run is not over."""
        before = BEFORE
        if last is not None:
            before = last.position
        if self._schedule.is_closing(before):
            next_one = Position(before.round, before.exchange + 1)
            return position == next_one and not self._schedule.is_last(before)
        return before < position <= self._schedule.end and position >= self._known

    def withdrawal(self, ask: StepQuestion, last: StoredStep | None) -> bytes | None:
        """Return this node's word that it adds to no sum like the one asked for; None if it may.

        It is true for ever, and stands in the place of a refusal, so that all can see why a run
        ends early.
        """
        position, contract = ask.position, self._contract
        is_open = self.is_next(last, position) and not self._schedule.is_closing(position)
        if not is_open or not contract.has_one_model or not self._has_spent(position):
            return None
        return Withdrawal(position.round, self._number).signed(contract, self._node.folder.signing)

    def _has_spent(self, position: Position) -> bool:
        """Return True if the attempts at sums like a position's are spent, or the budget is."""
        if self._progress and self._charged_here == self._spent_at_reports:
            # nothing was charged since the reports: an earlier question was refused
            self._ahead = self._ahead_of(position, self._spent_at_reports)
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
        """Say at once if fewer attempts are left than sums."""
        later = self._contract.planned.later_sums[position.round]
        if attempts_left < later:
            rounds = self._contract.terms.rounds
            text = f"only {attempts_left} more attempts are allowed at {later} more sums:"
            text = f"{text} the run will end before round {rounds}, with the model of the rounds"
            self._warn_once(f"{text} until then", "early end")

    def _warn_once(self, text: str, key: str | None = None) -> None:
        """Log a warning, unless its like was logged before."""
        if (key or text) not in self._warned:
            self._warned.add(key or text)
            _log.warning("%s", text)

    def checked_messages(self, ask: StepQuestion, last: StoredStep | None) -> tuple[bytes, ...]:
        """Return the totals and headers of a question; refuse what does not pass."""
        contract = self._contract
        headers = self._headers(ask)
        step, transcript = self._reached(last)
        totals = list[bytes]()
        for message in ask.attached:
            if kind_of(message) != TOTAL:
                continue
            try:
                total = Total.read(message, contract)
            except ValueError:
                raise RefusedError("malformed") from None
            if total.header.position.round < step:
                continue  # the router did not get the last answer
            if total.header.position.round > step or not self._may_open(total, last):
                raise RefusedError("not the next round")
            group = self._node.pairwise_secrets(ask.attached)
            if last is not None and not total.header.sealed_tag_secret:
                group.learn_tag_secrets(_headers_in(last.received, contract))
            try:
                step = step + 1
                transcript = group.open_total(total, transcript)[1]
            except ValueError:
                raise self._bad_total() from None
            totals.append(message)
        if ask.position.round != step:
            raise RefusedError("not the next round")
        self._check_cohorts(headers)
        for header in headers:
            group = self._node.pairwise_secrets(ask.attached)
            try:
                if last is not None and not header.sealed_tag_secret:
                    group.learn_tag_secrets(_headers_in(last.received, contract))
                group.agreement(header, transcript)
            except ValueError:
                raise RefusedError("bad key") from None
        seals: list[bytes] = []
        if not headers:
            seals = [message for message in ask.attached if kind_of(message) == SEAL]
        words = self._reasons(ask)
        return (*totals, *(header.as_bytes(contract) for header in headers), *words, *seals)

    def _reasons(self, ask: StepQuestion) -> list[bytes]:
        """Return the words after which a run ends early; refuse to end it without enough."""
        if not self._schedule.is_early(ask.position):
            return []
        words = withdrawals_by_party(ask.attached, ask.position.round, self._contract)
        if len(words) < withdrawals_needed(self._contract):
            raise RefusedError("not the next round")
        return [*words.values()]

    def _check_cohorts(self, headers: list[Header]) -> None:
        """Refuse a cohort without this node, or whose honest parties' noise is not enough."""
        if not all(self._number in header.cohort and self._is_enough(header) for header in headers):
            raise RefusedError("bad cohort")

    def _is_enough(self, header: Header) -> bool:
        """Return True if the shares of noise of a cohort's honest parties are enough."""
        sums = self._contract.planned.sum_at(header.position.round)
        return sums.is_cohort(header.cohort, header.dealer)

    def _bad_total(self) -> RefusedError:
        """Return the refusal of a total without a right tag; stop after too many of them."""
        self._tries += 1
        if self._tries > MOST_TRIES:
            self._node.folder.stop(self._contract)
        return RefusedError("bad total")

    def _may_open(self, total: Total, last: StoredStep | None) -> bool:
        """Return True if a total is of the last attempt that this node answered, or a later one.

        Of sums over neighbours it must be this node's own, of which it has answered no header.
        """
        header = total.header
        for_all = self._contract.has_one_model
        if not self._is_enough(header) or not (for_all or header.dealer == self._number):
            return False
        if last is None or header.position > last.position:
            return True
        if last.position != header.position:
            return False
        if not for_all:
            return True
        return header.common in [answered.common for answered in self._headers_of(last)]

    def _headers_of(self, step: StoredStep) -> list[Header]:
        """Return the headers that were stored with a step."""
        return _headers_in(step.received, self._contract)

    def releases_to_charge(self, position: Position) -> tuple[Release, ...]:
        """Return what an attempt is charged; refuse it over budget."""
        if self._schedule.is_closing(position):
            return ()
        if self._has_spent(position):
            raise RefusedError("over budget")
        kind = self._contract.planned.kind_at(position.round)
        planned = self._contract.planned.allowed_by_kind[kind]
        if self._contract.has_one_model:
            self._warn_of_an_early_end(position, len(planned) - self.spent[kind] - 1)
        return (planned[self._charged_here[kind]],)

    def _reached(self, last: StoredStep | None) -> tuple[int, bytes]:
        """Return the step that this node is in, and the transcript of all steps before it."""
        step = 0
        if last is not None and last.state is not None:
            step = last.position.round
        return step, self._node.transcript_at(last)

    def compute_step(self, channel: SumChannel, step: StoredStep) -> bytes:
        """Take the totals of a stored, charged step, and begin its attempt.

        Noise is drawn from a key of this party for the agreements of the attempt: other agreements,
        other noise.

        Returns
        -------
        The node's parts under masks; at the end its signed seal.
        """
        for message in step.received:
            if kind_of(message) != TOTAL:
                continue
            total = Total.read(message, self._contract)
            if total.header.position.round == channel.step:
                opened, transcript = self._node.pairwise_secrets().open_total(
                    total, channel.transcript
                )
                channel.end_step(opened[None], transcript)
        headers = _headers_in(step.received, self._contract)
        if not headers:
            seal = Seal(step.position, self._number, channel.transcript)
            return seal.signed(self._contract, self._node.folder.signing)
        group = self._node.pairwise_secrets()
        before = channel.transcript
        rehearses = self._node.rehearsal
        agreements = [group.agreement(header, before) for header in headers]
        attempt_key = None
        if not rehearses:
            attempt_key = _key(group, *agreements)
        masked = channel.begin_attempt(attempt_key)
        parts = list[bytes]()
        for header, agreement in zip(headers, agreements, strict=True):
            one_sum = masked
            if not rehearses:
                one_sum = channel.with_noise_of_sum(masked, _key(group, agreement))
            (noisy,) = one_sum.part(group.sum_index(header.dealer))
            parts.append(group.masked_part(header, before, noisy).as_bytes(self._contract))
        return pack(MASKED_PARTS, *parts)

    def restored_channel(self, base: StoredStep | None, steps: list[StoredStep]) -> SumChannel:
        """Return the channel of the node's rounds, at the state that the step `base` stored.

        None of the later `steps` stored a state, so they are not needed.
        """
        node = self._node
        step, transcript = self._reached(base)
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


def _key(group: PairwiseSecrets, *agreements: bytes) -> Key:
    """Return a key of this party alone, for what the parties of an attempt have in common."""
    return Key.seeded(int.from_bytes(group.noise_seed(*agreements), "big"))


def _headers_in(messages: tuple[bytes, ...], contract: Contract) -> list[Header]:
    """Return the headers among messages; none at the end."""
    return [Header.read(message, contract) for message in messages if kind_of(message) == HEADER]

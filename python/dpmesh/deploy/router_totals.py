"""Totals of secure sums: those that the router has, and the parties that lack some of them.

A party that missed totals gets them with its next question. A new router has none. It fetches those
that present parties lack from parties that accepted them, as long as one is present. A party opens
a total only with the tag secret of its dealer, see `dpmesh.deploy.router_secrets`.

A total that a party recalls may be wrong, on purpose or not. Its tag shows that to the party that
lacks it. The router then drops the total, and fetches it from another party.
"""

from __future__ import annotations

from dataclasses import replace

from dpmesh.deploy.attendance import Attendance
from dpmesh.deploy.router_secrets import TagSecrets
from dpmesh.deploy.signing import digest
from dpmesh.deploy.sums import MaskedPart, Total, add_parts
from dpmesh.deploy.wire import totals_question


class Totals:
    """The totals that a router has made or fetched, and what it does for parties that lack some.

    Parameters
    ----------
    router
        The router, as its base class.
    secrets
        The tag secrets that the router has.
    """

    def __init__(self, router: Attendance, secrets: TagSecrets) -> None:
        self._router = router
        self._contract = router.contract
        self._secrets = secrets
        self._has_one_sum = router.contract.has_one_model
        """True for one sum for all parties; False for one for each party over its neighbours."""
        self.by_step: dict[int, list[Total]] = {}
        """The totals of each step: one for all, or one for each party."""
        self._first_step = 0
        """The step that was open when this router started."""
        self._laggards: set[int] = set()
        """Parties that may lack totals of earlier steps, after a restart of this router."""
        self._source: dict[int, int] = {}
        """By step: the party that sent a stored total to this router after its restart."""
        self._distrusted: set[int] = set()
        """Parties that sent stored totals which other parties refused."""
        self.transcripts = [router.contract.hash] * router.contract.nodes
        """In sums over neighbours: the transcript of each party."""
        self._previous_transcripts = self.transcripts
        """The same before the last totals."""

    # Totals of this router

    def add_up(self, step: int, sums: list[list[MaskedPart]]) -> None:
        """Add up the complete sums of a step, and store their totals.

        Parameters
        ----------
        step
            The step.
        sums
            The parts of each sum, in the order of dealers.
        """
        totals = [Total(parts[0].header, *add_parts(parts, self._contract)) for parts in sums]
        self.by_step[step] = totals
        self._source.pop(step, None)
        self._secrets.dealers_of_totals |= {total.header.dealer for total in totals}
        if self._has_one_sum:
            return
        self._previous_transcripts = self.transcripts
        self.transcripts = [
            digest(transcript, parts[0].agreement, total.packed)
            for transcript, parts, total in zip(self.transcripts, sums, totals, strict=True)
        ]

    def take_back(self, step: int) -> list[Total]:
        """Drop the totals of the last step, which no party accepts, and return them."""
        self.transcripts = self._previous_transcripts
        return self.by_step.pop(step)

    def drop_from(self, step: int) -> None:
        """Drop the totals of a step and of all later ones."""
        for dropped in [known for known in self.by_step if known >= step]:
            del self.by_step[dropped]
            self._source.pop(dropped, None)

    # Parties that lack totals

    def first_missing_step(self, party: int) -> int:
        """Return the first step whose total a party lacks."""
        return self._router.progress_of(party).round

    def missing_steps(self, party: int) -> list[int]:
        """Return the steps whose totals a party lacks, and which this router cannot send it yet.

        The router lacks the total, or the party lacks the dealer's tag secret.
        """
        missing_steps = []
        for step in self._steps_before_open_one(party):
            totals = self.by_step.get(step)
            if totals is None:
                missing_steps.append(step)
                continue
            dealer = self._total_for(party, totals).header.dealer
            if not self._secrets.can_open(party, dealer):
                missing_steps.append(step)
        return missing_steps

    def messages_for(self, party: int) -> list[bytes]:
        """Return the totals that a party lacks as messages, each with its sealed tag secret."""
        messages = []
        for step in self._steps_before_open_one(party):
            total = self._total_for(party, self.by_step[step])
            sealed = replace(total, header=self._secrets.attach(total.header, party))
            messages.append(sealed.as_bytes(self._contract))
        return messages

    def _steps_before_open_one(self, party: int) -> range:
        """Return the steps whose totals a party lacks."""
        position = self._router.open_position
        assert position is not None
        return range(self.first_missing_step(party), position.round)

    def _total_for(self, party: int, totals: list[Total]) -> Total:
        """Return the one of a step's totals that a party gets."""
        if self._has_one_sum:
            return totals[0]
        return totals[party]

    def blocking(self, party: int) -> set[int]:
        """Return the parties that hold up another one, as they have totals or secrets it lacks."""
        missing_steps = self.missing_steps(party)
        if not missing_steps:
            return set()
        others = self._router.all_parties - self._router.absent - {party}
        known_steps = [step for step in missing_steps if step in self.by_step]
        dealers = {self.by_step[step][0].header.dealer for step in known_steps}
        asked = {
            other
            for other in others
            if self._first_step_to_fetch(other) is not None
            or self._secrets.dealer_to_relay(other) is not None
        }
        return (dealers & others) | asked

    # Totals that parties have stored

    def start_again(self, step: int) -> None:
        """Note the step at which a new router goes on: parties may lack totals of earlier steps."""
        self._first_step = step
        self._laggards = {*self._router.all_parties}

    def question(self, party: int) -> bytes | None:
        """Return the question for totals that a party has and others lack; None without any."""
        since = self._first_step_to_fetch(party)
        if since is None:
            return None
        return totals_question(self._contract, since)

    def _first_step_to_fetch(self, party: int) -> int | None:
        """Return the first step whose total a party is to send to this router; None without one."""
        self._laggards = {
            laggard
            for laggard in self._laggards
            if self.first_missing_step(laggard) < self._first_step
        }
        if party in self._distrusted:
            return None
        unknown = {
            step
            for laggard in self._laggards - self._router.absent
            for step in self.missing_steps(laggard)
            if step not in self.by_step
        }
        available = {step for step in unknown if step < self.first_missing_step(party)}
        return min(available, default=None)

    def take_stored(self, party: int, messages: tuple[bytes, ...]) -> None:
        """Store totals that a party accepted before this router started.

        Raises
        ------
        ValueError
            If a message is no total.
        """
        for message in messages:
            total = Total.read(message, self._contract)
            step = total.header.position.round
            is_accepted = step < self.first_missing_step(party)
            if self._has_one_sum and is_accepted and step not in self.by_step:
                self.by_step[step] = [replace(total, header=total.header.common)]
                self._secrets.dealers_of_totals.add(total.header.dealer)
                self._source[step] = party

    def drop_fetched_from(self, step: int) -> bool:
        """Drop the totals from a step on that parties sent, and ask these parties for none again.

        Returns
        -------
        True if there are any.
        """
        doubtful = {fetched for fetched in self._source if fetched >= step}
        for fetched in doubtful:
            self._distrusted.add(self._source.pop(fetched))
            del self.by_step[fetched]
        return bool(doubtful)

    def lost_step(self) -> int | None:
        """Return the first step whose total only absent parties have stored; None if there is none.

        A party may have accepted a total, and be lost together with the router that made it.
        """
        router = self._router
        position = router.open_position
        if position is None or not self._has_one_sum or not router.has_quorum:
            return None
        present = router.all_parties - router.absent
        trusted = present - self._distrusted
        reached = max(self.first_missing_step(party) for party in trusted or present)
        unknown = {*range(reached, position.round)} - self.by_step.keys()
        return min(unknown, default=None)

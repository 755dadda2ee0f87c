"""Tag secrets of secure sums: whom the router asks for them, and what it has.

The tag of a total is verified with a *tag secret*. One party, the *dealer*, derives it from its
secrets of the run, and seals it for each other party. The router stores the sealed secrets, and
attaches each to the headers for its party. It cannot read them.

A new router has none of them, and asks dealers again. If the dealer of a stored total is lost,
another party that has the secret seals it for the others (it *relays* the secret).
"""

from __future__ import annotations

from dataclasses import replace

from dpmesh.deploy.attendance import Attendance
from dpmesh.deploy.signing import pack, unpack
from dpmesh.deploy.sums import RELAY_QUESTION, TAG_SECRET_QUESTION, Header
from dpmesh.deploy.wire import int_fields, read_ints


class TagSecrets:
    """The sealed tag secrets that a router has, and the parties that it asks for others.

    Parameters
    ----------
    router
        The router, as its base class.
    """

    def __init__(self, router: Attendance) -> None:
        self._router = router
        self._contract = router.contract
        self._has_one_sum = router.contract.has_one_model
        """True for one sum for all parties; False for one for each party over its neighbours."""
        self._sealed: dict[int, list[bytes]] = {}
        """By dealer: its tag secret, sealed for each party."""
        self.dealers_of_attempt: frozenset[int] = frozenset()
        """Dealers of the open attempt; none at a closing position."""
        self.dealers_of_totals: set[int] = set()
        """Dealers of the totals that the router has stored."""
        self._cannot_deal: set[int] = set()
        """Parties that have erased their secrets, as their run is over. In sums over neighbours,
        others have the tag secrets that these dealt before."""
        self._cannot_relay: set[tuple[int, int]] = set()
        """Pairs of a party, and a dealer whose tag secret this party does not have."""

    # What the router has

    def has(self, dealer: int) -> bool:
        """Return True if the router has a dealer's tag secret, sealed for each party."""
        return dealer in self._sealed

    @property
    def missing_dealers(self) -> set[int]:
        """Dealers of the open attempt whose tag secret has not arrived yet."""
        return {*self.dealers_of_attempt - self._sealed.keys() - self._cannot_deal}

    def can_open(self, party: int, dealer: int) -> bool:
        """Return True if a party has a dealer's tag secret, or this router can send it.

        A party has the secret of the attempt that it answered before this router started.
        """
        if dealer in self._sealed or dealer == party:
            return True
        reached = self._router.reported_progress.get(party)
        if reached is None or not reached.header:
            return False
        return Header.read(reached.header, self._contract).dealer == dealer

    def attach(self, header: Header, party: int) -> Header:
        """Return a header with the tag secret, sealed for a party, if the router has it."""
        if header.dealer not in self._sealed:
            return header  # the party has the secret
        return replace(header, sealed_tag_secret=self._sealed[header.dealer][party])

    # What the router asks for

    def question(self, party: int) -> bytes | None:
        """Return the question for a tag secret that a party is to deal or to relay; None without.

        Signatures of all other parties are attached to the first one: they state the keys for which
        the dealer seals its secret.
        """
        if self._must_deal(party):
            signatures = self._router.signatures.items()
            signed = (message for number, message in signatures if number != party)
            return pack(TAG_SECRET_QUESTION, self._contract.hash, *signed)
        dealer = self.dealer_to_relay(party)
        if dealer is not None:
            return pack(RELAY_QUESTION, self._contract.hash, *int_fields(dealer))
        return None

    def _must_deal(self, party: int) -> bool:
        """Return True if a party is to deal its tag secret."""
        if party in self.missing_dealers:
            return True
        if not self._has_one_sum or self._has_ended(party):
            return False
        return party in self.dealers_of_totals - self._sealed.keys()

    def dealer_to_relay(self, party: int) -> int | None:
        """Return the lost dealer whose tag secret a party is to seal for others; None without one.

        Parties that missed totals need the secret. Parties that accepted these totals have it,
        until they sign the end.
        """
        if not self._has_one_sum or self._has_ended(party):
            return None
        for dealer in sorted(self.dealers_of_totals - self._sealed.keys()):
            if dealer in self._router.absent and (party, dealer) not in self._cannot_relay:
                return dealer
        return None

    def _has_ended(self, party: int) -> bool:
        """Return True if a party has signed the end of the run, and so erased its secrets."""
        return self._router.schedule.is_closing(self._router.progress_of(party))

    # What parties answer

    def take_dealt(self, party: int, answer: bytes) -> bool:
        """Store a dealer's tag secret, sealed for each party; return True if it is one."""
        _, _, number, *sealed = unpack(answer)
        return read_ints(number) == (party,) and self._store(party, sealed)

    def take_relayed(self, party: int, answer: bytes) -> bool:
        """Store a lost dealer's tag secret that a party sealed; return True if it was asked to."""
        _, _, number, *sealed = unpack(answer)
        (dealer,) = read_ints(number)
        return self.dealer_to_relay(party) == dealer and self._store(dealer, sealed)

    def _store(self, dealer: int, sealed: list[bytes]) -> bool:
        """Store a tag secret; return True if there is one sealed copy for each party."""
        if len(sealed) != self._contract.nodes:
            return False
        self._sealed[dealer] = sealed
        return True

    def take_refusal(self, party: int) -> None:
        """Ask a party no more for a tag secret that it does not have.

        In a sum for all, the dealer of the open attempt is waited for until it is late: the next
        attempt then has another dealer.
        """
        if party in self.missing_dealers and not self._has_one_sum:
            self._cannot_deal.add(party)
            return
        dealer = self.dealer_to_relay(party)
        if dealer is not None:
            self._cannot_relay.add((party, dealer))

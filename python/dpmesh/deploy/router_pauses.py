"""Pauses before the router asks parties again whose last answer was of no use."""

from __future__ import annotations

from collections.abc import Iterable

FIRST_PAUSE = 1.0
"""Seconds before a party whose part was wrong is first asked for it again."""


class Pauses:
    """Times until which parties are not asked. Repeated pauses double, up to a longest one.

    Parameters
    ----------
    longest
        Longest pause, in seconds.
    """

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._ask_again_at: dict[int, float] = {}
        """Time at which a party is asked again, by party."""
        self._pause_of_party: dict[int, float] = {}
        """Seconds of the next pause of a party in the open attempt, by party."""
        self._pause_of_all = FIRST_PAUSE
        """Seconds of the last pause of all parties, or `FIRST_PAUSE`."""

    def is_over(self, party: int, now: float) -> bool:
        """Return True if a party may be asked now."""
        return now >= self._ask_again_at.get(party, 0.0)

    def begin_attempt(self) -> None:
        """Begin another attempt: the next pause of each party is short again."""
        self._pause_of_party.clear()

    def pause(self, party: int, now: float) -> bool:
        """Ask a party again only after a pause, which doubles with each one in the open attempt.

        Returns
        -------
        True if it is the party's first pause in the open attempt.
        """
        is_first = party not in self._pause_of_party
        seconds = self._pause_of_party.get(party, FIRST_PAUSE)
        self._pause_of_party[party] = min(2 * seconds, self._longest)
        self._ask_again_at[party] = now + seconds
        return is_first

    def pause_all(self, parties: Iterable[int], now: float) -> float:
        """Ask all parties again only after a pause, twice as long as the last one.

        Returns
        -------
        The pause, in seconds.
        """
        self._pause_of_all = min(2 * self._pause_of_all, self._longest)
        self._ask_again_at = dict.fromkeys(parties, now + self._pause_of_all)
        return self._pause_of_all

    def end_pauses_of_all(self) -> None:
        """Begin the pauses of all parties anew, as a total was accepted."""
        self._pause_of_all = FIRST_PAUSE

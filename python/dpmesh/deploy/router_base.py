"""The interface between a router and its routing: what depends on the messages of a run.

A `dpmesh.deploy.router.Router` knows which parties are present, and which position of the run is
open. All else depends on the run's messages, and is the task of a `Routing`:

- `dpmesh.deploy.router_rows.RowRouting`, if nodes send rows to each other;
- `dpmesh.deploy.router_sums.SumRouting`, if parties add up vectors by secure aggregation.

The router calls `start` once all parties have signed. From then on it asks, for each party, which
question it gets (`question_before_step`, else `next_position` with `attachments`). It passes on
each answer (`handlers`, `take_refusal`), and each end of a deadline (`advance`, `give_up`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from dpmesh.deploy.schedule import Confirmers
from dpmesh.deploy.wire import Position, StepProgress


class Routing(ABC):
    """Base class of routings. A method with a body here does what suits a run of rows.

    Parties are numbers, in the order of the contract.
    """

    handlers: dict[bytes, Callable[[int, bytes], None]]
    """The method that takes an answer of a party, by the answer's kind."""

    # The open position

    @property
    @abstractmethod
    def awaited(self) -> set[int]:
        """Parties that the open position waits for."""

    @property
    def missing_dealers(self) -> set[int]:
        """Parties whose tag secrets the open position waits for, before any other question."""
        return set()

    @property
    @abstractmethod
    def ended(self) -> dict[int, bytes]:
        """The signed last message of each party whose run is over, by party."""

    @abstractmethod
    def start(self) -> None:
        """Open the first position of the run."""

    @abstractmethod
    def advance(self) -> None:
        """Open the next position, or several, as far as the answers so far allow."""

    def give_up(self) -> bool:
        """End the run early, if it cannot go on after a deadline.

        Returns
        -------
        True if the early end has begun.
        """
        return False

    # Questions

    def question_before_step(self, party: int) -> bytes | None:
        """Return a question that comes before a party's next step; None without one."""
        return None

    @abstractmethod
    def next_position(self, party: int) -> Position | None:
        """Return the position that a party is to answer next, if any."""

    @abstractmethod
    def attachments(self, party: int) -> tuple[bytes, ...]:
        """Return the messages attached to a party's question for its next position."""

    def blocking(self, party: int) -> set[int]:
        """Return the parties that hold up another one with what they have stored."""
        return set()

    # Restarts of parties

    @abstractmethod
    def confirmers(self, party: int) -> Confirmers:
        """Return the parties that can confirm a party's start, and how many of them must."""

    @abstractmethod
    def parties_to_confirm(self, party: int) -> set[int]:
        """Return the restarted parties that need the report of this one."""

    @abstractmethod
    def is_cut_off(self, party: int) -> bool:
        """Return True if too few parties are present to confirm a party's start."""

    # Answers

    @abstractmethod
    def check_progress(self, reached: StepProgress) -> None:
        """Fail unless a party can have made the progress that it states.

        Raises
        ------
        ValueError
            If the position is none of the run, or does not fit the message with it.
        """

    @abstractmethod
    def take_stored_totals(self, party: int, totals: tuple[bytes, ...]) -> None:
        """Take totals that a party accepted before this router started."""

    @abstractmethod
    def take_refusal(self, party: int, reason: str) -> None:
        """Go on after a party refused a question."""

"""The server of a secure sum: it carries messages, opens sums, and starts anew after a dropout."""

from __future__ import annotations

from secrets import token_bytes

from dpmesh._validate import fail
from dpmesh.engines.secure.contract import Contract
from dpmesh.engines.secure.messages import Header
from dpmesh.engines.secure.wire import (
    JOIN,
    LEAVE,
    READY,
    Carry,
    answer_in,
    hello_in,
    question,
    question_for_sum,
    ready_in,
)
from dpmesh.privacy.secure import open_sum
from dpmesh.privacy.types import Floats, Released


class Server:
    """Opens one sum after the other over the sites that are left.

    Parameters
    ----------
    contract
        The sites' contract.
    carry
        What delivers questions to the sites; see `Carry`.
    run
        The run's id, fresh for each run; by default a random one.

    Raises
    ------
    RefusedError
        If a site refuses to take part.
    """

    def __init__(self, contract: Contract, carry: Carry, *, run: bytes | None = None) -> None:
        self.contract, self.run = contract, token_bytes(16) if run is None else run
        self.attempts = 0
        self.cohort: tuple[int, ...] = tuple(range(contract.numbers.sites))
        """The sites that are left."""
        self._carry = carry
        said = self._asked(question(JOIN, self.run))
        self._hellos = {own: hello_in(word, own, self.run) for own, word in said.items()}

    def sum(self, step: int, w: Floats) -> Released:
        """Return the noisy sum of the sites' vectors at the model `w`, shape (1, dim).

        A site that is lost is left out of a new attempt, which costs one more release.

        Raises
        ------
        ValueError
            If too few sites are left.
        RefusedError
            If a site refuses.
        """
        while True:
            header = self._header(step)
            self.attempts += 1
            said = self._asked(question_for_sum(header, w))
            if self.cohort == header.cohort:
                answers = {own: answer_in(word)[0] for own, word in said.items()}
                return open_sum(self.contract.numbers, answers)

    def close(self) -> None:
        """End the run at all sites that are left."""
        self._asked(question(LEAVE, self.run))

    def _header(self, step: int) -> Header:
        said = self._asked(question(READY, self.run))
        numbers, cohort = self.contract.numbers, self.cohort
        if len(cohort) < numbers.honest + numbers.colluding:
            least = numbers.honest + numbers.colluding
            fail("sites", f"at least {least} sites that answer", f"{len(cohort)}")
        hellos = tuple(self._hellos[own] for own in cohort)
        readies = tuple(ready_in(said[own], own, self.run) for own in cohort)
        return Header(self.run, step, self.attempts, cohort, hellos, readies)

    def _asked(self, word: bytes) -> dict[int, bytes]:
        """Return what each site that is left says, and forget those that are lost."""
        said = dict(self._carry(dict.fromkeys(self.cohort, word)))
        self.cohort = tuple(own for own in self.cohort if own in said)
        return said

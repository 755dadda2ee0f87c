"""The server of a secure sum: it carries messages, opens sums, and starts anew after a dropout."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from secrets import token_bytes

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail
from dpmesh.engines.secure.contract import Contract
from dpmesh.engines.secure.messages import Header, Hello
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


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Where a server is in its run, from which another one goes on: all of it is public.

    Parameters
    ----------
    run
        The run's id, in hexadecimal digits.
    attempts
        How many were begun.
    cohort
        The sites that are left.
    question
        What was asked of the sites for a sum that is not open yet; empty if nothing.
    """

    run: str
    attempts: int
    cohort: tuple[int, ...]
    question: npt.NDArray[np.uint8]


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
    """

    def __init__(self, contract: Contract, carry: Carry, *, run: bytes | None = None) -> None:
        self.contract, self.run = contract, token_bytes(16) if run is None else run
        self.attempts = 0
        self.cohort: tuple[int, ...] = tuple(range(contract.numbers.sites))
        """The sites that are left."""
        self._carry, self._question, self._hellos = carry, b"", dict[int, Hello]()

    @property
    def asked(self) -> Asked:
        """What another server needs to go on from here."""
        question = np.frombuffer(self._question, np.uint8)
        run = self.run.hex()
        return Asked(run=run, attempts=self.attempts, cohort=self.cohort, question=question)

    def go_on(self, from_here: Asked) -> None:
        """Go on where another server stopped: what it asked last is asked again, at no cost."""
        self.run, self.attempts = bytes.fromhex(from_here.run), from_here.attempts
        self.cohort, self._question = tuple(from_here.cohort), from_here.question.tobytes()

    def sum(self, step: int, w: Floats, save: Callable[[], object] = dict) -> Released:
        """Return the noisy sum of the sites' vectors at the model `w`, shape (1, dim).

        A site that is lost is left out of a new attempt, which costs one more release.

        Parameters
        ----------
        step
            The round.
        w
            The model.
        save
            Called before sites are asked, to store `asked`.

        Raises
        ------
        ValueError
            If too few sites are left.
        RefusedError
            If a site refuses.
        """
        while True:
            if not self._question:
                self._question = question_for_sum(self._header(step), w)
                self.attempts += 1
                save()
            cohort, said = self.cohort, self._asked(self._question)
            self._question = b""
            if self.cohort == cohort:
                answers = {own: answer_in(word)[0] for own, word in said.items()}
                return open_sum(self.contract.numbers, answers)

    def close(self, model: Floats | None = None) -> None:
        """End the run at all sites that are left, and send them the model, if there is one."""
        fields = [] if model is None else [model.astype("<f8").tobytes()]
        self._asked(question(LEAVE, self.run, *fields))

    def _header(self, step: int) -> Header:
        if not self._hellos:
            said = self._asked(question(JOIN, self.run))
            self._hellos = {own: hello_in(word, own, self.run) for own, word in said.items()}
        said = self._asked(question(READY, self.run))
        numbers, cohort = self.contract.numbers, self.cohort
        if len(cohort) < numbers.honest + numbers.colluding:
            least = numbers.honest + numbers.colluding
            fail("sites", f"at least {least} sites that answer", f"{len(cohort)}")
        hellos = tuple(self._hellos[own] for own in cohort)
        readies = tuple(ready_in(said[own], own, self.run) for own in cohort)
        return Header(self.run, step, self.attempts, cohort, hellos, readies)

    def _asked(self, word: bytes) -> dict[int, bytes]:
        """Return the answer of each site that is left, and forget those that are lost."""
        said = dict(self._carry(dict.fromkeys(self.cohort, word)))
        self.cohort = tuple(own for own in self.cohort if own in said)
        return said

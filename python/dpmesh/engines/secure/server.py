"""The server of a secure sum: it carries messages, opens sums, and starts anew after a dropout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from secrets import token_bytes
from typing import Protocol, TypeVar

from dpmesh._validate import fail
from dpmesh.engines.secure.contract import Contract
from dpmesh.engines.secure.messages import Header, Hello, Ready
from dpmesh.privacy.secure import open_sum
from dpmesh.privacy.types import Floats, Released

T = TypeVar("T")


class SiteLostError(ConnectionError):
    """A site does not answer, and will not for the rest of the run."""


class Answering(Protocol):
    """A site, or what carries messages to it; each method raises `SiteLostError` if it is gone."""

    own: int

    def join(self, run: bytes) -> Hello:
        """Start a run."""
        ...

    def ready(self, run: bytes) -> Ready:
        """Say that it takes part in the next attempt."""
        ...

    def answer(self, header: Header, w: Floats) -> bytes:
        """Return its vector under masks."""
        ...

    def leave(self, run: bytes) -> None:
        """End the run."""
        ...


class Server:
    """Opens one sum after the other over the sites that are left.

    Parameters
    ----------
    contract
        The sites' contract.
    sites
        All of them.
    run
        The run's id, fresh for each run; by default a random one.
    """

    def __init__(
        self, contract: Contract, sites: Sequence[Answering], *, run: bytes | None = None
    ) -> None:
        self.contract, self.run = contract, token_bytes(16) if run is None else run
        self.attempts = 0
        self._sites: dict[int, Answering] = {site.own: site for site in sites}
        self._hellos = {own: site.join(self.run) for own, site in self._sites.items()}

    @property
    def cohort(self) -> tuple[int, ...]:
        """The sites that are left."""
        return tuple(sorted(self._sites))

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
            answers = self._asked(partial(_answer, header, w))
            if len(answers) == len(header.cohort):
                return open_sum(self.contract.numbers, answers)

    def close(self) -> None:
        """End the run at all sites that are left."""
        for site in self._sites.values():
            site.leave(self.run)

    def _header(self, step: int) -> Header:
        readies = self._asked(lambda site: site.ready(self.run))
        cohort = self.cohort
        numbers = self.contract.numbers
        if len(cohort) < numbers.honest + numbers.colluding:
            least = numbers.honest + numbers.colluding
            fail("sites", f"at least {least} sites that answer", f"{len(cohort)}")
        hellos = tuple(self._hellos[own] for own in cohort)
        said = tuple(readies[own] for own in cohort)
        return Header(self.run, step, self.attempts, cohort, hellos, said)

    def _asked(self, question: Callable[[Answering], T]) -> dict[int, T]:
        """Return what each site that is left says, and forget those that are lost."""
        said = {}
        for own, site in [*self._sites.items()]:
            with suppress(SiteLostError):
                said[own] = question(site)
        self._sites = {own: self._sites[own] for own in said}
        return said


def _answer(header: Header, w: Floats, site: Answering) -> bytes:
    return site.answer(header, w)

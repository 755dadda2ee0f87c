"""What sites and server send each other. None of it depends on data but a site's answer.

A `Hello` opens a site's run, a `Ready` states that it takes part in the next attempt, and a
`Header` states who does. The answer to a header is bytes that `privacy.secure.answer` made.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpmesh.engines.secure.contract import Contract
from dpmesh.engines.secure.run_secrets import PREFIX
from dpmesh.engines.signing import KEY_BYTES, SigningKey, digest, is_signed
from dpmesh.privacy.types import Floats


class RefusedError(ValueError):
    """A site does not answer. The reason depends on public numbers alone."""


@dataclass(frozen=True)
class Hello:
    """A site's public key of one run, signed by its long-term key."""

    site: int
    run: bytes
    key: bytes
    signature: bytes

    @classmethod
    def signed(
        cls, contract: Contract, site: int, run: bytes, key: bytes, signing: SigningKey
    ) -> Hello:
        """Return the hello of a site."""
        fields = _hello_fields(contract, site, run, key)
        return cls(site, run, key, signing.sign(*fields))

    def check(self, contract: Contract, run: bytes) -> None:
        """Refuse a key of another run or contract, of nobody, or that its site did not sign."""
        public = _site_key(contract, self.site)
        fields = _hello_fields(contract, self.site, run, self.key)
        if self.run != run or not is_signed(public, self.signature, *fields):
            raise RefusedError(f"the key of site {self.site} is not signed by it for this run")
        if len(self.key) != KEY_BYTES or not any(self.key):
            raise RefusedError(f"the key of site {self.site} is no X25519 key")


@dataclass(frozen=True)
class Ready:
    """A site's word that it takes part, with what it knows of the run so far, signed."""

    site: int
    run: bytes
    last_attempt: int
    spent: int
    signature: bytes

    @classmethod
    def signed(
        cls,
        contract: Contract,
        site: int,
        run: bytes,
        last_attempt: int,
        spent: int,
        signing: SigningKey,
    ) -> Ready:
        """Return the word of a site."""
        fields = _ready_fields(contract, site, run, last_attempt, spent)
        return cls(site, run, last_attempt, spent, signing.sign(*fields))

    def check(self, contract: Contract, run: bytes) -> None:
        """Refuse a word of another run or contract, or that its site did not sign."""
        fields = _ready_fields(contract, self.site, run, self.last_attempt, self.spent)
        public = _site_key(contract, self.site)
        if self.run != run or not is_signed(public, self.signature, *fields):
            raise RefusedError(f"the word of site {self.site} is not signed by it for this run")


@dataclass(frozen=True)
class Header:
    """Who takes part in an attempt at a sum.

    Parameters
    ----------
    run
        The run's id, which no site has seen before.
    step
        The round, t.
    attempt
        Counts attempts over the whole run, a.
    cohort
        The sites that take part, U, in increasing order.
    hellos, readies
        Those of the cohort, in its order.
    """

    run: bytes
    step: int
    attempt: int
    cohort: tuple[int, ...]
    hellos: tuple[Hello, ...]
    readies: tuple[Ready, ...]

    def digest(self, contract: Contract, w: Floats) -> bytes:
        """Return H: the digest of everything on which the sites of the cohort must agree."""
        numbers = contract.numbers
        public = [self.step, self.attempt, len(self.cohort), *self.cohort]
        public += [numbers.modulus_bits, numbers.steps]
        keys = [part for hello in self.hellos for part in (hello.key, hello.signature)]
        words = [
            part
            for ready in self.readies
            for part in (_number(ready.last_attempt), _number(ready.spent), ready.signature)
        ]
        model = np.ascontiguousarray(w)
        return digest(
            contract.hash,
            self.run,
            *map(_number, public),
            numbers.share.hex().encode(),
            str(model.dtype).encode(),
            digest(model.tobytes()),
            *keys,
            *words,
        )

    def check(self, contract: Contract) -> None:
        """Refuse a cohort that is too small, or whose keys and words are not its sites' own."""
        for name, value in (("round", self.step), ("attempt", self.attempt)):
            if not isinstance(value, int) or not 0 <= value < 2**32:
                raise RefusedError(f"the {name} is no integer from 0 to 2**32 - 1")
        sites = tuple(range(contract.numbers.sites))
        if tuple(sorted(set(self.cohort) & set(sites))) != self.cohort:
            raise RefusedError(f"the cohort {self.cohort} is no list of sites in increasing order")
        try:
            contract.numbers.check_cohort(len(self.cohort))
        except ValueError as error:
            raise RefusedError(str(error)) from None
        parts: tuple[Hello | Ready, ...]
        for name, parts in (("keys", self.hellos), ("words", self.readies)):
            if tuple(part.site for part in parts) != self.cohort:
                raise RefusedError(f"the {name} are not those of the cohort, in its order")
        for hello in self.hellos:
            hello.check(contract, self.run)
        for ready in self.readies:
            ready.check(contract, self.run)
        keys = [hello.key for hello in self.hellos]
        if len(set(keys)) < len(keys):
            raise RefusedError("two sites have the same key")


def _hello_fields(contract: Contract, site: int, run: bytes, key: bytes) -> tuple[bytes, ...]:
    return PREFIX + b"key", contract.hash, run, _number(site), key


def _ready_fields(
    contract: Contract, site: int, run: bytes, last_attempt: int, spent: int
) -> tuple[bytes, ...]:
    known = map(_number, (site, last_attempt, spent))
    return PREFIX + b"ready", contract.hash, run, *known


def _site_key(contract: Contract, site: int) -> bytes:
    if not isinstance(site, int) or not 0 <= site < contract.numbers.sites:
        raise RefusedError(f"there is no site {site}")
    return contract.site_keys[site]


def _number(value: int) -> bytes:
    return value.to_bytes(8, "big", signed=True)

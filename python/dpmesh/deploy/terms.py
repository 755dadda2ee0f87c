"""The tables [[party]] and [contract] of a contract's file: its parties, and its terms."""

from __future__ import annotations

import re
import reprlib
from dataclasses import dataclass
from typing import Literal

from dpmesh._validate import fail, integer, positive, probability
from dpmesh.deploy.signing import KEY_BYTES, is_public_key

MOST_ROUNDS, LONGEST_NAME = 100_000, 64
MOST_FEATURES, MOST_RECORDS = 2**31, 2**31
LONGEST_ROW = {"float64": 1e30, "float32": 1e10}


@dataclass(frozen=True, kw_only=True)
class Party:
    """A party of a contract: a data holder, such as a hospital.

    Parameters
    ----------
    name
        Name of the party in messages and reports, and of its files. It has at most 64 characters,
        and begins with a letter or a digit.
    signing_key
        Public Ed25519 key of the party, 64 hexadecimal digits, as ``dpmesh contract keys`` prints
        it.
    records
        Number of the party's records, from 1 to 2^31 - 1. It is public.
    epsilon
        The largest epsilon that the contract may have for the party's records; positive.
    delta
        The delta of this epsilon, from 0 to less than 1 / `records`.

    Raises
    ------
    ValueError
        If an argument is out of its range, or anybody could sign under the key.

    Examples
    --------
    >>> import dpmesh as dm
    >>> public = dm.deploy.SigningKey.generate().public.hex()
    >>> terms = {"records": 180, "epsilon": 2.0, "delta": 1e-5}
    >>> dm.deploy.Party(name="north", signing_key=public, **terms).records
    180
    """

    name: str
    signing_key: str
    records: int
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        sound = len(self.name) <= LONGEST_NAME and self.name.isprintable()
        if not sound or not re.fullmatch(r"\w[^/\\,:]*", self.name):
            expected = "a text that begins with a letter or a digit, without / \\ , or :"
            fail("name", f"{expected}, of at most {LONGEST_NAME}", reprlib.repr(self.name))
        _hexadecimal("signing_key", self.signing_key)
        if not is_public_key(self.public_key):
            got = f"{self.signing_key}, under which anybody could sign"
            fail("signing_key", "an Ed25519 key, as dpmesh contract keys prints it", got)
        integer("records", self.records, at_least=1, below=MOST_RECORDS)
        positive("epsilon", self.epsilon)
        if probability("delta", self.delta, one=False) * self.records >= 1:
            fail("delta", "less than 1 / records, which would allow publishing one", self.delta)

    @property
    def public_key(self) -> bytes:
        """The public key, 32 bytes."""
        return bytes.fromhex(self.signing_key)


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Terms of a contract: rounds, quorum, deadline and formats, as in its table [contract].

    Parameters
    ----------
    rounds
        Number of rounds, from 1 to 100,000.
    public_key
        Seed of all public randomness (topology, turns, initial models), 64 hexadecimal digits. It
        is no key of signatures. No noise is drawn from it, except in a rehearsal.
    largest_row
        Largest L2 norm of a row that a node accepts or sends. It has no effect on secure sums.
    deadline
        Seconds after which a message counts as missing.
    quorum
        Fewest parties with which a round goes on, more than half of all parties. A smaller quorum
        also lets more parties be silent when a node's start must be confirmed. With secure
        aggregation it must be the number of parties minus the algorithm's `dropouts`, if any.
    features
        Number of features of a record. If the contract has public ranges of columns, the name of
        the feature map (`dpmesh.tables.features`); by default ``"columns"``, the columns unchanged.
    label
        Name of the column to predict, if the contract has ranges; or names of several columns, each
        a flag or a column of two classes.
    numbers
        Type of all numbers in rows and models.
    """

    rounds: int
    public_key: str
    deadline: float
    quorum: int
    largest_row: float = 1e10
    features: int | str | None = None
    label: str | tuple[str, ...] | None = None
    numbers: Literal["float64", "float32"] = "float64"

    def __post_init__(self) -> None:
        integer("rounds", self.rounds, at_least=1, below=MOST_ROUNDS + 1)
        _hexadecimal("public_key", self.public_key)
        if positive("largest_row", self.largest_row) > LONGEST_ROW[self.numbers]:
            fail("largest_row", f"at most {LONGEST_ROW[self.numbers]:g}", self.largest_row)
        positive("deadline", self.deadline)
        integer("quorum", self.quorum, at_least=2)
        if isinstance(self.features, int):
            integer("features", self.features, at_least=1, below=MOST_FEATURES)


def _hexadecimal(name: str, value: str) -> None:
    if len(value) != 2 * KEY_BYTES or set(value) - set("0123456789abcdef"):
        fail(name, f"{2 * KEY_BYTES} hexadecimal digits (0-9, a-f)", repr(value))

"""What a run sent."""

from __future__ import annotations

from typing import NamedTuple


class Traffic(NamedTuple):
    """What crossed the network.

    Attributes
    ----------
    messages
        Number of messages over links.
    bits
        Their length together, as encoded.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.run.Traffic(messages=10, bits=64_000_000).megabytes
    8.0
    """

    messages: int
    bits: int

    def __add__(self, other: Traffic) -> Traffic:  # type: ignore[override]
        return Traffic(self.messages + other.messages, self.bits + other.bits)

    @property
    def megabytes(self) -> float:
        """Length in 10**6 bytes."""
        return self.bits / 8e6

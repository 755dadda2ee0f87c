"""Messages that a round yields, to be released and carried, and their communication pattern."""

from __future__ import annotations

from collections.abc import Generator
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from dpmesh._privacy_types import Floats, Released, Sensitive
from dpmesh._ragged import Indices
from dpmesh.noise.compression import Compressor
from dpmesh.privacy.releases import Release

StateT = TypeVar("StateT")

Travel: TypeAlias = Literal["gossip", "server", "token", "sums"]
"""How messages travel: to the neighbours of a network, to everybody from a server, with a token
that one node after another holds, or in sums over neighbours whose parts nobody sees."""

Releases: TypeAlias = "Release | tuple[Release, ...]"
"""Releases of a message or of a round.

Several of one message name disjoint nodes; several of a round may also be those of its messages, in
their order."""


ROW_EACH: tuple[Travel, ...] = ("gossip", "sums")
"""The travels by which each node receives a row of its own."""


class Message(NamedTuple):
    """A message of the nodes: the loop releases it, carries it, and returns the received rows.

    Attributes
    ----------
    values
        Shape (rows, dim): private values, a row for each node unless `rows` or `sender` differ.
        None if the sender releases nothing now, or is on another machine.
    release
        The public record of its release; a tuple if the nodes' noise or sensitivity differ.
    compressor
        If given, it compresses what was released, at no privacy cost.
    sender
        The only node that sends, where messages travel with a token.
    rows
        Shape (rows,): the numbers of the rows among all that nodes could send in a round, if not
        0, 1, ..: each number has noise of its own.
    among
        How many rows a sender has, of which `rows` are released now. The received array has all of
        them, with NaN in the others; it is None if the sender released nothing.
    unit
        Factor on the sensitivity and the noise of `release`: a number, or one for each row, shape
        (rows, 1). The values are divided by it before the noise, and multiplied by it after.
    copies
        How many messages the clients and a server exchange for it.
    bits
        Length of all copies together, if it is not that of the values in their type.
    travels
        False if it is only to be released: the answer is then what was released, not what arrived,
        and a `Relay` lets it travel.
    unmixed
        True if gossip carries the rows of all nodes to all nodes without mixing them.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> algorithm = dm.GradientDescent(records=100, noise_multiplier=4.0)
    >>> message = dm.algorithms.Message(np.zeros((4, 3)), algorithm.release_of(1))
    >>> message.release.round
    1
    """

    values: Sensitive | None
    release: Releases
    compressor: Compressor | None = None
    sender: int | None = None
    rows: Indices | None = None
    among: int | None = None
    unit: float | Floats = 1.0
    copies: int | None = None
    bits: int | None = None
    travels: bool = True
    unmixed: bool = False


class Relay(NamedTuple):
    """Send the last received rows again, such as for a second mixing, at no privacy cost.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.algorithms.Relay()
    Relay()
    """


Round: TypeAlias = Generator["Message | Relay", Released, StateT]
"""A round: a generator of messages that is sent the received rows, shape (nodes, dim).

It returns the next state."""

"""Messages that a round yields, to be released and carried, and their communication pattern.

A round of an algorithm is a generator. It yields a `Message` of private rows (model vectors) with
the `Release` that describes its noise. The run (`dpmesh.run.channel`) adds the noise, records the
release in its ledger, carries the rows, and sends the received rows back into the generator.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Literal, NamedTuple, TypeAlias, TypeVar

from dpmesh._privacy_types import Floats, Released, Sensitive
from dpmesh._ragged import Indices
from dpmesh.noise.compression import Compressor
from dpmesh.privacy.releases import Release

StateT = TypeVar("StateT")

Communication: TypeAlias = Literal["gossip", "server", "token", "sums"]
"""Communication pattern of an algorithm.

- ``"gossip"``: each node sends to its neighbours in a network, and receives a weighted average.
- ``"server"``: a server sends the released rows, or their sum by secure aggregation, to all nodes.
- ``"token"``: one node at a time holds the token, updates the model and sends it to all nodes.
- ``"sums"``: each node learns the sum of its neighbours' rows by secure aggregation.
"""

Releases: TypeAlias = "Release | tuple[Release, ...]"
"""The release of a message or of a round; or a tuple of releases.

Where noise or sensitivity differ between nodes, a message has several releases, for disjoint sets
of nodes. Where a round yields several messages, their releases are in the order of the messages."""


ROW_EACH: tuple[Communication, ...] = ("gossip", "sums")
"""Communication patterns in which each node receives a different row."""


class Message(NamedTuple):
    """A message of the nodes, which a round yields to have it released and carried.

    The run adds noise to the rows, records the release, carries the rows, and sends the received
    rows back into the round.

    Attributes
    ----------
    values
        Private rows before noise, shape (rows, dim). There is one row for each node, unless `rows`
        or `sender` is set. None if the sender releases nothing in this round, or if it runs in
        another process.
    release
        Public description of the release: mechanism, sensitivity and sampling. A tuple, for
        disjoint nodes, if the noise or the sensitivity of nodes differ.
    compressor
        Compressor of the released rows, such as a quantizer: post-processing, without epsilon.
        None for no compression.
    sender
        Index of the only node that sends, in an algorithm with a token. None for all nodes.
    rows
        Indices of the rows, shape (rows,), among all rows that the nodes together may send in a
        round. A row's index selects its stream of noise. None for 0, 1, ..
    row_count
        Number of rows that a sender has; None for 1. If the sender releases only some of them (see
        `rows`), the round receives an array of all of them, with NaN in the others. If it releases
        none, the round receives None.
    scale_factor
        Positive factor on the sensitivity and on the noise of `release`: a number, or one number
        for each row, shape (rows, 1). The values are divided by it before the noise is added, and
        the noisy values are multiplied by it.
    copies
        Number of messages that nodes and server exchange in all, for the count of traffic. None if
        each node sends one.
    bits
        Total length of all copies in bits. None for the length of the values in their dtype.
    is_sent
        False to add the noise without sending: each node receives its own noisy row alone, and may
        send it later by a `Relay`.
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
    row_count: int | None = None
    scale_factor: float | Floats = 1.0
    copies: int | None = None
    bits: int | None = None
    is_sent: bool = True
    unmixed: bool = False


class Relay(NamedTuple):
    """A request to send the last received rows again, for example to mix them a second time.

    It is post-processing of released rows: it has no epsilon.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.algorithms.Relay()
    Relay()
    """


Round: TypeAlias = Generator["Message | Relay", Released, StateT]
"""A round: a generator that yields messages, and returns the next state.

After each message it is sent the received rows: one for each node by gossip, shape (nodes, dim),
else the released rows or their sum, which all nodes receive."""

"""Keys and streams, the source of all random numbers of this package.

A `Key` is a secret of 256 bits. It opens a `Stream` for each purpose and round. A stream holds one
sequence of random 32-bit words for each node. A random number therefore depends only on its key,
purpose, round, node and index in the sequence, and not on the order of the calls, the number of
threads or the engine.

>>> key = Key.generate()
>>> stream = key.stream(Purpose.NOISE, round=3)
>>> stream
Stream(cipher='aes', is_seeded=False)

The words are the key stream of a cipher: AES-256 in counter mode (the default; fastest on
processors with AES instructions, with the same bits on others) or ChaCha20. Neither Python nor a
pickle ever sees the key.

- ``Key.generate(cipher="aes")`` draws the key from the operating system. A private release needs
  such a key.
- ``Key.seeded(seed, cipher="aes")`` computes the key from an integer below 2**256, for runs that
  others can repeat. Whoever knows the seed can subtract the noise: a seeded run is NOT private.
  ``is_seeded`` of the key and of its streams is then True.
- ``key.for_nodes(nodes)`` is the same key for a process that holds only some of the nodes.
  ``nodes`` is an array of their distinct indices, uint32. Row r of a draw is then the row that node
  ``nodes[r]`` has where one process holds all nodes. The argument ``nodes`` of a draw indexes into
  this array.
- ``key.derive(data)`` is another key, computed from this key and the bytes ``data``. Without this
  key, keys for different bytes look independent, under standard cryptographic assumptions.
- One key may be used for any number of runs, in any number of processes. If two runs had equal
  noise, the difference of their releases would have none. A run therefore mixes 256 fresh bits into
  a key from the operating system, and keeps these bits in its checkpoint. A seeded run uses the key
  unchanged, so that it can be repeated and compared.
- ``key.save(path)`` writes a key from the operating system into a new file that only its owner can
  read, and ``Key.load(path)`` reads it, to resume a run. Protect the file like the data, and delete
  it when the run is over: whoever has the file can subtract the noise.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from dpmesh._core import Key, Stream
from dpmesh._validate import instance

__all__ = ["Key", "Purpose", "Stream", "fingerprint", "generator"]


A_KEY = "a Key, such as Key.generate() or Key.seeded(1)"
"""Description of a key in errors."""


class Purpose(IntEnum):
    """Purpose of a stream of random numbers, such as noise or sampling.

    Two uses of one key must differ in purpose, round or node: otherwise they draw the same numbers.
    Custom streams may have any integer from 100 to 2**32 - 1 as their purpose. Lower ones are
    reserved.

    Examples
    --------
    >>> import dpmesh as dm
    >>> stream = dm.Key.seeded(0).stream(dm.keys.Purpose.NOISE, 1)
    >>> dm.kernels.gaussian((4, 3), 1.0, stream).shape
    (4, 3)
    """

    NOISE = 1
    """Noise of releases."""
    QUANTIZE = 2
    """Random rounding of quantization, and other coins of compression."""
    SAMPLE = 3
    """Sampling of clients, nodes or records."""
    INIT = 4
    """Initial models, and further keys derived from a seeded key."""
    SPLIT = 5
    """Division of records into training, test, and nodes."""
    TOPOLOGY = 6
    """Random networks."""
    CONTROLLER = 7
    """Decisions of controllers."""
    NETWORK = 8
    """Failures and delays of a simulated network."""
    AUDIT = 9
    """Coins and canaries of audits."""
    METRIC = 10
    """Draws of a metric."""
    BATCHES = 11
    """Order of records in mini-batches."""
    CHECKPOINT = 12
    """Public identifier of a key (`fingerprint`), in checkpoints."""
    SHARED = 13
    """Random numbers that several nodes share."""
    PAIR = 14
    """Noise or masks that two nodes share."""
    ALLOCATION = 15
    """Steps to which random allocation assigns records."""


def generator(key: Key, purpose: int, round: int = 0, node: int = 0) -> np.random.Generator:
    """Return a numpy generator for draws other than privacy noise: shuffles, splits, graphs.

    Its seed is the first 256 bits of the stream of `key` for (`purpose`, `round`, `node`). Equal
    arguments give equal draws, within one version of numpy.

    Parameters
    ----------
    key
        Key from which the numbers follow.
    purpose
        A `Purpose`, or a custom integer from 100 to 2**32 - 1 that no other stream has.
    round, node
        Integers from 0 to 2**32 - 1.

    Raises
    ------
    ValueError
        If `key` is not a key, or an integer is out of its range.

    Examples
    --------
    >>> import dpmesh as dm
    >>> draw = dm.keys.generator(dm.Key.seeded(1), dm.keys.Purpose.SPLIT)
    >>> int(draw.integers(6))
    5
    """
    instance("key", key, A_KEY, Key)
    words = np.empty(8, dtype=np.uint32)
    key.stream(purpose, round).words(node, words)
    return np.random.default_rng(np.random.SeedSequence(words.tolist(), pool_size=8))


def fingerprint(key: Key) -> str:
    """Return a public identifier of a key: its cipher and 128 bits of one of its streams.

    It reveals nothing about a key from the operating system, under standard cryptographic
    assumptions. It can confirm a guess of the seed of a seeded key.

    Returns
    -------
    A string such as ``"aes-"`` with 32 hexadecimal digits.

    Examples
    --------
    >>> import dpmesh as dm
    >>> len(dm.keys.fingerprint(dm.Key.generate()))
    36
    """
    instance("key", key, A_KEY, Key)
    words = np.empty(4, dtype=np.uint32)
    key.stream(Purpose.CHECKPOINT).words(0, words)
    return f"{key.cipher}-{words.astype('<u4').tobytes().hex()}"

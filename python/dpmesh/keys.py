"""Keys and streams, the source of all random numbers of this package.

A `Key` is a secret of 256 bits. It opens a `Stream` for each purpose and round, and a stream holds
one sequence of random words for each node, so that a number depends on (key, purpose, round, node,
place) and on nothing else: not on the order of the calls, the number of threads or the engine.

>>> key = Key.generate()
>>> stream = key.stream(Purpose.NOISE, round=3)
>>> stream
Stream(cipher='aes', is_seeded=False)

The words are the key stream of a cipher: AES-256 in counter mode (the default; fastest on
processors with AES instructions, with the same bits on others) or ChaCha20. Neither Python nor a
pickle ever sees the key.

- ``Key.generate(cipher="aes")`` takes the key from the operating system, as a release needs.
- ``Key.seeded(seed, cipher="aes")`` takes it from an integer below 2**256, for runs that others can
  repeat. Whoever knows the seed can subtract the noise: a seeded run is not a private release, and
  ``is_seeded`` of the key and of its streams states it.
- ``key.for_nodes(nodes)`` is the same key for a process that holds some of the nodes. ``nodes``
  lists their numbers, which are distinct and uint32. Row r of a draw is what ``nodes[r]`` would
  draw where all nodes are in one process. The argument ``nodes`` of a draw indexes into this list.
- ``key.derive(data)`` is another key, which only those know who have this one and these bytes. Keys
  derived from different bytes are independent.
- Two runs with the same noise have none in the difference of their releases. So a run mixes 256
  fresh bits into a key from the operating system, and keeps them in its checkpoint: one key may
  serve any number of runs, in any number of processes. Seeded runs, which are not private anyway,
  take the key as it is, to be repeated and compared.
- ``key.save(path)`` writes a key from the operating system into a new file that only its owner can
  read, and ``Key.load(path)`` reads it: for a run that is to be resumed. Protect the file like the
  data, and delete it when the run is over: whoever has it can subtract the noise.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from dpmesh._core import Key, Stream
from dpmesh._validate import instance

__all__ = ["Key", "Purpose", "Stream", "fingerprint", "generator"]


A_KEY = "a Key, such as Key.generate() or Key.seeded(1)"


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
    """Coins of quantization and compression."""
    SAMPLE = 3
    """Who takes part, or which records are drawn."""
    INIT = 4
    """Initial models, and further keys made of a seeded one."""
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
    """Identity of a run in its checkpoints."""
    SHARED = 13
    """Draws that several nodes share."""
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
    """Return a public identifier of a key, 128 bits as a string of 36 characters.

    It is a part of a stream of the key: without the key it is indistinguishable from random bits,
    under standard cryptographic assumptions. The seed of a seeded key can be guessed and checked.

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

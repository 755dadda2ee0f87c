"""What makes a run the one it is: under one key, runs that differ in it draw the same noise."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
from scipy import sparse

from dpmesh._validate import fail
from dpmesh.data import Dataset
from dpmesh.keys import Key, fingerprint
from dpmesh.simulator.functions import code_checksum

if TYPE_CHECKING:
    from dpmesh.topology import MixingMatrix, Topology

Identity = dict[str, str]

_served: dict[str, Identity] = {}
"""The runs of this process's keys, but for seeded ones, by the keys' fingerprints."""


def identity(
    algorithm: object,
    problem: object,
    topology: Topology | None,
    network: object,
    rounds: int,
) -> Identity:
    """Return what releases depend on, beside the key: in words, and checksums of what is long.

    What is private is in checksums alone.
    """
    links = "" if topology is None else f", links {_links(topology, rounds):08x}"
    settings = _in_words(problem, leave_out="test")  # which changes no release
    return {
        "algorithm": _in_words(algorithm),
        "topology": _without_addresses(topology) + links,
        "network": _without_addresses(network),
        "problem": f"{_data(problem, crc32(settings.encode())):08x}",
    }


def claim(key: Key, run: Identity) -> None:
    """Let a key serve this run, and in this process no other.

    Raises
    ------
    ValueError
        If it has served another one: the difference of what the two release has no noise.
    """
    served = _served.setdefault(fingerprint(key), run)
    differing = [name for name in run if run[name] != served[name]]
    if differing:
        got = f"that of a run with another {differing[0]}"
        fail("key", "a new one, or a seeded one for runs that are not private", got)


def _without_addresses(value: object) -> str:
    """Return what is the same in another process: a function prints with its place in memory."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


def _in_words(value: Any, leave_out: str = "") -> str:
    """Return what prints of a value; with checksums of a dataclass's arrays and functions."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {value.shape}, {crc32(value.tobytes()):08x}"
    if is_dataclass(value) and not isinstance(value, (type, Dataset)):
        told = (
            f"{field.name}={_in_words(getattr(value, field.name))}"
            for field in fields(value)
            if field.repr and field.name != leave_out
        )
        return f"{type(value).__name__}({', '.join(told)})"
    if (code := code_checksum(value)) is not None:
        return f"{getattr(value, '__name__', 'function')} {code:08x}"
    return _without_addresses(repr(value))


def _data(problem: object, found: int) -> int:
    """Return a checksum, begun by `found`, of a problem's records and whose they are, if shown."""
    train, partition = getattr(problem, "train", None), getattr(problem, "partition", None)
    if not isinstance(train, Dataset) or partition is None:
        return found
    sizes = [len(part) for part in partition]
    for array in (*_arrays(train.features), train.labels, sizes, *partition):
        found = crc32(np.ascontiguousarray(array).data, found)
    return found


def _links(topology: Topology, rounds: int) -> int:
    """Return a checksum of the first two graphs, and of what our own later ones are made from."""
    found = crc32(" ".join(_sources(topology)).encode())
    for t in range(min(2, rounds)):
        found = _weights(topology.matrix(t), found)
    return found


def _weights(matrix: MixingMatrix, found: int = 0) -> int:
    """Return a checksum, begun by `found`, of a mixing matrix."""
    for array in _arrays(matrix.weights):
        found = crc32(np.ascontiguousarray(array).data, found)
    return found


def _sources(value: object) -> Iterator[str]:
    """Return what a network that is drawn, or taken from a list, is made from."""
    from dpmesh.topology import MixingMatrix, Varying

    if isinstance(value, Key):
        yield fingerprint(value)
    elif isinstance(value, MixingMatrix):
        yield str(_weights(value))
    elif isinstance(value, tuple):
        for part in value:
            yield from _sources(part)
    elif isinstance(value, Varying) and isinstance(value.draw, partial):
        yield from _sources(value.draw.args)


def _arrays(x: Any) -> tuple[Any, ...]:
    return (x.data, x.indices, x.indptr) if isinstance(x, sparse.csr_array) else (x,)

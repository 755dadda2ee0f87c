"""What identifies a run: under one key, runs with different identities draw the same noise."""

from __future__ import annotations

import re
from collections import UserList, deque
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import fields, is_dataclass
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
from scipy import sparse

from dpmesh._validate import fail
from dpmesh.data import Dataset
from dpmesh.keys import Key, fingerprint
from dpmesh.simulator.functions import as_numpys, attributes, class_checksum, code_checksum

if TYPE_CHECKING:
    from dpmesh.topology import MixingMatrix, Topology

Identity = dict[str, str]

_DEPTH = 8
"""Objects nested deeper than this are ignored: some contain themselves."""

_served: dict[str, Identity] = {}
"""The runs of this process's keys, except seeded ones, by the keys' fingerprints."""


def identity(
    algorithm: object,
    problem: object,
    topology: Topology | None,
    network: object,
    rounds: int,
) -> Identity:
    """Return what releases depend on, beside the key: in words, and as checksums of what is long.

    Private data enter as checksums alone.
    """
    links = "" if topology is None else f", links {_links(topology, rounds):08x}"
    settings = _in_words(problem, {"test"} | _aside(problem))  # a test changes no release
    return {
        "algorithm": _in_words(algorithm),
        "topology": without_addresses(topology) + links,
        "network": without_addresses(network),
        "problem": f"{_data(problem, crc32(settings.encode())):08x}",
    }


def _code(kind: type) -> str:
    """Return what distinguishes a user's class from another of the same name."""
    return "" if _is_ours(kind) else f", code {class_checksum(kind):08x}"


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] == "dpmesh"


def claim(key: Key, run: Identity) -> None:
    """Reserve a key for this run, and in this process for no other.

    Raises
    ------
    ValueError
        If it has served another run, since the difference of the two runs' releases has no noise;
        or may have in another process, which has it since a fork; or if it is for some nodes only,
        whose noise another run may have given to others.
    """
    check_unserved(key, run)
    _same(_served.setdefault(fingerprint(key), run), run)


def check_unserved(key: Key, run: Identity) -> None:
    """Fail as `claim` does, without claiming the key."""
    if not key.is_whole:
        fail("key", "one for all nodes", "one that for_nodes made for some")
    if key.is_inherited:
        others = "one from before its fork, which other processes have"
        fail("key", "one made in this process", others)
    _same(_served.get(fingerprint(key), run), run)


def _same(served: Identity, run: Identity) -> None:
    differing = [name for name in run if run[name] != served.get(name)]
    if differing:
        got = f"that of a run with another {differing[0]}"
        fail("key", "a new one, or a seeded one for runs that are not private", got)


def differing(then: str, now: str) -> tuple[str, str]:
    """Return the fields in which two identities differ; all of them, if their names differ."""
    (kind, before), (other, after) = _fields(then), _fields(now)
    if kind != other or len(before) != len(after):
        return then, now
    apart = [(one, two) for one, two in zip(before, after, strict=True) if one != two]
    return ", ".join(one for one, _ in apart), ", ".join(two for _, two in apart)


def _fields(text: str) -> tuple[str, list[str]]:
    """Return the parts of a text such as ``Name(one=1, other=(2, 3))``: its name and fields."""
    if not text.endswith(")"):
        return text, []
    name, _, held = text[:-1].partition("(")
    found: list[str] = []
    depth = 0
    for part in held.split(", "):
        if depth > 0:
            found[-1] += f", {part}"
        else:
            found.append(part)
        depth += part.count("(") - part.count(")")
    return name, found


def without_addresses(value: object) -> str:
    """Return a repr without memory addresses, so that it is the same in another process."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", str(value))


def _in_words(value: Any, leave_out: Set[str] = frozenset(), depth: int = 0) -> str:
    """Return the repr of a value, with checksums of the arrays and functions that it holds.

    The outermost object, and one whose class has no repr of its own, is described by its attributes
    and its class's code; one with a repr, by that and its arrays.
    """

    def words(parts: Iterable[Any]) -> str:
        return f"({', '.join(_in_words(part, depth=depth + 1) for part in parts)})"

    value = as_numpys(value)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        return f"{value.dtype} of shape {value.shape}, {_checksum(value):08x}"
    if sparse.issparse(value):
        return f"{value!r} {_checksum(*_arrays(sparse.csr_array(value))):08x}"
    if isinstance(value, Dataset):
        return f"{value!r} {_checksum(*_arrays(value.features), value.labels):08x}"
    if depth == _DEPTH or isinstance(value, type):
        return without_addresses(repr(value))
    if isinstance(value, (list, tuple, np.ndarray, deque, UserList)):
        return words(value)
    if isinstance(value, Mapping):
        return words(value.items())
    if isinstance(value, (set, frozenset)):  # their order differs between processes
        return f"{{{', '.join(sorted(_in_words(part, depth=depth + 1) for part in value))}}}"
    if (code := code_checksum(value)) is not None:
        return f"{getattr(value, '__name__', 'function')} {code:08x}"
    if isinstance(value, partial):
        return words((value.func, value.args, value.keywords))
    if is_dataclass(value):
        held = {f.name: getattr(value, f.name, None) for f in fields(value)}
    else:
        held = attributes(value)
        if depth > 0 and _has_words(value):
            arrays = [item for item in held.items() if _is_of_arrays(item[1])]
            return without_addresses(repr(value)) + (words(arrays) if arrays else "")
    told = (
        f"{name}={_in_words(part, depth=depth + 1)}"
        for name, part in held.items()
        if name not in leave_out
    )
    return f"{type(value).__name__}({', '.join(told)}){_code(type(value))}"


def _has_words(value: object) -> bool:
    """Whether a value has a repr of its own, which is no list of what it holds."""
    return not isinstance(value, SimpleNamespace) and repr(value) != object.__repr__(value)


def _is_of_arrays(value: Any, depth: int = 0) -> bool:
    """Whether a value is an array, or a collection of nothing else."""
    value = as_numpys(value)
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)) and depth < _DEPTH:
        return len(value) > 0 and all(_is_of_arrays(part, depth + 1) for part in value)
    return isinstance(value, (np.ndarray, Dataset)) or sparse.issparse(value)


def _shows_records(problem: object) -> bool:
    """Whether a problem exposes its records and their partition, as ours do."""
    return isinstance(getattr(problem, "train", None), Dataset) and hasattr(problem, "partition")


def _aside(problem: object) -> set[str]:
    """Return the fields of a problem that `_data` covers, and those that our classes derive."""
    if not _shows_records(problem):
        return set()
    ours = (kind for kind in type(problem).__mro__ if _is_ours(kind) and is_dataclass(kind))
    made = {f.name for kind in ours for f in fields(kind) if not (f.init or f.repr)}
    return {"train", "partition"} | made


def _data(problem: Any, found: int) -> int:
    """Return a checksum, begun by `found`, of a problem's records and partition, if exposed."""
    if not _shows_records(problem):
        return found
    train, partition = problem.train, problem.partition
    sizes = np.array([len(part) for part in partition])
    return _checksum(*_arrays(train.features), train.labels, sizes, *partition, found=found)


def _checksum(*arrays: Any, found: int = 0) -> int:
    """Return a checksum, begun by `found`, of the elements of arrays."""
    for array in arrays:
        found = crc32(np.ascontiguousarray(array).data, found)
    return found


def _links(topology: Topology, rounds: int) -> int:
    """Return a checksum of the first two graphs, and of what our own draw later ones from."""
    found = crc32(" ".join(_sources(topology)).encode())
    for t in range(min(2, rounds)):
        found = _weights(topology.matrix(t), found)
    return found


def _weights(matrix: MixingMatrix, found: int = 0) -> int:
    """Return a checksum, begun by `found`, of a mixing matrix."""
    return _checksum(*_arrays(matrix.weights), found=found)


def _sources(value: object) -> Iterator[str]:
    """Return the sources of a network that is drawn at random or taken from a list."""
    from dpmesh.topology import MixingMatrix, Static, Varying

    if isinstance(value, Key):
        yield fingerprint(value)
    elif isinstance(value, MixingMatrix):
        yield str(_weights(value))
    elif isinstance(value, tuple):
        for part in value:
            yield from _sources(part)
    elif isinstance(value, Static):
        yield from _sources(value.mixing_matrix)
    elif isinstance(value, Varying) and isinstance(value.draw, partial):
        yield from _sources((*value.draw.args, *value.draw.keywords.values()))
    elif isinstance(value, Varying):
        yield _in_words(value.draw)
    elif callable(getattr(value, "matrix", None)):  # a network of a user's own class
        yield _in_words(value)


def _arrays(x: Any) -> tuple[Any, ...]:
    return (x.data, x.indices, x.indptr) if isinstance(x, sparse.csr_array) else (x,)

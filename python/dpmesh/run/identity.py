"""What a run must have in common with the one that it resumes: settings, and digests of data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

if TYPE_CHECKING:
    from dpmesh.topology import Topology

FIRST = 100
_DEPTH = 4
"""Objects nested deeper than this count by their repr alone."""


def identity(
    algorithm: object, problem: object, topology: Topology | None, network: object, rounds: int
) -> dict[str, Any]:
    """Return what releases depend on, beside the key. Private data enter as digests alone."""
    links = [] if topology is None else [topology.matrix(t).weights for t in _seen(rounds)]
    return {
        "algorithm": without_addresses(algorithm),
        "settings": digest(algorithm),
        "topology": without_addresses(topology) + (f", links {digest(links)}" if links else ""),
        "network": without_addresses(network),
        "problem": digest(problem),
    }


def _seen(rounds: int) -> list[int]:
    """Return the rounds whose networks count: the first ones, and some later ones if many."""
    later = range(FIRST, rounds, max(1, (rounds - FIRST) // FIRST)) if rounds > FIRST else ()
    return [*range(min(FIRST, rounds)), *later]


def digest(value: object) -> str:
    """Return 64 bits that differ for other public settings or other records.

    Test data do not count: they change no release.
    """
    found = sha256()
    for part in _parts(value, 0):
        found.update(part)
    return found.hexdigest()[:16]


def without_addresses(value: object) -> str:
    """Return a repr without memory addresses, so that it is the same in another process."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", str(value))


def differing(then: str, now: str) -> tuple[str, str]:
    """Return the fields in which two identities differ; all of them, if their names differ."""
    (kind, before), (other, after) = fields_of(then), fields_of(now)
    if kind != other or len(before) != len(after):
        return then, now
    apart = [(one, two) for one, two in zip(before, after, strict=True) if one != two]
    return ", ".join(one for one, _ in apart), ", ".join(two for _, two in apart)


def _parts(value: Any, depth: int) -> Iterator[bytes]:
    """Yield what a value is made of: arrays by their elements, other things by their repr."""
    if sparse.issparse(value):
        rows = sparse.csr_array(value)
        value = (rows.shape, rows.data, rows.indices, rows.indptr)
    if isinstance(value, np.ndarray) and not value.dtype.hasobject:
        yield f"{value.dtype}{value.shape}".encode()
        yield np.ascontiguousarray(value).tobytes()
    elif depth < _DEPTH and isinstance(value, (tuple, list)):
        for part in value:
            yield from _parts(part, depth + 1)
    elif depth < _DEPTH and is_dataclass(value) and not isinstance(value, type):
        yield type(value).__qualname__.encode()
        for field in fields(value):
            if field.init and field.name != "test":
                yield from _parts(getattr(value, field.name), depth + 1)
    else:
        yield without_addresses(repr(value)).encode()


def fields_of(text: str) -> tuple[str, list[str]]:
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
        depth += sum(map(part.count, "([{")) - sum(map(part.count, ")]}"))
    return name, found

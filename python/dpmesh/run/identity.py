"""What identifies a run: settings, in words and as digests, and digests of data.

A run must have these in common with the one that it resumes; its report names what was chosen.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from dpmesh.algorithms.base import NOISES
from dpmesh.schedules import Constant

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


_WIDTH = 90
_COSTS = ("epsilon", *NOISES)
"""What is always stated."""


def chosen(value: Any) -> str:
    """Return the repr of a record of settings without those that have their default, but the noise.

    >>> import dpmesh as dm
    >>> chosen(dm.GradientDescent(records=100, noise_multiplier=2.0, step_size=0.5))
    'GradientDescent(records=100, noise_multiplier=2.0, step_size=0.5)'
    """
    if isinstance(value, Constant):
        return repr(value.value)  # as settings take it
    shown, known = without_addresses(repr(value)), fields(value) if is_dataclass(value) else ()
    if not all(f"{field.name}=" in shown for field in known if field.repr):
        return shown  # it has a repr of its own
    parts = []
    for field in known:
        made = field.default_factory
        default = field.default if made is MISSING else made()
        own = chosen(getattr(value, field.name))
        if field.init and field.repr and (field.name in _COSTS or own != chosen(default)):
            parts.append(f"{field.name}={own}")
    return f"{type(value).__name__}({', '.join(parts)})" if known else shown


def in_lines(name: str, text: str, indent: int = 0) -> list[str]:
    """Return a line of a name and a value, with one more for each parameter where that is long."""
    kind, parts = fields_of(text)
    if len(text) <= _WIDTH or not parts:
        return [f"{' ' * indent}{name:<11} {_rounded(text)}"]
    lines = [f"{' ' * indent}{name:<11} {kind}"]
    pairs = [part.partition("=")[::2] for part in parts]
    width = 1 + max(len(key) for key, _ in pairs)  # two spaces lie before a value
    for key, value in pairs:
        lines += in_lines(key.ljust(width), value, indent + 2)
    return lines


def _rounded(text: str) -> str:
    """Return a text whose numbers have at most 5 digits that count."""
    return re.sub(r"\b\d+\.\d{5,}(e-?\d+)?", lambda found: f"{float(found[0]):.5g}", text)

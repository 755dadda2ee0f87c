"""Identity of a run: its settings as text and as digests, and digests of its data.

A run resumes from a checkpoint only if both have the same identity. The functions on the text of
settings (`fields_of`, `chosen`, `in_lines`) also serve summaries and report pages.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from scipy import sparse

from dpmesh.algorithms.base import NOISES
from dpmesh.schedules import Constant

if TYPE_CHECKING:
    from dpmesh.topology import Topology

Identity: TypeAlias = dict[str, Any]
"""Plain facts about a run, by name, which must be the same when it resumes."""

FIRST_COMPARED = 100
"""Number of first rounds whose mixing matrices are all compared; of later rounds, some are."""

_DEPTH = 4
"""Depth below which objects enter a digest by their repr only."""


def identity(
    algorithm: object, problem: object, topology: Topology | None, network: object, rounds: int
) -> Identity:
    """Return the facts on which releases depend, without the key; of data, a digest only."""
    topology_text = without_addresses(topology)
    if topology is not None:
        weights = [topology.matrix(t).weights for t in _compared_rounds(rounds)]
        topology_text += f", links {digest(weights)}"
    return {
        "algorithm": without_addresses(algorithm),
        "settings": digest(algorithm),
        "topology": topology_text,
        "network": without_addresses(network),
        "problem": digest(problem),
    }


def _compared_rounds(rounds: int) -> list[int]:
    """Return the rounds whose mixing matrices are compared."""
    if rounds <= FIRST_COMPARED:
        return [*range(rounds)]
    step = max(1, (rounds - FIRST_COMPARED) // FIRST_COMPARED)
    return [*range(FIRST_COMPARED), *range(FIRST_COMPARED, rounds, step)]


def digest(value: object) -> str:
    """Return a digest of 64 bits in hexadecimal of settings or of a problem with its records.

    Test records are left out, since no release depends on them.
    """
    checksum = sha256()
    for part in _parts(value, 0):
        checksum.update(part)
    return checksum.hexdigest()[:16]


def without_addresses(value: object) -> str:
    """Return a repr without memory addresses, so that it is the same in another process."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", str(value))


def differing(saved: str, current: str) -> tuple[str, str]:
    """Return the fields in which two texts such as ``Name(one=1)`` differ, of both texts.

    If the names or the numbers of fields differ, it returns the whole texts.
    """
    saved_name, saved_fields = fields_of(saved)
    current_name, current_fields = fields_of(current)
    if saved_name != current_name or len(saved_fields) != len(current_fields):
        return saved, current
    pairs = zip(saved_fields, current_fields, strict=True)
    changes = [(before, after) for before, after in pairs if before != after]
    before_text = ", ".join(before for before, _ in changes)
    after_text = ", ".join(after for _, after in changes)
    return before_text, after_text


def _parts(value: Any, depth: int) -> Iterator[bytes]:
    """Yield the bytes of a value: of arrays their elements, of other objects their repr."""
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
    """Split a text such as ``Name(one=1, other=(2, 3))`` into its name and its fields."""
    if not text.endswith(")"):
        return text, []
    name, _, content = text[:-1].partition("(")
    fields_found: list[str] = []
    depth = 0
    for part in content.split(", "):
        if depth > 0:
            fields_found[-1] += f", {part}"
        else:
            fields_found.append(part)
        opening = sum(map(part.count, "([{"))
        closing = sum(map(part.count, ")]}"))
        depth += opening - closing
    return name, fields_found


_WIDTH = 90
"""Longest text that is written in one line."""
_ALWAYS_STATED = ("epsilon", *NOISES)
"""Settings that are stated even if they have their default value."""


def chosen(value: object) -> str:
    """Return the repr of an object without fields at their default, except epsilon and noise.

    >>> import dpmesh as dm
    >>> chosen(dm.GradientDescent(records=100, noise_multiplier=4.0, step_size=0.5))
    'GradientDescent(records=100, noise_multiplier=4.0, step_size=0.5)'
    """
    if isinstance(value, Constant):
        return repr(value.value)  # as settings take it
    text = without_addresses(repr(value))
    if not is_dataclass(value):
        return text
    settings = fields(value)
    if not all(f"{setting.name}=" in text for setting in settings if setting.repr):
        return text  # the class defines its own repr
    parts = []
    for setting in settings:
        if not (setting.init and setting.repr):
            continue
        current = chosen(getattr(value, setting.name))
        if setting.name in _ALWAYS_STATED or current != chosen(_default(setting)):
            parts.append(f"{setting.name}={current}")
    return f"{type(value).__name__}({', '.join(parts)})"


def _default(setting: Field[Any]) -> object:
    """Return the default value of a field; `MISSING` if it has none."""
    if setting.default_factory is MISSING:
        return setting.default
    return setting.default_factory()


def in_lines(name: str, text: str, indent: int = 0) -> list[str]:
    """Return the lines of a name and a value; a long value has a line for each of its fields."""
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
    """Return a text with its numbers rounded to 5 significant digits."""
    return re.sub(r"\b\d+\.\d{5,}(e-?\d+)?", lambda match: f"{float(match[0]):.5g}", text)

"""Identity of a run: its settings, in words and as digests, and digests of its data.

A run must have these in common with the one that it resumes; its report names what was chosen.
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
"""Plain facts about a run, by name, which a run that resumes it must share."""

FIRST = 100
"""Rounds whose networks are all compared; of later ones only some are."""

_DEPTH = 4
"""Objects nested deeper than this count by their repr alone."""


def identity(
    algorithm: object, problem: object, topology: Topology | None, network: object, rounds: int
) -> Identity:
    """Return what releases depend on, beside the key. Private data enter as digests alone."""
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
    """Return the rounds whose networks count: the first ones, and some later ones if many."""
    if rounds <= FIRST:
        return [*range(rounds)]
    step = max(1, (rounds - FIRST) // FIRST)
    return [*range(FIRST), *range(FIRST, rounds, step)]


def digest(value: object) -> str:
    """Return 64 bits that differ for other public settings or other records.

    Test data do not count: they change no release.
    """
    checksum = sha256()
    for part in _parts(value, 0):
        checksum.update(part)
    return checksum.hexdigest()[:16]


def without_addresses(value: object) -> str:
    """Return a repr without memory addresses, so that it is the same in another process."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", str(value))


def differing(saved: str, current: str) -> tuple[str, str]:
    """Return the fields in which two identities differ; all of them, if their names differ."""
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
    """Yield the bytes of a value: arrays by their elements, other things by their repr."""
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
_COSTS = ("epsilon", *NOISES)
"""Settings that are always stated."""


def chosen(value: object) -> str:
    """Return the repr of a record of settings without those that have their default, but the noise.

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
        return text  # it has a repr of its own
    parts = []
    for setting in settings:
        if not (setting.init and setting.repr):
            continue
        current = chosen(getattr(value, setting.name))
        if setting.name in _COSTS or current != chosen(_default(setting)):
            parts.append(f"{setting.name}={current}")
    return f"{type(value).__name__}({', '.join(parts)})"


def _default(setting: Field[Any]) -> object:
    """Return the default value of a field; `MISSING` if it has none."""
    if setting.default_factory is MISSING:
        return setting.default
    return setting.default_factory()


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
    return re.sub(r"\b\d+\.\d{5,}(e-?\d+)?", lambda match: f"{float(match[0]):.5g}", text)

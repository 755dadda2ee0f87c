"""An algorithm in words: the parameters that somebody chose, one on a line where they are many."""

from __future__ import annotations

import re
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from dpmesh.algorithms.base import NOISES
from dpmesh.run.identity import fields_of, without_addresses
from dpmesh.schedules import Constant

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

"""Kinds of noise on the command line: of this package, or of a module of the user's."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

import dpmesh as dm
from dpmesh._networks import imported
from dpmesh._validate import fail, nearest
from dpmesh.noise.independent import is_kind
from dpmesh.settings.parts import PROTOCOLS, Maker, entries, options_of

NAMED: dict[str, type[dm.noise.Mechanism]] = {kind.__name__: kind for kind in PROTOCOLS[type]}

_HELP = f"Kind of noise: {', '.join(NAMED)} or module:Class."

Kind = Annotated[str | None, typer.Option("--mechanism", help=_HELP)]
"""The option that names a kind of noise."""


def takes_kinds(algorithm: Maker) -> bool:
    """Whether an algorithm has a parameter `noise` that accepts a class of mechanisms."""
    field = entries(algorithm).get("noise")
    if field is None:
        return False
    return any(str(option).startswith("type[") for option in options_of(field.hint))


def names_kind(text: str) -> bool:
    """Whether this is module:Class of a class of mechanisms."""
    module, _, name = text.partition(":")
    return is_kind(getattr(imported(module), name, None))


def kind_named(text: str) -> type[dm.noise.Mechanism]:
    """Return a class of mechanisms by its name, or by module:Class.

    Raises
    ------
    ValueError
        If there is none.
    """
    module, separator, name = text.partition(":")
    if not separator:
        if text not in NAMED:
            wanted = f"one of {', '.join(NAMED)}, or module:Class"
            fail("mechanism", wanted, f"{text}{nearest(text, NAMED)}")
        return NAMED[text]
    sys.path.insert(0, "")  # modules in this folder
    kind: Any = getattr(imported(module), name, None)
    if not is_kind(kind):
        fail("mechanism", "module:Class of a class of mechanisms, such as mine:Logistic", text)
    return kind

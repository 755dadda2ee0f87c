"""Kinds of noise on the command line: of this package, or of a module of the user's."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

import dpmesh.cli._options as options
from dpmesh._validate import fail, nearest

if TYPE_CHECKING:
    from dpmesh.noise import Mechanism
    from dpmesh.settings.parts import Maker

_HELP = "Mechanism, such as Laplace, or module:Class."

Kind = Annotated[str | None, typer.Option("--mechanism", help=_HELP, rich_help_panel=options.CLAIM)]
"""The option that names a kind of noise."""


def takes_kinds(algorithm: Maker) -> bool:
    """Return whether an algorithm has a parameter `noise` that accepts a class of mechanisms."""
    from dpmesh.settings.parts import entries, options_of

    field = entries(algorithm).get("noise")
    if field is None:
        return False
    return any(str(option).startswith("type[") for option in options_of(field.hint))


def names_kind(text: str) -> bool:
    """Return whether a text is module:Class of a class of mechanisms."""
    from dpmesh._networks import imported
    from dpmesh.noise.independent import is_kind

    module, separator, name = text.partition(":")
    if not separator:
        return False
    return is_kind(getattr(imported(module), name, None))


def kind_named(text: str) -> type[Mechanism]:
    """Return a class of mechanisms by its name, or by module:Class.

    Raises
    ------
    ValueError
        If there is none.
    """
    from dpmesh._networks import imported
    from dpmesh.noise.independent import is_kind
    from dpmesh.settings.parts import PROTOCOLS

    module, separator, name = text.partition(":")
    if not separator:
        kinds: dict[str, type[Mechanism]] = {kind.__name__: kind for kind in PROTOCOLS[type]}
        if text not in kinds:
            expected = (
                f"one of {', '.join(kinds)}, or module:Class, such as mine:Logistic of mine.py"
            )
            fail("mechanism", expected, f"{text}{nearest(text, kinds)}")
        return kinds[text]
    sys.path.insert(0, "")  # modules in this folder
    loaded = imported(module)
    if loaded is None:
        expected = f"module:Class, with {module}.py in this folder or a module that is installed"
        fail("mechanism", expected, text)
    kind: Any = getattr(loaded, name, None)
    if not is_kind(kind):
        fail("mechanism", "module:Class of a class of mechanisms, such as mine:Logistic", text)
    return kind

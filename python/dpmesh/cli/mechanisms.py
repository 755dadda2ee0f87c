"""The option ``--mechanism``: a class of noise mechanisms, of this package or a user's module."""

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

MechanismName = Annotated[
    str | None, typer.Option("--mechanism", help=_HELP, rich_help_panel=options.CLAIM)
]
"""Option with the name of a class of mechanisms, or module:Class."""


def accepts_mechanism(algorithm: Maker) -> bool:
    """Return True if an algorithm has a parameter `noise` that accepts a class of mechanisms."""
    from dpmesh.settings.parts import alternatives_of, part_fields

    field = part_fields(algorithm).get("noise")
    if field is None:
        return False
    return any(str(option).startswith("type[") for option in alternatives_of(field.hint))


def is_custom_mechanism(text: str) -> bool:
    """Return True if a text is module:Class of a class of mechanisms."""
    from dpmesh._networks import imported
    from dpmesh.noise.independent import is_kind

    module, separator, name = text.partition(":")
    if not separator:
        return False
    return is_kind(getattr(imported(module), name, None))


def mechanism_named(text: str) -> type[Mechanism]:
    """Return a class of mechanisms by its name, or by module:Class.

    Raises
    ------
    ValueError
        If the package has no such class, or the module cannot be imported or lacks it.
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

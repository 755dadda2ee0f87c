"""Names that have moved: an error that says where to."""

from __future__ import annotations

from collections.abc import Callable


def moved(module: str, **names: str) -> Callable[[str], object]:
    """Return a module's ``__getattr__``, which names the new place of each name."""

    def missing(name: str) -> object:
        now = f": it is now {names[name]}" if name in names else ""
        raise AttributeError(f"module {module!r} has no attribute {name!r}{now}", name=name)

    return missing

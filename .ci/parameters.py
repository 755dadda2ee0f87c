"""Parameters that a docstring describes together, a row for each: griffe gives all one default."""

from __future__ import annotations

import re
from typing import Any

import griffe

_TOGETHER = re.compile(r"^(\w+(?:, \w+)+)\n((?:(?: {4}.*)?\n)*(?: {4}.*))", re.M)


class Apart(griffe.Extension):
    """Repeats the description of such parameters for each of them."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite a docstring, before it is read."""
        if obj.docstring is not None:
            obj.docstring.value = _TOGETHER.sub(_each, obj.docstring.value)


def _each(found: re.Match[str]) -> str:
    return "\n".join(f"{name}\n{found[2].rstrip()}" for name in found[1].split(", "))

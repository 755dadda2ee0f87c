"""The progress bar of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec

from dpmesh._extras import needed_by


def shows_bar(wanted: bool | None) -> bool:
    """Whether to show a bar: by default in a terminal or a notebook, if the library is there.

    Raises
    ------
    ModuleNotFoundError
        If one is wanted and the library is missing.
    """
    if wanted is None:
        seen = sys.stderr.isatty() or "ipykernel" in sys.modules
        return seen and find_spec("tqdm") is not None
    if wanted:
        with needed_by("progress=True"):
            import_module("tqdm")
    return wanted


def with_bar(rounds: range) -> Iterable[int]:
    """Return the rounds, which move a bar as they are taken."""
    widgets = find_spec("ipywidgets") is not None  # without them notebooks show the terminal's bar
    bar: Iterator[int] = import_module("tqdm.auto" if widgets else "tqdm").tqdm(
        rounds, unit="round", leave=False, initial=rounds.start, total=rounds.stop
    )
    return bar

"""The progress bar of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from importlib.util import find_spec

from dpmesh._extras import needed_by


def shows_bar(requested: bool | None) -> bool:
    """Return True to show a progress bar: by default in a terminal or notebook that has tqdm.

    Raises
    ------
    ModuleNotFoundError
        If a bar is requested and tqdm is not installed.
    """
    if requested is None:
        is_interactive = sys.stderr.isatty() or "ipykernel" in sys.modules
        return is_interactive and find_spec("tqdm") is not None
    if requested:
        with needed_by("progress=True"):
            import_module("tqdm")
    return requested


def with_bar(rounds: range) -> Iterable[int]:
    """Return an iterable over the rounds that shows a progress bar."""
    has_widgets = find_spec("ipywidgets") is not None  # else notebooks show the terminal's bar
    library = import_module("tqdm.auto" if has_widgets else "tqdm")
    bar: Iterator[int] = library.tqdm(
        rounds, unit="round", leave=False, initial=rounds.start, total=rounds.stop
    )
    return bar

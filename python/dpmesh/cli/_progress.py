"""The progress bar of commands."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer


@contextmanager
def progress_bar(
    total: int | None, *, unit: str, shown: bool = True
) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error while a block runs.

    No bar is shown if standard error is no terminal, or tqdm is not installed.

    Parameters
    ----------
    total
        Number of steps; None if it is unknown.
    unit
        Name of a step.
    shown
        False hides the bar.

    Yields
    ------
    Function that advances the bar by a number of steps.
    """
    try:
        from tqdm.auto import tqdm
    except ImportError:
        yield lambda _: None
        return
    hidden = not (shown and sys.stderr.isatty())
    with tqdm(total=total, unit=unit, leave=False, disable=hidden) as bar:
        yield bar.update


def echo_above_bar(text: str) -> None:
    """Print a text above the progress bar, if one is shown."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        typer.echo(text)
        return
    with tqdm.external_write_mode(file=sys.stdout):
        typer.echo(text)

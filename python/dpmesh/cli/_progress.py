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
    """Show one bar in a terminal, without an end if it is not known; yield what moves it."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        yield lambda _: None
        return
    hidden = not (shown and sys.stderr.isatty())
    with tqdm(total=total, unit=unit, leave=False, disable=hidden) as bar:
        yield bar.update


def echo_above_bar(text: str) -> None:
    """Print a text while a bar may be shown, which then stands below it."""
    try:
        from tqdm.auto import tqdm
    except ImportError:
        typer.echo(text)
        return
    with tqdm.external_write_mode(file=sys.stdout):
        typer.echo(text)

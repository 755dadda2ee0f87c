"""What goes wrong in a command is told in one line, not by a traceback."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import NoReturn, ParamSpec

import typer

from dpmesh._extras import EXTRA_OF, needed_by

P = ParamSpec("P")


def telling(command: Callable[P, None]) -> Callable[P, None]:
    """Return the command, which tells what does not fit or is missing and ends with code 2."""

    @wraps(command)
    def told(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            with needed_by("this"):
                command(*args, **kwargs)
        except BrokenPipeError:
            raise  # nobody reads on, as behind `| head`, which typer ends in silence
        except (ValueError, OSError) as error:
            _end(str(error), error)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in EXTRA_OF:
                raise
            _end(str(error), error)

    return told


def _end(message: str, cause: Exception) -> NoReturn:
    typer.echo(f"Error: {message}", err=True)
    raise typer.Exit(2) from cause

"""Errors of a command are shown in one line, without a traceback."""

from __future__ import annotations

import re
import sqlite3
import warnings
from collections.abc import Callable
from functools import partial, wraps
from inspect import cleandoc
from typing import Any, NoReturn, ParamSpec

import typer
from typer.core import TyperCommand, TyperGroup

from dpmesh._extras import EXTRA_OF, needed_by
from dpmesh._validate import nearest
from dpmesh.cli._logs import Speaker

P = ParamSpec("P")


def reporting_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Return a command that reports errors and missing packages in one line, with exit code 2."""

    @wraps(command)
    def reported(*args: P.args, **kwargs: P.kwargs) -> None:
        as_json = kwargs.get("log_format") == "json"
        try:
            with needed_by("this"), warnings.catch_warnings():
                warnings.showwarning = partial(_show, as_json=as_json)
                command(*args, **kwargs)
        except BrokenPipeError:
            raise  # the reader has gone, as with `| head`; typer then exits silently
        except KeyboardInterrupt:
            if as_json:
                Speaker("json").say("interrupted")
            else:
                typer.echo("interrupted", err=True)
            raise typer.Exit(130) from None
        except (ValueError, OSError) as error:
            text = str(error)
            if isinstance(error, OSError) and error.filename and error.strerror:
                text = f"{error.filename}: {error.strerror}"
            _end(text, error, as_json=as_json)
        except sqlite3.Error as error:
            _end(f"the party's folder: {_of_disk(error)}", error, as_json=as_json)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in EXTRA_OF:
                raise
            _end(str(error), error, as_json=as_json)

    paragraphs = cleandoc(command.__doc__ or "").split("\n\n")
    reported.__doc__ = "\n\n".join(
        " ".join(paragraph.split()) for paragraph in paragraphs
    )  # the terminal wraps the lines
    # brackets are text here, not markup of rich
    reported.__doc__ = re.sub(r"\[(?=[a-z])", r"\\[", reported.__doc__)
    return reported


class Once(TyperCommand):
    """A command that refuses an option given twice, where click would use the last one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse an option given twice, then parse the arguments as click does."""
        options: list[Any] = [*self.make_parser(ctx).parse_args(args=list(args))[2]]
        for option in options:
            takes_one = option.param_type_name == "option" and not (
                option.multiple or option.is_flag
            )
            if takes_one and options.count(option) > 1:
                ctx.fail(f"{option.opts[0]} is given {options.count(option)} times; give it once")
        return super().parse_args(ctx, args)


class Group(TyperGroup):
    """A group of commands that suggests the nearest name for an unknown command."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first argument names, as click does."""
        name = args[0]
        names = self.list_commands(ctx)
        if name[:1].isalpha() and self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            ctx.fail(f"No such command {name!r}{nearest(name, names) or '.'}")
        return super().resolve_command(ctx, args)


_OF_DISK = {
    "SQLITE_FULL": "the disk is full. Free some space and go on: all is kept",
    "SQLITE_READONLY": "it cannot be written. Allow its owner to write and go on: all is kept",
    "SQLITE_CANTOPEN": "its file cannot be opened. Check the folder and its modes; nothing is lost",
    "SQLITE_IOERR": "the disk fails. Copy nothing back from a backup: mend the disk and go on, or "
    "make a new folder with dpmesh contract keys --lost",
    "SQLITE_BUSY": "another process uses it. End that one first",
    "SQLITE_LOCKED": "another process uses it. End that one first",
    "SQLITE_CORRUPT": "its file is damaged. What it has spent cannot be trusted: make a new folder "
    "with dpmesh contract keys --lost, naming each contract that it had joined",
    "SQLITE_NOTADB": "its file is no database: it was overwritten. Make a new folder with dpmesh "
    "contract keys --lost, naming each contract that it had joined",
}
"""Descriptions of SQLite errors, by the first part of their codes' names."""


def _of_disk(error: sqlite3.Error) -> str:
    """Return a sentence that says what is wrong with a party's folder, and what to do."""
    code = getattr(error, "sqlite_errorname", None) or ""  # Python 3.11 or later
    if not code and "not a database" in str(error):
        code = "SQLITE_NOTADB"
    if not code and "malformed" in str(error):
        code = "SQLITE_CORRUPT"
    for begin, sentence in _OF_DISK.items():
        if code.startswith(begin):
            return f"{sentence} ({error})"
    return f"{error}. What was committed is kept: mend this and go on"


def _show(message: Warning | str, *_: object, as_json: bool, **__: object) -> None:
    """Show a warning without the line of source code that gave it."""
    if as_json:
        Speaker("json").warn(message)
    else:
        typer.echo(f"Warning: {message}", err=True)


def _end(message: str, cause: Exception, *, as_json: bool) -> NoReturn:
    """Show why a command ends, in the format of its log lines if it has one."""
    Speaker("json" if as_json else "text").fail(message)
    raise typer.Exit(2) from cause

"""Errors of commands in one line without a traceback, and stricter parsing of arguments.

All commands are functions wrapped by `reporting_errors` and parsed by `StrictCommand`; their groups
are `SuggestingGroup`.
"""

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
from dpmesh.cli._logs import MessageWriter

P = ParamSpec("P")


def reporting_errors(command: Callable[P, None]) -> Callable[P, None]:
    """Return the command with errors in one line.

    A wrong value, an unreadable file, a database error or a missing optional package exits with
    code 2; an interrupt (Ctrl-C) exits with code 130. Other exceptions keep their traceback.
    """

    @wraps(command)
    def reported(*args: P.args, **kwargs: P.kwargs) -> None:
        as_json = kwargs.get("log_format") == "json"
        try:
            with needed_by("this"), warnings.catch_warnings():
                warnings.showwarning = partial(_show_warning, as_json=as_json)
                command(*args, **kwargs)
        except BrokenPipeError:
            raise  # the reader has gone, as with `| head`; typer then exits silently
        except KeyboardInterrupt:
            if as_json:
                MessageWriter("json").say("interrupted")
            else:
                typer.echo("interrupted", err=True)
            raise typer.Exit(130) from None
        except (ValueError, OSError) as error:
            text = str(error)
            if isinstance(error, OSError) and error.filename and error.strerror:
                text = f"{error.filename}: {error.strerror}"
            _exit_with(text, error, as_json=as_json)
        except sqlite3.Error as error:
            _exit_with(f"the party's folder: {_database_advice(error)}", error, as_json=as_json)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in EXTRA_OF:
                raise
            _exit_with(str(error), error, as_json=as_json)

    reported.__doc__ = _help_of(command.__doc__ or "")
    return reported


def _help_of(docstring: str) -> str:
    """Return a docstring as help: one line for each paragraph, which the terminal wraps."""
    paragraphs = cleandoc(docstring).split("\n\n")
    text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    return re.sub(r"\[(?=[a-z])", r"\\[", text)  # brackets are text, not markup of rich


class StrictCommand(TyperCommand):
    """A command that refuses an option given twice; click would use the last value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse an option given twice, then parse the arguments as click does."""
        _, _, parameters_in_order = self.make_parser(ctx).parse_args(args=list(args))
        options: list[Any] = list(parameters_in_order)
        for option in options:
            is_option = option.param_type_name == "option"
            accepts_one_value = is_option and not option.multiple and not option.is_flag
            if accepts_one_value and options.count(option) > 1:
                ctx.fail(f"{option.opts[0]} is given {options.count(option)} times; give it once")
        return super().parse_args(ctx, args)


class SuggestingGroup(TyperGroup):
    """A group of commands that suggests the nearest name for an unknown command."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the first argument names, as click does."""
        name = args[0]
        names = self.list_commands(ctx)
        may_be_command = name[:1].isalpha() and not ctx.resilient_parsing
        if may_be_command and self.get_command(ctx, name) is None:
            ctx.fail(f"No such command {name!r}{nearest(name, names) or '.'}")
        return super().resolve_command(ctx, args)


_DATABASE_ADVICE = {
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
"""What is wrong and what to do, by the beginning of the name of an SQLite error code."""


def _database_advice(error: sqlite3.Error) -> str:
    """Return a sentence on what is wrong with the database of a party's folder, and what to do."""
    code = getattr(error, "sqlite_errorname", None) or ""  # Python 3.11 or later
    if not code and "not a database" in str(error):
        code = "SQLITE_NOTADB"
    if not code and "malformed" in str(error):
        code = "SQLITE_CORRUPT"
    for code_prefix, sentence in _DATABASE_ADVICE.items():
        if code.startswith(code_prefix):
            return f"{sentence} ({error})"
    return f"{error}. What was committed is kept: mend this and go on"


def _show_warning(message: Warning | str, *_: object, as_json: bool, **__: object) -> None:
    """Show a warning without the line of source code that raised it."""
    if as_json:
        MessageWriter("json").warn(message)
    else:
        typer.echo(f"Warning: {message}", err=True)


def _exit_with(message: str, cause: Exception, *, as_json: bool) -> NoReturn:
    """Show an error, as JSON if the command logs in JSON, and exit with code 2."""
    MessageWriter("json" if as_json else "text").fail(message)
    raise typer.Exit(2) from cause

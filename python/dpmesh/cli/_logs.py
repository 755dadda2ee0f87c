"""Messages of long-running commands (``dpmesh node``, ``router``): as text, or JSON for machines.

The option ``--log-format`` chooses. All messages of such a command go through `MessageWriter`.
"""

from __future__ import annotations

import json
import logging
from datetime import datetime, timezone
from typing import Annotated, Literal, TypeAlias

import typer

import dpmesh.cli._options as options

LogFormat: TypeAlias = Annotated[
    Literal["text", "json"],
    typer.Option(
        help="Format of log lines: text, or JSON objects on standard error.",
        rich_help_panel=options.OPERATION,
    ),
]

_log = logging.getLogger("dpmesh")


def _time_of(record: logging.LogRecord) -> str:
    """Return the time of a log record in UTC, such as 2024-12-31T23:59:59.000Z."""
    time = datetime.fromtimestamp(record.created, timezone.utc)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _TextFormatter(logging.Formatter):
    """Formatter of lines with time, level and message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a log record as a line, with its traceback below it, if it has one."""
        return f"{_time_of(record)} {record.levelname} {super().format(record)}"


class _JsonFormatter(logging.Formatter):
    """Formatter of JSON objects with time, level, message, and traceback if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a log record as one line."""
        line = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class MessageWriter:
    """Writer of progress messages, warnings and errors, as text or as JSON.

    It sets up the logging of the process.

    Parameters
    ----------
    log_format
        With ``"text"``, progress messages go to standard output, warnings and errors to standard
        error. With ``"json"``, all go to standard error, one object a line.
    """

    def __init__(self, log_format: Literal["text", "json"]) -> None:
        self._is_json = log_format == "json"
        handler = logging.StreamHandler()
        handler.setFormatter(_JsonFormatter() if self._is_json else _TextFormatter())
        logging.basicConfig(handlers=[handler])
        if self._is_json:
            _log.setLevel(logging.INFO)

    def say(self, text: str) -> None:
        """Write a progress message."""
        if self._is_json:
            _log.info("%s", text)
        else:
            typer.echo(text)

    def warn(self, message: Warning | str) -> None:
        """Write a warning."""
        _log.warning("%s", message)

    def fail(self, error: Exception | str) -> None:
        """Write an error."""
        if self._is_json:
            _log.error("%s", error)
        else:
            typer.echo(f"Error: {error}", err=True)

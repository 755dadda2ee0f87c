"""Lines that a node or a router writes while it runs: for people, or as JSON for machines."""

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
    """Return when a line was logged, in UTC."""
    time = datetime.fromtimestamp(record.created, timezone.utc)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _TextFormatter(logging.Formatter):
    """Time, level and message."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line; a traceback follows."""
        return f"{_time_of(record)} {record.levelname} {super().format(record)}"


class _JsonFormatter(logging.Formatter):
    """An object with time, level, message and traceback, if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as a line."""
        line = {
            "time": _time_of(record),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class Speaker:
    """Writes what a command has to say, in the format of its log lines.

    Parameters
    ----------
    log_format
        As text, log lines go to standard error and all else to standard output. As JSON, all lines
        go to standard error.
    """

    def __init__(self, log_format: Literal["text", "json"]) -> None:
        self._is_json = log_format == "json"
        handler = logging.StreamHandler()
        handler.setFormatter(_JsonFormatter() if self._is_json else _TextFormatter())
        logging.basicConfig(handlers=[handler])
        if self._is_json:
            _log.setLevel(logging.INFO)

    def say(self, text: str) -> None:
        """Write what happens."""
        if self._is_json:
            _log.info("%s", text)
        else:
            typer.echo(text)

    def warn(self, message: Warning | str) -> None:
        """Write what to look after."""
        _log.warning("%s", message)

    def fail(self, error: Exception | str) -> None:
        """Write why a run ended early."""
        if self._is_json:
            _log.error("%s", error)
        else:
            typer.echo(f"Error: {error}", err=True)

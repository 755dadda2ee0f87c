"""The command line, as tests call it."""

from __future__ import annotations

from typing import Any

import pytest

testing = pytest.importorskip("typer.testing")

from dpmesh.cli import app  # noqa: E402


def command(*arguments: object, code: int = 0, **how: Any) -> str:
    """Run ``dpmesh`` with these arguments; return what it prints if it exits with this code."""
    result = testing.CliRunner().invoke(app, [*map(str, arguments)], **how)
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    return str(result.output)

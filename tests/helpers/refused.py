"""Tests that calls are refused with a clear error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

Case: TypeAlias = tuple[Callable[[], object], str]
"""A call, and a pattern of the error that it raises."""


def refused(*cases: Case, error: type[Exception] = ValueError) -> Any:
    """Return the test that each call raises an error with its message."""

    @pytest.mark.parametrize(("call", "message"), cases)
    def test(call: Callable[[], object], message: str) -> None:
        with pytest.raises(error, match=message):
            call()

    return test

"""The answer to a question that a paper does not answer."""

from __future__ import annotations


class NotProved(ValueError):  # noqa: N818 - it is the paper that fails, not the caller
    """A paper's closed form was asked for outside of what its theorem proves."""

"""Error of a claim beyond the proof of a paper."""

from __future__ import annotations


class NotProved(ValueError):  # noqa: N818 - it is the paper that fails, not the caller
    """A paper's closed form was asked for beyond what its theorem proves."""

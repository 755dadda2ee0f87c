"""What the four papers claim, as published, for comparison with what can be proved today.

One module for each paper. A claim outside of what its theorem proves is refused with `NotProved`,
which says why; the accountants of `dpmesh.privacy.accounting` are then the ones to use.
"""

from __future__ import annotations

__all__ = ["NotProved"]


class NotProved(ValueError):  # noqa: N818 - it is the paper that fails, not the caller
    """A paper's closed form was asked for outside of what its theorem proves."""

"""Types of privacy: arrays before and after their release, and who is protected."""

from __future__ import annotations

from typing import Any, Literal, NewType

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]

Sensitive = NewType("Sensitive", Floats)
"""Depends on private data: stays inside its node. Only a mechanism turns it into `Released`."""

Released = NewType("Released", Floats)
"""Went through a mechanism: may travel, be mixed, be published."""

NeighboringRelation = Literal["add_remove", "replace_one"]
"""Which datasets count as neighbours: one has a unit more, or one unit has another value."""

Unit = Literal["record", "user"]
"""What is added, removed or replaced: a record, or all that a user holds."""

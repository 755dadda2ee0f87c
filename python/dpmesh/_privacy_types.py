"""Types of private and released arrays, of neighbouring relations and of units of privacy.

`Sensitive` and `Released` are types for mypy: at run time both are numpy arrays.
"""

from __future__ import annotations

from typing import Any, Literal, NewType

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]
"""Array of floating-point numbers."""

Sensitive = NewType("Sensitive", Floats)
"""Array that depends on private data. It stays at its node until a mechanism releases it."""

Released = NewType("Released", Floats)
"""Array that was released by a mechanism, or computed from releases. It may be published."""

NeighboringRelation = Literal["add_remove", "replace_one"]
"""Neighbouring relation: one dataset has one unit more, or one unit has another value."""

Unit = Literal["record", "user"]
"""Unit of privacy: one record, or a user (client) with all of its records."""

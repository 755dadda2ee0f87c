"""The two sides of the door: arrays that must not leave a node, and arrays that may."""

from __future__ import annotations

from typing import Any, NewType

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.floating[Any]]]

Sensitive = NewType("Sensitive", Floats)
"""Depends on private data: stays inside its node. Only a mechanism turns it into `Released`."""

Released = NewType("Released", Floats)
"""Went through a mechanism: may travel, be mixed, be published."""

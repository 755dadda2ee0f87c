"""What the four papers claim, as published, for comparison with what can be proved today.

One module for each paper. A claim beyond what its theorem proves is refused with `NotProved`, which
states why; use the accountants of `dpmesh.privacy.accounting` then.
"""

from dpmesh.privacy.accounting.papers import (
    federated,
    online,
    quantized,
    without_replacement,
)
from dpmesh.privacy.accounting.papers.refusal import NotProved

__all__ = ["NotProved", "federated", "online", "quantized", "without_replacement"]

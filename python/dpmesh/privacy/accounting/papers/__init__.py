"""What the four papers claim, as published, for comparison with what can be proved today.

One module for each paper. A claim outside of what its theorem proves is refused with `NotProved`,
which says why; the accountants of `dpmesh.privacy.accounting` are then the ones to use.
"""

from dpmesh.privacy.accounting.papers import (
    federated,
    online,
    quantized,
    without_replacement,
)
from dpmesh.privacy.accounting.papers.refusal import NotProved

__all__ = ["NotProved", "federated", "online", "quantized", "without_replacement"]

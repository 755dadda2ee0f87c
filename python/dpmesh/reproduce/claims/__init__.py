"""What the papers claim, as published, for comparison with what can be proved today.

A claim beyond what its theorem proves is refused with `dpmesh.privacy.accounting.papers.NotProved`,
which states why; use the accountants of `dpmesh.privacy.accounting` then.
"""

from dpmesh.reproduce.claims import federated, online, quantized

__all__ = ["federated", "online", "quantized"]

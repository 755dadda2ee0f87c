"""Claims of the papers, as published, for comparison with bounds that are proved today.

A claim beyond what its theorem proves is refused with `dpmesh.accounting.papers.NotProved`,
which states why; use the accountants of `dpmesh.accounting` then.
"""

from dpmesh_papers.claims import federated, online, quantized

__all__ = ["federated", "online", "quantized"]

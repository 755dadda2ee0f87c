"""Privacy claims of the papers, as published, for comparison with epsilons that are proved today.

A claim beyond its theorem's conditions is refused with `dpmesh.accounting.papers.NotProved`,
which states why; use the accountants of `dpmesh.accounting` then. The paper on SGD without
replacement has no module here: its formulas are in `dpmesh.accounting.papers`.
"""

from dpmesh_papers.claims import federated, online, quantized

__all__ = ["federated", "online", "quantized"]

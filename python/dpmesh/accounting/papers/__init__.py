"""The papers' lemmas that algorithms rest on, one module for each paper.

Their other claims are in `dpmesh_papers.claims`. A claim beyond what its proof covers is
refused with `NotProved`, which states why.
"""

from dpmesh.accounting.papers import quantized, without_replacement
from dpmesh.accounting.papers.refusal import NotProved

__all__ = ["NotProved", "quantized", "without_replacement"]

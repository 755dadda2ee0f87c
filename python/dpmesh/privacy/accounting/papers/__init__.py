"""The papers' lemmas that algorithms rest on, one module for each paper.

Their other claims are in `dpmesh.reproduce.claims`. A claim beyond what its proof covers is
refused with `NotProved`, which states why.
"""

from dpmesh.privacy.accounting.papers import quantized, without_replacement
from dpmesh.privacy.accounting.papers.refusal import NotProved

__all__ = ["NotProved", "quantized", "without_replacement"]

"""The papers' lemmas that algorithms rest on, one module for each paper.

Their other claims are in `dpmesh.reproduce.claims`. A claim beyond what its proof covers is
refused with `NotProved`, which states why.
"""

from dpmesh._moved import moved
from dpmesh.privacy.accounting.papers import quantized, without_replacement
from dpmesh.privacy.accounting.papers.refusal import NotProved

__all__ = ["NotProved", "quantized", "without_replacement"]

_CLAIMS = "dpmesh.reproduce.claims"
__getattr__ = moved(__name__, federated=f"{_CLAIMS}.federated", online=f"{_CLAIMS}.online")

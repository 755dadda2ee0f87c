"""The papers' bounds as functions, one module for each paper."""

from dpmesh_papers.bounds import federated, online, quantized, without_replacement

__all__ = ["federated", "online", "quantized", "without_replacement"]

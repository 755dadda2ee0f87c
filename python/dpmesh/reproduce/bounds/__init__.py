"""The papers' bounds as functions, one module for each paper."""

from dpmesh.reproduce.bounds import complexity, online, quantized, without_replacement

__all__ = ["complexity", "online", "quantized", "without_replacement"]

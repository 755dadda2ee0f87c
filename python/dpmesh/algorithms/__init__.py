"""The algorithms, each in the file of its paper's short name."""

from dpmesh.algorithms.base import Algorithm, Exchange, Info

__all__ = ["Algorithm", "Exchange", "Info"]

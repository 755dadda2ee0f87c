"""Figures as functions that return matplotlib axes; needs the extra ``plots``."""

from dpmesh.plots.measurements import (
    MARKS,
    Costly,
    Curves,
    against_epsilon,
    bands,
    curves,
)
from dpmesh.plots.networks import network, views
from dpmesh.plots.style import COLOURS

__all__ = [
    "COLOURS",
    "MARKS",
    "Costly",
    "Curves",
    "against_epsilon",
    "bands",
    "curves",
    "network",
    "views",
]


def __dir__() -> list[str]:
    return sorted(__all__)

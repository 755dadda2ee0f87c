"""Figures of runs and networks: functions that return matplotlib axes (extra ``plots``)."""

from dpmesh.plots.measurements import bands, curves
from dpmesh.plots.networks import network
from dpmesh.plots.panels import COLOURS

__all__ = ["COLOURS", "bands", "curves", "network"]

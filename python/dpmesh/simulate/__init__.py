"""Running an algorithm on one machine: the round loop, history, traffic, reports."""

from dpmesh.simulate.history import History, Record
from dpmesh.simulate.loop import simulate
from dpmesh.simulate.run import Run, Traffic

__all__ = ["History", "Record", "Run", "Traffic", "simulate"]

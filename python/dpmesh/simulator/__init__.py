"""Running an algorithm on one machine: the round loop, history, traffic, reports."""

from dpmesh.simulator.engine import Engine, OneProcess
from dpmesh.simulator.history import History, Record
from dpmesh.simulator.loop import simulate
from dpmesh.simulator.network import Exponential, LogNormal, Network, Uniform
from dpmesh.simulator.repeats import RepeatedRuns, Repeats
from dpmesh.simulator.rounds import Share, StopRun
from dpmesh.simulator.run import Run, Traffic

__all__ = [
    "Engine",
    "Exponential",
    "History",
    "LogNormal",
    "Network",
    "OneProcess",
    "Record",
    "RepeatedRuns",
    "Repeats",
    "Run",
    "Share",
    "StopRun",
    "Traffic",
    "Uniform",
    "simulate",
]

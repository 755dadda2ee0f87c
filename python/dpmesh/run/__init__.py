"""Simulation of an algorithm by `simulate`: rounds, traffic, measurements and baselines.

A *channel* releases the messages of a round with noise; a *carrier* delivers them (gossip, server,
token); an *engine* divides the nodes among processes. The result is a `Run`.
"""

from dpmesh.run import baselines
from dpmesh.run.carriers import Broadcast, Carrier, Gossip, Traffic
from dpmesh.run.channel import Channel
from dpmesh.run.checkpoint import Checkpoint
from dpmesh.run.engine import Engine, OneProcess
from dpmesh.run.failing import RealizedNetwork
from dpmesh.run.history import History
from dpmesh.run.loop import simulate
from dpmesh.run.metrics import Metrics, tracked
from dpmesh.run.network import Exponential, LogNormal, Network, Uniform
from dpmesh.run.rounds import StopRun
from dpmesh.run.run import Run

__all__ = [
    "Broadcast",
    "Carrier",
    "Channel",
    "Checkpoint",
    "Engine",
    "Exponential",
    "Gossip",
    "History",
    "LogNormal",
    "Metrics",
    "Network",
    "OneProcess",
    "RealizedNetwork",
    "Run",
    "StopRun",
    "Traffic",
    "Uniform",
    "baselines",
    "simulate",
    "tracked",
]

"""What decides between a local and a global update: fixed rules.

The one that learns is `dpmesh.reproduce.deep_q.DeepQ`.
"""

from dpmesh.controllers.base import AnyController, Controller, NoisyLoss, Observation
from dpmesh.controllers.fixed import (
    AlwaysGlobal,
    AlwaysLocal,
    FixedController,
    Periodic,
    RandomGlobal,
)

__all__ = [
    "AlwaysGlobal",
    "AlwaysLocal",
    "AnyController",
    "Controller",
    "FixedController",
    "NoisyLoss",
    "Observation",
    "Periodic",
    "RandomGlobal",
]

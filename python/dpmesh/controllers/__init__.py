"""What decides between a local and a global update: fixed rules, and deep Q-learning."""

from dpmesh.controllers.base import Actions, AnyController, Controller, NoisyLoss, Observation
from dpmesh.controllers.deep_q import DeepQ, DeepQState
from dpmesh.controllers.fixed import (
    AlwaysGlobal,
    AlwaysLocal,
    FixedController,
    Periodic,
    RandomGlobal,
)

__all__ = [
    "Actions",
    "AlwaysGlobal",
    "AlwaysLocal",
    "AnyController",
    "Controller",
    "DeepQ",
    "DeepQState",
    "FixedController",
    "NoisyLoss",
    "Observation",
    "Periodic",
    "RandomGlobal",
]

"""Federated learning on Flower: a strategy for the server, a mod for the clients.

Needs the extra ``flower``. An existing app changes two lines, one on each side:

    strategy = DPFedLS(dm.FederatedLearning(...), budget=Budget(4.0, 1e-5))    # was: FedAvg(...)
    app = ClientApp(mods=[private_update(clipping_norm=0.5)])                  # was: ClientApp()

Whatever the clients train, and with whatever library, the server takes their models as vectors. It
draws the cohort, clips each update, adds noise to the sum and smooths it, by the code of
`FederatedLearning`, and keeps the ledger. A client that drops out or answers too late is missing
from the sum, one that answers twice is in it once, and nothing else changes: the divisor is the
public expected size. Parties are known by name, so that a SuperNode may be killed, restart or
leave. With a checkpoint, a server that starts again goes on after its last round.

`answers` and `route` carry the bytes of `dpmesh.deploy` between SuperNodes. `ask` carries them on
to a `WarmNode`, which stays while Flower starts one process after another.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpmesh.deploy.flower.client import TrainingFailed, flat, private_update, unflat
    from dpmesh.deploy.flower.server import DPFedLS, TooFewAnswersError
    from dpmesh.deploy.flower.supernode import NoAnswerError, answers, ask
    from dpmesh.deploy.flower.transport import Courier, WarmNode, route

__all__ = [
    "Courier",
    "DPFedLS",
    "NoAnswerError",
    "TooFewAnswersError",
    "TrainingFailed",
    "WarmNode",
    "answers",
    "ask",
    "flat",
    "private_update",
    "route",
    "unflat",
]

_HOMES = dict.fromkeys(["TrainingFailed", "flat", "private_update", "unflat"], "client")
_HOMES |= dict.fromkeys(["DPFedLS", "TooFewAnswersError"], "server")
_HOMES |= dict.fromkeys(["NoAnswerError", "answers", "ask"], "supernode")
_HOMES |= dict.fromkeys(["Courier", "WarmNode", "route"], "transport")
"""The module of each name. Names are imported when they are first used, since Flower starts a
process for each question."""


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'dpmesh.deploy.flower' has no attribute {name!r}")
    return getattr(import_module(f"dpmesh.deploy.flower.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)

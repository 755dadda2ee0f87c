"""Learning between parties that trust neither each other nor the server between them.

Needs the extra ``secure``. The parties agree on a `Contract`: a public file with the algorithm, its
noise, and the epsilon of each party. Each party runs a `Node` on its own machine, with its local
records and a `Folder` for its keys and its privacy budget. A `Router`, the untrusted server,
carries the messages of nodes, or adds up their masked parts in secure aggregation. Node and router
are objects without a transport: bytes in, bytes out. `dpmesh.deploy.http` and
`dpmesh.deploy.flower` are transports. Names are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dpmesh.deploy.contract import Contract, read_contract
    from dpmesh.deploy.folder import Folder
    from dpmesh.deploy.node import Node
    from dpmesh.deploy.router import Router
    from dpmesh.deploy.row import Row
    from dpmesh.deploy.signing import SigningKey
    from dpmesh.deploy.terms import Party
    from dpmesh.deploy.wire import Position, RefusedError

__all__ = [
    "Contract",
    "Folder",
    "Node",
    "Party",
    "Position",
    "RefusedError",
    "Router",
    "Row",
    "SigningKey",
    "read_contract",
]

_HOMES = {
    "Contract": "contract",
    "Folder": "folder",
    "Node": "node",
    "Party": "terms",
    "Position": "wire",
    "RefusedError": "wire",
    "Router": "router",
    "Row": "row",
    "SigningKey": "signing",
    "read_contract": "contract",
}


def __getattr__(name: str) -> object:
    if name == "flower":  # the submodule, which needs the extra of Flower
        return import_module("dpmesh.deploy.flower")
    if name not in _HOMES:
        raise AttributeError(f"module 'dpmesh.deploy' has no attribute {name!r}")
    return getattr(import_module(f"dpmesh.deploy.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)

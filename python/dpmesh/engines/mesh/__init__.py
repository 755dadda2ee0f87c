"""Learning between parties who do not trust each other, nor the router between them.

Needs the extra ``secure``. Each party runs a `Node` on its own machine, with its own records and
folder; a `Router` carries what nodes released, or adds up their parts of sums, which are masked.
`node_of` and `router_of` make those of a contract. Both are objects without a transport: bytes in,
bytes out.
"""

from dpmesh.engines.mesh.contract import Contract, read_contract
from dpmesh.engines.mesh.folder import Folder
from dpmesh.engines.mesh.messages import Position, RefusedError, Row
from dpmesh.engines.mesh.node import Node
from dpmesh.engines.mesh.router import Router
from dpmesh.engines.mesh.terms import Party, Terms
from dpmesh.engines.mesh.travels import node_of, router_of
from dpmesh.engines.signing import SigningKey

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
    "Terms",
    "node_of",
    "read_contract",
    "router_of",
]

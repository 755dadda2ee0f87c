"""The node and the router of a contract, whatever travels between them: rows, or sums."""

from __future__ import annotations

import time
from collections.abc import Callable

from dpmesh.data import Dataset
from dpmesh.engines.mesh.contract import Contract
from dpmesh.engines.mesh.folder import Folder
from dpmesh.engines.mesh.node import Node
from dpmesh.engines.mesh.router import Router
from dpmesh.engines.mesh.sum_node import SumNode
from dpmesh.engines.mesh.sum_router import SumRouter


def node_of(
    contract: Contract, folder: Folder, records: Dataset, *, rehearsal: bool = False
) -> Node:
    """Return the node of a party: see `Node` for the parameters, and for what is raised."""
    kind = Node if contract.sums is None else SumNode
    return kind(contract, folder, records, rehearsal=rehearsal)


def router_of(contract: Contract, clock: Callable[[], float] = time.monotonic) -> Router:
    """Return the router of a contract: see `Router` for the parameters."""
    return (Router if contract.sums is None else SumRouter)(contract, clock)

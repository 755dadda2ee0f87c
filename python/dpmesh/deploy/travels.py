"""The node and the router of a contract, whatever travels between them: rows, or sums."""

from __future__ import annotations

import time
from collections.abc import Callable

from dpmesh.data import Dataset
from dpmesh.deploy.contract import Contract
from dpmesh.deploy.folder import Folder
from dpmesh.deploy.node import Node
from dpmesh.deploy.router import Router
from dpmesh.deploy.sum_node import SumNode
from dpmesh.deploy.sum_router import SumRouter


def node_of(
    contract: Contract, folder: Folder, records: Dataset, *, rehearsal: bool = False
) -> Node:
    """Return the node of a party: see `Node` for the parameters, and for what is raised."""
    kind = Node if contract.sums is None else SumNode
    return kind(contract, folder, records, rehearsal=rehearsal)


def router_of(contract: Contract, clock: Callable[[], float] = time.monotonic) -> Router:
    """Return the router of a contract: see `Router` for the parameters."""
    return (Router if contract.sums is None else SumRouter)(contract, clock)

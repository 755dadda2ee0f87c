"""Secure sums between sites that trust neither the server nor each other; needs the extra `secure`.

Each site exchanges its public signing key with the others outside of the server, agrees with them
on a `Contract`, and runs a `Site` on its own machine, which answers the `Server` by `serve`: bytes
in, bytes out. Any transport can carry them: `in_process`, or that of `dpmesh.engines.flower`.
"""

from dpmesh.engines.mesh.folder import Folder
from dpmesh.engines.secure.contract import Contract
from dpmesh.engines.secure.federated import client_sums, client_update, train_federated
from dpmesh.engines.secure.messages import Header, Hello, Ready, RefusedError
from dpmesh.engines.secure.server import Server
from dpmesh.engines.secure.site import Site, record_sums
from dpmesh.engines.secure.state import RunState
from dpmesh.engines.secure.training import train
from dpmesh.engines.secure.wire import Carry, in_process, serve

__all__ = [
    "Carry",
    "Contract",
    "Folder",
    "Header",
    "Hello",
    "Ready",
    "RefusedError",
    "RunState",
    "Server",
    "Site",
    "client_sums",
    "client_update",
    "in_process",
    "record_sums",
    "serve",
    "train",
    "train_federated",
]

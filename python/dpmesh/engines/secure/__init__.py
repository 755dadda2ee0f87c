"""Secure sums between sites that trust neither the server nor each other; needs the extra `secure`.

Each site exchanges its public signing key with the others outside of the server, agrees with them
on a `Contract`, and runs a `Site` on its own machine. The `Server` carries messages. Between them
they need a transport, such as HTTPS; the objects know nothing of it.
"""

from dpmesh.engines.secure.contract import Contract
from dpmesh.engines.secure.messages import Header, Hello, Ready, RefusedError
from dpmesh.engines.secure.server import Answering, Server, SiteLostError
from dpmesh.engines.secure.site import Site, record_sums
from dpmesh.engines.secure.state import RunState, SiteState
from dpmesh.engines.signing import SigningKey

__all__ = [
    "Answering",
    "Contract",
    "Header",
    "Hello",
    "Ready",
    "RefusedError",
    "RunState",
    "Server",
    "SigningKey",
    "Site",
    "SiteLostError",
    "SiteState",
    "record_sums",
]

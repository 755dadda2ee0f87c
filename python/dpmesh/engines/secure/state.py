"""What a site stores of its run, in its folder: secrets, and what it answered last.

A change is on the disk before the answer leaves. The secrets open the site's old answers, down to
its own share of noise: they are erased when the run is over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from dpmesh.engines.mesh.folder import Folder
from dpmesh.engines.mesh.messages import BEFORE, Position
from dpmesh.engines.secure.contract import Contract
from dpmesh.engines.secure.run_secrets import RunSecrets

_NONE = b""


@dataclass(frozen=True)
class RunState:
    """A site's state in the run of a contract.

    Parameters
    ----------
    run
        The run's id.
    secrets
        None once the run is over.
    last_attempt
        The largest attempt that the site answered or heard of; -1 before the first.
    spent
        Attempts so far, as far as anybody knows.
    digest, answer
        The header that was answered last, by its digest, and the bytes of the answer.
    keys
        The public key of each site that was seen in this run.
    stopped
        Whether the site's own code failed, after which it takes part no more.
    """

    run: bytes
    secrets: RunSecrets | None
    last_attempt: int = -1
    spent: int = 0
    digest: bytes = _NONE
    answer: bytes = _NONE
    keys: Mapping[int, bytes] | None = None
    stopped: bool = False

    def as_bytes(self) -> bytes:
        """Return it as JSON."""
        secrets = self.secrets
        return json.dumps(
            {
                "run": self.run.hex(),
                "secrets": None
                if secrets is None
                else [secrets.agreement.hex(), secrets.own.hex()],
                "last_attempt": self.last_attempt,
                "spent": self.spent,
                "digest": self.digest.hex(),
                "answer": self.answer.hex(),
                "keys": {site: key.hex() for site, key in (self.keys or {}).items()},
                "stopped": self.stopped,
            }
        ).encode()

    @classmethod
    def from_bytes(cls, text: bytes) -> RunState:
        """Return what `as_bytes` wrote."""
        fields = json.loads(text)
        secrets = fields["secrets"]
        fields["secrets"] = None if secrets is None else RunSecrets(*map(bytes.fromhex, secrets))
        for name in ("run", "digest", "answer"):
            fields[name] = bytes.fromhex(fields[name])
        fields["keys"] = {int(site): bytes.fromhex(key) for site, key in fields["keys"].items()}
        return cls(**fields)


def load(folder: Folder, contract: Contract) -> RunState | None:
    """Return the state of a contract's run; None before it."""
    last = folder.last(contract)
    return None if last is None or last.state is None else RunState.from_bytes(last.state)


def store(folder: Folder, contract: Contract, state: RunState, released: bytes = _NONE) -> None:
    """Store the state of a run; an attempt that is new is charged. Inside of a transaction."""
    last, at = folder.last(contract), Position(state.last_attempt)
    if last is None or last.at != at:
        charged = () if at == BEFORE else (contract.plan.releases[state.spent - 1],)
        folder.begin(contract, at, (), charged)
    folder.finish(contract, at, state.as_bytes(), state.digest, released)

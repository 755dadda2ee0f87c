"""A party of a contract's run: its learning problem, its folder, and its secrets of the run.

`Member` stands between `dpmesh.deploy.outcome.Outcome`, which reads progress and results from the
folder, and `dpmesh.deploy.node.Node`, which answers the router.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from dpmesh.data import Dataset
from dpmesh.deploy.contract import Contract
from dpmesh.deploy.exchange import state_from_bytes
from dpmesh.deploy.folder import Folder
from dpmesh.deploy.outcome import Outcome
from dpmesh.deploy.signing import KEY_BYTES, unpack
from dpmesh.deploy.sums import PairwiseSecrets, RunSecrets
from dpmesh.deploy.wire import RefusedError, Signature
from dpmesh.run.identity import digest

_log = logging.getLogger("dpmesh")


class Member(Outcome):
    """A party of a contract, with its records. To make one joins the contract.

    Parameters
    ----------
    contract
        The contract, from the parties and not from the router.
    folder
        The party's folder. Its budget is charged for the whole contract, unless it was before.
    records
        The party's local records, as `dpmesh.deploy.tables.Tables.read` or its `dataset` returns
        them.
    rehearsal
        True if all randomness but masks comes from the contract's public key. A run then has the
        bits of `simulate` under that key, and is NOT private: anyone with the contract can subtract
        the noise.

    Raises
    ------
    OverBudget
        A `ValueError`, if the folder's budget has no room for the contract.
    ValueError
        If the folder's key is not in the contract, if the records are not as the contract
        describes them, or if the party joined the contract with different records. The text of the
        error may depend on the records, and must not leave the party.
    """

    def __init__(
        self, contract: Contract, folder: Folder, records: Dataset, *, rehearsal: bool = False
    ) -> None:
        super().__init__(contract, folder)
        self.rehearsal = rehearsal
        self.problem = contract.problem(records, self.number)
        """The learning problem of the party's local records."""
        self.records_digest = digest(self.problem)
        """Digest of the party's records, in their order."""
        self.key = folder.key
        """The party's secret key of the noise on its rows; in a rehearsal the contract's public
        key, from which all noise is then drawn."""
        if rehearsal:
            self.key = contract.public_key
        node_key = self.schedule.key_of_node(self.number, contract.public_key)
        self.initial_state = contract.algorithm.init(self.problem, node_key)
        """The algorithm's state before the first round."""
        folder.join(contract, self.records_digest, seeded=rehearsal)
        self._secrets: RunSecrets | None = None
        """The party's secrets of the run; None if the run needs none, or is over."""
        self._pairwise_secrets: PairwiseSecrets | None = None
        """Secrets shared with the other parties; None before the first step has fixed their keys.
        """
        if contract.planned.has_partners or contract.planned.first_sum is not None:
            self._read_secrets(folder.secrets(contract, lambda: RunSecrets.generate().as_bytes()))

    def _read_secrets(self, stored: bytes) -> None:
        """Read this run's secrets, and the parties' public keys, from the folder's bytes.

        Parameters
        ----------
        stored
            The bytes of `RunSecrets.as_bytes`, without keys before the first step; empty once the
            run is over.
        """
        fields = unpack(stored)
        if not fields:
            return
        x25519_private, local_secret, *keys = fields
        self._secrets = RunSecrets(x25519_private, local_secret)
        if keys:
            self._pairwise_secrets = self._secrets_with(tuple(keys))

    def local_model(self) -> Any:
        """Return the party's local model, shape (1, dim), NOT private.

        It may have no noise, and must not leave the party. Publish `released` or `model()` instead.
        """
        state = self.initial_state
        last = self.folder.last_step(self.contract)
        if last is not None and last.state is not None:
            state = self.read_state(last.state)
        return self.contract.algorithm.parameters(state)

    def read_state(self, stored: bytes) -> Any:
        """Return the algorithm's state, from the bytes that the folder stores of a step."""
        state, _ = self.state_and_transcript(stored)
        return state_from_bytes(state, self.initial_state)

    def pairwise_secrets(self, messages: tuple[bytes, ...] = ()) -> PairwiseSecrets:
        """Return the secrets that this party shares with each other party in this run.

        Before the first step, the other parties' public keys of the run (X25519) are read from
        their signatures of the contract. From then on, the keys of the first step are used.

        Parameters
        ----------
        messages
            The messages attached to a question, with the signatures of all parties before the first
            step.

        Raises
        ------
        RefusedError
            If the run is over, if a party's signature is missing, or if a key is not valid.
        """
        if self._pairwise_secrets is not None:
            return self._pairwise_secrets
        if self._secrets is None:
            raise RefusedError("stopped")  # the run is over, and its secrets are erased
        keys = {self.number: self._secrets.public_key}
        for message in messages:
            with suppress(ValueError):
                signature = Signature.read(message, self.contract)
                keys.setdefault(signature.party, signature.key[:KEY_BYTES])
        for number, party in enumerate(self.contract.parties):
            if len(keys.get(number, b"")) != KEY_BYTES:
                raise RefusedError(f"not signed by {party.name}")
        return self._secrets_with(tuple(keys[number] for number in range(self.contract.nodes)))

    def _secrets_with(self, keys: tuple[bytes, ...]) -> PairwiseSecrets:
        """Return the pairwise secrets with these public keys, in the order of the parties.

        A key that is not valid is refused, and the log names its party.
        """
        assert self._secrets is not None
        try:
            return PairwiseSecrets(self.contract, self.number, self._secrets, keys)
        except ValueError as error:
            _log.error("%s", error)
            raise RefusedError("bad key") from None

"""A party's share in a contract's run: its records, its folder, and its keys of the run."""

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
    """A party of a contract, with its records.

    Parameters
    ----------
    contract
        The contract, from the parties and not from the router.
    folder
        The party's folder. Its budget gets charged for the whole contract now.
    records
        The party's own records, as `Tables.dataset` or a file of arrays gives them.
    rehearsal
        True if all randomness comes from the contract's public key, but for masks. A run then has
        the bits of `simulate` under that key, and no privacy: anyone with the contract can subtract
        the noise.

    Raises
    ------
    OverBudget
        A `ValueError`, if the folder's budget has no room for the contract.
    ValueError
        If the folder's key is not in the contract, or the records are not those that the contract
        describes or with which it was joined. The text may depend on the records: keep it.
    """

    def __init__(
        self, contract: Contract, folder: Folder, records: Dataset, *, rehearsal: bool = False
    ) -> None:
        super().__init__(contract, folder)
        self.rehearsal = rehearsal
        self.problem = contract.problem(records, self.number)
        """The learning problem of the party's own records."""
        self.records = digest(self.problem)
        self.key = folder.key
        """The party's own key; in a rehearsal the contract's."""
        if rehearsal:
            self.key = contract.public_key
        seated = self.schedule.seat(self.number, contract.public_key)
        self.start = contract.algorithm.init(self.problem, seated)
        """The state before the first round."""
        folder.join(contract, self.records, seeded=rehearsal)
        self._pairwise_secrets: PairwiseSecrets | None = None
        self._secrets: RunSecrets | None = None
        if contract.planned.has_partners or contract.planned.first_sum is not None:
            self._read_secrets(folder.secrets(contract, lambda: RunSecrets.generate().as_bytes()))

    def _read_secrets(self, stored: bytes) -> None:
        """Take this run's secrets, and all keys once they are fixed; none if it is over."""
        fields = unpack(stored)
        secrets, keys = fields[:2], fields[2:]
        if secrets:
            self._secrets = RunSecrets(*secrets)
        if keys:
            self._pairwise_secrets = self._group_with(keys)

    def own_model(self) -> Any:
        """Return the party's own model, shape (1, dim).

        It may have no noise, and must not leave the party.
        """
        state = self.start
        last = self.folder.last_step(self.contract)
        if last is not None and last.state is not None:
            state = self.state(last.state)
        return self.contract.algorithm.parameters(state)

    def state(self, stored: bytes) -> Any:
        """Return the algorithm's state in the bytes that the folder keeps of a step."""
        return state_from_bytes(self.state_and_transcript(stored)[0], self.start)

    def pairwise_secrets(self, messages: tuple[bytes, ...] = ()) -> PairwiseSecrets:
        """Return the parties with their keys of the run.

        They are fixed by the run's first step. Before it they come from signatures.

        Parameters
        ----------
        messages
            The attached messages of a question, signatures among them.

        Raises
        ------
        RefusedError
            If the run is over, a party's key is missing, or one is no key.
        """
        if self._pairwise_secrets is not None:
            return self._pairwise_secrets
        if self._secrets is None:
            raise RefusedError("stopped")  # the run is over
        keys = {self.number: self._secrets.public_key}
        for message in messages:
            with suppress(ValueError):
                signature = Signature.read(message, self.contract)
                keys.setdefault(signature.party, signature.key[:KEY_BYTES])
        for number, party in enumerate(self.contract.parties):
            if len(keys.get(number, b"")) != KEY_BYTES:
                raise RefusedError(f"not signed by {party.name}")
        return self._group_with(tuple(keys[number] for number in range(self.contract.nodes)))

    def _group_with(self, keys: tuple[bytes, ...]) -> PairwiseSecrets:
        """Return the parties with these keys; refuse a bad one, whose party the log names."""
        assert self._secrets is not None
        try:
            return PairwiseSecrets(self.contract, self.number, self._secrets, keys)
        except ValueError as error:
            _log.error("%s", error)
            raise RefusedError("bad key") from None

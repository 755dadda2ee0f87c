"""A secure sum between the parties of a contract's file, over the transport of the mesh.

    node = SumNode(contract, folder, records)       # as `mesh.Node`: bytes in, bytes out
    router = SumRouter(contract, "server.ckpt")     # as `mesh.Router`: asks, takes answers

Posts are signed by the transport. An answer names its question, so that one that comes late, or
twice, is not taken for that to another.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any

import numpy as np

from dpmesh._validate import fail
from dpmesh.algorithms.base import initial_parameters
from dpmesh.algorithms.cross_silo import CrossSiloSGD
from dpmesh.data import Dataset
from dpmesh.engines.mesh.contract import Contract as ContractFile
from dpmesh.engines.mesh.folder import Folder
from dpmesh.engines.mesh.messages import BEFORE, Position
from dpmesh.engines.secure.contract import Contract
from dpmesh.engines.secure.messages import Header, Hello, Ready
from dpmesh.engines.secure.server import Server
from dpmesh.engines.secure.site import Site, record_sums
from dpmesh.engines.secure.training import train
from dpmesh.engines.secure.wire import JOIN, READY, question, question_for_sum, serve
from dpmesh.engines.signing import digest, pack, unpack
from dpmesh.models import Model
from dpmesh.privacy.types import Floats
from dpmesh.run.identity import digest as digest_of

_log = logging.getLogger("dpmesh")


def algorithm_of(file: ContractFile) -> CrossSiloSGD:
    """Return the algorithm of a contract with secure sums; fail for another one."""
    algorithm = file.algorithm
    if not isinstance(algorithm, CrossSiloSGD):
        fail("contract", "one whose algorithm is CrossSiloSGD", type(algorithm).__name__)
    return algorithm


def contract_of(file: ContractFile) -> Contract:
    """Return the contract of secure sums in a file: its model is all that the file says."""
    return Contract(
        numbers=algorithm_of(file).secure_sum,
        model=f"contract {file.hash.hex()}",
        site_keys=tuple(party.public_key for party in file.parties),
    )


def bytes_of_round(contract: ContractFile) -> int:
    """Return what the server receives and sends in a round, questions included."""
    run, everybody = bytes(16), tuple(range(contract.nodes))
    hellos = tuple(Hello(site, run, bytes(32), bytes(64)) for site in everybody)
    readies = tuple(Ready(site, run, 0, 0, bytes(64)) for site in everybody)
    header = Header(run, 0, 0, everybody, hellos, readies)
    masked = pack(b"answer", bytes(algorithm_of(contract).secure_sum.message_bytes))
    word = pack(b"answer", bytes(8), bytes(8), bytes(64))
    answers = sum(len(pack(bytes(32), said)) for said in (masked, word))
    asked = question(READY, run), question_for_sum(header, np.zeros((1, contract.dim)))
    return contract.nodes * (answers + sum(map(len, asked)))


class SumNode:
    """A party of a contract with secure sums: its records and its folder.

    Parameters
    ----------
    contract
        The contract, from the parties and not from the router.
    folder
        The party's folder. Its budget gets charged for the whole contract now.
    records
        The party's own records.
    rehearsal
        Whether all noise comes from the contract's public key, without privacy.

    Raises
    ------
    OverBudget
        A `ValueError`, if the folder's budget has no room for the contract.
    ValueError
        If the folder's key is not in the contract, or the records are not those that the contract
        describes or with which it was joined. The text may depend on the records: keep it.
    """

    def __init__(
        self, contract: ContractFile, folder: Folder, records: Dataset, *, rehearsal: bool = False
    ) -> None:
        self.contract, self.folder = contract, folder
        self.number = contract.party_of(folder.signing.public)
        self.agreement, problem = contract_of(contract), contract.problem(records, self.number)
        self.site = Site(
            self.agreement,
            folder,
            record_sums(self.agreement, algorithm_of(contract), problem),
            records=digest_of(problem),
            rehearsal=contract.public_key if rehearsal else None,
        )

    @property
    def name(self) -> str:
        """The party's name in the contract."""
        return self.contract.parties[self.number].name

    @property
    def at(self) -> Position | None:
        """The attempt that it answered last; None before the first."""
        at = self.folder.last_sent(self.agreement.hash).at
        return None if at == BEFORE else at

    @property
    def is_done(self) -> bool:
        """Whether the run is over."""
        state = self.site.state
        return state is not None and state.secrets is None

    @property
    def released(self) -> Any:
        """The model that the server sent at the end, shape (1, dim); None before."""
        model = np.frombuffer(self.folder.released(self.agreement), "<f8")
        fits = model.size == self.contract.dim and np.isfinite(model).all()
        return model.astype(np.float64)[np.newaxis] if fits else None

    def model(self) -> Model:
        """Return the released model, which predicts from tables, with what it cost.

        Raises
        ------
        ValueError
            If the run is not over, or the contract has no ranges.
        """
        charged = 1 + self.folder.incarnation(self.agreement.hash)
        seeded = self.folder.is_seeded(self.agreement)
        return self.contract.model(self.released, seeded, charged)

    def answer(self, message: bytes) -> bytes:
        """Return the answer to a question of the server, with the question's digest."""
        return pack(digest(message), serve(self.site, message))


class SumRouter:
    """The server of a contract with secure sums, as what asks parties and takes their answers.

    It trains in a thread of its own as soon as it is made.

    Parameters
    ----------
    contract
        The contract.
    checkpoint
        A file from which a server that was killed goes on; see `train`.
    clock
        Returns seconds.
    """

    def __init__(
        self,
        contract: ContractFile,
        checkpoint: str | PathLike[str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.contract, self._clock, self._checkpoint = contract, clock, checkpoint
        self.gone: dict[int, str] = {}
        """Parties that are lost, which are not asked any more."""
        self.bytes = 0
        """Bytes of all questions and answers so far."""
        self.at: Position | None = None
        """The round that is open; None while the parties join."""
        self.failed: Exception | None = None
        """Why the run ended early."""
        self._server = Server(contract_of(contract), self._carry)
        self._changed = threading.Condition()
        self._asked: Mapping[int, bytes] = {}
        self._said: dict[int, bytes] = {}
        self._since, self._late = clock(), False
        self._thread = threading.Thread(target=self._train, daemon=True)
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether the run is over."""
        return not self._thread.is_alive()

    @property
    def waits_for(self) -> list[str]:
        """Names of the parties that have not answered."""
        with self._changed:
            return self._names(self._asked.keys() - self._said.keys())

    @property
    def missing(self) -> list[str]:
        """Names of the parties that are lost."""
        return self._names(set(range(self.contract.nodes)) - set(self._server.cohort))

    def waits_since(self) -> float:
        """Return for how many seconds it has waited for answers."""
        return self._clock() - self._since

    def request(self, party: int) -> bytes | None:
        """Return what to ask one party now; None if nothing. Asking twice does no harm."""
        with self._changed:
            asked = None if party in self._said else self._asked.get(party)
            self.bytes += len(asked or b"")
            return asked

    def take(self, party: int, answer: bytes) -> None:
        """Take an answer, if it is to what the party is asked now."""
        self.bytes += len(answer)
        try:
            asked, said = unpack(answer)
        except ValueError:
            return
        with self._changed:
            open_question = self._asked.get(party)
            if open_question is not None and digest(open_question) == asked:
                self._said[party] = said
                self._changed.notify_all()

    def close(self) -> bool:
        """End the wait for answers, as their deadline has passed: who is silent is lost.

        Returns
        -------
        Whether the run goes on. It pauses below the quorum, and until all have joined.
        """
        with self._changed:
            silent = self._asked.keys() - self._said.keys()
            if not silent:
                return True
            joining = self._server.attempts == 0 and unpack(self._asked[min(silent)])[0] == JOIN
            left = len(self._server.cohort) - len(silent)
            if joining or left < self.contract.terms.quorum:
                return False
            for party in sorted(silent):
                _log.warning("%s is lost", self.contract.parties[party].name)
                self.gone[party] = "lost"
            self._late = True
            self._changed.notify_all()
        return True

    def _carry(self, questions: Mapping[int, bytes]) -> dict[int, bytes]:
        with self._changed:
            self._asked, self._said, self._late = dict(questions), {}, False
            self._since = self._clock()
            self._changed.wait_for(lambda: self._late or len(self._said) == len(self._asked))
            self._asked = {}
            self.at = self.at or Position(0)
            return dict(self._said)

    def _train(self) -> None:
        contract = self.contract
        start: Floats = initial_parameters(contract.made_up, contract.public_key, 1)

        def progress(done: int) -> None:
            self.at = Position(done)

        try:
            train(
                self._server,
                algorithm_of(contract),
                start,
                regularization=contract.made_up.regularization,
                checkpoint=self._checkpoint,
                progress=progress,
            )
        except Exception as error:
            self.failed = error

    def _names(self, parties: set[int]) -> list[str]:
        return [self.contract.parties[number].name for number in sorted(parties)]

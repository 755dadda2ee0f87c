"""The server's part of federated learning on Flower: it adds the noise, and keeps the ledger.

The rounds are those of `FederatedLearning`; in place of a problem's clients, the algorithm gets the
updates that arrived over Flower.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from logging import getLogger
from math import ceil
from pathlib import Path
from types import NoneType, SimpleNamespace
from typing import Any, TypeAlias

import numpy as np

from dpmesh._extras import needed_by
from dpmesh._privacy_types import Floats, Released, Sensitive
from dpmesh._ragged import Indices
from dpmesh._validate import fail, instance, integer, non_negative, probability
from dpmesh.algorithms.federated import FederatedLearning, FederatedState
from dpmesh.algorithms.federated_combination import TrustedServer
from dpmesh.algorithms.federated_contribution import AnyContribution, Vectors
from dpmesh.algorithms.federated_updates import ClientUpdates
from dpmesh.deploy.flower.client import clipped, flat, unflat, updates_in
from dpmesh.deploy.flower.parties import Parties
from dpmesh.keys import A_KEY, Key, fingerprint
from dpmesh.privacy.budget import Budget
from dpmesh.privacy.ledger import Ledger
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.report import Report, report
from dpmesh.run.carriers import Broadcast
from dpmesh.run.channel import Channel
from dpmesh.run.checkpoint import Checkpoint, SavedRun, salt_in
from dpmesh.run.identity import without_addresses
from dpmesh.run.rounds import Progress

with needed_by("the engine 'flower'"):
    from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Result, Strategy

log = getLogger("flwr")

EvaluateFunction: TypeAlias = Callable[[int, ArrayRecord], MetricRecord | None]
"""A function from a round and its released model to metrics on public data, or None."""
ARRAYS, CONFIG, ROUND = "arrays", "config", "server-round"
"""Names of the model's record, of the configuration's and of its entry, by Flower's convention."""


class TooFewAnswersError(RuntimeError):
    """Fewer clients than the quorum answered: the run stops, and can be resumed."""


@dataclass(frozen=True, kw_only=True)
class _ReceivedUpdates(TrustedServer):
    """A trusted server that adds up received updates, in place of those of a problem's clients.

    Parameters
    ----------
    updates
        The clipped updates of a round, shape (clients that answered, dim).
    """

    updates: Sensitive

    def cohort(
        self, contribution: AnyContribution, t: int, key: Key, local_clients: int
    ) -> Indices:
        """Return the drawn cohort: clients that drop out are missing from the updates alone."""
        return contribution.cohort(t, key, None)

    def message(
        self, cohort_vectors: Vectors, algorithm: Any, state: Any, t: int, local_clients: int
    ) -> Any:
        """Return the message of a round from the received updates, not from `cohort_vectors`.

        The latter are made as they are read, so that no client is trained here.
        """
        received: list[tuple[Indices, Sensitive]] = []
        if len(self.updates):
            received.append((np.arange(len(self.updates)), self.updates))
        return super().message(iter(received), algorithm, state, t, local_clients)


class _ServerChannel(Channel):
    """The channel of the server's rounds.

    A server that is killed and started again repeats its last round under the same key, perhaps
    with other updates. Equal noise on two sums would reveal their difference. So the noise depends
    on the sum, too: different sums have independent noise.
    """

    def noise_key(self, values: Sensitive) -> Key:
        """Return the key of the noise on a sum, derived from the sum unless the key is seeded."""
        if self.key.is_seeded:
            return self.key
        return self.key.derive(b"noise on" + sha256(values.tobytes()).digest())


class DPFedLS(Strategy):
    """A Flower strategy for the server's part of one run of `FederatedLearning`.

    Flower calls it in the ServerApp. The server is trusted: it sees the clients' clipped updates,
    and its key and its checkpoint must stay secret. With a checkpoint, the ledger is on disk before
    a model is sent.

    Parameters
    ----------
    algorithm
        A `FederatedLearning` whose contribution is `ClientUpdates`. Its ``clients`` are the
        parties, each with a SuperNode. Their own app trains them: ``epochs``, ``batch_size`` and
        ``step_size`` are not used here.
    budget
        Budget of the whole run; a round that would exceed it is refused. None for no limit.
    delta
        Delta of the reports, in [0, 1); by default that of the budget, or 0.
    key
        Key of the server's noise; by default a new one from the operating system. A run
        mixes fresh random bits into a key that is not seeded, and its noise depends on the sum that
        it is added to: no two different sums have the same noise. A seeded key is NOT private.
    checkpoint
        File in which the server keeps the model, the ledger and the parties' names, written before
        a model is sent. A server that starts again with the same file goes on after the last
        finished round; under the same key it gets the same bits. Without one, a server that is
        killed forgets what it spent.
    parties
        The clients' names, which their SuperNodes state (``--node-config
        'dpmesh-party="north"'``, else their partition or connection id). None accepts the first
        nodes that connect, under the names that they state. Any other node is asked for its name,
        and for nothing else. Names are not authenticated: that is up to Flower's authentication of
        SuperNodes.
    quorum
        Number of clients that must be connected for a round, from 0 to all. With
        ``sampling="uniform"``, the same share of the cohort must answer. With Poisson sampling, the
        size of the cohort is secret, and too few answers are a warning in the log alone. By default
        ``arrival_rate * clients / 2`` rounded up, half of the clients that are expected to return
        an update if all are asked. `TrustedServer` has the ``arrival_rate``.
    patience
        Seconds to wait for all clients before the first round, and for the quorum before others.

    Raises
    ------
    ValueError
        If an argument is of another kind or out of its range.
    """

    def __init__(
        self,
        algorithm: FederatedLearning,
        *,
        budget: Budget | None = None,
        delta: float | None = None,
        key: Key | None = None,
        checkpoint: str | Path | None = None,
        parties: Sequence[str] | None = None,
        quorum: int | None = None,
        patience: float = 600.0,
    ) -> None:
        instance("algorithm", algorithm, "a FederatedLearning", FederatedLearning)
        instance("budget", budget, "a dpmesh.privacy.Budget or None", Budget, NoneType)
        instance("key", key, f"{A_KEY}, or None", Key, NoneType)
        self.algorithm = algorithm
        self.budget = budget
        self._server = _trusted_server(algorithm)
        self._contribution = _client_updates(algorithm)
        clients = self._contribution.clients
        if delta is None:
            delta = 0.0
            if budget is not None:
                delta = budget.delta
        self.delta = probability("delta", delta, one=False)
        self.parties = Parties(clients, parties)
        if quorum is None:
            quorum = ceil(self._server.arrival_rate * clients / 2)
        self.quorum = integer("quorum", quorum, below=clients + 1)
        self.patience = non_negative("patience", patience)
        self._path = checkpoint
        self._salt = _salt_of_run(checkpoint)
        if key is None:
            self._key_name = "fresh"
            key = Key.generate()
        else:
            self._key_name = fingerprint(key)
        if not key.is_seeded:
            key = key.derive(bytes.fromhex(self._salt))
        self.key = key
        """Key of the run's noise: the given one, after the salt is mixed in unless it is seeded."""
        self._checkpoint: SavedRun | None = None
        self._ledger = Ledger(self.plan(1))
        self._channel = _ServerChannel(Broadcast(), self.key, self._ledger)
        self._cohort_size = 0
        """Number of clients that were drawn in the open round, connected or not."""
        self._asked: list[tuple[Message, int]] = []
        """The message to each connected client of the cohort, and the client's number."""
        self._state: FederatedState | None = None
        self._arrays = ArrayRecord()
        self._done = 0
        """Number of finished rounds."""
        self._rounds = 1
        """Number of rounds of the whole run."""
        self._has_started = False
        self._has_waited = False
        """True once the server has waited for all clients, before its first round."""

    def plan(self, rounds: int) -> Plan:
        """Return the server's releases of `rounds` rounds."""
        return self.algorithm.plan(rounds)

    @property
    def report(self) -> Report:
        """Privacy report of the releases so far."""
        return self._report(self.plan(1).with_releases(self._ledger.releases))

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFunction | None = None,
    ) -> Result:
        """Run all rounds that are left; the parameters are those of Flower's `Strategy.start`.

        Raises
        ------
        ValueError
            Before the first round, if `num_rounds` rounds are over the budget, if the strategy has
            run before (the rounds would draw the same noise again), or if the checkpoint is of
            another run.
        TooFewAnswersError
            If fewer clients than the quorum are connected, or answer.
        """
        if self._has_started:
            fail("strategy", "a new one for each run", f"one that ran {self._done} rounds")
        self._ledger = self._channel.ledger = Ledger(self.plan(num_rounds))
        self._resume(initial_arrays)
        if num_rounds < self._done:
            fail("num_rounds", f"at least {self._done}, which are done", num_rounds)
        self._require(num_rounds)
        self._rounds = num_rounds
        self._has_started = True
        evaluate = None
        if evaluate_fn is not None:
            evaluate = _evaluated_from(self._done, evaluate_fn)
        return super().start(
            grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the global model to a cohort, which the server keeps to itself."""
        assert self._state is not None
        if server_round <= self._done:  # done before the server started again
            return []
        self._require(server_round)
        nodes = self._connected(grid)
        cohort = self._contribution.cohort(server_round - 1, self.key, None)
        config[ROUND] = server_round
        start = unflat(self._state.w, self._arrays)  # `arrays` are the output, which may be a mean
        content = RecordDict({ARRAYS: start, CONFIG: config})
        self._cohort_size = len(cohort)
        there = [int(client) for client in cohort if client in nodes]
        self._asked = [
            (Message(content, nodes[client], MessageType.TRAIN), client) for client in there
        ]
        return [message for message, _ in self._asked]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Move the global model by the noisy sum; return it with the epsilon so far.

        The clients' own metrics are not passed on: nothing protects them.
        """
        assert self._state is not None
        if server_round < self._done:  # done before the server started again
            return None, None
        if server_round == self._done:
            return self._output(), self._metrics()
        updates = self._clipped_updates(replies, self._state.w)
        self._check_quorum(len(updates), server_round)
        clients = SimpleNamespace(nodes=self._contribution.clients)
        step = self._channel.run(
            self._with_updates(updates), self._state, self._done, clients, self.key
        )
        self._channel.end_round()
        self._state = step.state
        self._done = server_round
        self._save()
        return self._output(), self._metrics()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Ask no client: metrics on its data would leave it without noise."""
        return []

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return nothing: give ``evaluate_fn`` to `start` to test on public data."""
        return None

    def summary(self) -> None:
        """Log what the rounds so far cost; before the first one, what all rounds will cost."""
        log.info("\tThe server sees the clients' updates")
        if self._ledger.releases:
            reported = self.report
        else:
            reported = self._report(self.plan(self._rounds))
        for line in str(reported).splitlines():
            log.info("\t%s", line)

    def _report(self, plan: Plan) -> Report:
        """Return the privacy report of a plan, at the strategy's delta."""
        return report(plan, self.delta, seeded=self.key.is_seeded)

    def _with_updates(self, updates: Floats) -> FederatedLearning:
        """Return the algorithm with a server that adds up these updates."""
        received = _ReceivedUpdates(
            arrival_rate=self._server.arrival_rate,
            grid=self._server.grid,
            updates=Sensitive(updates),
        )
        return replace(self.algorithm, combination=received)

    def _resume(self, initial_arrays: ArrayRecord) -> None:
        """Begin, or go on after the rounds in the checkpoint."""
        self._arrays = initial_arrays
        self._state = self.algorithm.start_from(Released(flat(initial_arrays)))
        if self._path is None:
            log.warning("without a checkpoint, a server that is killed forgets what it spent")
            return
        parts = zip(initial_arrays, initial_arrays.to_numpy_ndarrays(), strict=True)
        identity = {
            "algorithm": without_addresses(self.algorithm),
            "parties": list(self.parties.numbers),
            "model": ", ".join(f"{name} {part.dtype}{part.shape}" for name, part in parts),
        }
        self._checkpoint = SavedRun(
            Checkpoint(self._path, every=1), identity, [self._key_name], self._salt
        )
        saved = self._checkpoint.resume(self._progress, self.plan(1))
        self._state = saved.state
        self._done = saved.rounds
        self.parties.numbers = saved.carrier  # stored in the field of a carrier's memory
        self._ledger.restore(saved.ledger)
        self._channel.noise.recall(saved.noise)
        if self._done:
            log.info("resuming after %d finished rounds", self._done)

    @property
    def _progress(self) -> Progress:
        """Progress of the run, as the checkpoint stores it."""
        return Progress(
            state=self._state,
            rounds=self._done,
            ledger=self._ledger.releases,
            carrier=self.parties.numbers,
            noise=self._channel.noise.memory,
        )

    def _save(self) -> None:
        """Write the checkpoint, if there is one: the model and the ledger are then on disk."""
        if self._checkpoint is not None:
            self._checkpoint.save(self._progress)

    def _require(self, rounds: int) -> None:
        """Fail unless the budget has room for these rounds, and for those that were asked twice."""
        if self.budget is not None:
            self.budget.require(self, rounds + len(self._ledger.releases) - self._done)

    def _connected(self, grid: Grid) -> dict[int, int]:
        """Return the node of each client that is connected; wait for all, later for the quorum."""
        clients = self._contribution.clients
        awaited = clients
        if self._has_waited:
            awaited = self.quorum
        nodes = self.parties.wait(grid, awaited, self.patience)
        self._has_waited = True
        if len(nodes) < self.quorum:
            count = f"{len(nodes)} of {clients} clients are connected"
            absent = self.parties.absent(nodes)
            raise TooFewAnswersError(
                f"{count}, and the quorum is {self.quorum}; not connected: {absent}"
            )
        return nodes

    def _clipped_updates(self, replies: Iterable[Message], w: Floats) -> Floats:
        """Return the usable updates, each clipped, in the order of the clients."""
        client_of_message = {message.metadata.message_id: client for message, client in self._asked}
        return clipped(updates_in(replies, client_of_message, w), self._contribution.clipping_norm)

    def _check_quorum(self, answers: int, server_round: int) -> None:
        """Log how many clients answered, and stop below the quorum, if the cohort is public.

        Under Poisson sampling the size of the cohort is secret: few answers are a warning alone.
        """
        clients = self._contribution.clients
        is_secret = self._contribution.sampling == "poisson"
        summary = f"{answers} of {self._cohort_size} clients answered in round {server_round}"
        is_below_quorum = answers < ceil(self._cohort_size * self.quorum / clients)
        if not is_secret:
            log.info("\t%s", summary)
        if is_below_quorum and is_secret:
            log.warning("\t%s; keep this line to yourself: the cohort is secret", summary)
        elif is_below_quorum:
            least = f"{self.quorum} of {clients}"
            raise TooFewAnswersError(f"{summary}, less than the quorum of {least}")

    def _output(self) -> ArrayRecord:
        """Return the released model, such as a mean of the last ones, as arrays."""
        assert self._state is not None
        return unflat(self._state.output, self._arrays)

    def _metrics(self) -> MetricRecord:
        """Return the epsilon of the releases so far, and its delta, as Flower's metrics."""
        return MetricRecord({"epsilon": self.report.epsilon, "delta": self.delta})


def _trusted_server(algorithm: FederatedLearning) -> TrustedServer:
    """Return the algorithm's trusted server; refuse any other combination."""
    combination = algorithm.combination
    if not isinstance(combination, TrustedServer):
        expected = "one of a TrustedServer; a contract between parties runs secure sums"
        fail("algorithm", expected, algorithm)
    return combination


def _client_updates(algorithm: FederatedLearning) -> ClientUpdates:
    """Return the algorithm's client updates; refuse what needs more of a client than an update."""
    contribution = algorithm.contribution
    if not isinstance(contribution, ClientUpdates):
        fail("algorithm", "one of ClientUpdates under Flower", algorithm)
    adapts = contribution.adaptive_clipping is not None
    if adapts or contribution.proximal or contribution.control_variates:
        expected = "no adaptive_clipping, proximal term and control_variates under Flower"
        fail("algorithm", expected, algorithm)
    return contribution


def _salt_of_run(checkpoint: str | Path | None) -> str:
    """Return the random bits of a run, 64 hexadecimal digits: those in its checkpoint, or new."""
    salt = None
    if checkpoint:
        salt = salt_in(checkpoint)
    return salt or secrets.token_hex(32)


def _evaluated_from(first_round: int, evaluate: EvaluateFunction) -> EvaluateFunction:
    """Return an evaluation that skips the rounds before this one: they were evaluated before."""

    def evaluated(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        if server_round < first_round:
            return None
        return evaluate(server_round, arrays)

    return evaluated

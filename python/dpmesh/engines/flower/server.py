"""The server's part: a strategy that draws cohorts, sums, adds noise, and keeps the ledger."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable
from dataclasses import replace
from logging import getLogger
from math import sqrt
from types import NoneType
from typing import Any, Literal

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._extras import needed_by
from dpmesh._validate import fail, instance, one_of, probability
from dpmesh.algorithms.federated import FederatedLearning, FederatedState
from dpmesh.engines.flower.arrays import flat, unflat
from dpmesh.engines.flower.client import client_sensitivity
from dpmesh.keys import A_KEY, Key, Purpose
from dpmesh.privacy.budget import Budget
from dpmesh.privacy.plan import Plan, each_round
from dpmesh.privacy.releases import Release
from dpmesh.privacy.report import Report, report
from dpmesh.privacy.sensitivity import Sensitivity
from dpmesh.privacy.types import Floats, Released, Sensitive

with needed_by("the engine 'flower'"):
    from flwr.app import (
        ArrayRecord,
        ConfigRecord,
        Message,
        MessageType,
        MetricRecord,
        RecordDict,
    )
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Result, Strategy

log = getLogger("flwr")

Trust = Literal["central", "local"]

ARRAYS, CONFIG, ROUND = "arrays", "config", "server-round"
"""Names of records and of an entry, by Flower's convention."""


class DPFedLS(Strategy):
    """A Flower strategy for the server's part of one run of `FederatedLearning`.

    Parameters
    ----------
    algorithm
        ``clients`` is the number of SuperNodes, which the strategy waits for; how clients train
        (``local_epochs``, ``batch_size``, step sizes) is up to their own app and is not used.
    budget
        Budget of the whole run: what would cost more is refused. None for no limit.
    delta
        Delta of the reports, in [0, 1); by default that of the budget, or 0.
    trust
        ``"central"``: the server sees each client's clipped move and adds the noise. ``"local"``:
        each client adds its own, by ``private_update(clipping_norm, noise_multiplier, grid=grid)``
        with the algorithm's numbers, and the server never sees a move without noise.
    key
        Key of the server; by default a new one from the operating system, into which a strategy
        mixes fresh bits.

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
        trust: Trust = "central",
        key: Key | None = None,
    ) -> None:
        instance("algorithm", algorithm, "a FederatedLearning", FederatedLearning)
        instance("budget", budget, "a dpmesh.privacy.Budget or None", Budget, NoneType)
        instance("key", key, f"{A_KEY}, or None", Key, NoneType)
        self.algorithm = algorithm
        self.budget = budget
        if delta is None:
            delta = 0.0 if budget is None else budget.delta
        self.delta = probability("delta", delta, one=False)
        self.trust = one_of("trust", trust, ("central", "local"))
        key = Key.generate() if key is None else key
        self.key = key if key.is_seeded else key.derive(secrets.token_bytes(32))
        self._ledger: list[Release] = []
        self._cohort: dict[int, int] = {}
        self._state: FederatedState | None = None
        self._arrays = ArrayRecord()
        self._rounds = 1

    def plan(self, rounds: int) -> Plan:
        """Return the releases of `rounds` rounds: the server's, or one client's in all rounds."""
        if self._is_central:
            return self.algorithm.plan(rounds)
        return Plan(
            releases=tuple(self._planned_by_client(t) for t in each_round(rounds)),
            neighboring_relation="replace_one",
            unit="user",
            assumptions=(
                "every client adds the noise that it was asked to add",
                "the server asks no client twice in a round, or clients refuse by their own budget",
            ),
        )

    @property
    def report(self) -> Report:
        """What was released so far, and what it cost; it names who sees what."""
        return self._report(self.plan(1).with_releases(self._ledger))

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        *arguments: Any,
        **options: Any,
    ) -> Result:
        """Run all rounds; the parameters are those of Flower's `Strategy.start`.

        Raises
        ------
        ValueError
            Before the first round, if `num_rounds` rounds are over the budget, or if the strategy
            has run before: the rounds would draw the same noise again.
        """
        if self._ledger:
            fail("strategy", "a new one for each run", f"one that ran {len(self._ledger)} rounds")
        if self.budget is not None:
            self.budget.require(self, num_rounds)
        self._rounds = num_rounds
        return super().start(grid, initial_arrays, num_rounds, *arguments, **options)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the global model to a cohort, which the server keeps to itself."""
        if self.budget is not None:
            self.budget.require(self, server_round)
        if self._state is None:
            self._state = self.algorithm.start_from(Released(flat(arrays)))
            self._arrays = arrays
        nodes = self._connected(grid)
        cohort = self.algorithm.sample(server_round - 1, self.key)
        self._cohort = {nodes[client]: int(client) for client in cohort}
        config[ROUND] = server_round
        start = unflat(self._state.w, self._arrays)  # `arrays` are the output, which may be a mean
        content = RecordDict({ARRAYS: start, CONFIG: config})
        return [Message(content, node, MessageType.TRAIN) for node in self._cohort]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Move the global model by the noisy sum; return it with the epsilon so far.

        The clients' own metrics are not passed on: nothing protects them.
        """
        assert self._state is not None
        t, w = server_round - 1, self._state.w
        by_client = {self._cohort[answer.metadata.src_node_id]: answer for answer in replies}
        answers = [by_client[client] for client in sorted(by_client)]
        usable = [move for answer in answers if (move := _move(answer, w)) is not None]
        moves = np.vstack([np.empty((0, w.shape[1]), w.dtype), *usable])
        if self._is_central and len(moves):  # whatever the clients did
            kernels.clip_rows(moves, self.algorithm.clipping_norm, out=moves)
        total = moves.sum(axis=0, dtype=np.float64, keepdims=True).astype(w.dtype)
        if self._is_central:
            release = self.algorithm.release_of(t)
            noise = self.key.stream(Purpose.NOISE, t)
            noisy = release.mechanism.release(Sensitive(total), release.sensitivity, noise)
        else:
            release, noisy = self._planned_by_client(t), Released(total)
        self._ledger.append(release)
        self._state = self._server.absorb(self._state, noisy, t)
        return unflat(self._state.output, self._arrays), self._metrics()

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
        log.info("\t%s sees the clients' moves", "The server" if self._is_central else "Nobody")
        told = self.report if self._ledger else self._report(self.plan(self._rounds))
        for line in str(told).splitlines():
            log.info("\t%s", line)

    def _report(self, plan: Plan) -> Report:
        return report(plan, self.delta, seeded=self.key.is_seeded)

    @property
    def _is_central(self) -> bool:
        return self.trust == "central"

    @property
    def _server(self) -> FederatedLearning:
        """The algorithm with the noise of the whole sum, as estimators need it."""
        if self._is_central or self.algorithm.noise_multiplier is None:
            return self.algorithm
        assert self._state is not None
        std = self.algorithm.mechanism.noise_scale(self._by_client, self._state.w.shape[1])
        together = std * sqrt(self.algorithm.expected_size) / self.algorithm.sensitivity.bound
        return replace(self.algorithm, noise_multiplier=together, grid=None)

    @property
    def _by_client(self) -> Sensitivity:
        return client_sensitivity(self.algorithm.clipping_norm)

    def _planned_by_client(self, t: int) -> Release:
        return Release(t, self.algorithm.mechanism, self._by_client)

    def _connected(self, grid: Grid) -> list[int]:
        """Wait for all clients; return their node ids on the grid, ascending."""
        wanted = self.algorithm.clients
        while len(nodes := sorted(grid.get_node_ids())) < wanted:
            log.info("%d of %d clients are connected", len(nodes), wanted)
            time.sleep(1)
        if len(nodes) > wanted:
            fail("clients", f"the number of connected SuperNodes, {len(nodes)}", wanted)
        return nodes

    def _metrics(self) -> MetricRecord:
        return MetricRecord({"epsilon": self.report.epsilon, "delta": self.delta})


def _move(answer: Message, w: Floats) -> Floats | None:
    """Return how far a client moved the model; None, as if it were missing, if it sent none."""
    if answer.has_error() or len(answer.content.array_records) != 1:
        return None
    try:
        model = flat(next(iter(answer.content.array_records.values())))
    except Exception:  # reading anything but arrays can fail in many ways
        return None
    if model.shape != w.shape:
        return None
    with np.errstate(over="ignore"):
        move: Floats = model.astype(w.dtype) - w
    return move if np.isfinite(move).all() else None

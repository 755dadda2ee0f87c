"""The progress and the metrics of all nodes, where several processes hold some of them each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np

from dpmesh.algorithms.messages import ROW_EACH
from dpmesh.run.engine import Engine, Share
from dpmesh.run.history import Value
from dpmesh.run.metrics import After, Before, Metric
from dpmesh.run.rounds import Progress


def gathered(progress: Progress, engine: Engine, own: Share) -> Progress:
    """Return the progress of all nodes on the root, and the given one elsewhere."""
    if own.nodes is None:
        return progress
    nodes = len(own.nodes)

    def whole(array: Any) -> Any:
        rows = engine.rows(array.reshape(nodes, -1, *array.shape[1:]))
        return rows if rows is None else rows.reshape(-1, *array.shape[1:])

    state, noise = _with_rows(progress.state, whole), _with_rows(progress.noise, whole)
    received = progress.received
    if received is not None and own.algorithm.travels in ROW_EACH:
        received = engine.rows(received)
    sent = engine.everyone(progress.traffic)
    if not engine.is_root:
        return progress
    (metrics,) = progress.metrics
    traffic = sum(sent[1:], sent[0])
    return replace(
        progress, state=state, received=received, traffic=traffic, metrics=metrics, noise=noise
    )


def scattered(progress: Progress | None, engine: Engine, own: Share) -> Progress:
    """Return this process's part of the root's progress of all nodes."""
    shared = engine.everyone(progress)[0]
    assert shared is not None
    if own.nodes is None:
        return shared
    nodes, total = own.nodes, own.total

    def part(array: Any) -> Any:
        return array.reshape(total, -1, *array.shape[1:])[nodes].reshape(-1, *array.shape[1:])

    received = shared.received
    if received is not None and own.algorithm.travels in ROW_EACH:
        received = received[nodes]
    state, noise = _with_rows(shared.state, part), _with_rows(shared.noise, part)
    if engine.is_root:
        metrics = [shared.metrics]
        return replace(shared, state=state, received=received, metrics=metrics, noise=noise)
    return Progress(
        state=state,
        received=received,
        rounds=shared.rounds,
        ledger=shared.ledger,
        metrics=[None],
        noise=noise,
    )


def _with_rows(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a state whose arrays of rows, a few for each node, are changed."""
    if isinstance(value, np.ndarray):
        return change(value) if value.size and value.ndim else value
    if is_dataclass(value) and not isinstance(value, type):
        changed = {
            each.name: _with_rows(getattr(value, each.name), change)
            for each in fields(value)
            if each.init and not each.metadata.get("known_to_all")
        }
        return replace(value, **changed)
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return type(value)(*(_with_rows(part, change) for part in value))
    if isinstance(value, (tuple, list)):
        return type(value)(_with_rows(part, change) for part in value)
    if isinstance(value, dict):
        return {name: _with_rows(part, change) for name, part in value.items()}
    return value


@dataclass
class OnRoot:
    """Metrics of all nodes, measured on the root."""

    engine: Engine
    own: Share
    meters: list[Metric]

    @property
    def watches(self) -> tuple[str, ...]:
        """Everything that any of them watches."""
        return tuple(sorted({name for meter in self.meters for name in meter.watches}))

    @property
    def memory(self) -> Any:
        """What they remember, on the root."""
        return [meter.memory for meter in self.meters] if self.engine.is_root else None

    def recall(self, memory: Any) -> None:
        """Let them remember it, on the root."""
        for meter, own in zip(self.meters, memory or (), strict=False):
            meter.recall(own)

    def observe(self, before: Before) -> None:
        """Gather what they watch, and pass it to them."""
        seen = Before(*(None if mine is None else self.engine.rows(mine) for mine in before))
        if self.engine.is_root:
            for meter in self.meters:
                meter.observe(seen)
        if before.parameters is not None:  # regret is expensive work, which can fail
            self.engine.agree()

    def values(self, after: After) -> dict[str, Value]:
        """Return their values for all nodes; nothing elsewhere."""
        travels = self.own.algorithm.travels
        rows, parameters = travels in ROW_EACH, after.parameters
        known_to_all = travels == "server" or (
            sum(self.engine.everyone(len(parameters))) != self.own.total
        )
        if not known_to_all:
            parameters = self.engine.rows(parameters)
        received = self.engine.rows(after.received) if rows else after.received
        bits = after.bits if isinstance(after.bits, int) else self.engine.rows(after.bits)
        values: dict[str, Value] = {}
        if self.engine.is_root:
            for meter in self.meters:
                values |= meter.values(After(parameters, received, bits))
        self.engine.agree()
        return values

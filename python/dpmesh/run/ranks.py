"""Progress and metrics of all nodes, whose rows are divided among several processes.

A *row* is one vector of a node in an array of the state; each node has the same number of rows. The
*root* process measures and saves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from dpmesh._privacy_types import Floats
from dpmesh.algorithms.messages import ROW_EACH
from dpmesh.run.carriers import Traffic
from dpmesh.run.engine import Engine, Share
from dpmesh.run.history import Value
from dpmesh.run.metrics import After, Before, Metric
from dpmesh.run.rounds import Progress

Rows: TypeAlias = Any
"""Array with equally many rows for each node; None on processes that do not receive it."""


def gathered(progress: Progress, engine: Engine, share: Share) -> Progress:
    """Return the progress of all nodes on the root, and the local progress on other processes.

    Every process must call it, as rows are sent to the root.
    """
    if share.nodes is None:
        return progress
    nodes = len(share.nodes)

    def rows_of_all(array: Rows) -> Rows:
        by_node = array.reshape(nodes, -1, *array.shape[1:])
        all_nodes = engine.rows(by_node)
        if all_nodes is None:  # not on the root
            return all_nodes
        return all_nodes.reshape(-1, *array.shape[1:])

    state = _with_rows(progress.state, rows_of_all)
    noise = _with_rows(progress.noise, rows_of_all)
    received = progress.received
    if received is not None and share.algorithm.communication in ROW_EACH:
        received = engine.rows(received)
    traffic_by_process = engine.everyone(progress.traffic)
    if not engine.is_root:
        return progress
    (metrics,) = progress.metrics
    return replace(
        progress,
        state=state,
        received=received,
        traffic=sum(traffic_by_process, Traffic(0, 0)),
        metrics=metrics,
        noise=noise,
    )


def scattered(progress: Progress | None, engine: Engine, share: Share) -> Progress:
    """Return this process's part of the progress of all nodes, which the root has."""
    root_progress = engine.everyone(progress)[0]
    assert root_progress is not None
    if share.nodes is None:
        return root_progress
    nodes = share.nodes
    total = share.total

    def local_rows(array: Rows) -> Rows:
        by_node = array.reshape(total, -1, *array.shape[1:])
        return by_node[nodes].reshape(-1, *array.shape[1:])

    state = _with_rows(root_progress.state, local_rows)
    noise = _with_rows(root_progress.noise, local_rows)
    received = root_progress.received
    if received is not None and share.algorithm.communication in ROW_EACH:
        received = received[nodes]
    if engine.is_root:
        metrics = [root_progress.metrics]
        return replace(root_progress, state=state, received=received, metrics=metrics, noise=noise)
    return Progress(
        state=state,
        received=received,
        rounds=root_progress.rounds,
        ledger=root_progress.ledger,
        metrics=[None],
        noise=noise,
    )


def _with_rows(value: Any, change: Callable[[Rows], Rows]) -> Any:
    """Return a state with `change` applied to all arrays with rows of nodes."""
    if isinstance(value, np.ndarray):
        has_rows = value.size and value.ndim
        if has_rows:
            return change(value)
        return value
    if is_dataclass(value) and not isinstance(value, type):
        changed = {
            field.name: _with_rows(getattr(value, field.name), change)
            for field in fields(value)
            if field.init and not field.metadata.get("known_to_all")
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
    """Metric of all nodes that gathers their rows and measures other metrics on the root."""

    engine: Engine
    share: Share
    meters: list[Metric]

    @property
    def watches(self) -> tuple[str, ...]:
        """Names of all fields of `Before` that one of the metrics watches."""
        return tuple(sorted({name for meter in self.meters for name in meter.watches}))

    @property
    def memory(self) -> Any:
        """Memory of each metric, on the root; None elsewhere."""
        if not self.engine.is_root:
            return None
        return [meter.memory for meter in self.meters]

    def recall(self, memory: Any) -> None:
        """Resume each metric with its memory, on the root."""
        for meter, meter_memory in zip(self.meters, memory or (), strict=False):
            meter.recall(meter_memory)

    def observe(self, before: Before) -> None:
        """Gather the watched facts of all nodes on the root, which passes them to its metrics."""
        all_nodes_before = Before(
            *(None if rows is None else self.engine.rows(rows) for rows in before)
        )
        if self.engine.is_root:
            for meter in self.meters:
                meter.observe(all_nodes_before)
        if before.parameters is not None:  # regret may fail on the root: all learn of it here
            self.engine.agree()

    def values(self, after: After) -> dict[str, Value]:
        """Return the metrics' values over all nodes by name, on the root; empty elsewhere.

        Every rank must call it, as rows are gathered.
        """
        communication = self.share.algorithm.communication
        parameters = after.parameters
        if communication != "server" and self._has_row_each(parameters):
            parameters = self.engine.rows(parameters)
        received = after.received
        if communication in ROW_EACH:
            received = self.engine.rows(received)
        bits = after.bits
        if not isinstance(bits, int):
            bits = self.engine.rows(bits)
        values: dict[str, Value] = {}
        if self.engine.is_root:
            all_nodes_after = After(parameters, received, bits)
            for meter in self.meters:
                values |= meter.values(all_nodes_after)
        self.engine.agree()
        return values

    def _has_row_each(self, parameters: Floats) -> bool:
        """Return True if parameters have a row for each node, and no shared rows."""
        rows = sum(self.engine.everyone(len(parameters)))
        return rows == self.share.total

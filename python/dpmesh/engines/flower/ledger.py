"""The client's own ledger: its releases so far, against which its budget is checked."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpmesh._extras import needed_by
from dpmesh._validate import fail
from dpmesh.privacy.budget import Budget
from dpmesh.privacy.ledger import Ledger
from dpmesh.privacy.mechanisms import Mechanism, mechanism_named
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release

with needed_by("the engine 'flower'"):
    from flwr.app import Context, MetricRecord

FILE = "dpmesh-ledger"
"""Names the file in a SuperNode's ``--node-config``."""

STATE = "dpmesh-ledger"
"""Names the record in a client's ``context.state``."""

PATIENCE = 60.0
"""Seconds to wait for other writers of the file."""

Noise = tuple[str, float]
"""What the cost of a release depends on: the name of its mechanism and its noise multiplier."""


def admit(release: Release, past: Iterable[Noise], budget: Budget | None) -> None:
    """Fail unless a budget has room for a release, after those of the past.

    Raises
    ------
    OverBudget
        A `ValueError`, which reveals public numbers only.
    """
    ledger = Ledger(Plan(releases=(), neighboring_relation="replace_one", unit="user"), budget)
    ledger.restore(replace(release, mechanism=_mechanism(*noise)) for noise in past)
    ledger.admit(release, None)


def _mechanism(name: str, noise_multiplier: float) -> Mechanism:
    """Return a mechanism that costs what the one of this name did: its grid does not count."""
    grid = 1.0 if name.startswith("discrete_") else None
    return mechanism_named(name, noise_multiplier, grid=grid)


def write_down(
    release: Release, context: Context, budget: Budget | None, *, simulation: bool
) -> None:
    """Add a release to the client's ledger: the file of its node, else its state in Flower.

    Raises
    ------
    OverBudget
        If the budget has no room for it; nothing is added.
    ValueError
        If the file is not named by an absolute path, or there is a budget and no file, outside of a
        simulation.
    sqlite3.Error
        If it is not a database, cannot be written, or others write for a minute.
    """
    file = context.node_config.get(FILE)
    if file is None:
        if budget is not None and not simulation:
            wanted = "a file that keeps the budget, in --node-config, unless simulation=True"
            fail(FILE, wanted, "none")
        _into_state(release, context, budget)
    else:
        _into_file(release, Path(str(file)), budget)


def _into_state(release: Release, context: Context, budget: Budget | None) -> None:
    held: dict[Any, Any] = dict(context.state.get(STATE, {}))
    past = [(name, multiplier) for name, multipliers in held.items() for multiplier in multipliers]
    admit(release, past, budget)
    held[release.name] = [*held.get(release.name, ()), release.noise_multiplier]
    context.state[STATE] = MetricRecord(held)


def _into_file(release: Release, path: Path, budget: Budget | None) -> None:
    if not path.is_absolute():  # an app's working directory is not always the same
        fail(FILE, "an absolute path in --node-config", "a relative one")
    with closing(sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)) as file, file:
        file.execute("BEGIN IMMEDIATE")  # from here on nobody else writes
        file.execute("CREATE TABLE IF NOT EXISTS releases (mechanism TEXT, noise_multiplier REAL)")
        past = file.execute("SELECT mechanism, noise_multiplier FROM releases")
        admit(release, past, budget)
        noise = release.name, release.noise_multiplier
        file.execute("INSERT INTO releases VALUES (?, ?)", noise)

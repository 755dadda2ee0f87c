"""The client's own ledger: its releases so far, against which its budget is checked."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from dpmesh._extras import needed_by
from dpmesh._validate import fail
from dpmesh.privacy.budget import Budget
from dpmesh.privacy.ledger import Ledger
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release

with needed_by("the engine 'flower'"):
    from flwr.app import ConfigRecord, Context

FILE = "dpmesh-ledger"
"""Names the file in a SuperNode's ``--node-config``."""

STATE = "dpmesh-ledger"
"""Names the record in a client's ``context.state``."""

PATIENCE = 60.0
"""Seconds to wait for other writers of the file."""


def admit(release: Release, past: Iterable[str], budget: Budget | None) -> None:
    """Fail unless a budget has room for a release, after those of the past, in JSON.

    Raises
    ------
    OverBudget
        A `ValueError`, which reveals public numbers only.
    """
    ledger = Ledger(Plan(releases=(), neighboring_relation="replace_one", unit="user"), budget)
    ledger.restore(Release.from_dict(json.loads(each)) for each in past)
    ledger.admit(release, None)


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
    record = context.state.get(STATE)
    past: Any = [] if record is None else record["releases"]
    admit(release, past, budget)
    context.state[STATE] = ConfigRecord({"releases": [*past, _in_json(release)]})


def _into_file(release: Release, path: Path, budget: Budget | None) -> None:
    if not path.is_absolute():  # an app's working directory is not always the same
        fail(FILE, "an absolute path in --node-config", "a relative one")
    with closing(sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)) as file, file:
        file.execute("BEGIN IMMEDIATE")  # from here on nobody else writes
        file.execute("CREATE TABLE IF NOT EXISTS releases (release TEXT)")
        past = file.execute("SELECT release FROM releases").fetchall()
        admit(release, (each for (each,) in past), budget)
        file.execute("INSERT INTO releases VALUES (?)", (_in_json(release),))


def _in_json(release: Release) -> str:
    return json.dumps(release.as_dict())

"""Finished runs in folders."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dpmesh._networks import MakeNetwork
from dpmesh._privacy_types import Released
from dpmesh._validate import fail
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.report import Report
from dpmesh.run import History, Traffic
from dpmesh.run.baselines import Baselines
from dpmesh.run.measures import Measures
from dpmesh.run.populations import Population
from dpmesh.run.run import Tabled, released_model
from dpmesh.tables.models import Model, Outline

FAILED = "failed.txt"
"""In the folder of a run that failed: why."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Result(Tabled):
    """What a run's folder holds.

    Parameters
    ----------
    changes
        What this cell of a sweep sets, by key; nothing without a sweep.
    run
        As `Run.as_dict`.
    graph
        As `Experiment.graph`; None without a file of settings.
    folder
        Where it is.

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> from dpmesh.experiments import Result
    >>> data = dm.data.unit_norm(dm.data.breast_cancer())
    >>> problem = dm.LinearProblem(data, dm.data.iid(data, 4, np.random.default_rng(0)), "hinge")
    >>> run = dm.simulate(dm.OnlineLearning(epsilon=2.0), problem, dm.topology.ring(4), rounds=5)
    >>> folder = tempfile.mkdtemp()
    >>> run.save(folder)
    >>> Result.load(folder).privacy == run.privacy
    True
    """

    changes: dict[str, Any]
    run: dict[str, Any]
    graph: dict[str, Any] | None
    folder: Path

    def __repr__(self) -> str:
        changes = [f"{key:<11} {value}" for key, value in self.changes.items()]
        return "\n".join([*changes, super().__repr__()])

    @property
    def settings(self) -> dict[str, str | int]:
        """The algorithm, the network and the number of rounds, in words."""
        settings: dict[str, str | int] = self.run["settings"]
        return settings

    @property
    def history(self) -> History:
        """The measurements."""
        return History.from_dicts(self.run["history"])

    @property
    def ledger(self) -> Plan:
        """What it released, from which its cost can be computed again."""
        return Plan.from_dict(self.run["ledger"])

    @property
    def traffic(self) -> Traffic:
        """What it sent."""
        return Traffic(**self.run["traffic"])

    @property
    def privacy(self) -> Report:
        """The privacy report."""
        return Report.from_dict(self.run["privacy"])

    @property
    def measured(self) -> Measures | None:
        """What the released models reach: see `Run.measured`."""
        found: Measures | None = self.run.get("measured")
        return found

    @property
    def baselines(self) -> Baselines | None:
        """What it compares with: see `Run.baselines`."""
        saved = self.run.get("baselines")
        return None if saved is None else Baselines.from_dict(saved)

    @property
    def population(self) -> Population | None:
        """Scores on each node's own test records: see `Run.population`."""
        saved = self.run.get("population")
        return None if saved is None else Population.from_dict(saved)

    @property
    def released(self) -> Released:
        """The models to publish, as `Run.released`."""
        return Released(np.load(self.folder / "released.npy"))

    def model(self, node: int | None = None, *, network: str | MakeNetwork | None = None) -> Model:
        """Return a released model that predicts, as `Run.model`.

        Parameters
        ----------
        node
            By default the mean of all released models.
        network
            Of a network, the function that makes it, as in `Model.load`.

        Raises
        ------
        ValueError
            If there is no such node, or nothing states what the released numbers stand for.
        OSError
            If `released` cannot be read.
        """
        saved = self.run.get("outline")
        outline = None if saved is None else Outline.from_dict(saved, network)
        return released_model(outline, self.released, self.privacy, node)

    @classmethod
    def load(cls, folder: str | Path) -> Result:
        """Read the folder of a run of ``dpmesh run``, or one that `Run.save` wrote.

        Raises
        ------
        OSError
            If there is none.
        """
        folder = Path(folder)
        if not (folder / "run.json").exists():
            runs = sorted(file.parent for file in folder.glob("*/run.json"))
            hint = f"; name one of its runs, such as {runs[0]}" if runs else ""
            raise FileNotFoundError(f"{folder} is not the folder of a run{hint}")
        run = json.loads((folder / "run.json").read_text())
        if not is_finished(folder):
            return cls(changes={}, run=run, graph=None, folder=folder)
        content = json.loads((folder / "result.json").read_text())
        changes, graph = content["changes"], content["graph"]
        return cls(changes=changes, run=run, graph=graph, folder=folder)


def is_finished(folder: Path) -> bool:
    """Whether a folder holds a result."""
    return (folder / "result.json").exists()


def finished(folder: Path) -> tuple[list[Result], Any]:
    """Return the results in a folder or one level below, and the settings of the sweep.

    Results are sorted by their changes. Without a sweep there are the settings of each run, by
    the name of its folder.
    """
    places = [folder, *sorted(folder.glob("*"))] if folder.is_dir() else []
    note = folder / "settings.json"
    if note.exists():
        finished = (Result.load(place) for place in places if is_finished(place))
        return _some(sorted(finished, key=_order), folder), json.loads(note.read_text())
    saved = {p.name: Result.load(p) for p in places if (p / "run.json").exists()}
    results = _some(list(saved.values()), folder)
    if len(results) == 1:
        return results, results[0].settings
    named = [replace(run, changes=run.changes or {"run": name}) for name, run in saved.items()]
    return sorted(named, key=_order), {name: run.settings for name, run in saved.items()}


def failures(folder: Path) -> dict[str, str]:
    """Return why runs of a sweep failed, by the names of their folders."""
    return {
        note.parent.name: note.read_text("utf-8") for note in sorted(folder.glob(f"*/{FAILED}"))
    }


def _some(results: list[Result], folder: Path) -> list[Result]:
    if not results:
        fail("folder", "one with finished runs of dpmesh run, or of Run.save", folder)
    return results


def _order(result: Result) -> Any:
    """Return the sort key of a result: numbers by size, before texts."""
    return [
        (isinstance(v, (dict, list, str)), v if isinstance(v, (int, float)) else 0, str(v))
        for v in result.changes.values()
    ]

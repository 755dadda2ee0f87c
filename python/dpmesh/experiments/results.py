"""Finished runs in folders: `Result` reads one run, `load_results` all runs of a folder.

A run folder holds ``run.json``, ``released.npy``, and for a run of ``dpmesh run`` also
``result.json`` with the changed settings.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dpmesh._files import JsonObject
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
"""Name of the file with the error, in the folder of a failed run."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Result(Tabled):
    """A finished run, read from its folder.

    Parameters
    ----------
    changes
        Settings of this combination of a sweep, by key; empty without a sweep.
    run
        The run in plain types, as `Run.as_dict` returns it.
    graph
        The communication graph, as `Experiment.graph` returns it; None without a graph, and for a
        run that `Run.save` wrote.
    folder
        Folder of the run.

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

    changes: JsonObject
    run: JsonObject
    graph: JsonObject | None
    folder: Path

    def __repr__(self) -> str:
        changes = [f"{key:<11} {value}" for key, value in self.changes.items()]
        return "\n".join([*changes, super().__repr__()])

    @property
    def settings(self) -> dict[str, str | int]:
        """Algorithm, communication graph and number of rounds, as text."""
        settings: dict[str, str | int] = self.run["settings"]
        return settings

    @property
    def history(self) -> History:
        """Measurements of the metrics over the rounds."""
        return History.from_dicts(self.run["history"])

    @property
    def ledger(self) -> Plan:
        """The noisy releases of the run, from which epsilon can be recomputed."""
        return Plan.from_dict(self.run["ledger"])

    @property
    def traffic(self) -> Traffic:
        """Numbers of messages and bits that the nodes sent."""
        return Traffic(**self.run["traffic"])

    @property
    def privacy(self) -> Report:
        """The privacy report."""
        return Report.from_dict(self.run["privacy"])

    @property
    def measured(self) -> Measures | None:
        """Measures of the released models: see `Run.measured`."""
        measures: Measures | None = self.run.get("measured")
        return measures

    @property
    def baselines(self) -> Baselines | None:
        """The baselines: see `Run.baselines`."""
        saved = self.run.get("baselines")
        if saved is None:
            return None
        return Baselines.from_dict(saved)

    @property
    def population(self) -> Population | None:
        """Scores on each node's own test records: see `Run.population`."""
        saved = self.run.get("population")
        if saved is None:
            return None
        return Population.from_dict(saved)

    @property
    def released(self) -> Released:
        """The released models, as `Run.released`."""
        return Released(np.load(self.folder / "released.npy"))

    def model(self, node: int | None = None, *, network: str | MakeNetwork | None = None) -> Model:
        """Return a released model for prediction, as `Run.model`.

        Parameters
        ----------
        node
            Index of the node whose model is returned; None for the mean of all released models.
        network
            Function that returns the network, as in `Model.load`, if the model is a network.

        Raises
        ------
        ValueError
            If there is no such node, or the run has no outline of its model.
        OSError
            If the file of released models cannot be read.
        """
        outline: Outline | None = None
        saved = self.run.get("outline")
        if saved is not None:
            outline = Outline.from_dict(saved, network)
        return released_model(outline, self.released, self.privacy, node)

    @classmethod
    def load(cls, folder: str | Path) -> Result:
        """Read the folder of one run: of ``dpmesh run``, or written by `Run.save`.

        Raises
        ------
        OSError
            If the folder is not that of a run.
        """
        folder = Path(folder)
        if not (folder / "run.json").exists():
            runs = sorted(file.parent for file in folder.glob("*/run.json"))
            hint = ""
            if runs:
                hint = f"; name one of its runs, such as {runs[0]}"
            raise FileNotFoundError(f"{folder} is not the folder of a run{hint}")
        run = json.loads((folder / "run.json").read_text())
        if not is_finished(folder):
            return cls(changes={}, run=run, graph=None, folder=folder)
        content = json.loads((folder / "result.json").read_text())
        return cls(changes=content["changes"], run=run, graph=content["graph"], folder=folder)


def is_finished(folder: Path) -> bool:
    """Return True if a folder holds a result."""
    return (folder / "result.json").exists()


def load_results(folder: Path) -> tuple[list[Result], JsonObject]:
    """Load all results in a folder or one level below, and their settings.

    Returns
    -------
    The results, sorted by their changes. And the settings: of the sweep; without a sweep of the
    only run, or of each run by the name of its folder.

    Raises
    ------
    ValueError
        If there are no results.
    """
    folders: list[Path] = []
    if folder.is_dir():
        folders = [folder, *sorted(folder.glob("*"))]
    sweep_settings = folder / "settings.json"
    if sweep_settings.exists():
        results = [Result.load(run_folder) for run_folder in folders if is_finished(run_folder)]
        _require_some(results, folder)
        return sorted(results, key=_order), json.loads(sweep_settings.read_text())
    runs = {
        run_folder.name: Result.load(run_folder)
        for run_folder in folders
        if (run_folder / "run.json").exists()
    }
    results = [*runs.values()]
    _require_some(results, folder)
    if len(results) == 1:
        return results, dict(results[0].settings)
    named = [replace(run, changes=run.changes or {"run": name}) for name, run in runs.items()]
    return sorted(named, key=_order), {name: run.settings for name, run in runs.items()}


def failures(folder: Path) -> dict[str, str]:
    """Return the error of each failed run of a sweep, by the name of its folder."""
    return {
        error_file.parent.name: error_file.read_text("utf-8")
        for error_file in sorted(folder.glob(f"*/{FAILED}"))
    }


def _require_some(results: list[Result], folder: Path) -> None:
    """Fail if a folder holds no results."""
    if not results:
        fail("folder", "one with finished runs of dpmesh run, or of Run.save", folder)


def _order(result: Result) -> list[tuple[bool, float, str]]:
    """Return the sort key of a result, from the values of its changes."""
    return [_order_of_value(value) for value in result.changes.values()]


def _order_of_value(value: object) -> tuple[bool, float, str]:
    """Return the sort key of a value: numbers by size, before texts."""
    is_text = isinstance(value, (dict, list, str))
    number = value if isinstance(value, (int, float)) else 0
    return is_text, number, str(value)

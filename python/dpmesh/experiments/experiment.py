"""What a file describes: data, nodes, network, algorithm, and one run of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import dpmesh.topology as topology
from dpmesh._files import replace_text, writable_folder
from dpmesh._networks import MakeNetwork
from dpmesh._validate import integer, probability
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.experiments.algorithm import algorithm_of
from dpmesh.experiments.records import Records
from dpmesh.experiments.sources import source_of
from dpmesh.keys import Key
from dpmesh.models import Model, Outline
from dpmesh.privacy.budget import Budget
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.report import Report
from dpmesh.privacy.types import Released
from dpmesh.run import History, Metrics, Network, Run, Traffic, simulate
from dpmesh.run.baselines import Baselines
from dpmesh.run.carriers import all_linked
from dpmesh.run.engine import Engine
from dpmesh.run.measures import Measures
from dpmesh.run.run import Tabled, released_model
from dpmesh.settings import Settings
from dpmesh.settings.parts import SECTIONS, entries
from dpmesh.topology import Topology

CHECKPOINT = "checkpoint"
"""In the folder of a run that is not finished: its file of private state."""

EDGES_SHOWN = 2000
"""A graph with more links is not drawn in a report."""


PUBLIC = "numbers of nodes, records, features and classes are public, and so are test records"
"""What an experiment reads off its data, and its report names."""


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How long a run is, and what is measured.

    Parameters
    ----------
    rounds
        Number of rounds.
    seed
        Makes the run reproducible, and so not private; by default its key comes from the operating
        system.
    delta
        For the privacy report; by default that of the budget, or else the algorithm's own, if it
        has one, or 0.
    metrics
        Names of metrics: loss, accuracy, regret, consensus_distance, compression, node_accuracy; by
        default all but the last, as far as the problem and the algorithm allow.
    every
        Measure every that many rounds; by default about 25 times in a run.
    """

    rounds: int
    seed: int | None = None
    delta: float | None = None
    metrics: tuple[str, ...] | None = None
    every: int | None = None

    def __post_init__(self) -> None:
        integer("rounds", self.rounds, at_least=1)
        if self.seed is not None:
            integer("seed", self.seed)
        if self.delta is not None:
            probability("delta", self.delta, one=False)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A run without its data."""

    settings: Settings
    run: RunSettings
    nodes: int
    key: Key
    algorithm: AnyAlgorithm
    topology: Topology | None
    network: Network | None
    budget: Budget | None

    @classmethod
    def of(cls, settings: Settings) -> Experiment:
        """Return what the settings describe; the data are loaded when it is run.

        Raises
        ------
        ValueError
            If a setting does not fit; the message names the file, the line and the key.
        """
        _check_tables(settings)
        run: RunSettings = settings.make("run", settings.table("run"), {"run": RunSettings})
        key = Key.generate() if run.seed is None else Key.seeded(run.seed)
        data = Records(settings, key)
        nodes = data.nodes()
        graph_of, graph = partial(_topology, settings, nodes, key), None
        public: Any = {"nodes": nodes, "rounds": run.rounds, "delta": run.delta}
        algorithm = algorithm_of(settings, **public, problem=data.problem, topology=graph_of)
        if "topology" in settings.content and algorithm.travels == "gossip":
            graph = graph_of()  # others of a sweep need none
            if "first_stage" in settings.content:
                settings.call("topology", all_linked, matrix=graph.matrix(0))
        budget, network = _part(settings, "budget"), _part(settings, "network")
        plan = algorithm.plan if budget is None else partial(budget.require, algorithm)
        if "view" in settings.content:
            if budget is None or graph is None:
                settings.fail("view", "wanted tables [budget] and [topology] beside it, got none")
            table = settings.table("view")
            view = settings.make("view", table, SECTIONS["view"], topology=graph)
            budget = replace(budget, view=view)
            plan = partial(budget.require, algorithm, problem=data.problem())
        settings.call("run", plan, rounds=run.rounds)
        scores = getattr(getattr(algorithm, "controller", None), "scores_public_data", False)
        if scores and not settings.table("data").get("public_fraction"):
            wanted = "wanted more than 0, for a controller that scores released models"
            settings.fail("data.public_fraction", f"{wanted}, got none")
        return cls(
            settings=settings,
            run=run,
            nodes=nodes,
            key=key,
            algorithm=algorithm,
            topology=graph,
            network=network,
            budget=budget,
        )

    def problem(self) -> Any:
        """Load the data, set some aside for testing, and partition the rest."""
        return Records(self.settings, self.key).problem()

    def simulate(
        self,
        checkpoint: Path | None = None,
        callback: Callable[[int, Any], None] | None = None,
        progress: bool | None = None,
        engine: Engine | None = None,
    ) -> Run:
        """Run it; with a seed and a checkpoint it can be interrupted."""
        loaded = Records(self.settings, self.key).load()
        algorithm: Any = self.algorithm
        if loaded.public is not None and hasattr(algorithm, "public_data"):
            algorithm = replace(algorithm, public_data=loaded.public)
        wanted: dict[str, Any] = {"metrics": self.run.metrics, "every": self.run.every}
        wanted |= {"callback": callback, "progress": progress}
        measured = self.settings.call("run", Metrics, **wanted)
        run: Run = self.settings.call(
            "run",
            simulate,
            algorithm=algorithm,
            problem=loaded.problem,
            topology=self.topology,
            rounds=self.run.rounds,
            key=self.key,
            delta=self.run.delta,
            budget=self.budget,
            metrics=measured,
            engine=engine or self.network,
            checkpoint=checkpoint if self.key.is_seeded else None,
        )
        privacy = run.privacy
        if privacy.is_private:
            privacy = replace(privacy, assumptions=(*privacy.assumptions, PUBLIC))
        return replace(run, privacy=privacy)

    def graph(self) -> dict[str, Any] | None:
        """Return the graph of the first round in plain types, for a report."""
        if self.topology is None:
            return None
        matrix, table = self.topology.matrix(0), self.settings.table("topology")
        few = matrix.messages // 2 <= EDGES_SHOWN and matrix.is_symmetric
        return {
            "description": str(self.topology),
            "nodes": self.nodes,
            "spectral_gap": matrix.spectral_gap,
            "edges": matrix.edges.tolist() if few else None,
            "grid": [table["rows"], table["columns"]] if table["kind"] == "torus" else None,
        }


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


def run_into(
    folder: Path,
    experiment: Experiment,
    changes: Mapping[str, Any],
    callback: Callable[[int, Any], None] | None = None,
    progress: bool | None = None,
    engine: Engine | None = None,
) -> None:
    """Run an experiment that makes these changes, and save its releases and results.

    On an engine only the root saves.
    """
    writable_folder(folder)
    checkpoint = folder / CHECKPOINT
    run = experiment.simulate(checkpoint, callback, progress, engine)
    if engine is not None and not engine.is_root:
        return
    run.save(folder)
    run.history.to_csv(folder / "history.csv")
    result = {"changes": changes, "graph": experiment.graph()}
    replace_text(folder / "result.json", json.dumps(result, indent=1))  # last: the run is finished
    checkpoint.unlink(missing_ok=True)


def _part(settings: Settings, name: str) -> Any:
    """Return what a table describes that may be left out."""
    if name not in settings.content:
        return None
    return settings.make(name, settings.table(name), SECTIONS[name])


def _check_tables(settings: Settings) -> None:
    """Fail unless all tables are there, and those that are made with the data fit."""
    settings.known("", settings.content, ["run", "data", *SECTIONS, "sweep"])
    own_files = "files" in settings.table("data")
    needed = ("run", "data", "algorithm") + (() if own_files else ("partition", "problem"))
    for name in needed:
        if name not in settings.content:
            settings.fail(name, f"wanted a table [{name}], got none")
    source = source_of(settings.table("data"))
    settings.arguments("data", settings.table("data"), entries(source))
    for name in ("partition", "problem"):
        if name in settings.content:
            settings.part(name, settings.table(name), SECTIONS[name])


def _topology(settings: Settings, nodes: int, key: Key) -> Topology:
    table = dict(settings.table("topology"))
    keep = settings.convert("topology.keep", table.pop("keep", 1.0), float)
    rows, columns = table.get("rows"), table.get("columns")
    if type(rows) is type(columns) is int and rows * columns != nodes:  # before it is made
        wanted = f"wanted rows x columns = {nodes}, the nodes of the partition"
        settings.fail("topology.rows", f"{wanted}, got {rows} x {columns}")
    graph: Topology = settings.make("topology", table, SECTIONS["topology"], nodes=nodes, key=key)
    if keep == 1.0:
        return graph
    dropping: Topology = settings.call(
        "topology", topology.edge_dropping, base=graph, keep=keep, key=key
    )
    return dropping

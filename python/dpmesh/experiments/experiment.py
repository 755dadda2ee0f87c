"""What a file describes: data, nodes, network, algorithm, and one run of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

import dpmesh.data as data
import dpmesh.keys as keys
import dpmesh.topology as topology
from dpmesh._files import replace_text, writable_folder
from dpmesh._validate import fail, instance, integer, probability
from dpmesh.algorithms import WithoutReplacement
from dpmesh.algorithms.base import AN_ALGORITHM, Algorithm, AnyAlgorithm
from dpmesh.controllers import DeepQ
from dpmesh.data import Dataset
from dpmesh.experiments.parts import SECTIONS, Maker, entries
from dpmesh.experiments.settings import Settings
from dpmesh.keys import Key, Purpose
from dpmesh.privacy.budget import Budget
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.report import Report
from dpmesh.problems import LinearProblem
from dpmesh.run import History, Network, Run, simulate
from dpmesh.run.engine import Engine
from dpmesh.run.run import Traffic, in_words
from dpmesh.topology import Topology

CHECKPOINT = "checkpoint"
"""In the folder of a run that is not finished: its file of private state."""

EDGES_SHOWN = 2000
"""A graph with more links is not drawn in a report."""


def load(
    source: Literal[
        "digits", "breast_cancer", "mnist", "svhn", "rcv1", "covertype", "csv", "libsvm"
    ],
    folder: str | None = None,
    file: str | None = None,
    dim: int | None = None,
    records: int | None = None,
    positive: tuple[int, ...] | None = None,
    test_fraction: float = 0.2,
    public_fraction: float = 0.0,
    unit_norm: bool = True,
    *,
    generator: np.random.Generator,
) -> tuple[Dataset, Dataset, Dataset | None]:
    """Return the records to train on, those to test on, and public ones, if there are any.

    Parameters
    ----------
    source
        Which data set: digits or breast_cancer, which ship with scikit-learn, mnist, svhn, rcv1 or
        covertype, or a file of your own, csv or libsvm.
    folder
        Where its files are; by default the subfolder of that name in the folder DPMESH_DATA.
    file
        Your own file: a table of numbers, the label last ("csv"), or LIBSVM's format.
    dim
        Number of features in LIBSVM's format, from public knowledge; by default the largest index
        in the file, which a single record may decide and every released model shows.
    records
        Use only that many records, the first ones; by default all.
    positive
        Labels that become +1, the others -1; by default labels stay as they are.
    test_fraction
        Fraction that is set aside for testing, in (0, 1).
    public_fraction
        Fraction of the others that is public and held by no node, in [0, 1): a controller DeepQ
        with sees = "released" scores models on it.
    unit_norm
        Whether each record is divided by its L2 norm.
    generator
        Source of the order, from which the fractions are cut.
    """
    dataset = _read(source, folder, file, dim)
    if positive is not None and not np.isin(dataset.labels, positive).any():
        fail("positive", f"labels of {dataset.name}", list(positive))
    if records is not None:
        count = integer("records", records, at_least=1, below=dataset.records + 1)
        dataset = dataset.take(np.arange(count))
    if positive is not None:
        dataset = dataset.relabelled(lambda label: np.where(np.isin(label, positive), 1, -1))
    if unit_norm:
        dataset = data.unit_norm(dataset)
    probability("test_fraction", test_fraction, zero=False, one=False)
    probability("public_fraction", public_fraction, one=False)
    train, test = data.train_test_split(dataset, test_fraction, generator)
    public = None
    if public_fraction > 0:
        train, public = data.train_test_split(train, public_fraction, generator)
    return train, test, public


def _read(source: str, folder: str | None, file: str | None, dim: int | None) -> Dataset:
    own: dict[str, Maker] = {"csv": data.read_csv, "libsvm": partial(data.read_libsvm, dim=dim)}
    if dim is not None and source != "libsvm":
        fail("dim", f"none for the source {source!r}, whose files have it", dim)
    if source in own:
        if file is None:
            fail("file", f"the file of the source {source!r}", "none")
        read: Dataset = own[source](file)
        return read
    if file is not None:
        fail("file", f"none for the source {source!r}, whose files are in a folder", file)
    loader: Maker = getattr(data, source)
    shipped = source in ("digits", "breast_cancer")
    dataset: Dataset = loader() if shipped else loader(folder=folder)
    return dataset


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
        settings.known("", settings.content, ["run", "data", *SECTIONS, "sweep"])
        for name in ("run", "data", "partition", "problem", "algorithm"):
            if name not in settings.content:
                settings.fail(name, f"wanted a table [{name}], got none")
        settings.arguments("data", settings.table("data"), entries(load))
        for name in ("partition", "problem"):  # made when the data are there
            settings.part(name, settings.table(name), SECTIONS[name])
        run: RunSettings = settings.make("run", settings.table("run"), {"run": RunSettings})
        nodes = settings.table("partition").get("nodes")
        if type(nodes) is not int or nodes < 1:
            settings.fail("partition.nodes", f"wanted an integer of at least 1, got {nodes!r}")
        key = Key.generate() if run.seed is None else Key.seeded(run.seed)
        table, kinds = settings.table("algorithm"), SECTIONS["algorithm"]
        algorithm = settings.make("algorithm", table, kinds, nodes=nodes, clients=nodes)
        check = partial(instance, "algorithm", algorithm, AN_ALGORITHM, Algorithm)
        settings.call("algorithm", check)
        budget = None
        if "budget" in settings.content:
            budget = settings.make("budget", settings.table("budget"), SECTIONS["budget"])
        plan = algorithm.plan if budget is None else partial(budget.require, algorithm)
        settings.call("run", plan, rounds=run.rounds)
        learns = isinstance(getattr(algorithm, "controller", None), DeepQ)
        if (
            learns
            and algorithm.controller.public
            and not settings.table("data").get("public_fraction")
        ):
            wanted = "wanted more than 0, for a controller that scores released models"
            settings.fail("data.public_fraction", f"{wanted}, got none")
        graph = network = None
        if "topology" in settings.content:
            graph = _topology(settings, nodes, key)
        if "network" in settings.content:
            network = settings.make("network", settings.table("network"), SECTIONS["network"])
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

    def problem(self) -> LinearProblem:
        """Load the data, set some aside for testing, and partition the rest."""
        return self._with_data()[1]

    def _with_data(self) -> tuple[AnyAlgorithm, LinearProblem]:
        """Return the algorithm with its public data, and the problem."""
        at = self.settings
        arguments = at.arguments("data", at.table("data"), entries(load))
        source = keys.generator(self.key, Purpose.SPLIT)
        train, test, public = at.call("data", load, **arguments, generator=source)
        algorithm = self.algorithm
        if public is not None and isinstance(algorithm, WithoutReplacement):
            algorithm = replace(algorithm, public_data=public)
        kinds = SECTIONS["partition"]
        parts = at.make("partition", at.table("partition"), kinds, dataset=train, generator=source)
        table, kinds = at.table("problem"), SECTIONS["problem"]
        given = {"train": train, "partition": parts, "test": test}
        problem: LinearProblem = at.make("problem", table, kinds, **given)
        return algorithm, problem

    def simulate(
        self,
        checkpoint: Path | None = None,
        callback: Callable[[int, Any], None] | None = None,
        progress: bool | None = None,
        engine: Engine | None = None,
    ) -> Run:
        """Run it; with a seed and a checkpoint it can be interrupted."""
        algorithm, problem = self._with_data()
        run: Run = self.settings.call(
            "run",
            simulate,
            algorithm=algorithm,
            problem=problem,
            topology=self.topology,
            rounds=self.run.rounds,
            key=self.key,
            delta=self.run.delta,
            budget=self.budget,
            metrics=self.run.metrics,
            every=self.run.every,
            network=self.network,
            checkpoint=checkpoint if self.key.is_seeded else None,
            callback=callback,
            progress=progress,
            engine=engine,
        )
        return run

    def graph(self) -> dict[str, Any] | None:
        """Return the graph of the first round in plain types, for a report."""
        if self.topology is None:
            return None
        matrix = self.topology.matrix(0)
        few = matrix.messages // 2 <= EDGES_SHOWN and matrix.is_symmetric
        return {
            "description": str(self.topology),
            "nodes": self.nodes,
            "spectral_gap": matrix.spectral_gap,
            "edges": matrix.edges.tolist() if few else None,
        }


@dataclass(frozen=True, kw_only=True, repr=False)
class Result:
    """What a run's folder holds, apart from ``released.npy``, the models to publish.

    Parameters
    ----------
    changes
        What this cell of a sweep sets, by key; nothing without a sweep.
    run
        As `Run.as_dict`.
    graph
        As `Experiment.graph`; None without a file of settings.
    """

    changes: dict[str, Any]
    run: dict[str, Any]
    graph: dict[str, Any] | None

    def __repr__(self) -> str:
        changes = [f"{key:<11} {value}" for key, value in self.changes.items()]
        said = in_words(self.settings, self.history, self.traffic, self.privacy)
        return "\n".join([*changes, said])

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

    @classmethod
    def load(cls, folder: str | Path) -> Result:
        """Read the folder of a run of ``dpmesh run``, or one that `Run.save` wrote.

        Raises
        ------
        OSError
            If there is none.
        """
        folder = Path(folder)
        run = json.loads((folder / "run.json").read_text())
        if not is_finished(folder):
            return cls(changes={}, run=run, graph=None)
        content = json.loads((folder / "result.json").read_text())
        return cls(changes=content["changes"], run=run, graph=content["graph"])


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

"""`Experiment`: one run that a file of settings describes, from data to privacy report.

`Experiment.of` checks all settings and builds the parts without a run; `Experiment.simulate` loads
the data and runs. `run_into` also saves the result into a folder. `dpmesh.experiments.sweep` calls
these for each combination of settings.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from dpmesh._files import JsonObject, replace_text, writable_folder
from dpmesh._validate import every, integer, probability
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.defaults.run_sizes import RunSizes
from dpmesh.experiments.files import load_files
from dpmesh.experiments.records import Records, load, source_of
from dpmesh.keys import Key
from dpmesh.privacy.budget import Budget
from dpmesh.run import Metrics, Network, Run, simulate
from dpmesh.run.carriers import require_complete
from dpmesh.run.engine import Engine
from dpmesh.run.metrics import Callback
from dpmesh.settings import Settings
from dpmesh.settings.assembler import assemble, fail_without_topology
from dpmesh.settings.format import FORMAT, check_format
from dpmesh.settings.parts import INNER_KINDS, SECTIONS, Maker, installed_kinds, part_fields
from dpmesh.topology import Topology

Changes: TypeAlias = Mapping[str, Any]
"""Settings that one combination of a sweep replaces: values by key, such as ``"run.seed"``."""

CHECKPOINT = "checkpoint"
"""Name of the file of private state in the folder of an unfinished run."""

EDGES_SHOWN = 2000
"""Largest number of links of a graph that a report draws."""

PUBLIC = "numbers of nodes, records, features and classes are public, and so are test records"
"""Assumption that an experiment adds to its privacy report."""

_KEEP = "Each link is up in a round with this probability; by default always."
_EPSILON = (
    "Budget of the run at run.delta, from which the noise is calibrated, or "
    '"none", instead of the noise.'
)
_SWEEP = (
    "Lists of values by key, such as algorithm.epsilon = [1.0, 4.0], and seeds: "
    "every combination is run."
)


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Length of a run, and its measurements.

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
        every(self, integer, "rounds", at_least=1)
        every(self, integer, "seed")
        every(self, probability, "delta", one=False)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A run that settings describe, built and checked, without its data.

    Parameters
    ----------
    settings
        The settings.
    run
        Number of rounds, seed and metrics.
    nodes
        Number of nodes.
    key
        Key of all randomness: seeded by ``run.seed``, or fresh.
    algorithm
        The algorithm, with its noise calibrated.
    topology
        Communication graph of gossip; None for other algorithms.
    network
        Conditions of a simulated network (latency, failures); None for an ideal network.
    budget
        Privacy budget that the run must keep; None without a stated budget.
    """

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
        """Build the experiment that settings describe, and check that its plan keeps the budget.

        The data are loaded only where sizes or a threat model depend on them.

        Raises
        ------
        ValueError
            If a setting is invalid. The message names the file, the line and the key.
        """
        settings = replace(settings, installed=True)
        _check_tables(settings)
        run: RunSettings = settings.make("run", settings.table("run"), {"run": RunSettings})
        key = Key.generate()
        if run.seed is not None:
            key = Key.seeded(run.seed)
        data = Records(settings, key)
        nodes = data.nodes()
        make_graph = partial(settings.graph, nodes, key)
        has_topology = "topology" in settings.content
        sizes = RunSizes(
            nodes=nodes,
            rounds=run.rounds,
            data=data.sizes,
            topology=make_graph if has_topology else None,
        )
        algorithm = assemble(settings, sizes, delta=run.delta)
        graph: Topology | None = None
        if has_topology and algorithm.communication == "gossip":
            graph = make_graph()
            if "first_stage" in settings.content:
                settings.call("topology", require_complete, matrix=graph.matrix(0))
        budget: Budget | None = _optional_part(settings, "budget")
        network: Network | None = _optional_part(settings, "network")
        plan = algorithm.plan if budget is None else partial(budget.require, algorithm)
        if "view" in settings.content:
            if budget is None or graph is None:
                settings.fail("view", "wanted tables [budget] and [topology] beside it, got none")
            table = settings.table("view")
            view = settings.make("view", table, SECTIONS["view"], topology=graph)
            budget = replace(budget, view=view)
            plan = partial(budget.require, algorithm, problem=data.problem())
        settings.call("run", plan, rounds=run.rounds)  # raises an error of the plan before a run
        _require_public_data(settings, algorithm)
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
        """Load the data, split off test records, and partition the training records."""
        return Records(self.settings, self.key).problem()

    def simulate(
        self,
        checkpoint: Path | None = None,
        callback: Callback | None = None,
        progress: bool | None = None,
        engine: Engine | None = None,
    ) -> Run:
        """Run the experiment.

        Parameters
        ----------
        checkpoint
            File of private state, from which an interrupted run with a seed resumes; None for no
            checkpoints. Without a seed it is ignored.
        callback, progress
            As for `dpmesh.Metrics`.
        engine
            Engine that runs the nodes; None for a simulation on the stated network.
        """
        if self.topology is None and self.algorithm.communication == "gossip":
            fail_without_topology(self.settings, type(self.algorithm).__name__)
        loaded = Records(self.settings, self.key).load()
        algorithm: Any = self.algorithm
        if loaded.public is not None and hasattr(algorithm, "public_data"):
            algorithm = replace(algorithm, public_data=loaded.public)
        metrics: Metrics = self.settings.call(
            "run",
            Metrics,
            metrics=self.run.metrics,
            every=self.run.every,
            callback=callback,
            progress=progress,
        )
        resume_file = checkpoint if self.key.is_seeded else None
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
            metrics=metrics,
            engine=engine or self.network,
            checkpoint=resume_file,
        )
        privacy = run.privacy
        if privacy.is_finite:
            privacy = replace(privacy, assumptions=(*privacy.assumptions, PUBLIC))
        return replace(run, privacy=privacy)

    def graph(self) -> JsonObject | None:
        """Return the graph of the first round in plain types, for a report."""
        if self.topology is None:
            return None
        matrix = self.topology.matrix(0)
        table = self.settings.table("topology")
        edges = None
        if matrix.is_symmetric and matrix.messages // 2 <= EDGES_SHOWN:
            edges = matrix.edges.tolist()
        grid = None
        if table["kind"] == "torus":
            grid = [table["rows"], table["columns"]]
        return {
            "description": str(self.topology),
            "nodes": self.nodes,
            "spectral_gap": matrix.spectral_gap,
            "edges": edges,
            "grid": grid,
        }


def run_into(
    folder: Path,
    experiment: Experiment,
    changes: Changes,
    callback: Callback | None = None,
    progress: bool | None = None,
    engine: Engine | None = None,
) -> None:
    """Run an experiment, and save its releases and results into a folder.

    On an engine of several processes, the root process alone saves.

    Parameters
    ----------
    folder
        Folder of the run.
    experiment
        The experiment.
    changes
        Settings of this combination of a sweep, saved with the result.
    callback, progress, engine
        As for `Experiment.simulate`.
    """
    writable_folder(folder)
    checkpoint = folder / CHECKPOINT
    run = experiment.simulate(checkpoint, callback, progress, engine)
    if engine is not None and not engine.is_root:
        return
    run.save(folder)
    run.history.to_csv(folder / "history.csv")
    result = {"changes": changes, "graph": experiment.graph()}
    # written last: a folder with this file is finished
    replace_text(folder / "result.json", json.dumps(result, indent=1))
    checkpoint.unlink(missing_ok=True)


def _optional_part(settings: Settings, name: str) -> Any:
    """Build the object that a table of settings describes; None without the table."""
    if name not in settings.content:
        return None
    return settings.make(name, settings.table(name), SECTIONS[name])


def _require_public_data(settings: Settings, algorithm: AnyAlgorithm) -> None:
    """Fail if the algorithm's controller scores models on public data, and there is none."""
    controller = getattr(algorithm, "controller", None)
    if not getattr(controller, "scores_public_data", False):
        return
    if not settings.table("data").get("public_fraction"):
        expected = "wanted more than 0, for a controller that scores released models"
        settings.fail("data.public_fraction", f"{expected}, got none")


_LEAST_LINES = {
    "run": "rounds = 20, delta = 1e-5",
    "data": 'source = "digits"',
    "algorithm": 'kind = "GradientDescent", epsilon = 1.0',
    "partition": 'kind = "iid", nodes = 4',
    "problem": 'loss = "softmax", classes = 10',
}
"""Example lines of each required table, for the error about a missing table."""


def _check_tables(settings: Settings) -> None:
    """Fail unless all required tables exist, and [data], [partition] and [problem] are valid."""
    settings.known("", settings.content, ["format", "run", "data", *SECTIONS, "sweep"])
    check_format(settings)
    required = ["run", "data", "algorithm"]
    if "files" not in settings.table("data"):
        required += ["partition", "problem"]
    missing = [name for name in required if name not in settings.content]
    if missing:
        tables = ", ".join(f"a table [{name}]" for name in missing)
        lines = "; ".join(f"[{name}] {_LEAST_LINES[name]}" for name in missing)
        settings.fail(missing[0], f"wanted {tables}, got none; add lines such as: {lines}")
    source = source_of(settings.table("data"))
    settings.arguments("data", settings.table("data"), part_fields(source))
    for name in ("partition", "problem"):
        if name in settings.content:
            settings.part(name, settings.table(name), SECTIONS[name])


def all_keys() -> str:
    """Return a text that explains every key of a file of settings, with its default."""
    lines = ["", "first line", f"  format: {FORMAT}, needed where a number sets a noise."]
    tables: dict[str, Maker] = {"[run]": RunSettings, "[data]": load}
    tables["[data] with files of your own"] = load_files
    for section, kinds in SECTIONS.items():
        for kind, maker in kinds.items():
            title = f"[{section}]"
            if len(kinds) > 1:
                title += f' kind = "{kind}"'
            tables[title] = maker
    values = {**INNER_KINDS, **installed_kinds()}
    tables |= {f'{{kind = "{name}"}}': cls for name, cls in values.items()}
    for title, maker in tables.items():
        lines += ["", title]
        for name, entry in part_fields(maker).items():
            has_default = not entry.required and entry.default is not None
            default = f" [{entry.default}]" if has_default else ""
            lines.append(f"  {name}{default}: {entry.text}")
    lines += ["", "[algorithm]", f"  epsilon, for any: {_EPSILON}"]
    lines += ["  clients, records, dim, rounds: those of the data and the run if left out."]
    lines += ["", "[topology]", f"  keep [1.0]: {_KEEP}", "", "[sweep]", f"  {_SWEEP}"]
    return "\n".join(lines[1:])

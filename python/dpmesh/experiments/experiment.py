"""What a file describes: data, nodes, network, algorithm, and one run of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from dpmesh._files import replace_text, writable_folder
from dpmesh._validate import every, integer, probability
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.experiments.files import load_files
from dpmesh.experiments.records import Records, load, source_of
from dpmesh.keys import Key
from dpmesh.privacy.budget import Budget
from dpmesh.run import Metrics, Network, Run, simulate
from dpmesh.run.carriers import all_linked
from dpmesh.run.engine import Engine
from dpmesh.settings import Settings
from dpmesh.settings.assembler import RunSizes, assemble
from dpmesh.settings.format import FORMAT, check_format
from dpmesh.settings.parts import SECTIONS, VALUES, Maker, entries, installed_kinds
from dpmesh.topology import Topology

CHECKPOINT = "checkpoint"
"""In the folder of a run that is not finished: its file of private state."""

EDGES_SHOWN = 2000
"""A graph with more links is not drawn in a report."""

PUBLIC = "numbers of nodes, records, features and classes are public, and so are test records"
"""What an experiment reads off its data, and its report names."""

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
        every(self, integer, "rounds", at_least=1)
        every(self, integer, "seed")
        every(self, probability, "delta", one=False)


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
        settings = replace(settings, installed=True)
        _check_tables(settings)
        run: RunSettings = settings.make("run", settings.table("run"), {"run": RunSettings})
        key = Key.generate() if run.seed is None else Key.seeded(run.seed)
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
        if has_topology and algorithm.travels == "gossip":
            graph = make_graph()  # others of a sweep need none
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
        own: Any = {"topology": graph, "network": network, "budget": budget}
        return cls(settings=settings, run=run, nodes=nodes, key=key, algorithm=algorithm, **own)

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
        how: dict[str, Any] = {"metrics": self.settings.call("run", Metrics, **wanted)}
        how |= {"rounds": self.run.rounds, "delta": self.run.delta, "budget": self.budget}
        how |= {"checkpoint": checkpoint if self.key.is_seeded else None, "key": self.key}
        how |= {"topology": self.topology, "engine": engine or self.network}
        of = {"algorithm": algorithm, "problem": loaded.problem}
        run: Run = self.settings.call("run", simulate, **of, **how)
        privacy = run.privacy
        if privacy.is_finite:
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
    settings.known("", settings.content, ["format", "run", "data", *SECTIONS, "sweep"])
    check_format(settings)
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


def all_keys() -> str:
    """Return every key of a file with its meaning and its default, as text."""
    lines = ["", "first line", f"  format: {FORMAT}, needed where a number sets a noise."]
    tables: dict[str, Maker] = {"[run]": RunSettings, "[data]": load}
    tables["[data] with files of your own"] = load_files
    for section, kinds in SECTIONS.items():
        for kind, maker in kinds.items():
            of_kind = f' kind = "{kind}"' if len(kinds) > 1 else ""
            tables[f"[{section}]{of_kind}"] = maker
    values = {**VALUES, **installed_kinds()}
    tables |= {f'{{kind = "{name}"}}': cls for name, cls in values.items()}
    for title, maker in tables.items():
        lines += ["", title]
        for name, entry in entries(maker).items():
            default = "" if entry.required or entry.default is None else f" [{entry.default}]"
            lines.append(f"  {name}{default}: {entry.text}")
    lines += ["", "[algorithm]", f"  epsilon, for any: {_EPSILON}"]
    lines += ["  clients, records, dim, rounds: those of the data and the run if left out."]
    lines += ["", "[topology]", f"  keep [1.0]: {_KEEP}", "", "[sweep]", f"  {_SWEEP}"]
    return "\n".join(lines[1:])

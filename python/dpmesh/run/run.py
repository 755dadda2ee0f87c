"""A finished simulation: measurements, ledger, cost, traffic and released models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from dpmesh._arrays import FloatArray
from dpmesh._core import __version__
from dpmesh._epsilons import rounded_up
from dpmesh._files import JsonObject, replacing
from dpmesh._html import InNotebooks
from dpmesh._privacy_types import Floats, Released
from dpmesh._table import Table
from dpmesh._validate import fail, integer
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.report import Report
from dpmesh.run.baselines import Baselines, baselines_of_run, measured, population_of
from dpmesh.run.carriers import Traffic
from dpmesh.run.history import History
from dpmesh.run.identity import in_lines
from dpmesh.run.measures import Measures
from dpmesh.run.populations import Population
from dpmesh.run.verdict import Verdict
from dpmesh.tables import Columns
from dpmesh.tables.models import Model, Outline

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def in_words(
    settings: Mapping[str, str | int],
    history: History,
    traffic: Traffic,
    privacy: Report,
    reached: Measures | None,
    baselines: Baselines | None,
    population: Population | None = None,
) -> str:
    """Describe a run: settings, last measurements, traffic, privacy, and verdict.

    The verdict compares the scores of the released model (`reached`) with the baselines.
    """
    lines = []
    for name, value in settings.items():
        if value != "None":
            lines += in_lines(name, str(value))
    released: list[str] = []
    research: list[str] = []
    for name in history.metrics:
        if name == "megabytes":  # traffic has its own line
            continue
        group = research if name in privacy.not_covered else released
        group.append(f"{name} {history.last(name):.4g}")
    if released:
        lines.append(f"at the end  {', '.join(released)}")
    if research:
        lines.append(f"research    {', '.join(research)} (covered by no epsilon)")
    lines.append(f"traffic     {traffic.megabytes:.4g} MB, {traffic.messages} messages")
    lines.append(str(privacy))
    if baselines is not None and reached is not None:
        verdict = compared(reached, baselines, privacy, population)
        lines += ["", str(verdict.table)]
        if population is not None and len(population.tested) > 1:
            lines += ["", str(verdict.population_table)]
        lines += ["", verdict.sentence]
        lines.append("These figures are for research: no epsilon covers the baselines.")
    return "\n".join(lines)


def compared(
    reached: Measures, baselines: Baselines, privacy: Report, population: Population | None = None
) -> Verdict:
    """Return the verdict on one run."""
    epsilon = shown_epsilon(privacy)
    return Verdict(
        measured=[reached],
        baselines_by_split=[baselines],
        epsilon=epsilon,
        unit="run",
        populations=() if population is None else (population,),
        protects=privacy.unit if privacy.is_finite else "",
        adversary=privacy.adversary_in_brief,
    )


def shown_epsilon(privacy: Report) -> float | None:
    """Return epsilon as a report shows it; None without a guarantee."""
    if not privacy.is_finite:
        return None
    return float(rounded_up(privacy.epsilon))


def released_model(
    outline: Outline | None, released: Released, privacy: Report, node: int | None
) -> Model:
    """Return a node's released linear model, or the mean of all, with its privacy report."""
    if outline is None:
        remedy = "of others, problem.model(run.released[node]) makes models"
        fail("run", f"one of a LinearProblem; {remedy}", "another")
    about = {"privacy": privacy.as_dict(), "named": isinstance(outline.columns, Columns)}
    return outline.model(_parameters_of(released, node), about)


def _parameters_of(released: Released, node: int | None) -> FloatArray:
    """Return the released parameters of a node, or the mean of all, shape (dim,)."""
    if node is None:
        return np.asarray(np.mean(released, axis=0, dtype=np.float64), released.dtype)
    if integer("node", node) not in range(len(released)):
        fail("node", f"one of {len(released)} released models, from 0 on", node)
    return np.asarray(released[node])


class _Finished(Protocol):
    """Results that a subclass of `Tabled` has."""

    @property
    def settings(self) -> dict[str, str | int]: ...
    @property
    def history(self) -> History: ...
    @property
    def traffic(self) -> Traffic: ...
    @property
    def privacy(self) -> Report: ...
    @property
    def measured(self) -> Measures | None: ...
    @property
    def baselines(self) -> Baselines | None: ...
    @property
    def population(self) -> Population | None: ...


class Tabled(InNotebooks):
    """Text of a finished run, and its table for a notebook or a paper.

    Base class of `Run` and of `dpmesh.experiments.Result`, a run read from a folder. Both have the
    results that `_Finished` lists.
    """

    def __repr__(self: _Finished) -> str:
        return in_words(
            self.settings,
            self.history,
            self.traffic,
            self.privacy,
            self.measured,
            self.baselines,
            self.population,
        )

    @property
    def score(self: _Finished) -> float | None:
        """Mean accuracy, or R² of a regression, of the released models on the test records.

        If the run has no `measured` scores, as for neural networks, this is the last
        ``released_accuracy`` of the history; None if that was not measured either.
        """
        if self.measured is not None:
            return next(iter(self.measured.values()))
        if "released_accuracy" not in self.history.metrics:
            return None
        return self.history.last("released_accuracy")

    def table(self: _Finished) -> Table:
        """Return a table of the run's scores and its baselines.

        Where there are no `baselines`, the table has the last measurements of the history. `str`
        of the table is text, and notebooks show it; ``to_latex()`` and ``to_csv()`` export it. Its
        scores come from private data without noise: no epsilon covers them.
        """
        if self.measured is not None and self.baselines is not None:
            return compared(self.measured, self.baselines, self.privacy).table
        metrics = self.history.metrics
        last_measurements = [f"{self.history.last(metric):.4g}" for metric in metrics]
        algorithm_name, _, _ = str(self.settings["algorithm"]).partition("(")
        return Table(["at the end", *metrics], [[algorithm_name, *last_measurements]])


@dataclass(frozen=True, kw_only=True, repr=False)
class Run(Tabled):
    """The result of a simulation: released models, privacy report, measurements and traffic.

    `simulate` returns it. Printing a run shows a summary.

    Parameters
    ----------
    settings
        Names of the algorithm and the network, and the number of rounds.
    history
        Metrics of the measured rounds. Most are made from private data without noise: no epsilon
        covers them. ``Metrics("covered")`` measures only metrics that may be published.
    ledger
        The releases that took place. They are the releases of ``algorithm.plan(rounds)``, except
        in rounds in which, by chance, no node released.
    privacy
        The privacy report: epsilon, delta, unit of privacy, neighbouring relation and threat model.
    traffic
        Messages and bits that crossed the network.
    parameters
        The nodes' models after the last round, shape (nodes, dim), or (1, dim) if all nodes share
        one model. No guarantee covers them, unless they follow from releases alone: do not publish
        them.
    released
        The models to publish, of the same shape: computed from the noisy messages of the run
        alone, and covered by `privacy`. For gossip they are each node's last average of received
        messages.
    problem
        The problem with its records, from which `baselines` are computed; None if the records are
        divided among processes. Neither a file nor a pickle of the run holds it.
    outline
        Meaning of the numbers of a linear model (features, classes), which `model` needs; None for
        other models.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> data = dm.data.unit_norm(dm.data.breast_cancer())
    >>> problem = dm.LinearProblem(data, dm.data.iid(data, 4, np.random.default_rng(0)), "hinge")
    >>> run = dm.simulate(dm.OnlineLearning(epsilon=2.0), problem, dm.topology.ring(4), rounds=5)
    >>> run.released.shape, round(run.privacy.epsilon, 3)
    ((4, 30), 2.0)
    """

    settings: dict[str, str | int]
    history: History
    ledger: Plan
    privacy: Report
    traffic: Traffic
    parameters: Floats
    released: Released
    problem: Any = field(default=None, compare=False)
    outline: Outline | None = field(default=None, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        return {
            **vars(self),
            "problem": None,
            "baselines": self.baselines,
            "measured": self.measured,
            "population": self.population,
        }

    @cached_property
    def baselines(self) -> Baselines | None:
        """Majority-class, single-site and centralized baselines on the test records.

        They are computed on first access, which may take seconds. They come from private data
        without noise, and no epsilon covers them. None unless all records are in this process, the
        problem is a `LinearProblem` with test records, and few seconds suffice;
        `dm.baselines.compute` has no such limit.
        """
        return baselines_of_run(self.problem, self.privacy)

    @cached_property
    def measured(self) -> Measures | None:
        """Mean scores of the released models on the test records, by the name of the measure.

        A classification has accuracy, balanced accuracy and, for two classes, AUC; a regression
        has R². None where there are no `baselines`, or the main score is not finite.
        """
        if self.baselines is None:
            return None
        measures = measured(self.problem, self.released)
        if not isfinite(measures[self.baselines.metric]):
            return None
        return measures

    @cached_property
    def population(self) -> Population | None:
        """Scores on test records like each node's own (non-i.i.d. data), and on the rarest class.

        The test records are divided among the nodes by label, so that each node's share resembles
        its training labels. None where there is no `measured`.
        """
        if self.measured is None:
            return None
        return population_of(self.problem, self.released)

    def model(self, node: int | None = None) -> Any:
        """Return a released model, ready to predict, save and export.

        Parameters
        ----------
        node
            Index of the node whose released model is returned. By default the mean of all released
            models, which is post-processing: the privacy report covers it, too.

        Returns
        -------
        A `dpmesh.Model` for a linear problem. For a problem in JAX or PyTorch, what its method
        ``model`` returns.

        Raises
        ------
        ValueError
            If there is no such node, or the run has no `outline`, such as a run of `RecordSums`.
        """
        make_model = getattr(self.problem, "model", None)
        if self.outline is None and make_model is not None:
            return make_model(_parameters_of(self.released, node))
        return released_model(self.outline, self.released, self.privacy, node)

    def plot(self, metric: str = "accuracy", ax: Axes | None = None) -> Axes:
        """Draw one metric over the rounds and return the axes; needs the extra ``plots``.

        Parameters
        ----------
        metric
            Name of a metric that the run measured.
        ax
            Axes to draw on; by default those of a new figure.

        Raises
        ------
        ImportError
            If matplotlib is not installed.
        ValueError
            If the run did not measure the metric.
        """
        import dpmesh.plots as plots

        return plots.curves({metric: self.history}, metric, ax=ax)

    def as_dict(self) -> JsonObject:
        """Return settings, history, privacy report, traffic and scores in types of JSON."""
        return {
            "dpmesh": __version__,
            "settings": self.settings,
            "privacy": self.privacy.as_dict(),
            "ledger": self.ledger.as_dict(),
            "traffic": self.traffic._asdict(),
            "history": self.history.as_dicts(),
            "outline": None if self.outline is None else self.outline.as_dict(),
            "measured": self.measured,
            "baselines": None if self.baselines is None else self.baselines.as_dict(),
            "population": None if self.population is None else self.population.as_dict(),
        }

    def save(self, folder: str | Path) -> None:
        """Write ``run.json`` and the released models ``released.npy`` into a folder.

        Publish only ``released.npy`` and the report, or what `model` returns: no epsilon covers
        the history, `measured` and `baselines`, which ``run.json`` contains. The un-noised
        parameters are not written. `dpmesh.experiments.Result.load` reads the folder.

        Raises
        ------
        OSError
            If the folder cannot be made or written to; its previous files are then unchanged.
        """
        folder = Path(folder)
        with replacing(folder / "run.json") as file:
            file.write(json.dumps(self.as_dict(), indent=1).encode())
            file.flush()  # so that on a full disk neither file is replaced
            with replacing(folder / "released.npy") as models:
                np.save(models, self.released)

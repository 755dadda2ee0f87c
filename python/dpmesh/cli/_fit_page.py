"""The page of ``dpmesh fit``: one plain summary, curves, populations and ranges; details folded."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from dpmesh._epsilons import as_given, rounded_up
from dpmesh._html import as_html
from dpmesh.experiments.html import details, document, figures, table
from dpmesh.run.identity import fields_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpmesh.run.verdict import Verdict
    from dpmesh.sklearn import Evaluation

OWNERS_ONLY = "Scores computed without noise: for the data owners only, not covered by epsilon"
"""First line of a page with scores, and of each printed page."""

FEW = 12
"""Columns up to which the summary states their ranges; ranges of more are folded."""

WORDS = {
    "step_size": "learning rate (step size)",
    "clipping_norm": "clipping norm",
    "noise_multiplier": "noise multiplier",
    "batch_size": "batch size",
    "sampling_rate": "sampling rate",
}
"""Parameters of algorithms in the terms of the field."""

_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")


@dataclass(frozen=True, kw_only=True)
class FitPage:
    """A page about a fit.

    Parameters
    ----------
    evaluation
        The fit with its scores.
    label
        The column, or columns, that are predicted.
    unused
        Columns of the tables without a range.
    model
        The model file.
    tables
        The files of records.
    day
        The date of the fit.
    public
        Whether to leave out all that no epsilon covers: scores, and what the tables hold.
    """

    evaluation: Evaluation
    label: str
    unused: Sequence[str]
    model: Path
    tables: Sequence[Path]
    day: date
    public: bool = False

    def html(self) -> str:
        """Return one self-contained page, for light and dark screens and for print."""
        parts = ['<main class="board">']
        if not self.public:
            parts.append(f'<p class="owners-only">{OWNERS_ONLY}</p>')
        parts.append(f"<h1>A private model of {escape(self.label)}</h1>")
        parts.append(facts(self._summary()))
        if not self.public:
            parts += self._scores()
        parts += self._details()
        parts.append("</main>")
        return document(self.label, parts)

    def _summary(self) -> list[tuple[str, str]]:
        """Return what a board needs to know, by name."""
        evaluation = self.evaluation
        report = self.evaluation.estimator.report_
        privacy = report.privacy
        columns = len(evaluation.estimator.model_.columns.names)
        sites = f"{report.sites} site{'s' * (report.sites != 1)}"
        records = f"at least {report.records} records each"
        if report.sites == 1:
            records = f"{report.records} records"
        elif report.counts_all_sites:
            records = f"{report.records} records together"
        guarantee = "none: epsilon is infinite"
        if privacy.is_finite:
            relation = privacy.neighboring_relation.replace("_", "-")
            guarantee = (
                f"epsilon {rounded_up(privacy.epsilon)}, delta {rounded_up(privacy.delta)}, "
                f"for one {privacy.unit} ({relation})"
            )
        if privacy.seeded:
            guarantee = f"NOT private: the noise is seeded. With secret noise: {guarantee}"
        rows = [
            ("Model", f"{self._kind}, from {columns} column{'s' * (columns != 1)}"),
            ("Learned from", f"{sites}, {records}"),
            ("Guarantee", guarantee),
            ("Threat model", report.threat_model),
            ("Adversary", privacy.adversary),
        ]
        if privacy.is_finite and not privacy.seeded:
            rows.append(("For one person", _for_one_person(report.plain_words)))
        if not self.public:
            question = "Does joining pay?" if report.sites > 1 else "Verdict"
            rows.append((question, evaluation.sentence))
        if columns <= FEW:
            rows.append(("Public ranges", "; ".join(": ".join(row) for row in self._ranges())))
        rows.append(("Date", self.day.isoformat()))
        files = str(self.model.name)
        if not self.public:
            files = f"{files}, from {', '.join(path.name for path in self.tables)}"
        rows.append(("Files", files))
        return rows

    @property
    def _kind(self) -> str:
        model = self.evaluation.estimator.model_
        if model.network is not None:
            return f"network of {model.weights.size} parameters"
        if model.target is not None:
            return "linear regression"
        return "linear classifier"

    def _scores(self) -> Iterator[str]:
        """Yield the scores, in pictures and tables."""
        evaluation = self.evaluation
        verdict = self.evaluation.verdict
        yield "<h2>Scores on held-out records</h2>"
        yield _drawn(evaluation)
        if len(verdict.baselines.alone) > 1:
            yield from self._populations()
        if evaluation.by_epsilon:
            yield details("Scores over epsilon", table(*evaluation.epsilon_table))
        yield details("Baselines, on the records of all sites", table(*verdict.table))

    def _populations(self) -> Iterator[str]:
        """Yield the scores in each population of test records."""
        evaluation = self.evaluation
        verdict = self.evaluation.verdict
        yield table(*verdict.population_table)
        splits = len(verdict.measured)
        yield (
            f'<p class="note">{splits} split{"s" * (splits != 1)} of the records; intervals are of '
            "95%, of the federation less a single site without privacy. The first row is the one "
            "test that was stated beforehand; counts of sites share one correction (Holm); other "
            f"rows have an interval and no word. {escape(evaluation.note)}</p>"
        )

    def _ranges(self) -> list[tuple[str, str]]:
        """Return the columns and their public ranges."""
        columns = self.evaluation.estimator.model_.columns
        return [
            (name, f"{kind.toml}{', may be missing' * kind.may_be_missing}")
            for name, kind in zip(columns.names, columns.kinds, strict=True)
        ]

    def _details(self) -> Iterator[str]:
        ranges = self._ranges()
        if len(ranges) > FEW:
            yield details(f"Columns and their public ranges ({len(ranges)})", facts(ranges))
        if self.unused and not self.public:
            yield details("Columns that are not used", f"<p>{escape(', '.join(self.unused))}</p>")
        report = self.evaluation.estimator.report_
        rows = [("rounds", str(report.rounds)), ("megabytes sent", f"{report.megabytes:.4g}")]
        if report.features:
            rows.append(("features", report.features))
        if report.topology != "None":
            rows.append(("network", _words(fields_of(report.topology)[0])))
        rows += settings_of(report.algorithm)
        yield details("Learning rate, clipping norm, noise and rounds", facts(rows))
        yield details("Privacy report", _facts_of(str(report.privacy)))
        words = "".join(f"<p>{escape(line)}</p>" for line in _sentences(report.plain_words))
        yield details("The guarantee in plain words", words)


def facts(rows: Sequence[tuple[str, str]]) -> str:
    """Return names and values, one pair a line."""
    lines = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="text">{escape(value)}</td></tr>'
        for name, value in rows
    )
    return f'<table class="facts">{lines}</table>'


def _facts_of(text: str) -> str:
    """Return lines of names and values as such a table."""
    return as_html(text).replace("<table>", '<table class="facts">')


def settings_of(text: str, path: str = "") -> list[tuple[str, str]]:
    """Return the parameters of an algorithm from its repr, by name, each in a line of its own."""
    kind, parts = fields_of(text)
    rows = [(path or "algorithm", _words(kind))]
    for part in parts:
        name, _, value = part.partition("=")
        shown = WORDS.get(name, name.replace("_", " "))
        where = f"{path}: {shown}" if path else shown
        if "(" in value and not value.startswith(("(", "[", "{")):
            rows += settings_of(value, where)
        else:
            rows.append((where, _rounded(value)))
    return rows


def _words(name: str) -> str:
    """Return the words of a class name."""
    if name.isidentifier():
        return _CAPITAL.sub(" ", name).lower()
    return name


def _rounded(text: str) -> str:
    try:
        return f"{float(text):.5g}"
    except ValueError:
        return text


def _sentences(words: str) -> list[str]:
    """Return the lines of plain words, each broken one joined again."""
    return re.sub(r"\n  ", " ", words).splitlines()


def _for_one_person(words: str) -> str:
    """Return the first fact of plain words."""
    fact = next(line for line in _sentences(words) if line.startswith("- "))
    return " ".join(fact.removeprefix("- ").split())


def _drawn(evaluation: Evaluation) -> str:
    """Return the pictures of scores; a note where matplotlib is missing."""
    try:
        pictures = []
        if len(evaluation.verdict.baselines.alone) > 1:
            pictures.append((_populations(evaluation.verdict), _described(evaluation.verdict)))
        if len(evaluation.by_epsilon) > 1:
            text = f"{evaluation.verdict.metric} over epsilon, with 95% intervals, all sites"
            pictures.insert(0, (_curve(evaluation), text))
        return f'<div class="beside">{figures(pictures)}</div>'
    except ModuleNotFoundError as error:
        return f'<p class="note">{escape(str(error))}</p>'


def _curve(evaluation: Evaluation) -> Figure:
    """Draw the score over epsilon beside its baselines."""
    from dpmesh.plots.panels import Line, Panel, drawn

    verdicts = evaluation.by_epsilon
    beside = evaluation.verdict.baselines
    spread = None
    if len(evaluation.verdict.measured) > 1:
        spread = [verdict.interval.detectable for verdict in verdicts.values()]
    line = Line(
        label="federation, private",
        x=[*verdicts],
        y=[verdict.score for verdict in verdicts.values()],
        spread=spread,
    )
    levels = {"centralized, without privacy": beside.pooled}
    levels["single site, without privacy"] = float(beside.alone.mean())
    levels[evaluation.verdict.trivial] = beside.chance
    unit = evaluation.estimator.report_.privacy.unit
    delta = as_given(evaluation.estimator.report_.privacy.delta)
    panel = Panel(
        title="All sites' records",
        lines=[line],
        x=f"epsilon of one {unit}, at delta {delta}",
        y=evaluation.verdict.metric,
        levels=levels,
        log="x",
        ticks=[*verdicts],
        kind="bands",
    )
    return drawn([panel])


BAR, GAP = 0.38, 0.02
"""Height of a bar, and the distance of two."""


def _populations(verdict: Verdict) -> Figure:
    """Draw federation and single site in each population."""
    from dpmesh._extras import needed_by
    from dpmesh.plots.panels import COLOURS

    with needed_by("a picture"):
        from matplotlib.figure import Figure

    rows = verdict.rows_by_population
    figure = Figure(figsize=(5.6, 1.1 + 0.75 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    for place, row in enumerate(rows):
        for side, score, colour in (
            (-1, row.federation, COLOURS[0]),
            (1, row.single_site, COLOURS[1]),
        ):
            middle = place + side * (BAR / 2 + GAP)
            bar = axes.barh(middle, score, height=BAR, color=colour)
            text = f"{score:.1%}" if verdict.metric != "R²" or row.measure == "recall" else None
            axes.bar_label(bar, [text or f"{score:.3f}"], padding=3, fontsize=8)
    axes.set_yticks(range(len(rows)), [f"{row.name}\n({row.measure})" for row in rows])
    axes.invert_yaxis()
    axes.margins(x=0.15)
    for number, name in enumerate(("federation, private", "single site, without privacy")):
        axes.barh([0], [0], color=COLOURS[number], label=name)
    figure.legend(loc="outside upper center", frameon=False, fontsize=9, ncols=2)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _described(verdict: Verdict) -> str:
    names = ", ".join(row.name for row in verdict.rows_by_population)
    return f"Federation and single site on {names}"

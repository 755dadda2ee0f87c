"""The report page of ``dpmesh fit``: a summary, pictures and tables of scores, and folded details.

Scores are computed without noise, so no epsilon covers them: the full page is for the data owners.
The public page (``--public``) leaves out scores, unused columns and names of files.
"""

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
from dpmesh.cli._checks import counted
from dpmesh.experiments.html import details, document, figures, table
from dpmesh.run.identity import fields_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpmesh.run.verdict import Verdict
    from dpmesh.sklearn import Evaluation

OWNERS_ONLY = "Scores computed without noise: for the data owners only, not covered by epsilon"
"""First line of a page with scores, on the screen and on each printed sheet."""

MOST_COLUMNS_IN_SUMMARY = 12
"""Largest number of columns whose ranges are in the summary; ranges of more columns are folded."""

PARAMETER_NAMES = {
    "step_size": "learning rate (step size)",
    "clipping_norm": "clipping norm",
    "noise_multiplier": "noise multiplier",
    "batch_size": "batch size",
    "sampling_rate": "sampling rate",
}
"""Names of an algorithm's parameters on the page; others are the identifier without underscores."""

_WORD_BOUNDARY = re.compile(r"(?<=[a-z])(?=[A-Z])")
"""Position between two words of a class name such as ``GradientDescent``."""


@dataclass(frozen=True, kw_only=True)
class FitPage:
    """HTML page about a private model and its scores.

    Parameters
    ----------
    evaluation
        The fitted estimator with its scores and baselines.
    label
        Name of the predicted column, or of several columns, separated by commas.
    unused
        Columns of the tables that have no range, so that the model does not use them.
    model
        Path of the model file.
    tables
        Paths of the files of records.
    day
        Date of the fit.
    public
        True to leave out everything that no epsilon covers: scores, unused columns and names of
        the files of records.
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
        parts.append(facts_table(self._summary()))
        if not self.public:
            parts += self._scores()
        parts += self._details()
        parts.append("</main>")
        return document(self.label, parts)

    def _summary(self) -> list[tuple[str, str]]:
        """Return the rows of the summary for readers without technical knowledge."""
        evaluation = self.evaluation
        report = self.evaluation.estimator.report_
        privacy = report.privacy
        column_count = len(evaluation.estimator.model_.columns.names)
        columns = counted(column_count, "column")
        sites = counted(report.sites, "site")
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
            ("Model", f"{self._model_kind}, from {columns}"),
            ("Learned from", f"{sites}, {records}"),
            ("Guarantee", guarantee),
            ("Threat model", report.threat_model),
            ("Adversary", privacy.adversary),
        ]
        if privacy.is_finite and not privacy.seeded:
            rows.append(("For one person", _first_fact(report.plain_words)))
        if not self.public:
            question = "Does joining pay?" if report.sites > 1 else "Verdict"
            rows.append((question, evaluation.sentence))
        if column_count <= MOST_COLUMNS_IN_SUMMARY:
            ranges = [f"{name}: {value_range}" for name, value_range in self._ranges()]
            rows.append(("Public ranges", "; ".join(ranges)))
        rows.append(("Date", self.day.isoformat()))
        files = str(self.model.name)
        if not self.public:
            files = f"{files}, from {', '.join(path.name for path in self.tables)}"
        rows.append(("Files", files))
        return rows

    @property
    def _model_kind(self) -> str:
        """The kind of model in words."""
        model = self.evaluation.estimator.model_
        if model.network is not None:
            return f"network of {model.weights.size} parameters"
        if model.target is not None:
            return "linear regression"
        return "linear classifier"

    def _scores(self) -> Iterator[str]:
        """Yield the part of the page with scores, as pictures and tables in HTML."""
        evaluation = self.evaluation
        verdict = self.evaluation.verdict
        yield "<h2>Scores on held-out records</h2>"
        yield _pictures(evaluation)
        if len(verdict.baselines.single_sites) > 1:
            yield from self._population_scores()
        if evaluation.by_epsilon:
            yield details("Scores over epsilon", table(*evaluation.epsilon_table))
        yield details("Baselines, on the records of all sites", table(*verdict.table))

    def _population_scores(self) -> Iterator[str]:
        """Yield the scores in each population of test records, as a table with a note in HTML."""
        evaluation = self.evaluation
        verdict = self.evaluation.verdict
        yield table(*verdict.population_table)
        splits = counted(len(verdict.measured), "split")
        yield (
            f'<p class="note">{splits} of the records; intervals are of '
            "95%, of the federation less a single site without privacy. The first row is the one "
            "test that was stated beforehand; counts of sites share one correction (Holm); other "
            f"rows have an interval and no word. {escape(evaluation.note)}</p>"
        )

    def _ranges(self) -> list[tuple[str, str]]:
        """Return the name and the public range of each column."""
        columns = self.evaluation.estimator.model_.columns
        ranges = []
        for name, kind in zip(columns.names, columns.kinds, strict=True):
            value_range = kind.toml
            if kind.may_be_missing:
                value_range += ", may be missing"
            ranges.append((name, value_range))
        return ranges

    def _details(self) -> Iterator[str]:
        """Yield the folded parts of the page."""
        ranges = self._ranges()
        if len(ranges) > MOST_COLUMNS_IN_SUMMARY:
            title = f"Columns and their public ranges ({len(ranges)})"
            yield details(title, facts_table(ranges))
        if self.unused and not self.public:
            yield details("Columns that are not used", f"<p>{escape(', '.join(self.unused))}</p>")
        report = self.evaluation.estimator.report_
        rows = [("rounds", str(report.rounds)), ("megabytes sent", f"{report.megabytes:.4g}")]
        if report.features:
            rows.append(("features", report.features))
        if report.topology != "None":
            topology_class, _ = fields_of(report.topology)
            rows.append(("network", _words(topology_class)))
        rows += parameters_of(report.algorithm)
        yield details("Learning rate, clipping norm, noise and rounds", facts_table(rows))
        yield details("Privacy report", _report_table(str(report.privacy)))
        paragraphs = [f"<p>{escape(line)}</p>" for line in _whole_lines(report.plain_words)]
        yield details("The guarantee in plain words", "".join(paragraphs))


def facts_table(rows: Sequence[tuple[str, str]]) -> str:
    """Return pairs of a name and a value as an HTML table with one pair in each row."""
    lines = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="text">{escape(value)}</td></tr>'
        for name, value in rows
    )
    return f'<table class="facts">{lines}</table>'


def _report_table(text: str) -> str:
    """Return the lines of a privacy report, each a name and a value, as an HTML table."""
    return as_html(text).replace("<table>", '<table class="facts">')


def parameters_of(text: str, path: str = "") -> list[tuple[str, str]]:
    """Return the parameters of an algorithm, from its `repr`, as pairs of a name and a value.

    Parameters
    ----------
    text
        `repr` of an algorithm, or of an object that is a parameter of one.
    path
        Name of that parameter, which precedes the names of inner parameters; empty for an
        algorithm.
    """
    class_name, arguments = fields_of(text)
    rows = [(path or "algorithm", _words(class_name))]
    for argument in arguments:
        identifier, _, value = argument.partition("=")
        name = PARAMETER_NAMES.get(identifier, identifier.replace("_", " "))
        if path:
            name = f"{path}: {name}"
        is_object = "(" in value and not value.startswith(("(", "[", "{"))
        if is_object:
            rows += parameters_of(value, name)
        else:
            rows.append((name, _rounded(value)))
    return rows


def _words(name: str) -> str:
    """Return the words of a class name; other texts stay as they are."""
    if name.isidentifier():
        return _WORD_BOUNDARY.sub(" ", name).lower()
    return name


def _rounded(text: str) -> str:
    """Return a number in at most 5 digits; other texts stay as they are."""
    try:
        return f"{float(text):.5g}"
    except ValueError:
        return text


def _whole_lines(plain_words: str) -> list[str]:
    """Return the lines of a text, with indented lines joined to the line above."""
    return re.sub(r"\n  ", " ", plain_words).splitlines()


def _first_fact(plain_words: str) -> str:
    """Return the first list item of the guarantee in plain words."""
    item = next(line for line in _whole_lines(plain_words) if line.startswith("- "))
    return " ".join(item.removeprefix("- ").split())


def _pictures(evaluation: Evaluation) -> str:
    """Return the pictures of scores as HTML; a note if matplotlib is missing."""
    try:
        pictures = []
        if len(evaluation.verdict.baselines.single_sites) > 1:
            populations = _populations_figure(evaluation.verdict)
            pictures.append((populations, _populations_text(evaluation.verdict)))
        if len(evaluation.by_epsilon) > 1:
            text = f"{evaluation.verdict.metric} over epsilon, with 95% intervals, all sites"
            pictures.insert(0, (_epsilon_figure(evaluation), text))
        return f'<div class="beside">{figures(pictures)}</div>'
    except ModuleNotFoundError as error:
        return f'<p class="note">{escape(str(error))}</p>'


def _epsilon_figure(evaluation: Evaluation) -> Figure:
    """Draw the score and its baselines over epsilon."""
    from dpmesh.plots.panels import Line, Panel, drawn

    verdicts = evaluation.by_epsilon
    baselines = evaluation.verdict.baselines
    spread = None
    if len(evaluation.verdict.measured) > 1:
        spread = [verdict.interval.detectable for verdict in verdicts.values()]
    line = Line(
        label="federation, private",
        x=[*verdicts],
        y=[verdict.score for verdict in verdicts.values()],
        spread=spread,
    )
    levels = {
        "centralized, without privacy": baselines.centralized,
        "single site, without privacy": float(baselines.single_sites.mean()),
        evaluation.verdict.trivial: baselines.majority_class,
    }
    privacy = evaluation.estimator.report_.privacy
    unit = privacy.unit
    delta = as_given(privacy.delta)
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


BAR_HEIGHT = 0.38
"""Height of a bar, where populations have distance 1."""

HALF_GAP = 0.02
"""Half of the distance between the two bars of a population."""


def _populations_figure(verdict: Verdict) -> Figure:
    """Draw the scores of the federation and of single sites in each population, as bars."""
    from dpmesh._extras import needed_by
    from dpmesh.plots.panels import COLOURS

    with needed_by("a picture"):
        from matplotlib.figure import Figure

    rows = verdict.rows_by_population
    figure = Figure(figsize=(5.6, 1.1 + 0.75 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    offset = BAR_HEIGHT / 2 + HALF_GAP
    for place, row in enumerate(rows):
        is_share = verdict.metric != "R²" or row.measure == "recall"
        bars = (
            (place - offset, row.federation, COLOURS[0]),
            (place + offset, row.single_site, COLOURS[1]),
        )
        for middle, score, colour in bars:
            bar = axes.barh(middle, score, height=BAR_HEIGHT, color=colour)
            text = f"{score:.1%}" if is_share else f"{score:.3f}"
            axes.bar_label(bar, [text], padding=3, fontsize=8)
    axes.set_yticks(range(len(rows)), [f"{row.name}\n({row.measure})" for row in rows])
    axes.invert_yaxis()
    axes.margins(x=0.15)
    for number, name in enumerate(("federation, private", "single site, without privacy")):
        axes.barh([0], [0], color=COLOURS[number], label=name)
    figure.legend(loc="outside upper center", frameon=False, fontsize=9, ncols=2)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _populations_text(verdict: Verdict) -> str:
    """Return a description of the figure for readers who cannot see it."""
    names = ", ".join(row.name for row in verdict.rows_by_population)
    return f"Federation and single site on {names}"

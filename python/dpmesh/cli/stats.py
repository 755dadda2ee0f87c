"""``dpmesh stats``: private statistics of the tables of several sites, all at one epsilon."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import dpmesh.cli._options as options
from dpmesh._validate import fail

_RepeatedText = list[str] | None

_MEAN = typer.Option(
    help="Columns, as age,weight: count, mean and variance.", rich_help_panel=options.QUESTIONS
)
_HISTOGRAM = typer.Option(
    help="Column, or column:bins: how many records have which value.",
    rich_help_panel=options.QUESTIONS,
)
_QUANTILES = typer.Option(
    help="Column, or column:bins: quartiles and median.", rich_help_panel=options.QUESTIONS
)
_CORRELATION = typer.Option(help="Columns, as age,weight.", rich_help_panel=options.QUESTIONS)
_TABLE = typer.Option(
    help="Two columns of categories, as sex,stage, or sex,stage:missing.",
    rich_help_panel=options.QUESTIONS,
)
_SURVIVAL = typer.Option(
    help="Columns of time and event, as months,died, or months,died:bins.",
    rich_help_panel=options.QUESTIONS,
)
_REGRESS = typer.Option(
    help="Formula, as died~age,arm or visits~age:poisson: coefficients with intervals.",
    rich_help_panel=options.QUESTIONS,
)
_PAIRS = typer.Option(
    help="Columns, as age,sex,stage, or age,sex:bins: all two-way tables, for dpmesh synthesize.",
    rich_help_panel=options.QUESTIONS,
)
_BY = typer.Option(
    help="Column of groups to compare, with --survival.", rich_help_panel=options.QUESTIONS
)
_WEIGHTS = typer.Option(
    help=(
        "Share of the budget of each question, in the order of the answers, as 1,4: four times "
        "the weight is half the noise (default: equal shares)."
    ),
    rich_help_panel=options.PRIVACY,
)
_OUTPUT = typer.Option(
    help="Write the answers into this file, .html or .json.", rich_help_panel=options.OUTPUT
)


def stats(
    files: Annotated[list[Path], typer.Argument(help="Tables, as for dpmesh fit. One per site.")],
    epsilon: Annotated[
        float,
        typer.Option(
            help="Privacy budget of all answers together.", rich_help_panel=options.PRIVACY
        ),
    ],
    ranges: Annotated[
        Path,
        typer.Option(
            help="TOML file with the public ranges of the columns.", rich_help_panel=options.DATA
        ),
    ],
    delta: options.Delta = 1e-5,
    site: options.Site = None,
    mean: Annotated[str | None, _MEAN] = None,
    histogram: Annotated[_RepeatedText, _HISTOGRAM] = None,
    quantiles: Annotated[_RepeatedText, _QUANTILES] = None,
    correlation: Annotated[str | None, _CORRELATION] = None,
    table: Annotated[_RepeatedText, _TABLE] = None,
    survival: Annotated[str | None, _SURVIVAL] = None,
    by: Annotated[str | None, _BY] = None,
    regress: Annotated[_RepeatedText, _REGRESS] = None,
    pairs: Annotated[str | None, _PAIRS] = None,
    colluding: Annotated[
        int, typer.Option(min=0, help="Sites that may collude.", rich_help_panel=options.PRIVACY)
    ] = 1,
    weights: Annotated[str | None, _WEIGHTS] = None,
    output: Annotated[Path | None, _OUTPUT] = None,
    budget: options.BudgetFolder = None,
    separator: options.Separator = None,
    decimal: options.Decimal = None,
    encoding: options.Encoding = None,
    header: options.Header = None,
    escape: options.Escape = None,
    multiline: options.Multiline = False,
    skip_empty_lines: options.SkipEmptyLines = False,
) -> None:
    """Release counts, means, quantiles, survival curves and regressions of several sites' tables.

    All answers together cost one epsilon, so ask at once what you want to know. Without a question
    it gives means of all numbers and flags, medians of dates and counts of categories, of all that
    the file of ranges lists. `dpmesh ranges` drafts that file.
    """
    from dpmesh._files import writable_folder
    from dpmesh.cli._asking import RecordFiles
    from dpmesh.cli._pages import write_answers
    from dpmesh.cli._sites import text_format
    from dpmesh.statistics.options import questions_of, weights_of

    if output is not None and output.suffix not in (".html", ".json"):
        fail("--output", "a file that ends in .html or .json", str(output))
    if output is not None:
        writable_folder(output.parent)
    texts = {
        "mean": mean,
        "histogram": histogram,
        "quantiles": quantiles,
        "table": table,
        "correlation": correlation,
        "survival": survival,
        "by": by,
        "regress": regress,
        "pairs": pairs,
    }
    file_format = text_format(
        separator=separator,
        decimal=decimal,
        encoding=encoding,
        header=header,
        escape=escape,
        multiline=multiline,
        skip_empty=skip_empty_lines,
    )
    statistics = RecordFiles(paths=files, ranges=ranges, site=site, text_format=file_format).ask(
        lambda kinds: questions_of(texts, kinds, "--"),
        epsilon=epsilon,
        delta=delta,
        colluding=colluding,
        budget=budget,
        weights=weights_of("--weights", weights),
    )
    typer.echo(statistics)
    if output is not None:
        write_answers(output, statistics)

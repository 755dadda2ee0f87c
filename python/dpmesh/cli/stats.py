"""``dpmesh stats``: statistics of the tables of several sites, at one epsilon for all of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpmesh._validate import fail
from dpmesh.cli._sites import Decimal, Encoding, Separator

if TYPE_CHECKING:
    from dpmesh.statistics import Question, Statistics

_Names = list[str]


def stats(
    files: Annotated[list[Path], typer.Argument(help="Tables, as for dpmesh fit. One per site.")],
    epsilon: Annotated[float, typer.Option(help="Privacy budget of all answers together.")],
    ranges: Annotated[Path, typer.Option(help="TOML file with the public ranges of the columns.")],
    delta: Annotated[float, typer.Option(help="Delta of the guarantee.")] = 1e-5,
    site: Annotated[
        str | None, typer.Option(help="Column that names the site; by default each file is one.")
    ] = None,
    mean: Annotated[
        str | None, typer.Option(help="Columns, as age,weight: count, mean and variance.")
    ] = None,
    histogram: Annotated[
        _Names, typer.Option(help="Column, or column:bins: how many records have which value.")
    ] = [],  # noqa: B006
    quantiles: Annotated[
        _Names, typer.Option(help="Column, or column:bins: quartiles and median.")
    ] = [],  # noqa: B006
    correlation: Annotated[str | None, typer.Option(help="Columns, as age,weight.")] = None,
    table: Annotated[_Names, typer.Option(help="Two columns of categories, as sex,stage.")] = [],  # noqa: B006
    survival: Annotated[
        str | None, typer.Option(help="Columns of time and event, as months,died.")
    ] = None,
    by: Annotated[
        str | None, typer.Option(help="Column of groups to compare, with --survival.")
    ] = None,
    colluding: Annotated[
        int, typer.Option(min=0, help="Sites that may collude, for a secure sum.")
    ] = 1,
    output: Annotated[
        Path | None, typer.Option(help="Write the answers into this file, .html or .json.")
    ] = None,
    separator: Separator = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
) -> None:
    """Answer questions about the tables of several sites: how many, what mean, which survival.

    All answers together cost one epsilon, so ask at once what you want to know. Without a question
    it gives means of all numbers and flags, medians of dates and counts of categories, of all that
    the file of ranges lists. `dpmesh ranges` drafts that file.
    """
    from dpmesh._files import replace_text, writable_folder
    from dpmesh.cli._sites import read_sites, text_format
    from dpmesh.ranges import as_range, read_ranges
    from dpmesh.statistics import Correlation, Mean, Survival, TwoWay, ask
    from dpmesh.statistics.ask import names_of

    if output is not None:
        if output.suffix not in (".html", ".json"):
            fail("--output", "a file that ends in .html or .json", str(output))
        writable_folder(output.parent)
    given = {name: as_range(name, one) for name, one in read_ranges(ranges).items()}
    asked: list[Question] = []
    asked += [Mean(*_split("--mean", mean, 1))] if mean else []
    asked += [*_binned("Histogram", histogram), *_binned("Quantiles", quantiles)]
    asked += [Correlation(*_split("--correlation", correlation, 2))] if correlation else []
    asked += [TwoWay(*_split("--table", pair, 2, 2)) for pair in table]
    if survival:
        time, event = _split("--survival", survival, 2, 2)
        asked.append(Survival(time, event, by))
    elif by is not None:
        fail("--by", "--survival beside it", by)
    asked = asked or _everything(given)
    used = {name: given[name] for name in names_of(asked, given)}
    written = text_format(separator, decimal, encoding)
    held = read_sites(files, used, None, None, site, written, drop=False)
    found = ask(
        asked,
        held.table,
        held.owners,
        ranges=given,
        epsilon=epsilon,
        delta=delta,
        colluding=colluding,
    )
    typer.echo(found)
    if output is not None:
        page = json.dumps(found.as_dict(), indent=1) if output.suffix == ".json" else _page(found)
        replace_text(output, page)
        typer.echo(f"\nwrote {output}: it holds the answers and what they cost, no records")


def _everything(given: dict[str, Any]) -> list[Question]:
    """Return a question about each column of a file of ranges."""
    from dpmesh.ranges import Category, Dates
    from dpmesh.statistics import Histogram, Mean, Quantiles

    listed = [name for name, kind in given.items() if isinstance(kind, Category)]
    dates = [name for name, kind in given.items() if isinstance(kind, Dates)]
    measured = [name for name in given if name not in (*listed, *dates)]
    means = [Mean(*measured)] if measured else []
    return [*means, *map(Quantiles, dates), *map(Histogram, listed)]


def _split(option: str, given: str, least: int, most: int | None = None) -> list[str]:
    names = [name.strip() for name in given.split(",")]
    if not least <= len(names) <= (most or len(names)) or not all(names):
        count = f"{least} columns" if most else f"at least {least} column{'s' * (least > 1)}"
        fail(option, f"{count}, separated by commas", repr(given))
    return names


def _binned(kind: str, given: Sequence[str]) -> list[Question]:
    """Return questions about columns that may name how many bins."""
    import dpmesh.statistics as statistics

    made = []
    for each in given:
        name, _, bins = (
            each.rpartition(":") if each.rpartition(":")[2].isdigit() else (each, "", "")
        )
        made.append(getattr(statistics, kind)(name, **({"bins": int(bins)} if bins else {})))
    return made


def _page(found: Statistics) -> str:
    """Return one self-contained HTML page."""
    from html import escape

    from dpmesh.experiments.html import document, table

    body = [f"<h1>Statistics of {found.records} records at {found.sites} sites</h1>"]
    for answer in found.answers:
        heads, *lines = answer.table()
        notes = [
            f'<p class="note">{escape(note)}</p>' for note in (*answer.notes, *answer.warnings)
        ]
        body += [table(heads, lines), *notes]
    cost = f"against     {found.against}\n{found.privacy}"
    return document("Statistics", [*body, "<h2>Privacy</h2>", f"<pre>{escape(cost)}</pre>"])

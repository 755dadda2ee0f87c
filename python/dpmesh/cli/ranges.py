"""``dpmesh ranges``: a draft of the file of public ranges of a table's columns.

A draft has a *blank* (``"FILL IN"``) wherever public knowledge is needed. With ``--fill`` the
blanks of numbers are replaced by noisy bounds, which are released from the records with DP.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import dpmesh.cli._options as options
from dpmesh._validate import fail
from dpmesh.cli._checks import check_budget
from dpmesh.cli._progress import progress_bar
from dpmesh.cli._sites import text_format, to_toml, to_toml_key

if TYPE_CHECKING:
    from dpmesh.tables.cells import Cells
    from dpmesh.tables.table import Table

_HEAD = """\
# Draft, for the owner of the tables alone: the kinds are guessed from the data.
# Put public knowledge in place of "FILL IN", never what the data hold. Delete the lines of columns
# not to use. Add missing = true where numbers, dates or flags may be missing.
# The label is {classes = ["no", "yes"]} for a classifier, {target = [0, 100]} for a regression,
# {counts = 50} for one of counts.
"""
_RELEASED = """\
# Bounds that stood open were released from the data with noise: powers of two around the numbers,
# without those that few records have. dpmesh fit and dpmesh stats add what that cost.
"""
_DATE_FORMATS = tuple(
    f"{day}{time}"
    for day in ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y/%m/%d", "%d.%m.%y")
    for time in ("", " %H:%M", " %H:%M:%S")
)
"""Formats of dates other than 2024-12-31, as for `datetime.strptime`."""

_SAMPLE = 100
"""Number of values from which the form of dates is guessed."""

_FLAGS = 0.95
"""Share of zeros and ones above which a column is guessed to be a flag; 1 and 2, say, are codes."""

_EPSILON = "Release bounds of numbers at this privacy budget, for the blanks of --fill."
_FILL = "A draft whose kinds and categories are public knowledge: all but bounds of numbers."


def ranges(
    files: Annotated[list[Path], typer.Argument(help="Tables, as for dpmesh fit.")],
    epsilon: Annotated[
        float | None, typer.Option(help=_EPSILON, rich_help_panel=options.PRIVACY)
    ] = None,
    fill: Annotated[Path | None, typer.Option(help=_FILL, rich_help_panel=options.DATA)] = None,
    delta: options.Delta = 1e-5,
    colluding: Annotated[
        int, typer.Option(min=0, help="Sites that may collude.", rich_help_panel=options.PRIVACY)
    ] = 1,
    budget: options.BudgetFolder = None,
    separator: options.Separator = None,
    decimal: options.Decimal = None,
    encoding: options.Encoding = None,
    header: options.Header = None,
    escape: options.Escape = None,
    multiline: options.Multiline = False,
    skip_empty_lines: options.SkipEmptyLines = False,
) -> None:
    """Draft a file of public ranges for your own tables: names, and kinds as proposals.

    It lists no category and no bound: taken from the records, these would leak. Fill in public
    knowledge; `dpmesh fit` refuses a file with blanks. If no public bounds of numbers are known,
    --epsilon with --fill releases noisy bounds, and the file states the epsilon used.
    """
    import numpy as np

    from dpmesh.tables.reader import open_table
    from dpmesh.tables.sites import find_files

    if (epsilon is None) != (fill is None):
        fail("--epsilon", "--fill beside it, a draft with the kinds of the columns", epsilon)
    if epsilon is not None:
        check_budget([epsilon], delta)
    file_format = text_format(
        separator=separator,
        decimal=decimal,
        encoding=encoding,
        header=header,
        escape=escape,
        multiline=multiline,
        skip_empty=skip_empty_lines,
    )
    paths = find_files(files)
    tables = []
    with progress_bar(len(paths), unit="file") as advance:
        for file in paths:
            tables.append(open_table(file, file_format))
            advance(1)
    if fill is not None:
        assert epsilon is not None
        _fill(fill, tables, epsilon=epsilon, delta=delta, colluding=colluding, budget=budget)
        return
    columns: dict[str, list[Cells]] = {}
    for table in tables:
        for name, values in zip(table.names or (), table.columns, strict=True):
            columns.setdefault(name, []).append(values)
    typer.echo(_HEAD)
    for name, parts in columns.items():
        values = np.concatenate([part.astype(object) for part in parts])
        typer.echo(f"{to_toml_key(name)} = {_proposal(values)}")


def _fill(
    draft: Path,
    tables: Sequence[Table],
    *,
    epsilon: float,
    delta: float,
    colluding: int,
    budget: Path | None,
) -> None:
    """Print a draft with released noisy bounds in place of the blanks of numbers.

    Parameters
    ----------
    draft
        File of ranges with blanks.
    tables
        Tables of the sites, one each.
    epsilon, delta
        Privacy budget of the release.
    colluding
        Number of sites that may collude with the server.
    budget
        Party's folder whose budget is charged; None charges no folder.
    """
    import numpy as np

    from dpmesh.cli._sites import charge, saved_release
    from dpmesh.statistics.bounds import bounds
    from dpmesh.tables.ranges import BLANK, RELEASED, read_ranges

    forms = read_ranges(draft, blanks=True)
    key_of_blank = {}
    for name, form in forms.items():
        for key in ("range", "target"):
            if isinstance(form, dict) and form.get(key) == [BLANK, BLANK]:
                key_of_blank[name] = key
    for name in key_of_blank:
        lacking = [table for table in tables if name not in (table.names or ())]
        if lacking:
            expected = f"columns that all tables have, such as {name}"
            fail(str(draft), expected, f"{len(lacking)} lack it")
    if not key_of_blank:
        fail(str(draft), f'numbers with blanks, {{range = ["{BLANK}", "{BLANK}"]}}', "none")
    columns = {}
    for name in key_of_blank:
        parts = [table.select([name]).columns[0].astype(object) for table in tables]
        columns[name] = np.concatenate(parts)
    sites = np.repeat(np.arange(len(tables)), [table.records for table in tables])
    bounds_of_column, release = bounds(
        [*key_of_blank], columns, sites, epsilon=epsilon, delta=delta, colluding=colluding
    )
    released = saved_release(release.ledger)
    charge(budget, [released], delta)
    typer.echo(_RELEASED)
    # The release is one text in the file: its JSON, written once more as a string of TOML.
    text_of_release = json.dumps(released)
    typer.echo(f"{json.dumps(RELEASED)} = {json.dumps(text_of_release)}")
    for name, form in forms.items():
        if name in bounds_of_column:
            form[key_of_blank[name]] = list(bounds_of_column[name])
        typer.echo(f"{to_toml_key(name)} = {to_toml(form)}")
    without_bounds = [name for name in key_of_blank if name not in bounds_of_column]
    if without_bounds:
        names = ", ".join(without_bounds)
        typer.echo(f"no bounds for {names}: no bin stands out of the noise", err=True)


def _proposal(cells: Cells) -> str:
    """Return the range, in TOML with blanks, of the kind that most values of a column have.

    The kinds are tried in this order: flag, number, date, category.
    """
    import numpy as np

    from dpmesh.tables.cells import day_of, map_cells, numbers_of, usually_missing
    from dpmesh.tables.ranges import BLANK

    blank = f'"{BLANK}"'
    has_value = np.array([not usually_missing(cell) for cell in cells], dtype=bool)
    values = cells[has_value]
    numbers = numbers_of(values)
    count = max(len(values), 1)
    flags = ((numbers == 0) | (numbers == 1)).sum()
    if flags > _FLAGS * count:
        return f"{{flag = {blank}}}  # guessed: flag; write true"
    if np.isfinite(numbers).sum() > count / 2:
        return f"{{range = [{blank}, {blank}]}}  # guessed: number"
    days = map_cells(day_of, values, np.float64)
    if np.isfinite(days).sum() > count / 2:
        return f"{{dates = [{blank}, {blank}]}}  # guessed: date"
    sample = values[:_SAMPLE]
    dates_of_format = {}
    for date_format in _DATE_FORMATS:
        days_of_sample = [day_of(cell, date_format) for cell in sample]
        dates_of_format[date_format] = np.isfinite(days_of_sample).sum()
    best_format = max(_DATE_FORMATS, key=lambda date_format: dates_of_format[date_format])
    if dates_of_format[best_format] > len(sample) / 2:
        dates = f'dates = [{blank}, {blank}], format = "{best_format}"'
        return f"{{{dates}}}  # guessed: date of this form"
    return f"{{categories = [{blank}]}}  # guessed: category"

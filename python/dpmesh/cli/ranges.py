"""``dpmesh ranges``: a draft of the public ranges of a table's columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

import dpmesh.cli._options as options
from dpmesh._validate import fail
from dpmesh.cli._sites import text_format, toml, toml_key

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
_DATES = tuple(
    f"{day}{time}"
    for day in ("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%Y/%m/%d", "%d.%m.%y")
    for time in ("", " %H:%M", " %H:%M:%S")
)
"""Forms of dates other than 2024-12-31, as `datetime.strptime` has them."""

_SOME = 100
"""Values by which a form is guessed."""

_EPSILON = "Release bounds of numbers at this privacy budget, for the blanks of --fill."
_FILL = "A draft whose kinds and categories are public knowledge: all but bounds of numbers."


def ranges(
    files: Annotated[list[Path], typer.Argument(help="Tables, as for dpmesh fit.")],
    epsilon: Annotated[float | None, typer.Option(help=_EPSILON)] = None,
    fill: Annotated[Path | None, typer.Option(help=_FILL)] = None,
    delta: options.Delta = 1e-5,
    colluding: Annotated[int, typer.Option(min=0, help="Sites that may collude.")] = 1,
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

    It lists no category and no bound: these are public knowledge, which no table holds. `dpmesh
    fit` refuses a file with blanks. Where nobody knows the bounds of numbers, --epsilon with --fill
    releases them with noise, at a cost that the file carries.
    """
    import numpy as np

    from dpmesh.tables.reader import open_table
    from dpmesh.tables.sites import existing

    if (epsilon is None) != (fill is None):
        fail("--epsilon", "--fill beside it, a draft with the kinds of the columns", epsilon)
    written = text_format(
        separator=separator,
        decimal=decimal,
        encoding=encoding,
        header=header,
        escape=escape,
        multiline=multiline,
        skip_empty=skip_empty_lines,
    )
    paths = existing(files)
    tables = [open_table(file, written) for file in paths]
    if fill is not None:
        most = {"epsilon": epsilon, "delta": delta, "colluding": colluding}
        _fill(fill, tables, most, budget)
        return
    columns: dict[str, list[Any]] = {}
    for table in tables:
        for name, values in zip(table.names or (), table.columns, strict=True):
            columns.setdefault(name, []).append(values)
    typer.echo(_HEAD)
    for name, parts in columns.items():
        values = np.concatenate([part.astype(object) for part in parts])
        typer.echo(f"{toml_key(name)} = {_proposal(values)}")


def _fill(draft: Path, tables: list[Any], most: dict[str, Any], budget: Path | None) -> None:
    """Print a draft with bounds in place of the blanks of numbers, and what they cost."""
    import numpy as np

    from dpmesh.cli._sites import as_spent, charge
    from dpmesh.statistics.bounds import bounds
    from dpmesh.tables.ranges import BLANK, RELEASED, read_ranges

    given, blank = read_ranges(draft, blanks=True), [BLANK, BLANK]
    of = {
        name: key
        for name, one in given.items()
        for key in ("range", "target")
        if isinstance(one, dict) and one.get(key) == blank
    }
    for name in of:
        if lack := sum(name not in (table.names or ()) for table in tables):
            fail(str(draft), f"columns that all tables have, such as {name}", f"{lack} lack it")
    if not of:
        fail(str(draft), f'numbers with blanks, {{range = ["{BLANK}", "{BLANK}"]}}', "none")

    def together(name: str) -> Any:
        return np.concatenate([t.select([name]).columns[0].astype(object) for t in tables])

    sites = np.repeat(np.arange(len(tables)), [table.records for table in tables])
    found, release = bounds([*of], {name: together(name) for name in of}, sites, **most)
    spent = as_spent(release.ledger)
    charge(budget, [spent], most["delta"])
    typer.echo(_RELEASED)
    typer.echo(f"{json.dumps(RELEASED)} = {json.dumps(json.dumps(spent))}")
    for name, one in given.items():
        if name in found:
            one[of[name]] = [*found[name]]
        typer.echo(f"{toml_key(name)} = {toml(one)}")
    if lacking := [name for name in of if name not in found]:
        typer.echo(f"no bounds for {', '.join(lacking)}: no bin stands out of the noise", err=True)


def _proposal(values: Any) -> str:
    """Return the kind of which most values are, with blanks for what is public."""
    import numpy as np

    from dpmesh.tables.cells import day_of, map_cells, numbers_of, usually_missing
    from dpmesh.tables.ranges import BLANK

    blank = f'"{BLANK}"'
    there = np.array([not usually_missing(value) for value in values], dtype=bool)
    values = values[there]
    numbers, days = numbers_of(values), map_cells(day_of, values, np.float64)
    most = max(len(values), 1) / 2
    if ((numbers == 0) | (numbers == 1)).sum() > 1.9 * most:  # 1 and 2, say, are codes
        return f"{{flag = {blank}}}  # guessed: flag; write true"
    if np.isfinite(numbers).sum() > most:
        return f"{{range = [{blank}, {blank}]}}  # guessed: number"
    if np.isfinite(days).sum() > most:
        return f"{{dates = [{blank}, {blank}]}}  # guessed: date"
    some = values[:_SOME]
    fits = {form: np.isfinite([day_of(one, form) for one in some]).sum() for form in _DATES}
    form = max(_DATES, key=lambda one: fits[one])
    if fits[form] > len(some) / 2:
        return f'{{dates = [{blank}, {blank}], format = "{form}"}}  # guessed: date of this form'
    return f"{{categories = [{blank}]}}  # guessed: category"

"""``dpmesh ranges``: a draft of the public ranges of a table's columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dpmesh._validate import fail
from dpmesh.cli._sites import BudgetFolder, Decimal, Encoding, Separator, text_format

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
    delta: Annotated[float, typer.Option(help="Delta of the guarantee.")] = 1e-5,
    colluding: Annotated[int, typer.Option(min=0, help="Sites that may collude.")] = 1,
    budget: BudgetFolder = None,
    separator: Separator = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
) -> None:
    """Draft a file of public ranges for your own tables: names, and kinds as proposals.

    It lists no category and no bound: these are public knowledge, which no table holds. `dpmesh
    fit` refuses a file with blanks. Where nobody knows the bounds of numbers, --epsilon with --fill
    releases them with noise, at a cost that the file carries.
    """
    import numpy as np

    from dpmesh.ranges.sites import existing, open_table

    if (epsilon is None) != (fill is None):
        fail("--epsilon", "--fill beside it, a draft with the kinds of the columns", epsilon)
    written, paths = text_format(separator, decimal, encoding), existing(files)
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
        typer.echo(f"{_key(name)} = {_proposal(values)}")


def _fill(draft: Path, tables: list[Any], most: dict[str, Any], budget: Path | None) -> None:
    """Print a draft with bounds in place of the blanks of numbers, and what they cost."""
    import numpy as np

    from dpmesh.cli._sites import as_spent, charge
    from dpmesh.ranges.read import BLANK, RELEASED, read_ranges
    from dpmesh.statistics.bounds import bounds

    given, blank = read_ranges(draft, blanks=True), [BLANK, BLANK]
    of = {
        n: key for n, one in given.items() for key in ("range", "target") if _has(one, key, blank)
    }
    for name in of:
        if absent := [i for i, table in enumerate(tables) if name not in (table.names or ())]:
            fail(
                str(draft),
                f"columns that all tables have, such as {name}",
                f"{len(absent)} lack it",
            )
    if not of:
        fail(str(draft), f'numbers with blanks, {{range = ["{BLANK}", "{BLANK}"]}}', "none")
    whole = {
        n: np.concatenate([t.select([n]).columns[0].astype(object) for t in tables]) for n in of
    }
    sites = np.repeat(np.arange(len(tables)), [table.records for table in tables])
    found, release = bounds([*of], whole, sites, **most)
    spent = as_spent(release.ledger)
    charge(budget, [spent], most["delta"])
    typer.echo(_RELEASED)
    typer.echo(f"{json.dumps(RELEASED)} = {json.dumps(json.dumps(spent))}")
    for name, one in given.items():
        if name in found:
            one[of[name]] = [*found[name]]
        typer.echo(f"{_key(name)} = {_toml(one)}")
    if lacking := [name for name in of if name not in found]:
        typer.echo(f"no bounds for {', '.join(lacking)}: no bin stands out of the noise", err=True)


def _has(given: Any, key: str, wanted: list[str]) -> bool:
    return isinstance(given, dict) and given.get(key) == wanted


def _toml(value: Any) -> str:
    """Return a value as a TOML file has it."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_key(name)} = {_toml(one)}' for name, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return str(value) if hasattr(value, "isoformat") else json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    """Return the name of a column as a TOML file has it."""
    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if bare else json.dumps(name, ensure_ascii=False)


def _proposal(values: Any) -> str:
    """Return the kind of which most values are, with blanks for what is public."""
    import numpy as np

    from dpmesh.ranges.read import BLANK
    from dpmesh.tables.cells import day_of, each, numbers_of, usually_missing

    blank = f'"{BLANK}"'
    there = np.array([not usually_missing(value) for value in values], dtype=bool)
    values = values[there]
    numbers, days = numbers_of(values), each(day_of, values, np.float64)
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

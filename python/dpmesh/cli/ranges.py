"""``dpmesh ranges``: a draft of the public ranges of a table's columns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from dpmesh.cli._sites import Decimal, Encoding, Separator, text_format

_HEAD = """\
# Draft, for the owner of the tables alone: the kinds are guessed from the data.
# Put public knowledge in place of "FILL IN", never what the data hold. Delete the lines of columns
# not to use. Add missing = true where numbers, dates or flags may be missing.
# The label is {classes = ["no", "yes"]} for a classifier, {target = [0, 100]} for a regression.
"""


def ranges(
    files: Annotated[list[Path], typer.Argument(help="Tables, as for dpmesh fit.")],
    separator: Separator = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
) -> None:
    """Draft a file of public ranges for your own tables: names, and kinds as proposals.

    It lists no category and no bound: these are public knowledge, which no table holds. `dpmesh
    fit` refuses a file with blanks.
    """
    import numpy as np

    from dpmesh.tables.sites import existing, open_table

    written = text_format(separator, decimal, encoding)
    columns: dict[str, list[Any]] = {}
    for file in existing(files):
        table = open_table(file, written)
        for name, values in zip(table.names or (), table.columns, strict=True):
            columns.setdefault(name, []).append(values)
    typer.echo(_HEAD)
    for name, parts in columns.items():
        values = np.concatenate([part.astype(object) for part in parts])
        key = name if name and name.replace("_", "").replace("-", "").isalnum() else None
        key = key if key is not None and key.isascii() else json.dumps(name, ensure_ascii=False)
        typer.echo(f"{key} = {_proposal(values)}")


def _proposal(values: Any) -> str:
    """Return the kind of which most values are, with blanks for what is public."""
    import numpy as np

    from dpmesh.ranges import BLANK
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
    return f"{{categories = [{blank}]}}  # guessed: category"

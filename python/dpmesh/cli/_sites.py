"""The tables of several sites, as commands read them, and files of ranges, as they write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Literal, NamedTuple

import typer

from dpmesh._validate import fail, nearest
from dpmesh.cli._progress import progress_bar

if TYPE_CHECKING:
    from dpmesh._files import JsonObject
    from dpmesh.privacy.plan import Plan
    from dpmesh.tables.cells import Cells
    from dpmesh.tables.labels import Label
    from dpmesh.tables.reader import TextFormat
    from dpmesh.tables.table import TableLike


def marks() -> Path:
    """Return where this user's folders are marked: outside of them."""
    return Path.home() / ".local" / "state" / "dpmesh"


def as_spent(plan: Plan) -> JsonObject:
    """Return a release that no ledger has yet, as files hold it."""
    return {"release": token_hex(32), "plan": plan.as_dict()}


class Charged(NamedTuple):
    """The cost of a release together with earlier ones of the same records.

    Attributes
    ----------
    epsilon
        Of all of them.
    why
        Reason why that is more than the epsilon of the last one.
    earlier
        Plans of the earlier ones.
    """

    epsilon: float
    why: str
    earlier: tuple[Plan, ...]


def charge(
    folder: Path | None, spent: Sequence[JsonObject], delta: float, colluding: int | None = None
) -> Charged:
    """Charge releases to a folder's budget, each once, and report what is spent of it.

    Raises
    ------
    OverBudget
        If there is too little left: then nothing may be published.
    """
    from dpmesh._epsilons import rounded_up
    from dpmesh.privacy.plan import Plan, total_cost

    plans = [Plan.from_dict(release["plan"]) for release in spent]
    if folder is not None:
        from dpmesh.deploy import Folder
        from dpmesh.deploy.steps import KnownContract

        with closing(Folder.open(folder, marks=marks())) as party_folder:
            for release, plan in zip(spent, plans, strict=True):
                party_folder.spend(KnownContract(bytes.fromhex(release["release"]), plan))
            budget = party_folder.budget
            cost = rounded_up(party_folder.cost())
            total = f"of {budget.epsilon:g}, at delta = {budget.delta:g}"
            typer.echo(f"{folder}: epsilon = {cost} {total} is spent", err=True)
    *earlier, last = plans
    reasons = ["bounds in the file of ranges were released from these records, which is counted"]
    assumptions = dict.fromkeys(text for plan in earlier for text in plan.assumptions)
    reasons += [f"for them {text}" for text in assumptions if text not in last.assumptions]
    epsilon = total_cost(plans, delta, colluding=colluding).epsilon
    return Charged(epsilon, "; ".join(reasons), tuple(earlier))


def text_format(
    *,
    separator: str | None,
    decimal: Literal[".", ","] | None,
    encoding: str | None,
    header: bool | None,
    escape: str | None,
    multiline: bool,
    skip_empty: bool,
) -> TextFormat:
    """Return the format of text files; a backslash and a t stand for a tab."""
    from dpmesh.tables.reader import TextFormat

    if separator == "\\t":
        separator = "\t"
    return TextFormat(
        separator=separator,
        decimal=decimal,
        encoding=encoding,
        header=header,
        escape=escape,
        multiline=multiline,
        skip_empty=skip_empty,
    )


def toml(value: object) -> str:
    """Return a value as a TOML file has it."""
    if isinstance(value, dict):
        pairs = [f"{toml_key(name)} = {toml(part)}" for name, part in value.items()]
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    if hasattr(value, "isoformat"):
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def toml_key(name: str) -> str:
    """Return the name of a column as a TOML file has it."""
    is_bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    if is_bare:
        return name
    return json.dumps(name, ensure_ascii=False)


class Sites(NamedTuple):
    """Records of all sites, in the order of the files.

    Attributes
    ----------
    table
        Their columns to use, as a pandas table.
    labels
        The label of each record.
    owners
        The name of each record's site, shape (records,).
    unused
        Columns of the files that are not used.
    """

    table: TableLike
    labels: Cells
    owners: Cells
    unused: list[str]


def public_ranges(
    path: Path, label: str, site: str | None, released: list[JsonObject]
) -> tuple[JsonObject, tuple[str, ...], Label]:
    """Return the ranges of the columns to use, the labels, and their ranges, from a file.

    Several labels have commas between them.

    `released` receives the release of bounds in the file.

    Raises
    ------
    ValueError
        If the file has none of the label, or one of the column that names the site.
    """
    from dpmesh.tables.ranges import as_labels, columns_of, read_ranges

    public = read_ranges(path, released=released)
    names = label if label in public else [name.strip() for name in label.split(",")]
    labels = columns_of(names)
    for name in labels:
        if name not in public:
            line = f'{name} = {{classes = ["no", "yes"]}} or {name} = {{target = [0, 100]}}'
            hint = nearest(name, public)
            raise ValueError(f"{path} has no range of the label. Add a line such as {line}{hint}")
    target = as_labels({name: public.pop(name) for name in labels})
    if site in public:
        fail(str(path), f"no range of {site}, which --site names: it is no feature", "one")
    return public, labels, target


def read_sites(
    files: Sequence[Path],
    columns_used: Mapping[str, object],
    labels: Sequence[str],
    target: Label | None,
    site: str | None,
    text_format: TextFormat,
    *,
    drop: bool,
) -> Sites:
    """Return the records of all files; what their owner should know goes to the standard error.

    Raises
    ------
    ValueError
        If a file holds what the ranges do not allow; it names file, record, column and value.
    OSError
        If a file cannot be read.
    """
    import numpy as np
    from pandas import DataFrame, Series

    from dpmesh.tables import Category, Columns, Number, sites
    from dpmesh.tables.reader import open_table
    from dpmesh.tables.table import array_of, concatenate_cells

    columns = Columns.of(columns_used, columns_used)
    paths = sites.find_files(files)
    with progress_bar(2 * len(paths) + 1, unit="step") as advance:
        tables = []
        for path in paths:
            tables.append(open_table(path, text_format))
            advance(1)
        records = sites.read_sites(
            paths, tables, columns, labels, target, site=site, drop=drop, on_file=lambda: advance(1)
        )
        doubts = sites.site_notices(records, site)
        advance(1)
    columns_of_files = []
    for file in records:
        for notice in file.notices:
            typer.echo(notice, err=True)
        complete = file.table.with_missing(file.encoded.absent)
        columns_of_files.append(complete.select([*columns_used]).columns)
    for doubt in doubts:
        typer.echo(f"Warning: {doubt}", err=True)
    series = {}
    columns_with_parts = zip(columns.kinds, zip(*columns_of_files, strict=True), strict=True)
    for name, (kind, parts) in zip(columns_used, columns_with_parts, strict=True):
        cells = concatenate_cells(parts)
        if type(kind) is Number:
            numbers = kind.numbers(cells)
            if not np.isnan(numbers).any():
                cells = numbers  # every fit would parse the cells again
        # A column of objects stays one: pandas may else decide on a type by all of its cells.
        series[name] = Series(cells, dtype=cells.dtype)
    label_cells = np.concatenate([file.labels for file in records])
    if isinstance(target, Category):
        label_cells = array_of(target.categories)[label_cells]
    all_names = dict.fromkeys(name for table in tables for name in table.names or ())
    return Sites(
        table=DataFrame(series),
        labels=label_cells,
        owners=np.concatenate([file.sites for file in records]),
        unused=[name for name in all_names if name not in (*columns_used, *labels, site)],
    )

"""Tables of several sites, charges to a party's budget, and TOML: shared by several commands.

``dpmesh fit``, ``stats``, ``synthesize`` and ``ranges`` read tables and charge the privacy cost of
a release to a party's folder (made by ``dpmesh contract keys``).
"""

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


def marks_folder() -> Path:
    """Return the folder of marks: files outside of a party's folder that detect copies of it."""
    return Path.home() / ".local" / "state" / "dpmesh"


def saved_release(plan: Plan) -> JsonObject:
    """Return a plan of releases as files hold it, under a new random identifier."""
    return {"release": token_hex(32), "plan": plan.as_dict()}


class TotalCost(NamedTuple):
    """Privacy cost of a release together with earlier releases of the same records.

    Attributes
    ----------
    epsilon
        Epsilon of all releases together.
    reason
        Reason why that exceeds the epsilon of the last release.
    earlier_plans
        Plans of the earlier releases.
    """

    epsilon: float
    reason: str
    earlier_plans: tuple[Plan, ...]


def charge(
    folder: Path | None, releases: Sequence[JsonObject], delta: float, colluding: int | None = None
) -> TotalCost:
    """Charge releases to the budget of a party's folder, and return their total cost.

    A release that the folder has already been charged for is not charged again.

    Parameters
    ----------
    folder
        Party's folder; None charges no folder.
    releases
        Releases of the same records as `saved_release` returns them, the latest last.
    delta
        Delta of the total cost.
    colluding
        Number of colluding sites, for pairwise-cancelling noise: as in
        `dpmesh.privacy.plan.total_cost`.

    Raises
    ------
    OverBudget
        If the budget has too little left. Nothing may then be published.
    """
    from dpmesh._epsilons import rounded_up
    from dpmesh.privacy.plan import Plan, total_cost

    plans = [Plan.from_dict(release["plan"]) for release in releases]
    if folder is not None:
        from dpmesh.deploy import Folder
        from dpmesh.deploy.steps import KnownContract

        with closing(Folder.open(folder, marks=marks_folder())) as party_folder:
            for release, plan in zip(releases, plans, strict=True):
                party_folder.spend(KnownContract(bytes.fromhex(release["release"]), plan))
            budget = party_folder.budget
            cost = rounded_up(party_folder.cost())
            total = f"of {budget.epsilon:g}, at delta = {budget.delta:g}"
            typer.echo(f"{folder}: epsilon = {cost} {total} is spent", err=True)
    *earlier, last = plans
    reasons = ["bounds in the file of ranges were released from these records, which is counted"]
    earlier_assumptions = dict.fromkeys(text for plan in earlier for text in plan.assumptions)
    reasons += [f"for them {text}" for text in earlier_assumptions if text not in last.assumptions]
    epsilon = total_cost(plans, delta, colluding=colluding).epsilon
    return TotalCost(epsilon, "; ".join(reasons), tuple(earlier))


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
    """Return the format of text files that options state; a backslash and a t stand for a tab."""
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


def to_toml(value: object) -> str:
    """Return a value in TOML: a table, list, date, text, number or boolean."""
    if isinstance(value, dict):
        pairs = [f"{to_toml_key(name)} = {to_toml(inner)}" for name, inner in value.items()]
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(to_toml, value))}]"
    if hasattr(value, "isoformat"):  # a date or a time
        return str(value)
    return json.dumps(value, ensure_ascii=False)


def to_toml_key(name: str) -> str:
    """Return the name of a column as a key in TOML, in quotation marks where it needs them."""
    is_bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    if is_bare:
        return name
    return json.dumps(name, ensure_ascii=False)


class SiteRecords(NamedTuple):
    """Records of all sites, in the order of the files.

    Attributes
    ----------
    table
        The columns that have a range, as a pandas table.
    labels
        Label of each record, shape (records,).
    owners
        Name of the site of each record, shape (records,).
    unused
        Names of the columns that have no range.
    """

    table: TableLike
    labels: Cells
    owners: Cells
    unused: list[str]


def public_ranges(
    path: Path, label: str, site: str | None, released: list[JsonObject]
) -> tuple[JsonObject, tuple[str, ...], Label]:
    """Read a file of ranges; return the columns' ranges, names of the labels, and their range.

    Parameters
    ----------
    path
        The TOML file of ranges.
    label
        Column to predict; several columns are separated by commas.
    site
        Column that names the site of a record, which may have no range; None if there is none.
    released
        List to which the release of noisy bounds is appended, if the file has one.

    Raises
    ------
    ValueError
        If the file has no range of the label, or has a range of the column `site`.
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
) -> SiteRecords:
    """Read the records of all files. Notices and warnings for their owner go to standard error.

    Parameters
    ----------
    files
        Tables of records.
    columns_used
        Public ranges of the columns to read, by name.
    labels
        Columns of labels; empty where nothing is predicted.
    target
        Range of the labels; None without labels.
    site
        Column that names the site of a record; None if each file holds one site.
    text_format
        Format of text files.
    drop
        True leaves out records without a label or a site; False refuses them.

    Raises
    ------
    ValueError
        If a value is outside of its range. The message names file, record, column and value.
    OSError
        If a file cannot be read.
    """
    from dpmesh._memory import return_freed_memory

    records = _read_sites(files, columns_used, labels, target, site, text_format, drop=drop)
    return_freed_memory()  # texts that were parsed
    return records


def _read_sites(
    files: Sequence[Path],
    columns_used: Mapping[str, object],
    labels: Sequence[str],
    target: Label | None,
    site: str | None,
    text_format: TextFormat,
    *,
    drop: bool,
) -> SiteRecords:
    """Read the records of all files, as `read_sites`, whose parameters these are."""
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
                cells = numbers  # numbers are parsed once here, not in every fit
        # A column of objects stays one: pandas may else decide on a type by all of its cells.
        series[name] = Series(cells, dtype=cells.dtype)
    label_cells = np.concatenate([file.labels for file in records])
    if isinstance(target, Category):
        label_cells = array_of(target.categories)[label_cells]
    all_names = dict.fromkeys(name for table in tables for name in table.names or ())
    return SiteRecords(
        table=DataFrame(series),
        labels=label_cells,
        owners=np.concatenate([file.sites for file in records]),
        unused=[name for name in all_names if name not in (*columns_used, *labels, site)],
    )

"""The tables of several sites, as commands read them, and files of ranges, as they write them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import typer

from dpmesh._validate import fail, nearest

if TYPE_CHECKING:
    from dpmesh.privacy.plan import Plan
    from dpmesh.tables.labels import Label
    from dpmesh.tables.reader import TextFormat


def marks() -> Path:
    """Return where this user's folders are marked: outside of them."""
    return Path.home() / ".local" / "state" / "dpmesh"


def as_spent(plan: Plan) -> dict[str, Any]:
    """Return a release that no ledger has yet, as files hold it."""
    return {"release": token_hex(32), "plan": plan.as_dict()}


class Charged(NamedTuple):
    """The cost of a release together with earlier ones of the same records.

    Attributes
    ----------
    epsilon
        Of all of them.
    why
        Why that is more than what the last one costs.
    earlier
        Plans of the earlier ones.
    """

    epsilon: float
    why: str
    earlier: tuple[Plan, ...]


def charge(
    folder: Path | None,
    spent: Sequence[Mapping[str, Any]],
    delta: float,
    colluding: int | None = None,
) -> Charged:
    """Charge releases to a folder's budget, each once, and report what is spent of it.

    Raises
    ------
    OverBudget
        If there is too little left: then nothing may be published.
    """
    from dpmesh._epsilons import rounded_up
    from dpmesh.privacy.plan import Plan, total_cost

    plans = [Plan.from_dict(one["plan"]) for one in spent]
    if folder is not None:
        from dpmesh.deploy import Folder
        from dpmesh.deploy.steps import Known

        with closing(Folder.open(folder, marks=marks())) as own:
            for one, plan in zip(spent, plans, strict=True):
                own.spend(Known(bytes.fromhex(one["release"]), plan))
            of = f"of {own.budget.epsilon:g}, at delta = {own.budget.delta:g}"
            typer.echo(f"{folder}: epsilon = {rounded_up(own.cost())} {of} is spent", err=True)
    why = ["bounds in the file of ranges were released from these records, which is counted"]
    others = dict.fromkeys(text for plan in plans[:-1] for text in plan.assumptions)
    why += (f"for them {text}" for text in others if text not in plans[-1].assumptions)
    epsilon = total_cost(plans, delta, colluding=colluding).epsilon
    return Charged(epsilon, "; ".join(why), tuple(plans[:-1]))


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
    """Return how text files are written; a backslash and a t stand for a tab."""
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


def toml(value: Any) -> str:
    """Return a value as a TOML file has it."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{toml_key(name)} = {toml(one)}' for name, one in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(toml, value))}]"
    return str(value) if hasattr(value, "isoformat") else json.dumps(value, ensure_ascii=False)


def toml_key(name: str) -> str:
    """Return the name of a column as a TOML file has it."""
    bare = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if bare else json.dumps(name, ensure_ascii=False)


class Sites(NamedTuple):
    """Records of all sites, in the order of the files."""

    table: Any
    labels: Any
    owners: Any
    unused: list[str]


def public_ranges(
    path: Path, label: str, site: str | None, released: list[Any]
) -> tuple[dict[str, Any], tuple[str, ...], Label]:
    """Return the ranges of the columns to use, the labels, and what they may be, from a file.

    Several labels have commas between them.

    `released` receives what bounds in the file cost.

    Raises
    ------
    ValueError
        If the file has none of the label, or one of the column that names the site.
    """
    from dpmesh.tables.ranges import as_labels, columns_of, read_ranges

    public = read_ranges(path, released=released)
    labels = columns_of(label if label in public else [one.strip() for one in label.split(",")])
    for one in labels:
        if one not in public:
            given = f'{one} = {{classes = ["no", "yes"]}} or {one} = {{target = [0, 100]}}'
            hint = nearest(one, public)
            raise ValueError(f"{path} has no range of the label. Add a line such as {given}{hint}")
    target = as_labels({one: public.pop(one) for one in labels})
    if site in public:
        fail(str(path), f"no range of {site}, which --site names: it is no feature", "one")
    return public, labels, target


def read_sites(
    files: Sequence[Path],
    used: Mapping[str, Any],
    labels: Sequence[str],
    target: Label | None,
    site: str | None,
    written: TextFormat,
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

    from dpmesh.tables import Category, Columns, sites
    from dpmesh.tables.reader import open_table
    from dpmesh.tables.table import array_of, joined

    columns, paths = Columns.of(used, used), sites.existing(files)
    tables = [open_table(path, written) for path in paths]
    read = sites.read_sites(paths, tables, columns, labels, target, site=site, drop=drop)
    kept = []
    for one in read:
        for notice in one.notices:
            typer.echo(notice, err=True)
        kept.append(one.table.with_missing(one.encoded.absent).select([*used]).columns)
    for doubt in sites.doubts(read, site):
        typer.echo(f"Warning: {doubt}", err=True)
    cells = map(joined, zip(*kept, strict=True))
    # A column of objects stays one: pandas may else decide on a type by all of its cells.
    named = {name: Series(own, dtype=own.dtype) for name, own in zip(used, cells, strict=True)}
    learned = np.concatenate([one.labels for one in read])
    if isinstance(target, Category):
        learned = array_of(target.categories)[learned]
    unused = dict.fromkeys(name for table in tables for name in table.names or ())
    return Sites(
        DataFrame(named),
        learned,
        np.concatenate([one.sites for one in read]),
        [name for name in unused if name not in (*used, *labels, site)],
    )

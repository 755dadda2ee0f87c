"""``dpmesh contract make``: a contract from public numbers, by the rule of `dpmesh.defaults`."""

from __future__ import annotations

import json
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any, Literal

import typer

from dpmesh._validate import fail
from dpmesh.cli._sites import public_ranges
from dpmesh.cli.mesh import File
from dpmesh.schedules import Constant

_FOLLOW = ("clients", "records", "records_per_client", "dim", "rounds")
"""Numbers of sums that follow from the parties, in no contract."""

_TEXT = """\
# Everything here is public. Each party reads it, compares its hash, and keeps it.

[contract]
rounds = {rounds}
public_key = "{key}"  # of topology and turns; of no noise
deadline = {deadline!r}  # seconds
{of_rows}quorum = {quorum}
label = {label}
features = {features}

[ranges]
{ranges}

[problem]
{problem}
feature_norm = 1.0

[algorithm]
{algorithm}
"""


def make(
    file: File,
    party: Annotated[list[str], typer.Option(help="NAME:RECORDS:KEY of a party, once for each.")],
    ranges: Annotated[Path, typer.Option(help="Public ranges, as for dpmesh fit.")],
    label: Annotated[str, typer.Option(help="The column to predict.")],
    epsilon: Annotated[float, typer.Option(help="What the contract may cost each party.")],
    delta: Annotated[float, typer.Option(help="Delta of that.")] = 1e-5,
    algorithm: Annotated[
        Literal["secure", "gossip"] | None, typer.Option(help="By default what serves best.")
    ] = None,
    colluding: Annotated[int, typer.Option(help="Parties that may collude with the router.")] = 1,
    features: Annotated[str, typer.Option(help="Of the columns, as for dpmesh fit.")] = "columns",
    rounds: Annotated[int | None, typer.Option(help="By default as many as serve.")] = None,
    deadline: Annotated[float, typer.Option(help="Seconds after which a party is late.")] = 60.0,
) -> None:
    """Write a contract for these parties; its steps, rounds and noise follow from public numbers.

    Run dpmesh contract check next.
    """
    import dpmesh.defaults as defaults
    from dpmesh._files import replace_text
    from dpmesh.ranges import Category, Columns

    if file.exists():
        fail("file", "a new file", f"{file}, which exists")
    parties = [each.rsplit(":", 2) for each in party]
    for each in parties:
        if len(each) != 3 or not each[1].isdecimal():
            fail("party", "NAME:RECORDS:KEY, such as north:180:2f..", ":".join(each))
    released: list[Any] = []
    public, target = public_ranges(ranges, label, None, released)
    if released:
        fail("ranges", "public knowledge alone", "released bounds, which no folder is charged for")
    classes = len(target.categories) if isinstance(target, Category) else 0
    records = [int(each[1]) for each in parties]
    sizes = defaults.Sizes(
        nodes=len(parties),
        smallest=min(records),
        together=sum(records),
        dim=Columns.of(public, [*public], features=features).dim * max(1, classes),
    )
    choice = defaults.choose(
        sizes,
        epsilon=epsilon,
        delta=delta,
        task="classification" if classes else "regression",
        algorithm=algorithm,
        colluding=colluding,
        rounds=rounds,
    )
    gossips = choice.topology is not None
    own = _table(choice.algorithm, () if gossips else _FOLLOW)
    text = _TEXT.format(
        rounds=choice.rounds,
        key=token_hex(32),
        deadline=deadline,
        of_rows="largest_row = 10000.0\n" if gossips else "",
        quorum=len(parties) // 2 + 1 if gossips else len(parties),
        label=json.dumps(label),
        features=json.dumps(features),
        ranges=ranges.read_text(encoding="utf-8-sig").strip(),
        problem=f'loss = "softmax"\nclasses = {classes}' if classes else 'loss = "squared"',
        algorithm="\n".join(f"{name} = {_toml(value)}" for name, value in own.items()),
    )
    if gossips:
        few = len(parties) <= defaults.COMPLETE
        kind = (
            'kind = "complete"' if few else f'kind = "random_regular"\ndegree = {defaults.DEGREE}'
        )
        text += f"\n[topology]\n{kind}\n"
    for name, count, key in parties:
        text += f"\n[[party]]\nname = {json.dumps(name)}\nsigning_key = {json.dumps(key)}\n"
        text += f"records = {count}\nepsilon = {epsilon!r}\ndelta = {delta!r}\n"
    replace_text(file, text)
    typer.echo(f"wrote {file}. Read it, then: dpmesh contract check {file}")


def _table(part: Any, follow: tuple[str, ...]) -> dict[str, Any]:
    """Return a part of an algorithm as a table: its kind, and what is not as by default."""
    table: dict[str, Any] = {"kind": type(part).__name__}
    for each in fields(part):
        value = getattr(part, each.name)
        value = value.value if isinstance(value, Constant) else value
        default = each.default if each.default_factory is MISSING else each.default_factory()
        if each.init and value is not None and value != default and each.name not in follow:
            table[each.name] = _table(value, follow) if is_dataclass(value) else value
    return table


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name} = {_toml(own)}" for name, own in value.items()) + "}"
    return json.dumps(value)

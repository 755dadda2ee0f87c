"""``dpmesh contract make``: a contract from public numbers, by the rule of `dpmesh.defaults`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
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
quorum = {quorum}
{more}

[ranges]
{ranges}

{about}

[algorithm]
{algorithm}
"""

_LATE = typer.Option(help="Parties of a sum that a round may miss; each lost round is charged.")
_ASKED = typer.Option(help="Without --label: an option of dpmesh stats, as mean=age,weight.")


def make(
    file: File,
    party: Annotated[list[str], typer.Option(help="NAME:RECORDS:KEY of a party, once for each.")],
    ranges: Annotated[Path, typer.Option(help="Public ranges, as for dpmesh fit.")],
    epsilon: Annotated[float, typer.Option(help="What the contract may cost each party.")],
    delta: Annotated[float, typer.Option(help="Delta of that.")] = 1e-5,
    label: Annotated[
        str | None, typer.Option(help="The column to predict; without one, questions are asked.")
    ] = None,
    question: Annotated[list[str] | None, _ASKED] = None,
    algorithm: Annotated[
        Literal["secure", "gossip"] | None, typer.Option(help="By default what serves best.")
    ] = None,
    colluding: Annotated[int, typer.Option(help="Parties that may collude with the router.")] = 1,
    dropouts: Annotated[int, _LATE] = 0,
    features: Annotated[str, typer.Option(help="Of the columns, as for dpmesh fit.")] = "columns",
    rounds: Annotated[int | None, typer.Option(help="By default as many as serve.")] = None,
    deadline: Annotated[float, typer.Option(help="Seconds after which a party is late.")] = 60.0,
) -> None:
    """Write a contract for these parties; its steps, rounds and noise follow from public numbers.

    Run dpmesh contract check next.
    """
    from dpmesh._files import replace_text

    if file.exists():
        fail("file", "a new file", f"{file}, which exists")
    parties = [each.rsplit(":", 2) for each in party]
    for each in parties:
        if len(each) != 3 or not each[1].isdecimal():
            fail("party", "NAME:RECORDS:KEY, such as north:180:2f..", ":".join(each))
    records, budget = [int(each[1]) for each in parties], {"epsilon": epsilon, "delta": delta}
    budget["colluding"] = colluding
    if label is None:
        given = {"algorithm": algorithm, "rounds": rounds, "dropouts": dropouts or None}
        for name, value in given.items():
            if value is not None:
                fail(f"--{name}", "--label beside it, as questions need none", value)
        tables = _asking(ranges, question or (), records, budget)
    else:
        if question:
            fail("--question", "no --label beside it", question[0])
        wanted = {"algorithm": algorithm, "rounds": rounds}
        tables = _learning(ranges, label, records, features, dropouts, budget | wanted)
    stated = ranges.read_text(encoding="utf-8-sig").strip()
    text = _TEXT.format(key=token_hex(32), deadline=deadline, ranges=stated, **tables)
    text += tables["topology"]
    for name, count, key in parties:
        text += f"\n[[party]]\nname = {json.dumps(name)}\nsigning_key = {json.dumps(key)}\n"
        text += f"records = {count}\nepsilon = {epsilon!r}\ndelta = {delta!r}\n"
    replace_text(file, text)
    typer.echo(f"wrote {file}. Read it, then: dpmesh contract check {file}")


def _learning(
    ranges: Path,
    label: str,
    records: list[int],
    features: str,
    dropouts: int,
    wanted: dict[str, Any],
) -> dict[str, Any]:
    """Return what a contract states that learns a model, by the rule of `dpmesh.defaults`."""
    import dpmesh.defaults as defaults
    from dpmesh.privacy import Budget
    from dpmesh.ranges import Category, Columns

    released: list[Any] = []
    public, target = public_ranges(ranges, label, None, released)
    _require_public(released)
    classes = len(target.categories) if isinstance(target, Category) else 0
    sizes = defaults.Sizes(
        nodes=len(records),
        smallest=min(records),
        together=sum(records),
        dim=Columns.of(public, [*public], features=features).dim * max(1, classes),
    )
    task: Any = "classification" if classes else "regression"
    choice = defaults.choose(sizes, task=task, **wanted)
    gossips, nodes, topology = choice.topology is not None, len(records), ""
    learner: Any = choice.algorithm
    if dropouts and gossips:
        fail("--dropouts", "a secure sum, since gossip goes on from its quorum on", dropouts)
    if dropouts:
        adds = replace(learner.combination, dropouts=dropouts)
        budget = Budget(wanted["epsilon"], delta=wanted["delta"])
        noise = budget.calibrate(
            lambda noise: replace(learner, combination=adds, noise_multiplier=noise), choice.rounds
        )
        learner = replace(learner, combination=adds, noise_multiplier=noise)
    own = _table(learner, () if gossips else _FOLLOW)
    if gossips:
        kind = f'kind = "random_regular"\ndegree = {defaults.DEGREE}'
        kind = 'kind = "complete"' if nodes <= defaults.COMPLETE else kind
        topology = f"\n[topology]\n{kind}\n"
    more = f"label = {json.dumps(label)}\nfeatures = {json.dumps(features)}"
    problem = f'loss = "softmax"\nclasses = {classes}' if classes else 'loss = "squared"'
    return {
        "rounds": choice.rounds,
        "quorum": nodes // 2 + 1 if gossips else nodes - dropouts,
        "more": f"{more}\nlargest_row = 10000.0" if gossips else more,
        "about": f"[problem]\n{problem}\nfeature_norm = 1.0",
        "algorithm": _lines(own),
        "topology": topology,
    }


def _asking(
    ranges: Path, question: Sequence[str], records: list[int], budget: dict[str, Any]
) -> dict[str, Any]:
    """Return what a contract states that asks questions: without any, about all columns."""
    from dpmesh.algorithms.record_sums import RecordSums
    from dpmesh.ranges import as_range, read_ranges
    from dpmesh.statistics.ask import questions_about
    from dpmesh.statistics.options import OPTIONS, questions_of

    released: list[Any] = []
    public = read_ranges(ranges, released=released)
    _require_public(released)
    given: dict[str, Any] = {}
    for each in question:
        name, _, text = each.partition("=")
        if name not in OPTIONS or not text:
            fail("--question", f"one of {', '.join(OPTIONS)} with its columns, as mean=age", each)
        given[name] = text if name == "by" else [*given.get(name, []), text]
    kinds = {name: as_range(name, one) for name, one in public.items()}
    about = questions_about(questions_of(given, kinds, ""), public)
    made = RecordSums.for_budget(sites=len(records), records=sum(records), **about.sums, **budget)
    about.require(made.noise_scale, sum(records))
    table = {"kind": "RecordSums", "noise_multiplier": made.noise_multiplier}
    table["colluding"] = made.colluding
    return {
        "rounds": 1,
        "quorum": len(records),
        "more": "",
        "about": f"[questions]\n{_lines(given)}",
        "algorithm": _lines(table),
        "topology": "",
    }


def _require_public(released: list[Any]) -> None:
    if released:
        fail("ranges", "public knowledge alone", "released bounds, which no folder is charged for")


def _lines(table: Mapping[str, Any]) -> str:
    return "\n".join(f"{name} = {_toml(value)}" for name, value in table.items())


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

"""``dpmesh contract make``: a contract from public numbers, by the rule of `dpmesh.defaults`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import Annotated, Any, TypeAlias

import typer

import dpmesh.cli._options as options
from dpmesh._validate import fail
from dpmesh.cli._sites import public_ranges, toml
from dpmesh.cli.mesh import File
from dpmesh.schedules import Constant
from dpmesh.settings.format import FORMAT

_FOLLOW = ("clients", "records", "records_per_client", "dim", "rounds", "topology", "star")
"""What follows from the parties, and stands in no contract, within an algorithm's parts."""

_Tables: TypeAlias = dict[str, Any]
"""The tables of a contract, or keywords of what makes them."""
_HEAD = "# Everything here is public. Each party reads it, compares its hash, and keeps it.\n"

_LABEL = typer.Option(help="As for dpmesh fit; without one, questions are asked.")
_LATE = typer.Option(help="Parties of a sum that a round may miss; each lost round is charged.")
_ASKED = typer.Option(help="Without --label: an option of dpmesh stats, as mean=age,weight.")


def make(
    file: File,
    party: Annotated[list[str], typer.Option(help="NAME:RECORDS:KEY of a party, once for each.")],
    ranges: Annotated[Path, typer.Option(help="Public ranges, as for dpmesh fit.")],
    epsilon: Annotated[float, typer.Option(help="What the contract may cost each party.")],
    delta: Annotated[float, typer.Option(help="Delta of that.")] = 1e-5,
    label: Annotated[str | None, _LABEL] = None,
    question: Annotated[list[str] | None, _ASKED] = None,
    algorithm: options.Method = None,
    noise: options.Noise = None,
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
    from dpmesh.tables.ranges import read_ranges

    if file.exists():
        fail("file", "a new file", f"{file}, which exists")
    parties = [each.rsplit(":", 2) for each in party]
    for each in parties:
        if len(each) != 3 or not each[1].isdecimal():
            fail("party", "NAME:RECORDS:KEY, such as north:180:2f..", ":".join(each))
    records, budget = [int(each[1]) for each in parties], {"epsilon": epsilon, "delta": delta}
    released: list[Any] = []
    public = read_ranges(ranges, released=released)
    if released:
        fail("ranges", "public knowledge alone", "released bounds, which no folder is charged for")
    wanted: dict[str, Any] = {**budget, "colluding": colluding, "dropouts": dropouts}
    if label is None:
        if algorithm is not None or noise is not None or rounds is not None:
            fail("--label", "one beside --algorithm, --noise or --rounds", "questions")
        tables = _asking(public, question or (), records, wanted)
    else:
        if question:
            fail("--question", "no --label beside it", question[0])
        kind = {"algorithm": algorithm, "noise": noise, "rounds": rounds}
        tables = _learning(ranges, label, records, features, wanted | kind)
    stated = ranges.read_text(encoding="utf-8-sig").strip()
    text = f"{_HEAD}\nformat = {FORMAT}\n\n[ranges]\n{stated}\n"
    tables["contract"] |= {"public_key": token_hex(32), "deadline": deadline}
    for name, table in tables.items():
        text += f"\n[{name}]\n{_lines(table)}\n"
    for name, count, key in parties:
        one = {"name": name, "signing_key": key, "records": int(count), **budget}
        text += f"\n[[party]]\n{_lines(one)}\n"
    replace_text(file, text)
    typer.echo(f"wrote {file}. Read it, then: dpmesh contract check {file}")


def _learning(
    ranges: Path, label: str, records: list[int], features: str, wanted: _Tables
) -> _Tables:
    """Return the tables of a contract that learns a model, by the rule of `dpmesh.defaults`."""
    import dpmesh.defaults as defaults
    from dpmesh.defaults.rule import COMPLETE, DEGREE
    from dpmesh.tables import Columns
    from dpmesh.tables.models import Outline

    public, labels, target = public_ranges(ranges, label, None, [])
    outline = Outline.of(Columns.of(public, [*public], features=features), target)
    dim, loss = outline.columns.dim, outline.loss
    sizes: Any = {"smallest": min(records), "together": sum(records), "features": dim}
    sizes["images"] = features == "scattering"
    own = defaults.Sizes(nodes=len(records), dim=dim * outline.outputs, **sizes)
    task: Any = {"squared": "regression", "poisson": "counts"}.get(loss, "classification")
    choice = defaults.choose(own, task=task, between_parties=True, **wanted)
    terms: _Tables = {"rounds": choice.rounds, "features": features}
    terms["label"] = labels[0] if len(labels) == 1 else labels
    problem = {"loss": loss, "feature_norm": 1.0}
    problem |= {} if outline.classes is None else {"classes": outline.outputs}
    tables: _Tables = {"contract": terms, "problem": problem}
    if choice.topology is None:
        terms["quorum"] = len(records) - wanted["dropouts"]
        return tables | _summing(choice.algorithm)
    few, degree = len(records) <= COMPLETE, DEGREE
    graph = {"kind": "complete"} if few else {"kind": "random_regular", "degree": degree}
    terms |= {"quorum": len(records) // 2 + 1, "largest_row": min(1e4, 1e7 / max(records))}
    return tables | {"algorithm": _gossiping(choice.algorithm), "topology": graph}


def _summing(algorithm: Any) -> _Tables:
    """Return the tables of an algorithm that adds up sums, and of a first stage before it."""
    if (mean := getattr(algorithm, "mean", None)) is None:
        return {"algorithm": _table(algorithm, _FOLLOW)}
    stage = {"noise_to_sensitivity": mean.noise_to_sensitivity}
    if algorithm.moment is not None:
        stage["moment_noise"] = algorithm.moment.noise_to_sensitivity
    return {"first_stage": stage, "algorithm": _table(algorithm.algorithm, _FOLLOW)}


def _gossiping(algorithm: Any) -> _Tables:
    """Return the table of an algorithm that gossips, with noise for the rounding of rows."""
    from dpmesh.noise.rounding import DOUBLE

    noise = algorithm.noise_multiplier * (1 + DOUBLE.share)
    table = _table(replace(algorithm, noise_multiplier=noise, noise=None), ())
    shared = algorithm.noise
    return table if shared is None else {**table, "noise": _table(shared, _FOLLOW)}


def _asking(
    public: dict[str, Any], question: Sequence[str], records: list[int], wanted: _Tables
) -> _Tables:
    """Return the tables of a contract that asks questions: without any, about all columns."""
    from dpmesh.statistics.ask import Spending
    from dpmesh.statistics.options import OPTIONS, questions_of
    from dpmesh.statistics.pairs import Pairs
    from dpmesh.tables.ranges import as_range

    given: dict[str, Any] = {}
    for each in question:
        name, _, text = each.partition("=")
        if name not in OPTIONS or not text:
            fail("--question", f"one of {', '.join(OPTIONS)} with its columns, as mean=age", each)
        given[name] = text if name == "by" else [*given.get(name, []), text]
    kinds = {name: as_range(name, one) for name, one in public.items()}
    budget = Spending(sites=len(records), records=sum(records), **wanted)
    about, made = budget.settle(questions_of(given, kinds, ""), public)
    for asked in about.each:
        if isinstance(asked, Pairs):  # whose bins may follow from the noise
            given["pairs"] = f"{','.join(asked.columns)}:{asked.bins}"
    noise = {"noise_to_sensitivity": made.noise_to_sensitivity, "colluding": made.colluding}
    noise |= {"dropouts": made.dropouts} if made.dropouts else {}
    terms = {"rounds": about.rounds, "quorum": len(records) - made.dropouts}
    return {
        "contract": terms,
        "questions": given,
        "algorithm": {"kind": about.algorithm.__name__, **noise},
    }


def _lines(table: Mapping[str, Any]) -> str:
    return "\n".join(f"{name} = {toml(value)}" for name, value in table.items())


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

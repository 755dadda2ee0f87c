"""``dpmesh synthesize``: synthetic rows drawn from privately released two-way tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import dpmesh.cli._options as options
from dpmesh._untrusted import read_json
from dpmesh._validate import fail
from dpmesh.cli._progress import progress_bar

if TYPE_CHECKING:
    from dpmesh.statistics.synthetic import Synthetic
    from dpmesh.statistics.two_way import PairTables
    from dpmesh.tables.kinds import Kind

_FILES = typer.Argument(help="Tables, one per site; or answers.json of dpmesh stats --pairs.")
_EPSILON = typer.Option(
    help="Privacy budget. Not for answers.json, which costs nothing more.",
    rich_help_panel=options.PRIVACY,
)
_RANGES = typer.Option(
    help="TOML file with the public ranges. Not for answers.json.", rich_help_panel=options.DATA
)
_OUTPUT = typer.Option(
    help="File of the drawn rows, .csv; beside it a .toml says what they are.",
    rich_help_panel=options.OUTPUT,
)
_COLUMNS = typer.Option(
    help="Columns, as age,sex,stage (default: all of the file of ranges).",
    rich_help_panel=options.DATA,
)
_BINS = typer.Option(
    min=2,
    help="Bins of numbers and dates (default: by the noise, 4 to 32).",
    rich_help_panel=options.PRIVACY,
)
_ROWS = typer.Option(
    min=1, help="Number of rows; any number has the same epsilon.", rich_help_panel=options.OUTPUT
)
_SEED = typer.Option(
    min=0, help="Seed of the draw, which is public.", rich_help_panel=options.OUTPUT
)
_COLLUDING = typer.Option(min=0, help="Sites that may collude.", rich_help_panel=options.PRIVACY)


def synthesize(
    files: Annotated[list[Path], _FILES],
    rows: Annotated[int, _ROWS],
    output: Annotated[Path, _OUTPUT],
    epsilon: Annotated[float | None, _EPSILON] = None,
    ranges: Annotated[Path | None, _RANGES] = None,
    columns: Annotated[str | None, _COLUMNS] = None,
    bins: Annotated[int | None, _BINS] = None,
    seed: Annotated[int, _SEED] = 0,
    delta: options.Delta = 1e-5,
    site: options.Site = None,
    colluding: Annotated[int, _COLLUDING] = 1,
    budget: options.BudgetFolder = None,
    separator: options.Separator = None,
    decimal: options.Decimal = None,
    encoding: options.Encoding = None,
    header: options.Header = None,
    escape: options.Escape = None,
    multiline: options.Multiline = False,
    skip_empty_lines: options.SkipEmptyLines = False,
) -> None:
    """Draw synthetic rows from all two-way tables of columns, released once.

    Drawn rows are made from the released tables. They hold no new information. Standard errors,
    p-values and intervals computed from drawn rows as if they were records are wrong: ask the
    question itself, with dpmesh stats.
    """
    from dpmesh._files import replace_text, writable_folder
    from dpmesh.cli._asking import RecordFiles
    from dpmesh.cli._sites import text_format
    from dpmesh.statistics.pairs import Pairs, pairs_in
    from dpmesh.statistics.synthetic import RAKE_PASSES
    from dpmesh.statistics.synthetic import synthesize as drawn_from

    if output.suffix != ".csv":
        fail("--output", "a file that ends in .csv", str(output))
    writable_folder(output.parent)
    if [file.suffix for file in files] == [".json"]:
        for name, value in (("--epsilon", epsilon), ("--ranges", ranges)):
            if value is not None:
                fail(name, "none: answers.json holds what was released", value)
        released, cost = _read_answers(files[0])
    else:
        if epsilon is None or ranges is None:
            fail("--epsilon" if epsilon is None else "--ranges", "a value, for tables", "none")
        file_format = text_format(
            separator=separator,
            decimal=decimal,
            encoding=encoding,
            header=header,
            escape=escape,
            multiline=multiline,
            skip_empty=skip_empty_lines,
        )

        def questions(kinds: Mapping[str, Kind]) -> list[Any]:
            """Return the question for all two-way tables of the columns."""
            names = [*kinds]
            if columns is not None:
                names = [name.strip() for name in columns.split(",")]
            return [Pairs(*names, bins=bins)]

        statistics = RecordFiles(
            paths=files, ranges=ranges, site=site, text_format=file_format
        ).ask(questions, epsilon=epsilon, delta=delta, colluding=colluding, budget=budget)
        released = pairs_in(statistics.answers)
        cost = _cost_of(statistics.as_dict())
        typer.echo(statistics)
    with progress_bar(RAKE_PASSES, unit="pass") as advance:
        synthetic = drawn_from(released, rows, seed, on_pass=lambda: advance(1))
    replace_text(output, synthetic.to_csv())
    description = output.with_name(f"{output.name}.toml")
    replace_text(description, _description(synthetic, cost))
    typer.echo(f"\n{synthetic.shown()}\n\n{synthetic.text}\nwrote {output} and {description}")


def _read_answers(path: Path) -> tuple[PairTables, dict[str, Any]]:
    """Return the released two-way tables in a file of answers, and their privacy cost."""
    from dpmesh.statistics.two_way import PairTables

    expected = "a file that dpmesh stats --pairs .. --output answers.json wrote"
    try:
        saved = read_json(path)
    except ValueError:
        fail(str(path), expected, "another")
    answers = saved.get("answers", ()) if isinstance(saved, dict) else ()
    tables = [answer["pairs"] for answer in answers if "pairs" in answer]
    if not tables:
        fail(str(path), expected, "another")
    return PairTables.from_dict(tables[0]), _cost_of(saved)


def _cost_of(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Return the privacy cost of released tables by the keys of the description.

    `saved` holds statistics as `Statistics.as_dict` returns them.
    """
    privacy = saved["privacy"]
    fields = ("epsilon", "delta", "neighboring_relation", "unit", "seeded")
    cost = {name: privacy[name] for name in fields if name in privacy}
    cost["against"] = saved["against"]
    cost["ledgers"] = json.dumps([*saved.get("earlier", ()), saved["ledger"]])
    if "provenance" in saved:
        cost["contract"] = saved["provenance"]["contract"]
    return cost


def _description(synthetic: Synthetic, cost: Mapping[str, Any]) -> str:
    """Return the description of synthetic rows in TOML: their privacy cost, bins and errors."""
    from dpmesh.cli._sites import to_toml, to_toml_key

    plain = synthetic.as_dict()
    errors = plain.pop("errors")
    lines = [f"{name} = {to_toml(value)}" for name, value in (plain | dict(cost)).items()]
    bins = {
        column.name: len(column.edges) - 1 for column in synthetic.tables.columns if column.edges
    }
    lines += ["", "[bins]", *(f"{to_toml_key(name)} = {count}" for name, count in bins.items())]
    for error in errors:
        lines += ["", "[[errors]]"]
        lines += [f"{name} = {to_toml(value)}" for name, value in error.items()]
    return "\n".join(lines) + "\n"

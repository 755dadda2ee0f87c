"""``dpmesh predict``: predictions of a released model for a table of new records."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

import dpmesh.cli._options as options
from dpmesh.cli._sites import text_format

_RELEASED = typer.Argument(metavar="MODEL", help="Model file of dpmesh fit, or folder of a run.")
_OUTPUT = typer.Option(
    help="CSV file to write (default: standard output).", rich_help_panel=options.OUTPUT
)
_NETWORK = typer.Option(
    help="Neural network in JAX that was fitted, as module:function.", rich_help_panel=options.DATA
)
_PROBABILITIES = typer.Option(
    "--probabilities", help="Add the probability of each class.", rich_help_panel=options.OUTPUT
)


def predict(
    released: Annotated[Path, _RELEASED],
    table: Annotated[Path, typer.Argument(help="Table of new records, as for dpmesh fit.")],
    output: Annotated[Path | None, _OUTPUT] = None,
    network: Annotated[str | None, _NETWORK] = None,
    probabilities: Annotated[bool, _PROBABILITIES] = False,
    separator: options.Separator = None,
    decimal: options.Decimal = None,
    encoding: options.Encoding = None,
    header: options.Header = None,
    escape: options.Escape = None,
    multiline: options.Multiline = False,
    skip_empty_lines: options.SkipEmptyLines = False,
) -> None:
    """Predict a table with a model of dpmesh fit or a folder of dpmesh run, as CSV lines."""
    from dpmesh._files import replace_text
    from dpmesh._table import Table
    from dpmesh.tables.cells import errors_naming_file
    from dpmesh.tables.models import Model
    from dpmesh.tables.reader import open_table

    sys.path.insert(0, "")  # modules in this folder
    if released.is_dir():
        from dpmesh.experiments.results import Result

        loaded = Result.load(released).model(network=network)
    else:
        loaded = Model.load(released, network=network)
    file_format = text_format(
        separator=separator,
        decimal=decimal,
        encoding=encoding,
        header=header,
        escape=escape,
        multiline=multiline,
        skip_empty=skip_empty_lines,
    )
    records = open_table(table, file_format)
    with warnings.catch_warnings(record=True) as noticed, errors_naming_file(table):
        predictions = loaded.predict(records)
        heads = ["prediction"]
        columns = [predictions.tolist()]
        if predictions.ndim == 2 and loaded.classes is not None:  # several labels of a record
            heads = [str(label) for label in loaded.classes]
            columns = predictions.T.tolist()
    for warning in noticed:
        typer.echo(f"Warning: {warning.message}", err=True)
    if probabilities:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the same warnings as above
            probabilities_of_classes = loaded.predict_proba(records)
        assert loaded.classes is not None
        heads += [f"probability of {name}" for name in loaded.classes]
        columns += [
            [f"{probability:.6f}" for probability in column]
            for column in probabilities_of_classes.T
        ]
    rows = list(zip(*columns, strict=True))
    text = Table(heads, rows).to_csv()
    if output is None:
        typer.echo(text, nl=False)
    else:
        replace_text(output, text)
        typer.echo(f"wrote {output}")

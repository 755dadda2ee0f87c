"""``dpmesh predict``: predictions of a released model."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Annotated

import typer

from dpmesh.cli._sites import Decimal, Encoding, Separator, text_format


def predict(
    released: Annotated[
        Path,
        typer.Argument(metavar="MODEL", help="Model file of dpmesh fit, or folder of a run."),
    ],
    table: Annotated[Path, typer.Argument(help="Table of new records: CSV, Parquet, Arrow.")],
    output: Annotated[
        Path | None, typer.Option(help="CSV file to write; by default the standard output.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="Network that was fitted, as module:function.")
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Add the probability of each class.")
    ] = False,
    separator: Separator = None,
    decimal: Decimal = None,
    encoding: Encoding = None,
) -> None:
    """Predict a table with a model of dpmesh fit or a folder of dpmesh run, as CSV lines."""
    import csv
    import io

    from dpmesh._files import replace_text
    from dpmesh.models import Model
    from dpmesh.tables import read_table
    from dpmesh.tables.cells import of_file

    sys.path.insert(0, "")  # modules in this folder
    if released.is_dir():
        from dpmesh.experiments.experiment import Result

        loaded = Result.load(released).model(network=model)
    else:
        loaded = Model.load(released, network=model)
    records = read_table(table, text_format(separator, decimal, encoding))
    with warnings.catch_warnings(record=True) as noticed, of_file(table):
        names, columns = ["prediction"], [loaded.predict(records).tolist()]
    for warning in noticed:
        typer.echo(f"Warning: {warning.message}", err=True)
    if probabilities:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the predictions warned
            shares = loaded.predict_proba(records)
        assert loaded.classes is not None
        names += [f"probability of {name}" for name in loaded.classes]
        columns += [[f"{share:.6f}" for share in column] for column in shares.T]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(zip(*columns, strict=True))
    if output is None:
        typer.echo(text.getvalue(), nl=False)
    else:
        replace_text(output, text.getvalue())
        typer.echo(f"wrote {output}")

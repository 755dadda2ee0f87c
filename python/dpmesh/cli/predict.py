"""``dpmesh predict``: predictions of a model that ``dpmesh fit`` or `Model.save` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def predict(
    model: Annotated[Path, typer.Argument(help="Model file of dpmesh fit.")],
    table: Annotated[Path, typer.Argument(help="Table of new records: CSV, Parquet, Arrow.")],
    output: Annotated[
        Path | None, typer.Option(help="CSV file to write; by default the standard output.")
    ] = None,
    probabilities: Annotated[
        bool, typer.Option("--probabilities", help="Add the probability of each class.")
    ] = False,
) -> None:
    """Predict the records of a table with a model of dpmesh fit, as CSV, one line for each."""
    import csv
    import io

    from dpmesh._files import replace_text
    from dpmesh.models import Model
    from dpmesh.tables import read_table

    loaded = Model.load(model)
    records = read_table(table)
    names, columns = ["prediction"], [loaded.predict(records).tolist()]
    if probabilities:
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

"""``dpmesh fit``: a private model of the tables of several sites."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dpmesh._validate import fail

if TYPE_CHECKING:
    from dpmesh.sklearn import PrivateClassifier, PrivateRegressor


def fit(
    files: Annotated[
        list[Path],
        typer.Argument(help="Tables: CSV with a header, Parquet, Arrow or Feather. One per site."),
    ],
    label: Annotated[str, typer.Option(help="Name of the column to predict.")],
    epsilon: Annotated[float, typer.Option(help="Privacy budget of the fit.")],
    ranges: Annotated[
        Path, typer.Option(help="TOML file with the public ranges of the columns and the label.")
    ],
    delta: Annotated[float, typer.Option(help="Delta of the guarantee.")] = 1e-5,
    site: Annotated[
        str | None, typer.Option(help="Column that names the site; by default each file is one.")
    ] = None,
    algorithm: Annotated[
        Literal["secure", "gossip"] | None,
        typer.Option(
            help="How sites learn together: add up gradients under a secure sum, or gossip. "
            "By default a secure sum from 3 sites on."
        ),
    ] = None,
    colluding: Annotated[
        int, typer.Option(min=0, help="Sites that may collude, for a secure sum.")
    ] = 1,
    model: Annotated[
        str | None,
        typer.Option(
            help="A network in JAX: module:function, with the module in this folder. "
            "By default a linear model."
        ),
    ] = None,
    test_size: Annotated[
        float, typer.Option(help="Share of each site's records that are held out for the scores.")
    ] = 0.25,
    output: Annotated[Path, typer.Option(help="Model file to write.")] = Path("model.dpmesh"),
    page: Annotated[
        Path | None, typer.Option(help="Report page; by default beside the model file.")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Make the fit reproducible. It is then not private."),
    ] = None,
) -> None:
    """Fit a private model to the tables of several sites, and report whether sharing paid.

    Each file is the table of one site: CSV with a header, Parquet, Arrow or Feather. The file of
    ranges has a line for each column to use, and one for the label: the lowest and the highest
    number, or the list of categories. A label with categories makes a classifier, one with numbers
    a regression.
    """
    import numpy as np

    from dpmesh._files import replace_text, writable_folder
    from dpmesh.cli._fit_page import fit_page
    from dpmesh.defaults import HONEST
    from dpmesh.ranges import read_ranges
    from dpmesh.sklearn import PrivateClassifier, evaluate

    public = read_ranges(ranges)
    page = output.with_suffix(".html") if page is None else page
    for target in (output, page):
        writable_folder(target.parent)
    table, owners = _tables(_existing(files), site)
    if label not in public:
        given = f'{label} = ["no", "yes"] for classes, or {label} = [0, 100] for a number'
        raise ValueError(f"{ranges} has no range of the label. Add a line such as {given}")
    used = [name for name in public if name not in (label, site)]
    for name in (label, *used):
        if name not in table:
            fail("ranges", f"columns of the tables ({', '.join(table)})", repr(name))
    unused = [name for name in table if name not in (*used, label, site)]
    made = _estimator(label, public, used, epsilon=epsilon, delta=delta, seed=seed)
    made.set_params(algorithm=algorithm, colluding=colluding)
    if model is not None:
        if not isinstance(made, PrivateClassifier):
            fail("--model", "a label with categories: networks predict classes", "a range")
        sys.path.insert(0, "")  # modules beside the tables
        made.set_params(network=model)

    records, sites = len(table), len(np.unique(owners))
    kind = "classes" if hasattr(made, "classes") else "a number (regression)"
    at, of = f"{sites} site{'s' * (sites != 1)}", f"column{'s' * (len(used) != 1)}"
    typer.echo(f"{records} records at {at}; {len(used)} {of} used to predict {label}: {kind}")
    if algorithm is None and 1 < sites < colluding + HONEST:
        needed = f"{colluding + HONEST} sites, if {colluding} may collude"
        typer.echo(f"they learn by gossip: a secure sum needs {needed}")
    if unused:
        typer.echo(f"not used, since they have no range: {', '.join(unused)}")
    found = evaluate(made, table[used], table[label], owners, test_size=test_size)
    typer.echo(f"\n{found}\n")
    typer.echo("These scores are for research: the baselines and the held-out records are covered")
    private = "What is written is private" if seed is None else "The noise is seeded, not private"
    typer.echo(f"by no epsilon. {private}; these tables were all in one process:\n")
    typer.echo(f"{found.estimator.report_}\n")
    found.estimator.save(output)
    replace_text(page, fit_page(found, label=label, unused=unused))
    network = "" if model is None else f" --model {model}"
    typer.echo(f"wrote {output}; predict with: dpmesh predict {output} new.csv{network}")
    typer.echo(f"wrote {page}")


def _existing(files: list[Path]) -> list[Path]:
    """Return the files, patterns such as ``sites/*.csv`` expanded where the shell did not."""
    found: list[Path] = []
    for file in files:
        if file.exists() or "*" not in file.name:
            found.append(file)
            continue
        matches = sorted(file.parent.glob(file.name))
        if not matches:
            raise FileNotFoundError(f"no file matches {file}")
        found += matches
    return found


def _tables(files: list[Path], site: str | None) -> tuple[Any, Any]:
    """Return all records in one table, and the site of each."""
    import numpy as np

    from dpmesh.tables import read_table

    tables = [read_table(file) for file in files]
    for file, table in zip(files, tables, strict=True):
        if not len(table):
            fail("file", "a table of at least 1 record", f"none in {file}")
        if lacking := [name for name in tables[0] if name not in table]:
            fail("file", f"the columns of {files[0]}", f"{file} without {', '.join(lacking)}")
    from pandas import concat

    together = concat(tables, ignore_index=True)
    if site is None:
        return together, np.repeat(np.arange(len(files)), [*map(len, tables)])
    if site not in together:
        fail("--site", f"a column of the tables ({', '.join(together)})", repr(site))
    return together, together[site].to_numpy()


def _estimator(
    label: str,
    public: dict[str, Any],
    used: list[str],
    *,
    epsilon: float,
    delta: float,
    seed: int | None,
) -> PrivateClassifier | PrivateRegressor:
    """Return the estimator of the kind that the label's range implies."""
    from dpmesh.ranges import Category, as_range
    from dpmesh.sklearn import PrivateClassifier, PrivateRegressor

    given = {name: public[name] for name in used}
    target = as_range(label, public[label])
    made: PrivateClassifier | PrivateRegressor
    if isinstance(target, Category):
        made = PrivateClassifier(epsilon, delta=delta, ranges=given, classes=target.categories)
    else:
        bounds = (target.low, target.high)
        made = PrivateRegressor(epsilon, delta=delta, ranges=given, target_range=bounds)
    made.random_state = seed
    return made

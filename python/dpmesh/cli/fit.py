"""``dpmesh fit``: a private model of the tables of several sites."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import dpmesh.cli._options as options
from dpmesh._validate import fail, one_of

if TYPE_CHECKING:
    from dpmesh.sklearn import PrivateClassifier, PrivateRegressor
    from dpmesh.tables.labels import Label


_FILES = "Tables: CSV with a header, Parquet, Arrow or Feather. One per site."
_LABEL = "Column to predict; several labels of a record as asthma,gout."
_EPSILON = "Privacy budget of the fit; several, as 1,2,4,8, are compared."
_KEEP = "Which of several epsilons the model has; by default the smallest."
_FEATURES = (
    "What the model makes of each record: columns, hats, cosines, scattering, or a union such as "
    "hats+cosines. By default by the number of records."
)
_CALIBRATE = (
    "Let the predictions of a regression add up to the targets, for a share of the epsilon "
    "(default: where the noise is small enough)."
)
_LABELLED = "which records have a label, and a site, is public: those without are left out"
_MODEL = (
    "A network in JAX: module:function, with the module in this folder. By default a linear model."
)
_TEST_SIZE = "Share of each site's records that are held out for the scores."
_SPLITS = "Number of splits into training and test records (default: 10). A verdict takes 5."
_PAGE = "Report page; by default beside the model file."
_PUBLIC = "Page to publish: without scores (default: none)."
_SEED = "Make the fit reproducible. It is then not private."


def fit(
    files: Annotated[list[Path], typer.Argument(help=_FILES)],
    label: Annotated[str, typer.Option(help=_LABEL, rich_help_panel=options.DATA)],
    epsilon: Annotated[str, typer.Option(help=_EPSILON, rich_help_panel=options.PRIVACY)],
    ranges: options.Ranges,
    keep: Annotated[float | None, typer.Option(help=_KEEP, rich_help_panel=options.PRIVACY)] = None,
    delta: options.Delta = 1e-5,
    site: options.Site = None,
    features: Annotated[
        str | None, typer.Option(help=_FEATURES, rich_help_panel=options.LEARNING)
    ] = None,
    calibrate: Annotated[
        bool | None,
        typer.Option(
            "--calibrate/--no-calibrate",
            help=_CALIBRATE,
            show_default=False,
            rich_help_panel=options.LEARNING,
        ),
    ] = None,
    algorithm: options.Method = None,
    noise: options.Noise = None,
    colluding: options.Colluding = 1,
    model: Annotated[
        str | None, typer.Option(help=_MODEL, rich_help_panel=options.LEARNING)
    ] = None,
    test_size: Annotated[
        float, typer.Option(help=_TEST_SIZE, rich_help_panel=options.LEARNING)
    ] = 0.25,
    splits: Annotated[
        int | None, typer.Option(min=1, help=_SPLITS, rich_help_panel=options.LEARNING)
    ] = None,
    output: Annotated[
        Path, typer.Option(help="Model file to write.", rich_help_panel=options.OUTPUT)
    ] = Path("model.dpmesh"),
    page: Annotated[Path | None, typer.Option(help=_PAGE, rich_help_panel=options.OUTPUT)] = None,
    public: Annotated[
        Path | None, typer.Option(help=_PUBLIC, rich_help_panel=options.OUTPUT)
    ] = None,
    budget: options.BudgetFolder = None,
    separator: options.Separator = None,
    decimal: options.Decimal = None,
    encoding: options.Encoding = None,
    header: options.Header = None,
    escape: options.Escape = None,
    multiline: options.Multiline = False,
    skip_empty_lines: options.SkipEmptyLines = False,
    drop_missing_labels: options.DropMissingLabels = False,
    seed: Annotated[
        int | None, typer.Option(min=0, help=_SEED, rich_help_panel=options.PRIVACY)
    ] = None,
) -> None:
    """Fit a private model to the tables of several sites, and report whether sharing paid.

    Each file is the table of one site: CSV with a header, Parquet, Arrow or Feather. The file of
    ranges has a line for each column to use, and one for the label: {classes = [..]} makes a
    classifier, {target = [low, high]} a regression, {counts = 50} one of counts. Of several labels
    each is {flag = true}, or {classes = [..]} of two. `dpmesh ranges` drafts the file.
    """
    import numpy as np

    from dpmesh._files import replace_text, writable_folder
    from dpmesh.cli._fit_page import FitPage
    from dpmesh.cli._sites import as_spent, charge, public_ranges, read_sites, text_format
    from dpmesh.defaults.rule import HONEST
    from dpmesh.sklearn import PrivateClassifier, evaluate

    if budget is not None and seed is not None:
        fail("--budget", "no --seed beside it: seeded noise is not private", f"--seed {seed}")
    if budget is not None and noise is not None:
        wanted = "no --noise beside it: a folder counts what is released against everybody"
        fail("--budget", wanted, f"--noise {noise}")
    each, released = _numbers(epsilon), list[Any]()
    if keep is not None:
        one_of("--keep", keep, each)
    used, labels, target = public_ranges(ranges, label, site, released)
    page = output.with_suffix(".html") if page is None else page
    for file in filter(None, (output, page, public)):
        writable_folder(file.parent)
    written = text_format(
        separator=separator,
        decimal=decimal,
        encoding=encoding,
        header=header,
        escape=escape,
        multiline=multiline,
        skip_empty=skip_empty_lines,
    )
    held = read_sites(files, used, labels, target, site, written, drop=drop_missing_labels)
    given: Any = {"epsilon": each[0], "delta": delta, "ranges": used, "random_state": seed}
    given |= {"algorithm": algorithm, "noise": noise, "colluding": colluding}
    made = _estimator(target, **given, features=features)
    if calibrate is not None:
        if isinstance(made, PrivateClassifier):
            fail("--calibrate", "a label that is a number or a count", "classes")
        made.set_params(calibrate=calibrate)
    if model is not None:
        if not isinstance(made, PrivateClassifier):
            fail("--model", "a label with categories: networks predict classes", "a range")
        sys.path.insert(0, "")  # modules beside the tables
        made.set_params(network=model)

    records, sites = len(held.labels), len(np.unique(held.owners))
    kind = "classes" if hasattr(made, "classes") else "a number (regression)"
    kind = kind if len(labels) == 1 else f"{len(labels)} labels"
    at, of = f"{sites} site{'s' * (sites != 1)}", f"column{'s' * (len(used) != 1)}"
    typer.echo(f"{records} records at {at}; {len(used)} {of} used to predict {label}: {kind}")
    if algorithm is None and noise is None and 1 < sites < colluding + HONEST:
        needed = f"{colluding + HONEST} sites, if {colluding} may collude"
        typer.echo(f"they learn by gossip: a secure sum needs {needed}")
    if held.unused:
        typer.echo(f"not used, since they have no range: {', '.join(held.unused)}")
    with warnings.catch_warnings():
        known = ".*(are clipped|count as missing|are also at)"  # said by file
        warnings.filterwarnings("ignore", known)
        budgets: Any = {"epsilons": each, "keep": keep} if len(each) > 1 or keep else {}
        budgets |= {"test_size": test_size, "splits": splits}
        found = evaluate(made, held.table, held.labels, held.owners, **budgets)
    if drop_missing_labels:
        found.estimator.charge(found.estimator.report_.privacy.epsilon, _LABELLED)
    more = charge(budget, [*released, as_spent(found.estimator.ledger_)], delta, made.partners)
    if released:
        found.estimator.charge(*more)
    found.estimator.save(output)  # before anything is printed: a reader such as `head` may be gone
    about = FitPage(
        evaluation=found,
        label=label,
        unused=held.unused,
        model=output,
        tables=files,
        day=date.today(),
    )
    replace_text(page, about.html())
    if public is not None:
        replace_text(public, replace(about, public=True).html())
    typer.echo(f"\n{found}\n")
    covers = "The epsilon covers" if seed is None else "The noise is seeded: no epsilon covers"
    of = "all" if found.by_epsilon else "the training"
    typer.echo(f"{covers} {output}, made from {of} records of all tables in one process.")
    typer.echo(
        f"It covers neither {page} nor these lines: scores have no noise. Do not publish them.\n"
    )
    typer.echo(f"{found.estimator.report_}\n")
    typer.echo(f"{found.estimator.report_.plain_words}\n")
    network = "" if model is None else f" --model {model}"
    typer.echo(f"wrote {output}; predict with: dpmesh predict {output} new.csv{network}")
    typer.echo(f"wrote {page}")
    if public is not None:
        typer.echo(f"wrote {public}, without scores")


def _numbers(epsilon: str) -> list[float]:
    """Return epsilons that are separated by commas."""
    try:
        return [float(one) for one in epsilon.split(",")]
    except ValueError:
        fail("--epsilon", "numbers, separated by commas, such as 1,2,4", repr(epsilon))


def _estimator(target: Label, **given: Any) -> PrivateClassifier | PrivateRegressor:
    """Return the estimator of the kind that the label's range implies."""
    from dpmesh.sklearn import PrivateClassifier, PrivateRegressor
    from dpmesh.tables import Category
    from dpmesh.tables.kinds import Count
    from dpmesh.tables.labels import Labels

    if isinstance(target, Labels):
        return PrivateClassifier(classes=target.names, **given)
    if isinstance(target, Category):
        classes, shares = target.categories, target.shares
        by_class = None if shares is None else dict(zip(classes, shares, strict=True))
        return PrivateClassifier(classes=classes, class_shares=by_class, **given)
    if isinstance(target, Count):
        return PrivateRegressor(counts=target.high, **given)
    return PrivateRegressor(target_range=target.ends, **given)

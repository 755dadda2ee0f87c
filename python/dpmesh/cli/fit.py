"""``dpmesh fit``: a private model of the tables of several sites, simulated in one process.

It reads the tables, fits an estimator of `dpmesh.sklearn`, compares it with baselines, and writes
the model file and a report page.
"""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import dpmesh.cli._options as options
from dpmesh._validate import fail, one_of, probability
from dpmesh.cli._checks import check_budget, counted
from dpmesh.cli._progress import progress_bar

if TYPE_CHECKING:
    from dpmesh._files import JsonObject
    from dpmesh.sklearn import PrivateClassifier, PrivateRegressor
    from dpmesh.tables.labels import Label


_FILES = "Tables: CSV with a header, Parquet, Arrow or Feather. One per site."
_LABEL = "Column to predict; several labels of a record as asthma,gout."
_EPSILON = "Privacy budget of the fit; several, as 1,2,4,8, are compared."
_KEEP = "Epsilon of the model, one of several (default: the smallest)."
_FEATURES = (
    "Features of the model: columns, hats (piecewise-linear splines), cosines (random Fourier "
    "features), scattering, or a union such as hats+cosines (default: by the number of records)."
)
_CALIBRATE = (
    "Let the predictions of a regression add up to the targets, for a share of the epsilon "
    "(default: where the noise is small enough)."
)
_LABELS_ARE_PUBLIC = "which records have a label, and a site, is public: those without are left out"
_NETWORK = (
    "Neural network in JAX: module:function, with the module in this folder (default: a linear "
    "model)."
)
_TEST_SIZE = "Share of each site's records that is held out for the scores."
_SPLITS = "Number of splits into training and test records (default: 10; a verdict needs 5)."
_PAGE = "Report page (default: beside the model file)."
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
    noise: options.Mechanism = None,
    colluding: options.Colluding = 1,
    network: Annotated[
        str | None, typer.Option(help=_NETWORK, rich_help_panel=options.LEARNING)
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
    """Fit a private model to the tables of several sites, and compare it with single sites.

    Each file is the table of one site: CSV with a header, Parquet, Arrow or Feather. The file of
    ranges has a line for each column to use, and one for the label. The label's {classes = [..]}
    makes a classifier, {target = [low, high]} a regression, {counts = 50} one of counts. Of several
    labels each is {flag = true}, or {classes = [..]} of two. `dpmesh ranges` drafts the file.
    """
    import numpy as np

    from dpmesh._files import replace_text, writable_folder
    from dpmesh._networks import named
    from dpmesh.cli._fit_page import FitPage
    from dpmesh.cli._sites import charge, public_ranges, read_sites, saved_release, text_format
    from dpmesh.defaults.rule import HONEST
    from dpmesh.sklearn import PrivateClassifier, evaluate
    from dpmesh.tables.features import FeatureMap

    if budget is not None and seed is not None:
        fail("--folder", "no --seed beside it: seeded noise is not private", f"--seed {seed}")
    if budget is not None and noise is not None:
        expected = "no --mechanism beside it: a folder counts epsilon against all parties"
        fail("--folder", expected, f"--mechanism {noise}")
    epsilons = _parsed_epsilons(epsilon)
    check_budget(epsilons, delta)
    if delta == 0:
        fail("--delta", "a number above 0: Gaussian noise has no finite epsilon at delta 0", delta)
    probability("test_size", test_size, zero=False, one=False)
    released: list[JsonObject] = []
    if keep is not None:
        one_of("--keep", keep, epsilons)
    columns_used, labels, target = public_ranges(ranges, label, site, released)
    if page is None:
        page = output.with_suffix(".html")
    for file in filter(None, (output, page, public)):
        writable_folder(file.parent)
    file_format = text_format(
        separator=separator,
        decimal=decimal,
        encoding=encoding,
        header=header,
        escape=escape,
        multiline=multiline,
        skip_empty=skip_empty_lines,
    )
    estimator = _estimator(target)
    estimator.set_params(
        epsilon=epsilons[0],
        delta=delta,
        ranges=columns_used,
        random_state=seed,
        algorithm=algorithm,
        noise=noise,
        colluding=colluding,
        features=features,
    )
    if calibrate is not None:
        if isinstance(estimator, PrivateClassifier):
            fail("--calibrate", "a label that is a number or a count", "classes")
        estimator.set_params(calibrate=calibrate)
    if network is not None:
        if not isinstance(estimator, PrivateClassifier):
            fail("--network", "a label with categories: networks predict classes", "a range")
        sys.path.insert(0, "")  # modules beside the tables
        named(network)  # refuses a wrong name before any record is read
        estimator.set_params(network=network)
    if features is not None:
        FeatureMap.of(features)  # refuses a wrong name before any record is read

    records = read_sites(
        files, columns_used, labels, target, site, file_format, drop=drop_missing_labels
    )

    sites = len(np.unique(records.owners))
    kind = "a number (regression)"
    if len(labels) > 1:
        kind = f"{len(labels)} labels"
    elif isinstance(estimator, PrivateClassifier):
        kind = "classes"
    sites_text = counted(sites, "site")
    columns_text = counted(len(columns_used), "column")
    typer.echo(
        f"{len(records.labels)} records at {sites_text}; {columns_text} used to predict "
        f"{label}: {kind}"
    )
    if algorithm is None and noise is None and 1 < sites < colluding + HONEST:
        requirement = f"{colluding + HONEST} sites, if {colluding} may collude"
        typer.echo(f"they learn by gossip: a secure sum needs {requirement}")
    if records.unused:
        typer.echo(f"not used, since they have no range: {', '.join(records.unused)}")
    several_epsilons = len(epsilons) > 1 or bool(keep)
    with warnings.catch_warnings(), progress_bar(None, unit="fit") as advance:
        shown_by_read_sites = ".*(are clipped|count as missing|are also at)"
        warnings.filterwarnings("ignore", shown_by_read_sites)
        evaluation = evaluate(
            estimator,
            records.table,
            records.labels,
            records.owners,
            epsilons=epsilons if several_epsilons else None,
            keep=keep,
            test_size=test_size,
            splits=splits,
            on_fit=lambda: advance(1),
        )
    fitted = evaluation.estimator
    if drop_missing_labels:
        fitted._restate_cost(fitted.report_.privacy.epsilon, _LABELS_ARE_PUBLIC)
    releases = [*released, saved_release(fitted.ledger_)]
    total = charge(budget, releases, delta, estimator._colluding_partners)
    if released:
        fitted._restate_cost(total.epsilon, total.reason, total.earlier_plans)
    fitted.save(output)  # before anything is printed: a reader such as `head` may be gone
    fit_page = FitPage(
        evaluation=evaluation,
        label=label,
        unused=records.unused,
        model=output,
        tables=files,
        day=date.today(),
    )
    replace_text(page, fit_page.html())
    if public is not None:
        replace_text(public, replace(fit_page, public=True).html())
    typer.echo(f"\n{evaluation}\n")
    coverage = "The epsilon covers" if seed is None else "The noise is seeded: no epsilon covers"
    records_used = "all" if evaluation.by_epsilon else "the training"
    typer.echo(
        f"{coverage} {output}, made from {records_used} records of all tables in one process."
    )
    typer.echo(
        f"It covers neither {page} nor these lines: scores have no noise. Do not publish them.\n"
    )
    typer.echo(f"{fitted.report_}\n")
    typer.echo(f"{fitted.report_.plain_words}\n")
    network_option = "" if network is None else f" --network {network}"
    typer.echo(f"wrote {output}; predict with: dpmesh predict {output} new.csv{network_option}")
    typer.echo(f"wrote {page}")
    if public is not None:
        typer.echo(f"wrote {public}, without scores")


def _parsed_epsilons(epsilon: str) -> list[float]:
    """Return the epsilons of a text that separates them by commas."""
    try:
        return [float(text) for text in epsilon.split(",")]
    except ValueError:
        fail("--epsilon", "numbers, separated by commas, such as 1,2,4", repr(epsilon))


def _estimator(target: Label) -> PrivateClassifier | PrivateRegressor:
    """Return a classifier or a regressor, as the kind of the label's range requires."""
    from dpmesh.sklearn import PrivateClassifier, PrivateRegressor
    from dpmesh.tables import Category
    from dpmesh.tables.kinds import Count
    from dpmesh.tables.labels import Labels

    if isinstance(target, Labels):
        return PrivateClassifier(classes=target.names)
    if isinstance(target, Category):
        class_shares = None
        if target.shares is not None:
            class_shares = dict(zip(target.categories, target.shares, strict=True))
        return PrivateClassifier(classes=target.categories, class_shares=class_shares)
    if isinstance(target, Count):
        return PrivateRegressor(counts=target.high)
    return PrivateRegressor(target_range=target.ends)

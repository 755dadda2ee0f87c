"""``dpmesh audit``: empirical lower bounds on epsilon, compared with the claimed epsilon.

A *case* is an algorithm or a mechanism by name, or a file that claims an epsilon. Each case is
audited on worst-case data in three layers (`dpmesh.audit.audit_layers`), or, with ``--view``,
against the view of a weaker adversary.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

import dpmesh as dm
import dpmesh.cli._options as options
from dpmesh._validate import fail, integer, one_of, probability
from dpmesh.cli._progress import echo_above_bar, progress_bar
from dpmesh.cli.mechanisms import (
    MechanismName,
    accepts_mechanism,
    is_custom_mechanism,
    mechanism_named,
)
from dpmesh.cli.views import Nodes, TopologyName, ViewName, view_named

if TYPE_CHECKING:
    from dpmesh.algorithms.base import AnyAlgorithm
    from dpmesh.audit import AuditResult
    from dpmesh.audit.coupling import Coupling
    from dpmesh.noise import Mechanism

MOST_ROUNDS = 100_000
"""Rounds of all runs of an audit together, by default: about a minute."""

MOST_RUNS = 1_000
"""Default number of runs on each dataset, where runs are short."""

FEWEST_RUNS = 50
"""Default number of runs on each dataset, where runs are long."""

ROUNDS_OF_A_VIEW = 16
"""Default number of rounds of a run that is audited against a view."""

_NAME = typer.Argument(
    help="An algorithm, gaussian or laplace; an experiment file, a contract or a model file; all "
    "algorithms by default."
)
_RUNS = typer.Option(
    min=1,
    help="Number of runs on each of two datasets (default: 1000, or fewer long ones).",
    rich_help_panel=options.AUDIT,
)
_TARGET = typer.Option(
    help="Node whose record is at risk, for --view (default: the worst one).",
    rich_help_panel=options.ADVERSARY,
)


def audit(
    name: Annotated[str | None, _NAME] = None,
    noise: Annotated[
        float | None, typer.Option(help="Noise of the run to audit.", rich_help_panel=options.CLAIM)
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Epsilon that the run claims.", rich_help_panel=options.CLAIM),
    ] = None,
    delta: Annotated[
        float, typer.Option(help="Delta of the claim.", rich_help_panel=options.CLAIM)
    ] = 1e-5,
    rounds: Annotated[
        int | None,
        typer.Option(help="Total number of rounds of the run.", rich_help_panel=options.CLAIM),
    ] = None,
    records: Annotated[
        int | None,
        typer.Option(
            help="Number of records, as for dpmesh privacy.", rich_help_panel=options.CLAIM
        ),
    ] = None,
    runs: Annotated[int | None, _RUNS] = None,
    canaries: Annotated[
        int,
        typer.Option(
            min=2, help="Number of canaries of the single run.", rich_help_panel=options.AUDIT
        ),
    ] = 1_000,
    confidence: Annotated[
        float, typer.Option(help="Confidence of each lower bound.", rich_help_panel=options.AUDIT)
    ] = 0.999,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="Make the audit reproducible.", rich_help_panel=options.AUDIT),
    ] = None,
    mechanism: MechanismName = None,
    view: ViewName = None,
    target: Annotated[int | None, _TARGET] = None,
    nodes: Nodes = 16,
    topology: TopologyName = "meetings",
) -> None:
    """Audit a privacy claim on worst-case data; exit code 1 if the claim is refuted.

    State a claim of your own by --noise or --epsilon, with --rounds and --records; a file states
    its claim. There are three layers: two runs with the same releases, many runs, and one run with
    many canaries. Each prints the most that it could have shown. With --view, gossip is audited
    against an adversary that sees the messages of these nodes alone.
    """
    probability("confidence", confidence, zero=False, one=False)
    key = None if seed is None else dm.Key.seeded(seed)
    if view is not None:
        _audit_view(
            name,
            view_named(view, nodes=nodes, topology=topology, seed=seed or 0),
            rounds=rounds or ROUNDS_OF_A_VIEW,
            target=target,
            runs=runs or MOST_RUNS,
            confidence=confidence,
            key=key,
        )
        return
    states_claim = noise is not None or epsilon is not None or records is not None
    if name is None and (states_claim or rounds is not None):
        fail("name", "an algorithm, whose claim these options describe", None)
    violations = []
    for case in case_names() if name is None else [name]:
        algorithm, length = _case(case, rounds)
        if mechanism is not None:
            algorithm = _with_mechanism(algorithm, mechanism)
        if states_claim:
            pair, _ = algorithm.worst_case(canaries=2)
            algorithm = dm.audit.claiming(
                algorithm,
                rounds=length or pair.rounds,
                delta=delta,
                epsilon=epsilon,
                noise=noise,
                records=records,
            )
        results = _audited(
            algorithm, length, runs=runs, canaries=canaries, confidence=confidence, key=key
        )
        typer.echo(f"{case}: {algorithm}\n")
        with progress_bar(None, unit="audit") as advance:
            for result in results:
                advance(1)
                echo_above_bar(f"{result}\n")
                if result.violated:
                    violations.append(case)
    _conclude(violations)


def _case(name: str, rounds: int | None) -> tuple[AnyAlgorithm, int | None]:
    """Return the algorithm of a case, and the number of rounds of its run; None for its default."""
    if not Path(name).suffix:
        return _example(name), rounds
    algorithm, rounds_of_file = _claimed_in(Path(name))
    return algorithm, rounds or rounds_of_file


def case_names() -> list[str]:
    """Return the names of all algorithms and mechanisms."""
    from dpmesh.algorithms.registry import REGISTRY

    return [*(entry.name for entry in REGISTRY), *_mechanisms()]


def _mechanisms() -> dict[str, type[Mechanism]]:
    """Return the package's mechanisms by the name of their distribution."""
    from dpmesh.noise.mechanisms import KINDS

    return {kind.distribution: kind for kind in KINDS}


def _example(name: str) -> AnyAlgorithm:
    """Return the algorithm or mechanism of a name, with parameters for which few runs suffice."""
    from dpmesh.algorithms.registry import entry_of

    if ":" in name:
        sys.path.insert(0, "")  # modules in this folder
    if ":" not in name:
        one_of("name", name, case_names())
    mechanisms = _mechanisms()
    if name in mechanisms:
        mechanism = mechanisms[name](1.0)
    elif is_custom_mechanism(name):
        mechanism = mechanism_named(name)(1.0)
    else:
        return entry_of(name).audited
    sensitivity = dm.noise.Sensitivity(1.0, mechanism.norm, "numbers between 0 and 1")
    return dm.audit.OneRelease(mechanism=mechanism, sensitivity=sensitivity)


def _with_mechanism(algorithm: AnyAlgorithm, mechanism: str) -> AnyAlgorithm:
    """Return the algorithm with noise of another class of mechanisms, by its name."""
    if not accepts_mechanism(type(algorithm)):
        expected = f"none: {type(algorithm).__name__} has no proof for noise of another kind"
        fail("mechanism", expected, mechanism)
    options: dict[str, Any] = {"noise": mechanism_named(mechanism)}
    changed: AnyAlgorithm = replace(cast("Any", algorithm), **options)
    return changed


def _claimed_in(path: Path) -> tuple[AnyAlgorithm, int]:
    """Return the algorithm of an experiment file, contract or model file, and its rounds."""
    from dpmesh.deploy.contract import Contract
    from dpmesh.experiments import read
    from dpmesh.experiments.experiment import Experiment
    from dpmesh.settings.parts import algorithm_of_repr

    if path.suffix != ".toml":
        fit = dm.Model.load(path).about.get("fit")
        if fit is None:
            fail("name", "a model that dpmesh fit wrote, which states its algorithm", str(path))
        if "plan" in dm.Model.load(path).about:
            from dpmesh.cli.claimed_files import verification_of

            claims = verification_of(path)
            if claims.refuted:
                fail(str(path), "claims that its own mechanism allows", str(claims))
        return algorithm_of_repr(fit["algorithm"]), fit["rounds"]
    settings = read(path)
    if "contract" in settings.content:
        contract = Contract(settings)
        return contract.algorithm, contract.terms.rounds
    experiment = Experiment.of(settings)
    return experiment.algorithm, experiment.run.rounds


def _audited(
    algorithm: AnyAlgorithm,
    rounds: int | None,
    *,
    runs: int | None,
    canaries: int,
    confidence: float,
    key: dm.Key | None,
) -> Iterator[AuditResult | Coupling]:
    """Audit an algorithm, and before it the sums over records that are parts of it.

    Yields
    ------
    The result of each layer of each audit.
    """
    for part in (*getattr(algorithm, "record_sums", ()), algorithm):
        rounds_of_part = rounds if part is algorithm else None
        pair, crowd = part.worst_case(rounds_of_part, canaries=canaries)
        count = runs
        if count is None:
            fitting_runs = MOST_ROUNDS // (4 * pair.rounds)
            count = min(MOST_RUNS, max(FEWEST_RUNS, fitting_runs))
        yield from dm.audit.audit_layers(
            pair, crowd, runs=integer("runs", count, at_least=1), confidence=confidence, key=key
        )


def _audit_view(
    name: str | None,
    view: Any,
    *,
    rounds: int,
    target: int | None,
    runs: int,
    confidence: float,
    key: dm.Key | None,
) -> None:
    """Audit gradient descent against an adversary's view, and print the conclusion.

    Raises
    ------
    ValueError
        If another algorithm is named, or the view is not of one or several nodes.
    """
    if name not in (None, "gradient-descent"):
        fail("view", "gradient-descent, whose view is audited", name)
    violations = []
    for forgetful in (False, True):
        behaviour = "wipe out what they receive" if forgetful else "pass on what they receive"
        result = dm.audit.audit_view(
            view,
            rounds=rounds,
            target=target,
            forgetful=forgetful,
            runs=runs,
            confidence=confidence,
            key=key,
        )
        heading = f"gradient descent on {view.topology}; other nodes {behaviour}"
        typer.echo(f"{heading}\n\n{result}\n")
        if result.violated:
            violations.append("the view")
    _conclude(violations)


def _conclude(violations: list[str]) -> None:
    """Print the names of cases whose claim is violated, and exit with code 1 if there are any."""
    if violations:
        typer.echo("leaks more than it claims: " + ", ".join(sorted(set(violations))))
        raise typer.Exit(1)
    typer.echo("no violation found (an audit cannot prove a claim)")

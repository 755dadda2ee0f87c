"""``dpmesh privacy NAME``: noise, epsilon and rounds of an algorithm, from public numbers.

`command_of` builds the command of an *entry* of the registry (`dpmesh.algorithms.registry`). Its
options are the parameters of the algorithm's class; their help is the first clause of the
parameter's description in the docstring. The command computes the one of epsilon, noise and rounds
that the options do not state (`Solver`).

The noise of an algorithm is one of the parameters in `NOISES`, such as ``noise_multiplier``. Some
algorithms have a parameter ``epsilon`` instead and use each record once, so that the epsilon does
not depend on the number of rounds.
"""

from __future__ import annotations

import inspect
import json as json_format
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from inspect import Parameter
from itertools import product
from types import NoneType
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, get_args, get_origin

import typer

import dpmesh as dm
from dpmesh._files import JsonObject
from dpmesh._validate import fail, integer, positive
from dpmesh.algorithms.base import NOISES, Algorithm, AnyAlgorithm
from dpmesh.algorithms.registry import Entry
from dpmesh.cli._errors import StrictCommand, reporting_errors
from dpmesh.cli._options import ALGORITHM, CLAIM, OUTPUT
from dpmesh.cli.mechanisms import MechanismName, accepts_mechanism, mechanism_named
from dpmesh.cli.views import (
    VIEW_OPTIONS,
    Nodes,
    Option,
    Seed,
    TopologyName,
    topology_named,
    view_from_options,
)
from dpmesh.privacy.views import LossFacts, View
from dpmesh.settings.parts import Field, alternatives_of, part_fields

Parameters: TypeAlias = dict[str, Any]
"""Arguments of an algorithm, by name."""

MOST_ROUNDS = 100_000
"""Most rounds that are tried for --rounds, where it is not given."""

MOST_ROUNDS_OF_A_VIEW = 1000
"""Most rounds that are tried under a weaker adversary, whose epsilon takes longer to compute."""

DEFAULT_ROUNDS_OF_A_VIEW = 32
"""Rounds for algorithms that use each record once, under a weaker adversary."""

LARGE_DELTA = 0.01
"""Delta above which a warning is shown if the number of records is not known."""

_RATIO_TO_SENSITIVITY = NOISES["noise_to_sensitivity"]

_REPEATED = list[float] | None
"""Type of an option that may be repeated, for a table of several solutions."""

_EPSILON = typer.Option(
    help="Budget: compute the noise, or the rounds.", metavar="FLOAT", rich_help_panel=CLAIM
)
_ROUNDS = typer.Option(help="Total number of rounds.", rich_help_panel=CLAIM)
_DELTA = typer.Option(help="Delta, below 1 / units.", rich_help_panel=CLAIM)
_DIM = typer.Option(help="Number of parameters, for Laplace noise.", rich_help_panel=CLAIM)
_JSON = typer.Option("--json", help="Print JSON.", rich_help_panel=OUTPUT)


class Solution(NamedTuple):
    """Noise, number of rounds and privacy report of an algorithm.

    Attributes
    ----------
    noise
        Value of the algorithm's noise parameter, or noise over sensitivity if it has none.
    meaning
        Unit of `noise`, the distribution and its scale, in words.
    rounds
        Number of rounds; None if epsilon does not depend on it.
    report
        Privacy report with epsilon and delta.
    """

    noise: float
    meaning: str
    rounds: int | None
    report: dm.privacy.Report

    def __str__(self) -> str:
        lines = [
            f"noise       {dm.privacy.rounded_up(self.noise, 8)} ({self.meaning})",
            f"rounds      {self._rounds_in_words}",
            *str(self.report).splitlines(),
        ]
        if self.rounds is None:  # epsilon does not depend on the number of releases either
            lines = [line for line in lines if not line.startswith("releases")]
        return "\n".join(lines)

    @property
    def _rounds_in_words(self) -> str:
        """The number of rounds in words; the largest that was tried is a lower bound."""
        if self.rounds is None:
            return "any number"
        if self.rounds == MOST_ROUNDS:
            return f"{MOST_ROUNDS} or more"
        return str(self.rounds)

    def as_dict(self) -> JsonObject:
        """Return the solution in plain types."""
        return {
            "noise": self.noise,
            "meaning": self.meaning,
            "rounds": self.rounds,
            "report": self.report.as_dict(),
        }


def _summary(entry: Entry) -> str:
    """Return the help of a command: first lines of docstrings of the class and its contribution.

    The contribution is the part of a federated algorithm that one client adds to a sum.
    """
    classes = [entry.kind]
    if "contribution" in entry.parts:
        classes.append(entry.parts["contribution"])
    first_lines = [(inspect.getdoc(cls) or "").partition("\n")[0] for cls in classes]
    return " ".join(first_lines)


def command_of(entry: Entry) -> Any:
    """Return the click command of an algorithm.

    It prints one solution as text or JSON, or a table of several.
    """

    def command(
        json: bool, epsilon: list[float] | None, noise: list[float] | None, **arguments: Any
    ) -> None:
        not_stated: list[float | None] = [None]
        solutions = []
        for one_epsilon, one_noise in product(epsilon or not_stated, noise or not_stated):
            solutions.append(_solve(entry, dict(arguments), one_epsilon, one_noise))
        units = arguments.get("records") or arguments.get("clients")
        _warn_of_delta(solutions[0].report.delta, units)
        is_table = len(solutions) > 1
        if json:
            plain = [solution.as_dict() for solution in solutions]
            typer.echo(json_format.dumps(plain if is_table else plain[0]))
        elif is_table:
            typer.echo(_table(solutions))
        else:
            typer.echo(solutions[0])

    options = _options(entry)
    command.__doc__ = _summary(entry)
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            Parameter(
                name, Parameter.KEYWORD_ONLY, default=option.default, annotation=option.annotation
            )
            for name, option in options.items()
        ]
    )
    command.__annotations__ = {name: option.annotation for name, option in options.items()}
    app = typer.Typer(add_completion=False)
    app.command(entry.name, cls=StrictCommand)(reporting_errors(command))
    return typer.main.get_command(app)


def _options(entry: Entry) -> dict[str, Option]:
    """Return the options of an algorithm's command by name, in the order of the help.

    An algorithm with a parameter ``epsilon`` uses each record once: the number of rounds only
    matters under a weaker adversary (a view). Its noise may be Laplace noise, whose scale depends
    on the number of parameters (`dim`).
    """
    fields = _fields(entry)
    has_epsilon_parameter = "epsilon" in fields
    has_views = _supports_views(entry.kind)
    options = {
        "epsilon": Option(Annotated[_REPEATED, _EPSILON], None),
        "noise": Option(Annotated[_REPEATED, _noise_option(fields)], None),
        "rounds": Option(Annotated[int | None, _ROUNDS], None),
        **_options_of_signature(entry, fields),
    }
    if has_epsilon_parameter and not has_views:
        del options["rounds"]
    delta = 1e-5
    if has_epsilon_parameter:
        delta = fields["delta"].default or 0.0
    options["delta"] = Option(Annotated[float, _DELTA], delta)
    if has_epsilon_parameter:
        options["dim"] = Option(Annotated[int, _DIM], 1)
    if accepts_mechanism(entry.kind):
        options["mechanism"] = Option(MechanismName, None)
    if _needs_topology(entry):
        options["nodes"] = Option(Nodes, 16)
        options["topology"] = Option(TopologyName, "complete")
        options["seed"] = Option(Seed, 0)
    if has_views:
        options |= VIEW_OPTIONS
    options["json"] = Option(Annotated[bool, _JSON], False)
    return options


def _noise_option(fields: Mapping[str, Field]) -> Any:
    """Return the option ``--noise``, whose help names the unit of the noise."""
    return typer.Option(
        help=f"{_unit_of_noise(fields).capitalize()}: compute the epsilon.",
        metavar="FLOAT",
        rich_help_panel=CLAIM,
    )


def _unit_of_noise(fields: Mapping[str, Field]) -> str:
    """Return the unit of ``--noise`` in words, such as "noise multiplier".

    For an algorithm with a parameter ``epsilon`` it is noise over the sensitivity.
    """
    for noise_parameter, unit in NOISES.items():
        if noise_parameter in fields:
            return unit
    return _RATIO_TO_SENSITIVITY


def _options_of_signature(entry: Entry, fields: Mapping[str, Field]) -> dict[str, Option]:
    """Return an option for each public parameter on which epsilon depends."""
    options = {}
    for name, field in fields.items():
        value_type = _plain_type(field.hint)
        has_common_option = name in (*NOISES, "epsilon", "delta")
        matters = name not in entry.public
        if entry.asked:
            matters = name in entry.asked
        if has_common_option or value_type is None or not matters:
            continue
        default = _default(entry, name, field)
        if default is None:
            value_type = value_type | None
        option = typer.Option(help=_first_clause(field.text), rich_help_panel=ALGORITHM)
        options[name] = Option(Annotated[value_type, option], default)
    return options


def _first_clause(text: str) -> str:
    """Return the first clause of 20 or more characters; "t = 1, 2, .." does not end a clause.

    It is empty if the docstring does not describe the parameter.
    """
    if not text:
        return ""
    clause = re.split(r"(?<=.{20})[;:,.] (?![\d.])|(?<!\.)\.$", text)[0]
    if clause.endswith(".."):
        return clause
    return f"{clause}."


def _default(entry: Entry, name: str, field: Field) -> Any:
    """Return the default of an option: `Parameter.empty` if it is required."""
    signatures = [inspect.signature(cls).parameters for cls in _classes(entry)]
    # The class of the algorithm is last; it overrides its parts.
    parameter = next(parameters[name] for parameters in reversed(signatures) if name in parameters)
    default = field.default
    if parameter.default is Parameter.empty:  # no data give it here, as they do for a file
        default = Parameter.empty
    default = entry.public.get(name, default)
    if default is Parameter.empty or isinstance(default, (int, float, str, NoneType)):
        return default
    return None  # a schedule, which no option states: the class then uses its default


def _classes(entry: Entry) -> tuple[type, ...]:
    """Return the classes of an algorithm's parts, and the algorithm's class last."""
    return (*entry.parts.values(), entry.kind)


def _fields(entry: Entry) -> dict[str, Field]:
    """Return the parameters of an algorithm and of its parts, by name."""
    fields: dict[str, Field] = {}
    for cls in _classes(entry):
        fields |= part_fields(cls)
    return fields


def _plain_type(hint: object) -> Any:
    """Return the type of an option for values of a type; None if no option can state such values.

    Of a union it is the first plain alternative.
    """
    for alternative in alternatives_of(hint):
        if alternative in (int, float, bool, str):
            return alternative
        if get_origin(alternative) is Literal:
            if all(isinstance(choice, str) for choice in get_args(alternative)):
                return str
            return None
    return None


def _supports_views(algorithm_class: type[AnyAlgorithm]) -> bool:
    """Return True if epsilon under a weaker adversary is proved: the class bounds its reaction."""
    bounds_reaction = algorithm_class.reaction is not Algorithm.reaction
    return algorithm_class.communication == "gossip" and bounds_reaction


def _needs_topology(entry: Entry) -> bool:
    """Return True if the network is a parameter of the algorithm."""
    return "topology" in inspect.signature(entry.kind).parameters


def _solve(
    entry: Entry, arguments: Parameters, epsilon: float | None, noise: float | None
) -> Solution:
    """Return the solution for the options of a command.

    Parameters
    ----------
    entry
        Entry of the algorithm.
    arguments
        Values of all options but ``--epsilon``, ``--noise`` and ``--json``, by name. The dictionary
        is changed.
    epsilon, noise
        Values of these options; None if not stated.
    """
    fields = _fields(entry)
    delta = arguments.pop("delta")
    view: View | None = None
    facts: LossFacts | None = None
    if _supports_views(entry.kind):
        view_arguments = {name: arguments.pop(name) for name in VIEW_OPTIONS}
        view, facts = view_from_options(**view_arguments)
    if _needs_topology(entry):
        arguments["topology"] = topology_named(
            arguments.pop("topology"), arguments.pop("nodes"), arguments.pop("seed")
        )
    rounds = arguments["rounds"] if "rounds" in fields else arguments.pop("rounds", None)
    dim = arguments.pop("dim") if "epsilon" in fields else 1
    mechanism = arguments.pop("mechanism", None)
    if mechanism is not None:
        arguments["noise"] = mechanism_named(mechanism)
    stated = {name: value for name, value in arguments.items() if value is not None}
    solver = Solver(
        algorithm_class=entry.kind,
        public=entry.with_parts({**entry.public, **stated}),
        delta=delta,
        rounds=rounds,
        view=view,
        facts=facts,
    )
    if "epsilon" in fields:
        return solver.with_epsilon_parameter(epsilon, noise, dim=dim)
    return solver.with_noise_parameter(epsilon, noise)


@dataclass(kw_only=True)
class Solver:
    """Solver for an algorithm's epsilon, noise or number of rounds, from the other two.

    Parameters
    ----------
    algorithm_class, public
        Class of the algorithm, and its parameters by name, without noise and epsilon.
    delta
        Delta of the guarantee.
    rounds
        Number of rounds of a run; None if it is to be computed, or fixed by the parameters.
    view, facts
        View of a weaker adversary, and facts about the loss that its proof needs. None for an
        adversary who sees all messages.
    """

    algorithm_class: type[AnyAlgorithm]
    public: Parameters
    delta: float
    rounds: int | None
    view: View | None
    facts: LossFacts | None

    def with_noise_parameter(self, epsilon: float | None, noise: float | None) -> Solution:
        """Solve for an algorithm that has a noise parameter."""
        fields = part_fields(self.algorithm_class)
        noise_name = next(name for name in NOISES if name in fields)

        def with_noise(value: float) -> AnyAlgorithm:
            """Return the algorithm with this noise."""
            parameters = {**self.public, noise_name: positive("noise", value)}
            return self.algorithm_class(**parameters)

        has_fixed_rounds = "rounds" in fields or with_noise(1.0).run_length is not None
        if has_fixed_rounds:
            _require_one(epsilon, noise)
            self.rounds = with_noise(noise or 1.0).run_length
        if has_fixed_rounds and noise is None and "rounds" in fields:
            algorithm = self.algorithm_class.for_budget(
                epsilon=positive("epsilon", epsilon or 0.0), delta=self.delta, **self.public
            )
            calibrated_noise = float(getattr(algorithm, noise_name))
            return self._solution(algorithm, calibrated_noise, self.rounds)
        return self._solved(with_noise, epsilon, noise)

    def with_epsilon_parameter(
        self, epsilon: float | None, noise: float | None, *, dim: int
    ) -> Solution:
        """Solve for an algorithm that has an `epsilon` parameter and uses each record once.

        Parameters
        ----------
        epsilon, noise
            Exactly one is stated, and the other is solved for.
        dim
            Number of parameters of the model, on which the scale of Laplace noise depends.
        """
        integer("dim", dim, at_least=1)

        def with_budget(epsilon: float | None, noise: float | None) -> AnyAlgorithm:
            """Return the algorithm with the epsilon that either argument states."""
            release_epsilon = self._epsilon_of_one_release(epsilon, noise)
            parameters = {**self.public, "epsilon": release_epsilon, "delta": self.delta}
            return self.algorithm_class(**parameters)

        if self.view is None:
            return self._solution(with_budget(epsilon, noise), None, None, dim)
        if self.delta == 0:
            fail("delta", "one above 0, such as 1e-5, for a view", self.delta)
        self.rounds = self.rounds or DEFAULT_ROUNDS_OF_A_VIEW
        return self._solved(lambda noise: with_budget(None, noise), epsilon, noise)

    def _solved(
        self,
        with_noise: Callable[[float], AnyAlgorithm],
        epsilon: float | None,
        noise: float | None,
    ) -> Solution:
        """Solve for the one of epsilon, noise and rounds that was not stated.

        `with_noise` returns the algorithm with a noise.
        """
        values = {"--epsilon": epsilon, "--noise": noise, "--rounds": self.rounds}
        stated = [name for name, value in values.items() if value is not None]
        if len(stated) != 2:
            fail("options", "two of --epsilon, --noise and --rounds", ", ".join(stated) or "none")
        if self.rounds is None:
            assert epsilon is not None
            assert noise is not None
            algorithm = with_noise(positive("noise", noise))
            return self._solution(algorithm, noise, self._affordable_rounds(algorithm, epsilon))
        rounds = integer("rounds", self.rounds, at_least=1)
        if noise is None:
            noise = self._budget(epsilon or 0.0).calibrate(with_noise, rounds, self.facts)
        return self._solution(with_noise(positive("noise", noise)), noise, rounds)

    def _affordable_rounds(self, algorithm: AnyAlgorithm, epsilon: float) -> int:
        """Return the largest number of rounds within an epsilon; fail if one round exceeds it."""
        budget = self._budget(epsilon)
        most = MOST_ROUNDS if self.view is None else MOST_ROUNDS_OF_A_VIEW
        rounds = budget.affordable_rounds(algorithm, self.facts, at_most=most)
        if rounds == 0:
            cost = dm.privacy.rounded_up(algorithm.plan(1).cost(self.delta).epsilon)
            fail("epsilon", f"at least {cost}, which one round costs", epsilon)
        return rounds

    def _budget(self, epsilon: float) -> dm.privacy.Budget:
        """Return the budget of this epsilon."""
        return dm.privacy.Budget(epsilon, delta=self.delta, view=self.view)

    def _epsilon_of_one_release(self, epsilon: float | None, noise: float | None) -> float:
        """Return the epsilon of one release: the stated one, or of a noise over the sensitivity."""
        _require_one(epsilon, noise)
        if noise is None:
            return positive("epsilon", epsilon or 0.0)
        sensitivity_to_noise = 1 / positive("noise", noise)
        if self.delta == 0:  # Laplace noise
            return sensitivity_to_noise
        return dm.accounting.gdp_epsilon(delta=self.delta, mu=sensitivity_to_noise)

    def _solution(
        self, algorithm: AnyAlgorithm, noise: float | None, rounds: int | None, dim: int = 1
    ) -> Solution:
        """Return noise, rounds and report of an algorithm.

        `noise` is None if the algorithm has no noise parameter; `rounds` is None if epsilon does
        not depend on them.
        """
        planned_rounds = rounds or 2  # the release of round 0 may depend on no data
        if self.view is None:
            plan = algorithm.plan(planned_rounds)
        else:
            plan = algorithm.plan(planned_rounds, self.facts)
        releases_of_data = plan.touching or algorithm.plan(2).touching
        mechanism = releases_of_data[0].mechanism
        sensitivity = releases_of_data[0].sensitivity
        scale = dm.privacy.rounded_up(mechanism.noise_scale(sensitivity, dim))
        bound = dm.privacy.rounded_up(sensitivity.bound)
        distribution = mechanism.name.replace("_", " ")
        moves = f"where a {plan.unit} moves a release by {bound}"
        unit = _unit_of_noise(part_fields(self.algorithm_class))
        meaning = f"{unit}: {distribution}, scale {scale} {moves}"
        report = dm.privacy.report(plan, self.delta, view=self.view)
        return Solution(noise or mechanism.noise_to_sensitivity, meaning, rounds, report)


def _require_one(epsilon: float | None, noise: float | None) -> None:
    """Fail unless exactly one of epsilon and noise is stated."""
    if epsilon is None and noise is None:
        fail("options", "either --epsilon or --noise", "none")
    if epsilon is not None and noise is not None:
        fail("options", "either --epsilon or --noise", "both")


def _table(solutions: Iterable[Solution]) -> str:
    """Return a text table with epsilon, noise, rounds and delta of each solution."""
    lines = [f"{'epsilon':>12}{'noise':>14}{'rounds':>10}{'delta':>10}"]
    for solution in solutions:
        epsilon = dm.privacy.rounded_up(solution.report.epsilon)
        noise = dm.privacy.rounded_up(solution.noise, 8)
        rounds = solution.rounds or "any"
        lines.append(f"{epsilon:>12}{noise:>14}{rounds:>10}{solution.report.delta:>10.3g}")
    return "\n".join(lines)


def _warn_of_delta(delta: float, units: int | None) -> None:
    """Warn of a delta at which an (epsilon, delta)-DP mechanism may publish a whole record.

    `units` is the number of records or clients; None if it is unknown.
    """
    if units is not None and delta > 1 / units:
        bound = f"1 / {units}: a mechanism that publishes one unit as it is keeps it"
        typer.echo(f"Warning: delta is above {bound}.", err=True)
    elif units is None and delta > LARGE_DELTA:
        typer.echo("Warning: delta should be well below 1 / number of records.", err=True)

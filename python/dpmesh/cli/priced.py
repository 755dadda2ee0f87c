"""``dpmesh privacy NAME``: noise, epsilon and rounds of an algorithm, from public numbers.

The commands come from the registry, and their options from the signatures.
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
from dpmesh.settings.parts import Field, entries, options_of

Parameters: TypeAlias = dict[str, Any]
"""Arguments of an algorithm, by name."""

MOST_ROUNDS = 100_000
"""Most rounds that are tried for --rounds, where it is not given."""

MOST_ROUNDS_OF_A_VIEW = 1000
"""The same for the view of a weaker adversary, whose cost takes longer to compute."""

LARGE_DELTA = 0.01
"""Delta above which a warning is shown if the number of records is not known."""

_OF_SENSITIVITY = NOISES["noise_to_sensitivity"]

_REPEATED = list[float] | None
"""Values of an option that may be given several times, for a table."""

_EPSILON = typer.Option(
    help="Budget: compute the noise, or the rounds.", metavar="FLOAT", rich_help_panel=CLAIM
)
_ROUNDS = typer.Option(help="Total number of rounds.", rich_help_panel=CLAIM)
_DELTA = typer.Option(help="Delta, below 1 / units.", rich_help_panel=CLAIM)
_DIM = typer.Option(help="Number of parameters, for Laplace noise.", rich_help_panel=CLAIM)
_JSON = typer.Option("--json", help="Print JSON.", rich_help_panel=OUTPUT)


class Price(NamedTuple):
    """Noise and epsilon of an algorithm.

    Attributes
    ----------
    noise
        The noise, as the algorithm has it.
    meaning
        What the noise is relative to, and its scale.
    rounds
        Number of rounds; None if it does not matter.
    report
        The privacy report.
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
        if self.rounds is None:  # nor does the number of releases matter
            lines = [line for line in lines if not line.startswith("releases")]
        return "\n".join(lines)

    @property
    def _rounds_in_words(self) -> str:
        if self.rounds is None:
            return "any number"
        if self.rounds == MOST_ROUNDS:
            return f"{MOST_ROUNDS} or more"
        return str(self.rounds)

    def as_dict(self) -> JsonObject:
        """Return the price in plain types."""
        return {
            "noise": self.noise,
            "meaning": self.meaning,
            "rounds": self.rounds,
            "report": self.report.as_dict(),
        }


def _summary(entry: Entry) -> str:
    """Return the first line of the algorithm's docstring, and of its contribution's, if any."""
    kinds = [entry.kind]
    if "contribution" in entry.parts:
        kinds.append(entry.parts["contribution"])
    return " ".join((inspect.getdoc(kind) or "").partition("\n")[0] for kind in kinds)


def command_of(entry: Entry) -> Any:
    """Return the command of an algorithm; it prints text or JSON, and a table of several prices."""

    def command(
        json: bool, epsilon: list[float] | None, noise: list[float] | None, **arguments: Any
    ) -> None:
        open_value: list[float | None] = [None]
        prices = [
            _price(entry, dict(arguments), one_epsilon, one_noise)
            for one_epsilon, one_noise in product(epsilon or open_value, noise or open_value)
        ]
        units = arguments.get("records") or arguments.get("clients")
        _warn_of_delta(prices[0].report.delta, units)
        if json:
            plain = [price.as_dict() for price in prices]
            typer.echo(json_format.dumps(plain[0] if len(plain) == 1 else plain))
        elif len(prices) == 1:
            typer.echo(prices[0])
        else:
            typer.echo(_table(prices))

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
    """Return the options of an algorithm by name."""
    fields = _fields(entry)
    has_own_epsilon = "epsilon" in fields
    has_views = _has_views(entry.kind)
    options = {
        "epsilon": Option(Annotated[_REPEATED, _EPSILON], None),
        "noise": Option(Annotated[_REPEATED, _noise_option(fields)], None),
        "rounds": Option(Annotated[int | None, _ROUNDS], None),
        **_options_of_signature(entry, fields),
    }
    if has_own_epsilon and not has_views:
        del options["rounds"]
    delta = 1e-5
    if has_own_epsilon:
        delta = fields["delta"].default or 0.0
    options["delta"] = Option(Annotated[float, _DELTA], delta)
    if has_own_epsilon:
        options["dim"] = Option(Annotated[int, _DIM], 1)
    if accepts_mechanism(entry.kind):
        options["mechanism"] = Option(MechanismName, None)
    if _takes_topology(entry):
        options["nodes"] = Option(Nodes, 16)
        options["topology"] = Option(TopologyName, "complete")
        options["seed"] = Option(Seed, 0)
    if has_views:
        options |= VIEW_OPTIONS
    options["json"] = Option(Annotated[bool, _JSON], False)
    return options


def _noise_option(fields: Mapping[str, Field]) -> Any:
    """Return the option of the noise, which names what it is relative to."""
    return typer.Option(
        help=f"{_ratio_of(fields).capitalize()}: compute the epsilon.",
        metavar="FLOAT",
        rich_help_panel=CLAIM,
    )


def _ratio_of(fields: Mapping[str, Field]) -> str:
    """Return what --noise is relative to; the sensitivity, if epsilon sets the noise."""
    return next((text for name, text in NOISES.items() if name in fields), _OF_SENSITIVITY)


def _options_of_signature(entry: Entry, fields: Mapping[str, Field]) -> dict[str, Option]:
    """Return an option for each public parameter on which the cost depends."""
    options = {}
    for name, field in fields.items():
        value_type = _plain_type(field.hint)
        is_public = name in entry.asked if entry.asked else name not in entry.public
        if name in (*NOISES, "epsilon", "delta") or value_type is None or not is_public:
            continue
        default = _default(entry, name, field)
        if default is None:
            value_type = value_type | None
        # Help is the first clause of 20 or more characters; "t = 1, 2, .." does not end one.
        text = re.split(r"(?<=.{20})[;:,.] (?![\d.])|(?<!\.)\.$", field.text)[0]
        if not text.endswith(".."):
            text += "."
        option = typer.Option(help=text, rich_help_panel=ALGORITHM)
        options[name] = Option(Annotated[value_type, option], default)
    return options


def _default(entry: Entry, name: str, field: Field) -> Any:
    """Return the default of an option: `Parameter.empty` if it is required."""
    signatures = [inspect.signature(kind).parameters for kind in _kinds(entry)]
    parameter = next(parameters[name] for parameters in reversed(signatures) if name in parameters)
    default = field.default
    if parameter.default is Parameter.empty:  # required here, also if data give it in a file
        default = Parameter.empty
    default = entry.public.get(name, default)
    if default is Parameter.empty or isinstance(default, (int, float, str, NoneType)):
        return default
    return None  # a schedule: the algorithm then uses its own default


def _kinds(entry: Entry) -> tuple[type, ...]:
    """Return the classes of an algorithm's parts, and its own."""
    return (*entry.parts.values(), entry.kind)


def _fields(entry: Entry) -> dict[str, Field]:
    """Return the parameters of an algorithm and of its parts, by name."""
    fields: dict[str, Field] = {}
    for kind in _kinds(entry):
        fields |= entries(kind)
    return fields


def _plain_type(hint: object) -> Any:
    """Return the type of an option for values of this type; None if no option can state them."""
    for option in options_of(hint):
        if option in (int, float, bool, str):
            return option
        if get_origin(option) is Literal:
            only_texts = all(isinstance(choice, str) for choice in get_args(option))
            if only_texts:
                return str
            return None
    return None


def _has_views(kind: type[AnyAlgorithm]) -> bool:
    """Return whether an epsilon under a weaker adversary is proved for the algorithm."""
    return kind.travels == "gossip" and kind.reaction is not Algorithm.reaction


def _takes_topology(entry: Entry) -> bool:
    """Return whether the network is a parameter of the algorithm."""
    return "topology" in inspect.signature(entry.kind).parameters


def _price(
    entry: Entry, arguments: Parameters, epsilon: float | None, noise: float | None
) -> Price:
    """Solve for the one of epsilon, noise and rounds that was not given."""
    fields = _fields(entry)
    delta = arguments.pop("delta")
    view: View | None = None
    facts: LossFacts | None = None
    if _has_views(entry.kind):
        view, facts = view_from_options(**{name: arguments.pop(name) for name in VIEW_OPTIONS})
    if _takes_topology(entry):
        arguments["topology"] = topology_named(
            arguments.pop("topology"), arguments.pop("nodes"), arguments.pop("seed")
        )
    rounds = arguments["rounds"] if "rounds" in fields else arguments.pop("rounds", None)
    dim = arguments.pop("dim") if "epsilon" in fields else 1
    mechanism = arguments.pop("mechanism", None)
    if mechanism is not None:
        arguments["noise"] = mechanism_named(mechanism)
    stated = {name: value for name, value in arguments.items() if value is not None}
    pricing = Pricing(
        kind=entry.kind,
        public=entry.with_parts({**entry.public, **stated}),
        delta=delta,
        rounds=rounds,
        view=view,
        facts=facts,
    )
    if "epsilon" in fields:
        return pricing.of_own_epsilon(epsilon, noise, dim=dim)
    return pricing.of_noise(epsilon, noise)


@dataclass(kw_only=True)
class Pricing:
    """The computation of an algorithm's noise, epsilon or rounds from the other two.

    Parameters
    ----------
    kind, public
        The algorithm, and its parameters but for the noise.
    delta
        Delta of the guarantee.
    rounds
        Number of rounds of a run; None if it is to be computed, or fixed by the parameters.
    view, facts
        The view of a weaker adversary, and the facts about losses on which its proof rests; None
        for an adversary who sees all messages.
    """

    kind: type[AnyAlgorithm]
    public: Parameters
    delta: float
    rounds: int | None
    view: View | None
    facts: LossFacts | None

    def of_noise(self, epsilon: float | None, noise: float | None) -> Price:
        """Price an algorithm whose noise is a parameter."""
        fields = entries(self.kind)
        noise_name = next(name for name in NOISES if name in fields)

        def with_noise(value: float) -> AnyAlgorithm:
            parameters = {**self.public, noise_name: positive("noise", value)}
            return self.kind(**parameters)

        if "rounds" in fields or with_noise(1.0).run_length is not None:
            _require_one(epsilon, noise)
            self.rounds = with_noise(noise or 1.0).run_length
            if noise is None and "rounds" in fields:
                algorithm = self.kind.for_budget(
                    epsilon=positive("epsilon", epsilon or 0.0), delta=self.delta, **self.public
                )
                return self._priced(algorithm, float(getattr(algorithm, noise_name)), self.rounds)
        return self._solved(with_noise, epsilon, noise)

    def of_own_epsilon(self, epsilon: float | None, noise: float | None, *, dim: int) -> Price:
        """Price an algorithm that has an `epsilon` parameter and uses each record once."""
        integer("dim", dim, at_least=1)

        def with_budget(epsilon: float | None, noise: float | None) -> AnyAlgorithm:
            single_epsilon = self._single_epsilon(epsilon, noise)
            parameters = {**self.public, "epsilon": single_epsilon, "delta": self.delta}
            return self.kind(**parameters)

        if self.view is None:
            return self._priced(with_budget(epsilon, noise), None, None, dim)
        if self.delta == 0:
            fail("delta", "one above 0, such as 1e-5, for a view", self.delta)
        self.rounds = self.rounds or 32  # the default: each record is used once in any run
        return self._solved(lambda noise: with_budget(None, noise), epsilon, noise)

    def _solved(
        self,
        with_noise: Callable[[float], AnyAlgorithm],
        epsilon: float | None,
        noise: float | None,
    ) -> Price:
        """Solve for the one of epsilon, noise and rounds that was not given."""
        values = {"--epsilon": epsilon, "--noise": noise, "--rounds": self.rounds}
        stated = [name for name, value in values.items() if value is not None]
        if len(stated) != 2:
            fail("options", "two of --epsilon, --noise and --rounds", ", ".join(stated) or "none")
        if self.rounds is None:
            assert epsilon is not None
            assert noise is not None
            algorithm = with_noise(positive("noise", noise))
            return self._priced(algorithm, noise, self._affordable_rounds(algorithm, epsilon))
        rounds = integer("rounds", self.rounds, at_least=1)
        if noise is None:
            noise = self._budget(epsilon or 0.0).calibrate(with_noise, rounds, self.facts)
        return self._priced(with_noise(positive("noise", noise)), noise, rounds)

    def _affordable_rounds(self, algorithm: AnyAlgorithm, epsilon: float) -> int:
        """Return how many rounds an epsilon allows; fail if it allows none."""
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

    def _single_epsilon(self, epsilon: float | None, noise: float | None) -> float:
        """Return the epsilon of a record that affects one release, from it or from the noise."""
        _require_one(epsilon, noise)
        if noise is None:
            return positive("epsilon", epsilon or 0.0)
        mu = 1 / positive("noise", noise)
        if self.delta == 0:
            return mu
        return dm.accounting.gdp_epsilon(delta=self.delta, mu=mu)

    def _priced(
        self, algorithm: AnyAlgorithm, noise: float | None, rounds: int | None, dim: int = 1
    ) -> Price:
        """Return the noise and the report; `rounds` is None if their number does not matter."""
        facts = () if self.view is None else (self.facts,)
        plan = algorithm.plan(rounds or 2, *facts)  # round 0 may depend on no data
        touching = plan.touching or algorithm.plan(2).touching
        mechanism = touching[0].mechanism
        sensitivity = touching[0].sensitivity
        scale = dm.privacy.rounded_up(mechanism.noise_scale(sensitivity, dim))
        bound = dm.privacy.rounded_up(sensitivity.bound)
        distribution = mechanism.name.replace("_", " ")
        moves = f"where a {plan.unit} moves a release by {bound}"
        meaning = f"{_ratio_of(entries(self.kind))}: {distribution}, scale {scale} {moves}"
        report = dm.privacy.report(plan, self.delta, view=self.view)
        return Price(noise or mechanism.noise_to_sensitivity, meaning, rounds, report)


def _require_one(epsilon: float | None, noise: float | None) -> None:
    """Fail unless one of the two is given."""
    if epsilon is None and noise is None:
        fail("options", "either --epsilon or --noise", "none")
    if epsilon is not None and noise is not None:
        fail("options", "either --epsilon or --noise", "both")


def _table(prices: Iterable[Price]) -> str:
    """Return epsilons, noises, rounds and deltas under each other."""
    lines = [f"{'epsilon':>12}{'noise':>14}{'rounds':>10}{'delta':>10}"]
    for price in prices:
        epsilon = dm.privacy.rounded_up(price.report.epsilon)
        noise = dm.privacy.rounded_up(price.noise, 8)
        rounds = price.rounds or "any"
        lines.append(f"{epsilon:>12}{noise:>14}{rounds:>10}{price.report.delta:>10.3g}")
    return "\n".join(lines)


def _warn_of_delta(delta: float, units: int | None) -> None:
    """Warn of a delta at which a guarantee may reveal whole units."""
    if units is not None and delta > 1 / units:
        bound = f"1 / {units}: a mechanism that publishes one unit as it is keeps it"
        typer.echo(f"Warning: delta is above {bound}.", err=True)
    elif units is None and delta > LARGE_DELTA:
        typer.echo("Warning: delta should be well below 1 / number of records.", err=True)

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
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import typer

import dpmesh as dm
from dpmesh._validate import fail, integer, positive
from dpmesh.algorithms.base import NOISES, Algorithm, AnyAlgorithm
from dpmesh.algorithms.registry import Entry
from dpmesh.cli._errors import Once, telling
from dpmesh.cli.mechanisms import Kind, kind_named, takes_kinds
from dpmesh.cli.views import OF_A_VIEW, Network, Nodes, Seed, network_named, seen
from dpmesh.privacy.views import LossFacts, View
from dpmesh.settings.parts import Field, entries, options_of

MOST_ROUNDS, MOST_ROUNDS_OF_A_VIEW = 100_000, 1000
"""Rounds that are tried."""

LARGE_DELTA = 0.01

_OF_SENSITIVITY = NOISES["noise_to_sensitivity"]

_EPSILON = typer.Option(help="Compute what keeps it.", metavar="FLOAT")
_ROUNDS = typer.Option(help="Total number of rounds.")
_DELTA = typer.Option(help="Keep it below 1 / units.")
_DIM = typer.Option(help="Number of parameters, for Laplace noise.")
_JSON = typer.Option("--json", help="Print JSON.")


class Answer(NamedTuple):
    """The noise of an algorithm, what it is relative to, the rounds if they matter; its report."""

    noise: float
    meaning: str
    rounds: int | None
    report: dm.privacy.Report

    def __str__(self) -> str:
        number = {None: "any number", MOST_ROUNDS: f"{MOST_ROUNDS} or more"}
        lines = [
            f"noise       {dm.privacy.rounded_up(self.noise, 8)} ({self.meaning})",
            f"rounds      {number.get(self.rounds, str(self.rounds))}",
            *str(self.report).splitlines(),
        ]
        if self.rounds is None:  # nor does the number of releases matter
            lines = [line for line in lines if not line.startswith("releases")]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """Return the answer in plain types."""
        own = {"noise": self.noise, "meaning": self.meaning, "rounds": self.rounds}
        return own | {"report": self.report.as_dict()}


def command_of(entry: Entry) -> Any:
    """Return the command of an algorithm; it prints text or JSON, of several answers a table."""

    def command(
        json: bool, epsilon: list[float] | None, noise: list[float] | None, **given: Any
    ) -> None:
        none: list[float | None] = [None]
        pairs = product(epsilon or none, noise or none)
        answers = [_answer(entry, dict(given), one, other) for one, other in pairs]
        _warn_of_delta(answers[0].report.delta, given.get("records") or given.get("clients"))
        if json:
            plain = [answer.as_dict() for answer in answers]
            typer.echo(json_format.dumps(plain[0] if len(plain) == 1 else plain))
        else:
            typer.echo(answers[0] if len(answers) == 1 else _table(answers))

    options = _options(entry)
    command.__doc__ = (inspect.getdoc(entry.kind) or "").partition("\n")[0]
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, (annotation, default) in options.items()
        ]
    )
    command.__annotations__ = {name: annotation for name, (annotation, _) in options.items()}
    one = typer.Typer(add_completion=False)
    one.command(entry.name, cls=Once)(telling(command))
    return typer.main.get_command(one)


def _options(entry: Entry) -> dict[str, tuple[Any, Any]]:
    """Return the options of an algorithm by name, each with its default."""
    fields, several = _fields(entry), list[float] | None
    found: dict[str, tuple[Any, Any]] = {
        "epsilon": (Annotated[several, _EPSILON], None),
        "noise": (Annotated[several, _noise_option(fields)], None),
        "rounds": (Annotated[int | None, _ROUNDS], None),
        **_of_signature(entry, fields),
    }
    own_epsilon, views = "epsilon" in fields, _has_views(entry.kind)
    if own_epsilon and not views:
        del found["rounds"]
    delta = (fields["delta"].default or 0.0) if own_epsilon else 1e-5
    found["delta"] = Annotated[float, _DELTA], delta
    if own_epsilon:
        found["dim"] = Annotated[int, _DIM], 1
    if takes_kinds(entry.kind):
        found["mechanism"] = Kind, None
    if _takes_topology(entry):
        found |= {"nodes": (Nodes, 16), "network": (Network, "complete"), "seed": (Seed, 0)}
    return found | (OF_A_VIEW if views else {}) | {"json": (Annotated[bool, _JSON], False)}


def _noise_option(known: Mapping[str, object]) -> Any:
    """Return the option of the noise, which names what it is relative to."""
    return typer.Option(help=f"Price this {_ratio_of(known)}.", metavar="FLOAT")


def _ratio_of(known: Mapping[str, object]) -> str:
    """Return the parameter of the noise in words; one with an epsilon has its noise for it."""
    return next((text for name, text in NOISES.items() if name in known), _OF_SENSITIVITY)


def _of_signature(entry: Entry, fields: dict[str, Field]) -> dict[str, tuple[Any, Any]]:
    """Return an option for each public parameter on which the cost depends."""
    found = {}
    of_kinds = (inspect.signature(kind).parameters for kind in (*entry.parts.values(), entry.kind))
    given = {name: one.default for of_kind in of_kinds for name, one in of_kind.items()}
    for name, field in fields.items():
        kind = _plain(field.hint)
        asked = name in entry.asked if entry.asked else name not in entry.public
        if name in (*NOISES, "epsilon", "delta") or kind is None or not asked:
            continue
        empty = given[name] is Parameter.empty  # also where a file's data would give it
        default = Parameter.empty if empty else field.default
        default = entry.public.get(name, default)
        if not isinstance(default, (int, float, str, NoneType)) and default is not Parameter.empty:
            default = None  # a schedule, which the algorithm has by itself
        wanted = kind | None if default is None else kind
        text = re.split(r"(?<=.{20})[;:,.] (?!\d)|\.$", field.text)[0] + "."
        found[name] = Annotated[wanted, typer.Option(help=text)], default
    return found


def _fields(entry: Entry) -> dict[str, Field]:
    """Return the parameters of an algorithm and of its parts, by name."""
    kinds = (*entry.parts.values(), entry.kind)
    return {name: field for kind in kinds for name, field in entries(kind).items()}


def _plain(hint: Any) -> Any:
    """Return the type with which an option can give such a value; None if there is none."""
    for option in options_of(hint):
        if option in (int, float, bool, str):
            return option
        if get_origin(option) is Literal:
            return str if all(isinstance(each, str) for each in get_args(option)) else None
    return None


def _has_views(kind: type[AnyAlgorithm]) -> bool:
    """Whether something is proved about the algorithm against less than everybody."""
    return kind.travels == "gossip" and kind.reaction is not Algorithm.reaction


def _takes_topology(entry: Entry) -> bool:
    return "topology" in inspect.signature(entry.kind).parameters


def _answer(
    entry: Entry, given: dict[str, Any], epsilon: float | None, noise: float | None
) -> Answer:
    """Return the answer to options: what is not known of epsilon, noise and rounds."""
    fields, delta = _fields(entry), given.pop("delta")
    view, facts = None, None
    if _has_views(entry.kind):
        view, facts = seen(**{name: given.pop(name) for name in OF_A_VIEW})
    if _takes_topology(entry):
        nodes, network, seed = (given.pop(name) for name in ("nodes", "network", "seed"))
        given["topology"] = network_named(network, nodes, seed)
    rounds = given["rounds"] if "rounds" in fields else given.pop("rounds", None)
    dim = given.pop("dim") if "epsilon" in fields else 1
    mechanism = given.pop("mechanism", None)
    if mechanism is not None:
        given["noise"] = kind_named(mechanism)
    public = {name: value for name, value in given.items() if value is not None}
    made = entry.made({**entry.public, **public})
    seat: Any = {"view": view, "facts": facts}
    question = Question(kind=entry.kind, public=made, delta=delta, rounds=rounds, **seat)
    if "epsilon" in fields:
        return question.own(epsilon, noise, dim=dim)
    return question.noise(epsilon, noise)


@dataclass(kw_only=True)
class Question:
    """What is asked of an algorithm, and its answer.

    Parameters
    ----------
    kind, public
        The algorithm, and its parameters but for the noise.
    delta
        Of the guarantee.
    rounds
        Length of a run; None if it is asked for, or fixed by the parameters.
    view, facts
        An observer, None for everybody, and what the proof about it rests on.
    """

    kind: type[AnyAlgorithm]
    public: dict[str, Any]
    delta: float
    rounds: int | None
    view: View | None
    facts: LossFacts | None

    def noise(self, epsilon: float | None, noise: float | None) -> Answer:
        """Answer for an algorithm whose noise is a parameter."""
        known = entries(self.kind)
        name = next(each for each in NOISES if each in known)

        def make(multiplier: float) -> AnyAlgorithm:
            return self.kind(**{**self.public, name: positive("noise", multiplier)})

        if "rounds" in known or make(1.0).run_length is not None:
            _either(epsilon, noise)
            self.rounds = make(noise or 1.0).run_length
            if noise is None and "rounds" in known:
                budget: Any = {"epsilon": positive("epsilon", epsilon or 0.0), "delta": self.delta}
                algorithm = self.kind.for_budget(**budget, **self.public)
                return self._answer(algorithm, float(getattr(algorithm, name)), self.rounds)
        return self._solved(make, epsilon, noise)

    def own(self, epsilon: float | None, noise: float | None, *, dim: int) -> Answer:
        """Answer for an algorithm with an epsilon of its own, each record of which is used once."""
        integer("dim", dim, at_least=1)

        def make(epsilon: float | None, noise: float | None) -> AnyAlgorithm:
            own = {"epsilon": self._single_epsilon(epsilon, noise), "delta": self.delta}
            return self.kind(**{**self.public, **own})

        if self.view is None:
            return self._answer(make(epsilon, noise), None, None, dim)
        if self.delta == 0:
            fail("delta", "one above 0, such as 1e-5, for a view", self.delta)
        self.rounds = self.rounds or 32
        return self._solved(lambda noise: make(None, noise), epsilon, noise)

    def _solved(
        self, make: Callable[[float], AnyAlgorithm], epsilon: float | None, noise: float | None
    ) -> Answer:
        """Find the one of epsilon, noise and rounds that is missing."""
        given = {"--epsilon": epsilon, "--noise": noise, "--rounds": self.rounds}
        names = [name for name, value in given.items() if value is not None]
        if len(names) != 2:
            fail("options", "two of --epsilon, --noise and --rounds", ", ".join(names) or "none")
        if self.rounds is None:
            assert epsilon is not None
            assert noise is not None
            algorithm, budget = make(positive("noise", noise)), self._budget(epsilon)
            most = MOST_ROUNDS if self.view is None else MOST_ROUNDS_OF_A_VIEW
            rounds = budget.affordable_rounds(algorithm, self.facts, at_most=most)
            if rounds == 0:
                cost = dm.privacy.rounded_up(algorithm.plan(1).cost(self.delta).epsilon)
                fail("epsilon", f"at least {cost}, which one round costs", epsilon)
            return self._answer(algorithm, noise, rounds)
        rounds = integer("rounds", self.rounds, at_least=1)
        if noise is None:
            noise = self._budget(epsilon or 0.0).calibrate(make, rounds, self.facts)
        return self._answer(make(positive("noise", noise)), noise, rounds)

    def _budget(self, epsilon: float) -> dm.privacy.Budget:
        return dm.privacy.Budget(epsilon, delta=self.delta, view=self.view)

    def _single_epsilon(self, epsilon: float | None, noise: float | None) -> float:
        """Return the epsilon of a record that affects one release, given it or the noise."""
        _either(epsilon, noise)
        if noise is None:
            return positive("epsilon", epsilon or 0.0)
        mu = 1 / positive("noise", noise)
        return mu if self.delta == 0 else dm.accounting.gdp_epsilon(delta=self.delta, mu=mu)

    def _answer(
        self, algorithm: AnyAlgorithm, noise: float | None, rounds: int | None, dim: int = 1
    ) -> Answer:
        """Return the noise and the report; `rounds` is None if their number does not matter."""
        facts = () if self.view is None else (self.facts,)
        plan = algorithm.plan(rounds or 2, *facts)
        first = plan.touching[0] if plan.touching else algorithm.plan(2).touching[0]
        moved, mechanism = first.sensitivity, first.mechanism
        scale, bound = map(dm.privacy.rounded_up, (mechanism.noise_scale(moved, dim), moved.bound))
        kind = mechanism.name.replace("_", " ")
        moves = f"where a {plan.unit} moves a release by {bound}"
        meaning = f"{_ratio_of(entries(self.kind))}: {kind}, scale {scale} {moves}"
        report = dm.privacy.report(plan, self.delta, view=self.view)
        return Answer(noise or mechanism.noise_to_sensitivity, meaning, rounds, report)


def _either(epsilon: float | None, noise: float | None) -> None:
    """Fail unless one of the two is given."""
    if (epsilon is None) == (noise is None):
        got = "none" if epsilon is None else "both"
        fail("options", "either --epsilon or --noise", got)


def _table(answers: Iterable[Answer]) -> str:
    """Return epsilons, noises, rounds and deltas under each other."""
    lines = [f"{'epsilon':>12}{'noise':>14}{'rounds':>10}{'delta':>10}"]
    for noise, _, rounds, report in answers:
        shown = dm.privacy.rounded_up(report.epsilon), dm.privacy.rounded_up(noise, 8)
        lines.append(f"{shown[0]:>12}{shown[1]:>14}{rounds or 'any':>10}{report.delta:>10.3g}")
    return "\n".join(lines)


def _warn_of_delta(delta: float, units: int | None) -> None:
    """Warn of a delta at which a guarantee may reveal whole units."""
    if units is not None and delta > 1 / units:
        which = f"1 / {units}: a mechanism that publishes one unit as it is keeps it"
        typer.echo(f"Warning: delta is above {which}.", err=True)
    elif units is None and delta > LARGE_DELTA:
        typer.echo("Warning: delta should be well below 1 / number of records.", err=True)

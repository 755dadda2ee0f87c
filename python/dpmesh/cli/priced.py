"""``dpmesh privacy NAME``: noise, epsilon and rounds of an algorithm, from public numbers.

The commands come from the registry, and their options from the signatures.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from inspect import Parameter
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import typer

import dpmesh as dm
from dpmesh._validate import fail, integer, positive
from dpmesh.algorithms.base import NOISES, Algorithm, AnyAlgorithm
from dpmesh.algorithms.registry import Entry
from dpmesh.cli._errors import Once, telling
from dpmesh.cli.answers import MOST_ROUNDS, Answer, answered
from dpmesh.cli.views import Network, Nodes, Seed, Seen, network_named, with_view
from dpmesh.settings.parts import Entry as Field
from dpmesh.settings.parts import entries, options_of

MOST_ROUNDS_OF_A_VIEW = 1000

Epsilon = Annotated[float | None, typer.Option(help="Compute what keeps it.")]
Noise = Annotated[float | None, typer.Option(help="Compute its cost: scale over sensitivity.")]
Rounds = Annotated[int | None, typer.Option(help="Total number of rounds.")]
Delta = Annotated[float, typer.Option(help="Keep it below 1 / units.")]
Dim = Annotated[int, typer.Option(help="Number of parameters, for Laplace noise.")]

GIVEN = {
    "epsilon": Parameter("epsilon", Parameter.KEYWORD_ONLY, default=None, annotation=Epsilon),
    "noise": Parameter("noise", Parameter.KEYWORD_ONLY, default=None, annotation=Noise),
    "rounds": Parameter("rounds", Parameter.KEYWORD_ONLY, default=None, annotation=Rounds),
}


def _command(entry: Entry) -> Callable[..., Answer]:
    """Return the command that prices an algorithm."""
    kind, fields = entry.kind, _fields(entry)
    own_epsilon = "epsilon" in fields
    default_delta = fields["delta"].default if own_epsilon else 1e-5
    signature = inspect.signature(kind)

    def command(*, delta: float, seen: Seen = (None, None), **given: Any) -> Answer:
        asked = {name: given.pop(name) for name in ("epsilon", "noise")}
        if "topology" in signature.parameters:
            nodes, network, seed = (given.pop(name) for name in ("nodes", "network", "seed"))
            given["topology"] = network_named(network, nodes, seed)
        rounds = given["rounds"] if "rounds" in fields else given.pop("rounds", None)
        dim = given.pop("dim") if own_epsilon else 1
        public = {name: value for name, value in given.items() if value is not None}
        made = entry.made({**entry.public, **public})
        question = Question(entry, made, delta, rounds, seen)
        return question.own(**asked, dim=dim) if own_epsilon else question.noise(**asked)

    options = {**GIVEN, **_options(entry)}
    if own_epsilon and not _has_views(kind):
        del options["rounds"]
    options["delta"] = Parameter(
        "delta", Parameter.KEYWORD_ONLY, default=default_delta or 0.0, annotation=Delta
    )
    if own_epsilon:
        options["dim"] = Parameter("dim", Parameter.KEYWORD_ONLY, default=1, annotation=Dim)
    if "topology" in signature.parameters:
        described = (("nodes", Nodes, 16), ("network", Network, "complete"), ("seed", Seed, 0))
        for name, annotation, default in described:
            options[name] = Parameter(
                name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation
            )
    command.__doc__ = (inspect.getdoc(kind) or "").partition("\n")[0]
    command.__signature__ = inspect.Signature([*options.values()])  # type: ignore[attr-defined]
    return command


def _fields(entry: Entry) -> dict[str, Field]:
    """Return the parameters of an algorithm and of its parts, by name."""
    kinds = (*entry.parts.values(), entry.kind)
    return {name: field for kind in kinds for name, field in entries(kind).items()}


def _options(entry: Entry) -> dict[str, Parameter]:
    """Return an option for each public parameter on which the cost depends."""
    found = {}
    for name, field in _fields(entry).items():
        kind = _plain(field.hint)
        asked = name in entry.asked if entry.asked else name not in entry.public
        if name in (*NOISES, "epsilon", "delta") or kind is None or not asked:
            continue
        default = Parameter.empty if field.required else field.default
        default = entry.public.get(name, default)
        if not isinstance(default, (int, float, str, NoneType)) and default is not Parameter.empty:
            default = None  # a schedule, which the algorithm has by itself
        wanted = kind | None if default is None else kind
        text = re.split(r"[;:,.] |\.$", field.text)[0] + "."
        found[name] = Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[wanted, typer.Option(help=text)],
        )
    return found


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


class Question:
    """What is asked of an algorithm, and its answer.

    Parameters
    ----------
    entry
        The algorithm.
    public
        Its parameters, but for the noise.
    delta
        Of the guarantee.
    rounds
        Length of a run; None if it is asked for, or fixed by the parameters.
    seen
        The view, and the facts that it rests on.
    """

    def __init__(
        self, entry: Entry, public: dict[str, Any], delta: float, rounds: int | None, seen: Seen
    ) -> None:
        self._kind, self._public, self.delta, self._rounds = entry.kind, public, delta, rounds
        self.view, self._facts = seen

    def noise(self, epsilon: float | None, noise: float | None) -> Answer:
        """Answer for an algorithm whose noise is a parameter."""
        known = entries(self._kind)
        name = next(each for each in NOISES if each in known)

        def make(multiplier: float) -> AnyAlgorithm:
            return self._kind(**{**self._public, name: positive("noise", multiplier)})

        fixed = "rounds" in known or make(1.0).run_length is not None
        if fixed:
            _either(epsilon, noise)
            self._rounds = make(noise or 1.0).run_length
            if noise is None and "rounds" in known:
                budget: dict[str, Any] = {
                    "epsilon": positive("epsilon", epsilon or 0.0),
                    "delta": self.delta,
                }
                algorithm = self._kind.for_budget(**budget, **self._public)
                return self._answer(algorithm, float(getattr(algorithm, name)), self._rounds)
        return self._solved(make, epsilon, noise)

    def own(self, epsilon: float | None, noise: float | None, *, dim: int) -> Answer:
        """Answer for an algorithm with an epsilon of its own, each record of which is used once."""
        integer("dim", dim, at_least=1)
        if self.view is None:
            made = self._of_epsilon(self._single_epsilon(epsilon, noise))
            return self._answer(made, None, None, dim)
        if self.delta == 0:
            fail("delta", "one above 0, such as 1e-5, for a view", self.delta)
        self._rounds = self._rounds or 32
        return self._solved(
            lambda noise: self._of_epsilon(self._single_epsilon(None, noise)), epsilon, noise
        )

    def _of_epsilon(self, epsilon: float) -> AnyAlgorithm:
        return self._kind(**{**self._public, "epsilon": epsilon, "delta": self.delta})

    def _solved(
        self, make: Callable[[float], AnyAlgorithm], epsilon: float | None, noise: float | None
    ) -> Answer:
        """Find the one of epsilon, noise and rounds that is missing."""
        rounds = self._rounds
        given = {"--epsilon": epsilon, "--noise": noise, "--rounds": rounds}
        names = [name for name, value in given.items() if value is not None]
        if len(names) != 2:
            fail("options", "two of --epsilon, --noise and --rounds", ", ".join(names) or "none")
        if rounds is None and epsilon is not None and noise is not None:
            algorithm, budget = make(positive("noise", noise)), _budget(epsilon, self)
            most = MOST_ROUNDS if self.view is None else MOST_ROUNDS_OF_A_VIEW
            rounds = budget.affordable_rounds(algorithm, self._facts, at_most=most)
            if rounds == 0:
                cost = dm.privacy.rounded_up(algorithm.plan(1).cost(self.delta).epsilon)
                fail("epsilon", f"at least {cost}, which one round costs", epsilon)
            return self._answer(algorithm, noise, rounds)
        rounds = integer("rounds", rounds or 0, at_least=1)
        if noise is None:
            noise = _budget(epsilon or 0.0, self).calibrate(make, rounds, self._facts)
        return self._answer(make(positive("noise", noise)), noise, rounds)

    def _single_epsilon(self, epsilon: float | None, noise: float | None) -> float:
        """Return the epsilon of a record that affects one release, given it or the noise."""
        _either(epsilon, noise)
        if noise is None:
            return positive("epsilon", epsilon or 0.0)
        mu = 1 / positive("noise", noise)
        return mu if self.delta == 0 else dm.privacy.accounting.gdp_epsilon(delta=self.delta, mu=mu)

    def _answer(
        self, algorithm: AnyAlgorithm, noise: float | None, rounds: int | None, dim: int = 1
    ) -> Answer:
        """Return the noise and the report; `rounds` is None if their number does not matter."""
        facts = () if self.view is None else (self._facts,)
        plan = algorithm.plan(rounds or 2, *facts)
        first = plan.touching[0] if plan.touching else algorithm.plan(2).touching[0]
        moved, mechanism = first.sensitivity, first.mechanism
        scale, bound = map(dm.privacy.rounded_up, (mechanism.noise_scale(moved, dim), moved.bound))
        kind = mechanism.name.replace("_", " ")
        meaning = f"{kind}, scale {scale} where a {plan.unit} moves a release by {bound}"
        report = dm.privacy.report(plan, self.delta, view=self.view)
        return Answer(noise or mechanism.noise_multiplier, meaning, rounds, report)


def _budget(epsilon: float, asked: Question) -> dm.privacy.Budget:
    return dm.privacy.Budget(epsilon, delta=asked.delta, view=asked.view)


def _either(epsilon: float | None, noise: float | None) -> None:
    """Fail unless one of the two is given."""
    if (epsilon is None) == (noise is None):
        got = "none" if epsilon is None else "both"
        fail("options", "either --epsilon or --noise", got)


def command_of(entry: Entry) -> Any:
    """Return the command of an algorithm."""
    viewed = with_view if _has_views(entry.kind) else (lambda command: command)
    one = typer.Typer(add_completion=False)
    one.command(entry.name, cls=Once)(telling(answered(viewed(_command(entry)))))
    return typer.main.get_command(one)

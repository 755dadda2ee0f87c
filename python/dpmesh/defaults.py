"""Which algorithm, network, rounds and steps serve a budget: a rule over public numbers.

Sites add up gradients under a secure sum (`FederatedLearning` of `RecordGradients`), so that one
noise is enough for all of their records, wherever two honest sites are left when the colluding ones
are not counted. Fewer sites send each other noisy models (`GradientDescent` by gossip): there one
noise for all is no less than one of each site. Partners that share noise, which cancels where
models are averaged, have nearly as little of it without a server.

The rule for steps is the same for both, for records of norm 1, as `dpmesh.ranges` and
`dpmesh.data.unit_norm` make them. Let a path be the length of all steps together, and let epsilon
and delta be those of mu-Gaussian-DP. At the end of the path noise has the standard deviation

    path * 2 * clipping_norm / (effective_records * mu)

in the score of a record, however many rounds share the path; see `Sizes.effective_records`. The
path is as long as that noise allows, in 100 steps of at most the longest length that is stable.
That is too short a path for linear classifiers of large tables. They take up to 400 steps if that
leaves little noise. Under a secure sum these have momentum, which costs nothing, since it follows
from what was released, and makes a path of steps of the same size longer by 1 / (1 - momentum). By
gossip momentum would break the guarantee.
``docs/estimators.md`` has the measurements behind the constants.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import sqrt
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from numpy import ndarray

from dpmesh._validate import fail, integer, one_of, positive, probability
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.algorithms.federated import FederatedLearning
from dpmesh.algorithms.federated_combination import SecureAggregation
from dpmesh.algorithms.federated_gradients import RecordGradients
from dpmesh.algorithms.federated_server import Average, ServerMomentum
from dpmesh.algorithms.first_stage import FirstStage
from dpmesh.algorithms.gradient_descent import GradientDescent
from dpmesh.algorithms.record_sums import RecordSums
from dpmesh.keys import Key
from dpmesh.privacy.accounting import analytic_gaussian_noise_multiplier
from dpmesh.privacy.budget import Budget
from dpmesh.privacy.views import EverybodyButPartners
from dpmesh.privacy.views.observers import in_words
from dpmesh.problems import LinearProblem
from dpmesh.topology import Topology, complete, random_regular

if TYPE_CHECKING:
    from dpmesh.privacy.correlated import CorrelatedStrategy

__all__ = ["Choice", "Method", "Sizes", "Task", "choose", "method_for", "network", "step_size"]

Task = Literal["classification", "regression", "counts"]

Method = Literal["secure", "gossip"]

Noise = Literal["BetweenPartners", "InTime", "Both"]

EVERYBODY = "everybody: all noisy messages may be read"

COMPLETE = 64
"""Up to this many nodes everybody sends to everybody; more form a random regular graph."""

DEGREE = 8
"""Neighbours of a node in that graph."""

HONEST = 2
"""Fewest sites that do not collude for which one noise can serve all."""

MIXINGS = 5
"""Of each message, where partners share noise and not all nodes are neighbours."""


class _Constants(NamedTuple):
    clipping_norm: float
    noise: float
    """Largest standard deviation of the noise in a score, at the end of the path."""
    longest: float
    """Longest path of 100 steps without momentum."""
    momentum: float
    """Of a linear model's steps under a secure sum."""
    averaged: float
    """Share of the last rounds of a secure sum whose models are averaged."""


_CONSTANTS: dict[Task, _Constants] = {
    "classification": _Constants(
        clipping_norm=0.5, noise=2.0, longest=800.0, momentum=0.9, averaged=0.1
    ),
    "regression": _Constants(
        clipping_norm=0.1, noise=0.25, longest=400.0, momentum=0.9, averaged=0.5
    ),
    "counts": _Constants(clipping_norm=0.1, noise=1.0, longest=1600.0, momentum=0.9, averaged=0.5),
}

STEPS = 100
"""Steps of the path; the first round of gossip sends a model that no data has touched."""

MOST_STEPS = 400
"""Of a linear classifier, if the noise of so many steps stays below `LITTLE_NOISE`."""

LITTLE_NOISE = 1.0
"""Largest standard deviation of the noise in a score after more than 100 steps."""


MANY = 3000.0
"""Least number of effective records, times mu, for which further features pay."""

MOST_NUMBERS = 32
"""Most columns of numbers for which they do: more are images or measurements, of another rule."""

STAGE_SHARE = 0.1
"""Share of mu^2 that a first stage gets."""

STAGE_NOISE = 0.5
"""Largest norm of the noise in the mean of records of norm 1, for which it pays to release it."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The public sizes of a problem.

    Parameters
    ----------
    nodes
        Number of nodes, n.
    smallest
        The smallest number of records of a node: what gossip needs.
    together
        Number of records of all nodes together: what a secure sum needs.
    dim
        Length of the model.
    features
        Number of features of a dense record of a linear model; 0 of any other, which has no first
        stage.

    Raises
    ------
    ValueError
        If one of them is not an integer of at least 1, or they do not fit together.
    """

    nodes: int
    smallest: int
    together: int
    dim: int
    features: int = 0

    def __post_init__(self) -> None:
        for name in ("nodes", "smallest", "dim"):
            integer(name, getattr(self, name), at_least=1)
        integer("features", self.features)
        integer("together", self.together, at_least=self.nodes * self.smallest)

    @classmethod
    def of(cls, problem: Any) -> Sizes:
        """Return the sizes of a problem with records in memory."""
        dense = isinstance(problem, LinearProblem) and isinstance(problem.train.features, ndarray)
        return cls(
            features=problem.train.dim if dense else 0,
            nodes=problem.nodes,
            smallest=problem.fewest_records,
            together=int(problem.records.sum()),
            dim=problem.dim,
        )

    def effective_records(self, method: Method, colluding: int) -> float:
        """Return of how many records a trusted server would need as much noise in the mean.

        With gossip each of n nodes adds noise for the smallest one. Under a secure sum each site
        adds a share, and those of all but the colluding ones are enough.
        """
        if method == "gossip":
            return self.smallest * sqrt(self.nodes)
        return self.together * sqrt((self.nodes - colluding) / self.nodes)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What to run.

    Parameters
    ----------
    algorithm
        With the noise that the budget needs.
    topology
        The network, None for an algorithm without one.
    rounds
        Number of rounds.
    view
        Against whom the budget is kept; None for whom the plan of the algorithm is about.
    """

    algorithm: Any
    topology: Topology | None
    rounds: int
    view: EverybodyButPartners | None = None

    @property
    def adds_up(self) -> bool:
        """Whether sites add up gradients of records under a secure sum."""
        summed = getattr(self.algorithm, "secure_sum", None) is not None
        return summed and self.algorithm.unit == "record"


def choose(
    sizes: Sizes,
    *,
    epsilon: float | None,
    delta: float,
    task: Task = "classification",
    linear: bool = True,
    algorithm: Method | None = None,
    noise: Noise | None = None,
    topology: Topology | None = None,
    colluding: int = 1,
    rounds: int | None = None,
    key: Key | None = None,
) -> Choice:
    """Return what serves a budget best, by the rule of this module.

    This is the one place that decides on an algorithm.

    Parameters
    ----------
    sizes
        Public sizes, such as ``Sizes.of(problem)``.
    epsilon, delta
        The budget of the whole run; an epsilon of None runs without noise, for comparison.
    task
        ``"classification"`` (softmax), ``"regression"`` (squared loss, targets in [-1, 1]) or
        ``"counts"`` (the loss ``"poisson"``).
    linear
        Whether the model is. A network has no momentum, with which it learned less.
    algorithm
        ``"secure"``, ``"gossip"``, or None for the choice of `method_for`.
    noise
        ``"BetweenPartners"``: sites that gossip share noise, see `dpmesh.privacy.correlated`. The
        budget is then kept against everybody except link partners. None for independent noise.
    topology
        The network of sites that gossip; None for `network`.
    colluding
        Sites that may collude with the server of a secure sum, or with who sees all messages where
        partners share noise. At least 1 protects a site from any other one.
    rounds
        None: by the rule. Others share the path that noise allows, in steps that are no longer.
    key
        Draws the network of more than 64 nodes; by default a new one.

    Raises
    ------
    ValueError
        If a number is out of its range, there are too few sites for a secure sum or for partners,
        or an argument is for gossip and `algorithm` is not.
    """
    for name, value in (("noise", noise), ("topology", topology)):
        if value is not None and algorithm == "secure":
            fail(name, "None with 'secure', whose sites send shares of noise to a server", value)
        algorithm = algorithm if value is None else "gossip"
    method = method_for(sizes.nodes, epsilon, algorithm=algorithm, colluding=colluding)
    links = None
    if method == "gossip":
        links = network(sizes.nodes, key=key) if topology is None else topology
    shared = None if noise is None or links is None else _partners(noise, links, colluding)
    rule = _CONSTANTS[one_of("task", task, [*_CONSTANTS])]
    momentum = rule.momentum if method == "secure" and linear else 0.0
    step = rule.longest / STEPS
    most = MOST_STEPS if task == "classification" and linear else STEPS
    steps = most if rounds is None else integer("rounds", rounds, at_least=2)
    steps -= method == "gossip" and rounds is not None
    staged = False
    if epsilon is not None:
        mu = _mu(epsilon, delta)
        records = sizes.effective_records(method, colluding)
        staged = task != "regression" and has_first_stage(sizes, method, mu * records)
        staged = staged and topology is None  # which need not link all sites, as a first stage asks
        records *= 1.0 if shared is None else _gain(shared)
        mu *= sqrt(1 - STAGE_SHARE) if staged else 1.0
        in_a_step = 2 * rule.clipping_norm / (records * mu)
        if rounds is None:
            steps = min(max(STEPS, int(LITTLE_NOISE * (1 - momentum) / (in_a_step * step))), most)
        step = step_size(steps * in_a_step / (1 - momentum), task=task)
    own = _Steps(sizes, rule, method, colluding, steps, step, momentum, staged, shared)
    needed = None if epsilon is None else _needed(own, epsilon, delta)
    return Choice(algorithm=own.made(needed), topology=links, rounds=own.rounds, view=own.view)


class _Steps(NamedTuple):
    """What was decided, but for the noise: all of it public."""

    sizes: Sizes
    rule: _Constants
    method: Method
    colluding: int
    steps: int
    step: float
    momentum: float
    staged: bool
    shared: CorrelatedStrategy | None

    @property
    def rounds(self) -> int:
        return self.steps + (self.method == "gossip")

    @property
    def view(self) -> EverybodyButPartners | None:
        return None if self.shared is None else EverybodyButPartners(coalition=self.colluding)

    def made(self, noise_multiplier: float | None) -> AnyAlgorithm:
        """Return the algorithm with this noise."""
        own, sizes = self._learns(noise_multiplier), self.sizes
        if not self.staged:
            return own
        assert noise_multiplier is not None
        return FirstStage(
            algorithm=own,
            mean=RecordSums(
                dim=sizes.features,
                sites=sizes.nodes,
                records=sizes.together,
                noise_multiplier=noise_multiplier * sqrt((1 / STAGE_SHARE - 1) / self.steps),
                colluding=self.colluding,
                secure=self.method == "secure",
            ),
        )

    def _learns(self, noise_multiplier: float | None) -> AnyAlgorithm:
        sizes, rule, steps = self.sizes, self.rule, self.steps
        if self.method == "gossip":
            return GradientDescent(
                records=sizes.smallest,
                noise_multiplier=noise_multiplier,
                step_size=self.step,
                clipping_norm=rule.clipping_norm,
                noise=self.shared and replace(self.shared, rounds=self.rounds),
            )
        dim = sizes.dim + self.staged * sizes.dim // max(sizes.features, 1)
        return FederatedLearning(
            RecordGradients(
                clients=sizes.nodes, records=sizes.together, clipping_norm=rule.clipping_norm
            ),
            noise_multiplier=noise_multiplier,
            combination=SecureAggregation(dim=dim, rounds=steps, colluding=self.colluding),
            optimizer=ServerMomentum(self.momentum) if self.momentum else None,
            average=Average(since=int(steps * (1 - rule.averaged)) + 1),
            step_size=self.step,
        )


@lru_cache(maxsize=256)
def _needed(own: _Steps, epsilon: float, delta: float) -> float:
    """Return the noise that a budget needs: it follows from public numbers, and is kept."""
    try:
        return Budget(epsilon, delta=delta, view=own.view).calibrate(own.made, own.rounds)
    except ValueError as error:
        if own.method == "gossip":
            raise
        hint = "take a larger epsilon, or algorithm='gossip'"
        raise ValueError(f"no secure sum keeps this budget: {hint} ({error})") from error


def _partners(noise: Noise, links: Topology, colluding: int) -> CorrelatedStrategy:
    """Return the noise that link partners share in a path of `STEPS`."""
    from dpmesh.privacy.correlated import BetweenPartners

    if one_of("noise", noise, get_args(Noise)) != "BetweenPartners":
        wanted = (
            "'BetweenPartners' by this rule: noise in time buys nothing where every round uses all "
            "records (Theorem 2 of docs/privacy/correlated_noise.md)"
        )
        fail("noise", wanted, noise)
    if links.nodes < (fewest := integer("colluding", colluding) + HONEST):
        fail("noise", f"None at fewer than {fewest} sites, of which {colluding} collude", noise)
    meet = links.matrix(0).messages == links.nodes * (links.nodes - 1)
    mixings = 1 if meet else MIXINGS
    return BetweenPartners(topology=links, rounds=STEPS + 1, mixings=mixings, coalition=colluding)


def _gain(shared: CorrelatedStrategy) -> float:
    """Return how many times less noise is left than independent noise leaves in a mean of all."""
    rows = shared.rows
    assert shared.topology is not None
    independent = sqrt(rows * (rows + 1) / 2 / shared.topology.nodes)
    return independent / shared.mixed_noise(uses=rows)


def _mu(epsilon: float, delta: float) -> float:
    """Return the mu of Gaussian differential privacy that a budget allows."""
    positive("epsilon", epsilon)
    if not probability("delta", delta, one=False):
        wanted = "a positive number such as 1e-5: Gaussian noise has no finite epsilon at delta 0"
        fail("delta", wanted, delta)
    return 1 / analytic_gaussian_noise_multiplier(target_epsilon=epsilon, target_delta=delta)


def features_for(
    sizes: Sizes,
    numbers: int,
    *,
    epsilon: float | None,
    delta: float,
    algorithm: Method | None = None,
    noise: Noise | None = None,
    colluding: int = 1,
) -> str:
    """Return which features of a table pay for a linear classifier: a name of `FeatureMap.of`.

    More features hold more noise. They pay where the records of all sites, times mu of the budget,
    are many.

    Parameters
    ----------
    sizes
        Public sizes; those of the model do not matter.
    numbers
        Number of columns that hold numbers or dates.
    epsilon, delta, algorithm, noise, colluding
        As in `choose`.

    Raises
    ------
    ValueError
        As `choose`.
    """
    method = method_for(sizes.nodes, epsilon, algorithm=algorithm, colluding=colluding)
    if epsilon is None or not 0 < numbers <= MOST_NUMBERS:
        return "columns"
    records = sizes.effective_records(method, colluding)
    records *= 1.0 if noise is None else sqrt(max(1, sizes.nodes - colluding))  # at most, see _gain
    return "hats+cosines" if records * _mu(epsilon, delta) >= MANY else "columns"


def has_first_stage(sizes: Sizes, method: Method, strength: float) -> bool:
    """Return whether a noisy mean pays a classifier: if its noise is well below a record's norm.

    Parameters
    ----------
    sizes
        Of the problem.
    method
        By gossip each node sends its sum to every other one: only where all are neighbours.
    strength
        The effective number of records times mu, of the whole budget.
    """
    if method == "gossip" and sizes.nodes > COMPLETE:
        return False
    noise = sqrt(sizes.features) * 2 / (sqrt(STAGE_SHARE) * strength)
    return 0 < noise <= STAGE_NOISE


def step_size(noise: float, *, rounds: int = STEPS, task: Task = "classification") -> float:
    """Return the step size of any method by the rule of this module.

    Parameters
    ----------
    noise
        Standard deviation of all noise in a record's score after `rounds` steps of size 1.
    rounds
        Number of steps; no step is longer than those of a longest path of 100.
    task
        As in `choose`.

    Raises
    ------
    ValueError
        If a number is not positive.
    """
    positive("noise", noise)
    rounds = integer("rounds", rounds, at_least=1)
    rule = _CONSTANTS[one_of("task", task, [*_CONSTANTS])]
    return min(rule.longest / max(rounds, STEPS), rule.noise / noise)


def method_for(
    nodes: int,
    epsilon: float | None,
    *,
    algorithm: Method | None = None,
    colluding: int = 1,
) -> Method:
    """Return whether to add up gradients under a secure sum or to gossip.

    Parameters
    ----------
    nodes
        Number of sites. The sum is taken if 2 of them, or more, do not collude.
    epsilon
        None (no noise) gossips: then there is nothing to share.
    algorithm, colluding
        As in `choose`. An `algorithm` that is not None is returned if it can serve.

    Raises
    ------
    ValueError
        If an argument is out of its range, or `algorithm` cannot serve.
    """
    fewest = integer("colluding", colluding) + HONEST
    serves = nodes >= fewest and epsilon is not None
    if algorithm is None:
        return "secure" if serves else "gossip"
    one_of("algorithm", algorithm, get_args(Method))
    if algorithm == "secure" and not serves:
        if epsilon is None:
            fail("algorithm", "'gossip' without an epsilon, or an epsilon", "'secure'")
        wanted = f"'gossip' at {nodes} sites; 'secure' needs {fewest}, of which {colluding} collude"
        fail("algorithm", wanted, "'secure'")
    return algorithm


def network(nodes: int, *, key: Key | None = None) -> Topology:
    """Return a well-connected network: complete up to 64 nodes, else random with 8 neighbours.

    Raises
    ------
    ValueError
        If `nodes` is not an integer of at least 1.
    """
    if integer("nodes", nodes, at_least=1) <= COMPLETE:
        return complete(nodes)
    return random_regular(nodes, DEGREE, key=Key.generate() if key is None else key)


def against(algorithm: object, view: EverybodyButPartners | None = None) -> str:
    """Return against whom the guarantee of an algorithm holds, in words."""
    if view is not None:
        return in_words(view)
    sums = getattr(algorithm, "secure_sum", None)
    if sums is None:
        return EVERYBODY
    count = sums.colluding
    verb = "help" if count > 1 else "helps"
    helped = f"even if any {count} of the sites" if count else "if none of the sites"
    return f"the server, which learns only noisy sums over all sites, {helped} {verb} it"

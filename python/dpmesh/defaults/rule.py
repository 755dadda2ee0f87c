"""The rule: public sizes in, a method, a network, features and steps out."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any, Literal, NamedTuple, get_args

from numpy import ndarray

from dpmesh._validate import every, fail, integer, one_of, positive, probability
from dpmesh.accounting import analytic_gaussian_noise_to_sensitivity
from dpmesh.keys import Key
from dpmesh.problems import LinearProblem
from dpmesh.problems.dense import DenseProblem
from dpmesh.tables.features import SCATTERING
from dpmesh.topology import Static, complete, random_regular

Task = Literal["classification", "regression", "counts"]

Method = Literal["secure", "gossip"]

Noise = Literal["BetweenPartners", "InTime", "Both"]

COMPLETE = 64
"""Up to this many nodes everybody sends to everybody; more form a random regular graph."""

DEGREE = 8
"""Neighbours of a node in that graph."""

HONEST = 2
"""Fewest sites that do not collude for which one noise can serve all."""


class Constants(NamedTuple):
    """Of one task."""

    clipping_norm: float
    noise: float
    """Largest standard deviation of the noise in a score, at the end of the path."""
    longest: float
    """Longest path of 100 steps without momentum."""
    momentum: float
    """Of a linear model's steps under a secure sum."""
    averaged: float
    """Share of the last rounds of a secure sum whose models are averaged."""


CONSTANTS: dict[Task, Constants] = {
    "classification": Constants(
        clipping_norm=0.5, noise=2.0, longest=800.0, momentum=0.9, averaged=0.1
    ),
    "regression": Constants(
        clipping_norm=0.1, noise=0.25, longest=400.0, momentum=0.9, averaged=0.5
    ),
    "counts": Constants(clipping_norm=0.1, noise=1.0, longest=1600.0, momentum=0.9, averaged=0.5),
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
"""Share of mu^2 that each release of a first stage gets."""

STAGE_NOISE = 0.5
"""Largest norm of the noise in the mean of records of norm 1, for which it pays to release it."""

MOMENT_NOISE = 0.02
"""Largest eigenvalue of the noise in their second moment, of trace 1, for which that pays."""


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
    largest
        The largest number of records of a node, None if it is not public.
    images
        Whether these are scattering coefficients of images, for which a second moment paid.

    Raises
    ------
    ValueError
        If one of them is not an integer of at least 1, or they do not fit together.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.defaults.Sizes(nodes=8, smallest=100, together=800, dim=20).together
    800
    """

    nodes: int
    smallest: int
    together: int
    dim: int
    features: int = 0
    images: bool = False
    largest: int | None = None

    def __post_init__(self) -> None:
        every(self, integer, "nodes", "smallest", "dim", at_least=1)
        every(self, integer, "features", "largest")
        every(self, integer, "together", at_least=self.nodes * self.smallest)

    @classmethod
    def of(cls, problem: LinearProblem | DenseProblem) -> Sizes:
        """Return the sizes of a problem with records in memory."""
        dense = isinstance(problem, LinearProblem) and isinstance(problem.train.features, ndarray)
        columns: Any = getattr(getattr(problem, "outline", None), "columns", None)
        return cls(
            images=dense and getattr(columns, "features", None) == SCATTERING,
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
    records *= 1.0 if noise is None else sqrt(max(1, sizes.nodes - colluding))  # at most
    return "hats+cosines" if records * mu_of(epsilon, delta) >= MANY else "columns"


def first_stages(sizes: Sizes, method: Method, strength: float) -> int:
    """Return how many releases before learning pay a classifier: none, a mean, or a moment after.

    A mean pays if its noise is well below a record's norm; a second moment of images, under a
    secure sum, if the largest eigenvalue of its noise is far below the moment's trace.

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
        return 0
    noise = sqrt(sizes.features) * 2 / (sqrt(STAGE_SHARE) * strength)  # also the eigenvalue
    if not 0 < noise <= STAGE_NOISE:
        return 0
    return 1 + (sizes.images and method == "secure" and noise <= MOMENT_NOISE)


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
    rule = CONSTANTS[one_of("task", task, [*CONSTANTS])]
    return min(rule.longest / max(rounds, STEPS), rule.noise / noise)


def method_for(
    nodes: int, epsilon: float | None, *, algorithm: Method | None = None, colluding: int = 1
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


def network(nodes: int, *, key: Key | None = None) -> Static:
    """Return a well-connected network: complete up to 64 nodes, else random with 8 neighbours.

    Raises
    ------
    ValueError
        If `nodes` is not an integer of at least 1.
    """
    if integer("nodes", nodes, at_least=1) <= COMPLETE:
        return complete(nodes)
    return random_regular(nodes, DEGREE, key=Key.generate() if key is None else key)


def mu_of(epsilon: float, delta: float) -> float:
    """Return the mu of Gaussian differential privacy that a budget allows."""
    positive("epsilon", epsilon)
    if not probability("delta", delta, one=False):
        wanted = "a positive number such as 1e-5: Gaussian noise has no finite epsilon at delta 0"
        fail("delta", wanted, delta)
    return 1 / analytic_gaussian_noise_to_sensitivity(target_epsilon=epsilon, target_delta=delta)

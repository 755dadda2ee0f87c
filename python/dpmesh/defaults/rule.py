"""The rule: a method, a network, features and steps from public sizes."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Literal, NamedTuple, get_args

from numpy import ndarray

from dpmesh._validate import every, fail, integer, one_of, positive, probability
from dpmesh.accounting import analytic_gaussian_noise_to_sensitivity
from dpmesh.algorithms.calibrated import DISTANCE
from dpmesh.keys import Key
from dpmesh.problems import LinearProblem
from dpmesh.problems.dense import DenseProblem
from dpmesh.tables.features import SCATTERING
from dpmesh.topology import Static, complete, random_regular

Task = Literal["classification", "regression", "counts"]

Method = Literal["secure", "gossip"]

Noise = Literal["BetweenPartners", "InTime", "Both"]

COMPLETE = 64
"""Most nodes of a complete graph; more form a random regular graph."""

DEGREE = 8
"""Neighbours of a node in that graph."""

HONEST = 2
"""Fewest sites that do not collude for which one noise can serve all."""


class TaskConstants(NamedTuple):
    """Constants of the rule for one task."""

    clipping_norm: float
    noise: float
    """Largest standard deviation of the noise in a score, at the end of the path."""
    longest: float
    """Longest path of 100 steps without momentum."""
    momentum: float
    """Momentum of a linear model's steps by secure aggregation."""
    averaged: float
    """Share of the last rounds of secure aggregation whose models are averaged."""


CONSTANTS: dict[Task, TaskConstants] = {
    "classification": TaskConstants(
        clipping_norm=0.5, noise=2.0, longest=800.0, momentum=0.9, averaged=0.1
    ),
    "regression": TaskConstants(
        clipping_norm=0.1, noise=0.25, longest=400.0, momentum=0.9, averaged=0.5
    ),
    "counts": TaskConstants(
        clipping_norm=0.1, noise=1.0, longest=1600.0, momentum=0.9, averaged=0.5
    ),
}

STEPS = 100
"""Steps of the path; the first round of gossip sends a model that no data has touched."""

MOST_STEPS = 400
"""Most steps of a linear classifier, if their noise stays below `LITTLE_NOISE`."""

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

CALIBRATION_SHARE = 0.2
"""Share of mu^2 that the calibration of a regression gets."""

CALIBRATION_NOISE: dict[Method, float] = {"secure": 0.01, "gossip": 0.004}
"""Largest standard deviation of the noise in the moments of a calibration, over the number of
records, for which it pays: moments are of numbers in [-1, 1]. By gossip learning itself has more
noise, and misses the share of the budget sooner."""

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
        The smallest number of records of a node, which gossip needs.
    together
        Number of records of all nodes together, which secure aggregation needs.
    dim
        Length of the model.
    features
        Number of features of a dense record of a linear model; 0 of any other, which has no first
        stage.
    largest
        The largest number of records of a node, None if it is not public.
    images
        If true, these are scattering coefficients of images, for which a second moment paid.

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
        features = 0
        images = False
        if isinstance(problem, LinearProblem) and isinstance(problem.train.features, ndarray):
            features = problem.train.dim
            images = _has_scattering_features(problem)
        return cls(
            images=images,
            features=features,
            nodes=problem.nodes,
            smallest=problem.fewest_records,
            together=int(problem.records.sum()),
            dim=problem.dim,
        )

    def effective_records(self, method: Method, colluding: int) -> float:
        """Return the number of records at which a trusted server's mean has as much noise.

        In gossip each of n nodes adds noise for the records of the smallest one, and the mean has
        1 / sqrt(n) of it. In secure aggregation each site adds a share, and the shares of the sites
        that do not collude suffice.
        """
        if method == "gossip":
            return self.smallest * sqrt(self.nodes)
        honest_share = (self.nodes - colluding) / self.nodes
        return self.together * sqrt(honest_share)


def _has_scattering_features(problem: LinearProblem) -> bool:
    """Return True if the records are scattering coefficients of images."""
    outline: object = getattr(problem, "outline", None)
    columns: object = getattr(outline, "columns", None)
    return bool(getattr(columns, "features", None) == SCATTERING)


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
    """Return the features of a table that pay for a linear classifier: a name of `FeatureMap.of`.

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
    if noise is not None:
        records *= sqrt(max(1, sizes.nodes - colluding))  # at most
    if records * mu_of(epsilon, delta) >= MANY:
        return "hats+cosines"
    return "columns"


def first_stages(sizes: Sizes, method: Method, strength: float) -> int:
    """Return the number of releases before learning that pay: none, a mean, or a moment after it.

    A mean pays if its noise is well below a record's norm; a second moment of images, by secure
    aggregation, if the largest eigenvalue of its noise is far below the moment's trace.

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
    moment_pays = sizes.images and method == "secure" and noise <= MOMENT_NOISE
    if moment_pays:
        return 2
    return 1


def learning_share(stages: int, calibrate: bool) -> float:
    """Return the share of mu^2 that is left for learning.

    Parameters
    ----------
    stages
        Number of releases before learning.
    calibrate
        If true, a regression is calibrated.
    """
    share = 1 - stages * STAGE_SHARE
    if calibrate:
        share -= CALIBRATION_SHARE
    return share


def calibration_pays(
    sizes: Sizes,
    epsilon: float | None,
    delta: float,
    *,
    algorithm: Method | None = None,
    colluding: int = 1,
) -> bool:
    """Return whether a regression gains from the calibration of its predictions.

    It does where the noise in the calibration is small, and always without noise.

    Parameters
    ----------
    sizes
        Public sizes.
    epsilon, delta, algorithm, colluding
        As in `choose`.

    Raises
    ------
    ValueError
        As `choose`.
    """
    if epsilon is None:
        return True
    method = method_for(sizes.nodes, epsilon, algorithm=algorithm, colluding=colluding)
    records = sizes.effective_records(method, colluding)
    noise = DISTANCE / (sqrt(CALIBRATION_SHARE) * mu_of(epsilon, delta) * records)
    return noise <= CALIBRATION_NOISE[method]


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
    one_of("task", task, [*CONSTANTS])
    constants = CONSTANTS[task]
    longest_step = constants.longest / max(rounds, STEPS)
    return min(longest_step, constants.noise / noise)


def method_for(
    nodes: int, epsilon: float | None, *, algorithm: Method | None = None, colluding: int = 1
) -> Method:
    """Return the method: secure aggregation of gradients, or gossip.

    Parameters
    ----------
    nodes
        Number of sites. Secure aggregation is chosen if 2 of them, or more, do not collude.
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
    can_aggregate = nodes >= fewest and epsilon is not None
    if algorithm is None:
        if can_aggregate:
            return "secure"
        return "gossip"
    one_of("algorithm", algorithm, get_args(Method))
    if algorithm == "secure" and not can_aggregate:
        if epsilon is None:
            fail("algorithm", "'gossip' without an epsilon, or an epsilon", "'secure'")
        expectation = (
            f"'gossip' at {nodes} sites; 'secure' needs {fewest}, of which {colluding} collude"
        )
        fail("algorithm", expectation, "'secure'")
    return algorithm


def network(nodes: int, *, key: Key | None = None) -> Static:
    """Return a well-connected network: complete up to 64 nodes, else random with 8 neighbours.

    Raises
    ------
    ValueError
        If `nodes` is not an integer of at least 1.
    """
    nodes = integer("nodes", nodes, at_least=1)
    if nodes <= COMPLETE:
        return complete(nodes)
    if key is None:
        key = Key.generate()
    return random_regular(nodes, DEGREE, key=key)


def mu_of(epsilon: float, delta: float) -> float:
    """Return the mu of Gaussian differential privacy that a budget allows.

    Raises
    ------
    ValueError
        If `epsilon` is not positive, or `delta` is not between 0 and 1.
    """
    positive("epsilon", epsilon)
    if not probability("delta", delta, one=False):
        expectation = (
            "a positive number such as 1e-5: Gaussian noise has no finite epsilon at delta 0"
        )
        fail("delta", expectation, delta)
    return 1 / analytic_gaussian_noise_to_sensitivity(target_epsilon=epsilon, target_delta=delta)

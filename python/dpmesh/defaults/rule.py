"""The rule's parts: method, network, features, releases and learning rate from public sizes.

`dpmesh.defaults.choose` combines them; estimators call `features_for` and `calibration_pays`. No
function here reads a record. mu is the parameter of Gaussian DP, and the noise in a mean of
`effective_records` records falls as 1 / (effective_records * mu). ``docs/learning_rates.md`` has
the measurements behind the constants.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Literal, NamedTuple, get_args

from scipy.sparse import issparse

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
"""Largest number of nodes of a complete graph; more nodes form a random regular graph."""

DEGREE = 8
"""Number of neighbours of a node in the random regular graph."""

HONEST = 2
"""Smallest number of non-colluding sites for which secure aggregation needs less noise per site."""


class TaskConstants(NamedTuple):
    """Constants of the rule for one task."""

    clipping_norm: float
    """Clipping norm of a record's gradient."""
    noise: float
    """Largest standard deviation of the noise in a score, at the end of the path."""
    longest: float
    """Longest path of 100 steps without momentum: the sum of their learning rates."""
    momentum: float
    """Momentum of linear models under secure aggregation."""
    averaged: float
    """Share of the rounds of secure aggregation, the last ones, whose models are averaged."""


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
"""Default number of gradient steps. Gossip has one round more: its first message is public."""

MOST_STEPS = 400
"""Largest number of steps of a linear classifier, if the noise stays below `LITTLE_NOISE`."""

LITTLE_NOISE = 1.0
"""Largest standard deviation of the noise in a score after more than 100 steps."""

MANY = 3000.0
"""Smallest product of effective records and mu for which ``"hats+cosines"`` raise accuracy."""

MOST_NUMBERS = 32
"""Largest number of columns of numbers for which ``"hats+cosines"`` are the default."""

STAGE_SHARE = 0.1
"""Share of mu^2 that each release of a first stage gets."""

STAGE_NOISE = 0.5
"""Largest L2 norm of the noise in the mean of records of norm 1 for which a mean is released."""

MOMENT_NOISE = 0.02
"""Largest eigenvalue of the noise in the second moment of records, a matrix of trace 1, for which a
second moment is released."""

CALIBRATION_SHARE = 0.2
"""Share of mu^2 that the calibration of a regression gets."""

CALIBRATION_NOISE: dict[Method, float] = {"secure": 0.01, "gossip": 0.004}
"""Largest standard deviation of the noise in the moments of a calibration, per record, for which a
regression is calibrated. The moments are of numbers in [-1, 1]. By gossip learning has more noise,
so that the calibration's share of the budget costs more accuracy."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The public sizes of a problem.

    Parameters
    ----------
    nodes
        Number of nodes.
    fewest_records
        Number of records of the smallest node; gossip needs it.
    total_records
        Number of records of all nodes together; secure aggregation needs it.
    dim
        Number of parameters of the model.
    features
        Number of features of a record, for a linear model of dense records. 0 for any other model,
        which has no first stage.
    most_records
        Number of records of the largest node; None if it is not public.
    images
        True if the features are scattering coefficients of images. Only then may a first stage
        release a second moment.

    Raises
    ------
    ValueError
        If `nodes`, `fewest_records` or `dim` is not an integer of at least 1, or `total_records` is
        below `nodes` times `fewest_records`.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.defaults.Sizes(nodes=8, fewest_records=100, total_records=800, dim=20).total_records
    800
    """

    nodes: int
    fewest_records: int
    total_records: int
    dim: int
    features: int = 0
    images: bool = False
    most_records: int | None = None

    def __post_init__(self) -> None:
        every(self, integer, "nodes", "fewest_records", "dim", at_least=1)
        every(self, integer, "features", "most_records")
        every(self, integer, "total_records", at_least=self.nodes * self.fewest_records)

    @classmethod
    def of(cls, problem: LinearProblem | DenseProblem) -> Sizes:
        """Return the sizes of a problem with records in memory."""
        features = 0
        images = False
        if isinstance(problem, LinearProblem) and not issparse(problem.train.features):
            features = problem.train.dim
            images = _has_scattering_features(problem)
        return cls(
            images=images,
            features=features,
            nodes=problem.nodes,
            fewest_records=problem.fewest_records,
            total_records=int(problem.records.sum()),
            dim=problem.dim,
        )

    def effective_records(self, method: Method, colluding: int) -> float:
        """Return the number of records for which central DP has as much noise in the mean.

        In gossip each of n nodes adds noise for the records of the smallest node, and the mean over
        nodes has 1 / sqrt(n) of this noise. In secure aggregation each site adds a share of the
        noise, large enough that the shares of the sites that do not collude suffice.
        """
        if method == "gossip":
            return self.fewest_records * sqrt(self.nodes)
        honest_share = (self.nodes - colluding) / self.nodes
        return self.total_records * sqrt(honest_share)


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
    """Return the default features of a linear classifier: a name that `FeatureMap.of` accepts.

    More features mean more weights, and noise in each. ``"hats+cosines"`` are the default if the
    effective number of records, times mu of the budget, is at least `MANY`; otherwise
    ``"columns"``.

    Parameters
    ----------
    sizes
        Public sizes, of which `dim`, `features` and `images` are not read.
    numbers
        Number of columns of the table that hold numbers or dates.
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
        records *= sqrt(max(1, sizes.nodes - colluding))  # upper bound of `_noise_reduction`
    if records * mu_of(epsilon, delta) >= MANY:
        return "hats+cosines"
    return "columns"


def first_stages(sizes: Sizes, method: Method, strength: float) -> int:
    """Return the number of releases of the first stage.

    0: none. 1: the mean of the records, if its noise is well below the norm of a record. 2: also
    their second moment, for images under secure aggregation, if the largest eigenvalue of its noise
    is far below the moment's trace.

    Parameters
    ----------
    sizes
        Public sizes of the problem.
    method
        Secure aggregation, or gossip: each node then sends its sum to all others, so that there is
        no first stage unless all nodes are neighbours.
    strength
        Effective number of records, times mu of the whole budget.
    """
    if method == "gossip" and sizes.nodes > COMPLETE:
        return 0
    # the norm of the noise in the mean, and about the largest eigenvalue of a moment's noise
    noise = sqrt(sizes.features) * 2 / (sqrt(STAGE_SHARE) * strength)
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
        Number of releases of the first stage.
    calibrate
        True if a regression is calibrated.
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
    """Return True if a regression is calibrated by default.

    It is calibrated if the noise in the calibration is small, and always without noise.

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
    """Return the learning rate for a noise level, by the rule of this module.

    Parameters
    ----------
    noise
        Standard deviation of all noise in a record's score after `rounds` steps of learning rate 1.
    rounds
        Number of steps. No step is longer than a step of the longest path in 100 steps.
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
    """Return the default method: ``"secure"`` (secure aggregation of gradients) or ``"gossip"``.

    Parameters
    ----------
    nodes
        Number of sites. Secure aggregation is chosen if at least 2 of them do not collude.
    epsilon
        Epsilon of the budget. None (no noise) chooses gossip.
    algorithm, colluding
        As in `choose`. An `algorithm` that is not None is checked and returned.

    Raises
    ------
    ValueError
        If an argument is out of its range, or ``"secure"`` is asked for without an epsilon or with
        too few sites.
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
    """Return the default communication graph: complete up to 64 nodes, else random 8-regular.

    Parameters
    ----------
    nodes
        Number of nodes.
    key
        Key that draws a random graph; by default a new key.

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
    """Return the largest mu for which mu-Gaussian DP implies (`epsilon`, `delta`)-DP.

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

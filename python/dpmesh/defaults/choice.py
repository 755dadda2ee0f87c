"""Choice of an algorithm for a privacy budget: `choose` applies the rule of `dpmesh.defaults`.

Estimators, forecasts, baselines and `dpmesh make` call `choose`. It decides on everything but the
noise first (`_Design`), from public sizes alone. `_calibrated_noise` then finds the least noise
multiplier for which the planned releases of this design keep the budget.

Terms: a *first stage* is a private mean (and second moment) of the records, released before
learning; a *calibration* is a sum over all records, released in the last round of a regression.
Each release gets a share of mu squared, the additive budget of Gaussian DP.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import sqrt
from typing import TYPE_CHECKING, Any, get_args

import dpmesh.defaults.rule as rule
from dpmesh._validate import fail, integer, one_of
from dpmesh.accounting import noise_to_sensitivity
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.algorithms.calibrated import Calibrated
from dpmesh.algorithms.federated import FederatedLearning
from dpmesh.algorithms.federated_combination import SecureAggregation
from dpmesh.algorithms.federated_gradients import RecordGradients
from dpmesh.algorithms.federated_server import Average, ServerMomentum
from dpmesh.algorithms.first_stage import FirstStage
from dpmesh.algorithms.gradient_descent import GradientDescent
from dpmesh.defaults.rule import Method, Noise, Sizes, Task, TaskConstants
from dpmesh.defaults.run_sizes import RunSizes
from dpmesh.keys import Key
from dpmesh.privacy.budget import Budget
from dpmesh.privacy.views import EverybodyButPartners
from dpmesh.privacy.views.observers import in_words
from dpmesh.topology import Topology

if TYPE_CHECKING:
    from dpmesh.noise.correlated import BetweenPartners


EVERYBODY = "an adversary who reads all noisy messages"

MIXINGS = 5
"""Gossip steps in each round for pairwise-cancelling noise on a graph that is not complete."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """An algorithm with its network, rounds and noise.

    Parameters
    ----------
    algorithm
        The algorithm, with the least noise that keeps the budget.
    topology
        The communication graph; None for an algorithm without a graph.
    rounds
        Number of rounds.
    view
        Threat model of the budget; None for the threat model of the algorithm's plan.

    Examples
    --------
    >>> import dpmesh as dm
    >>> sizes = dm.defaults.Sizes(nodes=8, fewest_records=100, total_records=800, dim=20)
    >>> choice = dm.defaults.choose(sizes, epsilon=2.0, delta=1e-5, algorithm="gossip")
    >>> type(choice.algorithm).__name__, choice.topology.nodes
    ('GradientDescent', 8)
    """

    algorithm: Any
    topology: Topology | None
    rounds: int
    view: EverybodyButPartners | None = None

    @property
    def sums_gradients(self) -> bool:
        """True if sites add up gradients of records by secure aggregation."""
        sums = getattr(self.algorithm, "secure_sum", None)
        return sums is not None and self.algorithm.unit == "record"


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
    dropouts: int = 0,
    reserve: int | None = None,
    rounds: int | None = None,
    between_parties: bool = False,
    calibrate: bool = False,
    key: Key | None = None,
) -> Choice:
    """Choose algorithm, network, rounds and noise for a budget, by the rule of `dpmesh.defaults`.

    Parameters
    ----------
    sizes
        Public sizes, such as ``Sizes.of(problem)``.
    epsilon, delta
        The budget of the whole run, for replacing one record. An epsilon of None runs without
        noise, for comparison.
    task
        ``"classification"`` (softmax), ``"regression"`` (squared loss, targets in [-1, 1]) or
        ``"counts"`` (the loss ``"poisson"``).
    linear
        True for a linear model. A neural network has no momentum, and 100 steps by the rule.
    algorithm
        ``"secure"``, ``"gossip"``, or None: gossip if there is a `noise` or a `topology`, else the
        choice of `method_for`.
    noise
        ``"BetweenPartners"``: sites that gossip share noise, see `dpmesh.noise.correlated`. The
        budget then holds against all parties except link partners. None for independent noise.
    topology
        Communication graph of gossip; None for the graph of `network`.
    colluding
        Number of sites that may collude: with the server of secure aggregation, or, where partners
        share noise, with an adversary who sees all messages. At least 1 protects each site from any
        single other site.
    dropouts
        Number of sites that secure aggregation may lose during a run. For each, the plan counts one
        more sum of each kind.
    reserve
        Number of sums of gradients that the plan counts in addition to the rounds, for sums that
        fail and are repeated. None counts one for each dropout.
    rounds
        Number of rounds, at least 2; None for the rule's. The path (the sum of the learning rates)
        that the noise allows is divided among the rounds. No learning rate is above the rule's
        largest.
    between_parties
        True for a contract between parties that run on separate machines. Of shared noise, the
        guarantee of a gossip node then counts only the secrets that this node itself shares. Gossip
        has no first stage, since a party may miss a message.
    calibrate
        True to calibrate the predictions of a regression in the last round, see
        `dpmesh.algorithms.Calibrated`. By gossip all nodes must be neighbours.
    key
        Key that draws the graph of more than 64 nodes; by default a new key.

    Raises
    ------
    ValueError
        If a number is out of its range, there are too few sites for a secure sum or for shared
        noise, or an argument does not suit the algorithm.
    """
    algorithm = _method_or_gossip(algorithm, noise, topology)
    method = rule.method_for(sizes.nodes, epsilon, algorithm=algorithm, colluding=colluding)
    network = None
    if method == "gossip":
        network = rule.network(sizes.nodes, key=key) if topology is None else topology
        if dropouts:
            fail("dropouts", "0 by gossip, which goes on from its quorum on", dropouts)
        if reserve:
            fail("reserve", "none by gossip, whose messages are never sent again", reserve)
    shared_noise = None
    if noise is not None and network is not None:
        shared_noise = _partner_noise(noise, network, colluding, star=between_parties)
    one_of("task", task, [*rule.CONSTANTS])
    constants = rule.CONSTANTS[task]
    if calibrate:
        _require_calibration(task, between_parties, network)
    momentum = 0.0
    if method == "secure" and linear:
        momentum = constants.momentum
    most_steps = rule.STEPS
    if task == "classification" and linear:
        most_steps = rule.MOST_STEPS
    steps = most_steps
    if rounds is not None:
        steps = integer("rounds", rounds, at_least=2)
        if method == "gossip":
            steps -= 1  # the first round sends a model that no data has touched
    step_size = constants.longest / rule.STEPS
    stages = 0
    if epsilon is not None:
        mu = rule.mu_of(epsilon, delta)
        records = sizes.effective_records(method, colluding)
        # all nodes must receive the sums of a first stage
        may_miss_messages = method == "gossip" and between_parties
        may_miss_links = topology is not None
        if task != "regression" and not may_miss_messages and not may_miss_links:
            stages = rule.first_stages(sizes, method, mu * records)
        if shared_noise is not None:
            records *= _noise_reduction(shared_noise)
        mu *= sqrt(rule.learning_share(stages, calibrate))
        # standard deviation of the noise in a score at the end, per unit of the path's length
        noise_per_path = 2 * constants.clipping_norm / (records * mu)
        if rounds is None:
            quiet_noise = rule.LITTLE_NOISE * (1 - momentum)
            quiet_steps = int(quiet_noise / (noise_per_path * step_size))
            steps = min(max(rule.STEPS, quiet_steps), most_steps)
        step_size = rule.step_size(steps * noise_per_path / (1 - momentum), task=task)
    design = _Design(
        sizes=sizes,
        constants=constants,
        method=method,
        colluding=colluding,
        dropouts=dropouts,
        reserve=reserve,
        steps=steps,
        step_size=step_size,
        momentum=momentum,
        stages=stages,
        shared_noise=shared_noise,
        calibrate=calibrate,
    )
    noise_multiplier = None
    if epsilon is not None:
        noise_multiplier = _calibrated_noise(design, epsilon, delta)
    return Choice(
        algorithm=design.algorithm(noise_multiplier),
        topology=network,
        rounds=design.rounds,
        view=design.view,
    )


def _require_calibration(task: Task, between_parties: bool, network: Topology | None) -> None:
    """Fail unless this task, on this network, can have a calibration."""
    if task == "classification":
        fail("calibrate", "False for a classifier, which predicts no numbers", True)
    if between_parties:
        fail("calibrate", "False for a contract, which has no such release", True)
    if network is None:
        return
    if network.matrix(0).messages != network.nodes * (network.nodes - 1):
        expected = f"False unless all nodes are neighbours (at most {rule.COMPLETE} of them)"
        fail("calibrate", expected, True)


def _method_or_gossip(
    algorithm: Method | None, noise: Noise | None, topology: Topology | None
) -> Method | None:
    """Return the requested method: gossip if `noise` or `topology` is set."""
    for name, value in (("noise", noise), ("topology", topology)):
        if value is None:
            continue
        if algorithm == "secure":
            fail(name, "None with 'secure', whose sites send shares of noise to a server", value)
        algorithm = "gossip"
    return algorithm


@dataclass(frozen=True, kw_only=True)
class _Design:
    """Settings of a run without the noise multiplier; they depend on public sizes alone.

    Parameters
    ----------
    sizes
        Public sizes of the problem.
    constants
        Constants of the rule for the task.
    method
        Secure aggregation or gossip.
    colluding, dropouts, reserve
        As in `choose`.
    steps, step_size, momentum
        Number of gradient steps, learning rate, and momentum (0 for none).
    stages
        Number of releases of the first stage: 0, 1 (a mean), or 2 (a mean and a second moment).
    shared_noise
        Noise that partners share; None for independent noise.
    calibrate
        True to calibrate predictions in the last round.
    """

    sizes: Sizes
    constants: TaskConstants
    method: Method
    colluding: int
    dropouts: int
    reserve: int | None
    steps: int
    step_size: float
    momentum: float
    stages: int
    shared_noise: BetweenPartners | None
    calibrate: bool

    @property
    def rounds(self) -> int:
        """Number of rounds: the gradient steps, and for gossip the round that sends the start."""
        if self.method == "gossip":
            return self.steps + 1
        return self.steps

    @property
    def view(self) -> EverybodyButPartners | None:
        """Threat model of the budget; None for the threat model of the plan.

        It is stated for noise whose guarantee counts the secrets of all nodes (not `star`).
        """
        if self.shared_noise is None or self.shared_noise.star:
            return None
        return EverybodyButPartners(coalition=self.colluding)

    def algorithm(self, noise_multiplier: float | None) -> AnyAlgorithm:
        """Return the whole algorithm: a first stage, learning and a calibration, as designed.

        Parameters
        ----------
        noise_multiplier
            Noise multiplier of learning; the other releases have noise in proportion. None for no
            noise.
        """
        staged = self._staged(noise_multiplier)
        if not self.calibrate:
            return staged
        calibration_noise = None
        if noise_multiplier is not None:
            calibration_noise = self._noise_of_share(noise_multiplier, rule.CALIBRATION_SHARE)
        moments = Calibrated.moments_like(
            staged,
            sites=self.sizes.nodes,
            records=self.sizes.total_records,
            noise_to_sensitivity=calibration_noise,
        )
        return Calibrated(algorithm=staged, rounds=self.rounds, moments=moments)

    def _staged(self, noise_multiplier: float | None) -> AnyAlgorithm:
        """Return the learning algorithm, after a first stage if the design has one."""
        learning = self._learning(noise_multiplier)
        if not self.stages:
            return learning
        assert noise_multiplier is not None
        stage_noise = self._noise_of_share(noise_multiplier, rule.STAGE_SHARE)
        return FirstStage.before(
            learning,
            sites=self.sizes.nodes,
            records=self.sizes.total_records,
            features=self.sizes.features,
            mean_noise=stage_noise,
            moment_noise=stage_noise if self.stages > 1 else None,
        )

    def _noise_of_share(self, noise_multiplier: float, share: float) -> float:
        """Return the noise-to-sensitivity ratio of one sum with this share of mu squared.

        A release with the noise-to-sensitivity ratio r has mu squared = 1 / r^2. Learning has
        `steps` releases, and `learning_share` of mu squared together.
        """
        learning_share = rule.learning_share(self.stages, self.calibrate)
        return _noise_to_sensitivity(noise_multiplier) * sqrt(learning_share / share / self.steps)

    def _learning(self, noise_multiplier: float | None) -> AnyAlgorithm:
        """Return the learning algorithm alone."""
        if self.method == "gossip":
            return self._gossip(noise_multiplier)
        return self._secure_aggregation(noise_multiplier)

    def _gossip(self, noise_multiplier: float | None) -> GradientDescent:
        """Return decentralized gradient descent on the smallest site's number of records."""
        shared_noise = None
        if self.shared_noise is not None:
            shared_noise = replace(self.shared_noise, rounds=self.rounds)
        return GradientDescent(
            records=self.sizes.fewest_records,
            noise_multiplier=noise_multiplier,
            step_size=self.step_size,
            clipping_norm=self.constants.clipping_norm,
            noise=shared_noise,
        )

    def _secure_aggregation(self, noise_multiplier: float | None) -> FederatedLearning:
        """Return gradient descent with secure aggregation of clipped gradients of all records."""
        dim = self.sizes.dim
        if self.stages > 0:  # a centered record has one more feature, with a weight per output
            outputs = self.sizes.dim // max(self.sizes.features, 1)
            dim += outputs
        optimizer = None
        if self.momentum:
            optimizer = ServerMomentum(self.momentum)
        first_averaged = int(self.steps * (1 - self.constants.averaged)) + 1
        sizes_of_learning = replace(self.sizes, dim=dim)
        sizes = RunSizes(nodes=self.sizes.nodes, rounds=self.steps, data=lambda: sizes_of_learning)
        return FederatedLearning(
            sizes.part(RecordGradients, clipping_norm=self.constants.clipping_norm),
            noise_multiplier=noise_multiplier,
            combination=sizes.part(
                SecureAggregation,
                colluding=self.colluding,
                dropouts=self.dropouts,
                reserve=self.reserve,
            ),
            optimizer=optimizer,
            average=Average(since=first_averaged),
            step_size=self.step_size,
        )


@lru_cache(maxsize=256)
def _calibrated_noise(design: _Design, epsilon: float, delta: float) -> float:
    """Return the least noise multiplier for which a design keeps a budget."""
    budget = Budget(epsilon, delta=delta, view=design.view)
    guess = 1 / _noise_to_sensitivity(1.0)
    try:
        return budget.calibrate(design.algorithm, design.rounds, guess=guess)
    except ValueError as error:
        if design.method == "gossip":
            raise
        hint = "take a larger epsilon, or algorithm='gossip'"
        raise ValueError(f"no secure sum keeps this budget: {hint} ({error})") from error


def _partner_noise(
    noise: Noise, network: Topology, colluding: int, *, star: bool
) -> BetweenPartners:
    """Return pairwise-cancelling noise on the links of a network, for a run of `STEPS` steps.

    Parameters
    ----------
    noise
        The requested kind; only ``"BetweenPartners"`` is accepted.
    network
        The communication graph; partners are its neighbours.
    colluding
        Number of colluding sites.
    star
        See `BetweenPartners`: True for a contract.
    """
    from dpmesh.noise.correlated import BetweenPartners

    if one_of("noise", noise, get_args(Noise)) != "BetweenPartners":
        expectation = (
            "'BetweenPartners': noise in time buys nothing where every round uses all records "
            "(Theorem 2 of docs/privacy/correlated_noise_proofs.md)"
        )
        fail("noise", expectation, noise)
    fewest = integer("colluding", colluding) + rule.HONEST
    if network.nodes < fewest:
        fail("noise", f"None at fewer than {fewest} sites, of which {colluding} collude", noise)
    is_complete = network.matrix(0).messages == network.nodes * (network.nodes - 1)
    sizes = RunSizes(
        nodes=network.nodes, rounds=rule.STEPS + 1, topology=lambda: network, between_parties=star
    )
    mixings = 1 if is_complete else MIXINGS
    return sizes.part(BetweenPartners, mixings=mixings, coalition=colluding)


def _noise_to_sensitivity(noise_multiplier: float) -> float:
    """Return the ratio of noise to sensitivity under the replace-one relation."""
    return noise_to_sensitivity(noise_multiplier, neighboring_relation="replace_one")


def _noise_reduction(shared_noise: BetweenPartners) -> float:
    """Return the factor, usually above 1, by which shared noise disturbs the mean model less.

    The factor compares root mean squares over rounds, at mu = 1 and sensitivity 1. With independent
    noise, each of n nodes adds noise of variance `rows` in each of `rows` rounds. After round k
    the mean over nodes has variance rows * k / n, and over all rounds rows * (rows + 1) / (2 n).
    """
    rows = shared_noise.rows
    assert shared_noise.topology is not None
    independent_noise = sqrt(rows * (rows + 1) / 2 / shared_noise.topology.nodes)
    return independent_noise / shared_noise.mixed_noise(uses=rows)


def threat_model_of(algorithm: object, view: EverybodyButPartners | None = None) -> str:
    """Return the threat model of an algorithm's guarantee, in words."""
    if view is not None:
        return in_words(view)
    sums = getattr(algorithm, "secure_sum", None)
    if sums is None:
        return EVERYBODY
    if sums.colluding == 0:
        colluders = "no site"
    elif sums.colluding == 1:
        colluders = "up to 1 site"
    else:
        colluders = f"up to {sums.colluding} sites"
    return f"the server, which learns only noisy sums over all sites and colludes with {colluders}"

"""The algorithm that the rule chooses, with the noise that a budget needs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import sqrt
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import dpmesh.defaults.rule as rule
from dpmesh._validate import fail, integer, one_of
from dpmesh.accounting import noise_to_sensitivity
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.algorithms.federated import FederatedLearning
from dpmesh.algorithms.federated_combination import SecureAggregation
from dpmesh.algorithms.federated_gradients import RecordGradients
from dpmesh.algorithms.federated_server import Average, ServerMomentum
from dpmesh.algorithms.first_stage import FirstStage, SecondMoments
from dpmesh.algorithms.gradient_descent import GradientDescent
from dpmesh.algorithms.record_sums import RecordSums
from dpmesh.defaults.rule import Constants, Method, Noise, Sizes, Task
from dpmesh.keys import Key
from dpmesh.privacy.budget import Budget
from dpmesh.privacy.views import EverybodyButPartners
from dpmesh.privacy.views.observers import in_words
from dpmesh.topology import Topology

if TYPE_CHECKING:
    from dpmesh.noise.correlated import BetweenPartners


EVERYBODY = "everybody: all noisy messages may be read"

MIXINGS = 5
"""Of each message, where partners share noise and not all nodes are neighbours."""


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

    Examples
    --------
    >>> import dpmesh as dm
    >>> sizes = dm.defaults.Sizes(nodes=8, smallest=100, together=800, dim=20)
    >>> choice = dm.defaults.choose(sizes, epsilon=2.0, delta=1e-5, algorithm="gossip")
    >>> type(choice.algorithm).__name__, choice.topology.nodes
    ('GradientDescent', 8)
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
    dropouts: int = 0,
    rounds: int | None = None,
    between_parties: bool = False,
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
        ``"BetweenPartners"``: sites that gossip share noise, see `dpmesh.noise.correlated`. The
        budget is then kept against everybody except link partners. None for independent noise.
    topology
        The network of sites that gossip; None for `network`.
    colluding
        Sites that may collude with the server of a secure sum, or with who sees all messages where
        partners share noise. At least 1 protects a site from any other one.
    dropouts
        Sites that may be lost during a run of secure sums; each costs one more of each kind.
    rounds
        None: by the rule. Others share the path that noise allows, in steps that are no longer.
    between_parties
        Whether it is for a contract: a node that gossips then counts the secrets of its own
        partners alone, and has no first stage, of which it may miss a row.
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
    method = rule.method_for(sizes.nodes, epsilon, algorithm=algorithm, colluding=colluding)
    links = None
    if method == "gossip":
        links = rule.network(sizes.nodes, key=key) if topology is None else topology
        if dropouts:
            fail("dropouts", "0 by gossip, which goes on from its quorum on", dropouts)
    shared = None
    if noise is not None and links is not None:
        shared = _partners(noise, links, colluding, star=between_parties)
    constants = rule.CONSTANTS[one_of("task", task, [*rule.CONSTANTS])]
    momentum = constants.momentum if method == "secure" and linear else 0.0
    step = constants.longest / rule.STEPS
    most = rule.MOST_STEPS if task == "classification" and linear else rule.STEPS
    steps = most if rounds is None else integer("rounds", rounds, at_least=2)
    steps -= method == "gossip" and rounds is not None
    stages = 0
    if epsilon is not None:
        mu = rule.mu_of(epsilon, delta)
        records = sizes.effective_records(method, colluding)
        alone = method == "gossip" and between_parties  # which may miss rows of others
        if task != "regression" and topology is None and not alone:  # which need not link all sites
            stages = rule.first_stages(sizes, method, mu * records)
        records *= 1.0 if shared is None else _gain(shared)
        mu *= sqrt(1 - stages * rule.STAGE_SHARE)
        in_a_step = 2 * constants.clipping_norm / (records * mu)
        if rounds is None:
            quiet = int(rule.LITTLE_NOISE * (1 - momentum) / (in_a_step * step))
            steps = min(max(rule.STEPS, quiet), most)
        step = rule.step_size(steps * in_a_step / (1 - momentum), task=task)
    own = _Steps(
        sizes, constants, method, colluding, dropouts, steps, step, momentum, stages, shared
    )
    needed = None if epsilon is None else _needed(own, epsilon, delta)
    return Choice(algorithm=own.made(needed), topology=links, rounds=own.rounds, view=own.view)


class _Steps(NamedTuple):
    """What was decided, but for the noise: all of it public."""

    sizes: Sizes
    constants: Constants
    method: Method
    colluding: int
    dropouts: int
    steps: int
    step: float
    momentum: float
    stages: int
    shared: BetweenPartners | None

    @property
    def rounds(self) -> int:
        return self.steps + (self.method == "gossip")

    @property
    def view(self) -> EverybodyButPartners | None:
        if self.shared is None or self.shared.star:  # whose claim is the plan's own
            return None
        return EverybodyButPartners(coalition=self.colluding)

    def made(self, noise_multiplier: float | None) -> AnyAlgorithm:
        """Return the algorithm with this noise."""
        own, sizes = self._learns(noise_multiplier), self.sizes
        if not self.stages:
            return own
        assert noise_multiplier is not None
        dim, rest = sizes.features, 1 - self.stages * rule.STAGE_SHARE
        noise = _relative(noise_multiplier) * sqrt(rest / rule.STAGE_SHARE / self.steps)
        public: Any = {"sites": sizes.nodes, "records": sizes.together}
        public["noise_to_sensitivity"] = noise
        public |= {"colluding": self.colluding, "dropouts": self.dropouts}
        public["secure"] = self.method == "secure"
        moment = SecondMoments(dim=dim * (dim + 1) // 2, **public) if self.stages > 1 else None
        return FirstStage(algorithm=own, mean=RecordSums(dim=dim, **public), moment=moment)

    def _learns(self, noise_multiplier: float | None) -> AnyAlgorithm:
        sizes, own, steps = self.sizes, self.constants, self.steps
        if self.method == "gossip":
            return GradientDescent(
                records=sizes.smallest,
                noise_multiplier=noise_multiplier,
                step_size=self.step,
                clipping_norm=own.clipping_norm,
                noise=self.shared and replace(self.shared, rounds=self.rounds),
            )
        dim = sizes.dim + (self.stages > 0) * sizes.dim // max(sizes.features, 1)
        clip, trusted = own.clipping_norm, {"colluding": self.colluding, "dropouts": self.dropouts}
        return FederatedLearning(
            RecordGradients(clients=sizes.nodes, records=sizes.together, clipping_norm=clip),
            noise_multiplier=noise_multiplier,
            combination=SecureAggregation(dim=dim, rounds=steps, **trusted),
            optimizer=ServerMomentum(self.momentum) if self.momentum else None,
            average=Average(since=int(steps * (1 - own.averaged)) + 1),
            step_size=self.step,
        )


def _relative(noise_multiplier: float) -> float:
    """Return the noise over the sensitivity: one record is replaced."""
    return noise_to_sensitivity(noise_multiplier, neighboring_relation="replace_one")


@lru_cache(maxsize=256)
def _needed(own: _Steps, epsilon: float, delta: float) -> float:
    """Return the noise that a budget needs: it follows from public numbers, and is kept."""
    try:
        return Budget(epsilon, delta=delta, view=own.view).calibrate(
            own.made, own.rounds, guess=1 / _relative(1.0)
        )
    except ValueError as error:
        if own.method == "gossip":
            raise
        hint = "take a larger epsilon, or algorithm='gossip'"
        raise ValueError(f"no secure sum keeps this budget: {hint} ({error})") from error


def _partners(noise: Noise, links: Topology, colluding: int, *, star: bool) -> BetweenPartners:
    """Return the noise that link partners share in a path of `STEPS`."""
    from dpmesh.noise.correlated import BetweenPartners

    if one_of("noise", noise, get_args(Noise)) != "BetweenPartners":
        wanted = "'BetweenPartners': noise in time buys nothing where every round uses all records"
        fail("noise", f"{wanted} (Theorem 2 of docs/privacy/correlated_noise.md)", noise)
    if links.nodes < (fewest := integer("colluding", colluding) + rule.HONEST):
        fail("noise", f"None at fewer than {fewest} sites, of which {colluding} collude", noise)
    meet = links.matrix(0).messages == links.nodes * (links.nodes - 1)
    mixings = 1 if meet else MIXINGS
    own: dict[str, Any] = {"mixings": mixings, "coalition": colluding, "star": star}
    return BetweenPartners(topology=links, rounds=rule.STEPS + 1, **own)


def _gain(shared: BetweenPartners) -> float:
    """Return how many times less noise is left than independent noise leaves in a mean of all."""
    rows = shared.rows
    assert shared.topology is not None
    independent = sqrt(rows * (rows + 1) / 2 / shared.topology.nodes)
    return independent / shared.mixed_noise(uses=rows)


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

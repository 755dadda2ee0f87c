"""Private gossip of quantized states for nonconvex losses (Chen, Wang, Zhang), Algorithm 1.

Every node keeps a state x (its model). In each iteration it adds Gaussian noise n to its state and
sends the quantized result z. Then it moves its state towards the average of its neighbours' z, and
against the mean gradient g of records that it samples without replacement. The symbols are the
paper's. Iterations k = 0, .., K are the rounds of a run, a_ij are the mixing weights, and alpha_K,
beta_K and gamma_K are `step_size`, `consensus_step_size` and `sample_size`:

    y_k^i     = x_k^i + n_k^i,   n_k^i ~ N(0, sigma_k^2)                     step 1
    z_k^i     = Q(y_k^i), sent to the neighbours                             step 2, Q is (3)
    g_k^i     = mean gradient at x_k^i of gamma_K records                    steps 3 and 4, (5)
    x_(k+1)^i = (1 - beta_K) x_k^i + beta_K sum_j a_ij z_k^j - alpha_K g_k^i    step 5, (6)

The equations and the lines of Algorithm 1 are missing from the available text of the paper. They
are reconstructed from its words and proofs, and the numbers of the steps are ours. One thing
differs: x_0 depends on no data, and is sent without noise. If a_ii is not 0, node i's term in the
sum is the z that it sent.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, sqrt
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import dpmesh.kernels as kernels
from dpmesh._privacy_types import Floats, Sensitive
from dpmesh._ragged import Numbers, Ragged
from dpmesh._validate import (
    every,
    fail,
    integer,
    one_of,
    positive,
    positive_or_infinite,
    refuse,
    require_methods,
)
from dpmesh.accounting.papers.quantized import MODES, Mode, next_sensitivity
from dpmesh.algorithms.base import Algorithm, initial_parameters, require_problem
from dpmesh.algorithms.gradients import mean_gradients, require_clipped_records
from dpmesh.algorithms.messages import Message, Relay, Round
from dpmesh.algorithms.worst_case import CROWD_DELTA, AuditSize, Coins, Crowd, Pair
from dpmesh.kernels.draws import without_replacement
from dpmesh.kernels.linear_model import KINKED
from dpmesh.keys import Key, Purpose
from dpmesh.noise.compression import Compressor, Quantizer
from dpmesh.noise.grid import power_of_two
from dpmesh.noise.mechanisms import Gaussian, Mechanism, NoNoise
from dpmesh.noise.rows import CorrelatedRow, check_strategy
from dpmesh.noise.sensitivity import Sensitivity
from dpmesh.privacy.plan import each_round
from dpmesh.privacy.releases import Release
from dpmesh.privacy.views import LossFacts, NotProved, Reaction
from dpmesh.privacy.views.reaction import NO_NOISE
from dpmesh.problems import GradientProblem, LinearProblem
from dpmesh.problems.canaries import HillProblem
from dpmesh.problems.dense import DenseProblem
from dpmesh.schedules import SampleSize, Schedule, at, keep_sample_size, keep_schedules

if TYPE_CHECKING:
    from dpmesh.noise.correlated import CorrelatedGaussian, CorrelatedStrategy


@dataclass(frozen=True)
class QuantizedState:
    """The nodes' un-noised states (models) x_k, shape (nodes, dim), which no node sends."""

    x: Sensitive


class _RoundConstants(NamedTuple):
    """Public numbers of a round: alpha, beta, gamma, its release, and the largest weight decay.

    Above `largest_decay` the sensitivity of `QuantizedGossip.sensitivity` does not hold.
    """

    step_size: float
    consensus_step_size: float
    sample_size: int
    release: Release
    largest_decay: float


@dataclass(frozen=True, kw_only=True)
class QuantizedGossip(Algorithm[QuantizedState, GradientProblem]):
    """Private decentralized SGD by gossip of noisy, quantized models, for nonconvex losses, too.

    In iteration k each node sends z_k = Q(x_k + n_k): its state (model) x_k with Gaussian noise
    n_k, quantized by Q. Then x_(k+1) = (1 - beta) x_k + beta sum_j a_ij z_k^j - alpha g_k, where
    a_ij are the mixing weights and g_k is the mean gradient of sampled records at x_k. Source:
    Chen, Wang and Zhang, Algorithm 1. Their K + 1 is the number of rounds of the run, on which
    their schedules depend: longer runs have smaller steps and larger samples.

    Parameters
    ----------
    step_size
        Learning rate, alpha: a number, or a schedule such as the paper's alpha_K,
        ``HorizonPower(scale=a1, exponent=-alpha, rounds=rounds)``.
    consensus_step_size
        Consensus weight, beta: the weight of received messages. A number, or a schedule such as the
        paper's beta_K, ``HorizonPower(scale=a2, exponent=-beta, rounds=rounds)``. Above 1 nodes
        overshoot, at no privacy cost.
    sample_size
        Sample size of a node in a round: number of records drawn without replacement. An integer,
        or the paper's gamma_K, ``SampleSize(scale=a3, exponent=gamma, rounds=rounds)``. At most the
        number of records of the smallest node.
    noise_std
        Standard deviation sigma_k of the noise in each coordinate, in units of the model, for
        t = k + 1: a number, or a schedule such as ``PowerLaw(scale=s, exponent=zeta)``, which grows
        for zeta > 0. None runs without noise, for comparison.
    compressor
        The paper's Q: ``Quantizer(step)``, or another compressor of `dpmesh.noise`. None sends
        floating-point numbers.
    clipping_norm
        Largest L2 norm of a gradient: of the gradient of one record's loss, without the
        regularizer. Half of the paper's C.
    mode
        Proof of the sensitivity, see `dpmesh.accounting.papers.quantized.sensitivities`.
        ``"safe"``: any loss; gradients are clipped. ``"public_point"``: any loss; gradients are
        clipped and taken at the node's own noisy message z, and the paper's theorem on convergence
        does not apply. ``"paper"``: convex losses of known `smoothness` only; gradients are not
        clipped, since a clipped gradient need not be that of a convex function.
    smoothness
        Lipschitz constant of gradients, L: of the gradient of a record's loss, without the
        regularizer; infinity if unknown.
    copies
        Largest number of nodes that hold the same record. Each of them adds independent noise, so
        that the run costs as much as `copies` runs on one copy.
    grid
        Spacing of a grid, a power of 2. Models are rounded to multiples of it, and the noise is
        discrete Gaussian on the grid, larger by the factor ``1 + grid sqrt(dim) / Delta_k`` to
        cover the rounding (Delta_k: see Guarantee). It should be small beside Delta_k / sqrt(dim),
        else far more noise is needed. A ``Quantizer`` may have a larger step. None for real-valued
        noise.
    noise
        `correlated.BetweenPartners` of `dpmesh.noise` with one mixing: noise that cancels between
        pairs of partners. `noise_std` is then the standard deviation in the guarantee; the noise
        that only the node knows is smaller. None for independent noise.

    Guarantee
    ---------
    All messages together are (epsilon, delta)-DP with the epsilon of ``plan(rounds).cost(delta)``,
    for replacing one record of one node, against an adversary who sees all messages. Composition is
    by Gaussian differential privacy, or by Rényi differential privacy for discrete noise. With
    `noise`, the adversary must not include a link partner of the node.

    Given all earlier messages and the coins of sampling, a record moves its node's x_k by at most
    Delta_k in L2 norm (Lemma 2, corrected). Quantization is post-processing. No amplification by
    sampling is claimed, since a record's effect stays in the state. The un-noised states x are not
    covered: publish messages.

    Examples
    --------
    >>> import dpmesh as dm
    >>> steps = {"step_size": 0.5, "consensus_step_size": 0.5, "sample_size": 20}
    >>> print(dm.QuantizedGossip(noise_std=5.0, **steps).plan(10).cost(delta=1e-5))
    epsilon = 4.42771 (Gaussian differential privacy, exact, mu = 1.00996)
    """

    communication = "gossip"
    messages_need_no_trust = "received rows enter the states of neighbouring datasets alike"

    step_size: float | Schedule
    consensus_step_size: float | Schedule
    sample_size: int | SampleSize
    noise_std: float | Schedule | None
    compressor: Compressor | None = Quantizer(0.01)
    clipping_norm: float = 1.0
    mode: Mode = "safe"
    smoothness: float = inf
    grid: float | None = None
    noise: CorrelatedStrategy | None = None
    copies: int = 1

    def __post_init__(self) -> None:
        every(self, power_of_two, "grid")
        keep_schedules(self, "step_size", "consensus_step_size")
        keep_sample_size(self, "sample_size")
        if self.noise_std is not None:
            keep_schedules(self, "noise_std")
        if self.compressor is not None:
            require_methods(
                "compressor", self.compressor, "a compressor", "compress", "decode", "decode_packet"
            )
        positive("clipping_norm", self.clipping_norm)
        one_of("mode", self.mode, MODES)
        integer("copies", self.copies, at_least=1)
        positive_or_infinite("smoothness", self.smoothness)
        if self.noise is not None:
            check_strategy(self.noise, self)
            if self.noise.correlates_time or self.noise.mixings > 1 or self.grid is not None:
                reason = (
                    "the states keep the effect of earlier records, so temporally correlated noise "
                    "has no benefit, and a second mixing would need another quantization: use "
                    "correlated.BetweenPartners(..) with one mixing, and no grid= but that of the "
                    "noise"
                )
                refuse("noise", reason)

    def mechanism_of(self, t: int) -> Mechanism:
        """Return the noise mechanism of round t, of standard deviation sigma_k with k = t."""
        sensitivity = self._delta(t)
        if self.noise_std is None or sensitivity == 0:
            return NoNoise()
        roundings = self._roundings(t)
        if self._joint is not None:
            return replace(CorrelatedRow.of(self._joint, t - 1), roundings=roundings)
        multiplier = at(self.noise_std, t + 1) / sensitivity
        return Gaussian(multiplier, grid=self.grid, roundings=roundings)

    def _roundings(self, t: int) -> float:
        """Return a bound on the accumulated roundings of a state, in roundings of one number.

        A round has 3 roundings. Each round multiplies earlier ones by |1 - beta|, so that their sum
        is at most 3 / (1 - |1 - beta|).
        """
        contraction = 1 - abs(1 - at(self.consensus_step_size, t))
        if contraction <= 0:
            return 3 * t
        return 3 * min(t, 1 / contraction)

    def sensitivity(self, t: int) -> Sensitivity:
        """Return the L2 sensitivity Delta_k of a node's state in round t, with k = t."""
        if t == 0:
            return Sensitivity(0.0, "l2", "x_0 does not depend on the data")
        reason = "Delta_k, one record replaced (Lemma 2, corrected)"
        return Sensitivity(self._delta(t), "l2", reason)

    def release_of(self, t: int) -> Release:
        """Return the release of round t: the noisy states x + n before quantization."""
        if t not in self._releases:
            self._releases[t] = Release(t, self.mechanism_of(t), self.sensitivity(t))
        return self._releases[t]

    @cached_property
    def _releases(self) -> dict[int, Release]:
        """Cache of `release_of`, by round."""
        return {}

    def _constants_of(self, t: int) -> _RoundConstants:
        """Return the public numbers of round t."""
        constants = self._constants_by_round.get(t)
        if constants is None:
            alpha = at(self.step_size, t + 1)
            beta = at(self.consensus_step_size, t + 1)
            constants = _RoundConstants(
                step_size=alpha,
                consensus_step_size=beta,
                sample_size=at(self.sample_size, t + 1),
                release=self.release_of(t),
                largest_decay=self._largest_decay(alpha, beta),
            )
            self._constants_by_round[t] = constants
        return constants

    @cached_property
    def _constants_by_round(self) -> dict[int, _RoundConstants]:
        """Cache of `_constants_of`, by round."""
        return {}

    @cached_property
    def _joint(self) -> CorrelatedGaussian | None:
        """Correlated noise of all rounds as one joint release; None if noise is independent."""
        if self.noise is None or self.noise_std is None:
            return None
        stds = [at(self.noise_std, k + 1) for k in range(1, self.noise.rounds)]
        return self.noise.release_of_size(stds, self.sensitivities(self.noise.rounds)[1:])

    def reaction(self, rounds: int, problem: LinearProblem | LossFacts) -> Reaction | NotProved:
        """Return bounds on how far x_(k+1) moves with a record and with received messages.

        In x_(k+1) = (1 - beta) x + beta sum_j a_ij z^j - alpha g, a record moves g by at most
        2 L / gamma in a round. Its earlier effects stay in the un-noised x, by the factor
        `own_state` of the `Reaction`.

        Raises
        ------
        ValueError
            If there is a grid, and the number of parameters is unknown.
        """
        facts = LossFacts.of(problem)
        quantizer = self.compressor
        if self.noise_std is None:
            return NO_NOISE
        if not (
            quantizer is None or (isinstance(quantizer, Quantizer) and quantizer.step == self.grid)
        ):
            reason = (
                "rounding may part two unseen messages by a whole step; use compressor=None, or a "
                "Quantizer of the grid's own step"
            )
            return NotProved(reason=reason)
        alpha, beta, gamma = (
            np.array([at(schedule, t + 1) for t in range(rounds)], dtype=np.float64)
            for schedule in (self.step_size, self.consensus_step_size, self.sample_size)
        )
        lipschitz_bounds = self._own_lipschitz(facts, alpha, beta)
        if isinstance(lipschitz_bounds, NotProved):
            return lipschitz_bounds
        own_state, own_message = lipschitz_bounds
        if self.grid is not None and facts.dim is None:
            fail("dim", "the number of parameters, which rounding to a grid adds up over", None)
        sensitivity = np.zeros(rounds)  # the first message depends on no data
        sensitivity[1:] = (alpha * 2 * self.clipping_norm / gamma)[:-1]
        noise = np.zeros(rounds)
        noise[1:] = [at(self.noise_std, t + 1) for t in range(1, rounds)]
        return Reaction(
            sensitivity=sensitivity,
            noise=noise,
            lipschitz=beta,
            own_state=own_state,
            own_message=own_message,
            distribution="gaussian" if self.grid is None else "discrete_gaussian",
            rounding=(self.grid or 0.0) * sqrt(facts.dim or 0),
        )

    def _own_lipschitz(
        self, facts: LossFacts, alpha: Numbers, beta: Numbers
    ) -> tuple[Numbers, Numbers | None] | NotProved:
        """Return `own_state`, shape (rounds,), and `own_message` of the algorithm's `Reaction`.

        A record's gradient is the gradient of a convex loss of the smoothness in `facts`, or it is
        Lipschitz with the constant `smoothness`.
        """
        decay = facts.regularization
        loss_smoothness = facts.smoothness
        stated = self.smoothness
        is_less_smooth = facts.loss in KINKED or stated < loss_smoothness < inf
        if self.mode != "paper" and stated < inf and is_less_smooth:
            return NotProved(reason="the losses are less smooth than `smoothness` states")
        if self.mode == "paper":
            if (alpha * (loss_smoothness + decay) > 2 * (1 - beta)).any():
                reason = "step_size (smoothness + regularization) exceeds 2 (1 - "
                return facts.not_proved(None) or NotProved(reason=f"{reason}consensus_step_size)")
            return facts.not_proved(None) or (1 - beta, None)
        low, high = decay - stated, decay + stated
        if self.mode == "safe":
            if stated == inf:
                return NotProved(reason="mode 'safe' needs a finite smoothness")
            return np.maximum(abs(1 - beta - alpha * low), abs(1 - beta - alpha * high)), None
        refused = facts.not_proved(self.clipping_norm)
        if refused is None:
            low = decay
            high = decay + loss_smoothness
        elif stated == inf:
            return refused
        return abs(1 - beta), np.stack([alpha * low, alpha * high], axis=1)

    def leaking_data(self, size: AuditSize) -> tuple[Pair, Crowd]:
        """Return problems for audits: models at a maximum of the loss, which a canary pushes away.

        A node has as many records as it samples, so that it always samples the canary. The states
        of the two problems drift further apart with each round. The model has one parameter.
        """
        curvature = 0.0
        if self.mode == "safe":
            curvature = min(self.smoothness, 1e6)
        pull = self.clipping_norm
        if self.mode != "paper":
            pull *= 1e6

        def problem_of(coins: Coins) -> HillProblem:
            records = at(self.sample_size, 1)
            return HillProblem(coins=coins, records=records, pull=pull, curvature=curvature)

        rounds = size.rounds or 6
        pair = Pair(
            algorithm=self,
            problem=problem_of(np.array([True, False])),
            neighbor=problem_of(np.array([False, False])),
            rounds=rounds,
            delta=size.delta_or(1e-5),
            score=_drift,
            silent=True,
        )
        crowd = Crowd(
            algorithm=self,
            problem_of=problem_of,
            canaries=size.canaries,
            rounds=rounds,
            delta=CROWD_DELTA,
            silent=True,
        )
        return pair, crowd

    def next_sensitivity(self, sensitivity: float, k: int) -> float:
        """Return the next L2 sensitivity Delta_(k+1), given Delta_k (Lemma 2).

        Raises
        ------
        ValueError
            In mode ``"paper"``, where its conditions do not hold.
        """
        return next_sensitivity(
            sensitivity,
            step_size=at(self.step_size, k + 1),
            consensus_step_size=at(self.consensus_step_size, k + 1),
            gradient_bound=2 * self.clipping_norm,
            sample_size=at(self.sample_size, k + 1),
            mode=self.mode,
            smoothness=self.smoothness,
        )

    def sensitivities(self, rounds: int) -> Numbers:
        """Return the L2 sensitivities Delta_0, .., Delta_(rounds - 1), shape (rounds,)."""
        return np.array([self._delta(k) for k in each_round(rounds)])

    def _delta(self, k: int) -> float:
        """Return Delta_k, the L2 sensitivity of a node's x_k to one record, given all messages."""
        deltas = self._deltas
        for last in range(len(deltas) - 1, k):
            deltas[last + 1] = self.next_sensitivity(deltas[last], last)
        return deltas[k]

    @cached_property
    def _deltas(self) -> dict[int, float]:
        """Cache of `_delta`: Delta_0, Delta_1, .. without gaps."""
        return {0: 0.0}

    def init(self, problem: GradientProblem, key: Key) -> QuantizedState:
        """Return the state before round 0: all nodes at the same initial model."""
        require_problem(self, problem, "initial", "records_of", "gradient", "objective")
        if self.mode == "paper" and isinstance(problem, DenseProblem):
            expected = f"'safe' or 'public_point' for a {type(problem).__name__}"
            fail("mode", f"{expected}, whose loss need not be convex", "'paper'")
        self._check(problem)
        x = initial_parameters(problem, key, problem.nodes)
        if self.mode != "paper":  # which does not clip
            require_clipped_records(problem, x, self.clipping_norm)
        return QuantizedState(Sensitive(x))

    def round(
        self, state: QuantizedState, t: int, problem: GradientProblem, key: Key
    ) -> Round[QuantizedState]:
        """Send z_k = Q(x_k + n_k), then move towards what arrived and against the gradient."""
        alpha, beta, _, release, largest_decay = self._constants_of(t)
        point: Floats = state.x
        if problem.regularization > largest_decay:
            expected = "at most 2 (1 - consensus_step_size) / step_size"
            less = " - smoothness" if self.mode == "paper" else ""
            fail("regularization", f"{expected}{less} = {largest_decay:g}", problem.regularization)
        if self.mode == "public_point":
            point = yield Message(state.x, release, self.compressor, is_sent=False)
            received = yield Relay()
        else:
            received = yield Message(state.x, release, self.compressor)
        bound = None if self.mode == "paper" else self.clipping_norm
        g = mean_gradients(problem, point, self.sample(t, problem, key), clipping_norm=bound)
        x = kernels.weighted_sum((1 - beta, state.x), (beta, received), (-alpha, g))
        return QuantizedState(Sensitive(x))

    def sample(self, k: int, problem: GradientProblem, key: Key) -> Ragged:
        """Return gamma_K random records of each node, without replacement (step 3).

        Which records are drawn must stay secret. The result is ``(indptr, indices)``.
        """
        records = problem.records_of(np.arange(problem.nodes))
        gamma = self._constants_of(k).sample_size
        return without_replacement(records, gamma, key.stream(Purpose.SAMPLE, k))

    def losses(self, state: QuantizedState, t: int, problem: GradientProblem, key: Key) -> Numbers:
        """Return each node's loss at x_k on the records that it samples."""
        return problem.objective(state.x, self.sample(t, problem, key))

    def parameters(self, state: QuantizedState) -> Floats:
        """Return the nodes' un-noised states x, shape (nodes, dim): no guarantee covers them."""
        return state.x

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions of the guarantee: secret samples, and the losses' properties."""
        sentences = ["which records a node samples stays secret", *super().assumptions]
        if self.mode == "paper":
            sentences.append("every record's loss is convex")
            sentences.append(f"no record's gradient is longer than {self.clipping_norm:g}")
        if self.smoothness < inf:
            sentences.append(f"every record's gradient is {self.smoothness:g}-Lipschitz")
        return tuple(sentences)

    def _largest_decay(self, alpha: float, beta: float) -> float:
        """Return the largest weight decay for which the sensitivity is proved.

        With more, decay (and in mode ``"paper"`` curvature) would multiply the difference of two
        neighbouring states by more than |1 - beta|.
        """
        if self.mode == "public_point" or alpha == 0:
            return inf
        smoothness = self.smoothness if self.mode == "paper" else 0.0
        return max(0.0, 2 * (1 - beta) / alpha - smoothness)

    def _check(self, problem: GradientProblem) -> None:
        """Raise a ValueError unless a problem has the properties that the sensitivity assumes."""
        indptr, records = problem.records_of(np.arange(problem.nodes))
        numbers, counts = np.unique(records, return_counts=True)
        if (counts > 1).any():
            got = f"record {numbers[counts.argmax()]} more than once"
            fail("problem", "each record at one node, under a number of its own", got)
        fewest = int(np.diff(indptr).min())
        expected = at(self.sample_size, 1)
        if expected > fewest:
            fail("sample_size", f"at most {fewest}, the records of the smallest node", expected)
        if self.mode == "public_point" or not isinstance(problem, LinearProblem):
            return
        if problem.loss in KINKED and self.smoothness < inf:
            kink = f"infinity, since the {problem.loss} loss has a kink"
            fail("smoothness", kink, self.smoothness)
        if problem.feature_norm is not None:
            constants = problem.constants()
            if self.smoothness + problem.regularization < constants.smoothness:
                record_smoothness = constants.smoothness - problem.regularization
                fail("smoothness", f"at least the problem's {record_smoothness:g}", self.smoothness)
            if self.mode == "paper" and self.clipping_norm < constants.loss_lipschitz:
                wanted_norm = f"at least the problem's {constants.loss_lipschitz:g} in mode 'paper'"
                fail("clipping_norm", wanted_norm, self.clipping_norm)


def _drift(run: Any) -> float:
    """Return an audit's score: the log-likelihood ratio of a full drift, but for a constant.

    It is the sum of the canary node's released models, each weighted by the sensitivity over the
    variance of its noise.
    """
    total = 0.0
    for release, noise_scale, _, _, values, *_ in run.passages:
        if noise_scale > 0:
            total += float(values[0].sum()) * release.sensitivity.bound / noise_scale**2
    return total

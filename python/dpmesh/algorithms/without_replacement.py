"""Decentralized private SGD without replacement (Jin, He, Dai), Algorithm 1.

Each node keeps a private local model w^L, and all nodes know a global model w^G. Every mini-batch D
of a node's records is used once. Within a step (round) t the nodes act one after the other, in
random order, and a controller decides which model each of them updates. The symbols are the
paper's, except that t counts from 0, as rounds do in this package; N_t is the noise:

    Local:   w_(t+1)^L = w_t^L - 2 eta_t grad f_D(w_t^L)
    Global:  w_(t+1)^G = (w_t^G + w_t^L) / 2 - eta_t (grad f_D(w_t^G) + N_t)          (5)
             w_(t+1)^L = w_(t+1)^G                                                    (6)

One-vs-all classification with K classes has K such pairs of models in each node, on the same
mini-batches, with separate decisions. This module differs from the paper where the paper needs
repair:

- The standard deviation in Theorem 2 is the one of the product eta_t N_t.
- A record affects K releases, not one, and more if several nodes hold it. The noise covers all of
  them together.
- Lemma 4 requires steps of at most 1 / (2 mu). The steps 1 / (a gamma t) of Theorem 4 exceed this
  throughout the paper's runs; `theorem_4_steps` of `dpmesh_papers.bounds` starts the same schedule
  late enough.
- Algorithm 1 does not project, although its constants need a bounded model: see `radius`.
- Theorem 2 does not cover decisions that depend on private data. The default controller uses no
  data, and the privacy report names controllers that do.

With *random allocation* each record draws secretly which mini-batch uses it: see `AllocatedPass`. A
*pass* is the run of all mini-batches of a node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, sqrt
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy  # its submodules are imported on first use

import dpmesh.kernels as kernels
from dpmesh._privacy_types import Floats, Released, Sensitive
from dpmesh._ragged import Flags, Indices, Numbers, Ragged, slices
from dpmesh._validate import every, fail, integer, one_of, positive, probability, require_methods
from dpmesh.accounting import analytic_gaussian_noise_to_sensitivity
from dpmesh.accounting.papers import without_replacement as claims
from dpmesh.algorithms.allocation import (
    SECRET_ROUNDS,
    BatchSampling,
    allocated_noise,
    check_sampling,
    check_sizes,
    dominating,
    expected_sizes,
)
from dpmesh.algorithms.base import KNOWN_TO_ALL, Algorithm, initial_parameters, require_problem
from dpmesh.algorithms.controllers import (
    PRIVATE_DECISIONS,
    Actions,
    AlwaysGlobal,
    AnyController,
    FixedController,
    Observation,
    RandomGlobal,
)
from dpmesh.algorithms.gradients import gradient_sums, mean_gradients, require_each_record_once
from dpmesh.algorithms.messages import Message, Round
from dpmesh.algorithms.worst_case import AuditSize, Crowd, Pair, opposed_batches
from dpmesh.data import Dataset
from dpmesh.kernels import LinearModel
from dpmesh.keys import Key, Purpose
from dpmesh.noise.mechanisms import Gaussian, Mechanism, NoNoise
from dpmesh.noise.rows import CorrelatedRow, check_strategy
from dpmesh.noise.sensitivity import Sensitivity
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release
from dpmesh.privacy.sampling import RandomAllocation
from dpmesh.privacy.views import LossFacts
from dpmesh.problems import Constants, LinearProblem, Problem
from dpmesh.problems.dense import DenseProblem
from dpmesh.schedules import Schedule, at, keep_schedules

if TYPE_CHECKING:
    from dpmesh.noise.correlated import CorrelatedGaussian, CorrelatedStrategy

ANNOUNCEMENT_BITS = 64
"""Bits that each other node receives after a global update of a model: step and node index."""

FAILURE = 0.1
"""Fraction of delta for the probability that a large random batch makes a local step expansive."""

Calibration = Literal["analytic", "classical", "paper"]
"""Calibration of the noise: see `WithoutReplacement`."""

Decisions = Literal["apart", "together"]
"""Decisions for each model of a node, or one decision for all of its models."""

ROUNDED_STEPS = (
    "the rounding of local steps does not move neighbouring datasets apart (take float64 records "
    "to make it negligible)"
)
"""Assumption about local models, which are rounded in every step, for privacy reports."""


@dataclass(frozen=True, kw_only=True)
class AllocatedPass:
    """One pass over records, each of which draws secretly the mini-batch that uses it.

    The decisions between local and global steps are drawn before the run, since the noise depends
    on them.

    Parameters
    ----------
    steps
        Number of mini-batches of each node, which is the number of steps.
    controller
        Controller that decides between local and global steps.
    seed
        Seed of the controller's public coins.
    nodes
        Number of nodes.
    failure
        Probability, allowed for each allocation with local steps, that a local step expands.
    """

    steps: int
    controller: FixedController
    seed: int
    nodes: int
    failure: float

    @cached_property
    def is_global(self) -> Flags:
        """True for global steps, shape (steps, nodes), or (steps, 1) if all nodes decide alike."""
        key = Key.seeded(self.seed)
        shape = (self.nodes, 1)  # one decision for all models of a node
        decisions = [self.controller.choose(shape, t, key)[:, 0] for t in range(self.steps)]
        is_global = np.array(decisions)
        first_node = is_global[:, :1]
        if (is_global == first_node).all():
            return first_node
        return is_global

    def global_nodes(self, step: int, nodes: Indices) -> Flags:
        """Return True for each of these nodes that makes a global step, shape (nodes,)."""
        decisions = self.is_global[step]
        if decisions.size == 1:
            return np.repeat(decisions, len(nodes))
        decisions_of_nodes: Flags = decisions[nodes]
        return decisions_of_nodes

    @cached_property
    def allocations(self) -> tuple[RandomAllocation | None, ...]:
        """Allocation of records to the releases of each column of `is_global`; None if no release.

        A record affects the first release at or after its mini-batch. The share of a release is the
        probability that a record affects it. A record whose mini-batch comes after the last release
        affects none, since the local model is reset at the end of the pass.
        """
        failure = self.failure
        if self.is_global.all():
            failure = 0.0  # only local steps can expand; all nodes have an equal `failure`
        return tuple(self._allocation(column, failure) for column in self.is_global.T)

    def _allocation(self, node_is_global: Flags, failure: float) -> RandomAllocation | None:
        """Return the allocation of a node, whose global steps are True, shape (steps,)."""
        if node_is_global.all():
            return RandomAllocation(rounds=self.steps, failure=failure)
        global_steps = np.flatnonzero(node_is_global)
        if global_steps.size == 0:
            return None
        mini_batches_of_release = np.diff(global_steps, prepend=-1)
        shares = mini_batches_of_release / self.steps
        return RandomAllocation(shares=tuple(shares.tolist()), failure=failure)

    def noise(self, epsilon: float, delta: float, copies: int) -> Mechanism:
        """Return the noise that is (epsilon, delta)-DP for the records of every node.

        It is calibrated to an allocation at least as unequal as each node's.
        """
        allocations = [allocation for allocation in self.allocations if allocation is not None]
        if not allocations:
            return NoNoise()
        return allocated_noise(dominating(allocations), epsilon, delta, copies=copies)

    def expansions(
        self, records: Indices, step_sizes: Sequence[float], constants: Constants
    ) -> Floats:
        """Return a bound on the probability that a local step of a node expands, shape (nodes,).

        A step is expansive if it increases the distance of two local models. The step is 2 eta
        times the sum over a batch divided by the expected size h. It is not expansive if at most
        ``h (1 / eta - lambda) / kappa`` other records are in the batch; their number has a binomial
        distribution (``docs/privacy/random_allocation_proof.md``).

        Parameters
        ----------
        records
            Number of records of each node, shape (nodes,).
        step_sizes
            Learning rate eta of each step, shape (steps,).
        constants
            Constants of one model. Without the regularizer lambda its losses have smoothness kappa.
        """
        decay = constants.strong_convexity
        kappa = constants.smoothness - decay
        allowed_share = (1 / np.asarray(step_sizes) - decay) / kappa  # of the expected size h
        counts, index_of_node = np.unique(records, return_inverse=True)
        expected_size = counts[:, np.newaxis] / self.steps
        other_records = counts[:, np.newaxis] - 1
        allowed = np.clip(np.floor(expected_size * allowed_share), 0, other_records)
        tails = np.where(
            allowed < other_records,
            scipy.special.bdtrc(allowed, other_records, 1 / self.steps),
            0.0,
        )
        is_local = ~self.is_global.T
        return np.asarray((tails[index_of_node] * is_local).sum(axis=1), dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class WithoutReplacementState:
    """State of the nodes before a step, for M nodes with K models of d parameters.

    Parameters
    ----------
    local
        Local models w_t^L, shape (M, K, d), which no node sends.
    released
        Global models w_t^G, shape (K, d).
    used
        Number of mini-batches that each node has used, shape (M,), for the nodes of all processes.
    largest_step
        Largest learning rate since the node's last global update of the model, shape (M, K), for
        Lemma 4; 0 if there was no step since.
    controller
        State of the controller.
    """

    local: Sensitive
    released: Released = field(metadata=KNOWN_TO_ALL)
    used: Indices = field(metadata=KNOWN_TO_ALL)
    largest_step: Numbers
    controller: Any


@dataclass(frozen=True, kw_only=True)
class WithoutReplacement(Algorithm[WithoutReplacementState, LinearProblem]):
    """Decentralized private SGD with a token, using each record in one mini-batch only.

    Each node has a local model, and all nodes know a global model. In a step each acting node
    takes its next mini-batch. A controller decides on a local step, which the node keeps to itself,
    or a global step: the node updates the global model with noise, sends it to all nodes, and
    restarts its local model from it. Source: Jin, He and Dai, Algorithm 1, whose symbols are used
    here; the module states the equations and what differs.

    Parameters
    ----------
    epsilon
        Epsilon of each record over the whole run; None runs without noise, for comparison.
    delta
        Delta of each record over the whole run, in (0, 1); the paper has 1 / n^2, for n records.
    models
        Number K of models of a node: one per class of the problem (one-vs-all), or 1.
    batch_size
        Number b of records in a mini-batch.
    step_size
        Learning rate eta_t for t = 1, 2, ..: a number or a schedule, at most 1 / (2 mu), where mu
        is the smoothness of the objective.
    controller
        Rule that chooses between a local and a global step, of `dpmesh.algorithms.controllers`. The
        default is global with probability 0.05, by public coins. `dpmesh_papers.deep_q.DeepQ` is
        the paper's Algorithm 2.
    calibration
        ``"analytic"``: the least Gaussian noise for epsilon and delta. ``"classical"``: the formula
        of Theorem 1. ``"paper"``: that formula for each single release, as if a record were in one
        release only; the report then states the true, larger epsilon.
    copies
        Largest number of nodes that hold the same record. No node may hold it twice: two copies
        could move the same release together. The paper's experiments give each node all records.
    radius
        L2 radius of the ball around 0 onto which local models, and global models after their
        noise, are projected, each of the K models separately; half of the paper's R. None for no
        projection.
    arrival_rate
        Probability that a node acts in a step, by a public coin. With 1 all nodes act; less
        simulates asynchronous nodes.
    public_data
        Public records on which a controller may evaluate the global model; None for none.
    clipping_norm
        Largest L2 norm L of a record's gradient of one model; all K models together are clipped to
        sqrt(K) L. It allows models that are not linear, and requires `AlwaysGlobal`: local steps
        are non-expansive (Lemma 4) for convex, smooth losses alone. None for linear models, whose
        gradients have a known bound.
    sampling
        ``"arrival"``: mini-batches of `batch_size` in the order of a node's records.
        ``"allocation"`` (random allocation): each record draws secretly, before the run, one of
        ``records // batch_size`` mini-batches. They have random sizes, and their sums are divided
        by the expected size. The more releases a node makes, the smaller is the noise at the same
        epsilon. Global steps must be known before the run: `AlwaysGlobal`, `Periodic` or
        `RandomGlobal`.
    records
        Smallest number of records of a node, a public number; for ``"allocation"`` only.
    decisions
        ``"apart"``: a decision for each model of a node. ``"together"``: one decision for all
        models of a node, as ``"allocation"`` requires.
    nodes
        Number of nodes, required by ``"allocation"`` with `RandomGlobal`: the node whose records
        are shared out most unequally among its releases determines the noise.
    decisions_seed
        Seed of the public coins of `RandomGlobal` with ``"allocation"``.
    noise
        `correlated.InTime` of `dpmesh.noise` (temporally correlated noise), made for
        ``topology=None``; each node's noise cancels part of that of its earlier updates. It
        requires `AlwaysGlobal` and an `arrival_rate` of 1. None for independent noise.

    Guarantee
    ---------
    All global models of a run together are (epsilon, delta)-DP for replacing one record with all
    its copies, against an adversary who sees all of them (Theorem 2, by exact Gaussian
    composition). Decisions must not depend on private data without noise: the report names a
    controller whose decisions do. Local models, and metrics made from them, are not covered.

    The proof: given all earlier releases, a record moves exactly one release of each model, the
    first after its mini-batch. It moves it by at most Delta, the maximum of 2 eta L / b over the
    steps since the node's last release (Lemma 4), since local steps are non-expansive and a global
    step replaces the local model (6). So a record moves K `copies` releases, together as far as one
    Gaussian release of L2 sensitivity sqrt(K copies) Delta. The number of releases has no privacy
    cost: the ledger composes rounds in parallel, each with all that a record can move.

    With ``"allocation"``, all releases of a node are one event of random allocation
    (``docs/privacy/random_allocation_proof.md``). Its delta includes the probability of batches so
    large that local steps expand, and a pass ends with a global step. With `InTime` noise, a record
    is in one update of its node (Theorem 1 of ``docs/privacy/correlated_noise_proofs.md``); the
    noise of other nodes is independent. With a `NoisyLoss`, a controller decides by noisy answers.
    A record is in one of them, too, and the noise of both together keeps epsilon and delta
    (``docs/algorithms``).

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.WithoutReplacement(epsilon=1.0, batch_size=50).epsilon
    1.0
    """

    communication = "token"
    messages_need_no_trust = "a holder projects the model that it received before it uses it"
    view_refusal = "every node receives the global model after each update"
    counts_copies = True
    public_coins = frozenset({Purpose.INIT, Purpose.SAMPLE, Purpose.CONTROLLER})

    epsilon: float | None = 1.0
    delta: float = 1e-5
    models: int = 1
    batch_size: int = 50
    step_size: float | Schedule = 0.1
    controller: AnyController = RandomGlobal(0.05)
    calibration: Calibration = "analytic"
    copies: int = 1
    radius: float | None = None
    arrival_rate: float = 1.0
    public_data: Dataset | None = field(default=None, repr=False)
    clipping_norm: float | None = None
    sampling: BatchSampling = "arrival"
    records: int | None = None
    decisions: Decisions = "apart"
    nodes: int | None = None
    decisions_seed: int = 0
    noise: CorrelatedStrategy | None = None

    def __post_init__(self) -> None:
        every(self, positive, "epsilon", "radius", "clipping_norm")
        every(self, integer, "models", "batch_size", "copies", "nodes", at_least=1)
        integer("decisions_seed", self.decisions_seed)
        probability("delta", self.delta, zero=False, one=False)
        probability("arrival_rate", self.arrival_rate, zero=False)
        keep_schedules(self, "step_size")
        require_methods("controller", self.controller, "a controller", "init", "learn", "decide")
        one_of("calibration", self.calibration, ("analytic", "classical", "paper"))
        if self.controller.noisy_loss is not None and self.calibration != "analytic":
            fail("calibration", "'analytic', which noisy losses need", repr(self.calibration))
        if self.public_data is not None:
            require_methods("public_data", self.public_data, "a Dataset, or None", "take")
        if self.clipping_norm is not None and not isinstance(self.controller, AlwaysGlobal):
            expected = "AlwaysGlobal() with a clipping_norm (local steps need convex losses)"
            fail("controller", expected, self.controller)
        check_sampling(self.sampling, self.records, self.batch_size, self.delta)
        one_of("decisions", self.decisions, ("apart", "together"))
        if self.decisions == "together" and not isinstance(self.controller, FixedController):
            fail("decisions", "'apart' for a controller that learns", repr(self.decisions))
        if self.noise is not None:
            self._check_noise(self.noise)
        if self.sampling == "allocation":
            self._check_allocation()

    def leaking_data(self, size: AuditSize) -> tuple[Pair, Crowd]:
        """Return problems for audits: a node's records oppose one canary, or one per release.

        Raises
        ------
        ValueError
            If `radius` is None.
        """
        if self.radius is None:
            fail("algorithm", "one with a radius", None)
        return opposed_batches(self, size)

    @property
    def releases_decide(self) -> bool:
        """True if the controller decides by released models or noisy losses, not coins alone."""
        return not isinstance(self.controller, FixedController)

    @cached_property
    def mechanism(self) -> Mechanism:
        """Gaussian mechanism on all releases that a record affects together, over Delta."""
        if self.epsilon is None:
            return NoNoise()
        if self.allocated is not None:
            return self.allocated.noise(self.epsilon, self.delta, self.copies)
        if self.calibration == "analytic":
            query = self.controller.noisy_loss
            budget_share = 1.0
            if query is not None:
                budget_share -= query.budget_share
            return Gaussian(self._total_multiplier / sqrt(budget_share))
        multiplier = claims.classical_noise_std(
            target_epsilon=self.epsilon, target_delta=self.delta, sensitivity=1.0
        )
        if self.calibration == "paper":
            multiplier /= self.sensitivity(0).bound
        return Gaussian(multiplier)

    @cached_property
    def _query(self) -> tuple[Mechanism, Sensitivity] | None:
        """Mechanism and sensitivity of a `NoisyLoss`, over bound / b; None without such a query."""
        query = self.controller.noisy_loss
        if query is None:
            return None
        reason = f"{self.copies} copies of a record, each in units of bound / b, one loss replaced"
        sensitivity = Sensitivity(sqrt(self.copies), "l2", reason)
        if self.epsilon is None:
            return NoNoise(), sensitivity
        return Gaussian(self._total_multiplier / sqrt(query.budget_share)), sensitivity

    @property
    def _total_multiplier(self) -> float:
        """Noise over sensitivity of one Gaussian release that is (epsilon, delta)-DP, 1 / mu."""
        assert self.epsilon is not None
        return analytic_gaussian_noise_to_sensitivity(
            target_epsilon=self.epsilon, target_delta=self.delta
        )

    def sensitivity(self, t: int) -> Sensitivity:
        """Return the joint L2 sensitivity of all releases that a record affects, over Delta.

        Delta is the `Message.scale_factor` of a release: see the guarantee of the class.
        """
        if self.allocated is not None:
            reason = f"{self.models} models in units of max 2 eta L / b, b the expected size"
            return Sensitivity(sqrt(self.models), "l2", reason)
        return Sensitivity(
            sqrt(self.models * self.copies),
            "l2",
            f"{self.models} models x {self.copies} copies of a record, each in units of "
            "max 2 eta L / b since the node's last release (Lemma 4)",
        )

    @property
    def assumptions(self) -> tuple[str, ...]:
        """Assumptions about the controller's decisions and the rounding of local steps."""
        assumed = list(self.controller.assumptions)
        if not self.controller.public:
            assumed.insert(0, PRIVATE_DECISIONS)
        if self.epsilon is not None and not isinstance(self.controller, AlwaysGlobal):
            assumed.append(ROUNDED_STEPS)
        if self.allocated is not None:
            assumed.append(SECRET_ROUNDS)
        return tuple(assumed)

    def release_of(self, t: int) -> Release | tuple[Release, ...]:
        """Return the releases of step t: at most one global update of each node.

        With a `NoisyLoss`, the controller's noisy losses are released before, on the same batch.

        The plan has a global update in each step that may have one. If in a run no node updates the
        global model in a step, the ledger lacks this update. Epsilon stays the same if the run has
        at least one global update: each record is in one batch, so epsilon does not grow with the
        number of batches.
        """
        if self.allocated is not None:
            return self._allocated_releases(t, self.allocated)
        if not self.controller.may_be_global(t):
            return ()
        joint = self._joint
        mechanism = self.mechanism if joint is None else CorrelatedRow.of(joint, t)
        update = Release(t, mechanism, self.sensitivity(t), batch=t)
        if self._query is None:
            return update
        return (Release(t, *self._query, batch=t), update)

    @cached_property
    def allocated(self) -> AllocatedPass | None:
        """The pass of random allocation; None for mini-batches in the order of the records."""
        if self.records is None:
            return None
        assert isinstance(self.controller, FixedController)
        return AllocatedPass(
            steps=self.records // self.batch_size,
            controller=self.controller,
            seed=self.decisions_seed,
            nodes=self.nodes or 1,
            failure=self.delta * FAILURE / self.copies,
        )

    def allocated_release(self, t: int, node: int) -> Release:
        """Return the release of a node's global step t, under random allocation."""
        assert self.allocated is not None
        allocations = self.allocated.allocations
        sampling = allocations[0]
        nodes = None  # all nodes have the same allocation
        if len(allocations) > 1:
            sampling = allocations[node]
            nodes = (node,)
        return Release(t, self.mechanism, self.sensitivity(t), sampling=sampling, nodes=nodes)

    def _allocated_releases(self, t: int, allocated: AllocatedPass) -> tuple[Release, ...]:
        """Return the releases of step t under random allocation, one for each column that acts."""
        if integer("round", t) >= allocated.steps:
            fail("rounds", f"at most {allocated.steps}, in which all records are used", t + 1)
        nodes = np.flatnonzero(allocated.is_global[t]).tolist()
        return tuple(self.allocated_release(t, node) for node in nodes)

    @cached_property
    def _joint(self) -> CorrelatedGaussian | None:
        """Correlated noise of a node's updates as one joint release; None if noise is independent.

        A record affects one of the updates.
        """
        if self.noise is None or self.epsilon is None:
            return None
        bounds = [self.sensitivity(t).bound for t in range(self.noise.rows)]
        return self.noise.release(self.mechanism.noise_to_sensitivity, bounds)

    def least_scale_factor(self, t: int, problem: LinearProblem) -> float:
        """Return the least Delta of a release of step t: no earlier step since the last release.

        With random allocation it is the Delta of the largest node. It is 1 without noise.
        """
        delta = float(self._lemma4(problem, np.array([at(self.step_size, t + 1)]))[0])
        if self.allocated is None or self.epsilon is None:
            return delta
        return delta * self.batch_size * self.allocated.steps / float(problem.all_records.max())

    def _constants(self, problem: LinearProblem) -> Constants:
        """Return the constants of one model that Lemma 4 needs.

        Raises
        ------
        ValueError
            If the problem is not linear, its loss is not smooth, or its gradients have no bound.
        """
        if isinstance(problem, DenseProblem):
            expected = f"a number, with AlwaysGlobal(), for a {type(problem).__name__}"
            fail("clipping_norm", expected, None)
        constants = problem.model_constants(self.radius)
        if constants.smoothness == inf:
            fail("problem", "one of a smooth loss, as Lemma 4 does", f"{problem.loss!r}")
        if constants.loss_lipschitz == inf:
            fail("radius", f"one, to bound the gradients of the {problem.loss} loss", None)
        return constants

    def _lemma4(self, problem: LinearProblem, largest_step: Floats) -> Floats:
        """Return Lemma 4's Delta, given the largest step since the last release; 1 without noise.

        `largest_step` and the result have the same shape.
        """
        if self.epsilon is None:
            return np.ones_like(largest_step)
        if self.clipping_norm is not None:  # no local step is taken
            return 2 * self.clipping_norm / self.batch_size * largest_step
        constants = self._constants(problem)
        distinct_steps, index_of_step = np.unique(largest_step, return_inverse=True)
        bounds = [
            claims.sensitivity(
                step,
                lipschitz=constants.loss_lipschitz,
                batch_size=self.batch_size,
                smoothness=constants.smoothness,
            )
            for step in distinct_steps.tolist()
        ]
        deltas = np.array(bounds)[index_of_step].reshape(largest_step.shape)
        return np.asarray(deltas, dtype=np.float64)

    def _check_allocation(self) -> None:
        """Raise a ValueError unless random allocation has global steps known before a run."""
        is_known = isinstance(self.controller, FixedController) and self.calibration == "analytic"
        if not is_known or self.arrival_rate < 1 or self.noise is not None:
            expected = (
                "'arrival', unless controller=AlwaysGlobal(), Periodic(..) or RandomGlobal(..), "
                "arrival_rate=1, calibration='analytic' and noise=None: the releases must be known "
                "before the run, and correlated noise under random allocation is not proved"
            )
            fail("sampling", expected, self.sampling)
        if self.models > 1 and self.decisions == "apart":
            expected = "'together' with sampling='allocation': a record's models share its round"
            fail("decisions", expected, self.decisions)
        if isinstance(self.controller, RandomGlobal) and self.nodes is None:
            fail("nodes", "the number of nodes, whose coins the plan draws", None)

    def _check_allocated(self, problem: LinearProblem, allocated: AllocatedPass) -> None:
        """Check a problem for random allocation.

        Raises
        ------
        ValueError
            If nodes or records differ from the parameters, or if local steps expand with more than
            the allowed probability.
        """
        require_each_record_once(problem)
        check_sizes(self.records, problem)
        if self.nodes not in (None, len(problem.all_records)):
            fail("nodes", f"{len(problem.all_records)}, as the problem has", self.nodes)
        if allocated.is_global.all() or self.epsilon is None:
            return
        sizes = [at(self.step_size, t + 1) for t in range(allocated.steps)]
        worst = allocated.expansions(problem.all_records, sizes, self._constants(problem)).max()
        if worst > allocated.failure:
            most = f"with a probability of at most {allocated.failure:.2g}"
            expected = f"shorter steps or larger batches, so that local steps expand {most}"
            fail("step_size", expected, f"{worst:.2g}")

    def _check_noise(self, noise: CorrelatedStrategy) -> None:
        """Raise a ValueError unless each node releases in each round, as correlated noise needs."""
        check_strategy(noise, self)
        if noise.topology is not None or noise.grid is not None:
            fail("noise", "correlated.InTime(topology=None, ..) without a grid", noise)
        releases_always = isinstance(self.controller, AlwaysGlobal) and self.arrival_rate == 1
        if not releases_always or self.controller.noisy_loss or self.calibration != "analytic":
            expected = (
                "None, or AlwaysGlobal(), arrival_rate=1 and calibration='analytic': the rounds in "
                "which a node releases must be planned"
            )
            fail("noise", expected, noise)

    def senders(self, t: int, turns: Indices, records: Indices, key: Key) -> Indices:
        """Return the nodes that act in step t, in their order; public coins draw both."""
        if self.allocated is None:
            has_batch = turns < records // self.batch_size
        else:
            has_batch = turns < self.allocated.steps
        coins = kernels.uniform((len(has_batch), 2), key.stream(Purpose.SAMPLE, t))
        arrival_coins, order_coins = coins.T
        acts: Flags = has_batch & (arrival_coins < self.arrival_rate)
        order: Indices = np.argsort(order_coins)
        return order[acts[order]]

    def _acting(
        self, state: WithoutReplacementState, t: int, problem: LinearProblem, key: Key
    ) -> tuple[Indices, Flags, Ragged]:
        """Return the nodes that act in step t, and the mini-batches of this process's nodes.

        Returns
        -------
        Indices of all acting nodes in their order; flags of the nodes of this process that act,
        shape (nodes,); and their mini-batches as ``(indptr, indices)``.
        """
        turns = self.senders(t, state.used, problem.all_records, key)
        acts = np.zeros(len(state.used), dtype=np.bool_)
        acts[turns] = True
        acting = acts[problem.members]
        if self.allocated is not None:
            secret = key.for_nodes(problem.members.astype(np.uint32))
            return turns, acting, problem.allocated(t, secret, rounds=self.allocated.steps)
        return turns, acting, self.batches(problem, state.used[problem.members], acting)

    def batches(self, problem: LinearProblem, number: Indices, nodes: Flags) -> Ragged:
        """Return one mini-batch of each chosen node, and an empty one of each other node.

        Parameters
        ----------
        problem
            The problem.
        number
            Index of each node's mini-batch, shape (nodes,).
        nodes
            True for chosen nodes, shape (nodes,).

        Returns
        -------
        Records as ``(indptr, indices)``.
        """
        starts, records = problem.full_batches
        b = self.batch_size
        return slices(records, starts[:-1] + number * b, np.where(nodes, b, 0))

    def _decided(
        self,
        state: WithoutReplacementState,
        t: int,
        problem: LinearProblem,
        acting: Flags,
        batches: Ragged,
        key: Key,
        answers: Released | None,
    ) -> tuple[Actions, WithoutReplacementState]:
        """Return the decisions of step t, and the state with what the controller learned (line 4).

        A public controller gets no private values; with a `NoisyLoss` it gets the noisy `answers`.
        """
        w = state.local
        public_losses = None
        if self.public_data is not None:
            public_losses = losses_on(self.public_data, state.released, problem)
        observation = unobserved(w, acting, state.released, public_losses)
        if not self.controller.public:
            steps_taken = state.used[problem.members]
            last = self.batches(problem, steps_taken - 1, acting & (steps_taken > 0))
            observation = with_private(observation, w, problem, batches, last)
        elif answers is not None:
            observation = with_answers(observation, answers)
        if self.allocated is not None:  # the noise is calibrated to the planned decisions
            planned = self.allocated.global_nodes(t, problem.members)
            return np.repeat((planned & acting)[:, np.newaxis], self.models, axis=1), state
        if self.decisions == "together":
            assert isinstance(self.controller, FixedController)
            node_key = key.for_nodes(problem.members.astype(np.uint32))
            decision = self.controller.choose((len(acting), 1), t, node_key)
            acting_decision = decision & acting[:, np.newaxis]
            return np.repeat(acting_decision, self.models, axis=1), state
        controllers_key = self._controllers_key(problem, key)
        memory = self.controller.learn(state.controller, observation, t, controllers_key)
        decisions, memory = self.controller.decide(memory, observation, t, controllers_key)
        actions = np.asarray(decisions)
        if actions.shape != w.shape[:2] or actions.dtype != np.bool_:
            fail("controller", f"bools of shape {w.shape[:2]}", f"{actions.dtype} {actions.shape}")
        return actions & acting[:, np.newaxis], replace(state, controller=memory)

    def _loss_message(
        self,
        state: WithoutReplacementState,
        query: Release,
        problem: LinearProblem,
        acting: Flags,
        batches: Ragged,
    ) -> Message:
        """Return the message of the controller's `NoisyLoss`: each acting node's mean clipped loss.

        The loss is the one of w^G on the node's next mini-batch, before noise, shape (acting, 1).
        """
        if not acting.any():
            return Message(None, query, is_sent=False)
        noisy_loss = self.controller.noisy_loss
        assert noisy_loss is not None
        w_g = np.repeat(state.released.reshape(1, -1), len(acting), axis=0)
        record_losses = problem.record_losses(w_g, batches).reshape(-1) / self.models
        clipped = np.minimum(record_losses, noisy_loss.bound).reshape(-1, self.batch_size)
        return Message(
            Sensitive(clipped.mean(axis=1)[:, np.newaxis]),
            query,
            rows=len(problem.all_records) * self.models + problem.members[acting],
            scale_factor=noisy_loss.bound / self.batch_size if query.noise_to_sensitivity else 1.0,
            is_sent=False,
        )

    def _controllers_key(self, problem: LinearProblem, key: Key) -> Key:
        """Return the controller's key: its draws have a row for each node of this process.

        For a controller that learns, they have a row for each classifier of each node. The rows are
        numbered over the nodes of all processes, so that the draws do not depend on the processes.
        """
        rows = problem.members
        if not isinstance(self.controller, FixedController):
            rows = (rows[:, np.newaxis] * self.models + np.arange(self.models)).ravel()
        return key.for_nodes(rows.astype(np.uint32))

    @property
    def rewinds(self) -> bool:
        """True if a failed round can be run again, as with a `FixedController`.

        Other controllers may change their state in place (`learn`, `decide`).
        """
        return isinstance(self.controller, FixedController)

    def refused_by_parties(self) -> dict[str, str]:
        """Refuse ``calibration="paper"``, and controllers that use data, in a contract.

        See `Algorithm.refused_by_parties`.
        """
        refused: dict[str, str] = {}
        if self.calibration == "paper":
            refused["calibration"] = "wanted one that is proved, got 'paper'"
        if not isinstance(self.controller, FixedController):
            refused["controller"] = "wanted one that looks at no data"
        return refused

    def most_rounds(self, problem: LinearProblem) -> int | None:
        """Return the number of steps until the largest node runs out of mini-batches.

        None if nodes act at random (`arrival_rate` below 1).
        """
        require_problem(self, problem, "class_objectives", "gradient")
        if self.arrival_rate < 1:
            return None
        if self.allocated is not None:
            return self.allocated.steps
        return int(problem.all_records.max()) // self.batch_size

    def init(self, problem: LinearProblem, key: Key) -> WithoutReplacementState:
        """Return the state before round 0: all models at the problem's `initial`, 0 by default."""
        if problem.models != self.models:
            fail("models", f"{problem.models}, as the problem has", self.models)
        if self.public_data is problem.train:
            fail("public_data", "public records, which no node holds", "those of the nodes")
        if isinstance(problem, DenseProblem) and self.public_data is not None:
            fail("public_data", f"None for a {type(problem).__name__}", "records")
        if self.epsilon is not None and self.clipping_norm is None:
            self._constants(problem)
        if self.allocated is not None:
            self._check_allocated(problem, self.allocated)
        start = initial_parameters(problem, key, problem.nodes)
        local = self._projected(start.reshape(problem.nodes, self.models, -1))
        return WithoutReplacementState(
            local=Sensitive(local),
            released=Released(local[0].copy()),
            used=np.zeros(len(problem.all_records), dtype=np.int64),
            largest_step=np.zeros(local.shape[:2]),
            controller=self.controller.init(local.shape, self._controllers_key(problem, key)),
        )

    def round(
        self, state: WithoutReplacementState, t: int, problem: LinearProblem, key: Key
    ) -> Round[WithoutReplacementState]:
        """Run step t: the nodes that act decide and update in turn (Algorithm 1, lines 3 to 6)."""
        turns, acting, batches = self._acting(state, t, problem, key)
        answers = None
        releases_of_step = self.release_of(t)
        if isinstance(releases_of_step, Release):
            releases_of_step = (releases_of_step,)
        if self.controller.noisy_loss is not None and releases_of_step and len(turns):
            query = releases_of_step[0]
            answers = yield self._loss_message(state, query, problem, acting, batches)
        actions, state = self._decided(state, t, problem, acting, batches, key, answers)
        local_steps = acting[:, np.newaxis] & ~actions
        state = self._after_local_steps(state, t, problem, local_steps, batches)
        eta = at(self.step_size, t + 1)
        w_l = state.local.copy()
        w_g = state.released.copy()
        was_reset = np.zeros_like(actions)  # True where a local model becomes the global one, (6)
        # Delta, the scale factor of each node's releases; not the delta of the guarantee
        delta = self._delta(problem, np.maximum(state.largest_step, eta)).astype(w_g.dtype)
        senders = turns.tolist() if releases_of_step else []
        for m in senders:
            release = releases_of_step[-1]
            if release.nodes is not None:  # nodes have different allocations
                release = self.allocated_release(t, m)
            message = Message(None, release, sender=m, row_count=self.models)
            if problem.holds(m):
                row = problem.row_of(m)
                if actions[row].any():
                    message = self._update_message(
                        message,
                        problem,
                        row,
                        batches,
                        w_g=w_g,
                        w_l=w_l[row],
                        chosen=actions[row],
                        delta=delta[row],
                        eta=eta,
                    )
            arrived = yield message
            if arrived is None:
                continue
            is_sent = ~np.isnan(arrived[:, 0])
            w_g[is_sent] = self._projected(arrived[is_sent])
            if problem.holds(m):
                row = problem.row_of(m)
                w_l[row, is_sent] = w_g[is_sent]  # (6)
                was_reset[row, is_sent] = True
        if self.allocated is not None and t + 1 == self.allocated.steps:
            w_l[:] = w_g  # records after the last release must not affect a later one
        return replace(
            state,
            local=Sensitive(w_l),
            released=Released(w_g),
            used=state.used + np.bincount(turns, minlength=len(state.used)),
            largest_step=np.where(was_reset, 0.0, state.largest_step),
        )

    def losses(
        self, state: WithoutReplacementState, t: int, problem: LinearProblem, key: Key
    ) -> Numbers | None:
        """Return the losses of the nodes that act in step t, on their mini-batches."""
        turns, acting, batches = self._acting(state, t, problem, key)
        if not len(turns):
            return None
        losses = problem.class_objectives(_flat(state.local), batches)
        has_batch = acting & (np.diff(batches[0]) > 0)
        return np.asarray(losses[has_batch].sum(axis=1), dtype=np.float64)

    def _after_local_steps(
        self,
        state: WithoutReplacementState,
        t: int,
        problem: LinearProblem,
        chosen: Flags,
        batches: Ragged,
    ) -> WithoutReplacementState:
        """Return the state after a local step of each chosen model; chosen has shape (M, K)."""
        if not chosen.any():
            return state
        w = state.local
        eta = at(self.step_size, t + 1)
        g = self._gradient(problem, _flat(w), batches, np.arange(len(w))).astype(w.dtype)
        moved = self._projected(kernels.weighted_sum((1.0, w), (-2 * eta, g)))
        np.copyto(moved, w, where=~chosen[:, :, np.newaxis])
        return replace(
            state,
            local=Sensitive(moved),
            largest_step=np.where(chosen, np.maximum(state.largest_step, eta), state.largest_step),
        )

    def _update_message(
        self,
        message: Message,
        problem: LinearProblem,
        row: int,
        batches: Ragged,
        *,
        w_g: Floats,
        w_l: Floats,
        chosen: Flags,
        delta: Floats,
        eta: float,
    ) -> Message:
        """Return a node's message with the global update (5) of the chosen models, before noise.

        Parameters
        ----------
        message
            Message of the node without values.
        problem, batches
            The problem, and the mini-batches of this process's nodes.
        row
            Place of the node among the nodes of this process.
        w_g, w_l
            Global models, and the node's local models, shape (K, d).
        chosen
            True for the models to update, shape (K,).
        delta
            Delta of each model, shape (K,), the scale factor of its release.
        eta
            Learning rate.
        """
        k = np.flatnonzero(chosen)
        indptr, indices = batches
        first, last = indptr[row : row + 2]
        batch = np.array([0, last - first]), indices[first:last]
        g = self._gradient(problem, w_g.reshape(1, -1), batch, np.array([row]))[0]
        exact = (w_g[k].astype(np.float64) + w_l[k]) / 2 - eta * g[k]
        listeners = len(problem.all_records) - 1
        bits = 8 * w_g.itemsize * w_g.shape[1] + listeners * ANNOUNCEMENT_BITS
        return message._replace(
            values=Sensitive(exact.astype(w_g.dtype)),
            rows=(message.sender or 0) * self.models + k,
            scale_factor=delta[k, np.newaxis],
            bits=len(k) * bits,
        )

    def _gradient(
        self, problem: LinearProblem, point: Floats, batches: Ragged, nodes: Indices
    ) -> Floats:
        """Return grad f_D of some nodes' batches at their points, shape (nodes, K, d).

        With random allocation, the sum over a batch is divided by its public expected size.
        """
        joint_norm = None
        if self.clipping_norm is not None:
            joint_norm = self.clipping_norm * sqrt(self.models)
        shape = len(point), self.models, -1
        if self.allocated is None:
            return mean_gradients(problem, point, batches, clipping_norm=joint_norm).reshape(shape)
        sizes = expected_sizes(problem, self.allocated.steps)[nodes, np.newaxis]
        sums = gradient_sums(problem, point, batches, clipping_norm=joint_norm)
        g: Floats = (sums / sizes + problem.regularization * point).reshape(shape)
        return g

    def _delta(self, problem: LinearProblem, largest_step: Floats) -> Floats:
        """Return Delta of each node's models, from the largest steps of shape (M, K).

        With random allocation, a node with larger mini-batches has a smaller Delta.
        """
        delta = self._lemma4(problem, largest_step)
        if self.allocated is None or self.epsilon is None:
            return delta
        sizes = expected_sizes(problem, self.allocated.steps)
        return delta * (self.batch_size / sizes[:, np.newaxis])

    def plan(self, rounds: int, problem: Problem | LossFacts | None = None) -> Plan:
        """Return all releases of a run: see `Algorithm.plan`.

        With random allocation, copies of a record draw their mini-batches independently.
        """
        plan = super().plan(rounds, problem)
        if self.allocated is None:
            return plan
        return replace(plan, copies=self.copies)

    def published(self, state: WithoutReplacementState, received: Any) -> Released:
        """Return the global models to publish, shape (1, K d)."""
        return Released(state.released.reshape(1, -1))

    def parameters(self, state: WithoutReplacementState) -> Floats:
        """Return the un-noised local models, shape (nodes, K d): no guarantee covers them."""
        return _flat(state.local)

    def _projected(self, w: Floats) -> Floats:
        """Return the models, shape (.., d), projected onto the ball of `radius`, if any."""
        if self.radius is None:
            return w
        return kernels.clip_rows(w, self.radius)


def _flat(w: Floats) -> Floats:
    """Return the models of each node in one row, shape (M, K d), from shape (M, K, d)."""
    return w.reshape(len(w), -1)


def unobserved(
    local: Sensitive, acting: Flags, released: Released, public_losses: Floats | None
) -> Observation:
    """Return the observation of a public controller, with NaN in place of private values.

    Parameters
    ----------
    local
        Local models, shape (M, K, d); only their shape and dtype are used.
    acting
        True for nodes that act, shape (M,).
    released
        Global models, shape (K, d).
    public_losses
        Losses of the global models on public records, shape (K,); None without public records.
    """
    unseen = np.broadcast_to(local.dtype.type(np.nan), local.shape)
    return Observation(
        acting=acting.copy(),
        local_models=Sensitive(unseen),
        losses=Sensitive(unseen[:, :, 0]),
        last_losses=Sensitive(unseen[:, :, 0]),
        released_models=Released(released.copy()),
        public_losses=public_losses,
    )


def with_answers(observation: Observation, answers: Released) -> Observation:
    """Return an observation with the noisy losses of the acting nodes, shape (acting, 1)."""
    noisy = observation.losses.astype(np.float64)
    noisy[observation.acting] = answers
    return replace(observation, losses=Sensitive(noisy))


def with_private(
    observation: Observation,
    local: Sensitive,
    problem: LinearProblem,
    batches: Ragged,
    last: Ragged,
) -> Observation:
    """Return an observation with the local models and their losses, without noise.

    Parameters
    ----------
    observation
        Observation without private values.
    local
        Local models, shape (M, K, d).
    problem
        The problem.
    batches, last
        Next and previous mini-batch of each node, as ``(indptr, indices)``; a node may have none.
    """
    w = local.reshape(len(local), -1)
    return replace(
        observation,
        local_models=Sensitive(local.copy()),
        losses=Sensitive(problem.class_objectives(w, batches)),
        last_losses=Sensitive(problem.class_objectives(w, last)),
    )


def losses_on(public: Dataset, released: Released, problem: LinearProblem) -> Floats:
    """Return the losses of the global models, shape (K, d), on public records, shape (K,)."""
    model = LinearModel(public.features, public.labels, problem.loss, classes=problem.classes)
    measure = model.losses if len(released) == 1 else model.class_losses
    full_batch = np.arange(public.records)[np.newaxis]
    losses = measure(released.reshape(1, -1), full_batch, regularization=problem.regularization)
    return losses.reshape(-1)

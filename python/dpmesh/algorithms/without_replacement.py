"""Decentralized private SGD without replacement (Jin, He, Dai), Algorithm 1.

Each node keeps a local model w^L, and all know a global model w^G. Every mini-batch of a node's
records is used once. Within a step t nodes act one after the other, in random order, and a
controller decides which model each of them updates. The symbols are the paper's; its t counts from
0, as our rounds do:

    Local:   w_(t+1)^L = w_t^L - 2 eta_t grad f_D(w_t^L)
    Global:  w_(t+1)^G = (w_t^G + w_t^L) / 2 - eta_t (grad f_D(w_t^G) + N_t)          (5)
             w_(t+1)^L = w_(t+1)^G                                                    (6)

One-vs-all with K classes takes K such pairs of models in each node, on the same mini-batches, each
with decisions of its own. The paper needs repair in some places:

- The standard deviation in Theorem 2 is that of the product eta_t N_t.
- A record enters K releases, not one, and more if several nodes hold it: the noise covers all.
- Lemma 4 wants steps of at most 1 / (2 mu). Those of Theorem 4, 1 / (a gamma t), exceed that at
  every step of the paper's runs; `theorem_4_steps`, of the papers' bounds, starts the same
  schedule late enough.
- Algorithm 1 does not project, although its constants need a bounded model: see `radius`.
- Theorem 2 does not cover decisions that depend on private data: the default controller looks at
  none, and the report names controllers that do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, sqrt
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.special import bdtrc

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
"""The step and the node's number, which all others receive after a global update of a model."""

FAILURE = 0.1
"""Share of delta that pays for batches of random size whose local steps expand."""

Calibration = Literal["analytic", "classical", "paper"]

Decisions = Literal["apart", "together"]

ROUNDED_STEPS = (
    "the rounding of local steps does not move neighbouring datasets apart (take float64 records "
    "to make it negligible)"
)
"""What is not proved of local models, which are rounded in every step and never sent themselves."""


@dataclass(frozen=True, kw_only=True)
class AllocatedPass:
    """One pass over records that each draw secretly which mini-batch uses them.

    Parameters
    ----------
    steps
        How many mini-batches each node has.
    controller, seed, nodes
        What decides, from coins of this seed, for so many nodes.
    failure
        Of each allocation that local steps are part of.
    """

    steps: int
    controller: FixedController
    seed: int
    nodes: int
    failure: float

    @cached_property
    def is_global(self) -> Flags:
        """Which steps are global, shape (steps, nodes), or (steps, 1) if all nodes decide alike."""
        key = Key.seeded(self.seed)
        coins = [self.controller.choose((self.nodes, 1), t, key)[:, 0] for t in range(self.steps)]
        decisions = np.array(coins)
        if (decisions == decisions[:, :1]).all():
            return decisions[:, :1]
        return decisions

    def global_nodes(self, step: int, nodes: Indices) -> Flags:
        """Return which of these nodes update the global model in a step, as the plan has it."""
        planned = self.is_global[step]
        if planned.size == 1:
            return np.repeat(planned, len(nodes))
        of_nodes: Flags = planned[nodes]
        return of_nodes

    @cached_property
    def allocations(self) -> tuple[RandomAllocation | None, ...]:
        """Allocations of records to the releases of each column; None if there are none.

        A share is that of the records whose first release after their mini-batch it is. Those after
        the last release have none: what they moved is forgotten at the end of the pass.
        """
        return tuple(self._allocation(column) for column in self.is_global.T)

    def _allocation(self, is_global: Flags) -> RandomAllocation | None:
        failure = 0.0 if self.is_global.all() else self.failure  # the same for all nodes
        if is_global.all():
            return RandomAllocation(rounds=self.steps, failure=failure)
        gaps = np.diff(np.flatnonzero(is_global), prepend=-1)
        shares = tuple((gaps / self.steps).tolist())
        if shares:
            return RandomAllocation(shares=shares, failure=failure)
        return None

    def noise(self, epsilon: float, delta: float, copies: int) -> Mechanism:
        """Return noise that is enough for each node, however unequal its shares are."""
        allocations = [allocation for allocation in self.allocations if allocation is not None]
        if not allocations:
            return NoNoise()
        return allocated_noise(dominating(allocations), epsilon, delta, copies=copies)

    def expansions(
        self, records: Indices, step_sizes: Sequence[float], constants: Constants
    ) -> Floats:
        """Return the probability that a batch makes one of a node's local steps expand, per node.

        A step of 2 eta along the sum over a batch divided by its expected size h does not expand
        if the other records in it number at most ``h (1 / eta - lambda) / kappa``: those follow a
        binomial distribution (``docs/privacy/random_allocation.md``).

        Parameters
        ----------
        records
            Of each node, shape (nodes,).
        step_sizes
            eta of each step.
        constants
            Of one model, whose losses have smoothness kappa without the regularizer lambda.
        """
        decay = constants.strong_convexity
        room = (1 / np.asarray(step_sizes) - decay) / (constants.smoothness - decay)
        counts, place = np.unique(records, return_inverse=True)
        other_records = counts[:, np.newaxis] - 1
        most = np.clip(np.floor((other_records + 1) / self.steps * room), 0, other_records)
        tails = np.where(most < other_records, bdtrc(most, other_records, 1 / self.steps), 0.0)
        return np.asarray((tails[place] * ~self.is_global.T).sum(axis=1), dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class WithoutReplacementState:
    """State of the nodes before a step, for M nodes with K models of d parameters.

    Parameters
    ----------
    local
        w_t^L, shape (M, K, d).
    released
        w_t^G, shape (K, d).
    used
        Shape (M,), of all nodes: mini-batches that each has used.
    largest_step
        Shape (M, K): the largest eta since the node's last global update, which Lemma 4 needs; 0 if
        there was no step since.
    controller
        What the controller has learned.
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
    (``docs/privacy/random_allocation.md``). Its delta includes the probability of batches so large
    that local steps expand, and a pass ends with a global step. With `InTime` noise, a record is in
    one update of its node (Theorem 1 of ``docs/privacy/correlated_noise.md``); the noise of other
    nodes is independent. With a `NoisyLoss`, a controller decides by noisy answers. A record is in
    one of them, too, and the noise of both together keeps epsilon and delta (``docs/algorithms``).

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.WithoutReplacement(epsilon=1.0, batch_size=50).epsilon
    1.0
    """

    travels = "token"
    any_rows = "a holder projects the model that it received before it uses it"
    no_views = "every node receives the global model after each update"
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
        """Return problems for audits: a node's records oppose one canary, or one per release."""
        if self.radius is None:
            fail("algorithm", "one with a radius", None)
        return opposed_batches(self, size)

    @property
    def releases_decide(self) -> bool:
        """True if the controller decides by released models or noisy losses, not coins alone."""
        return not isinstance(self.controller, FixedController)

    @cached_property
    def mechanism(self) -> Mechanism:
        """Gaussian mechanism on all releases that a record affects, in units of Delta."""
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
        """Noise and sensitivity of the losses that the controller asks for, in units of C / b."""
        query = self.controller.noisy_loss
        if query is None:
            return None
        reason = f"{self.copies} copies of a record, each in units of bound / b, one loss replaced"
        moved = Sensitivity(sqrt(self.copies), "l2", reason)
        if self.epsilon is None:
            return NoNoise(), moved
        return Gaussian(self._total_multiplier / sqrt(query.budget_share)), moved

    @property
    def _total_multiplier(self) -> float:
        """Return 1 / mu for all that a record can move, by exact accounting."""
        assert self.epsilon is not None
        return analytic_gaussian_noise_to_sensitivity(
            target_epsilon=self.epsilon, target_delta=self.delta
        )

    def sensitivity(self, t: int) -> Sensitivity:
        """Return the joint L2 sensitivity of all releases that a record affects."""
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

        Noisy losses that the controller asks for are released before them, on the same batch.

        Steps in which, by chance, no node updates the global model are in the plan and not in the
        ledger. They do not change epsilon, as long as there is at least one release.
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
        """The pass of ``"allocation"``; None for mini-batches in the order of the records."""
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
        """Return the release of one node in step t, a global step, under random allocation."""
        assert self.allocated is not None
        of_nodes = self.allocated.allocations
        sampling = of_nodes[0]
        nodes = None
        if len(of_nodes) > 1:
            sampling = of_nodes[node]
            nodes = (node,)
        return Release(t, self.mechanism, self.sensitivity(t), sampling=sampling, nodes=nodes)

    def _allocated_releases(self, t: int, allocated: AllocatedPass) -> tuple[Release, ...]:
        """Return the global updates of step t of an allocation, one for each node that makes it."""
        if integer("round", t) >= allocated.steps:
            fail("rounds", f"at most {allocated.steps}, in which all records are used", t + 1)
        nodes = np.flatnonzero(allocated.is_global[t]).tolist()
        return tuple(self.allocated_release(t, node) for node in nodes)

    @cached_property
    def _joint(self) -> CorrelatedGaussian | None:
        """The noise of a node's updates together, each record in one of them; None if apart."""
        if self.noise is None or self.epsilon is None:
            return None
        bounds = [self.sensitivity(t).bound for t in range(self.noise.rows)]
        return self.noise.release(self.mechanism.noise_to_sensitivity, bounds)

    def least_scale_factor(self, t: int, problem: LinearProblem) -> float:
        """Return Delta of a node whose only step since its last release is t; 1 without noise."""
        unit = float(self._lemma4(problem, np.array([at(self.step_size, t + 1)]))[0])
        if self.allocated is None or self.epsilon is None:
            return unit
        return unit * self.batch_size * self.allocated.steps / float(problem.all_records.max())

    def _constants(self, problem: LinearProblem) -> Constants:
        """Return what Lemma 4 rests on."""
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
        """Return Delta of releases, given the largest steps since the last; 1 without noise."""
        if self.epsilon is None:
            return np.ones_like(largest_step)
        if self.clipping_norm is not None:  # no local step is taken
            return 2 * self.clipping_norm / self.batch_size * largest_step
        constants = self._constants(problem)
        steps, places = np.unique(largest_step, return_inverse=True)
        bounds = np.array(
            [
                claims.sensitivity(
                    step,
                    lipschitz=constants.loss_lipschitz,
                    batch_size=self.batch_size,
                    smoothness=constants.smoothness,
                )
                for step in steps.tolist()
            ]
        )
        return np.asarray(bounds[places].reshape(largest_step.shape), dtype=np.float64)

    def _check_allocation(self) -> None:
        """Fail unless it is known before the run which releases an allocation is divided among."""
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
        """Fail unless a problem has the stated nodes and records, and local steps hardly expand."""
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
        """Fail unless a node releases in each round, from which noise in time is planned."""
        check_strategy(noise, self)
        if noise.topology is not None or noise.grid is not None:
            fail("noise", "correlated.InTime(topology=None, ..) without a grid", noise)
        every = isinstance(self.controller, AlwaysGlobal) and self.arrival_rate == 1
        if not every or self.controller.noisy_loss or self.calibration != "analytic":
            expected = (
                "None, or AlwaysGlobal(), arrival_rate=1 and calibration='analytic': the rounds in "
                "which a node releases must be planned"
            )
            fail("noise", expected, noise)

    def senders(self, t: int, turns: Indices, records: Indices, key: Key) -> Indices:
        """Return the nodes that act in step t, in their order, both drawn by public coins."""
        allocated = self.allocated
        batches = records // self.batch_size if allocated is None else allocated.steps
        has_records = turns < batches
        shape = len(has_records), 2
        arrives, place = kernels.uniform(shape, key.stream(Purpose.SAMPLE, t)).T
        acts: Flags = has_records & (arrives < self.arrival_rate)
        order: Indices = np.argsort(place)
        return order[acts[order]]

    def _acting(
        self, state: WithoutReplacementState, t: int, problem: LinearProblem, key: Key
    ) -> tuple[Indices, Flags, Ragged]:
        """Return all turns of step t; which of the nodes here act, and their mini-batches."""
        turns = self.senders(t, state.used, problem.all_records, key)
        acts = np.zeros(len(state.used), dtype=np.bool_)
        acts[turns] = True
        acting = acts[problem.members]
        if self.allocated is not None:
            secret = key.for_nodes(problem.members.astype(np.uint32))
            return turns, acting, problem.allocated(t, secret, rounds=self.allocated.steps)
        return turns, acting, self.batches(problem, state.used[problem.members], acting)

    def batches(self, problem: LinearProblem, number: Indices, nodes: Flags) -> Ragged:
        """Return mini-batch `number` of each of these nodes, and empty ones for the others."""
        starts, records = problem.everything
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
        """Let the controller learn and decide; a public one sees nothing private (line 4)."""
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
        if self.allocated is not None:  # noise and cost are for these decisions and no others
            planned = self.allocated.global_nodes(t, problem.members)
            return np.repeat((planned & acting)[:, np.newaxis], self.models, axis=1), state
        if self.decisions == "together":
            assert isinstance(self.controller, FixedController)
            node_key = key.for_nodes(problem.members.astype(np.uint32))
            decision = self.controller.choose((len(acting), 1), t, node_key)
            acting_decision = decision & acting[:, np.newaxis]
            return np.repeat(acting_decision, self.models, axis=1), state
        controllers_key = self._controllers_key(problem, key)
        learned = self.controller.learn(state.controller, observation, t, controllers_key)
        decided, learned = self.controller.decide(learned, observation, t, controllers_key)
        actions = np.asarray(decided)
        if actions.shape != w.shape[:2] or actions.dtype != np.bool_:
            fail("controller", f"bools of shape {w.shape[:2]}", f"{actions.dtype} {actions.shape}")
        return actions & acting[:, np.newaxis], replace(state, controller=learned)

    def _question(
        self,
        state: WithoutReplacementState,
        query: Release,
        problem: LinearProblem,
        acting: Flags,
        batches: Ragged,
    ) -> Message:
        """Return the losses of w^G on the coming batches, each record's cut, for the controller."""
        if not acting.any():
            return Message(None, query, travels=False)
        noisy_loss = self.controller.noisy_loss
        assert noisy_loss is not None
        w_g = np.repeat(state.released.reshape(1, -1), len(acting), axis=0)
        of_records = problem.record_losses(w_g, batches).reshape(-1) / self.models
        cut = np.minimum(of_records, noisy_loss.bound).reshape(-1, self.batch_size)
        return Message(
            Sensitive(cut.mean(axis=1)[:, np.newaxis]),
            query,
            rows=len(problem.all_records) * self.models + problem.members[acting],
            scale_factor=noisy_loss.bound / self.batch_size if query.noise_to_sensitivity else 1.0,
            travels=False,
        )

    def _controllers_key(self, problem: LinearProblem, key: Key) -> Key:
        """Return the key whose coins have a row for each node here, or for each of its networks."""
        rows = problem.members
        if not isinstance(self.controller, FixedController):
            rows = (rows[:, np.newaxis] * self.models + np.arange(self.models)).ravel()
        return key.for_nodes(rows.astype(np.uint32))

    @property
    def rewinds(self) -> bool:
        """True if a failed round leaves the state unchanged, as with a `FixedController`."""
        return isinstance(self.controller, FixedController)

    def refused_by_parties(self) -> dict[str, str]:
        """Return the calibration or controller that a contract refuses, as no proof covers it."""
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
        """Start all models at the problem's `initial`: 0, but for a problem of one's own."""
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
        releases = self.release_of(t)
        released = (releases,) if isinstance(releases, Release) else releases
        if self.controller.noisy_loss is not None and released and len(turns):
            answers = yield self._question(state, released[0], problem, acting, batches)
        actions, state = self._decided(state, t, problem, acting, batches, key, answers)
        state = self._updated(state, t, problem, acting[:, np.newaxis] & ~actions, batches)
        eta = at(self.step_size, t + 1)
        w_l = state.local.copy()
        w_g = state.released.copy()
        forgets = np.zeros_like(actions)
        delta = self._delta(problem, np.maximum(state.largest_step, eta)).astype(w_g.dtype)
        for m in turns.tolist() if released else ():
            release = released[-1]
            if release.nodes is not None:  # of one node
                release = self.allocated_release(t, m)
            message = Message(None, release, sender=m, row_count=self.models)
            if problem.holds(m):
                row = problem.row_of(m)
                if actions[row].any():
                    models = w_g, w_l[row], actions[row], delta[row], eta
                    message = self._updating(message, problem, row, batches, *models)
            arrived = yield message
            if arrived is None:
                continue
            is_sent = ~np.isnan(arrived[:, 0])
            w_g[is_sent] = self._projected(arrived[is_sent])
            if problem.holds(m):
                row = problem.row_of(m)
                w_l[row, is_sent], forgets[row, is_sent] = w_g[is_sent], True  # (6)
        if self.allocated is not None and t + 1 == self.allocated.steps:
            w_l[:] = w_g  # what the last release did not take along must reach no later one
        return replace(
            state,
            local=Sensitive(w_l),
            released=Released(w_g),
            used=state.used + np.bincount(turns, minlength=len(state.used)),
            largest_step=np.where(forgets, 0.0, state.largest_step),
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

    def _updated(
        self,
        state: WithoutReplacementState,
        t: int,
        problem: LinearProblem,
        chosen: Flags,
        batches: Ragged,
    ) -> WithoutReplacementState:
        """Step the chosen local models, all at once, since they are independent."""
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

    def _updating(
        self,
        message: Message,
        problem: LinearProblem,
        row: int,
        batches: Ragged,
        w_g: Floats,
        w_l: Floats,
        chosen: Flags,
        delta: Floats,
        eta: float,
    ) -> Message:
        """Return the message of the node in a row with the update (5) of the chosen models."""
        k, (first, last) = np.flatnonzero(chosen), batches[0][row : row + 2]
        batch = np.array([0, last - first]), batches[1][first:last]
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
        """Return grad f_D of some nodes at a point of each, shape (nodes, K, d).

        The sum over an allocated batch is divided by its expected size, a public number.
        """
        clip = None if self.clipping_norm is None else self.clipping_norm * sqrt(self.models)
        shape = len(point), self.models, -1
        if self.allocated is None:
            return mean_gradients(problem, point, batches, clipping_norm=clip).reshape(shape)
        sizes = expected_sizes(problem, self.allocated.steps)[nodes, np.newaxis]
        sums = gradient_sums(problem, point, batches, clipping_norm=clip)
        g: Floats = (sums / sizes + problem.regularization * point).reshape(shape)
        return g

    def _delta(self, problem: LinearProblem, largest_step: Floats) -> Floats:
        """Return Lemma 4's Delta of each node's models, by the size of its mini-batches."""
        delta = self._lemma4(problem, largest_step)
        if self.allocated is None or self.epsilon is None:
            return delta
        sizes = expected_sizes(problem, self.allocated.steps)
        return delta * (self.batch_size / sizes[:, np.newaxis])

    def plan(self, rounds: int, problem: Problem | LossFacts | None = None) -> Plan:
        """Return all releases of a run; copies of an allocated record draw their own rounds."""
        plan = super().plan(rounds, problem)
        if self.allocated is None:
            return plan
        return replace(plan, copies=self.copies)

    def published(self, state: WithoutReplacementState, received: Any) -> Released:
        """Return the global models to publish, shape (1, K d)."""
        return Released(state.released.reshape(1, -1))

    def parameters(self, state: WithoutReplacementState) -> Floats:
        """Return the nodes' un-noised local models, shape (nodes, K d), which are not covered."""
        return _flat(state.local)

    def _projected(self, w: Floats) -> Floats:
        if self.radius is None:
            return w
        return kernels.clip_rows(w, self.radius)


def _flat(w: Floats) -> Floats:
    """Return the models of each node, shape (M, K d)."""
    return w.reshape(len(w), -1)


def unobserved(
    local: Sensitive, acting: Flags, released: Released, public_losses: Floats | None
) -> Observation:
    """Return what every controller may see: NaN stands for all that is private.

    Parameters
    ----------
    local
        Local models, shape (M, K, d), of which only the shape counts.
    acting
        Which nodes act, shape (M,).
    released
        Global models, shape (K, d).
    public_losses
        Those of the global models on public records, shape (K,); None without such records.
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
    """Return an observation with the noisy losses of the nodes that act, shape (acting, 1)."""
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
    batches, last
        The coming mini-batch of each node and the one before, possibly none.
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
    everything = np.arange(public.records)[np.newaxis]
    losses = measure(released.reshape(1, -1), everything, regularization=problem.regularization)
    return losses.reshape(-1)

"""What SGD without replacement releases, its noise, and how far a record moves it (Lemma 4).

All of this follows from public numbers: nothing here looks at data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, sqrt
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from scipy.special import bdtrc

from dpmesh._privacy_types import Floats
from dpmesh._ragged import Flags, Indices
from dpmesh._validate import fail, integer
from dpmesh.accounting import analytic_gaussian_noise_multiplier
from dpmesh.accounting.papers import without_replacement as claims
from dpmesh.algorithms.allocation import SECRET, Once, allocated_noise, check_sizes, dominating
from dpmesh.algorithms.base import Algorithm
from dpmesh.algorithms.controllers import (
    PRIVATE_DECISIONS,
    AlwaysGlobal,
    AnyController,
    FixedController,
    RandomGlobal,
)
from dpmesh.algorithms.gradients import check_batches
from dpmesh.algorithms.messages import StateT
from dpmesh.algorithms.worst_case import AuditSize, Crowd, Pair, opposed_batches
from dpmesh.data import Dataset
from dpmesh.keys import Key
from dpmesh.noise.mechanisms import Gaussian, Mechanism, NoNoise
from dpmesh.noise.rows import CorrelatedRow, check_strategy
from dpmesh.noise.sensitivity import Sensitivity
from dpmesh.privacy.releases import Release
from dpmesh.privacy.sampling import RandomAllocation
from dpmesh.problems import Constants, LinearProblem
from dpmesh.problems.dense import DenseProblem
from dpmesh.schedules import Schedule, at

if TYPE_CHECKING:
    from dpmesh.noise.correlated import CorrelatedGaussian, CorrelatedStrategy

FAILURE = 0.1
"""Share of delta that pays for batches of random size whose local steps expand."""


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
        found = np.array(coins)
        return found[:, :1] if (found == found[:, :1]).all() else found

    def global_nodes(self, step: int, nodes: Indices) -> Flags:
        """Return which of these nodes update the global model in a step, as the plan has it."""
        planned = self.is_global[step]
        if planned.size == 1:
            return np.repeat(planned, len(nodes))
        of_nodes: Flags = planned[nodes]
        return of_nodes

    @cached_property
    def allocations(self) -> tuple[RandomAllocation | None, ...]:
        """How records are allocated to the releases of each column; None if there are none.

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
        return RandomAllocation(shares=shares, failure=failure) if shares else None

    def noise(self, epsilon: float, delta: float, copies: int) -> Mechanism:
        """Return noise that is enough for each node, however unequal its shares are."""
        found = [each for each in self.allocations if each is not None]
        if not found:
            return NoNoise()
        return allocated_noise(dominating(found), epsilon, delta, copies=copies)

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
        others = counts[:, np.newaxis] - 1
        most = np.clip(np.floor((others + 1) / self.steps * room), 0, others)
        tails = np.where(most < others, bdtrc(most, others, 1 / self.steps), 0.0)
        return np.asarray((tails[place] * ~self.is_global.T).sum(axis=1), dtype=np.float64)


Calibration = Literal["analytic", "classical", "paper"]
Decisions = Literal["apart", "together"]

ROUNDED_STEPS = (
    "the rounding of local steps does not move neighbouring datasets apart (take float64 records "
    "to make it negligible)"
)
"""What is not proved of local models, which are rounded in every step and never sent themselves."""


@dataclass(frozen=True, kw_only=True)
class WithoutReplacementReleases(Algorithm[StateT, LinearProblem]):
    """The noise on global updates of `WithoutReplacement`, and how far a record moves these.

    The numbers are parameters of `WithoutReplacement`, which explains and checks them.
    """

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
    sampling: Once = "arrival"
    records: int | None = None
    decisions: Decisions = "apart"
    nodes: int | None = None
    decisions_seed: int = 0
    noise: CorrelatedStrategy | None = None

    def leaking_data(self, size: AuditSize) -> tuple[Pair, Crowd]:
        """Return one node whose records oppose canaries: a single one, or one per release."""
        if self.radius is None:
            fail("algorithm", "one with a radius", None)
        return opposed_batches(self, size)

    @property
    def releases_decide(self) -> bool:
        """Whether the controller looks at more than coins: released models, or noisy losses."""
        return not isinstance(self.controller, FixedController)

    @cached_property
    def mechanism(self) -> Mechanism:
        """Gaussian noise on all that a record can move, relative to how far it can."""
        if self.epsilon is None:
            return NoNoise()
        if self.allocated is not None:
            return self.allocated.noise(self.epsilon, self.delta, self.copies)
        if self.calibration == "analytic":
            asked = self.controller.noisy_loss
            return Gaussian(self._total_multiplier / sqrt(1 - asked.budget_share if asked else 1))
        multiplier = claims.classical_noise_std(
            target_epsilon=self.epsilon, target_delta=self.delta, sensitivity=1.0
        )
        if self.calibration == "paper":
            multiplier /= self.sensitivity(0).bound
        return Gaussian(multiplier)

    @cached_property
    def _query(self) -> tuple[Mechanism, Sensitivity] | None:
        """Noise and sensitivity of the losses that the controller asks for, in units of C / b."""
        if (asked := self.controller.noisy_loss) is None:
            return None
        reason = f"{self.copies} copies of a record, each in units of bound / b, one loss replaced"
        moved = Sensitivity(sqrt(self.copies), "l2", reason)
        if self.epsilon is None:
            return NoNoise(), moved
        return Gaussian(self._total_multiplier / sqrt(asked.budget_share)), moved

    @property
    def _total_multiplier(self) -> float:
        """Return 1 / mu for all that a record can move, by exact accounting."""
        assert self.epsilon is not None
        return analytic_gaussian_noise_multiplier(
            target_epsilon=self.epsilon, target_delta=self.delta
        )

    def sensitivity(self, t: int) -> Sensitivity:
        """How far a record moves all releases that it affects, together."""
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
        """What the controller may look at, and how local steps are rounded."""
        assumed = list(self.controller.assumptions)
        if not self.controller.public:
            assumed.insert(0, PRIVATE_DECISIONS)
        if self.epsilon is not None and not isinstance(self.controller, AlwaysGlobal):
            assumed.append(ROUNDED_STEPS)
        if self.allocated is not None:
            assumed.append(SECRET)
        return tuple(assumed)

    def release_of(self, t: int) -> Release | tuple[Release, ...]:
        """Return the global updates of step t, one of each node at the most.

        Noisy losses that the controller asks for are released before them, on the same batch.

        Steps in which, by chance, nobody updates the global model are in the plan and not in the
        ledger. They do not change the cost, as long as there is at least one release.
        """
        if self.allocated is not None:
            return self._allocated_releases(t, self.allocated)
        if not self.controller.may_be_global(t):
            return ()
        joint = self._joint
        mechanism = self.mechanism if joint is None else CorrelatedRow.of(joint, t)
        update = Release(t, mechanism, self.sensitivity(t), batch=t)
        return update if self._query is None else (Release(t, *self._query, batch=t), update)

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
        """Return what one node releases in step t of an allocation, if that is global."""
        assert self.allocated is not None
        of_nodes = self.allocated.allocations
        one = len(of_nodes) == 1
        sampling, nodes = of_nodes[0 if one else node], None if one else (node,)
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
        return self.noise.release(self.mechanism.noise_multiplier, bounds)

    def unit_of(self, t: int, problem: LinearProblem) -> float:
        """Return Delta of a node that stepped in round t alone; 1 without noise."""
        unit = float(self._lemma4(problem, np.array([at(self.step_size, t + 1)]))[0])
        if self.allocated is None or self.epsilon is None:
            return unit
        return unit * self.batch_size * self.allocated.steps / float(problem.all_records.max())

    def _constants(self, problem: LinearProblem) -> Constants:
        """Return what Lemma 4 rests on."""
        if isinstance(problem, DenseProblem):
            wanted = f"a number, with AlwaysGlobal(), for a {type(problem).__name__}"
            fail("clipping_norm", wanted, None)
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
        L, mu = constants.loss_lipschitz, constants.smoothness
        steps, places = np.unique(largest_step, return_inverse=True)
        settings: Any = {"lipschitz": L, "batch_size": self.batch_size, "smoothness": mu}
        bounds = np.array([claims.sensitivity(step, **settings) for step in steps.tolist()])
        return np.asarray(bounds[places].reshape(largest_step.shape), dtype=np.float64)

    def _check_allocation(self) -> None:
        """Fail unless it is known before the run which releases an allocation is divided among."""
        known = isinstance(self.controller, FixedController) and self.calibration == "analytic"
        if not known or self.arrival_rate < 1 or self.noise is not None:
            wanted = (
                "'arrival', unless controller=AlwaysGlobal(), Periodic(..) or RandomGlobal(..), "
                "arrival_rate=1, calibration='analytic' and noise=None: the releases must be known "
                "before the run, and correlated noise of secret rounds is not proved"
            )
            fail("sampling", wanted, self.sampling)
        if self.models > 1 and self.decisions == "apart":
            wanted = "'together' with sampling='allocation': a record's models share its round"
            fail("decisions", wanted, self.decisions)
        if isinstance(self.controller, RandomGlobal) and self.nodes is None:
            fail("nodes", "the number of nodes, whose coins the plan draws", None)

    def _check_allocated(self, problem: LinearProblem, allocated: AllocatedPass) -> None:
        """Fail unless a problem has the stated nodes and records, and local steps hardly expand."""
        check_batches(problem)
        check_sizes(self.records, problem)
        if self.nodes not in (None, len(problem.all_records)):
            fail("nodes", f"{len(problem.all_records)}, as the problem has", self.nodes)
        if allocated.is_global.all() or self.epsilon is None:
            return
        sizes = [at(self.step_size, t + 1) for t in range(allocated.steps)]
        worst = allocated.expansions(problem.all_records, sizes, self._constants(problem)).max()
        if worst > allocated.failure:
            most = f"with a probability of at most {allocated.failure:.2g}"
            wanted = f"shorter steps or larger batches, so that local steps expand {most}"
            fail("step_size", wanted, f"{worst:.2g}")

    def _check_noise(self, noise: CorrelatedStrategy) -> None:
        """Fail unless a node releases in each round, from which noise in time is planned."""
        check_strategy(noise, self)
        if noise.topology is not None or noise.grid is not None:
            fail("noise", "correlated.InTime(topology=None, ..) without a grid", noise)
        every = isinstance(self.controller, AlwaysGlobal) and self.arrival_rate == 1
        if not every or self.controller.noisy_loss or self.calibration != "analytic":
            wanted = (
                "None, or AlwaysGlobal(), arrival_rate=1 and calibration='analytic': the rounds in "
                "which a node releases must be planned"
            )
            fail("noise", wanted, noise)

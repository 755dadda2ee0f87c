"""What SGD without replacement releases, its noise, and how far a record moves it (Lemma 4).

All of this follows from public numbers: nothing here looks at data.
"""

from __future__ import annotations

from functools import cached_property
from math import inf, sqrt
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from dpmesh._validate import fail
from dpmesh.algorithms.base import Algorithm, StateT
from dpmesh.controllers import AnyController
from dpmesh.controllers.base import PRIVATE_DECISIONS
from dpmesh.controllers.fixed import AlwaysGlobal, FixedController
from dpmesh.privacy.accounting import analytic_gaussian_noise_multiplier
from dpmesh.privacy.accounting.papers import without_replacement as claims
from dpmesh.privacy.mechanisms import Gaussian, Mechanism, NoNoise
from dpmesh.privacy.releases import Release
from dpmesh.privacy.rows import CorrelatedRow, check_strategy
from dpmesh.privacy.sensitivity import Sensitivity
from dpmesh.privacy.types import Floats
from dpmesh.problems import Constants, LinearProblem
from dpmesh.problems.dense import DenseProblem
from dpmesh.schedules import Schedule, at

if TYPE_CHECKING:
    from dpmesh.privacy.correlated import CorrelatedGaussian, CorrelatedStrategy

Calibration = Literal["analytic", "classical", "paper"]

ROUNDED_STEPS = (
    "the rounding of local steps does not move neighbouring datasets apart (take float64 records "
    "to make it negligible)"
)
"""What is not proved of local models, which are rounded in every step and never sent themselves."""


class WithoutReplacementReleases(Algorithm[StateT, LinearProblem]):
    """The noise on global updates of `WithoutReplacement`, and how far a record moves these.

    The numbers are parameters of `WithoutReplacement`, which explains and checks them.
    """

    epsilon: float | None
    delta: float
    models: int
    batch_size: int
    step_size: float | Schedule
    controller: AnyController
    calibration: Calibration
    copies: int
    radius: float | None
    arrival_rate: float
    clipping_norm: float | None
    noise: CorrelatedStrategy | None

    @property
    def releases_decide(self) -> bool:
        """Whether the controller looks at more than coins: released models, or noisy losses."""
        return not isinstance(self.controller, FixedController)

    @cached_property
    def mechanism(self) -> Mechanism:
        """Gaussian noise on all that a record can move, relative to how far it can."""
        if self.epsilon is None:
            return NoNoise()
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
        return tuple(assumed)

    def release_of(self, t: int) -> Release | tuple[Release, ...]:
        """Return the global updates of step t, one of each node at the most.

        Noisy losses that the controller asks for are released before them, on the same batch.

        Steps in which, by chance, nobody updates the global model are in the plan and not in the
        ledger. They do not change the cost, as long as there is at least one release.
        """
        if not self.controller.may_be_global(t):
            return ()
        joint = self._joint
        mechanism = self.mechanism if joint is None else CorrelatedRow.of(joint, t)
        update = Release(t, mechanism, self.sensitivity(t), batch=t)
        return update if self._query is None else (Release(t, *self._query, batch=t), update)

    @cached_property
    def _joint(self) -> CorrelatedGaussian | None:
        """The noise of a node's updates together, each record in one of them; None if apart."""
        if self.noise is None or self.epsilon is None:
            return None
        bounds = [self.sensitivity(t).bound for t in range(self.noise.rows)]
        return self.noise.release(self.mechanism.noise_multiplier, bounds)

    def unit_of(self, t: int, problem: LinearProblem) -> float:
        """Return Delta of a node that stepped in round t alone; 1 without noise."""
        return float(self._lemma4(problem, np.array([at(self.step_size, t + 1)]))[0])

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

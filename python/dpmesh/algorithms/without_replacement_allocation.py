"""Which steps of SGD without replacement are global, and how records are allocated to them.

All of this is drawn by public coins before the run, and looks at no data.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.special import bdtrc

from dpmesh.algorithms.allocation import allocated_noise, dominating
from dpmesh.controllers.fixed import FixedController
from dpmesh.keys import Key
from dpmesh.privacy.mechanisms import Mechanism, NoNoise
from dpmesh.privacy.sampling import RandomAllocation
from dpmesh.privacy.types import Floats
from dpmesh.problems import Constants

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
    def is_global(self) -> npt.NDArray[np.bool_]:
        """Which steps are global, shape (steps, nodes), or (steps, 1) if all nodes decide alike."""
        key = Key.seeded(self.seed)
        coins = [self.controller.choose((self.nodes, 1), t, key)[:, 0] for t in range(self.steps)]
        found = np.array(coins)
        return found[:, :1] if (found == found[:, :1]).all() else found

    @cached_property
    def allocations(self) -> tuple[RandomAllocation | None, ...]:
        """How records are allocated to the releases of each column; None if there are none.

        A share is that of the records whose first release after their mini-batch it is. Those after
        the last release have none: what they moved is forgotten at the end of the pass.
        """
        return tuple(self._allocation(column) for column in self.is_global.T)

    def _allocation(self, is_global: npt.NDArray[np.bool_]) -> RandomAllocation | None:
        failure = 0.0 if self.is_global.all() else self.failure  # the same for all nodes
        if is_global.all():
            return RandomAllocation(rounds=self.steps, failure=failure)
        gaps = np.diff(np.flatnonzero(is_global), prepend=-1)
        shares = tuple((gaps / self.steps).tolist())
        return RandomAllocation(shares=shares, failure=failure) if shares else None

    def noise(self, epsilon: float, delta: float, copies: int) -> Mechanism:
        """Return noise that is enough for each node, however unequal its shares are."""
        found = [each for each in self.allocations if each is not None]
        return (
            allocated_noise(dominating(found), epsilon, delta, copies=copies)
            if found
            else NoNoise()
        )

    def expansions(
        self, records: npt.NDArray[np.int64], step_sizes: Sequence[float], constants: Constants
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

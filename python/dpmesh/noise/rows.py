"""Rows of correlated noise as the mechanism of a release: together they are one joint event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import TYPE_CHECKING

from dpmesh._privacy_types import Floats
from dpmesh._validate import fail, require_methods
from dpmesh.noise.mechanisms import Mechanism, Source
from dpmesh.noise.sensitivity import Sensitivity

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from dpmesh.noise.correlated import CorrelatedGaussian


INDEPENDENT_ONLY = "views of single nodes are proved for independent noise only"


def check_strategy(noise: object, algorithm: object) -> None:
    """Fail unless an algorithm's noise is a strategy of `dpmesh.noise.correlated`."""
    expected = "correlated.InTime(..), correlated.BetweenPartners(..), correlated.Both(..) or None"
    expected = f"{expected} for {type(algorithm).__name__}, for which no other noise is proved"
    if isinstance(noise, (type, Mechanism)):  # which has such a method, too
        fail("noise", expected, noise)
    require_methods("noise", noise, expected, "release")


@dataclass(frozen=True)
class CorrelatedRow(Mechanism):
    """One row of the correlated noise of a run.

    A row alone has no cost: a plan charges the joint event of all rows that a run releases, once.
    The loop draws the rows in order, since each needs the noise of earlier ones, which is secret
    state of the run.

    Parameters
    ----------
    noise_to_sensitivity
        Standard deviation of this row's noise over the sensitivity, of the node with most secrets.
    joint
        The noise of the whole run.
    row
        Which row of it, from 0.
    """

    _: KW_ONLY
    joint: CorrelatedGaussian
    row: int
    noise: Floats | None = field(default=None, repr=False, compare=False)
    """What the loop drew for this row, secret; on a grid, the noisy values; None in a plan."""

    distribution = "gaussian"
    norm = "l2"
    deviation = 1.0
    composition = 2
    is_joint = True

    @classmethod
    def of(cls, joint: CorrelatedGaussian, row: int) -> CorrelatedRow:
        """Return a row of the noise of a run.

        Raises
        ------
        ValueError
            If there is no such row: a longer run needs noise that is planned for it.
        """
        if not 0 <= row < joint.rounds:
            expected = f"no more than the {joint.rounds} rows that correlated noise is planned for"
            fail("rounds", expected, f"{row + 1} or more")
        return cls(float(joint.spreads[row]), joint=joint, row=row)

    @property
    def name(self) -> str:
        """``"correlated_gaussian"``, or of discrete noise on a grid."""
        discrete = "" if self.joint.grid is None else "discrete_"
        return f"{discrete}correlated_gaussian"

    @property
    def spacing(self) -> float:
        """The spacing of the row's grid."""
        return (self.joint.grid or 0.0) / float(self.joint.recursion[self.row, 0])

    @property
    def joint_event(self) -> CorrelatedGaussian:
        """The noise of the whole run."""
        return self.joint

    @property
    def joint_row(self) -> int:
        """Which row of it this is."""
        return self.row

    @property
    def event(self) -> DpEvent:
        """No event of its own; all rows together are one release, of a `Plan.event`."""
        import dp_accounting

        return dp_accounting.NoOpDpEvent()

    def with_rows(self, draw: Callable[[CorrelatedRow], Floats]) -> CorrelatedRow:
        """Return the mechanism with its row of noise, which the loop of a run draws."""
        return replace(self, noise=draw(self))

    def _distance(self, sensitivity: Sensitivity, dim: int) -> float:
        return sensitivity.bound

    @property
    def _widest(self) -> float:
        """The multiplier of the row with most noise: rows keep the joint proportions."""
        return float(self.joint.spreads.max())

    def _add_noise(self, values: Floats, scale: float, source: Source) -> Floats:
        if self.noise is None:
            fail("mechanism", "the loop of a run, which keeps earlier rows of noise", "one row")
        if self.joint.grid is not None:
            return self.noise
        return values + self.noise * self.rounding_factor(values)

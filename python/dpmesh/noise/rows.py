"""Rows of correlated noise as mechanisms of releases, which together are one joint event."""

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
    """Fail with a ValueError unless an algorithm's noise is a strategy of correlated noise.

    Any object with the method `release` of `CorrelatedStrategy` counts as one.
    """
    expected = "correlated.InTime(..), correlated.BetweenPartners(..), correlated.Both(..) or None"
    expected = f"{expected} for {type(algorithm).__name__}, for which no other noise is proved"
    if isinstance(noise, (type, Mechanism)):  # a mechanism also has a method `release`
        fail("noise", expected, noise)
    require_methods("noise", noise, expected, "release")


@dataclass(frozen=True)
class CorrelatedRow(Mechanism):
    """One row of the correlated noise of a run.

    A row alone has no epsilon: a plan counts the joint event of all released rows once. The loop of
    a run draws the rows in order, since each needs the noise of earlier rows, which is secret state
    of the run.

    Parameters
    ----------
    noise_to_sensitivity
        Standard deviation of this row's noise over the sensitivity, at the node with most secrets:
        see `CorrelatedGaussian.spreads`.
    joint
        Noise of the whole run.
    row
        Index of this row in it, from 0.
    """

    _: KW_ONLY
    joint: CorrelatedGaussian
    row: int
    noise: Floats | None = field(default=None, repr=False, compare=False)
    """Secret noise of this row, drawn by the loop; on a grid, the noisy values; None in a plan."""

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
            If there is no such row; a longer run needs noise that is planned for it.
        """
        if not 0 <= row < joint.rounds:
            expected = f"no more than the {joint.rounds} rows that correlated noise is planned for"
            fail("rounds", expected, f"{row + 1} or more")
        return cls(float(joint.spreads[row]), joint=joint, row=row)

    @property
    def name(self) -> str:
        """``"correlated_gaussian"``, or ``"discrete_correlated_gaussian"`` on a grid."""
        if self.joint.grid is None:
            return "correlated_gaussian"
        return "discrete_correlated_gaussian"

    @property
    def spacing(self) -> float:
        """Distance between neighbouring values of the row; 0 for real-valued noise."""
        grid = self.joint.grid or 0.0
        return grid / float(self.joint.recursion[self.row, 0])

    @property
    def joint_event(self) -> CorrelatedGaussian:
        """Noise of the whole run."""
        return self.joint

    @property
    def joint_row(self) -> int:
        """Index of this row in the `joint_event`, from 0."""
        return self.row

    @property
    def event(self) -> DpEvent:
        """The event without cost; all rows together are one event of the plan, `Plan.event`."""
        import dp_accounting

        return dp_accounting.NoOpDpEvent()

    def with_rows(self, draw: Callable[[CorrelatedRow], Floats]) -> CorrelatedRow:
        """Return the mechanism with its row of noise, which `draw` returns."""
        return replace(self, noise=draw(self))

    def _distance(self, sensitivity: Sensitivity, dim: int) -> float:
        return sensitivity.bound

    @property
    def _widest(self) -> float:
        """Noise ratio of the row with most noise: rows have one factor, to keep their ratios."""
        return float(self.joint.spreads.max())

    def _add_noise(self, values: Floats, scale: float, source: Source) -> Floats:
        if self.noise is None:
            fail("mechanism", "the loop of a run, which keeps earlier rows of noise", "one row")
        if self.joint.grid is not None:
            return self.noise
        return values + self.noise * self.rounding_factor(values)

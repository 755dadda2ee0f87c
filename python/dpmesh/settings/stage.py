"""The table [first_stage] of experiment files and contracts.

A first stage comes before the training of a linear model. It releases the mean of the records
(private centering), and optionally their second moment, by secure aggregation or by gossip.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Literal

from dpmesh._validate import fail, positive
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.algorithms.first_stage import FirstStage
from dpmesh.defaults.rule import STAGE_SHARE, mu_of
from dpmesh.noise.secure import SecureSum
from dpmesh.privacy.budget import Budget

RULE = "rule"
"""Value of a noise that is chosen by the rule of `dpmesh.defaults`."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Settings of a first stage: private centering and, optionally, a private second moment.

    Parameters
    ----------
    noise_to_sensitivity
        Standard deviation of the noise on the mean over its sensitivity. ``"rule"`` needs an
        epsilon of the algorithm, and gives the mean a tenth of mu^2, as in estimators.
    moment_noise
        The same ratio for the second moment, which needs secure aggregation. None (default) for
        private centering alone.
    """

    noise_to_sensitivity: float | Literal["rule"]
    moment_noise: float | Literal["rule"] | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value not in (RULE, None):
                positive(name, value)

    def before(
        self,
        algorithm: AnyAlgorithm,
        *,
        sites: int,
        records: int,
        dim: int,
        budget: Budget | None = None,
    ) -> AnyAlgorithm:
        """Return an algorithm after this stage.

        Parameters
        ----------
        algorithm
            One that learns from records with one more feature.
        sites, records, dim
            Number of nodes, of the records of all, and of their features.
        budget
            Budget of the whole run, which ``"rule"`` divides.

        Raises
        ------
        ValueError
            If the algorithm has no first stage, or there is no budget to divide.
        """
        secure_sum: SecureSum | None = getattr(algorithm, "secure_sum", None)
        dropouts = 0
        if secure_sum is not None:
            dropouts = secure_sum.dropouts
        elif self.moment_noise is not None:
            fail("moment_noise", "none: a second moment takes a secure sum", self.moment_noise)
        moment_noise = None
        if self.moment_noise is not None:
            moment_noise = _scale(self.moment_noise, budget, dropouts)
        return FirstStage.before(
            algorithm,
            sites=sites,
            records=records,
            features=dim,
            mean_noise=_scale(self.noise_to_sensitivity, budget, dropouts),
            moment_noise=moment_noise,
        )


def _scale(noise: float | Literal["rule"], budget: Budget | None, dropouts: int) -> float:
    """Return noise as a number; the rule gives it a share of the budget of the run."""
    if not isinstance(noise, str):
        return noise
    if budget is None:
        expected = f'noise as a number: "{RULE}" divides an epsilon to calibrate to'
        fail("first_stage", expected, repr(noise))
    releases = 1 + dropouts  # a site that is lost may release it again
    return sqrt(releases / STAGE_SHARE) / mu_of(budget.epsilon, budget.delta)

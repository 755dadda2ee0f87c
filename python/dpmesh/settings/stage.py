"""The table [first_stage] of experiment files and contracts."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Any, Literal

from dpmesh._validate import fail, positive
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.algorithms.first_stage import FirstStage, SecondMoments
from dpmesh.algorithms.record_sums import RecordSums
from dpmesh.defaults.rule import STAGE_SHARE, mu_of
from dpmesh.privacy.budget import Budget

RULE = "rule"


@dataclass(frozen=True, kw_only=True)
class Stage:
    """What all nodes add up before an algorithm for linear models learns: see `FirstStage`.

    Parameters
    ----------
    noise_to_sensitivity
        Scale of the noise of the mean over how far one record moves it. "rule", beside an epsilon
        of the algorithm: a tenth of the whole mu^2, as estimators take.
    moment_noise
        Likewise of a second moment after the mean, under a secure sum; by default there is none.
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
            What learns from records with one more feature.
        sites, records, dim
            Number of nodes, of the records of all, and of their features.
        budget
            That of the whole run, which ``"rule"`` divides.

        Raises
        ------
        ValueError
            If the algorithm has no first stage, or there is no budget to divide.
        """
        sums = getattr(algorithm, "secure_sum", None)
        public: dict[str, Any] = {"sites": sites, "records": records, "secure": sums is not None}
        if sums is not None:
            public |= {"colluding": sums.colluding, "dropouts": sums.dropouts}
        elif self.moment_noise is not None:
            fail("moment_noise", "none: a second moment takes a secure sum", self.moment_noise)

        def scale(noise: float | Literal["rule"]) -> float:
            if not isinstance(noise, str):
                return noise
            if budget is None:
                wanted = f'noise as a number: "{RULE}" divides an epsilon to calibrate to'
                fail("first_stage", wanted, repr(noise))
            times = 1 + public.get("dropouts", 0)  # each of which may release it again
            return sqrt(times / STAGE_SHARE) / mu_of(budget.epsilon, budget.delta)

        mean = RecordSums(dim=dim, noise_to_sensitivity=scale(self.noise_to_sensitivity), **public)
        moment = None
        if self.moment_noise is not None:
            noise, triangle = scale(self.moment_noise), dim * (dim + 1) // 2
            moment = SecondMoments(dim=triangle, noise_to_sensitivity=noise, **public)
        return FirstStage(algorithm=algorithm, mean=mean, moment=moment)

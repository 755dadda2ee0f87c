"""What a fit did and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import dpmesh as dm
from dpmesh.privacy.report import Report


@dataclass(frozen=True, kw_only=True)
class FitReport:
    """The settings, the traffic and the privacy of a fit.

    Parameters
    ----------
    estimator
        Name of the class.
    sites
        Number of sites.
    records
        The smallest number of records of a site.
    algorithm, topology
        In words.
    rounds
        Number of rounds.
    megabytes
        What was sent over all links, in 10**6 bytes.
    privacy
        The guarantee, which holds for each record of each site.
    """

    estimator: str
    sites: int
    records: int
    algorithm: str
    topology: str
    rounds: int
    megabytes: float
    privacy: Report

    def __str__(self) -> str:
        sites = f"{self.sites} site{'s' * (self.sites != 1)}"
        return "\n".join(
            [
                f"{self.estimator} of {sites} with at least {self.records} records each",
                f"algorithm   {self.algorithm}",
                f"topology    {self.topology}",
                f"rounds      {self.rounds}",
                f"traffic     {self.megabytes:.4g} MB",
                str(self.privacy),
            ]
        )

    def as_dict(self) -> dict[str, Any]:
        """Return it in plain types that JSON can hold."""
        return {**vars(self), "privacy": self.privacy.as_dict()}

    @classmethod
    def from_dict(cls, told: Mapping[str, Any]) -> FitReport:
        """Return the report that `as_dict` gave."""
        return cls(**{**told, "privacy": Report.from_dict(told["privacy"])})


def report_of(
    estimator: str, run: dm.Run, problem: dm.LinearProblem, rounds: int, public: str
) -> FitReport:
    """Return the report of a run; `public` says which facts about the data count as public."""
    privacy = run.privacy
    if privacy.is_private:
        privacy = replace(privacy, assumptions=(*privacy.assumptions, public))
    return FitReport(
        estimator=estimator,
        sites=problem.nodes,
        records=problem.fewest_records,
        algorithm=str(run.settings["algorithm"]),
        topology=str(run.settings["topology"]),
        rounds=rounds,
        megabytes=run.traffic.megabytes,
        privacy=privacy,
    )

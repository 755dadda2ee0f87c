"""Reports of fits: the settings, the guarantee and its epsilon, as `report_` of an estimator.

`PrivateEstimator.fit` calls `report_of`. Model files hold `FitReport.as_dict`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import dpmesh as dm
from dpmesh._epsilons import rounded_up
from dpmesh._html import InNotebooks
from dpmesh.algorithms.calibrated import Calibrated
from dpmesh.algorithms.first_stage import FirstStage
from dpmesh.defaults import Choice
from dpmesh.defaults.choice import EVERYBODY, threat_model_of
from dpmesh.privacy.plain_words import plain_words
from dpmesh.privacy.report import Report
from dpmesh.privacy.views import EverybodyButPartners
from dpmesh.run.identity import in_lines
from dpmesh.tables import Columns, Number
from dpmesh.tables.calibration import Calibration

_FILE_KEYS = {"counts_all_sites": "together", "threat_model": "against"}
"""Keys of model files, by the field of the report, where the two names differ."""

NORMAL_95 = 1.96
"""Half width of a 95% interval of a normal variable, in standard deviations."""


@dataclass(frozen=True, kw_only=True)
class FitReport(InNotebooks):
    """Settings, traffic and privacy of one fit of an estimator.

    Parameters
    ----------
    estimator
        Name of the estimator's class.
    sites
        Number of sites.
    records
        Public number of records: of all sites together, or of the smallest site.
    algorithm, topology
        Names of the algorithm and of the communication graph, with settings, in words.
    rounds
        Number of rounds.
    megabytes
        Traffic over all links together, in 10**6 bytes.
    privacy
        The (epsilon, delta) guarantee for replacing one record of one site.
    threat_model
        The adversary of the guarantee, in words.
    counts_all_sites
        True if `records` counts all sites together, as under secure aggregation; False if it is
        the size of the smallest site.
    features
        Feature map of the model, in words.
    calibration
        For a regression: totals of the predictions before and after calibration, and the noisy
        total of the targets; or the reason for no calibration, in words. Empty for a classifier.
    fits
        Number of fits of this estimator and its clones, in this process, that used some of the same
        records. This fit is included. `privacy` is the guarantee of this fit alone.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> X = np.random.default_rng(0).uniform(-1, 1, size=(300, 2))
    >>> model = dm.sklearn.PrivateClassifier(4.0, ranges=(-1, 1), classes=[False, True])
    >>> model.fit(X, X[:, 0] > 0, groups=np.arange(300) % 3).report_.sites
    3
    """

    estimator: str
    sites: int
    records: int
    algorithm: str
    topology: str
    rounds: int
    megabytes: float
    privacy: Report
    threat_model: str = EVERYBODY
    counts_all_sites: bool = False
    features: str = ""
    calibration: str = ""
    fits: int = 1

    def __str__(self) -> str:
        sites = f"{self.sites} site{'s' * (self.sites != 1)}"
        records = f"at least {self.records} records each"
        if self.counts_all_sites:
            records = f"{self.records} records together"
        lines = [f"{self.estimator} of {sites} with {records}"]
        if self.sites == 1:
            lines.append("sites       all records are one site")
        lines.append(f"adversary   {self.threat_model}")
        if self.features:
            lines.append(f"features    {self.features}")
        if self.calibration:
            lines.extend(in_lines("calibration", self.calibration))
        lines.extend(in_lines("algorithm", self.algorithm))
        if self.topology != "None":
            lines.append(f"topology    {self.topology}")
        lines.append(f"rounds      {self.rounds}")
        lines.append(f"traffic     {self.megabytes:.4g} MB")
        if self.fits > 1:
            lines.append(f"fits        {self.fits} of these records")
        lines.append(str(self.privacy))
        return "\n".join(lines)

    @property
    def plain_words(self) -> str:
        """Explanation of the guarantee for a lay reader: the meaning for one person."""
        words = plain_words(self.privacy.epsilon, self.privacy.delta, self.threat_model)
        if not self.privacy.seeded:
            return words
        return f"NOT private: the noise is seeded. With secret noise:\n{words}"

    def as_dict(self) -> dict[str, Any]:
        """Return the report in plain types that JSON can hold."""
        content = {_FILE_KEYS.get(name, name): value for name, value in vars(self).items()}
        return content | {"privacy": self.privacy.as_dict()}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> FitReport:
        """Return the report from a dictionary that `as_dict` returned."""
        fields = {file_key: name for name, file_key in _FILE_KEYS.items()}
        content = {fields.get(key, key): value for key, value in saved.items()}
        return cls(**{**content, "privacy": Report.from_dict(saved["privacy"])})


def report_of(
    estimator: str,
    run: dm.Run,
    chosen: Choice,
    problem: Any,
    columns: Columns,
    also_public: str,
    calibration: str = "",
) -> FitReport:
    """Return the report of a fit.

    Parameters
    ----------
    estimator
        Name of the estimator's class.
    run, chosen, problem, columns
        The finished run, its settings, its problem and the columns of the table.
    also_public
        Facts that the guarantee assumes to be public, in words, in addition to the numbers of sites
        and records; may be empty.
    calibration
        See `FitReport`.
    """
    privacy = run.privacy
    if chosen.view is not None:
        privacy = _against_view(run, chosen.view)
    secure = getattr(chosen.algorithm, "secure_sum", None) is not None
    algorithm = chosen.algorithm
    if isinstance(algorithm, Calibrated):
        algorithm = algorithm.algorithm
    stage = None
    if isinstance(algorithm, FirstStage):
        stage = algorithm
    if privacy.is_finite:
        public_counts = "of records of the smallest site"
        if secure:
            public_counts = "of all records together"
        elif stage is not None:  # its sums are over the records of all sites
            public_counts += " and of all sites together"
        public = f"the number of sites and {public_counts} are public"
        if also_public:
            public += f", and so is {also_public}"
        privacy = replace(privacy, assumptions=(*privacy.assumptions, public))
    return FitReport(
        estimator=estimator,
        sites=problem.nodes,
        records=int(problem.records.sum()) if secure else problem.fewest_records,
        algorithm=str(run.settings["algorithm"]),
        topology=str(run.settings["topology"]),
        rounds=chosen.rounds,
        megabytes=run.traffic.megabytes,
        privacy=privacy,
        threat_model=threat_model_of(chosen.algorithm, chosen.view),
        counts_all_sites=secure,
        features=_features_in_words(columns, stage),
        calibration=calibration,
    )


def totals_in_words(calibration: Calibration, target: Number) -> str:
    """Return the totals of the predictions before and after calibration, as text.

    Parameters
    ----------
    calibration
        The calibration of the model, in units of targets scaled to [-1, 1].
    target
        The public range of the targets.
    """
    middle = (target.low + target.high) / 2
    half_width = (target.high - target.low) / 2
    records = calibration.records

    def total(mean: float) -> str:
        """Return the total of all records in the units of y, from a mean in scaled units."""
        return f"{records * (middle + half_width * mean):,.6g}"

    noise = f"{NORMAL_95 * records * half_width * calibration.noise:,.3g}"
    return (
        f"predictions of {records:,} records added up to {total(calibration.mean_prediction)}, and "
        f"now to {total(calibration.mean_target)}, the noisy total of the targets (95%: "
        f"+- {noise} by noise alone; slope {calibration.slope:.3g}). Targets are clipped to "
        f"[{target.low:g}, {target.high:g}]. The total counts towards epsilon"
    )


def _against_view(run: dm.Run, view: EverybodyButPartners) -> Report:
    """Return the privacy report of a run under a weaker threat model than all other sites.

    The report's epsilon is under `view`. An assumption states the epsilon against all other sites.
    """
    worst_epsilon = rounded_up(run.privacy.epsilon)
    worst_case = (
        "against all other sites together, who know each secret, this fit alone has epsilon"
        f" = {worst_epsilon}"
    )
    cost = run.ledger.cost(run.privacy.delta, view=view)
    return replace(
        run.privacy,
        epsilon=cost.epsilon,
        accountant=cost.accountant,
        view=None,
        view_proof=None,
        assumptions=(*run.privacy.assumptions, worst_case),
    )


def _features_in_words(columns: Columns, stage: FirstStage | None) -> str:
    """Return the feature map and the effect of the first stage, if there is one, as text."""
    numbers = f"{columns.features.name}: {columns.dim} numbers"
    if stage is None:
        return numbers
    if stage.moment is None:
        return f"{numbers}, centered by their private mean, which counts towards epsilon"
    shorter = "shortened along the largest axes of their private second moment"
    return f"{numbers}, centered by their private mean and {shorter}; both count towards epsilon"

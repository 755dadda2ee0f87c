"""Evaluation populations other than all test records: each site's own ones, and the rarest class.

The verdict on a federation (`dpmesh.run.verdict`) is about all test records. It also shows scores
on two kinds of parts of them:

- the *own test records* of a site, which `owners_by_label` deals to it, with labels distributed
  as in its training records;
- the test records of the *rarest class*: the class with the fewest training records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmesh._ragged import Indices, Numbers

__all__ = ["FEWEST_TESTED", "Population", "RareClass", "owners_by_label"]

FEWEST_TESTED = 20
"""Number of test records below which a site or a class has no interval."""


@dataclass(frozen=True, kw_only=True)
class RareClass:
    """Recall of the class with the fewest training records, on the test records of a split.

    Parameters
    ----------
    name
        Name of the class.
    federation, single_site
        Recall of the federation, and the mean recall of non-private single-site models.
    tested
        Number of test records of the class.
    """

    name: str
    federation: float
    single_site: float
    tested: int

    def as_dict(self) -> dict[str, Any]:
        """Return the recalls in plain types that JSON can hold, under the keys of saved files."""
        return {
            "name": self.name,
            "federation": self.federation,
            "alone": self.single_site,
            "tested": self.tested,
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> RareClass:
        """Return the recalls of which `as_dict` returned this dictionary."""
        return cls(
            name=saved["name"],
            federation=saved["federation"],
            single_site=saved["alone"],
            tested=saved["tested"],
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Population:
    """Scores of a split on parts of its test records, in the main measure.

    Parameters
    ----------
    federation, single_sites
        Scores of the federation, and of each site's non-private local model, on the site's own
        test records, shape (sites,).
    tested
        Number of test records of each site, shape (sites,).
    rare
        Recall of the rarest class; None for a regression and for several labels.
    """

    federation: Numbers
    single_sites: Numbers
    tested: Indices
    rare: RareClass | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the scores in plain types that JSON can hold."""
        return {
            "federation": self.federation.tolist(),
            "alone": self.single_sites.tolist(),
            "tested": self.tested.tolist(),
            "rare": None if self.rare is None else self.rare.as_dict(),
        }

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Population:
        """Return the scores of which `as_dict` returned this dictionary."""
        rare = saved["rare"]
        return cls(
            federation=np.array(saved["federation"], np.float64),
            single_sites=np.array(saved["alone"], np.float64),
            tested=np.array(saved["tested"], np.int64),
            rare=None if rare is None else RareClass.from_dict(rare),
        )


TARGET_GROUPS = 10
"""Number of quantile groups of regression targets, which take the place of labels."""


def owners_by_label(
    labels: npt.NDArray[Any],
    owners: Indices,
    tested: npt.NDArray[Any],
    *,
    sites: int,
    by_value: bool = False,
) -> Indices:
    """Assign each common test record to a site, so that labels are distributed as in training.

    Of the test records of a label, each site gets the share that it has of the training records of
    this label. If sites differ in their label distributions only, these are test records from the
    distribution of each site.

    Parameters
    ----------
    labels, owners
        Label and site of each training record, shape (records,).
    tested
        Label of each test record, shape (test records,).
    sites
        Number of sites.
    by_value
        True if labels are targets of a regression, which are divided into `TARGET_GROUPS` groups.

    Returns
    -------
    The site of each test record, shape (test records,).
    """
    if by_value:
        edges = np.quantile(labels, np.linspace(0, 1, TARGET_GROUPS + 1)[1:-1])
        labels = np.digitize(labels, edges)
        tested = np.digitize(tested, edges)
    draw = np.random.default_rng(0)
    assigned_sites = np.zeros(len(tested), np.int64)
    for label in np.unique(tested):
        records = draw.permutation(np.flatnonzero(tested == label))
        counts = np.bincount(owners[labels == label], minlength=sites).astype(np.float64)
        if not counts.any():
            counts[:] = 1.0  # no site trains on this label: equal shares
        # Systematic sampling: site s gets the records at positions in [ends[s - 1], ends[s]).
        ends = np.cumsum(counts) / counts.sum() * len(records)
        positions = np.arange(len(records)) + draw.random()
        assigned_sites[records] = np.searchsorted(ends, positions, "right")
    return np.minimum(assigned_sites, sites - 1)

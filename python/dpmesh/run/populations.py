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
"""Test records below which a site or a class gets no interval of its own."""


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


GROUPS = 10
"""Groups of equal size into which targets of a regression are cut."""


def owners_by_label(
    labels: npt.NDArray[Any],
    owners: Indices,
    tested: npt.NDArray[Any],
    *,
    sites: int,
    by_value: bool = False,
) -> Indices:
    """Deal common test records to sites, so that each site gets labels as it trains on.

    A test record goes to a site with the share that the site has of the training records of its
    label: these are a site's own records where sites differ by their labels alone.

    Parameters
    ----------
    labels, owners
        Label and site of each training record, shape (records,).
    tested
        Label of each test record, shape (test records,).
    sites
        Number of sites.
    by_value
        True if labels are targets of a regression, which are cut into `GROUPS` groups.

    Returns
    -------
    The site of each test record, shape (test records,).
    """
    if by_value:
        edges = np.quantile(labels, np.linspace(0, 1, GROUPS + 1)[1:-1])
        labels = np.digitize(labels, edges)
        tested = np.digitize(tested, edges)
    draw = np.random.default_rng(0)
    result = np.zeros(len(tested), np.int64)
    for label in np.unique(tested):
        records = draw.permutation(np.flatnonzero(tested == label))
        counts = np.bincount(owners[labels == label], minlength=sites).astype(np.float64)
        if not counts.any():
            counts[:] = 1.0
        ends = np.cumsum(counts) / counts.sum() * len(records)
        result[records] = np.searchsorted(ends, np.arange(len(records)) + draw.random(), "right")
    return np.minimum(result, sites - 1)

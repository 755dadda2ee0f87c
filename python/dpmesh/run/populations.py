"""Evaluation populations beside all sites' records: each site's own ones, and the rarest class."""

from __future__ import annotations

from dataclasses import dataclass

from dpmesh._ragged import Indices, Numbers

__all__ = ["FEWEST_TESTED", "Population", "RareClass"]

FEWEST_TESTED = 20
"""Test records below which a site or a class gets no interval of its own."""


@dataclass(frozen=True, kw_only=True)
class RareClass:
    """Recall of the class with the fewest training records, on the test records of a split.

    Parameters
    ----------
    name
        Name of the class.
    federation, alone
        Recall of the federation, and the mean recall of single sites.
    tested
        Number of test records of the class.
    """

    name: str
    federation: float
    alone: float
    tested: int


@dataclass(frozen=True, kw_only=True, eq=False)
class Population:
    """Scores of a split on parts of its test records, in the main measure.

    Parameters
    ----------
    federation, alone
        On each site's own test records: scores of the federation, and of the site's own model
        without privacy, shape (sites,).
    tested
        Number of test records of each site, shape (sites,).
    rare
        Recall of the rarest class; None for a regression and for several labels.
    """

    federation: Numbers
    alone: Numbers
    tested: Indices
    rare: RareClass | None = None

"""What a plan is charged for: the rows of correlated noise that it releases as one joint event."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmesh._validate import fail
from dpmesh.privacy.mechanisms import Gaussian
from dpmesh.privacy.releases import Release
from dpmesh.privacy.rows import CorrelatedRow

if TYPE_CHECKING:
    from dpmesh.privacy.correlated import CorrelatedGaussian


def joints(releases: Iterable[Release]) -> list[CorrelatedGaussian]:
    """Return the joint events that rows among these belong to, each once."""
    found = {r.mechanism.joint: None for r in releases if isinstance(r.mechanism, CorrelatedRow)}
    return list(found)


def joints_from(stored: Iterable[Mapping[str, Any]]) -> list[CorrelatedGaussian]:
    """Return the joint events that a plan stored."""
    fields = list(stored)
    if not fields:
        return []  # without an import of the optimisers
    from dpmesh.privacy.correlated import CorrelatedGaussian

    return [CorrelatedGaussian.from_dict(each) for each in fields]


def charged(releases: Sequence[Release], colluding: int | None = None) -> list[Release]:
    """Return releases in which rows of correlated noise are one Gaussian release for each record.

    A joint event is charged for the rows that are released: mu of a record is that of the rows of
    its batch in the leading block of C. Rows that depend on all data are used by every record.

    Parameters
    ----------
    releases
        Those that depend on the data.
    colluding
        How many nodes collude with an observer who sees all messages; None for all other nodes, to
        whom noise that partners share hides nothing.

    Raises
    ------
    ValueError
        If a release is more sensitive than its noise was planned for.
    """
    rows: defaultdict[CorrelatedGaussian, list[Release]] = defaultdict(list)
    result = []
    for release in releases:
        if isinstance(release.mechanism, CorrelatedRow):
            rows[release.mechanism.joint].append(release)
        else:
            result.append(release)
    for joint, of_joint in rows.items():
        result += _of_one(joint, of_joint, colluding)
    return sorted(result, key=lambda release: release.round)


def _of_one(
    joint: CorrelatedGaussian, releases: Sequence[Release], colluding: int | None
) -> list[Release]:
    uses: defaultdict[int | None, dict[int, Release]] = defaultdict(dict)
    bounds = np.asarray(joint.sensitivities)
    for release in releases:
        row = _row(release)
        planned = float(bounds[row])
        if release.sensitivity.norm != "l2" or release.sensitivity.bound > planned * (1 + 1e-12):
            fail("sensitivity", f"at most {planned:g}, as the noise is planned", release)
        if release.sampling is not None or release.nodes is not None:
            wanted = "rows of all nodes and no samples: their amplification is not proved"
            fail("release", wanted, release)
        if row in uses[release.batch]:
            fail("release", f"row {row} of the correlated noise once", "twice")
        uses[release.batch][row] = release
    everywhere = uses.get(None, {})
    patterns = [sorted({*used, *everywhere}) for used in uses.values()]
    released = joint.prefix(1 + max(max(pattern) for pattern in patterns))
    mus = released.mus(patterns, colluding)
    return [
        Release(first.round, Gaussian(1 / mu), first.sensitivity, batch=batch)
        for (batch, used), mu in zip(uses.items(), mus, strict=True)
        for first in [used[min(used)]]
    ]


def _row(release: Release) -> int:
    assert isinstance(release.mechanism, CorrelatedRow)
    return release.mechanism.row

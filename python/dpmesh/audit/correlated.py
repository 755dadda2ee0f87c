"""Correlated noise as an observer of all messages sees it, who knows no noise and no secret."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from dpmesh.privacy.correlated import CorrelatedGaussian
from dpmesh.privacy.rows import CorrelatedRow
from dpmesh.privacy.types import Floats
from dpmesh.run.watch import Passage

Numbers = npt.NDArray[np.float64]


def by_joint(passages: Sequence[Passage]) -> dict[CorrelatedGaussian, list[int]]:
    """Return which passages are rows of each joint event, in order."""
    found: defaultdict[CorrelatedGaussian, list[int]] = defaultdict(list)
    for index, passage in enumerate(passages):
        if isinstance(passage.release.mechanism, CorrelatedRow):
            found[passage.release.mechanism.joint].append(index)
    return dict(found)


def rows_of(
    passages: Sequence[Passage], apart: Callable[[int], Numbers], indices: Sequence[int]
) -> list[Numbers]:
    """Return `apart` of the passages of a joint event by its rows, all nodes of a row together.

    Nodes that take turns release a row in several messages; one that released nothing has zeros.
    """
    named = [numbers for i in indices if (numbers := passages[i].rows) is not None]
    count = 1 + max((int(numbers.max()) for numbers in named), default=-1)
    found: dict[int, Numbers] = {}
    for i in indices:
        mechanism, part = passages[i].release.mechanism, apart(i)
        assert isinstance(mechanism, CorrelatedRow)
        if (numbers := passages[i].rows) is None:
            found[mechanism.row] = part
        else:
            whole = found.setdefault(mechanism.row, np.zeros((count, part.shape[1])))
            whole[numbers] = part
    return [found[row] for row in sorted(found)]


def noise_between(passage: Passage, values: Floats) -> Numbers:
    """Return `values` less what was released, in the plan's scale: rounding makes noise larger."""
    apart = np.subtract(values, passage.inside, dtype=np.float64)
    return np.asarray(apart / passage.release.mechanism.rounding_factor(passage.inside))


def standardized(joint: CorrelatedGaussian, rows: Sequence[Floats]) -> list[Numbers]:
    """Return what the joint event's noise is made from, if these are its first rows of noise.

    Independent standard normals for the noise itself; for the shift that a record causes, a vector
    whose length is mu.

    Parameters
    ----------
    joint
        The noise that the plan claims.
    rows
        Each of shape (nodes, dim).
    """
    result = []
    for t in range(len(rows)):
        factors = joint.recursion[t]
        back = min(t + 1, len(factors))
        fresh = sum(factors[k] * np.asarray(rows[t - k], dtype=np.float64) for k in range(back))
        secrets = joint.secrets_of(t)
        if secrets is not None:
            values, vectors = np.linalg.eigh(secrets.covariance)
            fresh = (vectors / np.sqrt(values)) @ (vectors.T @ fresh)
        drawn = joint.noise_multiplier * joint.widened(np.shape(fresh)[-1])
        result.append(np.asarray(fresh / drawn))
    return result

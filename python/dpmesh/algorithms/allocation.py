"""Random allocation: each record is used once, in a round that its node draws secretly.

`OnlineLearning` and `WithoutReplacement` share these checks of public numbers, the calibration of
noise, and the assumptions for reports. A *share* is the fraction of a node's records that an
allocation assigns to a release; without shares the rounds have equal ones. The theorem and its
proof are in ``docs/privacy/random_allocation_proof.md``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Literal, TypeAlias

import numpy as np

from dpmesh._ragged import Numbers
from dpmesh._validate import fail, integer, one_of
from dpmesh.accounting import random_allocation_noise_to_sensitivity
from dpmesh.noise.mechanisms import Gaussian
from dpmesh.privacy.sampling import RandomAllocation
from dpmesh.problems.partition import PartitionedProblem

BatchSampling: TypeAlias = Literal["arrival", "allocation"]
"""Assignment of records to batches: in the order of arrival, or by random allocation."""

SECRET_ROUNDS = (
    "all records are there before the first round; which round uses a record, and how many records "
    "a round uses, stays secret, also from somebody who measures how long a node takes"
)
"""Assumption of random allocation, for privacy reports."""


NO_CORRELATED_NOISE = (
    "sampling='allocation': correlated noise of records whose rounds are secret is not proved"
)
"""Reason why random allocation requires independent noise."""

NO_WEAKER_ADVERSARY = (
    "which rounds use a record is secret: no proof covers an adversary who sees fewer messages"
)
"""Reason why random allocation has no epsilon under a weaker adversary."""

ROUNDING = 1e-12
"""Differences of shares up to this number are errors of rounding."""


def check_sampling(sampling: str, records: int | None, batch_size: int, delta: float) -> None:
    """Check the parameters that random allocation needs, if `sampling` is ``"allocation"``.

    Parameters
    ----------
    sampling
        ``"arrival"`` or ``"allocation"``.
    records
        Number of records of the smallest node; None with ``"arrival"``.
    batch_size
        Expected number of records in a batch.
    delta
        Delta of a record over the whole run.

    Raises
    ------
    ValueError
        If `records` is missing, superfluous or below `batch_size`, or if `delta` is 0.
    """
    one_of("sampling", sampling, ("arrival", "allocation"))
    if sampling == "arrival":
        if records is not None:
            fail("records", "None unless sampling='allocation'", records)
        return
    if records is None:
        expected = "the smallest number of records of a node, which is public, for sampling="
        fail("records", f"{expected}'allocation'", None)
    integer("records", records, at_least=batch_size)
    if delta == 0:
        expected = "a positive number with sampling='allocation', which saves nothing at delta = 0"
        fail("delta", expected, delta)


def check_sizes(records: int | None, problem: PartitionedProblem) -> None:
    """Raise a ValueError if a node has fewer than `records` records, the public minimum.

    With `records` None there is no minimum, and nothing is checked.
    """
    if records is not None and problem.fewest_records < records:
        fail("records", f"at most {problem.fewest_records}, those of the smallest node", records)


@lru_cache
def allocated_noise(
    allocation: RandomAllocation, epsilon: float, delta: float, *, copies: int = 1
) -> Gaussian:
    """Return the least Gaussian noise at which an allocation is (epsilon, delta)-DP for a record.

    The guarantee is for replacing one record with all of its copies, against an adversary who sees
    all releases but not which of them used the record. The allocation's probability of failure
    counts as a part of `delta`, once for each copy.
    """
    return Gaussian(
        random_allocation_noise_to_sensitivity(
            target_epsilon=epsilon,
            target_delta=delta - copies * allocation.failure,
            neighboring_relation="replace_one",
            rounds=None if allocation.shares else allocation.rounds,
            shares=allocation.shares or None,
            cycles=copies,
        )
    )


def dominating(allocations: Iterable[RandomAllocation]) -> RandomAllocation:
    """Return an allocation whose epsilon is at least each of these allocations', at equal noise.

    Let f(k) be the sum of the k largest shares of an allocation. Epsilon increases with f
    (majorization; ``docs/privacy/random_allocation_proof.md``, Unequal shares). The returned shares
    are the increments of the least concave function above the f of all these allocations.
    """
    different = list(set(allocations))
    if len(different) == 1:
        return different[0]
    longest = max(allocation.rounds for allocation in different)
    sums_of_largest = np.zeros((len(different), 1 + longest))  # f(0), .., f(longest) of each
    for row, allocation in zip(sums_of_largest, different, strict=True):
        shares = np.array(allocation.shares or (1 / allocation.rounds,) * allocation.rounds)
        descending = np.sort(shares)[::-1]
        row[1:] = np.cumsum(np.pad(descending, (0, longest - len(shares))))
    counts = np.arange(1 + longest)
    hull = np.max(sums_of_largest, axis=0)
    while True:  # drop points below the line between their neighbours, until none is left
        slopes = np.diff(hull) / np.diff(counts)
        is_concave = np.concatenate(([True], np.diff(slopes) <= ROUNDING, [True]))
        if is_concave.all():
            break
        counts = counts[is_concave]
        hull = hull[is_concave]
    hull_shares = np.diff(np.interp(np.arange(1 + longest), counts, hull))
    positive_shares = hull_shares[hull_shares > ROUNDING]
    return replace(different[0], rounds=0, shares=tuple(positive_shares.tolist()))


def expected_sizes(problem: PartitionedProblem, rounds: int) -> Numbers:
    """Return the expected size of each node's batches, shape (nodes,).

    Sums over batches are divided by it: it is public, while the size of a batch is secret.
    """
    return np.asarray(problem.records / rounds, dtype=np.float64)

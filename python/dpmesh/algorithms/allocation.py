"""Random allocation: each record is used once, in a round that its node draws secretly.

What the algorithms share that use it: their public numbers, their noise, and what stays secret. The
theorem and its proof are in ``docs/privacy/random_allocation.md``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, TypeAlias

import numpy as np

from dpmesh._ragged import Numbers
from dpmesh._validate import fail, integer, one_of
from dpmesh.accounting import random_allocation_noise_to_sensitivity
from dpmesh.noise.mechanisms import Gaussian
from dpmesh.privacy.sampling import RandomAllocation
from dpmesh.problems.partition import PartitionedProblem

Once: TypeAlias = Literal["arrival", "allocation"]
"""Which batch uses a record: by the order in which records arrive, or drawn secretly."""

SECRET = (
    "all records are there before the first round; which round uses a record, and how many records "
    "a round uses, stays secret, also from somebody who measures how long a node takes"
)
"""What a report assumes of an allocation."""


ALLOCATED = (
    "sampling='allocation': correlated noise of records whose rounds are secret is not proved"
)
ALLOCATED_VIEWS = "which rounds use a record is secret: views of less than everybody are not proved"


def check_sampling(sampling: str, records: int | None, batch_size: int, delta: float) -> None:
    """Fail unless public numbers allow for an allocation, if that is asked for.

    Raises
    ------
    ValueError
        If `records` is missing or superfluous, there are too few, or the noise is Laplace noise.
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
    """Fail if a node has fewer records than is stated in public."""
    if records is not None and problem.fewest_records < records:
        fail("records", f"at most {problem.fewest_records}, those of the smallest node", records)


@lru_cache
def allocated_noise(
    allocation: RandomAllocation, epsilon: float, delta: float, *, copies: int = 1
) -> Gaussian:
    """Return the least Gaussian noise on all releases of an allocation, of every copy of a record.

    What an allocation may fail by counts as part of `delta`.
    """
    steps: Any = {"shares": allocation.shares} if allocation.shares else {}
    return Gaussian(
        random_allocation_noise_to_sensitivity(
            target_epsilon=epsilon,
            target_delta=delta - copies * allocation.failure,
            neighboring_relation="replace_one",
            cycles=copies,
            **(steps or {"rounds": allocation.rounds}),
        )
    )


def dominating(allocations: Iterable[RandomAllocation]) -> RandomAllocation:
    """Return an allocation that costs at least what each of these costs, at the same noise.

    Its largest shares sum to at least what theirs sum to, for each number of them; the cost of a
    pass rises with these sums (``docs/privacy/random_allocation.md``, Unequal shares).
    """
    distinct = list(set(allocations))
    if len(distinct) == 1:
        return distinct[0]
    longest = max(allocation.rounds for allocation in distinct)
    sums = np.zeros((len(distinct), 1 + longest))
    for row, allocation in zip(sums, distinct, strict=True):
        shares = np.array(allocation.shares or (1 / allocation.rounds,) * allocation.rounds)
        descending = np.sort(shares)[::-1]
        row[1:] = np.cumsum(np.pad(descending, (0, longest - len(shares))))
    places = np.arange(1 + longest)
    most = np.max(sums, axis=0)
    while True:  # until no sum lies below the line between its neighbours
        slopes = np.diff(most) / np.diff(places)
        is_concave = np.concatenate(([True], np.diff(slopes) <= 1e-12, [True]))
        if is_concave.all():
            break
        places = places[is_concave]
        most = most[is_concave]
    hull_shares = np.diff(np.interp(np.arange(1 + longest), places, most))
    positive_shares = hull_shares[hull_shares > 1e-12]
    return replace(distinct[0], rounds=0, shares=tuple(positive_shares.tolist()))


def expected_sizes(problem: PartitionedProblem, rounds: int) -> Numbers:
    """Return the public divisor of each node's batches, shape (nodes,): their expected size."""
    return np.asarray(problem.records / rounds, dtype=np.float64)

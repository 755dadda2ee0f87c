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
        wanted = "the smallest number of records of a node, which is public, for sampling="
        fail("records", f"{wanted}'allocation'", None)
    integer("records", records, at_least=batch_size)
    if delta == 0:
        wanted = "a positive number with sampling='allocation', which saves nothing at delta = 0"
        fail("delta", wanted, delta)


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
    one, *others = set(allocations)
    if not others:
        return one
    sums = np.zeros((1 + len(others), 1 + max(each.rounds for each in (one, *others))))
    for row, each in zip(sums, (one, *others), strict=True):
        shares = each.shares or (1 / each.rounds,) * each.rounds
        row[1:] = np.cumsum(np.pad(np.sort(shares)[::-1], (0, len(row) - 1 - len(shares))))
    places, most = np.arange(sums.shape[1]), np.max(sums, axis=0)
    while True:  # until no sum lies below the line between its neighbours
        kept = np.concatenate(([True], np.diff(np.diff(most) / np.diff(places)) <= 1e-12, [True]))
        if kept.all():
            break
        places, most = places[kept], most[kept]
    shares = np.diff(np.interp(np.arange(sums.shape[1]), places, most))
    return replace(one, rounds=0, shares=tuple(shares[shares > 1e-12].tolist()))


def expected_sizes(problem: PartitionedProblem, rounds: int) -> Numbers:
    """Return the public divisor of each node's batches, shape (nodes,): their expected size."""
    return np.asarray(problem.records / rounds, dtype=np.float64)

"""The deterministic layer: two runs on neighbouring data that receive the same releases.

Privacy proofs of adaptive algorithms fix everything that was released before and ask how far a
neighbouring dataset moves the next release. This asks the code the same question: the second run
has the coins of the first, and what travels in it is what the first run released. One pair of runs
on adversarial data finds most faults, with no statistics.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import stats

from dpmesh._epsilons import rounded_up
from dpmesh._html import InNotebooks
from dpmesh._privacy_types import Floats
from dpmesh._validate import instance, integer
from dpmesh.algorithms.base import AN_ALGORITHM, Algorithm, AnyAlgorithm
from dpmesh.audit.scores import by_joint, noise_between, rows_of, standardized
from dpmesh.audit.transcript import Audited, Transcript, fresh_keys, record
from dpmesh.keys import Key
from dpmesh.noise.rows import CorrelatedRow
from dpmesh.privacy.foreseen import unplanned
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release
from dpmesh.run.carriers import Carrier
from dpmesh.run.watch import Passage

_ROUNDING = 1 + 1e-9  # tolerance for rounding of the bounds themselves

CHANCE = 1e-9
"""Equal draws in a run that are less likely than this are taken for the same noise."""


class Movement(NamedTuple):
    """How far a release moved between the datasets before its noise, and how far its noise covers.

    `distance` is in the norm of the mechanism, and includes the rounding of the values, for which
    the noise is larger.
    """

    release: Release
    distance: float
    allowed: float
    noise_scale: float


@dataclass(frozen=True, kw_only=True)
class Coupling(InNotebooks):
    """What two coupled runs showed.

    Parameters
    ----------
    movements
        Of all releases, in order.
    faults
        Where the code does not do what its plan states. None proves nothing, since other data might
        show one.
    """

    movements: tuple[Movement, ...]
    faults: tuple[str, ...]

    @property
    def violated(self) -> bool:
        """Whether there is a fault."""
        return bool(self.faults)

    @property
    def sentence(self) -> str:
        """What was found in one line, to be quoted."""
        found = "; ".join(self.faults) if self.faults else "no violation found"
        return f"Two coupled runs on neighbouring datasets: {self._moved}; {found}."

    def __str__(self) -> str:
        held = "no violation found (an audit cannot prove the claim)"
        if not any(movement.distance > 0 for movement in self.movements):
            held = "nothing was tested, since no release differed; see the other layers"
        lines = [
            "audit     transcript coupling: one pair of runs that receive the same releases",
            f"moved     {self._moved}",
            f"verdict   {'violated' if self.faults else held}",
        ]
        return "\n".join(lines + [f"fault     {fault}" for fault in self.faults])

    @property
    def _moved(self) -> str:
        moved = [movement for movement in self.movements if movement.distance > 0]
        largest = max((m.distance / m.allowed for m in moved if m.allowed > 0), default=0.0)
        return (
            f"{len(moved)} of {len(self.movements)} releases differed; largest shift = "
            f"{largest:.4%} of the declared sensitivity"
        )


def couple(
    algorithm: AnyAlgorithm,
    problem: Audited,
    neighbor: Audited,
    carrier: Carrier,
    *,
    rounds: int,
    key: Key | None = None,
) -> Coupling:
    """Run an algorithm on two neighbouring problems with the same releases, and compare.

    It checks that the releases are those of the plan; that none moves further than its noise
    covers, nor all together further than the plan accounts for; that no two numbers have the same
    noise, and no two nodes a part of it in common; that what should not depend on the data does not
    move at all; and that neither the amount of what travels nor what may be published differs,
    since both should follow from releases.

    Parameters
    ----------
    algorithm
        What is audited.
    problem, neighbor
        Two problems that differ in one unit, as much as possible.
    carrier
        How messages travel.
    rounds
        At least 1.
    key
        Source of the randomness; by default a new key. Both runs have the same coins in any case.

    Raises
    ------
    ValueError
        If there is no algorithm, or `rounds` is out of range.
    """
    instance("algorithm", algorithm, AN_ALGORITHM, Algorithm)
    integer("rounds", rounds, at_least=1)
    key = next(fresh_keys(key))
    run = record(algorithm, problem, carrier, rounds=rounds, key=key)
    other = record(algorithm, neighbor, carrier, rounds=rounds, key=key, replay=run)
    movements = tuple(_movement(*pair) for pair in zip(run.passages, other.passages, strict=False))
    plan = algorithm.plan(rounds)
    faults = (
        *_unplanned(plan, run, "first"),
        *_unplanned(plan, other, "second"),
        *_too_far(movements),
        *_too_far_together(plan, movements, _correlated(run, other)),
        *_without_noise(run.passages),
        *_of_one_noise(run.passages),
        *_with_correlated_rows(run.passages),
        *_published(run.received, other.received),
        *_seen_from_outside(run, other),
    )
    return Coupling(movements=movements, faults=faults)


def _movement(passage: Passage, other: Passage) -> Movement:
    release, scale, values = passage.release, passage.noise_scale, passage.inside
    if release.noise_to_sensitivity > 0:
        order, allowed = release.mechanism.norm, scale / release.noise_to_sensitivity
    else:
        order, allowed = release.sensitivity.norm, release.sensitivity.bound

    def norm(x: Floats) -> float:
        return float(np.linalg.norm(x.ravel(), ord=1 if order == "l1" else 2))

    distance = norm(np.subtract(values, other.inside, dtype=np.float64))
    return Movement(release, distance, allowed, scale)


def _unplanned(plan: Plan, run: Transcript, name: str) -> Iterator[str]:
    if count := unplanned(plan, run.ledger):
        yield f"the {name} run made {count} releases that were not planned"


def _too_far(movements: Sequence[Movement]) -> Iterator[str]:
    for release, distance, allowed, _ in movements:
        if distance > allowed * _ROUNDING:
            yield (
                f"round {release.round}: moved by {distance:.6g}, allowed is {allowed:.6g} "
                f"({release.sensitivity.reason})"
            )


def _correlated(run: Transcript, other: Transcript) -> list[float]:
    """Return mu of each joint event of correlated noise, from how far its rows moved together."""
    first, second = run.passages, other.passages
    found = []
    for joint, rows in by_joint(first).items():
        both = [i for i in rows if i < len(second)]
        shifts = rows_of(first, lambda i: noise_between(second[i], first[i].inside), both)
        found.append(float(np.linalg.norm(standardized(joint, shifts))))
    return found


def _too_far_together(
    plan: Plan, movements: Sequence[Movement], correlated: Sequence[float]
) -> Iterator[str]:
    """Compare what all releases cost, for Laplace and for Gaussian noise, each by its own sum.

    Where partners share secrets, that is the cost against an observer who does not know them.
    """
    for law, order, level in (("laplace", 1, "epsilon"), ("gaussian", 2, "mu")):
        ratios = [
            movement.distance / movement.noise_scale
            for movement in movements
            if movement.release.name.endswith(law)
            and not isinstance(movement.release.mechanism, CorrelatedRow)
            and movement.noise_scale > 0
        ]
        ratios += correlated if law == "gaussian" else ()
        planned = [
            [1 / r.noise_to_sensitivity for r in releases if r.name.endswith(law)]
            for releases in plan.compositions(colluding=0)
        ]
        cost = np.linalg.norm(ratios, order)
        paid = max(float(np.linalg.norm(inverses, order)) for inverses in planned)
        if cost > paid * _ROUNDING:
            yield f"all releases together: {level} = {cost:.6g}, planned is {rounded_up(paid)}"


def _without_noise(passages: Sequence[Passage]) -> Iterator[str]:
    for release, scale, inside, noisy, *_ in passages:
        if scale > 0 and np.array_equal(inside, noisy):
            yield f"round {release.round}: released without its noise"


def _of_one_noise(passages: Sequence[Passage]) -> Iterator[str]:
    """Look for noise that several numbers share, up to its sign: their difference has none.

    By chance it is found in fewer than one of 1e9 runs.
    """
    sizes, near = [np.empty(0)], 0.0
    for release, scale, inside, noisy, *_ in passages:
        if scale == 0:
            continue
        noise = np.subtract(noisy, inside, dtype=np.float64).ravel() / scale
        if not noise.any():
            continue  # reported by `_without_noise`
        sizes.append(np.abs(noise))
        unit = float(np.finfo(np.result_type(inside, np.float32)).eps)
        rounding = 4 * unit * float(np.abs(noisy).max() + np.abs(inside).max())
        near = max(near, (rounding + release.mechanism.spacing) / scale)
    drawn = np.sort(np.concatenate(sizes))
    again = int((np.diff(drawn) <= near).sum())
    # Each of n^2 / 2 pairs is this near with a probability below 1.2 near under either law.
    if again and stats.poisson.sf(again - 1, len(drawn) ** 2 * near) < CHANCE:
        yield f"{again} of {len(drawn)} numbers have the noise of another"


def _with_correlated_rows(passages: Sequence[Passage]) -> Iterator[str]:
    """Look for Gaussian noise that two nodes' rows share in part: their difference has less.

    The correlation r of m independent pairs has ``r sqrt((m - 1) / (1 - r^2))`` distributed by
    Student's t with m - 1 degrees of freedom. By chance it is found in fewer than one of 1e9 runs.
    """
    of_nodes: defaultdict[tuple[tuple[int, ...] | None, int], list[Floats]] = defaultdict(list)
    for release, scale, inside, noisy, _, _, rows in passages:
        independent = not isinstance(release.mechanism, CorrelatedRow)
        gaussian = release.mechanism.distribution == "gaussian" and scale > 0
        if independent and gaussian and rows is None and np.ndim(noisy) == 2:
            noise = np.subtract(noisy, inside, dtype=np.float64) / scale
            of_nodes[release.nodes, len(noise)].append(noise)
    for each in of_nodes.values():
        noise = np.concatenate(each, axis=1)
        lengths, m = np.linalg.norm(noise, axis=1), noise.shape[1]
        noise = noise[lengths > 0] / lengths[lengths > 0, np.newaxis]
        if m < 2 or len(noise) < 2:
            continue
        pairs = np.triu_indices(len(noise), 1)
        largest = min(float(np.abs((noise @ noise.T)[pairs]).max()), 1 - 1e-15)
        t = largest * np.sqrt((m - 1) / (1 - largest**2))
        if 2 * stats.t.sf(t, m - 1) * len(pairs[0]) < CHANCE:
            yield f"the noise of two nodes is correlated, by {largest:.2f} in {m} numbers"


def _published(first: Sequence[Floats], second: Sequence[Floats]) -> Iterator[str]:
    """Compare what could be published, which should follow from releases alone."""
    if len(first) != len(second):
        yield f"{len(first)} rounds published on the one data, {len(second)} on the other"
    for number, (one, other) in enumerate(zip(first, second, strict=False)):
        if not np.array_equal(one, other):
            yield f"what round {number} published depends on data beyond its releases"


def _seen_from_outside(first: Transcript, second: Transcript) -> Iterator[str]:
    """Compare the number and the length of messages."""
    if len(first.passages) != len(second.passages):
        counts = f"{len(first.passages)} releases on the one data, {len(second.passages)} on the"
        yield f"{counts} other"
    for t, (one, other) in enumerate(zip(first.traffic, second.traffic, strict=True)):
        if not np.array_equal(one.bits, other.bits):
            yield f"round {t}: the length of messages depends on data"
        if one.times != other.times:
            yield f"round {t}: the number of messages depends on data"

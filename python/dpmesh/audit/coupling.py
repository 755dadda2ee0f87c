"""The deterministic layer: two runs on neighbouring data that receive the same releases.

Privacy proofs of adaptive algorithms fix everything that was released before and ask how far a
neighbouring dataset moves the next release. This asks the code the same question: the second run
has the coins of the first, and its messages are the releases of the first. One pair of runs
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
from dpmesh._ragged import Numbers
from dpmesh._validate import instance, integer
from dpmesh.algorithms.base import AN_ALGORITHM, Algorithm, AnyAlgorithm
from dpmesh.audit.scores import by_joint, noise_between, rows_of, standardized
from dpmesh.audit.transcript import Audited, Transcript, fresh_keys, record
from dpmesh.keys import Key
from dpmesh.privacy.foreseen import unplanned
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release
from dpmesh.run.carriers import Carrier
from dpmesh.run.watch import Passage

_ROUNDING = 1 + 1e-9
"""Factor of a bound that allows for its rounding."""

CHANCE = 1e-9
"""Equal draws in a run that are less likely than this are taken for the same noise."""


class Movement(NamedTuple):
    """Distance between the values of a release on the two datasets, before its noise.

    Attributes
    ----------
    release
        The release.
    distance
        Distance of the values in the norm of the mechanism, including their rounding.
    allowed
        Largest distance that the noise of the release covers.
    noise_scale
        Scale of the noise, in the units of the values.
    """

    release: Release
    distance: float
    allowed: float
    noise_scale: float


@dataclass(frozen=True, kw_only=True)
class Coupling(InNotebooks):
    """Result of two coupled runs.

    Parameters
    ----------
    movements
        Movements of all releases, in order.
    faults
        Differences of the code from its plan. None proves nothing, since other data might show one.
    """

    movements: tuple[Movement, ...]
    faults: tuple[str, ...]

    @property
    def violated(self) -> bool:
        """True if there is a fault."""
        return bool(self.faults)

    @property
    def sentence(self) -> str:
        """The result in one line, to be quoted."""
        outcome = "no violation found"
        if self.faults:
            outcome = "; ".join(self.faults)
        return f"Two coupled runs on neighbouring datasets: {self._summary}; {outcome}."

    def __str__(self) -> str:
        lines = [
            "audit     transcript coupling: one pair of runs that receive the same releases",
            f"moved     {self._summary}",
            f"verdict   {self._verdict}",
        ]
        lines += [f"fault     {fault}" for fault in self.faults]
        return "\n".join(lines)

    @property
    def _verdict(self) -> str:
        if self.faults:
            return "violated"
        if not self._shifted:
            return "nothing was tested, since no release differed; see the other layers"
        return "no violation found (an audit cannot prove the claim)"

    @property
    def _shifted(self) -> list[Movement]:
        """The movements of releases that differed."""
        return [movement for movement in self.movements if movement.distance > 0]

    @property
    def _summary(self) -> str:
        """Number of releases that differed, and the largest shift, in words."""
        shares = [
            movement.distance / movement.allowed
            for movement in self._shifted
            if movement.allowed > 0
        ]
        largest = max(shares, default=0.0)
        return (
            f"{len(self._shifted)} of {len(self.movements)} releases differed; largest shift = "
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
    """Run an algorithm on two neighbouring datasets with identical releases, and compare the runs.

    The second run has the random draws of the first, and receives the releases of the first. So
    each release can be compared before its noise. The function checks:

    - The releases are those of the algorithm's plan.
    - No release changes by more than the declared sensitivity, and all releases together change by
      no more than the plan accounts for.
    - No two released numbers have the same noise, and no two nodes have a part of it in common.
    - Numbers that must not depend on the data do not change.
    - The amount of communication and the published models do not change, because they must be
      functions of the releases.

    Parameters
    ----------
    algorithm
        The algorithm to audit.
    problem, neighbor
        Two learning problems whose data differ in one unit, as much as possible.
    carrier
        Carrier of the messages, such as `alone`.
    rounds
        Number of rounds, at least 1.
    key
        Key of the random draws, which both runs share; by default a new key.

    Raises
    ------
    ValueError
        If there is no algorithm, or `rounds` is out of range.
    """
    instance("algorithm", algorithm, AN_ALGORITHM, Algorithm)
    integer("rounds", rounds, at_least=1)
    key = next(fresh_keys(key))
    run = record(algorithm, problem, carrier, rounds=rounds, key=key)
    neighbor_run = record(algorithm, neighbor, carrier, rounds=rounds, key=key, replay=run)
    passage_pairs = zip(run.passages, neighbor_run.passages, strict=False)
    movements = tuple(_movement(passage, neighbor) for passage, neighbor in passage_pairs)
    plan = algorithm.plan(rounds)
    faults = (
        *_unplanned_releases(plan, run, "first"),
        *_unplanned_releases(plan, neighbor_run, "second"),
        *_excess_movements(movements),
        *_excess_loss(plan, movements, _correlated_mus(run, neighbor_run)),
        *_missing_noise(run.passages),
        *_repeated_noise(run.passages),
        *_correlated_noise(run.passages),
        *_data_in_models(run.received, neighbor_run.received),
        *_data_in_traffic(run, neighbor_run),
    )
    return Coupling(movements=movements, faults=faults)


def _movement(passage: Passage, neighbor: Passage) -> Movement:
    """Compare the values of one release before its noise on the two datasets."""
    release = passage.release
    if release.noise_to_sensitivity > 0:
        norm = release.mechanism.norm
        allowed = passage.noise_scale / release.noise_to_sensitivity
    else:
        norm = release.sensitivity.norm
        allowed = release.sensitivity.bound
    difference = np.subtract(passage.inside, neighbor.inside, dtype=np.float64)
    order = 1 if norm == "l1" else 2
    distance = float(np.linalg.norm(difference.ravel(), ord=order))
    return Movement(release, distance, allowed, passage.noise_scale)


def _unplanned_releases(plan: Plan, run: Transcript, name: str) -> Iterator[str]:
    """Compare the releases with those of the plan."""
    count = unplanned(plan, run.ledger)
    if count:
        yield f"the {name} run made {count} releases that were not planned"


def _excess_movements(movements: Sequence[Movement]) -> Iterator[str]:
    """Compare each movement with the distance that its noise covers."""
    for release, distance, allowed, _ in movements:
        if distance > allowed * _ROUNDING:
            yield (
                f"round {release.round}: moved by {distance:.6g}, allowed is {allowed:.6g} "
                f"({release.sensitivity.reason})"
            )


def _correlated_mus(run: Transcript, neighbor_run: Transcript) -> list[float]:
    """Return mu of each joint event of correlated noise, from the joint movement of its rows."""
    passages = run.passages
    neighbor_passages = neighbor_run.passages

    def shift(index: int) -> Numbers:
        return noise_between(neighbor_passages[index], passages[index].inside)

    mus = []
    for joint, indices in by_joint(passages).items():
        in_both = [index for index in indices if index < len(neighbor_passages)]
        shifts = rows_of(passages, shift, in_both)
        mus.append(float(np.linalg.norm(standardized(joint, shifts))))
    return mus


def _excess_loss(
    plan: Plan, movements: Sequence[Movement], correlated_mus: Sequence[float]
) -> Iterator[str]:
    """Yield a fault if the privacy loss of all releases together exceeds the plan's.

    Laplace noise composes by the sum of epsilons, Gaussian noise by the root of the sum of mu^2. If
    partners share secrets, the adversary of this loss knows none of them.
    """
    for order, level in ((1, "epsilon"), (2, "mu")):
        ratios = [
            movement.distance / movement.noise_scale
            for movement in movements
            if _is_independent(movement, order)
        ]
        if order == 2:
            ratios += correlated_mus
        loss = float(np.linalg.norm(ratios, order))
        planned_loss = 0.0
        for releases in plan.compositions(colluding=0):
            inverses = [
                1 / release.noise_to_sensitivity
                for release in releases
                if release.mechanism.composition == order
            ]
            planned_loss = max(planned_loss, float(np.linalg.norm(inverses, order)))
        if loss > planned_loss * _ROUNDING:
            planned = rounded_up(planned_loss)
            yield f"all releases together: {level} = {loss:.6g}, planned is {planned}"


def _is_independent(movement: Movement, order: int) -> bool:
    """Return True if a release has noise that composes so, and no other release shares it."""
    mechanism = movement.release.mechanism
    if mechanism.composition != order or mechanism.joint_event is not None:
        return False
    return movement.noise_scale > 0


def _missing_noise(passages: Sequence[Passage]) -> Iterator[str]:
    """Look for releases that equal the values before their noise."""
    for release, scale, inside, noisy, *_ in passages:
        if scale > 0 and np.array_equal(inside, noisy):
            yield f"round {release.round}: released without its noise"


def _repeated_noise(passages: Sequence[Passage]) -> Iterator[str]:
    """Look for noise that several numbers share, up to its sign: their difference has none.

    By chance it is found in fewer than one of 1e9 runs.
    """
    magnitudes = [np.empty(0)]
    tolerance = 0.0
    for release, scale, inside, noisy, *_ in passages:
        if scale == 0:
            continue
        noise = np.subtract(noisy, inside, dtype=np.float64).ravel() / scale
        if not noise.any():
            continue  # reported by `_missing_noise`
        magnitudes.append(np.abs(noise))
        unit = float(np.finfo(np.result_type(inside, np.float32)).eps)
        rounding = 4 * unit * float(np.abs(noisy).max() + np.abs(inside).max())
        tolerance = max(tolerance, (rounding + release.mechanism.spacing) / scale)
    draws = np.sort(np.concatenate(magnitudes))
    repeats = int((np.diff(draws) <= tolerance).sum())
    # Each of n^2 / 2 pairs is this near with a probability below 1.2 tolerance, for either noise.
    expected_repeats = len(draws) ** 2 * tolerance
    if repeats and stats.poisson.sf(repeats - 1, expected_repeats) < CHANCE:
        yield f"{repeats} of {len(draws)} numbers have the noise of another"


def _correlated_noise(passages: Sequence[Passage]) -> Iterator[str]:
    """Look for Gaussian noise that two nodes' rows share in part: their difference has less.

    The correlation r of m independent pairs has ``r sqrt((m - 1) / (1 - r^2))`` distributed by
    Student's t with m - 1 degrees of freedom. By chance it is found in fewer than one of 1e9 runs.
    """
    for blocks in _independent_gaussian_noise(passages):
        noise = np.concatenate(blocks, axis=1)
        lengths = np.linalg.norm(noise, axis=1)
        directions = noise[lengths > 0] / lengths[lengths > 0, np.newaxis]
        numbers = noise.shape[1]
        if numbers < 2 or len(directions) < 2:
            continue
        pairs = np.triu_indices(len(directions), 1)
        correlations = np.abs((directions @ directions.T)[pairs])
        largest = min(float(correlations.max()), 1 - 1e-15)
        t = largest * np.sqrt((numbers - 1) / (1 - largest**2))
        chance = 2 * stats.t.sf(t, numbers - 1) * len(correlations)
        if chance < CHANCE:
            yield f"the noise of two nodes is correlated, by {largest:.2f} in {numbers} numbers"


def _independent_gaussian_noise(passages: Sequence[Passage]) -> list[list[Floats]]:
    """Return the noise of releases of one row a node, by the nodes that released together.

    Each has the shape (nodes, dim), in standard deviations.
    """
    by_nodes: defaultdict[tuple[tuple[int, ...] | None, int], list[Floats]] = defaultdict(list)
    for release, scale, inside, noisy, _, _, rows in passages:
        mechanism = release.mechanism
        is_gaussian = mechanism.distribution == "gaussian" and scale > 0
        has_all_rows = rows is None and np.ndim(noisy) == 2
        if is_gaussian and has_all_rows and mechanism.joint_event is None:
            noise = np.subtract(noisy, inside, dtype=np.float64) / scale
            by_nodes[release.nodes, len(noise)].append(noise)
    return list(by_nodes.values())


def _data_in_models(models: Sequence[Floats], neighbor_models: Sequence[Floats]) -> Iterator[str]:
    """Compare the models that could be published, which should follow from releases alone."""
    if len(models) != len(neighbor_models):
        yield (
            f"{len(models)} rounds published on the one data, {len(neighbor_models)} on the other"
        )
    pairs = zip(models, neighbor_models, strict=False)
    for number, (model, neighbor_model) in enumerate(pairs):
        if not np.array_equal(model, neighbor_model):
            yield f"what round {number} published depends on data beyond its releases"


def _data_in_traffic(run: Transcript, neighbor_run: Transcript) -> Iterator[str]:
    """Compare the number and the length of messages."""
    releases = len(run.passages)
    neighbor_releases = len(neighbor_run.passages)
    if releases != neighbor_releases:
        yield f"{releases} releases on the one data, {neighbor_releases} on the other"
    pairs = zip(run.traffic, neighbor_run.traffic, strict=True)
    for t, (traffic, neighbor_traffic) in enumerate(pairs):
        if not np.array_equal(traffic.bits, neighbor_traffic.bits):
            yield f"round {t}: the length of messages depends on data"
        if traffic.messages != neighbor_traffic.messages:
            yield f"round {t}: the number of messages depends on data"

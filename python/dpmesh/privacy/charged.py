"""Events of a plan: releases of correlated noise, or of one allocation, are one event."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields, replace
from math import hypot
from typing import TYPE_CHECKING, Any

import numpy as np

from dpmesh._validate import fail
from dpmesh.noise.mechanisms import Gaussian, Mechanism
from dpmesh.privacy.kinds import MixedNoise, has_allocation_proof
from dpmesh.privacy.releases import Release
from dpmesh.privacy.sampling import RandomAllocation

if TYPE_CHECKING:
    from dpmesh.noise.correlated import CorrelatedGaussian, Secrets


@dataclass(frozen=True)
class _Joint(Gaussian):
    """A joint event: its privacy loss, and its number of rows of noise on a grid."""

    _: KW_ONLY
    drawn: int = 0

    @property
    def integer_rows(self) -> int:
        return self.drawn


def joints(releases: Iterable[Release]) -> list[CorrelatedGaussian]:
    """Return the joint events that rows among these belong to, each once."""
    events = (release.mechanism.joint_event for release in releases)
    return list(dict.fromkeys(event for event in events if event is not None))


def secrets_in(releases: Iterable[Release]) -> list[Secrets]:
    """Return the pairwise secrets of each joint event, of its first row; omit events without."""
    first_rows = (joint.secrets_of(0) for joint in joints(releases))
    return [secrets for secrets in first_rows if secrets is not None]


def joints_from(stored: Iterable[Mapping[str, Any]]) -> list[CorrelatedGaussian]:
    """Return the joint events that a plan stored."""
    fields = list(stored)
    if not fields:
        return []  # without an import of the optimisers
    from dpmesh.noise.correlated import CorrelatedGaussian

    return [CorrelatedGaussian.from_dict(event) for event in fields]


def charged(releases: Sequence[Release], colluding: int | None = None) -> list[Release]:
    """Return releases in which those of one event are one release.

    So are rows of correlated noise, by a Gaussian release for each record, and the releases of one
    random allocation, see `_of_allocation`.

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
        If a release is more sensitive than its noise was planned for, or some releases of an
        allocation name batches and others do not.
    """
    rows: defaultdict[CorrelatedGaussian, list[Release]] = defaultdict(list)
    allocated: defaultdict[tuple[RandomAllocation, int | None], list[Release]]
    allocated = defaultdict(list)
    result = []
    for release in releases:
        joint = release.mechanism.joint_event
        if joint is not None:
            rows[joint].append(release)
        elif isinstance(release.sampling, RandomAllocation):
            allocated[release.sampling, release.batch].append(release)
        else:
            result.append(release)
    for joint, joint_releases in rows.items():
        result += _of_one(joint, joint_releases, colluding)
    for (allocation, batch), batch_releases in allocated.items():
        if batch is not None and (allocation, None) in allocated:  # both, in one secret round
            expected = "that of each release of an allocation, or None in all"
            fail("batch", expected, f"{batch} and None")
        for nodes, touching in _by_nodes(batch_releases).items():
            result += _of_allocation(allocation, touching, nodes)
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
            expected = "rows of all nodes and no samples: their amplification is not proved"
            fail("release", expected, release)
        if row in uses[release.batch]:
            fail("release", f"row {row} of the correlated noise once", "twice")
        uses[release.batch][row] = release
    everywhere = uses.get(None, {})
    patterns = [sorted({*released_rows, *everywhere}) for released_rows in uses.values()]
    released = joint.prefix(1 + max(max(pattern) for pattern in patterns))
    mus = released.mus(patterns, colluding)
    integer_rows = 0
    if joint.grid is not None:
        integer_rows = sum(_integer_rows(joint.secrets_of(t)) for t in range(joint.rounds))
    charges = []
    for (batch, released_rows), mu in zip(uses.items(), mus, strict=True):
        first = released_rows[min(released_rows)]
        mechanism = _Joint(1 / mu, drawn=integer_rows)
        charges.append(Release(first.round, mechanism, first.sensitivity, batch=batch))
    return charges


def _integer_rows(secrets: Secrets | None) -> int:
    """Return the rows of noise that the messages of a round which a record moves are made of."""
    if secrets is None:
        return 1
    return secrets.nodes + len(secrets.pairs)


def _row(release: Release) -> int:
    return release.mechanism.joint_row


def _by_nodes(releases: Sequence[Release]) -> dict[tuple[int, ...] | None, list[Release]]:
    """Return the releases of nodes that make the same ones of an allocation."""
    if all(release.nodes is None for release in releases):
        return {None: list(releases)}
    indices_of_node: defaultdict[int, list[int]] = defaultdict(list)
    for index, release in enumerate(releases):
        if release.nodes is None:
            fail("nodes", "those of each release of an allocation, or None in all", release)
        for node in release.nodes:
            indices_of_node[node].append(index)
    nodes_with_indices: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
    for node, indices in indices_of_node.items():
        nodes_with_indices[tuple(indices)].append(node)
    return {
        tuple(nodes): [releases[i] for i in indices]
        for indices, nodes in nodes_with_indices.items()
    }


def _of_allocation(
    allocation: RandomAllocation, releases: Sequence[Release], nodes: tuple[int, ...] | None
) -> list[Release]:
    """Return what an allocation is charged for: as a rule one release for the whole group.

    Each kind of noise is charged at its least noise, and several kinds as the worse of them in each
    round (`MixedNoise`). Releases of one round are one of as much noise as all together.

    As if everybody knew the allocation are charged: an allocation with noise of which no theorem is
    known beside other noise, for one release of each kind; and more rounds than the allocation
    has, of which some batch was released again, for each release that a batch can have.
    """
    rounds: defaultdict[int, list[Release]] = defaultdict(list)
    for release in releases:
        rounds[release.round].append(release)
    round_releases = [_together(same_round) for same_round in rounds.values()]
    first = releases[0].round
    least_by_kind = _least_of_each_kind(round_releases)
    members = [replace(release, round=first, nodes=nodes) for release in least_by_kind]
    repeated_rounds = max(0, len(rounds) - allocation.rounds)
    is_unproved_mixture = len(members) > 1 and not all(map(has_allocation_proof, members))
    if repeated_rounds or is_unproved_mixture:
        unamplified = [replace(member, sampling=allocation.known) for member in members]
        return unamplified * (1 + repeated_rounds)
    if len(members) == 1:
        return members
    least = min(members, key=lambda release: release.noise_to_sensitivity)
    mixed = MixedNoise(least.noise_to_sensitivity, members=tuple(members))
    return [replace(least, mechanism=mixed)]


def _least_of_each_kind(releases: Iterable[Release]) -> list[Release]:
    """Return the release with the least noise of each kind; one without noise stands for all.

    Kinds are classes of mechanisms with equal settings: more noise of a kind costs no more. Each is
    given the least sensitivity of its kind, by which noise on a grid is coarsest.
    """
    kinds: defaultdict[tuple[object, ...], list[Release]] = defaultdict(list)
    for release in releases:
        if release.noise_to_sensitivity == 0:
            return [release]
        kinds[_settings(release.mechanism)].append(release)
    members = []
    for same_kind in kinds.values():
        least = min(same_kind, key=lambda release: release.noise_to_sensitivity)
        smallest = min(same_kind, key=lambda release: release.sensitivity.bound)
        members.append(replace(least, sensitivity=smallest.sensitivity))
    return members


def _settings(mechanism: Mechanism) -> tuple[object, ...]:
    """Return all that distinguishes kinds of noise, apart from how much noise there is."""
    names = [field.name for field in fields(mechanism) if field.compare and field.init]
    excluded = {"noise_to_sensitivity", "clipping_norm"}
    return type(mechanism), *(getattr(mechanism, name) for name in names if name not in excluded)


def _together(releases: Sequence[Release]) -> Release:
    """Return one release for those of a round, which see the same batch."""
    first = releases[0]
    names = {release.name for release in releases}
    if len(releases) == 1 or any(release.noise_to_sensitivity == 0 for release in releases):
        return min(releases, key=lambda release: release.noise_to_sensitivity)
    mechanism = first.mechanism
    order = mechanism.composition
    if len(names) > 1 or order is None or mechanism.spacing > 0 or mechanism.is_joint:
        expected = "one kind of noise, Gaussian or Laplace, in a round of an allocation"
        fail("release", expected, " and ".join(sorted(names)))
    inverse = [1 / release.noise_to_sensitivity for release in releases]
    inverse_noise = sum(inverse)
    if order == 2:
        inverse_noise = hypot(*inverse)
    return replace(first, mechanism=replace(mechanism, noise_to_sensitivity=1 / inverse_noise))

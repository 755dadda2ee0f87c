"""Releases as they count for epsilon: joint events of correlated noise and random allocation.

`Plan.cost` calls `charged` before it computes epsilon. Two groups of releases have an epsilon only
together, and become one release:

- *Correlated noise*: a *joint event* is the noise of a whole run, planned together. Its *rows* are
  the noise of single releases. For each batch of records it becomes one Gaussian release.
- *Random allocation*: the releases of one pass, of which each record uses one, drawn in secret.
"""

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
    """Gaussian mechanism that stands for a joint event of correlated noise.

    Parameters
    ----------
    grid_rows
        Number of rows of noise on a grid that the event draws; 0 without a grid.
    """

    _: KW_ONLY
    grid_rows: int = 0

    @property
    def integer_rows(self) -> int:
        return self.grid_rows


def joints(releases: Iterable[Release]) -> list[CorrelatedGaussian]:
    """Return the distinct joint events of correlated noise among releases."""
    events = (release.mechanism.joint_event for release in releases)
    return list(dict.fromkeys(event for event in events if event is not None))


def secrets_in(releases: Iterable[Release]) -> list[Secrets]:
    """Return the pairwise secrets in the first row of each joint event that has them."""
    first_rows = (joint.secrets_of(0) for joint in joints(releases))
    return [secrets for secrets in first_rows if secrets is not None]


def joints_from(stored: Iterable[Mapping[str, Any]]) -> list[CorrelatedGaussian]:
    """Return the joint events from the dictionaries that a plan stored."""
    events = list(stored)
    if not events:
        return []  # avoids the slow import of the optimisers
    from dpmesh.noise.correlated import CorrelatedGaussian

    return [CorrelatedGaussian.from_dict(event) for event in events]


def charged(releases: Sequence[Release], colluding: int | None = None) -> list[Release]:
    """Return the releases that count for epsilon, in the order of their rounds.

    Independent releases stay as they are. Joint events and random allocations become one release
    for each batch. A joint event counts the rows that are released: mu of a record follows from the
    rows of its batch, and from the rows that depend on all data, in the leading block of the
    strategy matrix C.

    Parameters
    ----------
    releases
        Releases that depend on the data.
    colluding
        Number of nodes that collude with an adversary who sees all messages; None if all other
        nodes collude, so that noise shared by partners hides nothing.

    Raises
    ------
    ValueError
        If a release is more sensitive than its noise was planned for, if a row of correlated noise
        is sampled, names nodes or occurs twice, or if some releases of an allocation name batches
        or nodes and others do not.
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
        result += _of_joint_event(joint, joint_releases, colluding)
    for (allocation, batch), batch_releases in allocated.items():
        # a record must be in one secret round of the allocation: all releases name a batch, or none
        if batch is not None and (allocation, None) in allocated:
            expected = "that of each release of an allocation, or None in all"
            fail("batch", expected, f"{batch} and None")
        for nodes, touching in _by_nodes(batch_releases).items():
            result += _of_allocation(allocation, touching, nodes)
    return sorted(result, key=lambda release: release.round)


def _of_joint_event(
    joint: CorrelatedGaussian, releases: Sequence[Release], colluding: int | None
) -> list[Release]:
    """Return one Gaussian release for each batch that the released rows of a joint event touch.

    `colluding` is as for `charged`.
    """
    # for each batch the index of each of its rows, with its release; None for rows of all data
    uses: defaultdict[int | None, dict[int, Release]] = defaultdict(dict)
    bounds = np.asarray(joint.sensitivities)
    for release in releases:
        row = release.mechanism.joint_row
        planned = float(bounds[row])
        if release.sensitivity.norm != "l2" or release.sensitivity.bound > planned * (1 + 1e-12):
            fail("sensitivity", f"at most {planned:g}, as the noise is planned", release)
        if release.sampling is not None or release.nodes is not None:
            expected = "rows of all nodes and no samples: their amplification is not proved"
            fail("release", expected, release)
        if row in uses[release.batch]:
            fail("release", f"row {row} of the correlated noise once", "twice")
        uses[release.batch][row] = release
    rows_of_all_data = uses.get(None, {})
    patterns = [sorted({*batch_rows, *rows_of_all_data}) for batch_rows in uses.values()]
    released = joint.prefix(1 + max(max(pattern) for pattern in patterns))
    mus = released.mus(patterns, colluding)
    integer_rows = 0
    if joint.grid is not None:
        integer_rows = sum(_integer_rows(joint.secrets_of(t)) for t in range(joint.rounds))
    charges = []
    for (batch, batch_rows), mu in zip(uses.items(), mus, strict=True):
        first = batch_rows[min(batch_rows)]
        mechanism = _Joint(1 / mu, grid_rows=integer_rows)
        charges.append(Release(first.round, mechanism, first.sensitivity, batch=batch))
    return charges


def _integer_rows(secrets: Secrets | None) -> int:
    """Return the number of rows of noise in the messages of a round: of nodes and of secrets.

    Without pairwise secrets, only the row of the record's own node counts.
    """
    if secrets is None:
        return 1
    return secrets.nodes + len(secrets.pairs)


def _by_nodes(releases: Sequence[Release]) -> dict[tuple[int, ...] | None, list[Release]]:
    """Return the releases of an allocation by groups of nodes that make the same releases.

    A key holds the nodes of a group, or is None if no release names its nodes.
    """
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
    """Return the releases that count for a random allocation: one for the whole group, as a rule.

    Each kind of noise counts with its least noise, and several kinds count as the worse of them in
    each round (`MixedNoise`). Several releases in one round count as one with the same loss.

    In two cases the allocation counts without amplification, as if the adversary knew it:

    - It mixes kinds of noise, and no proof covers one of them: one release of each kind counts.
    - The releases have more rounds than the allocation: some batch may be released again, and one
      release more counts for each further round.

    Parameters
    ----------
    allocation
        The random allocation that all releases share.
    releases
        Its releases of one batch, made by the same nodes.
    nodes
        Nodes of the result; None for all nodes.
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
        unamplified = [
            replace(member, sampling=allocation.without_amplification) for member in members
        ]
        return unamplified * (1 + repeated_rounds)
    if len(members) == 1:
        return members
    least = min(members, key=lambda release: release.noise_to_sensitivity)
    mixed = MixedNoise(least.noise_to_sensitivity, members=tuple(members))
    return [replace(least, mechanism=mixed)]


def _least_of_each_kind(releases: Iterable[Release]) -> list[Release]:
    """Return the release with the least noise of each kind.

    If a release has no noise, it is the only result. A kind is a class of mechanisms with equal
    settings; more noise of a kind does not raise epsilon. The result has the least sensitivity
    among its kind, for which noise on a grid is coarsest.
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
    """Return all that distinguishes kinds of noise, apart from the amount of noise."""
    names = [field.name for field in fields(mechanism) if field.compare and field.init]
    excluded = {"noise_to_sensitivity", "clipping_norm"}
    return type(mechanism), *(getattr(mechanism, name) for name in names if name not in excluded)


def _together(releases: Sequence[Release]) -> Release:
    """Return one release with the joint loss of several releases of the same round and batch.

    If one has no noise, it is the result.
    """
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

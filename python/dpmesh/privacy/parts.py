"""Parts of the data that a release depends on, to which its epsilon is charged.

A part is one batch of one node, or all of a node's data where it has no batches. Batches are
disjoint, and a release of one batch depends, given all earlier releases, on no other batch: so a
unit is charged for the releases of its batch, and for those that depend on all of its node's data
(adaptive parallel composition), and for nothing that only other nodes released.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmesh._ragged import Indices
from dpmesh.privacy.releases import Release

Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Parts:
    """Which releases touch which parts, as pairs of indices.

    Parameters
    ----------
    owners
        Shape (parts,): the node that each part belongs to, from 0.
    nodes
        Number of nodes; 1 if no release distinguishes them.
    own
        Pairs (part, release), shape (2, pairs), of releases of one batch.
    shared
        Pairs (node, release), shape (2, pairs), of releases of all of a node's data.
    """

    owners: Indices
    nodes: int
    own: Indices
    shared: Indices

    def totals(self, weights: Numbers) -> Numbers:
        """Return the sum of releases' weights for each part."""
        parts, releases = self.own
        nodes, shared = self.shared
        total = np.bincount(parts, weights[releases], len(self.owners))
        everywhere = np.bincount(nodes, weights[shared], self.nodes)
        return np.asarray(total + everywhere[self.owners], dtype=np.float64)

    def counts(self, kinds: Indices, number: int) -> Numbers:
        """Return how often releases of each of `number` kinds touch each part.

        A release of kind -1 counts for none.
        """

        def count(pairs: Indices, rows: int) -> Numbers:
            row, kind = pairs[0], kinds[pairs[1]]
            cells = row[kind >= 0] * number + kind[kind >= 0]
            table = np.bincount(cells, minlength=rows * number).reshape(rows, number)
            return table.astype(np.float64)

        of_parts = count(self.own, len(self.owners))
        return of_parts + count(self.shared, self.nodes)[self.owners]

    def releases(self, part: int) -> list[int]:
        """Return the releases that touch a part, in order."""
        parts, of_parts = self.own
        nodes, shared = self.shared
        touched = np.concatenate([of_parts[parts == part], shared[nodes == self.owners[part]]])
        return [int(index) for index in np.sort(touched)]

    def worst_by_node(self, values: Numbers) -> Numbers:
        """Return the largest value among the parts of each node."""
        worst = np.zeros(self.nodes)
        np.maximum.at(worst, self.owners, values)
        return worst


def parts_of(releases: Sequence[Release], nodes: int) -> Parts:
    """Return the parts of the nodes' data that releases touch.

    Every node has at least one part, touched or not.
    """
    node, release = _touches(releases, nodes)
    batches = {release.batch for release in releases} - {None}
    number = {batch: index for index, batch in enumerate(batches)}
    batch_of = np.array([number.get(release.batch, -1) for release in releases], dtype=np.int64)
    batch = batch_of[release]
    in_batch = batch >= 0
    keys, part = np.unique(
        node[in_batch] * max(1, len(batches)) + batch[in_batch], return_inverse=True
    )
    owners = keys // max(1, len(batches))
    without = np.setdiff1d(np.arange(nodes), owners)
    return Parts(
        owners=np.concatenate([owners, without]),
        nodes=nodes,
        own=np.stack([part.reshape(-1), release[in_batch]]),
        shared=np.stack([node[~in_batch], release[~in_batch]]),
    )


def nodes_named(releases: Sequence[Release]) -> int:
    """Return the least number of nodes that includes all nodes named; 0 if none is named."""
    return max((1 + int(max(r.nodes)) for r in releases if r.nodes is not None), default=0)


def _touches(releases: Sequence[Release], nodes: int) -> tuple[Indices, Indices]:
    """Return pairs of a node and a release of its data."""
    everybody = np.arange(nodes)
    named = [everybody if r.nodes is None else np.asarray(r.nodes, np.int64) for r in releases]
    if not named:
        return everybody[:0], everybody[:0]
    lengths = [len(names) for names in named]
    return np.concatenate(named), np.repeat(np.arange(len(releases)), lengths)

"""Parts of the data: the batches of nodes, each with the releases that depend on it.

A part is one batch of one node, or all data of a node without batches. Batches are disjoint. Given
all earlier releases, a release of one batch depends on no other batch. So by adaptive parallel
composition, the epsilon of a unit counts the releases of its batch and the releases that depend on
all data of its node. It does not count releases of other nodes alone. A release *touches* a part if
it depends on it.
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
    """Parts of the nodes' data, and pairs of indices that state which releases touch them.

    Parameters
    ----------
    owners
        Index of the node that each part belongs to, shape (parts,).
    nodes
        Number of nodes; 1 if no release names its nodes.
    batch_pairs
        Index of a part and of a release of this batch, shape (2, pairs).
    node_pairs
        Index of a node and of a release of all its data, shape (2, pairs).
    """

    owners: Indices
    nodes: int
    batch_pairs: Indices
    node_pairs: Indices

    def totals(self, weights: Numbers) -> Numbers:
        """Return the sum of releases' weights for each part, shape (parts,).

        `weights` has the shape (releases,).
        """
        parts, batch_releases = self.batch_pairs
        nodes, node_releases = self.node_pairs
        batch_totals = np.bincount(parts, weights[batch_releases], len(self.owners))
        node_totals = np.bincount(nodes, weights[node_releases], self.nodes)
        return np.asarray(batch_totals + node_totals[self.owners], dtype=np.float64)

    def counts(self, kinds: Indices, number: int) -> Numbers:
        """Return how many releases of each kind touch each part, shape (parts, number).

        Parameters
        ----------
        kinds
            Number of the kind of each release, from 0; -1 for releases that are not counted.
        number
            Number of kinds.
        """

        def count(pairs: Indices, rows: int) -> Numbers:
            """Return the number of pairs of each row and kind, shape (rows, number)."""
            row, release = pairs
            kind = kinds[release]
            is_counted = kind >= 0
            cells = row[is_counted] * number + kind[is_counted]
            table = np.bincount(cells, minlength=rows * number).reshape(rows, number)
            return table.astype(np.float64)

        batch_counts = count(self.batch_pairs, len(self.owners))
        node_counts = count(self.node_pairs, self.nodes)
        return batch_counts + node_counts[self.owners]

    def releases(self, part: int) -> list[int]:
        """Return the releases that touch a part, in order."""
        parts, batch_releases = self.batch_pairs
        nodes, node_releases = self.node_pairs
        batch_touching = batch_releases[parts == part]
        node_touching = node_releases[nodes == self.owners[part]]
        touching = np.sort(np.concatenate([batch_touching, node_touching]))
        return [int(index) for index in touching]

    def worst_by_node(self, values: Numbers) -> Numbers:
        """Return the largest value among the parts of each node."""
        worst = np.zeros(self.nodes)
        np.maximum.at(worst, self.owners, values)
        return worst


def parts_of(releases: Sequence[Release], nodes: int) -> Parts:
    """Return the parts of the nodes' data that releases touch.

    Every node has at least one part, touched or not.
    """
    node, index = _touches(releases, nodes)  # pairs of a node and the index of a release
    batches = {release.batch for release in releases} - {None}
    number_of_batch = {batch: number for number, batch in enumerate(batches)}
    batch_numbers = [number_of_batch.get(release.batch, -1) for release in releases]
    batch = np.array(batch_numbers, dtype=np.int64)[index]  # of each pair; -1 without a batch
    in_batch = batch >= 0
    # a part is a pair of a node and a batch, here as one number
    batch_count = max(1, len(batches))
    part_keys = node[in_batch] * batch_count + batch[in_batch]
    distinct_keys, part = np.unique(part_keys, return_inverse=True)
    owners = distinct_keys // batch_count
    nodes_without_batch = np.setdiff1d(np.arange(nodes), owners)
    return Parts(
        owners=np.concatenate([owners, nodes_without_batch]),
        nodes=nodes,
        batch_pairs=np.stack([part.reshape(-1), index[in_batch]]),
        node_pairs=np.stack([node[~in_batch], index[~in_batch]]),
    )


def nodes_named(releases: Sequence[Release]) -> int:
    """Return the least number of nodes that includes all nodes named; 0 if none is named."""
    counts = (1 + int(max(release.nodes)) for release in releases if release.nodes is not None)
    return max(counts, default=0)


def _touches(releases: Sequence[Release], nodes: int) -> tuple[Indices, Indices]:
    """Return pairs of a node and the index of a release of its data, as two arrays."""
    all_nodes = np.arange(nodes)
    nodes_by_release = []
    for release in releases:
        if release.nodes is None:
            nodes_by_release.append(all_nodes)
        else:
            nodes_by_release.append(np.asarray(release.nodes, np.int64))
    if not nodes_by_release:
        return all_nodes[:0], all_nodes[:0]
    lengths = [len(release_nodes) for release_nodes in nodes_by_release]
    return np.concatenate(nodes_by_release), np.repeat(np.arange(len(releases)), lengths)

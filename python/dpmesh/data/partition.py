"""Train-test splits and partitions of records among nodes.

A partition is a tuple with one array of record indices for each node. The arrays are disjoint, none
is empty, and together they hold every record. With `equal_sizes`, all nodes have the same number of
records, and the records left over belong to no node. Each node's records are in random order,
except with `by_user`, which keeps the order of the dataset.

A guarantee applies to the records that a node holds: a neighbouring dataset replaces one record of
one node. `dirichlet` and `shards` partition by class, so that another label of one record may move
other records to other nodes. They simulate heterogeneous nodes. To protect one dataset as a whole,
use `iid`, which reads no record.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from dpmesh._arrays import unmasked
from dpmesh._ragged import Indices
from dpmesh._validate import fail, instance, integer, positive, probability, require_methods
from dpmesh.data.dataset import A_DATASET, Dataset

Partition: TypeAlias = tuple[Indices, ...]
"""Indices of the records of each node."""

ATTEMPTS = 100
"""Largest number of draws of a random partition until no node is empty."""


def train_test_split(
    dataset: Dataset, fraction: float, generator: np.random.Generator
) -> tuple[Dataset, Dataset]:
    """Split the records at random into training records and test records.

    Parameters
    ----------
    dataset
        At least 2 records.
    fraction
        Share of the test records, in (0, 1). The number of records is rounded; both parts have at
        least 1.
    generator
        Random generator.

    Returns
    -------
    The training records and the test records.

    Raises
    ------
    ValueError
        If `fraction` is not in (0, 1), or there is only one record.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> digits, draw = dm.data.digits(), np.random.default_rng(1)
    >>> train, test = dm.data.train_test_split(digits, 0.2, draw)
    >>> train.records, test.records
    (1438, 359)
    """
    instance("dataset", dataset, A_DATASET, Dataset)
    fraction = probability("fraction", fraction, zero=False, one=False)
    if dataset.records < 2:
        fail("dataset", "at least 2 records", dataset.records)
    test_records = round(fraction * dataset.records)
    test_records = min(max(test_records, 1), dataset.records - 1)
    _check_generator(generator)
    order = generator.permutation(dataset.records)
    train = dataset.take(order[test_records:])
    test = dataset.take(order[:test_records])
    return train, test


def iid(
    dataset: Dataset, nodes: int, generator: np.random.Generator, *, equal_sizes: bool = False
) -> Partition:
    """Divide the records at random among nodes of equal size: an i.i.d. partition.

    Parameters
    ----------
    dataset
        The records.
    nodes
        Number of nodes, at least 1.
    generator
        Random generator.
    equal_sizes
        True to leave out the records beyond a multiple of `nodes`, so that all nodes have the same
        number. By default sizes differ by at most 1.

    Returns
    -------
    The record indices of each node.

    Raises
    ------
    ValueError
        If there are fewer records than nodes.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> digits, draw = dm.data.digits(), np.random.default_rng(1)
    >>> [len(part) for part in dm.data.iid(digits, 4, draw)]
    [450, 449, 449, 449]
    """
    nodes = _checked_nodes(dataset, nodes)
    _check_generator(generator)
    order = generator.permutation(dataset.records)
    if equal_sizes:
        records_per_node = dataset.records // nodes
        order = order[: records_per_node * nodes]
    return _partition(np.array_split(order, nodes))


def dirichlet(
    dataset: Dataset,
    nodes: int,
    generator: np.random.Generator,
    *,
    alpha: float,
    equal_sizes: bool = False,
) -> Partition:
    """Partition the records with Dirichlet label skew: a non-i.i.d. partition.

    By default each class is divided among the nodes in shares drawn from a symmetric Dirichlet
    distribution (Yurochkin et al. 2019). The shares are drawn again while a node has no record.
    With `equal_sizes` each node in turn draws class proportions from a Dirichlet distribution
    around those of the dataset, and takes records that are left (Hsu, Qi and Brown 2019).

    If the label of one record changes, other records may move to other nodes. So a DP guarantee
    applies to the records that a node holds, not to the dataset before the partition.

    Parameters
    ----------
    dataset
        The records. Labels are classes (integers).
    nodes
        Number of nodes, at least 1 and at most the number of records.
    generator
        Source of the random shares and of the order.
    alpha
        Concentration parameter of the Dirichlet distribution, positive. The smaller, the fewer
        classes a node has: 0.1 is a strong skew, and 100 is nearly i.i.d. With `equal_sizes` alpha
        multiplies the class proportions of the dataset.
    equal_sizes
        True to give all nodes equally many records.

    Returns
    -------
    The record indices of each node.

    Raises
    ------
    ValueError
        If labels are not classes, there are fewer records than nodes, or none of 100 draws gives
        every node a record (`alpha` too small for so many nodes).

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> digits, draw = dm.data.digits(), np.random.default_rng(1)
    >>> len(dm.data.dirichlet(digits, 10, draw, alpha=0.5))
    10
    """
    nodes = _checked_nodes(dataset, nodes)
    alpha = positive("alpha", alpha)
    _check_generator(generator)
    pools = _shuffled_classes(dataset, generator)
    class_sizes = np.array([len(pool) for pool in pools])
    if equal_sizes:
        counts = _equal_counts(class_sizes, nodes, alpha, generator)
    else:
        counts = _shared_counts(class_sizes, nodes, alpha, generator)
    ends = counts.cumsum(axis=0)
    starts = ends - counts
    parts = []
    for node in range(nodes):
        pieces = [
            pool[start:end]
            for pool, start, end in zip(pools, starts[node], ends[node], strict=True)
        ]
        parts.append(generator.permutation(np.concatenate(pieces)))
    return _partition(parts)


def shards(
    dataset: Dataset,
    nodes: int,
    generator: np.random.Generator,
    *,
    shards_per_node: int = 2,
    equal_sizes: bool = False,
) -> Partition:
    """Partition the records by class into shards: a non-i.i.d. partition (McMahan et al. 2017).

    The records are sorted by class and cut into shards, and each node receives several shards at
    random. With 2 shards most nodes have records of 2 classes only. If the label of one record
    changes, other records may move to other nodes. So a DP guarantee applies to the records that a
    node holds, not to the dataset before the partition.

    Parameters
    ----------
    dataset
        The records. Labels are classes (integers).
    nodes
        Number of nodes, at least 1.
    generator
        Source of the random order.
    shards_per_node
        Number of shards of each node, at least 1.
    equal_sizes
        True to make all shards equally large; the records left out for this are chosen at random.

    Returns
    -------
    The record indices of each node.

    Raises
    ------
    ValueError
        If labels are not classes, or there are fewer records than shards.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> digits, draw = dm.data.digits(), np.random.default_rng(1)
    >>> parts = dm.data.shards(digits, 10, draw)
    >>> len(set(digits.labels[parts[0]])) < 10
    True
    """
    instance("dataset", dataset, A_DATASET, Dataset)
    nodes = integer("nodes", nodes, at_least=1)
    shards_per_node = integer("shards_per_node", shards_per_node, at_least=1)
    shard_count = nodes * shards_per_node
    if dataset.records < shard_count:
        fail("nodes", f"at most {dataset.records} shards in all", f"{shard_count}")
    _check_generator(generator)
    order = np.concatenate(_shuffled_classes(dataset, generator))
    if equal_sizes:
        shard_size = dataset.records // shard_count
        places = generator.permutation(dataset.records)[: shard_size * shard_count]
        order = order[np.sort(places)]
    all_shards = np.array_split(order, shard_count)
    shards_of_nodes = generator.permutation(shard_count).reshape(nodes, shards_per_node)
    parts = []
    for shards_of_node in shards_of_nodes:
        records = np.concatenate([all_shards[shard] for shard in shards_of_node])
        parts.append(generator.permutation(records))
    return _partition(parts)


def by_user(users: npt.ArrayLike) -> Partition:
    """Partition the records by user: one node for each user, in sorted order of the users.

    Parameters
    ----------
    users
        User of each record, shape (records,), as integers or texts, or as a pandas column. The
        order must be that of the dataset. `train_test_split` shuffles the records: to use it here,
        split users and records together.

    Returns
    -------
    The record indices of each node.

    Raises
    ------
    ValueError
        If `users` is empty, has the wrong shape, or holds something else.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.data.by_user(["ann", "bob", "ann"])
    (array([0, 2]), array([1]))
    """
    ids = unmasked("users", users)
    if ids.dtype == object and len({type(user) for user in ids.flat}) == 1:
        ids = np.array(ids.tolist())  # for example, a pandas column of texts
    if ids.ndim != 1 or not len(ids) or ids.dtype.kind not in "iuUS":
        expectation = "integers or texts of shape (records,), at least 1"
        fail("users", expectation, f"{_types_in(ids)} of shape {ids.shape}")
    return _partition(_groups(ids, np.arange(len(ids))))


def _types_in(ids: npt.NDArray[Any]) -> str:
    """Return the names of the Python types in an array of objects, else the array's type."""
    if ids.dtype == object and ids.size:
        return ", ".join(sorted({type(user).__name__ for user in ids.flat}))
    return str(ids.dtype)


def _checked_nodes(dataset: Dataset, nodes: int) -> int:
    """Return the number of nodes; fail unless each can have a record."""
    instance("dataset", dataset, A_DATASET, Dataset)
    nodes = integer("nodes", nodes, at_least=1)
    if dataset.records < nodes:
        fail("nodes", f"at most {dataset.records}, one for each record", nodes)
    return nodes


def _check_generator(generator: np.random.Generator) -> None:
    """Fail unless `generator` is a numpy generator."""
    expectation = "a numpy generator, from dpmesh.keys.generator"
    require_methods("generator", generator, expectation, "permutation")


def _shuffled_classes(dataset: Dataset, generator: np.random.Generator) -> list[Indices]:
    """Return the indices of each class's records, shuffled, in ascending order of classes."""
    if dataset.labels.dtype != np.int64:
        fail("dataset", "integer labels, the classes", f"labels of {dataset.labels.dtype}")
    return _groups(dataset.labels, generator.permutation(dataset.records))


def _groups(names: npt.NDArray[Any], order: Indices) -> list[Indices]:
    """Return the indices of the records of each name, by ascending name.

    Parameters
    ----------
    names
        Name of each record, shape (records,).
    order
        Order of the indices within a name, a permutation of all indices.
    """
    order = order[np.argsort(names[order], kind="stable")]
    first_of_name = np.unique(names[order], return_index=True)[1]
    return np.split(order, first_of_name[1:])


def _shared_counts(
    class_sizes: Indices, nodes: int, alpha: float, generator: np.random.Generator
) -> Indices:
    """Draw the number of records of each class at each node, until no node is empty.

    Each class is divided at the cumulative Dirichlet shares of the nodes.

    Returns
    -------
    Numbers of records, shape (nodes, classes).
    """
    for _ in range(ATTEMPTS):
        shares = generator.dirichlet(np.full(nodes, alpha), size=len(class_sizes))
        ends = np.rint(shares.cumsum(axis=1) * class_sizes[:, None]).astype(np.int64)
        ends[:, -1] = class_sizes
        counts: Indices = np.diff(ends, axis=1, prepend=0).T
        if counts.sum(axis=1).all():
            break
    else:
        fail("alpha", f"one that gives each of {nodes} nodes a record", alpha)
    return counts


def _equal_counts(
    class_sizes: Indices, nodes: int, alpha: float, generator: np.random.Generator
) -> Indices:
    """Draw the number of records of each class at each node, with the same total for all nodes.

    Each node in turn draws records by its class proportions, from the classes that are not used up.

    Returns
    -------
    Numbers of records, shape (nodes, classes).
    """
    remaining = class_sizes.copy()
    records = int(class_sizes.sum())
    records_per_node = records // nodes
    proportions_of_nodes = generator.dirichlet(alpha * class_sizes / records, size=nodes)
    counts = np.zeros((nodes, len(class_sizes)), dtype=np.int64)
    for node, proportions in enumerate(proportions_of_nodes):
        missing = records_per_node
        while missing > 0:
            weights = np.where(remaining > 0, proportions, 0)
            if weights.sum() == 0:  # the node's classes are used up
                weights = remaining
            requested = generator.multinomial(missing, weights / weights.sum())
            assigned = np.minimum(requested, remaining)
            counts[node] += assigned
            remaining -= assigned
            missing -= int(assigned.sum())
    return counts


def _partition(arrays: list[npt.NDArray[Any]]) -> Partition:
    """Return arrays of indices as a partition of int64."""
    return tuple(array.astype(np.int64, copy=False) for array in arrays)

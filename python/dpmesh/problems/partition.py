"""Records and their partition among nodes, checked and laid end to end."""

from __future__ import annotations

import numpy as np

from dpmesh._ragged import Ragged
from dpmesh._validate import fail
from dpmesh.data import Dataset, Partition


def flat_partition(partition: Partition, records: int) -> Ragged:
    """Return ``(starts, indices)``: node ``i`` has ``indices[starts[i]:starts[i + 1]]``.

    Raises
    ------
    ValueError
        If there is no node, or one without records, or an index is out of range or occurs twice.
    """
    if not np.iterable(partition):
        fail("partition", "an array of indices for each node", repr(partition))
    parts = [np.asarray(part) for part in partition]
    if not parts:
        fail("partition", "at least 1 node", "none")
    for node, part in enumerate(parts):
        if part.ndim != 1 or part.dtype.kind not in "iu" or not part.size:
            wanted = "integer indices of at least 1 record for each node"
            fail("partition", wanted, f"{part.dtype} of shape {part.shape} for node {node}")
    order = np.concatenate(parts).astype(np.int64)
    outside = order[(order < 0) | (order >= records)]
    if outside.size:
        fail("partition", f"indices from 0 to {records - 1}", outside[0])
    counts = np.bincount(order, minlength=records)
    if counts.max() > 1:
        fail("partition", "each record at one node", f"record {counts.argmax()} more than once")
    starts = np.cumsum([0, *map(len, parts)], dtype=np.int64)
    order.flags.writeable = starts.flags.writeable = False
    return starts, order


def check_shape(shape: tuple[int, ...], **datasets: Dataset | None) -> None:
    """Fail unless the records of these data sets, by argument, are dense and of this shape."""
    for name, dataset in datasets.items():
        if dataset is None:
            continue
        if not isinstance(dataset.features, np.ndarray):
            fail(name, "dense features", "sparse ones")
        if dataset.dim != int(np.prod(shape)):
            fail(name, f"records of shape {shape}", f"{dataset.dim} features")

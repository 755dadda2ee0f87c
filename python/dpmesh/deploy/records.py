"""A party's own records, from a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dpmesh._validate import fail
from dpmesh.data import Dataset
from dpmesh.deploy.contract import Contract
from dpmesh.tables import read_table
from dpmesh.tables.cells import of_file
from dpmesh.tables.reader import TextFormat


def read_records(
    contract: Contract, path: str | Path, written: TextFormat | None = None, *, drop: bool = False
) -> Dataset:
    """Return the records of a file as the contract describes them.

    Parameters
    ----------
    contract
        The contract.
    path
        A table (CSV with a header, Parquet, Arrow, Feather) with the columns of the contract's
        ranges; or a numpy archive (npz) with ``features``, shape (records, features), and
        ``labels``, if the contract has none.
    written
        How a text file is written; by default as its header shows.
    drop
        Whether records without a label are left out; else they are an error.

    Raises
    ------
    ValueError
        If the file holds something else.
    OSError
        If it cannot be read.
    """
    if contract.tables.columns is not None or contract.tables.questions is not None:
        with of_file(path):
            return contract.tables.dataset(read_table(path, written), drop=drop)
    if Path(path).suffix != ".npz":
        fail("data", "an npz file, since the contract has no [ranges] of columns", path)
    with np.load(path, allow_pickle=False) as held:
        for name in ("features", "labels"):
            if name not in held:
                fail("data", "arrays features and labels", f"{', '.join(held)}")
        features, labels = held["features"], held["labels"]
    return Dataset(features.astype(contract.terms.numbers), labels, "own records")

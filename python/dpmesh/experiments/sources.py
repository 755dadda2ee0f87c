"""Where the records of an experiment come from: data sets, and files of one's own."""

from __future__ import annotations

from typing import Literal

import numpy as np

import dpmesh.data as data
from dpmesh._validate import fail, integer, probability
from dpmesh.data import Dataset
from dpmesh.experiments.files import load_files
from dpmesh.settings.parts import Maker


def load(
    source: Literal["digits", "breast_cancer", "mnist", "svhn", "rcv1", "covertype"],
    folder: str | None = None,
    records: int | None = None,
    positive: tuple[int, ...] | None = None,
    test_fraction: float = 0.2,
    public_fraction: float = 0.0,
    unit_norm: bool = True,
    *,
    generator: np.random.Generator,
) -> tuple[Dataset, Dataset, Dataset | None]:
    """Return the records to train on, those to test on, and public ones, if there are any.

    Parameters
    ----------
    source
        Which data set: digits or breast_cancer, which ship with scikit-learn, mnist, svhn, rcv1 or
        covertype.
    folder
        Where its files are; by default the subfolder of that name in the folder DPMESH_DATA.
    records
        Use only that many records, the first ones; by default all.
    positive
        Labels that become +1, the others -1; by default labels stay as they are.
    test_fraction
        Fraction that is set aside for testing, in (0, 1).
    public_fraction
        Fraction of the others that is public and held by no node, in [0, 1): a controller DeepQ
        with sees = "released" scores models on it.
    unit_norm
        Whether each record is divided by its L2 norm.
    generator
        Source of the order, from which the fractions are cut.
    """
    loader: Maker = getattr(data, source)
    shipped = source in ("digits", "breast_cancer")
    dataset: Dataset = loader() if shipped else loader(folder=folder)
    if positive is not None and not np.isin(dataset.labels, positive).any():
        fail("positive", f"labels of {dataset.name}", list(positive))
    if records is not None:
        count = integer("records", records, at_least=1, below=dataset.records + 1)
        dataset = dataset.take(np.arange(count))
    if positive is not None:
        dataset = dataset.relabelled(lambda label: np.where(np.isin(label, positive), 1, -1))
    if unit_norm:
        dataset = data.unit_norm(dataset)
    probability("test_fraction", test_fraction, zero=False, one=False)
    probability("public_fraction", public_fraction, one=False)
    train, test = data.train_test_split(dataset, test_fraction, generator)
    public = None
    if public_fraction > 0:
        train, public = data.train_test_split(train, public_fraction, generator)
    return train, test, public


def source_of(table: object) -> Maker:
    """Return what loads the records that a table [data] describes."""
    return load_files if isinstance(table, dict) and "files" in table else load

"""The data of an experiment: records, partition among nodes, and the problem to solve.

`Records` reads the tables ``[data]``, ``[partition]`` and ``[problem]`` of the settings. `load` is
the loader of known data sets, `dpmesh.experiments.files.load_files` of the user's files. Their
docstrings are also the help of the keys of ``[data]``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

import dpmesh.data as data
import dpmesh.keys as keys
from dpmesh._files import JsonObject
from dpmesh._validate import fail, integer, probability
from dpmesh.algorithms.first_stage import require_dense
from dpmesh.data import Dataset
from dpmesh.data.partition import Partition
from dpmesh.defaults import Sizes
from dpmesh.experiments.files import SiteRecords, load_files
from dpmesh.keys import Key, Purpose
from dpmesh.problems import Problem
from dpmesh.settings import Settings
from dpmesh.settings.parts import SECTIONS, Maker, part_fields
from dpmesh.tables.cells import Cells
from dpmesh.tables.models import Outline

_MARGINS = ("logistic", "hinge")
"""Losses whose labels are -1 and +1."""


SplitRecords: TypeAlias = tuple[Dataset, Dataset, Dataset | None]
"""Training records, test records, and public records (None without any)."""


class Loaded(NamedTuple):
    """The problem of an experiment, and public records (None without any)."""

    problem: Problem
    public: Dataset | None


@dataclass(frozen=True)
class Records:
    """The data of an experiment.

    Parameters
    ----------
    settings
        Settings of the experiment.
    key
        Key that draws the test records and the partition.
    """

    settings: Settings
    key: Key

    def nodes(self) -> int:
        """Return the number of nodes: of ``[partition]``, or without it the number of sites."""
        if "partition" not in self.settings.content:
            records = self._loaded(keys.generator(self.key, Purpose.SPLIT))
            assert isinstance(records, SiteRecords)
            return len(records.sites)
        nodes = self.settings.table("partition").get("nodes")
        if nodes is None:
            self.settings.fail("partition.nodes", "wanted the line nodes = 4, or more, got none")
        if type(nodes) is not int or nodes < 1:
            expected = "wanted an integer of at least 1"
            self.settings.fail("partition.nodes", f"{expected}, got {nodes!r}")
        return nodes

    def problem(self) -> Any:
        """Load the data, and return the problem."""
        return self.load().problem

    def sizes(self) -> Sizes:
        """Load the data, and return their public sizes, after the first stage if there is one."""
        problem = self.problem()
        features = 0
        learned = problem
        if "first_stage" in self.settings.content:
            self.settings.call("problem", require_dense, problem=problem)
            features = problem.train.dim
            learned = problem.centred(np.zeros(features))
        return Sizes(
            nodes=problem.nodes,
            fewest_records=int(problem.records.min()),
            total_records=int(problem.records.sum()),
            dim=learned.dim,
            features=features,
        )

    def load(self) -> Loaded:
        """Load the data, split off test and public records, and partition the training records."""
        settings = self.settings
        generator = keys.generator(self.key, Purpose.SPLIT)
        records = self._loaded(generator)
        table = dict(settings.table("problem"))
        outline: Outline | None = None
        partition: Partition | None = None
        public: Dataset | None = None
        if isinstance(records, SiteRecords):
            outline = records.outline
            partition = records.sites
            train, test = records.train, records.test
            if table.get("kind", "linear") == "linear":
                table, is_signed = _linear_table(table, outline)
                if is_signed:
                    train, test = (part.relabelled(_signed) for part in (train, test))
        else:
            train, test, public = records
        if "partition" in settings.content:
            partition = settings.make(
                "partition",
                settings.table("partition"),
                SECTIONS["partition"],
                dataset=train,
                generator=generator,
            )
        derived: dict[str, object] = {"train": train, "partition": partition, "test": test}
        if outline is not None:
            derived["outline"] = outline
        problem: Problem = settings.make("problem", table, SECTIONS["problem"], **derived)
        return Loaded(problem, public)

    def _loaded(self, generator: np.random.Generator) -> SiteRecords | SplitRecords:
        """Load the records that the table [data] names."""
        table = self.settings.table("data")
        source = source_of(table)
        arguments = self.settings.arguments("data", table, part_fields(source))
        records: SiteRecords | SplitRecords = self.settings.call(
            "data", source, **arguments, generator=generator
        )
        return records


def _linear_table(table: JsonObject, outline: Outline) -> tuple[JsonObject, bool]:
    """Fill in the parameters of a linear problem that follow from an outline.

    Returns
    -------
    The table, and True if its loss requires labels -1 and +1.
    """
    # encoded records have norm 1
    table = {"feature_norm": 1.0, "loss": outline.loss, **table}
    if outline.classes is None:
        return table, False
    classes = len(outline.classes)
    if table["loss"] in _MARGINS and classes == 2 and "classes" not in table:
        return table, True
    return {"classes": classes, **table}, False


def _signed(labels: Cells) -> Cells:
    """Convert labels 0 and 1 to -1 and +1."""
    return 2 * labels - 1


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
) -> SplitRecords:
    """Load a known data set, and split it into training, test and public records.

    Parameters
    ----------
    source
        Data set: digits or breast_cancer, which ship with scikit-learn, mnist, svhn, rcv1 or
        covertype.
    folder
        Where its files are; by default the subfolder of that name in the folder DPMESH_DATA.
    records
        Number of records to use, the first ones of the data set; by default all.
    positive
        Labels that become +1, the others -1; by default labels stay as they are.
    test_fraction
        Fraction that is set aside for testing, in (0, 1).
    public_fraction
        Fraction of the remaining records that is public and held by no node, in [0, 1). A
        controller DeepQ with sees = "released" scores models on it.
    unit_norm
        Whether each record is divided by its L2 norm.
    generator
        Source of the random order in which records are split off.
    """
    loader: Maker = getattr(data, source)
    is_shipped = source in ("digits", "breast_cancer")
    dataset: Dataset = loader() if is_shipped else loader(folder=folder)
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
    """Return the loader of a table ``[data]``.

    It is `load_files` if the table has the key ``files``, else `load`.
    """
    if isinstance(table, dict) and "files" in table:
        return load_files
    return load

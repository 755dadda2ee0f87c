"""The records of an experiment, who holds which, and the problem that they make."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

import dpmesh.data as data
import dpmesh.keys as keys
from dpmesh._validate import fail, integer, probability
from dpmesh.algorithms.first_stage import require_dense
from dpmesh.data import Dataset
from dpmesh.defaults import Sizes
from dpmesh.experiments.files import OwnRecords, load_files
from dpmesh.keys import Key, Purpose
from dpmesh.problems import Problem
from dpmesh.settings import Settings
from dpmesh.settings.parts import SECTIONS, Maker, entries

_MARGINS = ("logistic", "hinge")
"""Losses of labels -1 and +1."""


class Loaded(NamedTuple):
    """A problem, and the records that are public."""

    problem: Problem
    public: Dataset | None


@dataclass(frozen=True)
class Records:
    """The data of an experiment; the key decides which are for testing and who holds which."""

    settings: Settings
    key: Key

    def nodes(self) -> int:
        """Return the number of nodes: of the partition, or of the files' sites without one."""
        at = self.settings
        if "partition" not in at.content:
            own = self._source(keys.generator(self.key, Purpose.SPLIT))
            return len(own.sites)
        nodes = at.table("partition").get("nodes")
        if type(nodes) is not int or nodes < 1:
            at.fail("partition.nodes", f"wanted an integer of at least 1, got {nodes!r}")
        return nodes

    def problem(self) -> Any:
        """Return the problem alone."""
        return self.load().problem

    def sizes(self) -> Sizes:
        """Load the data, and return their public sizes after a first stage, if there is one."""
        problem = self.problem()
        features = 0
        learned = problem
        if "first_stage" in self.settings.content:
            self.settings.call("problem", require_dense, problem=problem)
            features = problem.train.dim
            learned = problem.centred(np.zeros(features))
        return Sizes(
            nodes=problem.nodes,
            smallest=int(problem.records.min()),
            together=int(problem.records.sum()),
            dim=learned.dim,
            features=features,
        )

    def load(self) -> Loaded:
        """Load the data, set some aside for testing, and partition the rest."""
        at, public = self.settings, None
        made: dict[str, Any] = {}
        generator = keys.generator(self.key, Purpose.SPLIT)
        found = self._source(generator)
        table = dict(at.table("problem"))
        if isinstance(found, OwnRecords):
            train, test, parts, outline = found
            classes = None if outline.classes is None else len(outline.classes)
            made["outline"] = outline
            if table.get("kind", "linear") == "linear":
                table.setdefault("feature_norm", 1.0)  # as all that are encoded
                table.setdefault("loss", outline.loss)
                if table["loss"] in _MARGINS and classes == 2 and "classes" not in table:
                    train, test = (one.relabelled(lambda y: 2 * y - 1) for one in (train, test))
                elif classes is not None:
                    table.setdefault("classes", classes)
        else:
            train, test, public = found
        if "partition" in at.content:
            given, kinds = at.table("partition"), SECTIONS["partition"]
            parts = at.make("partition", given, kinds, dataset=train, generator=generator)
        given = {"train": train, "partition": parts, "test": test}
        return Loaded(at.make("problem", table, SECTIONS["problem"], **given, **made), public)

    def _source(self, generator: np.random.Generator) -> Any:
        at, table = self.settings, self.settings.table("data")
        source = source_of(table)
        arguments = at.arguments("data", table, entries(source))
        return at.call("data", source, **arguments, generator=generator)


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

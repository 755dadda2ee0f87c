"""The problem of an experiment: its data, who holds which, and the model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import dpmesh.keys as keys
from dpmesh.data import Dataset
from dpmesh.experiments.files import OwnRecords
from dpmesh.experiments.sources import source_of
from dpmesh.keys import Key, Purpose
from dpmesh.problems import Problem
from dpmesh.settings import Settings
from dpmesh.settings.parts import SECTIONS, entries

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

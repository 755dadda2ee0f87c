"""The tables of a contract's parties: columns with public ranges, and what is learned from them.

A contract either learns a model of the columns, or asks questions about them. The public ranges
decide how each cell is encoded, so that no party's data decide it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dpmesh._networks import named
from dpmesh._validate import fail
from dpmesh.data import Dataset
from dpmesh.deploy.terms import Terms
from dpmesh.kernels.linear_model import as_sets
from dpmesh.problems import LinearProblem
from dpmesh.problems.named import jax_model
from dpmesh.settings import Settings
from dpmesh.settings.parts import Maker
from dpmesh.statistics.ask import Questions, questions_about, read_columns
from dpmesh.statistics.ask import named as with_names
from dpmesh.statistics.options import OPTIONS, questions_of
from dpmesh.statistics.records import PER_COLUMN, QuestionProblem, encoded
from dpmesh.tables import Category, Columns, Number, as_table
from dpmesh.tables.cells import errors_naming_file
from dpmesh.tables.columns import clipped
from dpmesh.tables.kinds import Count
from dpmesh.tables.labels import Label, Labels, labels_and_records
from dpmesh.tables.models import Outline
from dpmesh.tables.ranges import as_labels, as_range, columns_of
from dpmesh.tables.reader import TextFormat, open_table

_log = logging.getLogger("dpmesh")

PROBLEMS: dict[str, Maker] = {"linear": LinearProblem, "jax": jax_model}
"""Makers of the learning problems that a contract can name, by kind."""


class ProblemTerms(NamedTuple):
    """The learning problem that a contract names, without records.

    Attributes
    ----------
    maker
        Class or function that makes the problem of records.
    arguments
        Its arguments beside the records, by name.
    """

    maker: Maker
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class Tables:
    """Format of the parties' tables under a contract, as public as the contract itself.

    A `Contract` makes it. A party calls `read` or `dataset` with its own records, which stay with
    the party.

    Parameters
    ----------
    settings, terms
        The content of the contract, and its terms.
    """

    settings: Settings
    terms: Terms

    @cached_property
    def columns(self) -> Columns | None:
        """The features' columns and public ranges; None without ranges, and for questions."""
        ranges = self.settings.table("ranges")
        if not ranges or self.questions is not None:
            return None
        names = [name for name in ranges if name not in self.label_names]
        features = str(self.terms.features or "columns")
        columns: Columns = self.settings.call(
            "ranges",
            Columns.of,
            ranges={name: ranges[name] for name in names},
            names=names,
            features=features,
        )
        return columns

    @cached_property
    def questions(self) -> Questions | None:
        """The questions of the table [questions]; None if the parties learn a model."""
        settings = self.settings
        ranges = self.settings.table("ranges")
        if "questions" not in settings.content:
            return None
        table = settings.table("questions")
        settings.known("questions", table, (*OPTIONS, "weights"))
        weights = table.get("weights", ())
        if not isinstance(weights, (list, tuple)):
            settings.fail("questions.weights", "wanted a list of numbers, one for each question")
        kinds = {
            name: settings.call("ranges", as_range, name=name, form=form)
            for name, form in ranges.items()
        }
        stated = settings.call("questions", questions_of, options=table, kinds=kinds, sign="")
        questions: Questions = settings.call(
            "questions", questions_about, questions=stated, ranges=ranges, weights=weights
        )
        return questions

    @cached_property
    def label_names(self) -> tuple[str, ...]:
        """Names of the columns to predict; none if the contract states no label."""
        names: tuple[str, ...] = self.settings.call("contract", columns_of, label=self.terms.label)
        return names

    @cached_property
    def label(self) -> Label:
        """The public range of the column to predict, or of several."""
        ranges = self.settings.table("ranges")
        if not self.label_names or not {*self.label_names} <= {*ranges}:
            self.settings.fail("contract.label", "wanted the column to predict, with a range")
        forms = {name: ranges[name] for name in self.label_names}
        label: Label = self.settings.call("ranges", as_labels, forms=forms)
        return label

    @property
    def classifies(self) -> bool:
        """True if the labels are classes, which they are without ranges."""
        return self.columns is None or isinstance(self.label, Category)

    @property
    def features(self) -> int:
        """Number of features of a record; for questions, of its encoded cells."""
        if self.questions is not None:
            return PER_COLUMN * len(self.questions.kinds)
        if self.columns is None:
            return int(self.terms.features or 0)
        return self.columns.dim

    @cached_property
    def problem(self) -> ProblemTerms:
        """The learning problem of the table [problem], or of the questions."""
        if self.questions is not None:
            return ProblemTerms(QuestionProblem, {"questions": self.questions})
        table = self.settings.table("problem")
        return ProblemTerms(*self.settings.part("problem", table, PROBLEMS))

    @property
    def network(self) -> str | None:
        """The function of a JAX network, as ``module:function``; None for a linear model."""
        if self.problem.maker is jax_model:
            return str(self.problem.arguments["model"])
        return None

    def read(
        self, path: str | Path, text_form: TextFormat | None = None, *, drop: bool = False
    ) -> Dataset:
        """Return a party's records from a file, encoded as the contract states.

        Parameters
        ----------
        path
            A table (CSV with a header, Parquet, Arrow, Feather) with the columns of the contract's
            ranges. Without ranges, a NumPy archive (npz) with ``features``, shape (records,
            features), and ``labels``, shape (records,).
        text_form
            Format of a text file; by default detected from its header line.
        drop
            True to leave out records without a label, which are an error otherwise.

        Raises
        ------
        ValueError
            If the file has other columns or arrays, or a cell that its range does not allow. The
            text may show cells: do not send it to anybody.
        OSError
            If it cannot be read.
        """
        if self.columns is not None or self.questions is not None:
            with errors_naming_file(path):
                return self.dataset(open_table(path, text_form), drop=drop)
        if Path(path).suffix != ".npz":
            fail("data", "an npz file, since the contract has no [ranges] of columns", path)
        with np.load(path, allow_pickle=False) as arrays:
            for name in ("features", "labels"):
                if name not in arrays:
                    fail("data", "arrays features and labels", f"{', '.join(arrays)}")
            features, labels = arrays["features"], arrays["labels"]
        return Dataset(features.astype(self.terms.numbers), labels, "own records")

    def dataset(self, table: Any, *, drop: bool = False) -> Dataset:
        """Return the records of a table, encoded by the contract's public ranges.

        Numbers outside of a range are clipped. Cells that cannot be read count as missing, if the
        range allows that. The log, which stays with the party, has the numbers of both by column.

        Parameters
        ----------
        table
            A table of pandas or another library, with the columns of the contract's ranges.
        drop
            True to leave out records without a label, which are an error otherwise.

        Raises
        ------
        ValueError
            If the contract has no ranges, if the table lacks a column, or if a cell holds what its
            range does not allow. The text may show cells: do not send it to anybody.
        """
        if self.questions is not None:
            return self._dataset_of_questions(self.questions, table)
        if self.columns is None or not self.label_names:
            fail("ranges", "a contract with [ranges] and a label for tables", "none")
        labels, labelled_table = labels_and_records(
            self.label_names, self.label, as_table(table), drop=drop
        )
        encoded_table = self.columns.encode_table(labelled_table)
        notices = encoded_table.notices()
        if isinstance(self.label, Number):
            (name,) = self.label_names
            scaled, outside_range, _ = self.label.encode(name, labels)
            notices += clipped(name, outside_range, len(labels))
            labels = scaled[:, 0]
        elif isinstance(self.label, Labels):
            labels = as_sets(labels)
        elif self.network is None and self.problem.arguments.get("classes") is None:
            labels = 2 * labels - 1  # a binary loss has the labels -1 and 1
        for notice in notices:
            _log.warning("%s", notice)
        return Dataset(encoded_table.features.astype(self.terms.numbers), labels, "own records")

    def _dataset_of_questions(self, questions: Questions, table: Any) -> Dataset:
        """Return the records of a table as questions read them; their labels have no meaning."""
        columns, notices = read_columns(questions, with_names(as_table(table)))
        for notice in notices:
            _log.warning("%s", notice)
        cells = encoded(questions, columns)
        return Dataset(cells, np.ones(len(cells), np.int64), "own records")

    @cached_property
    def outline(self) -> Outline | None:
        """Names and meanings of a model's parameters; None without ranges, and for questions.

        Raises
        ------
        ValueError
            If the loss is ``"poisson"`` for a label without counts, or another one for counts.
        """
        if self.columns is None:
            return None
        if isinstance(self.label, Number):
            loss = self.problem.arguments.get("loss")
            if (loss == "poisson") != isinstance(self.label, Count):
                fail("problem.loss", "'poisson' for a label {counts = ..}, no other", repr(loss))
        network = None
        if self.network is not None:
            network = named(self.network)
        return Outline.of(self.columns, self.label, network)

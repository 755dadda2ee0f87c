"""Ask a table questions: one release of sums for all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from dpmesh._html import InNotebooks
from dpmesh._privacy_types import Floats, Sensitive
from dpmesh._validate import fail, instance, nearest, positive, probability
from dpmesh.algorithms.record_sums import RecordSums
from dpmesh.defaults import method_for
from dpmesh.defaults.choice import against
from dpmesh.keys import Key
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.report import Report
from dpmesh.run import Metrics, simulate
from dpmesh.statistics.answers import Answer
from dpmesh.statistics.geometry import Column, Size
from dpmesh.statistics.questions import Question
from dpmesh.tables import as_table
from dpmesh.tables.columns import clipped, unlisted
from dpmesh.tables.kinds import Kind
from dpmesh.tables.ranges import as_range, read_ranges
from dpmesh.tables.sites import site_of_each
from dpmesh.tables.table import Table

_BLOCK = 2**20
"""Numbers of the vectors that are held at once."""

PUBLIC = "the number of sites and of all records together are public"


@dataclass(frozen=True, kw_only=True)
class Statistics(InNotebooks):
    """Answers that may be published, and what they cost together.

    Parameters
    ----------
    answers
        One for each question.
    sites, records
        Their public numbers.
    against
        Against whom the guarantee holds, in words.
    privacy
        What all answers cost together.
    ledger
        The release that they follow from.
    notices
        What the data's owner alone should know: no epsilon covers it, and it is not printed.
    origin
        Under a contract, which one, and who signed the total: see `dpmesh.deploy.outcome`.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> table = {"age": np.linspace(20, 80, 900)}
    >>> question = dm.statistics.Mean("age")
    >>> found = dm.statistics.ask(question, table, ranges={"age": [0, 100]}, epsilon=1.0)
    >>> found.answers[0].title
    'mean'
    """

    answers: tuple[Answer, ...]
    sites: int
    records: int
    against: str
    privacy: Report
    ledger: Plan
    notices: tuple[str, ...] = ()
    origin: Mapping[str, Any] | None = field(default=None, compare=False)

    def __str__(self) -> str:
        head = f"{self.records} records at {self.sites} site{'s' * (self.sites != 1)}"
        cost = f"against     {self.against}\n{self.privacy}"
        return "\n\n".join([head, *map(str, self.answers), cost])

    def charged(self, epsilon: float, why: str) -> Statistics:
        """Return the same answers with what they cost beside something else."""
        privacy = self.privacy
        privacy = replace(privacy, epsilon=epsilon, assumptions=(*privacy.assumptions, why))
        return replace(self, privacy=privacy)

    def as_dict(self) -> dict[str, Any]:
        """Return what may be published in plain types that JSON can hold."""
        numbers = {"sites": self.sites, "records": self.records, "against": self.against}
        answers = [one.as_dict() for one in self.answers]
        cost = {"ledger": self.ledger.as_dict(), "privacy": self.privacy.as_dict()}
        signed = {} if self.origin is None else {"provenance": dict(self.origin)}
        return {**numbers, "answers": answers, **cost, **signed}


@dataclass(frozen=True, kw_only=True)
class Questions:
    """What is asked, and all that is public about it.

    Parameters
    ----------
    each
        The questions.
    kinds
        The public ranges of the columns that they read.
    """

    each: tuple[Question, ...]
    kinds: dict[str, Kind]

    @cached_property
    def sizes(self) -> list[Size]:
        """The public size of each question's vector, which is divided by its distance."""
        return [question.size(self.kinds) for question in self.each]

    @property
    def sums(self) -> dict[str, Any]:
        """The numbers of the one sum of all questions' vectors, as `RecordSums` takes them.

        The vectors of k questions, each divided by its distance, are at most sqrt(k) apart.
        """
        sizes = self.sizes
        longest = sqrt(sum((size.norm / size.distance) ** 2 for size in sizes)) * (1 + 1e-9)
        dim = sum(size.dim for size in sizes)
        return {"dim": dim, "longest": longest, "diameter": sqrt(len(sizes)) / longest}

    def require(self, noise: float, records: int) -> None:
        """Fail if records are too few for the noise in a number of the sum."""
        for question, size in zip(self.each, self.sizes, strict=True):
            question.require(size.distance * noise, records)

    def vectors(self, columns: Mapping[str, Column]) -> Sensitive:
        """Return the vectors of records, shape (records, dim), those of all questions in turn."""
        each = zip(self.each, self.sizes, strict=True)
        return Sensitive(np.hstack([q.vectors(columns) / size.distance for q, size in each]))

    def answers(self, total: Floats, noise: float, records: int) -> tuple[Answer, ...]:
        """Return the answers from a released sum, shape (dim,), with so much noise in a number."""
        ends = np.cumsum([size.dim for size in self.sizes])[:-1]
        parts: list[Floats] = np.split(total, ends)
        each = zip(self.each, self.sizes, parts, strict=True)
        return tuple(
            q.answer(self.kinds, np.multiply(d, own, dtype=np.float64), d * noise, records)
            for q, (_, _, d), own in each
        )


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The records of some sites as vectors: those of all questions, one after another.

    Parameters
    ----------
    questions
        What is asked.
    columns
        What they read, each cell by itself.
    parts
        The records of each site.
    """

    questions: Questions
    columns: dict[str, Column]
    parts: tuple[npt.NDArray[np.int64], ...]
    test: None = None

    @property
    def nodes(self) -> int:
        """Number of sites."""
        return len(self.parts)

    @property
    def all_records(self) -> npt.NDArray[np.int64]:
        """Number of records of each site."""
        return np.array([len(part) for part in self.parts])

    def vectors(self, node: int) -> Iterator[Sensitive]:
        """Return the vectors of a site's records in blocks of shape (records, dim)."""
        part, dim = self.parts[node], self.questions.sums["dim"]
        for some in np.array_split(part, -(-len(part) * dim // _BLOCK)):
            yield self.questions.vectors(
                {name: column.take(some) for name, column in self.columns.items()}
            )


def ask(
    questions: Question | Sequence[Question],
    X: Any,
    groups: Any = None,
    *,
    ranges: Mapping[str, Any] | str | os.PathLike[str],
    epsilon: float,
    delta: float = 1e-5,
    colluding: int = 1,
    key: Key | None = None,
) -> Statistics:
    """Answer questions about the records of all sites, at one epsilon for all answers together.

    The vectors of all questions are released as one sum, each question with the same share of the
    budget: its vector is divided by its sensitivity, so that k questions need sqrt(k) times the
    noise of one.

    Parameters
    ----------
    questions
        Such as ``[Mean("age"), Histogram("stage")]``.
    X
        A pandas or pyarrow table, a dictionary of columns, or an array of shape (records, columns).
    groups
        The site of each record, shape (records,); None for a single site.
    ranges
        Public ranges by column, or a TOML file of them, see `dpmesh.tables`; those of columns that
        are not asked about are ignored. Columns of an array are x0, x1, ..
    epsilon, delta
        The budget of all answers together.
    colluding
        Sites that may collude with the server of the secure sum, which takes 2 honest sites more.
    key
        The source of the noise; by default the operating system. A seeded one makes the answers
        reproducible, and then they are not private.

    Raises
    ------
    ValueError
        If an argument does not fit, or a column holds what its range does not allow.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> draw = np.random.default_rng(1)
    >>> table = {"age": draw.uniform(20, 80, 900)}
    >>> sites = np.repeat([0, 1, 2], 300)
    >>> asked = dm.statistics.Mean("age")
    >>> found = dm.statistics.ask(asked, table, sites, ranges={"age": [0, 100]}, epsilon=2.0)
    >>> found.sites, found.records
    (3, 900)
    """
    asked = (questions,) if isinstance(questions, Question) else tuple(questions)
    for one in asked or (None,):
        instance("questions", one, "questions such as Mean('age')", Question)
    positive("epsilon", epsilon)
    probability("delta", delta, zero=False, one=False)
    table = as_table(X)
    if not table.records:
        fail("X", "at least 1 record", "none")
    table = named(table)
    given = read_ranges(ranges) if isinstance(ranges, (str, os.PathLike)) else ranges
    wanted = "a mapping of names to public ranges, or a TOML file of them"
    instance("ranges", given, wanted, Mapping)
    about = questions_about(asked, given)
    columns, notices = read_columns(about, table)
    owners = site_of_each(groups, table.records)
    parts = tuple(np.flatnonzero(owners == site) for site in np.unique(owners))
    problem: Any = Asked(questions=about, columns=columns, parts=parts)
    sizes: Any = {"sites": len(parts), "records": table.records}
    secure = method_for(len(parts), epsilon, colluding=colluding) == "secure"
    budget: Any = {"epsilon": epsilon, "delta": delta, "colluding": colluding, "secure": secure}
    sums = RecordSums.for_budget(**budget, **sizes, **about.sums)
    about.require(sums.noise_scale, table.records)
    quiet = Metrics([], progress=False)
    run = simulate(sums, problem, rounds=1, key=key, delta=delta, metrics=quiet)
    return Statistics(
        answers=about.answers(run.released[0], sums.noise_scale, table.records),
        **sizes,
        against=against(sums),
        privacy=replace(run.privacy, assumptions=(*run.privacy.assumptions, PUBLIC)),
        ledger=run.ledger,
        notices=tuple(notices),
    )


def names_of(questions: Sequence[Question], ranges: Mapping[str, Any]) -> list[str]:
    """Return the columns that are asked about, each once; fail if one has no range."""
    names = [*dict.fromkeys(name for question in questions for name in question.names)]
    for name in names:
        if name not in ranges:
            wanted = f"a column with a public range ({', '.join(ranges)})"
            fail("question", wanted, f"{name!r}{nearest(name, ranges)}")
    return names


def questions_about(asked: Sequence[Question], ranges: Mapping[str, Any]) -> Questions:
    """Return questions with the public ranges of the columns that they read."""
    kinds = {name: as_range(name, ranges[name]) for name in names_of(asked, ranges)}
    return Questions(each=tuple(asked), kinds=kinds)


def named(table: Table) -> Table:
    """Return a table whose columns have names."""
    if table.names is not None:
        return table
    return Table(tuple(f"x{i}" for i in range(len(table.columns))), table.columns)


def read_columns(about: Questions, table: Table) -> tuple[dict[str, Column], list[str]]:
    """Return the columns that are asked about, and what their owner should know."""
    columns, notices = dict[str, Column](), list[str]()
    for name, kind in about.kinds.items():
        if kind.may_be_missing and name not in (table.names or ()):
            table = table.with_missing((name,))
        columns[name], outside, unread = Column.read(name, kind, table)
        notices += clipped(name, outside, table.records)
        notices += unlisted(name, unread, table.records)
    return columns, notices

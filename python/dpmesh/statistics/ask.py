"""Ask a table questions: one release of sums for all of them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import fsum, sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse

from dpmesh._html import InNotebooks
from dpmesh._privacy_types import Floats
from dpmesh._validate import fail, instance, nearest, positive, probability
from dpmesh.algorithms.adaptive_sums import AdaptiveSums, NoisyTotal
from dpmesh.algorithms.record_sums import RecordSums
from dpmesh.defaults import method_for
from dpmesh.defaults.choice import threat_model_of
from dpmesh.keys import Key
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.report import Report
from dpmesh.run import Metrics, simulate
from dpmesh.statistics.answers import Answer
from dpmesh.statistics.geometry import Column, Size
from dpmesh.statistics.pairs import pairs_in
from dpmesh.statistics.questions import Question, Vectors
from dpmesh.statistics.synthetic import Synthetic, synthesize
from dpmesh.tables import as_table
from dpmesh.tables.cells import Problems
from dpmesh.tables.columns import clipped, unlisted
from dpmesh.tables.copies import copied, fingerprints
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
    threat_model
        The threat model of the guarantee, in words.
    privacy
        What all answers cost together.
    ledger
        The release that they follow from.
    notices
        What the data's owner alone should know: no epsilon covers it, and it is not printed.
    origin
        Under a contract, which one, and who signed the total: see `dpmesh.deploy.outcome`.
    earlier
        Ledgers of earlier releases of the same records whose cost `privacy` includes.

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
    threat_model: str
    privacy: Report
    ledger: Plan
    notices: tuple[str, ...] = ()
    origin: Mapping[str, Any] | None = field(default=None, compare=False)
    earlier: tuple[Plan, ...] = ()

    def __str__(self) -> str:
        head = f"{self.records} records at {self.sites} site{'s' * (self.sites != 1)}"
        cost = f"against     {self.threat_model}\n{self.privacy}"
        return "\n\n".join([head, *map(str, self.answers), cost])

    def synthesize(self, rows: int, seed: int = 0) -> Synthetic:
        """Draw rows from the answer of `Pairs`: they are no data, and cost nothing more.

        Parameters
        ----------
        rows
            How many, at least 1.
        seed
            Of public coins.

        Raises
        ------
        ValueError
            If there is no such answer, or an argument is out of range.
        """
        return synthesize(pairs_in(self.answers), rows, seed)

    def charged(self, epsilon: float, why: str, earlier: Sequence[Plan]) -> Statistics:
        """Return the same answers with the cost of earlier releases included."""
        privacy = self.privacy
        privacy = replace(privacy, epsilon=epsilon, assumptions=(*privacy.assumptions, why))
        return replace(self, privacy=privacy, earlier=tuple(earlier))

    def as_dict(self) -> dict[str, Any]:
        """Return what may be published in plain types that JSON can hold."""
        numbers = {"sites": self.sites, "records": self.records, "against": self.threat_model}
        answers = [answer.as_dict() for answer in self.answers]
        cost: dict[str, Any] = {"ledger": self.ledger.as_dict(), "privacy": self.privacy.as_dict()}
        if self.earlier:
            cost["earlier"] = [plan.as_dict() for plan in self.earlier]
        signed = {} if self.origin is None else {"provenance": dict(self.origin)}
        return {**numbers, "answers": answers, **cost, **signed}


class Part(NamedTuple):
    """A question's vectors within those of one round.

    Attributes
    ----------
    question
        The question.
    size
        The public size of its vectors.
    factor
        What they are multiplied with: the root of the round's share over their distance.
    """

    question: Question
    size: Size
    factor: float


@dataclass(frozen=True, kw_only=True)
class Questions:
    """Questions with all public facts about them.

    In a round, the vectors of all questions that have one are put together, each multiplied with
    ``sqrt(weight share) / distance``. All rounds have noise of one scale, so that each question has
    the same budget times its weight: k questions are together as dear as one release of vectors
    sqrt(k) apart.

    Parameters
    ----------
    each
        The questions.
    kinds
        The public ranges of the columns that they read.
    weights
        Share of mu^2 of each question, over that of an equal division; their mean is 1. Empty for
        an equal division.

    Raises
    ------
    ValueError
        If there is not one positive weight for each question.
    """

    each: tuple[Question, ...]
    kinds: dict[str, Kind]
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.weights:
            return
        if len(self.weights) != len(self.each):
            names = ", ".join(type(question).__name__ for question in self.each)
            wanted = f"{len(self.each)} numbers, one for each question ({names})"
            fail("weights", wanted, f"{len(self.weights)}")
        for weight in self.weights:
            positive("weights", weight)
        mean = fsum(self.weights) / len(self.weights)
        scaled = tuple(float(weight / mean) for weight in self.weights)
        object.__setattr__(self, "weights", scaled)

    @cached_property
    def sizes(self) -> list[tuple[Size, ...]]:
        """The public sizes of each question's vectors, by round."""
        return [question.sizes(self.kinds) for question in self.each]

    @cached_property
    def rounds(self) -> int:
        """Number of sums that are released, one after another."""
        return max(map(len, self.sizes))

    @cached_property
    def parts(self) -> tuple[tuple[Part, ...], ...]:
        """The parts of each round's vectors."""
        by_round: list[list[Part]] = [[] for _ in range(self.rounds)]
        weights = self.weights or (1.0,) * len(self.each)
        for question, sizes, weight in zip(self.each, self.sizes, weights, strict=True):
            shares = question.shares(self.kinds)
            for parts, size, share in zip(by_round, sizes, shares, strict=False):
                factor = sqrt(weight * share) / size.distance
                parts.append(Part(question, size, factor))
        return tuple(map(tuple, by_round))

    @property
    def lengths(self) -> tuple[int, ...]:
        """Length of the vectors of each round."""
        return tuple(sum(part.size.dim for part in parts) for parts in self.parts)

    @property
    def longest(self) -> tuple[float, ...]:
        """Largest norm of the vectors of each round."""
        return tuple(
            sqrt(sum((part.size.norm * part.factor) ** 2 for part in parts)) * (1 + 1e-9)
            for parts in self.parts
        )

    @property
    def distances(self) -> tuple[float, ...]:
        """Largest distance between two vectors of each round."""
        return tuple(
            sqrt(sum((part.size.distance * part.factor) ** 2 for part in parts))
            for parts in self.parts
        )

    @property
    def sums(self) -> dict[str, Any]:
        """The parameters of the algorithm that follow from the questions."""
        if self.rounds > 1:
            return {
                "lengths": list(self.lengths),
                "longest": list(self.longest),
                "distances": list(self.distances),
            }
        (dim,), (longest,), (distance,) = self.lengths, self.longest, self.distances
        return {"dim": dim, "longest": longest, "diameter": distance / longest}

    @property
    def algorithm(self) -> type[RecordSums] | type[AdaptiveSums]:
        """Algorithm that releases the sums, in one round or in several."""
        return RecordSums if self.rounds == 1 else AdaptiveSums

    def require(self, noises: Sequence[float], records: int) -> None:
        """Fail if records are too few for the noise in a number of each round's sum."""
        noises_by_question = self.noises_of(noises)
        for question, question_noises in zip(self.each, noises_by_question, strict=True):
            question.require_all(self.kinds, question_noises, records)

    def noises_of(self, noises: Sequence[float]) -> list[list[float]]:
        """Return the noise in a number of each question's sum, by round."""
        return [
            [noise / part.factor for noise, part in zip(noises, self._of(place), strict=False)]
            for place in range(len(self.each))
        ]

    def _of(self, place: int) -> list[Part]:
        """Return the parts of a question in each of its rounds."""
        rounds = len(self.sizes[place])
        return [parts[self._place_in(place, t)] for t, parts in enumerate(self.parts[:rounds])]

    def _place_in(self, place: int, t: int) -> int:
        """Return where a question is among those that have a vector in round t."""
        return sum(len(sizes) > t for sizes in self.sizes[:place])

    def vectors(
        self, columns: Mapping[str, Column], t: int = 0, totals: Sequence[NoisyTotal] = ()
    ) -> Vectors:
        """Return the vectors of records in round t, shape (records, length).

        They are those of all questions, one after another.

        Parameters
        ----------
        columns
            The records.
        t
            The round.
        totals
            The released sums of the rounds before it.
        """
        earlier_totals = [self._split(total, earlier) for earlier, total in enumerate(totals)]
        blocks: list[Vectors] = []
        for place, question in enumerate(self.each):
            if t < len(self.sizes[place]):
                question_totals = [by_place[place] for by_place in earlier_totals]
                part = self.parts[t][self._place_in(place, t)]
                vectors = question.vectors_in(columns, t, question_totals)
                blocks.append(vectors * part.factor)
        if any(sparse.issparse(block) for block in blocks):
            return sparse.csr_array(sparse.hstack(blocks, format="csr"))
        return np.hstack(blocks)

    def _split(self, released: NoisyTotal, t: int) -> dict[int, NoisyTotal]:
        """Return the sum of each question in the total of round t, by the question's place."""
        parts = self.parts[t]
        ends = np.cumsum([part.size.dim for part in parts])[:-1]
        totals: list[Floats] = np.split(released.total, ends)
        places = [place for place, sizes in enumerate(self.sizes) if t < len(sizes)]
        return {
            place: NoisyTotal(
                np.multiply(1 / part.factor, total, dtype=np.float64), released.noise / part.factor
            )
            for place, part, total in zip(places, parts, totals, strict=True)
        }

    def by_round(self, totals: Floats, noises: Sequence[float]) -> list[NoisyTotal]:
        """Return the released sum of each round from all of them one after another."""
        ends = np.cumsum(self.lengths)[:-1]
        parts: list[Floats] = np.split(totals, ends)
        return [
            NoisyTotal(np.asarray(total, np.float64), noise)
            for total, noise in zip(parts, noises, strict=True)
        ]

    def answers(self, totals: Floats, noises: Sequence[float], records: int) -> tuple[Answer, ...]:
        """Return the answers from the released sums.

        Parameters
        ----------
        totals
            Of all rounds one after another, shape (sum of lengths,).
        noises
            Standard deviation of the noise in a number of each round.
        records
            The public number of records of all sites.
        """
        released = self.by_round(totals, noises)
        by_round = [self._split(total, t) for t, total in enumerate(released)]
        answers = []
        for place, (question, sizes) in enumerate(zip(self.each, self.sizes, strict=True)):
            question_totals = [by_place[place] for by_place in by_round[: len(sizes)]]
            answers.append(question.answer_from(self.kinds, question_totals, records))
        return tuple(answers)


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
    on_site
        Called after the vectors of each site in each round.
    """

    questions: Questions
    columns: dict[str, Column]
    parts: tuple[npt.NDArray[np.int64], ...]
    test: None = None
    on_site: Callable[[], object] | None = None

    @property
    def nodes(self) -> int:
        """Number of sites."""
        return len(self.parts)

    @property
    def all_records(self) -> npt.NDArray[np.int64]:
        """Number of records of each site."""
        return np.array([len(part) for part in self.parts])

    def vectors(self, node: int) -> Iterator[Vectors]:
        """Return the vectors of a site's records in round 0, in blocks of shape (records, dim)."""
        return self.in_round(0, ()).vectors(node)

    def in_round(self, t: int, totals: Sequence[NoisyTotal]) -> AskedInRound:
        """Return the vectors of round t, given the totals of those before."""
        return AskedInRound(asked=self, t=t, totals=tuple(totals))


@dataclass(frozen=True, kw_only=True)
class AskedInRound:
    """The vectors of one round of `Asked`.

    Parameters
    ----------
    asked
        The records.
    t
        The round.
    totals
        The released sums of the rounds before it.
    counts
        The public number of records of every site, if some are elsewhere.
    """

    asked: Asked
    t: int
    totals: tuple[NoisyTotal, ...]
    counts: tuple[int, ...] | None = None
    test: None = None

    @property
    def nodes(self) -> int:
        """Number of sites."""
        return self.asked.nodes

    @property
    def all_records(self) -> npt.NDArray[np.int64]:
        """Number of records of each site."""
        return self.asked.all_records if self.counts is None else np.array(self.counts)

    def vectors(self, node: int) -> Iterator[Vectors]:
        """Return the vectors of a site's records in blocks of shape (records, dim)."""
        questions = self.asked.questions
        records = self.asked.parts[node]
        numbers_a_record = sum(part.size.held for part in questions.parts[self.t])
        blocks = -(-len(records) * numbers_a_record // _BLOCK)
        for places in np.array_split(records, blocks):
            columns = {name: column.take(places) for name, column in self.asked.columns.items()}
            yield questions.vectors(columns, self.t, self.totals)
        if self.asked.on_site is not None:
            self.asked.on_site()


def ask(
    questions: Question | Sequence[Question],
    X: Any,
    groups: Any = None,
    *,
    ranges: Mapping[str, Any] | str | os.PathLike[str],
    epsilon: float,
    delta: float = 1e-5,
    colluding: int = 1,
    weights: Sequence[float] | None = None,
    key: Key | None = None,
    on_site: Callable[[], object] | None = None,
) -> Statistics:
    """Answer questions about the records of all sites, at one epsilon for all answers together.

    The vectors of all questions are released as one sum, each question with the same share of the
    budget. Each vector is divided by its sensitivity: k questions need sqrt(k) times the noise of
    one. Regressions take several rounds, over which they divide their share.

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
    weights
        One number for each question: its share of the budget (mu^2) is in proportion to it. A
        question with four times the weight has half the noise. By default all shares are equal.
    key
        The source of the noise; by default the operating system. A seeded one makes the answers
        reproducible, and then they are not private.
    on_site
        Called after the records of each site in each round, to show progress.

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
    for question in asked or (None,):
        instance("questions", question, "questions such as Mean('age')", Question)
    positive("epsilon", epsilon)
    probability("delta", delta, zero=False, one=False)
    table = as_table(X)
    if not table.records:
        fail("X", "at least 1 record", "none")
    table = named(table)
    if isinstance(ranges, (str, os.PathLike)):
        ranges = read_ranges(ranges)
    instance(
        "ranges", ranges, "a mapping of names to public ranges, or a TOML file of them", Mapping
    )
    owners = site_of_each(groups, table.records)
    parts = tuple(np.flatnonzero(owners == site) for site in np.unique(owners))
    budget = Spending(
        epsilon=epsilon,
        delta=delta,
        sites=len(parts),
        records=table.records,
        colluding=colluding,
        secure=method_for(len(parts), epsilon, colluding=colluding) == "secure",
    )
    about, sums = budget.settle(asked, ranges, () if weights is None else tuple(weights))
    columns, notices = read_columns(about, table)
    copies = copied(fingerprints(table), parts, np.unique(owners))
    if copies is not None:
        warnings.warn(copies, UserWarning, stacklevel=2)
    problem: Any = Asked(questions=about, columns=columns, parts=parts, on_site=on_site)
    quiet = Metrics([], progress=False)
    algorithm: Any = sums
    run = simulate(algorithm, problem, rounds=about.rounds, key=key, delta=delta, metrics=quiet)
    return Statistics(
        answers=about.answers(run.released[0], sums.noise_scales, table.records),
        sites=len(parts),
        records=table.records,
        threat_model=threat_model_of(sums),
        privacy=replace(run.privacy, assumptions=(*run.privacy.assumptions, PUBLIC)),
        ledger=run.ledger,
        notices=tuple(notices),
    )


@dataclass(frozen=True, kw_only=True)
class Spending:
    """The public numbers that determine the noise of answers.

    Parameters
    ----------
    epsilon, delta
        The budget of all answers together.
    sites, records
        Their public numbers.
    colluding, dropouts, secure
        As of `RecordSums`.
    """

    epsilon: float
    delta: float
    sites: int
    records: int
    colluding: int = 1
    dropouts: int = 0
    secure: bool = True

    def sums(self, about: Questions) -> RecordSums | AdaptiveSums:
        """Return the sums of questions with the least noise that keeps the budget."""
        public = {name: value for name, value in vars(self).items() if name not in _BUDGET}
        return about.algorithm.for_budget(
            epsilon=self.epsilon, delta=self.delta, **public, **about.sums
        )

    def settle(
        self, asked: Sequence[Question], ranges: Mapping[str, Any], weights: Sequence[float] = ()
    ) -> tuple[Questions, RecordSums | AdaptiveSums]:
        """Return questions with all that follows from their noise, and their sums.

        Raises
        ------
        ValueError
            If records are too few for the noise.
        """
        smallest = [question.settled(None, self.records) for question in asked]
        about = questions_about(smallest, ranges, weights)
        sums = self.sums(about)
        noises = about.noises_of(sums.noise_scales)
        settled = [
            question.settled(noise, self.records)
            for question, (noise, *_) in zip(asked, noises, strict=True)
        ]
        if settled != smallest:
            about = questions_about(settled, ranges, weights)
            sums = self.sums(about)
        about.require(sums.noise_scales, self.records)
        return about, sums


_BUDGET = ("epsilon", "delta")


def names_of(questions: Sequence[Question], ranges: Mapping[str, Any]) -> list[str]:
    """Return the columns that are asked about, each once; fail if one has no range."""
    names = [*dict.fromkeys(name for question in questions for name in question.names)]
    for name in names:
        if name not in ranges:
            wanted = f"a column with a public range ({', '.join(ranges)})"
            fail("question", wanted, f"{name!r}{nearest(name, ranges)}")
    return names


def questions_about(
    asked: Sequence[Question], ranges: Mapping[str, Any], weights: Sequence[float] = ()
) -> Questions:
    """Return questions with the public ranges of the columns that they read."""
    kinds = {name: as_range(name, ranges[name]) for name in names_of(asked, ranges)}
    return Questions(each=tuple(asked), kinds=kinds, weights=tuple(weights))


def named(table: Table) -> Table:
    """Return a table whose columns have names."""
    if table.names is not None:
        return table
    return Table(tuple(f"x{i}" for i in range(len(table.columns))), table.columns)


def read_columns(about: Questions, table: Table) -> tuple[dict[str, Column], list[str]]:
    """Return the columns that are asked about, and what their owner should know."""
    columns, notices, problems = dict[str, Column](), list[str](), Problems()
    for name, kind in about.kinds.items():
        if kind.may_be_missing and name not in (table.names or ()):
            table = table.with_missing((name,))
        with problems.collected():
            columns[name], outside, unread = Column.read(name, kind, table)
            notices += clipped(name, outside, table.records)
            notices += unlisted(name, unread, table.records)
    problems.check()
    return columns, notices

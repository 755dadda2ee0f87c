"""Private answers to questions about a table: `ask` releases noisy sums for all questions.

A question maps each record to a vector. `Questions` puts the vectors of all questions of a round
together: each is scaled by the inverse of its sensitivity, and by the root of its share of the
budget, so that noise of one scale serves all. `AnswerBudget` finds the least noise for the budget.
`RecordVectors` is the problem that `dpmesh.simulate` runs: `RecordSums` releases the sums of one
round, `AdaptiveSums` those of several rounds, in which vectors depend on earlier noisy sums.
``dpmesh stats`` and contracts between parties use the same classes.
"""

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
from dpmesh.tables.copies import describe_copies, fingerprints
from dpmesh.tables.kinds import Kind
from dpmesh.tables.ranges import as_range, read_ranges
from dpmesh.tables.sites import site_of_each
from dpmesh.tables.table import Table

_BLOCK = 2**20
"""Approximate number of elements of vectors that are in memory at once."""

_NORM_SLACK = 1 + 1e-9
"""Factor on norms of vectors that exceeds rounding errors."""

PUBLIC = "the number of sites and of all records together are public"
"""Assumption of every guarantee of answers."""


@dataclass(frozen=True, kw_only=True)
class Statistics(InNotebooks):
    """Result of `ask`: private answers, with the guarantee of all of them together.

    Answers, ledger and report may be published. `notices` may not.

    Parameters
    ----------
    answers
        The answer to each question, in the order of the questions.
    sites, records
        Public numbers of sites, and of records of all sites together.
    threat_model
        The adversary of the guarantee, in words.
    privacy
        The (epsilon, delta) guarantee of all answers together, for replacing one record.
    ledger
        The noisy releases that the answers were computed from.
    notices
        Remarks on the data for their owner alone, such as numbers of clipped values. They are
        computed without noise, no epsilon covers them, and they are neither printed nor saved.
    origin
        For a run between parties: the contract, and the parties' signatures of the totals, see
        `dpmesh.deploy.outcome`. None for a simulation.
    earlier
        Ledgers of earlier releases of the same records, whose epsilon is included in `privacy`.

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
        sites = "1 site" if self.sites == 1 else f"{self.sites} sites"
        head = f"{self.records} records at {sites}"
        cost = f"adversary   {self.threat_model}\n{self.privacy}"
        return "\n\n".join([head, *map(str, self.answers), cost])

    def synthesize(self, rows: int, seed: int = 0) -> Synthetic:
        """Draw a synthetic table from the noisy two-way tables that `Pairs` released.

        The synthetic table is post-processing of the release: it needs no further epsilon.

        Parameters
        ----------
        rows
            Number of synthetic records, at least 1.
        seed
            Seed of the random draws, at least 0 and below 2**63. It need not be secret.

        Returns
        -------
        The synthetic records, with an error bound for each two-way table.

        Raises
        ------
        ValueError
            If no question was a `Pairs`, or an argument is out of range.
        """
        return synthesize(pairs_in(self.answers), rows, seed)

    def charged(self, epsilon: float, why: str, earlier: Sequence[Plan]) -> Statistics:
        """Return the same answers, with a report that includes earlier releases.

        Parameters
        ----------
        epsilon
            Epsilon of these answers and of the earlier releases together.
        why
            Explanation of `epsilon`, added to the assumptions of the report.
        earlier
            Ledgers of the earlier releases of the same records.
        """
        privacy = self.privacy
        privacy = replace(privacy, epsilon=epsilon, assumptions=(*privacy.assumptions, why))
        return replace(self, privacy=privacy, earlier=tuple(earlier))

    def as_dict(self) -> dict[str, Any]:
        """Return the publishable part, without `notices`, in plain types that JSON can hold."""
        fields: dict[str, Any] = {
            "sites": self.sites,
            "records": self.records,
            "against": self.threat_model,
            "answers": [answer.as_dict() for answer in self.answers],
            "ledger": self.ledger.as_dict(),
            "privacy": self.privacy.as_dict(),
        }
        if self.earlier:
            fields["earlier"] = [plan.as_dict() for plan in self.earlier]
        if self.origin is not None:
            fields["provenance"] = dict(self.origin)
        return fields


class RoundPart(NamedTuple):
    """The part of one question in the vectors of a round.

    Attributes
    ----------
    number
        Index of the question.
    question
        The question.
    size
        Length, largest norm and sensitivity of the question's vectors in this round.
    factor
        Factor on the question's vectors: ``sqrt(weight * share) / size.distance``, where `weight`
        is the question's share of the budget over an equal share, and `share` is the round's share
        of the question's budget.
    """

    number: int
    question: Question
    size: Size
    factor: float


@dataclass(frozen=True, kw_only=True)
class Questions:
    """Several questions with the public ranges of their columns: how their vectors share rounds.

    The vectors of all questions of a round are concatenated, each multiplied with its
    `RoundPart.factor`. The noise has the same scale in all elements and rounds. So each question
    gets a share of mu^2 in proportion to its weight. With k questions of equal weight, the
    sensitivity of a single round is sqrt(k).

    Parameters
    ----------
    questions
        The questions, in order.
    kinds
        Public range of each column that the questions read.
    weights
        Positive weight of each question in the budget; divided by their mean, so that the mean is
        1. Empty for equal weights.

    Raises
    ------
    ValueError
        If there is not one positive weight for each question.
    """

    questions: tuple[Question, ...]
    kinds: dict[str, Kind]
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not self.weights:
            return
        if len(self.weights) != len(self.questions):
            names = ", ".join(type(question).__name__ for question in self.questions)
            expected = f"{len(self.questions)} numbers, one for each question ({names})"
            fail("weights", expected, f"{len(self.weights)}")
        for weight in self.weights:
            positive("weights", weight)
        mean = fsum(self.weights) / len(self.weights)
        scaled = tuple(float(weight / mean) for weight in self.weights)
        object.__setattr__(self, "weights", scaled)

    @cached_property
    def sizes(self) -> list[tuple[Size, ...]]:
        """Length, norm and sensitivity of each question's vectors, by question and round."""
        return [question.sizes(self.kinds) for question in self.questions]

    @cached_property
    def rounds(self) -> int:
        """Number of rounds; each releases one sum."""
        return max(map(len, self.sizes))

    @cached_property
    def parts(self) -> tuple[tuple[RoundPart, ...], ...]:
        """The parts of the questions in the vectors of each round."""
        parts_by_round: list[list[RoundPart]] = [[] for _ in range(self.rounds)]
        weights = self.weights or (1.0,) * len(self.questions)
        for number, question in enumerate(self.questions):
            sizes = self.sizes[number]
            shares = question.shares(self.kinds)
            for t, (size, share) in enumerate(zip(sizes, shares, strict=True)):
                factor = sqrt(weights[number] * share) / size.distance
                parts_by_round[t].append(RoundPart(number, question, size, factor))
        return tuple(tuple(parts) for parts in parts_by_round)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Length of the vectors of each round."""
        return tuple(sum(part.size.dim for part in parts) for parts in self.parts)

    @property
    def longest(self) -> tuple[float, ...]:
        """Largest L2 norm of a record's vector in each round."""
        norms = []
        for parts in self.parts:
            squared_norm = sum((part.size.norm * part.factor) ** 2 for part in parts)
            norms.append(sqrt(squared_norm) * _NORM_SLACK)
        return tuple(norms)

    @property
    def distances(self) -> tuple[float, ...]:
        """L2 sensitivity of each round's sum: the largest distance of two records' vectors."""
        distances = []
        for parts in self.parts:
            squared_distance = sum((part.size.distance * part.factor) ** 2 for part in parts)
            distances.append(sqrt(squared_distance))
        return tuple(distances)

    @property
    def sums(self) -> dict[str, Any]:
        """Constructor parameters of `algorithm` that follow from the questions."""
        if self.rounds > 1:
            return {
                "lengths": list(self.lengths),
                "longest": list(self.longest),
                "distances": list(self.distances),
            }
        (dim,) = self.lengths
        (longest,) = self.longest
        (distance,) = self.distances
        return {"dim": dim, "longest": longest, "diameter": distance / longest}

    @property
    def algorithm(self) -> type[RecordSums] | type[AdaptiveSums]:
        """Algorithm that releases the sums, in one round or in several."""
        return RecordSums if self.rounds == 1 else AdaptiveSums

    def require(self, noises: Sequence[float], records: int) -> None:
        """Raise a `ValueError` if a question has too few records for its noise.

        Parameters
        ----------
        noises
            Standard deviation of the noise in each element of each round's sum.
        records
            Public number of records of all sites.
        """
        noises_by_question = self.noises_of(noises)
        for question, question_noises in zip(self.questions, noises_by_question, strict=True):
            question.require_all(self.kinds, question_noises, records)

    def noises_of(self, noises: Sequence[float]) -> list[list[float]]:
        """Return the noise in the elements of each question's unscaled sum, by question and round.

        Parameters
        ----------
        noises
            Standard deviation of the noise in each element of each round's sum.
        """
        noises_by_question: list[list[float]] = [[] for _ in self.questions]
        for noise, parts in zip(noises, self.parts, strict=True):
            for part in parts:
                noises_by_question[part.number].append(noise / part.factor)
        return noises_by_question

    def vectors(
        self, columns: Mapping[str, Column], t: int = 0, totals: Sequence[NoisyTotal] = ()
    ) -> Vectors:
        """Return the vectors of records in round t, shape (records, ``lengths[t]``).

        Parameters
        ----------
        columns
            The cells of each column.
        t
            The round, from 0.
        totals
            The noisy sums of the rounds before t.
        """
        totals_by_question = self._by_question(totals)
        blocks: list[Vectors] = []
        for part in self.parts[t]:
            vectors = part.question.vectors_in(columns, t, totals_by_question[part.number])
            blocks.append(vectors * part.factor)
        if any(sparse.issparse(block) for block in blocks):
            return sparse.csr_array(sparse.hstack(blocks, format="csr"))
        return np.hstack(blocks)

    def _by_question(self, totals: Sequence[NoisyTotal]) -> list[list[NoisyTotal]]:
        """Split the totals of rounds into unscaled sums of questions, by question and round.

        The part of a question in a total, and its noise, are divided by the question's factor.
        """
        totals_by_question: list[list[NoisyTotal]] = [[] for _ in self.questions]
        for parts, released in zip(self.parts, totals, strict=False):
            ends = np.cumsum([part.size.dim for part in parts])[:-1]
            scaled_sums: list[Floats] = np.split(released.total, ends)
            for part, scaled_sum in zip(parts, scaled_sums, strict=True):
                question_sum = np.multiply(1 / part.factor, scaled_sum, dtype=np.float64)
                noise = released.noise / part.factor
                totals_by_question[part.number].append(NoisyTotal(question_sum, noise))
        return totals_by_question

    def by_round(self, totals: Floats, noises: Sequence[float]) -> list[NoisyTotal]:
        """Split the concatenated sums of all rounds by round.

        Parameters
        ----------
        totals
            Noisy sums of all rounds, concatenated, shape (sum of `lengths`,).
        noises
            Standard deviation of the noise in each element of each round's sum.
        """
        ends = np.cumsum(self.lengths)[:-1]
        totals_of_rounds: list[Floats] = np.split(totals, ends)
        return [
            NoisyTotal(np.asarray(total, np.float64), noise)
            for total, noise in zip(totals_of_rounds, noises, strict=True)
        ]

    def answers(self, totals: Floats, noises: Sequence[float], records: int) -> tuple[Answer, ...]:
        """Compute the answers from the released sums.

        Parameters
        ----------
        totals, noises
            As for `by_round`.
        records
            Public number of records of all sites.
        """
        totals_by_question = self._by_question(self.by_round(totals, noises))
        answers = []
        for question, question_totals in zip(self.questions, totals_by_question, strict=True):
            answers.append(question.answer_from(self.kinds, question_totals, records))
        return tuple(answers)


@dataclass(frozen=True, kw_only=True)
class RecordVectors:
    """The records of some sites as a problem of vectors to add up, for `RecordSums`.

    Parameters
    ----------
    questions
        The questions.
    columns
        The cells of each column that the questions read.
    parts
        Indices of the records of each site.
    on_site
        Function without arguments, called after the vectors of each site in each round.
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

    def in_round(self, t: int, totals: Sequence[NoisyTotal]) -> RoundVectors:
        """Return the problem of round t, given the noisy sums of earlier rounds."""
        return RoundVectors(asked=self, t=t, totals=tuple(totals))


@dataclass(frozen=True, kw_only=True)
class RoundVectors:
    """The vectors of one round of a `RecordVectors`.

    Parameters
    ----------
    asked
        The records.
    t
        The round, from 0.
    totals
        Noisy sums of the rounds before t.
    counts
        Public number of records of each site, if only some sites' records are in this process. None
        if all are.
    """

    asked: RecordVectors
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
        if self.counts is None:
            return self.asked.all_records
        return np.array(self.counts)

    def vectors(self, node: int) -> Iterator[Vectors]:
        """Return the vectors of a site's records in blocks of shape (records, dim)."""
        questions = self.asked.questions
        records = self.asked.parts[node]
        round_parts = questions.parts[self.t]  # the part of each question in this round's vectors
        numbers_per_record = sum(round_part.size.stored for round_part in round_parts)
        blocks = -(-len(records) * numbers_per_record // _BLOCK)  # rounded up
        for block in np.array_split(records, blocks):
            columns = {name: column.take(block) for name, column in self.asked.columns.items()}
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
    """Answer questions about the records of all sites, with one (epsilon, delta) for all answers.

    Each question maps a record to a vector. Sums of the vectors over all records are released with
    Gaussian noise, and the answers are computed from the noisy sums. All vectors of a round are
    released together, each divided by its sensitivity: with k questions, the noise of each is
    sqrt(k) times the noise of a single question. Some regressions need several rounds, which
    divide the budget of the regression.

    All answers together are (epsilon, delta)-DP for replacing one record of one site. The number of
    sites and the number of all records are public. With at least ``colluding + 2`` sites the sums
    use secure aggregation, and the adversary is the server colluding with up to `colluding` sites.
    With fewer sites each site adds noise for itself, and the adversary reads all messages.

    Parameters
    ----------
    questions
        One or more questions, such as ``[Mean("age"), Histogram("stage")]``.
    X
        Records: a pandas, polars or pyarrow table, a dictionary of columns, or an array of shape
        (records, columns), whose columns have the names x0, x1, and so on.
    groups
        Site of each record, shape (records,); None for a single site.
    ranges
        Public range of each column, by name, in a form that `dpmesh.tables.Columns.of` accepts; or
        the path of a TOML file of ranges. Ranges of other columns are ignored.
    epsilon, delta
        Privacy budget of all answers together: epsilon positive, delta in (0, 1).
    colluding
        Number of sites that may collude with the server of secure aggregation.
    weights
        Positive weight of each question in the budget; None for equal weights. A question's share
        of mu^2 is proportional to its weight, where mu is the parameter of Gaussian DP (Dong, Roth
        and Su 2022). A question with four times the weight of another has half the noise, relative
        to its sensitivity.
    key
        Source of the noise, a `dpmesh.Key`; None for the operating system. A seeded key makes the
        answers reproducible, and not private.
    on_site
        Function without arguments, called after each site in each round, to show progress.

    Returns
    -------
    The answers, in the order of the questions, with the privacy report.

    Raises
    ------
    ValueError
        If an argument is invalid, a value does not fit the range of its column, or there are too
        few records for the noise. Nothing is released then.

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
    if isinstance(questions, Question):
        questions = (questions,)
    questions = tuple(questions)
    for question in questions or (None,):
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
    sites = len(parts)
    spending = AnswerBudget(
        epsilon=epsilon,
        delta=delta,
        sites=sites,
        records=table.records,
        colluding=colluding,
        secure=method_for(sites, epsilon, colluding=colluding) == "secure",
    )
    shares = () if weights is None else tuple(weights)
    settled, sums = spending.settle(questions, ranges, shares)
    columns, notices = read_columns(settled, table)
    copies = describe_copies(fingerprints(table), parts, np.unique(owners))
    if copies is not None:
        warnings.warn(copies, UserWarning, stacklevel=2)
    problem: Any = RecordVectors(questions=settled, columns=columns, parts=parts, on_site=on_site)
    quiet = Metrics([], progress=False)
    algorithm: Any = sums
    run = simulate(algorithm, problem, rounds=settled.rounds, key=key, delta=delta, metrics=quiet)
    return Statistics(
        answers=settled.answers(run.released[0], sums.noise_scales, table.records),
        sites=sites,
        records=table.records,
        threat_model=threat_model_of(sums),
        privacy=replace(run.privacy, assumptions=(*run.privacy.assumptions, PUBLIC)),
        ledger=run.ledger,
        notices=tuple(notices),
    )


@dataclass(frozen=True, kw_only=True)
class AnswerBudget:
    """The privacy budget of answers, with the public numbers that determine their noise.

    Parameters
    ----------
    epsilon, delta
        The budget of all answers together.
    sites, records
        Public numbers of sites, and of records of all sites together.
    colluding, dropouts, secure
        As for `RecordSums`.
    """

    epsilon: float
    delta: float
    sites: int
    records: int
    colluding: int = 1
    dropouts: int = 0
    secure: bool = True

    def sums(self, questions: Questions) -> RecordSums | AdaptiveSums:
        """Return the algorithm that releases the sums, with the least noise for the budget."""
        return questions.algorithm.for_budget(
            epsilon=self.epsilon,
            delta=self.delta,
            sites=self.sites,
            records=self.records,
            colluding=self.colluding,
            dropouts=self.dropouts,
            secure=self.secure,
            **questions.sums,
        )

    def settle(
        self,
        questions: Sequence[Question],
        ranges: Mapping[str, Any],
        weights: Sequence[float] = (),
    ) -> tuple[Questions, RecordSums | AdaptiveSums]:
        """Fill in the defaults of questions that depend on the noise, and calibrate the noise.

        The noise is first calibrated with the shortest vectors of each question. It determines
        defaults such as a number of bins. If a default changes, the noise is calibrated again.

        Parameters
        ----------
        questions
            The questions.
        ranges
            Public range of each column, by name.
        weights
            Weight of each question; empty for equal weights.

        Returns
        -------
        The questions, and the algorithm that releases their sums.

        Raises
        ------
        ValueError
            If a question has too few records for its noise.
        """
        smallest = [question.settled(None, self.records) for question in questions]
        with_ranges = questions_about(smallest, ranges, weights)
        sums = self.sums(with_ranges)
        noises_by_question = with_ranges.noises_of(sums.noise_scales)
        settled = []
        for question, noises in zip(questions, noises_by_question, strict=True):
            first_noise = noises[0]
            settled.append(question.settled(first_noise, self.records))
        if settled != smallest:
            with_ranges = questions_about(settled, ranges, weights)
            sums = self.sums(with_ranges)
        with_ranges.require(sums.noise_scales, self.records)
        return with_ranges, sums


def names_of(questions: Sequence[Question], ranges: Mapping[str, Any]) -> list[str]:
    """Return the names of the columns that questions read, each once; fail without a range."""
    names = list(dict.fromkeys(name for question in questions for name in question.names))
    for name in names:
        if name not in ranges:
            expected = f"a column with a public range ({', '.join(ranges)})"
            fail("question", expected, f"{name!r}{nearest(name, ranges)}")
    return names


def questions_about(
    questions: Sequence[Question], ranges: Mapping[str, Any], weights: Sequence[float] = ()
) -> Questions:
    """Return a `Questions` with the public ranges of the columns that are read."""
    kinds = {name: as_range(name, ranges[name]) for name in names_of(questions, ranges)}
    return Questions(questions=tuple(questions), kinds=kinds, weights=tuple(weights))


def named(table: Table) -> Table:
    """Return a table with names: x0, x1, and so on for the columns of an array."""
    if table.names is not None:
        return table
    names = tuple(f"x{place}" for place in range(len(table.columns)))
    return Table(names, table.columns)


def read_columns(questions: Questions, table: Table) -> tuple[dict[str, Column], list[str]]:
    """Read the columns that questions ask about.

    Returns
    -------
    The column of each name; and notices about clipped and unreadable values, for the owner of the
    data alone.

    Raises
    ------
    ValueError
        If cells hold values that their ranges do not allow. The message describes all columns.
    """
    columns: dict[str, Column] = {}
    notices: list[str] = []
    problems = Problems()
    for name, kind in questions.kinds.items():
        if kind.may_be_missing and name not in (table.names or ()):
            table = table.with_missing((name,))
        with problems.collected():
            columns[name], outside, unread = Column.read(name, kind, table)
            notices += clipped(name, outside, table.records)
            notices += unlisted(name, unread, table.records)
    problems.check()
    return columns, notices

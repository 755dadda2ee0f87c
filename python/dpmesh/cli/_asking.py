"""Private statistics of files of records, for ``dpmesh stats`` and ``dpmesh synthesize``.

A *question* is a statistic to release, such as a mean or a two-way table (`dpmesh.statistics`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpmesh.cli._progress import progress_bar

if TYPE_CHECKING:
    from dpmesh._files import JsonObject
    from dpmesh.statistics import Question, Statistics
    from dpmesh.tables.kinds import Kind
    from dpmesh.tables.reader import TextFormat


@dataclass(frozen=True, kw_only=True)
class RecordFiles:
    """Files of records of several sites, and public facts about them.

    Parameters
    ----------
    paths
        Tables of records: CSV, Parquet, Arrow or Feather.
    ranges
        The TOML file of public ranges of columns.
    site
        Column that names the site of a record; None if each file holds one site.
    text_format
        Format of text files.
    """

    paths: Sequence[Path]
    ranges: Path
    site: str | None
    text_format: TextFormat

    def ask(
        self,
        questions: Callable[[Mapping[str, Kind]], Sequence[Question]],
        *,
        epsilon: float,
        delta: float,
        colluding: int,
        budget: Path | None,
        weights: Sequence[float] = (),
    ) -> Statistics:
        """Read the files, and return differentially private answers to questions.

        The reported epsilon includes the release of bounds in the file of ranges, if they were
        released from the same records.

        Parameters
        ----------
        questions
            Function from the ranges of all columns, by name, to the questions.
        epsilon, delta, colluding
            As for `dpmesh.statistics.ask`.
        budget
            Party's folder whose budget is charged; None charges no folder.
        weights
            Share of the privacy budget of each question; empty for equal shares.

        Raises
        ------
        ValueError
            If an argument, a range or a record is invalid.
        OverBudget
            If the budget of the folder has too little left.
        """
        import numpy as np

        from dpmesh.cli._checks import check_budget
        from dpmesh.cli._sites import charge, read_sites, saved_release
        from dpmesh.statistics.ask import ask, names_of, questions_about
        from dpmesh.tables.ranges import as_range, read_ranges

        check_budget([epsilon], delta)
        released: list[JsonObject] = []
        public = read_ranges(self.ranges, released=released)
        kinds = {name: as_range(name, form) for name, form in public.items()}
        questions_asked = questions(kinds)
        # Bins that depend on the noise do not change the number of rounds: any noise will do here.
        # An invalid question fails before any file is read.
        settled_questions = [question.settled(None, 1) for question in questions_asked]
        rounds = questions_about(settled_questions, kinds, weights).rounds
        columns = {name: kinds[name] for name in names_of(questions_asked, kinds)}
        records = read_sites(
            list(self.paths), columns, (), None, self.site, self.text_format, drop=False
        )
        steps = rounds * len(np.unique(records.owners))
        with warnings.catch_warnings(), progress_bar(steps, unit="site") as advance:
            warnings.filterwarnings("ignore", ".*are also at the site")  # said by `read_sites`
            answers = ask(
                questions_asked,
                records.table,
                records.owners,
                ranges=kinds,
                epsilon=epsilon,
                delta=delta,
                colluding=colluding,
                weights=weights or None,
                on_site=lambda: advance(1),
            )
        total = charge(budget, [*released, saved_release(answers.ledger)], delta)
        if not released:
            return answers
        return answers.charged(total.epsilon, total.reason, total.earlier_plans)

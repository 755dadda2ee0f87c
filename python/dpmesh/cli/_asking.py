"""Questions about files of records, for ``dpmesh stats`` and ``dpmesh synthesize``."""

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
class Files:
    """Files of records, and public facts about them.

    Parameters
    ----------
    paths
        Tables, one for each site unless a column names it.
    ranges
        The TOML file of public ranges.
    site
        The column that names the site; None if each file is one.
    form
        Format of text files.
    """

    paths: Sequence[Path]
    ranges: Path
    site: str | None
    form: TextFormat

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
        """Return the answers; their cost has that of released ranges.

        Parameters
        ----------
        questions
            Returns the questions, given the ranges of all columns.
        epsilon, delta, colluding
            As for `dpmesh.statistics.ask`.
        budget
            The folder from whose budget the cost is taken, if there is one.
        weights
            The share of the budget of each question; none for equal shares.
        """
        import numpy as np

        from dpmesh.cli._checks import check_budget
        from dpmesh.cli._sites import as_spent, charge, read_sites
        from dpmesh.statistics.ask import ask, names_of, questions_about
        from dpmesh.tables.ranges import as_range, read_ranges

        check_budget([epsilon], delta)
        released: list[JsonObject] = []
        public = read_ranges(self.ranges, released=released)
        kinds = {name: as_range(name, form) for name, form in public.items()}
        questions_asked = questions(kinds)
        smallest = [question.settled(None, 1) for question in questions_asked]
        rounds = questions_about(smallest, kinds, weights).rounds  # fails before any file is read
        columns = {name: kinds[name] for name in names_of(questions_asked, kinds)}
        records = read_sites(list(self.paths), columns, (), None, self.site, self.form, drop=False)
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
        charged = charge(budget, [*released, as_spent(answers.ledger)], delta)
        if not released:
            return answers
        return answers.charged(*charged)

"""Questions about files of records: what ``dpmesh stats`` and ``dpmesh synthesize`` share."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpmesh.statistics import Question, Statistics
    from dpmesh.tables.kinds import Kind
    from dpmesh.tables.reader import TextFormat


@dataclass(frozen=True, kw_only=True)
class Files:
    """Files of records, and what is public about them.

    Parameters
    ----------
    paths
        Tables, one for each site unless a column names it.
    ranges
        The TOML file of public ranges.
    site
        The column that names the site; None if each file is one.
    form
        How text files are written.
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
    ) -> Statistics:
        """Return the answers, with what ranges were released for added to their cost.

        Parameters
        ----------
        questions
            Returns the questions, given the ranges of all columns.
        epsilon, delta, colluding
            As for `dpmesh.statistics.ask`.
        budget
            The folder from whose budget the cost is taken, if there is one.
        """
        from dpmesh.cli._sites import as_spent, charge, read_sites
        from dpmesh.statistics.ask import ask, names_of
        from dpmesh.tables.ranges import as_range, read_ranges

        released: list[Any] = []
        public = read_ranges(self.ranges, released=released)
        given = {name: as_range(name, one) for name, one in public.items()}
        asked = questions(given)
        used = {name: given[name] for name in names_of(asked, given)}
        held = read_sites(list(self.paths), used, (), None, self.site, self.form, drop=False)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*are also at the site")  # said by `read_sites`
            found = ask(
                asked,
                held.table,
                held.owners,
                ranges=given,
                epsilon=epsilon,
                delta=delta,
                colluding=colluding,
            )
        more = charge(budget, [*released, as_spent(found.ledger)], delta)
        return found.charged(*more) if released else found

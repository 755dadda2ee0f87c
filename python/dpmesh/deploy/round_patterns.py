"""Messages of each round of a contract, from a dry run on dummy records.

A round of an algorithm is a generator that yields requests: each asks to release and send a
message. Its *pattern* is the sequence of these requests without values (sender, releases, shape).
The pattern must follow from the round and public sizes alone. So one dry run on records of zeros
shows the pattern of all nodes.

`RoundPatterns` refuses a contract whose rounds yield a release that the plan does not have, or a
message that parties cannot carry. In a run, each node compares the requests of its rounds with the
same patterns before it draws noise (`dpmesh.deploy.exchange`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dpmesh._ragged import Indices
from dpmesh.algorithms.dry_run import (
    DryRun,
    RequestPattern,
    RoundPattern,
    exchanges_of,
    without_round,
)
from dpmesh.deploy.planned import PlannedReleases
from dpmesh.deploy.turns import Turns
from dpmesh.keys import Key
from dpmesh.privacy.releases import Release

AT_ONCE = 3
"""Number of first rounds that are played whenever a contract is read."""
EDGE = 500
"""Number of first rounds, and of last rounds, that a thorough check plays."""
SECONDS = 10.0
"""Most seconds of a thorough check."""


@dataclass(frozen=True, kw_only=True)
class Played:
    """Numbers of the rounds that a thorough check has played, as text for ``contract check``.

    Parameters
    ----------
    rounds
        Number of rounds that were played.
    patterns
        Number of distinct patterns of these rounds.
    total
        Number of rounds of the run.
    in_time
        True if all rounds to be played fitted into `SECONDS`.
    """

    rounds: int
    patterns: int
    total: int
    in_time: bool

    def __str__(self) -> str:
        if self.rounds == self.total:
            which = f"all {self.total} rounds"
        else:
            which = f"{self.rounds} of {self.total} rounds"
        kinds = "pattern" if self.patterns == 1 else "patterns"
        cut = "" if self.in_time else f"; stopped after {SECONDS:g} seconds"
        return f"{which} on made-up records, {self.patterns} {kinds} of messages{cut}"


class RoundPatterns:
    """The pattern of each round of a contract, and checks of them.

    Parameters
    ----------
    planned
        The releases that the algorithm plans.
    records
        Number of records of each party, shape (parties,).
    key
        The contract's public key.
    column
        A dummy problem with a single feature, so that rounds are fast; the dummy problem of
        `planned` itself if the algorithm depends on the number of parameters.
    """

    def __init__(self, planned: PlannedReleases, records: Indices, key: Key, column: Any) -> None:
        self._planned = planned
        self._algorithm = planned.algorithm
        self._rounds = planned.terms.rounds
        self._column = column
        self._node = int(records.argmin())
        self._key = key
        self._compresses = getattr(self._algorithm, "compressor", None) is not None
        self._turns = Turns(self._algorithm, records, key)
        self._exchanges: dict[int, int] = {}
        self._dry_run = self._begun(column)

    @property
    def _sums(self) -> bool:
        """True if the parties add up sums under masks."""
        return bool(self._planned.sum_releases)

    @property
    def _in_turns(self) -> bool:
        """True if messages are sent by token."""
        return self._algorithm.communication == "token"

    def _begun(self, problem: Any) -> DryRun:
        """Return a new dry run of the party with the fewest records, on a dummy problem."""
        node = np.array([self._node], np.uint32)
        key = self._key if self._in_turns else self._key.for_nodes(node)
        return DryRun(self._algorithm, problem, key)

    def exchange_count(self, t: int) -> int:
        """Return the number of exchanges of messages in round t."""
        if t not in self._exchanges:
            self._exchanges[t] = exchanges_of(self._dry_run.pattern(t))
        return self._exchanges[t]

    def expected(self, t: int) -> RoundPattern | None:
        """Return the pattern that round t must have at each node.

        For secure sums, it has one request for each release of `release_of`. None by token, where
        the pattern of a node depends on its turns.
        """
        if self._sums:
            sums = _as_tuple(self._algorithm.release_of(t))
            return tuple(RequestPattern(releases=(release,), is_sent=True) for release in sums)
        if self._in_turns:
            return None
        return self._dry_run.pattern(t)

    def check_at_once(self) -> None:
        """Play the first rounds and the last one, and refuse a contract whose rounds do not fit.

        The first rounds are also played on dummy records of all features: their patterns must be
        the same.

        Raises
        ------
        ValueError
            If a round does not fit. The text names the round and the reason.
        """
        if self._planned.settings.table("problem").get("model") is not None:
            played = [0]  # a round of a network takes its time
        else:
            played = [*range(min(AT_ONCE, self._rounds))]
            if not self._in_turns:
                played.append(self._rounds - 1)
        for t in played:
            self._check(t, self._dry_run)
        if self._column is not self._planned.problem:
            self._check_lengths()

    @cached_property
    def thorough_rounds(self) -> Sequence[int]:
        """Rounds that a thorough check plays: `EDGE` first ones, `EDGE` last ones, and samples.

        Between these there is one round of each kind. Rounds are of one kind if their releases have
        the same classes of mechanisms, the same sampling and the same nodes. By token only first
        rounds are played, as each round depends on those before it.
        """
        rounds = self._rounds
        if self._in_turns:
            return range(min(2 * EDGE, rounds))
        first = range(min(EDGE, rounds))
        last = range(max(len(first), rounds - EDGE), rounds)
        kinds: dict[tuple[object, ...], int] = {}
        for t in range(len(first), last.start):
            kinds.setdefault(_kind(self._algorithm.release_of(t)), t)
        return [*first, *last, *kinds.values()]

    def check_thoroughly(
        self,
        clock: Callable[[], float] = time.monotonic,
        on_round: Callable[[], object] | None = None,
    ) -> Played:
        """Play the `thorough_rounds`, as many as fit into `SECONDS`, and refuse a wrong one.

        Parameters
        ----------
        clock
            Returns the time in seconds.
        on_round
            Called after each round, to show progress.

        Raises
        ------
        ValueError
            As `check_at_once`.
        """
        rounds = self.thorough_rounds
        end = clock() + SECONDS
        distinct: set[RoundPattern] = set()
        played = 0
        in_time = True
        dry_run = self._begun(self._column)
        for t in rounds:
            if clock() > end:
                in_time = False
                break
            self._check(t, dry_run)
            distinct.add(without_round(dry_run.pattern(t)))
            played += 1
            if on_round is not None:
                on_round()
        return Played(rounds=played, patterns=len(distinct), total=self._rounds, in_time=in_time)

    def _check(self, t: int, dry_run: DryRun) -> None:
        """Refuse round t if its requests are not what its plan and the parties can carry."""
        pattern = self._pattern(t, dry_run)
        if self._sums:
            if pattern != self.expected(t):
                self._refuse(t, "yields other sums, or in another order, than its release_of")
        elif self._in_turns:
            self._check_turns(t, pattern)
        else:
            self._check_gossip(t, pattern, int(self._column.dim))

    def _pattern(self, t: int, dry_run: DryRun) -> RoundPattern:
        pattern: RoundPattern = self._planned.settings.call("algorithm", dry_run.pattern, t=t)
        return pattern

    def _check_gossip(self, t: int, pattern: RoundPattern, dim: int) -> None:
        node = self._node
        released = [
            release
            for request in pattern
            for release in request.releases
            if release.nodes is None or node in release.nodes
        ]
        unplanned = Counter(released) - Counter(self._planned.releases(node, t))
        if unplanned:
            self._refuse(t, f"releases {next(iter(unplanned))}, which its release_of does not have")
        exchange = 0
        is_compressed = False
        for request in pattern:
            if request.sender is not None or request.unmixed:
                self._refuse(t, f"yields {request}, which gossip does not send")
            if request.releases:
                is_compressed = request.compresses
            if not request.is_sent:
                continue
            if request.row_length not in (None, dim):
                self._refuse(t, f"sends {request.row_length} numbers for a model of {dim}")
            if is_compressed != (exchange == 0 and self._compresses):
                self._refuse(t, "compresses other messages than the first one of a round")
            exchange = exchange + 1
            is_compressed = False
        if exchange == 0 and self._planned.has_partners:
            reason = "sends nothing, but noise of partners needs a message in each round: in it "
            self._refuse(t, f"{reason}they name each other before they share a secret")

    def _check_turns(self, t: int, pattern: RoundPattern) -> None:
        holders = self._turns.token_holders(t)
        if tuple(request.sender for request in pattern) != holders:
            self._refuse(t, "has other senders, or in another order, than its senders(..)")
        for request in pattern:
            planned = self._planned.releases(request.sender or 0, t)
            if not request.is_sent or not set(request.releases) <= set(planned):
                self._refuse(t, f"yields {request}, which its release_by does not have")

    def _check_lengths(self) -> None:
        """Refuse a contract whose patterns depend on the number of features of records."""
        full_length = self._begun(self._planned.problem)
        for t in range(min(2, self._rounds)):
            pattern = self._pattern(t, full_length)
            if pattern != self._dry_run.pattern(t):
                self._refuse(t, "yields something else for records with more columns")
            if not self._in_turns:
                self._check_gossip(t, pattern, int(self._planned.problem.dim))

    def _refuse(self, t: int, why: str) -> None:
        kind = type(self._algorithm).__name__
        self._planned.settings.fail("algorithm", f"{kind}: round {t} {why}")


def _as_tuple(releases: Release | tuple[Release, ...]) -> tuple[Release, ...]:
    if isinstance(releases, Release):
        return (releases,)
    return releases


def _kind(releases: Release | tuple[Release, ...]) -> tuple[object, ...]:
    """Return the features of releases by which `thorough_rounds` tells kinds of rounds apart."""
    return tuple(
        (type(release.mechanism), release.sensitivity.bound > 0, release.sampling, release.nodes)
        for release in _as_tuple(releases)
    )

"""The ranks of an MPI communicator: who holds which nodes, and how all agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from dpmesh._extras import needed_by
from dpmesh._validate import fail
from dpmesh.engines.blocks import Nodes
from dpmesh.privacy.budget import OverBudget
from dpmesh.run.engine import Sign

with needed_by("the engine 'mpi'"):
    from mpi4py import MPI

T = TypeVar("T")

_BITS = 2**32 - 1


class RankFailed(RuntimeError):  # noqa: N818
    """A run on ranks ended because one of them failed; the text states which, and what is saved."""


class _Elsewhere(Exception):  # noqa: N818
    """Another rank has failed."""


class Ranks:
    """Ranks that run the same loop, each for some of the nodes.

    Parameters
    ----------
    communicator
        Of these ranks.
    parts
        The nodes of each rank, ascending.
    """

    def __init__(self, communicator: MPI.Comm, parts: list[Nodes]) -> None:
        self.communicator, self.parts = communicator, parts
        self.bytes_sent = self.bytes_least = 0
        """To other ranks in the rounds of the last run, as in `Sent`."""
        self._ended = False

    @property
    def processes(self) -> int:
        """Number of ranks."""
        return int(self.communicator.size)

    @property
    def is_root(self) -> bool:
        """Whether this is rank 0."""
        return bool(self.communicator.rank == 0)

    @property
    def nodes(self) -> Nodes:
        """The nodes of this rank, ascending."""
        return self.parts[self.communicator.rank]

    def begin(self) -> None:
        """Forget the last run."""
        self._ended = False
        self.bytes_sent = self.bytes_least = 0

    def count(self, sent: int, least: int) -> None:
        """Count bytes sent to other ranks."""
        self.bytes_sent += sent
        self.bytes_least += least

    @contextmanager
    def guard(self, keep: Callable[[], str | None]) -> Iterator[None]:
        """Fail on all ranks if the block fails on one, and report which did and what is saved."""
        try:
            yield
        except OverBudget:
            self._inform(Sign.OVER_BUDGET)
            raise
        except Exception as error:
            self._inform(Sign.FAILED)
            here = None if isinstance(error, _Elsewhere) else error
            raise RankFailed(self._story(here, keep)) from here

    def agree(self, signs: Sign = Sign.NONE, same: int = 0) -> Sign:
        """Return the signs of all ranks; fail if one of them did, or `same` is not the same."""
        found, ones, others = self._all(signs, same)
        self._ended = bool(found & (Sign.FAILED | Sign.OVER_BUDGET))
        if found & Sign.FAILED:
            raise _Elsewhere
        if found & Sign.OVER_BUDGET:
            raise OverBudget("the budget has no room for a release of another rank")
        if ones & others:
            fail("releases", "the same on all ranks, as they are public", "others on some")
        return found

    def everyone(self, mine: T) -> list[T]:
        """Return what each rank passed."""
        return self.communicator.allgather(mine)

    def rows(self, mine: Any) -> Any:
        """Return the rows of all nodes on rank 0, and None elsewhere.

        If not every node has a row, they come rank by rank.
        """
        gathered = self.communicator.gather(mine)
        if gathered is None:
            return None
        rows, order = np.concatenate(gathered), np.concatenate(self.parts)
        return rows[np.argsort(order)] if len(rows) == len(order) else rows

    def _all(self, signs: Sign, same: int = 0) -> tuple[Sign, int, int]:
        """Return which bits are set on some rank: of the signs, of `same`, and of its opposite."""
        found = np.empty(3, np.int64)
        mine = np.array([signs, same & _BITS, ~same & _BITS], np.int64)
        self.communicator.Allreduce(mine, found, op=MPI.BOR)
        if found[0] & (Sign.FAILED | Sign.OVER_BUDGET):
            found[1:] = 0  # a rank that failed has nothing to compare
        return Sign(int(found[0])), int(found[1]), int(found[2])

    def _inform(self, sign: Sign) -> None:
        """Pass the sign on when the others `agree` next, unless all know it."""
        if not self._ended:
            self._all(sign)
            self._ended = True

    def _story(self, error: Exception | None, keep: Callable[[], str | None]) -> str:
        """Return which rank failed and what is saved; all ranks must call it."""
        mine = None if error is None else f"{type(error).__name__}: {error}"
        texts = enumerate(self.communicator.allgather(mine))
        size = self.communicator.size
        failed = "; ".join(f"rank {r} of {size} failed: {text}" for r, text in texts if text)
        try:
            kept = keep()
        except Exception as second:
            kept = f"nothing more could be saved: {second or type(second).__name__}"
            self._inform(Sign.FAILED)
        return f"{failed} ({kept})" if kept else failed

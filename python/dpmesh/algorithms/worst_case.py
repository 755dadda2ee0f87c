"""What an audit runs: two neighbouring problems, and problems with many canaries.

`Algorithm.worst_case` returns both. They know nothing of how an audit runs them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, SupportsFloat, TypeAlias

import numpy as np
import numpy.typing as npt

from dpmesh._arrays import floats

CROWD_DELTA = 1e-9
"""Delta of a crowd's claim: 2 * canaries * delta must be far below 1 - confidence."""

Coins: TypeAlias = npt.NDArray[np.bool_]
Score: TypeAlias = Callable[[Any], SupportsFloat]
Scores: TypeAlias = Callable[[Any], npt.NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """An algorithm, and two neighbouring problems that should be hard to distinguish.

    See `dpmesh.audit.audit_algorithm` for the fields.

    Parameters
    ----------
    silent
        Whether nodes receive zeros, as if their neighbours' messages cancelled; else each receives
        its own message.
    coupled
        The pairs for the coupled runs, by default this one.
    """

    algorithm: Any
    problem: Any
    neighbor: Any
    rounds: int
    silent: bool = False
    delta: float = 0.0
    score: Score | None = None
    coupled: tuple[Pair, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Crowd:
    """An algorithm, and problems with many canaries, each in one of two forms.

    See `dpmesh.audit.audit_one_run` for the fields, and `Pair`.
    """

    algorithm: Any
    problem_of: Callable[[Coins], Any]
    canaries: int
    rounds: int
    silent: bool = False
    delta: float = 0.0
    scores: Scores | None = None
    per_release: bool = False


def projection(directions: npt.ArrayLike) -> Scores:
    """Return a score: the sum of all released rows, projected onto a canary's direction.

    Unlike the likelihood ratio it needs no replay, and it sees a canary however it was sampled.

    Parameters
    ----------
    directions
        Shape (dim,) for one score, as for `audit_algorithm`, or (canaries, dim) for one per canary,
        as for `audit_one_run`.
    """
    along = floats("directions", directions)

    def score(run: Any) -> npt.NDArray[np.float64]:
        total = sum(values.reshape(-1, values.shape[-1]).sum(axis=0) for values in run.released)
        return np.asarray(along @ total)

    return score

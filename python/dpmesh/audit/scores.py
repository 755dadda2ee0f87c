"""The score that distinguishes two datasets best: the likelihood ratio of a transcript.

Correlated noise is seen as an observer of all messages sees it, who knows no noise and no secret.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpmesh._privacy_types import Floats
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.audit.transcript import Audited, Transcript, record
from dpmesh.kernels.projection import Norm
from dpmesh.keys import Key
from dpmesh.noise.correlated import CorrelatedGaussian
from dpmesh.noise.rows import CorrelatedRow
from dpmesh.run.carriers import Carrier
from dpmesh.run.watch import Passage

Numbers = npt.NDArray[np.float64]


def log_likelihood_ratio(
    values: Floats,
    positive: Floats,
    negative: Floats,
    norm: Norm,
    noise_scale: float,
    *,
    every_bit: bool = False,
) -> npt.NDArray[np.float64]:
    """Return each row's log-likelihood ratio: `positive` plus noise against `negative` plus noise.

    Parameters
    ----------
    values, positive, negative
        Shape (rows, dim).
    norm
        ``"l1"`` for Laplace noise, ``"l2"`` for Gaussian noise.
    noise_scale
        Of that noise; positive.
    every_bit
        Whether to keep the ratio's last bits; else it is rounded to 5 decimals. The last bits of a
        floating-point sum reveal what the noise was added to (Mironov 2012), which no claim on
        real-valued noise covers.

    Returns
    -------
    The logarithm of the ratio, shape (rows,).
    """
    to_positive, to_negative = values - positive, values - negative
    if norm == "l1":
        ratios = (abs(to_negative) - abs(to_positive)) / noise_scale
    else:
        ratios = (to_negative**2 - to_positive**2) / (2 * noise_scale**2)
    logarithm = np.asarray(ratios.sum(axis=-1, dtype=np.float64))
    return logarithm if every_bit else logarithm.round(5)


@dataclass(frozen=True, kw_only=True)
class ReplayedLikelihood:
    """Likelihood ratio of a transcript, from replaying the algorithm on it with both datasets.

    Each release is compared with what either problem would have released after the same
    earlier releases. The replays have coins of their own, since an observer of the transcript does
    not know those of the run: so the protection by sampling counts, but a unit that the replays do
    not sample goes unseen. Without such sampling the score is optimal (Neyman, Pearson).

    Parameters
    ----------
    algorithm, carrier, rounds
        Those of the run.
    problem, neighbor
        The two neighbouring datasets.
    key
        Coins of the replays.
    """

    algorithm: AnyAlgorithm
    problem: Audited
    neighbor: Audited
    carrier: Carrier
    rounds: int
    key: Key

    def ratios(self, run: Transcript) -> Iterator[npt.NDArray[np.float64]]:
        """Yield the logarithm of the ratio for each noisy release, shape (rows,)."""
        positive, negative = (
            record(
                self.algorithm, data, self.carrier, rounds=self.rounds, key=self.key, replay=run
            ).passages
            for data in (self.problem, self.neighbor)
        )
        joints = by_joint(run.passages)
        together = {index for rows in joints.values() for index in rows}
        for index, (passage, one, other) in enumerate(
            zip(run.passages, positive, negative, strict=False)
        ):
            if (scale := passage.noise_scale) > 0 and index not in together:
                values, norm = passage.values, passage.release.mechanism.norm
                yield log_likelihood_ratio(values, one.inside, other.inside, norm, scale)
        for joint, rows in joints.items():
            from_one, from_other = (
                standardized(joint, rows_of(run.passages, _apart(data, run), rows))
                for data in (positive, negative)
            )
            for one_row, other_row in zip(from_one, from_other, strict=True):
                yield ((other_row**2 - one_row**2) / 2).sum(axis=-1).round(5)

    def __call__(self, run: Transcript) -> float:
        """Return the logarithm of the whole ratio."""
        return float(sum(ratio.sum() for ratio in self.ratios(run)))


def _apart(data: Sequence[Passage], run: Transcript) -> Callable[[int], Numbers]:
    """The noise of each release of a run, if its values are those of a replay."""
    return lambda i: noise_between(data[i], run.passages[i].values)


def by_joint(passages: Sequence[Passage]) -> dict[CorrelatedGaussian, list[int]]:
    """Return which passages are rows of each joint event, in order."""
    found: defaultdict[CorrelatedGaussian, list[int]] = defaultdict(list)
    for index, passage in enumerate(passages):
        if isinstance(passage.release.mechanism, CorrelatedRow):
            found[passage.release.mechanism.joint].append(index)
    return dict(found)


def rows_of(
    passages: Sequence[Passage], apart: Callable[[int], Numbers], indices: Sequence[int]
) -> list[Numbers]:
    """Return `apart` of the passages of a joint event by its rows, all nodes of a row together.

    Nodes that take turns release a row in several messages; one that released nothing has zeros.
    """
    named = [numbers for i in indices if (numbers := passages[i].rows) is not None]
    count = 1 + max((int(numbers.max()) for numbers in named), default=-1)
    found: dict[int, Numbers] = {}
    for i in indices:
        mechanism, part = passages[i].release.mechanism, apart(i)
        assert isinstance(mechanism, CorrelatedRow)
        if (numbers := passages[i].rows) is None:
            found[mechanism.row] = part
        else:
            whole = found.setdefault(mechanism.row, np.zeros((count, part.shape[1])))
            whole[numbers] = part
    return [found[row] for row in sorted(found)]


def noise_between(passage: Passage, values: Floats) -> Numbers:
    """Return `values` less what was released, in the plan's scale: rounding makes noise larger."""
    apart = np.subtract(values, passage.inside, dtype=np.float64)
    return np.asarray(apart / passage.release.mechanism.rounding_factor(passage.inside))


def standardized(joint: CorrelatedGaussian, rows: Sequence[Floats]) -> list[Numbers]:
    """Return what the joint event's noise is made from, if these are its first rows of noise.

    Independent standard normals for the noise itself; for the shift that a record causes, a vector
    whose length is mu.

    Parameters
    ----------
    joint
        The noise that the plan claims.
    rows
        Each of shape (nodes, dim).
    """
    result = []
    for t in range(len(rows)):
        factors = joint.recursion[t]
        back = min(t + 1, len(factors))
        fresh = sum(factors[k] * np.asarray(rows[t - k], dtype=np.float64) for k in range(back))
        secrets = joint.secrets_of(t)
        if secrets is not None:
            values, vectors = np.linalg.eigh(secrets.covariance)
            fresh = (vectors / np.sqrt(values)) @ (vectors.T @ fresh)
        drawn = joint.noise_to_sensitivity * joint.widened(np.shape(fresh)[-1])
        result.append(np.asarray(fresh / drawn))
    return result

"""The score that distinguishes two datasets best: the likelihood ratio of a transcript.

Correlated noise is scored as by an observer of all messages, who knows no noise and no secret.
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
        If true, keep the ratio's low-order bits; else round it to 5 decimals. The low-order bits of
        a floating-point sum reveal the value under the noise (Mironov 2012), which no claim on
        real-valued noise covers.

    Returns
    -------
    The logarithm of the ratio, shape (rows,).
    """
    from_positive = values - positive
    from_negative = values - negative
    if norm == "l1":
        ratios = (abs(from_negative) - abs(from_positive)) / noise_scale
    else:
        ratios = (from_negative**2 - from_positive**2) / (2 * noise_scale**2)
    logarithm = np.asarray(ratios.sum(axis=-1, dtype=np.float64))
    if not every_bit:
        logarithm = logarithm.round(5)
    return logarithm


@dataclass(frozen=True, kw_only=True)
class ReplayedLikelihood:
    """Likelihood ratio of a transcript, from replaying the algorithm on it with both datasets.

    Each release is compared with the value of either problem after the same earlier releases. The
    replays have coins of their own, since an observer of the transcript does not know those of the
    run: so the protection by sampling counts, but a unit that the replays do not sample goes
    unseen. Without such sampling the score is optimal (Neyman, Pearson).

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
        positive = self._replay(self.problem, run)
        negative = self._replay(self.neighbor, run)
        joints = by_joint(run.passages)
        correlated = {index for indices in joints.values() for index in indices}
        replayed = zip(run.passages, positive, negative, strict=False)
        for index, (passage, positive_passage, negative_passage) in enumerate(replayed):
            if passage.noise_scale > 0 and index not in correlated:
                yield log_likelihood_ratio(
                    passage.values,
                    positive_passage.inside,
                    negative_passage.inside,
                    passage.release.mechanism.norm,
                    passage.noise_scale,
                )
        for joint, indices in joints.items():
            positive_rows = _standard_noise(joint, indices, positive, run)
            negative_rows = _standard_noise(joint, indices, negative, run)
            for positive_row, negative_row in zip(positive_rows, negative_rows, strict=True):
                # log-likelihood ratio of standard normals, rounded as in `log_likelihood_ratio`
                yield ((negative_row**2 - positive_row**2) / 2).sum(axis=-1).round(5)

    def _replay(self, problem: Audited, run: Transcript) -> list[Passage]:
        """Return the passages of this problem after the earlier releases of the run."""
        replayed = record(
            self.algorithm, problem, self.carrier, rounds=self.rounds, key=self.key, replay=run
        )
        return replayed.passages

    def __call__(self, run: Transcript) -> float:
        """Return the logarithm of the whole ratio."""
        return float(sum(ratio.sum() for ratio in self.ratios(run)))


def _standard_noise(
    joint: CorrelatedGaussian, indices: Sequence[int], replayed: Sequence[Passage], run: Transcript
) -> list[Numbers]:
    """Return the standard normals behind a joint event's releases, under one hypothesis.

    The hypothesis is that the values before noise (`Passage.inside`) were the replay's, and that
    the rest of the released values is noise.
    """

    def noise(index: int) -> Numbers:
        return noise_between(replayed[index], run.passages[index].values)

    return standardized(joint, rows_of(run.passages, noise, indices))


def by_joint(passages: Sequence[Passage]) -> dict[CorrelatedGaussian, list[int]]:
    """Return the indices of the passages that are rows of each joint event, in order."""
    indices: defaultdict[CorrelatedGaussian, list[int]] = defaultdict(list)
    for index, passage in enumerate(passages):
        joint = passage.release.mechanism.joint_event
        if joint is not None:
            indices[joint].append(index)
    return dict(indices)


def rows_of(
    passages: Sequence[Passage], values_of: Callable[[int], Numbers], indices: Sequence[int]
) -> list[Numbers]:
    """Return values of the passages of a joint event by its rows, all nodes of a row together.

    Nodes that take turns release a row in several messages; one that released nothing has zeros.

    Parameters
    ----------
    passages
        Those of the run.
    values_of
        Returns the values of a passage by its index, shape (nodes of the message, dim).
    indices
        The passages of the joint event.

    Returns
    -------
    For each row shape (nodes, dim).
    """
    nodes = 0
    for index in indices:
        numbers = passages[index].rows
        if numbers is not None:
            nodes = max(nodes, 1 + int(numbers.max()))
    by_row: dict[int, Numbers] = {}
    for index in indices:
        row = passages[index].release.mechanism.joint_row
        values = values_of(index)
        numbers = passages[index].rows
        if numbers is None:
            by_row[row] = values
        else:
            row_values = by_row.setdefault(row, np.zeros((nodes, values.shape[1])))
            row_values[numbers] = values
    return [by_row[row] for row in sorted(by_row)]


def noise_between(passage: Passage, values: Floats) -> Numbers:
    """Return `values` less the release's, in the plan's scale: rounding makes noise larger."""
    difference = np.subtract(values, passage.inside, dtype=np.float64)
    return np.asarray(difference / passage.release.mechanism.rounding_factor(passage.inside))


def standardized(joint: CorrelatedGaussian, rows: Sequence[Floats]) -> list[Numbers]:
    """Return the standard normals that a joint event's noise is made from.

    If `rows` are the shift that a record causes, it is a vector whose length is mu.

    Parameters
    ----------
    joint
        The noise that the plan claims.
    rows
        The first rows of noise, each of shape (nodes, dim).
    """
    standard_rows = []
    for t in range(len(rows)):
        factors = joint.recursion[t]
        terms = min(t + 1, len(factors))
        fresh = sum(factors[k] * np.asarray(rows[t - k], dtype=np.float64) for k in range(terms))
        secrets = joint.secrets_of(t)
        if secrets is not None:
            eigenvalues, eigenvectors = np.linalg.eigh(secrets.covariance)
            fresh = (eigenvectors / np.sqrt(eigenvalues)) @ (eigenvectors.T @ fresh)
        scale = joint.noise_to_sensitivity * joint.widened(np.shape(fresh)[-1])
        standard_rows.append(np.asarray(fresh / scale))
    return standard_rows

"""One noisy message a node: sums over its records, from which a linear classifier follows.

A record with features x, |x| <= 1, and class k has the vector

    v = (triangle(x x^T), x e_k^T)          triangle: off-diagonals times sqrt 2

or, where there are many features, x e_k^T alone (y x for labels -1 and +1). The sum of all
records' vectors, with noise for one release, has what least squares need: G = sum x x^T and
B = sum x e_k^T. The classifier is G^-1 B, or B alone.

Sensitivity. Let s = x . x'. For records of two classes |v - v'|^2 is at most 2 - 2 s^2 + 2, and for
records of one class 2 - 2 s^2 + 2 - 2 s, at most 4.5 at s = -1/2. So one record that is replaced
moves the sum by at most sqrt(4.5), where the norm of v alone would give 2 sqrt 2. Shorter records
move it less: for norms a and b the terms are a^4 + b^4 - 2 s^2 + a^2 + b^2 - 2 s. The vectors
x e_k^T alone move by at most 2.

Nothing is tuned. Eigenvalues of G below the largest one of its noise are raised to that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse

import dpmesh.kernels as kernels
from dpmesh._privacy_types import Floats, Sensitive
from dpmesh._ragged import Numbers
from dpmesh.algorithms import RecordSums
from dpmesh.algorithms.first_stage import triangle
from dpmesh.algorithms.record_sums import RecordVectors
from dpmesh.data import Dataset
from dpmesh.problems import LinearProblem
from dpmesh_papers.benchmark.setting import CannotRun, Setting, Trial

DIAMETER = sqrt(4.5)
"""Largest distance between the vectors of two records with second moments."""
LENGTH = sqrt(2)
"""Largest norm of such a vector."""
RECORDS_AT_ONCE = 4096
MOST_FEATURES = 1_000
"""With more features second moments are not sent: a message has their square over 2."""

Values = npt.NDArray[np.float64]


class Block(NamedTuple):
    """Some records of a node.

    Attributes
    ----------
    features
        Shape (records, features), each of norm at most 1.
    targets
        Shape (records, outputs): one-hot classes, or labels -1 and +1.
    """

    features: Values | sparse.csr_array
    targets: Values


@dataclass(frozen=True, kw_only=True)
class ClassMoments:
    """Records of a linear problem as vectors of second moments and class sums.

    Parameters
    ----------
    problem
        A classification problem.
    second_moments
        If true, vectors also have x x^T, not only the class sums.
    noise
        Standard deviation of the noise in each number of the released sum.
    """

    problem: LinearProblem
    second_moments: bool
    noise: float = 0.0

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.problem.nodes

    @property
    def records(self) -> npt.NDArray[np.int64]:
        """Number of records of each node."""
        return np.asarray(self.problem.records)

    @property
    def test(self) -> Dataset | None:
        """Records to test on."""
        return self.problem.test

    @property
    def features(self) -> int:
        """Number of features, d."""
        return self.problem.train.dim

    @property
    def outputs(self) -> int:
        """Number of classes, or 1 for labels -1 and +1."""
        return self.problem.classes or 1

    @property
    def moments(self) -> int:
        """Length of the triangle of second moments; 0 without them."""
        if not self.second_moments:
            return 0
        return self.features * (self.features + 1) // 2

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self.moments + self.features * self.outputs

    @property
    def longest(self) -> float:
        """Largest norm of a vector."""
        if not self.second_moments:
            return 1.0
        return LENGTH

    @property
    def diameter(self) -> float:
        """Largest distance between the vectors of two records over `longest`."""
        if not self.second_moments:
            return 2.0
        return DIAMETER / LENGTH

    def blocks(self, node: int) -> Iterator[Block]:
        """Yield the records of a node; longer ones than 1 are clipped."""
        site_records = self.problem.partition[node]
        for first in range(0, len(site_records), RECORDS_AT_ONCE):
            chosen = site_records[first : first + RECORDS_AT_ONCE]
            rows: Any = self.problem.train.features[chosen]
            labels = self.problem.train.labels[chosen]
            if sparse.issparse(rows):
                rows = sparse.csr_array(rows, dtype=np.float64)
                norms = np.sqrt(np.asarray(rows.multiply(rows).sum(axis=1)).ravel())
                rows = sparse.csr_array(sparse.diags_array(1 / np.maximum(norms, 1.0)) @ rows)
            else:
                rows = kernels.clip_rows(np.asarray(rows, np.float64), 1.0)
            if self.problem.classes is None:
                targets = labels[:, np.newaxis].astype(np.float64)
            else:
                targets = np.eye(self.outputs)[labels]
            yield Block(rows, targets)

    def vectors(self, node: int) -> Iterator[Sensitive]:
        """Yield the vectors of a node's records, shape (records, dim), for tests and audits."""
        for block in self.blocks(node):
            dense = block.features
            if isinstance(dense, sparse.csr_array):
                dense = dense.toarray()
            class_sums = dense[:, :, np.newaxis] * block.targets[:, np.newaxis]
            parts = [class_sums.reshape(len(dense), -1)]
            if self.second_moments:
                parts.insert(0, np.stack([triangle(row[np.newaxis]) for row in dense]))
            yield Sensitive(np.concatenate(parts, axis=1))

    def total(self, node: int) -> Values:
        """Return the sum of the vectors of a node, without a matrix of vectors."""
        class_sums = np.zeros((self.features, self.outputs))
        moments = np.zeros(self.moments)
        for block in self.blocks(node):
            class_sums += np.asarray(block.features.T @ block.targets)
            if self.second_moments:
                moments += triangle(np.asarray(block.features))
        return np.concatenate([moments, class_sums.ravel()])

    def model(self, released: Floats) -> Values:
        """Return the parameters of the linear model that follows from a released sum."""
        class_sums = np.asarray(released)[self.moments :].reshape(self.features, self.outputs)
        if not self.second_moments:
            return np.asarray(class_sums.T.ravel())
        rows, columns = np.triu_indices(self.features)
        gram = np.zeros((self.features, self.features))
        gram[columns, rows] = released[: self.moments] / np.where(rows == columns, 1.0, sqrt(2))
        values, axes = np.linalg.eigh(gram)  # which reads the lower triangle
        raised = np.maximum(values, self.noise_eigenvalue)
        return np.asarray((axes @ ((axes.T @ class_sums) / raised[:, np.newaxis])).T.ravel())

    @cached_property
    def noise_eigenvalue(self) -> float:
        """The largest eigenvalue of the noise alone (semicircle law), at least 1 record's."""
        return max(self.noise * sqrt(2 * self.features), 1.0)

    def accuracy(self, params: Floats) -> Numbers:
        """Return the accuracy of the model of each released sum, shape (sums,)."""
        models = np.stack([self.model(released) for released in np.asarray(params)])
        return self.problem.accuracy(models)


@dataclass(frozen=True, kw_only=True)
class MomentSums(RecordSums):
    """The noisy sum of the vectors of `ClassMoments`, which adds them up by matrix products."""

    def _sum(self, problem: RecordVectors, node: int) -> Floats:
        if isinstance(problem, ClassMoments):
            return problem.total(node)
        return super()._sum(problem, node)


def one_message(setting: Setting, *, second_moments: bool, secure: bool) -> Trial:
    """Return the row: one release of sums, under secure aggregation or by each node.

    Raises
    ------
    CannotRun
        If second moments of too many features, or of sparse ones, are asked for, or no secure sum
        keeps the budget.
    """
    problem = setting.problem
    wide = sparse.issparse(problem.train.features) or problem.train.dim > MOST_FEATURES
    if second_moments and wide:
        raise CannotRun(f"second moments of more than {MOST_FEATURES:,} features are not sent")
    moments = ClassMoments(problem=problem, second_moments=second_moments)
    try:
        algorithm = MomentSums.for_budget(
            epsilon=setting.epsilon,
            delta=setting.delta,
            rounds=1,
            dim=moments.dim,
            sites=problem.nodes,
            records=int(moments.records.sum()),
            longest=moments.longest,
            diameter=moments.diameter,
            secure=secure,
        )
    except ValueError as error:
        raise CannotRun(str(error)) from error
    return Trial(algorithm, replace(moments, noise=algorithm.noise_scale), None, 1)

"""Private centering before learning: the noisy mean of all records is subtracted from each record.

Records of norm 1 have a common component, their mean, which slows the training of a linear model.
In round 0 all nodes release the sum of their records, and each node computes the noisy mean (the
*centre*)

    c = (sum_r Clip(x_r, 1) + noise) / N

Each record is then replaced by its difference from c, rescaled to norm 1: a function of the record
and of released numbers (`dpmesh.tables.features.centred`). Any algorithm for linear models learns
from these centred records. Its rounds, plan and ledger include the release of the mean.

A few directions may still have most of the variance of the centred records v. A second release, the
noisy sum of v v^T (*second moments*), finds these directions (*axes*), along which records are then
shortened.

An algorithm with secure aggregation also sums by secure aggregation: all nodes receive the total.
By gossip, all nodes receive the row of each node without mixing, so that all have the same centre.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from math import ceil, sqrt
from typing import Any

import numpy as np
from scipy import sparse

import dpmesh.kernels as kernels
from dpmesh._privacy_types import Floats, Released
from dpmesh._ragged import Numbers
from dpmesh._validate import fail, instance, refuse
from dpmesh.algorithms.base import AN_ALGORITHM, KNOWN_TO_ALL, Algorithm, AnyAlgorithm
from dpmesh.algorithms.messages import Message, Round
from dpmesh.algorithms.record_sums import RecordSums, RecordVectors
from dpmesh.algorithms.worst_case import AuditSize, Coins, Crowd, Pair
from dpmesh.keys import Key
from dpmesh.noise.secure import SecureSum
from dpmesh.noise.sensitivity import Sensitivity
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release
from dpmesh.privacy.views import LossFacts
from dpmesh.problems import LinearProblem, Problem
from dpmesh.tables.features import AXES, CONSTANT


@dataclass(frozen=True, kw_only=True)
class FirstStageState:
    """State after a round: the released mean, and the state of the algorithm.

    Parameters
    ----------
    centre
        Released mean, shape (1, features), and after it the axes of second moments, if released. 0
        before the release.
    state
        State of the algorithm.
    """

    centre: Released = field(metadata=KNOWN_TO_ALL)
    state: Any


@dataclass(frozen=True, kw_only=True)
class SecondMoments(RecordSums):
    """Noisy second moments of all records: the sum of v v^T over the centred records v.

    A release has the upper triangle of the matrix, with its off-diagonal numbers times sqrt 2. Its
    L2 norm is then the Frobenius norm of the matrix, and replacing one record moves it by at most
    sqrt 2.

    Parameters
    ----------
    dim
        Length of the triangle: d (d + 1) / 2 for d features.
    diameter
        sqrt 2, which holds for v of norm at most 1.
    sites, records, noise_to_sensitivity, longest, colluding, dropouts, secure, rounds
        As in `RecordSums`.
    """

    ensured = sqrt(2)

    diameter: float = sqrt(2)

    def canaries(self, coins: Coins) -> tuple[Floats, Floats]:
        """Return the vectors of canary records, and the directions of their moments.

        Canary k has a pair of axes i, j. Its vector is (e_i + e_j) / sqrt 2 if its coin is True,
        and (e_i - e_j) / sqrt 2 if not. Its direction, shape (dim,), is the triangle's number i, j.
        """
        features = ceil((1 + sqrt(1 + 8 * len(coins))) / 2)
        rows, columns = np.triu_indices(features)
        pairs = np.flatnonzero(rows < columns)[: len(coins)]
        canary_index = np.arange(len(coins))
        vectors = np.zeros((len(coins), features + 1))
        vectors[canary_index, rows[pairs]] = 1.0
        vectors[canary_index, columns[pairs]] = np.where(coins, 1.0, -1.0)
        directions = np.zeros((len(coins), rows.size))
        directions[canary_index, pairs] = 1.0
        return vectors / sqrt(2 * (1 + CONSTANT**2)), directions

    def _sum(self, problem: RecordVectors, node: int) -> Floats:
        """Return the triangle of a node's second moments, shape (dim,), without noise."""
        total = np.zeros(self.dim)
        for block in problem.vectors(node):
            # A centred record ends with a constant, and has norm 1 with it: undo both.
            centred = sqrt(1 + CONSTANT**2) * block[:, :-1]
            total += triangle(centred)
        return total


def triangle(vectors: Floats) -> Floats:
    """Return the upper triangle of sum_r v_r v_r^T, with off-diagonal numbers times sqrt 2.

    Parameters
    ----------
    vectors
        Vectors v_r, shape (records, features); each is clipped to L2 norm 1.

    Returns
    -------
    Shape (features (features + 1) / 2,).
    """
    rows, columns = np.triu_indices(vectors.shape[1])
    clipped = kernels.clip_rows(vectors, 1.0)
    upper_triangle: Floats = (clipped.T @ clipped)[rows, columns]
    return np.where(rows == columns, 1.0, sqrt(2)) * upper_triangle


def axes(total: Floats, scale: float, features: int) -> Floats:
    """Return the axes along which records are shortened, from noisy second moments.

    Let w_0 be about the largest eigenvalue that noise alone would have. A record's component along
    an eigenvector with an eigenvalue w above w_0 is multiplied by ``sqrt(w_0 / w)``; components
    along other eigenvectors stay unchanged. An axis is such an eigenvector times the square root of
    ``1 - sqrt(w_0 / w)``.

    Numbers are rounded to multiples of 2^-20, and the largest entry of an axis is positive, since
    each party of a contract computes the axes, and libraries of linear algebra differ in signs and
    low-order bits.

    Parameters
    ----------
    total
        Noisy second moments in the form of `triangle`, shape (features (features + 1) / 2,).
    scale
        Standard deviation of the noise in each number.
    features
        Number of features.

    Returns
    -------
    The `AXES` leading axes one after another, shape (`AXES` features,); zeros if there are fewer.
    """
    rows, columns = np.triu_indices(features)
    moment = np.zeros((features, features))
    moment[columns, rows] = total / np.where(rows == columns, 1.0, sqrt(2))
    eigenvalues, eigenvectors = np.linalg.eigh(moment)  # which reads the lower triangle
    largest_of_noise = scale * sqrt(2 * features)
    shortening = 1 - np.sqrt(largest_of_noise / np.maximum(eigenvalues, largest_of_noise))
    leading = (np.sqrt(shortening) * eigenvectors).T[::-1][:AXES]
    count = len(leading)
    largest_entries = leading[np.arange(count), np.abs(leading).argmax(axis=1)]
    leading *= np.sign(largest_entries)[:, np.newaxis]
    rounded = np.rint(leading * 2.0**20) / 2.0**20 + 0.0  # no negative zeros
    padding = np.zeros((AXES - count, features))
    return np.concatenate([rounded, padding]).ravel()


def require_dense(problem: object) -> None:
    """Raise a ValueError unless a problem is linear with dense records.

    Sparse records would become dense if a mean were subtracted.
    """
    instance("problem", problem, "a LinearProblem, whose records have a mean", LinearProblem)
    if sparse.issparse(problem.train.features):  # type: ignore[attr-defined]
        fail("problem", "dense records: sparse ones are not after a mean is taken off", "sparse")


@dataclass(frozen=True, kw_only=True)
class FirstStage(Algorithm[FirstStageState, LinearProblem]):
    """Private centering before learning: an algorithm on records minus their noisy mean.

    In round 0 the noisy mean of all records is released, and optionally their noisy second moments.
    Each record is then centered and rescaled to norm 1, and the algorithm learns a linear model.

    Parameters
    ----------
    algorithm
        Algorithm by gossip or by secure aggregation. Its models have one feature more than the
        problem, a constant.
    mean
        `RecordSums` that release the sum of all records, each clipped to L2 norm 1, by secure
        aggregation if the algorithm uses it.
    moment
        `SecondMoments` that release the second moments of the centered records, under secure
        aggregation only. None for no such release.

    Guarantee
    ---------
    All releases together are (epsilon, delta)-DP, as `plan` computes, for replacing one record,
    against the adversary of the algorithm. A record moves the sum of its node by at most 2 in L2
    norm, since it is clipped to norm 1, and the sum of second moments by at most sqrt 2. A centered
    record is a function of the record itself and of these releases. The plan has `mean`, then
    `moment`, then the releases of the algorithm (proof: ``docs/privacy/first_stage_proof.md``).
    Released parameters are the weights, then the centre, then the axes of the second moments.

    Examples
    --------
    >>> import dpmesh as dm
    >>> sizes = dm.defaults.Sizes(
    ...     nodes=5, fewest_records=200, total_records=1000, dim=8, features=4
    ... )
    >>> choice = dm.defaults.choose(sizes, epsilon=1.0, delta=1e-5)
    >>> type(choice.algorithm).__name__
    'FirstStage'
    """

    algorithm: AnyAlgorithm
    mean: RecordSums
    moment: SecondMoments | None = None

    messages_need_no_trust = (
        "each record is clipped, and has norm 1 whatever centre the totals make"
    )
    view_refusal = "every node receives the noisy sums of private centering"
    communication = Algorithm.of_part("algorithm.communication")
    parameters_are_released = Algorithm.of_part("algorithm.parameters_are_released")
    public_coins = Algorithm.of_part("algorithm.public_coins")
    takes_directed = Algorithm.of_part("algorithm.takes_directed")
    rewinds = Algorithm.of_part("algorithm.rewinds")
    releases_decide = Algorithm.of_part("algorithm.releases_decide")
    neighboring_relation = Algorithm.of_part("algorithm.neighboring_relation")
    unit = Algorithm.of_part("algorithm.unit")
    run_length = Algorithm.of_part("algorithm.run_length")
    assumptions = Algorithm.of_part("algorithm.assumptions")

    def __post_init__(self) -> None:
        instance("algorithm", self.algorithm, AN_ALGORITHM, Algorithm)
        instance("mean", self.mean, "a RecordSums", RecordSums)
        if isinstance(self.algorithm, FirstStage):
            fail("algorithm", "one without a first stage", "one with")
        if self.unit != "record" or self.neighboring_relation != "replace_one":
            relation = self.neighboring_relation.replace("_", "-")
            reason = (
                f"this algorithm has {self.unit}-level DP under {relation}, and private centering "
                "is proved for record-level DP under replace-one alone"
            )
            refuse("algorithm", reason)
        sums = self.secure_sum
        if sums is not None:
            algorithm_claim = (sums.colluding, sums.dropouts)
            if (self.mean.colluding, self.mean.dropouts) != algorithm_claim:
                requirement = (
                    "one against colluding={} sites, with dropouts={}, as of the algorithm"
                )
                fail("mean", requirement.format(*algorithm_claim), self.mean)
        if self.communication != "gossip" and self.secure_sum is None:
            reason = (
                "private centering needs a mean that all nodes receive: use a gossip algorithm, "
                "or secure aggregation"
            )
            refuse("algorithm", reason)
        mean_settings = (self.mean.secure, self.mean.longest, self.mean.diameter, self.mean.rounds)
        if mean_settings != (self.communication != "gossip", 1.0, 2.0, 1):
            requirement = (
                "one release of records of norm 1 (diameter=2), secure if the algorithm is"
            )
            fail("mean", requirement, self.mean)
        if self.moment is not None:
            instance("moment", self.moment, "SecondMoments", SecondMoments)
            triangle_length = self.mean.dim * (self.mean.dim + 1) // 2
            expected = SecondMoments(
                dim=triangle_length,
                sites=self.mean.sites,
                records=self.mean.records,
                noise_to_sensitivity=1.0,
                longest=self.mean.longest,
                diameter=sqrt(2),
                colluding=self.mean.colluding,
                dropouts=self.mean.dropouts,
                secure=self.mean.secure,
                rounds=self.mean.rounds,
            )
            moment = replace(self.moment, noise_to_sensitivity=1.0)
            if not self.mean.secure or moment != expected:
                requirement = f"one secure release of {triangle_length} numbers, else as the mean's"
                fail("moment", requirement, self.moment)

    @classmethod
    def before(
        cls,
        algorithm: AnyAlgorithm,
        *,
        sites: int,
        records: int,
        features: int,
        mean_noise: float,
        moment_noise: float | None = None,
    ) -> FirstStage:
        """Return an algorithm with private centering before it.

        If the algorithm uses secure aggregation, the mean and the second moments do, too.

        Parameters
        ----------
        algorithm
            As in the class.
        sites
            Number of sites.
        records
            Number of records of all sites together.
        features
            Number of features of a record.
        mean_noise
            Noise of the sum of records, as `RecordSums.noise_to_sensitivity`.
        moment_noise
            Noise of the second moments, as `RecordSums.noise_to_sensitivity`; None for no second
            moments.
        """
        secure_sum: SecureSum | None = getattr(algorithm, "secure_sum", None)
        mean = RecordSums(
            dim=features,
            sites=sites,
            records=records,
            noise_to_sensitivity=mean_noise,
            secure=False,
        )
        if secure_sum is not None:
            colluding, dropouts = secure_sum.colluding, secure_sum.dropouts
            mean = replace(mean, secure=True, colluding=colluding, dropouts=dropouts)
        moment = None
        if moment_noise is not None:
            moment = SecondMoments(
                dim=features * (features + 1) // 2,
                sites=sites,
                records=records,
                noise_to_sensitivity=moment_noise,
                colluding=mean.colluding,
                dropouts=mean.dropouts,
                secure=mean.secure,
            )
        return cls(algorithm=algorithm, mean=mean, moment=moment)

    def leaking_data(self, size: AuditSize) -> tuple[Pair, Crowd]:
        """Return the inner algorithm's problems for audits.

        An audit of the sums uses the problems of each of `record_sums`.
        """
        rounds = size.rounds
        if rounds is not None:
            rounds = max(1, rounds - len(self.stages))
        inner_size = replace(size, rounds=rounds)
        data: tuple[Pair, Crowd] = self.algorithm.leaking_data(inner_size)
        return data

    @property
    def secure_sum(self) -> SecureSum | None:
        """Public parameters of the algorithm's secure aggregation; None without it."""
        return getattr(self.algorithm, "secure_sum", None)

    @property
    def stages(self) -> tuple[Release, ...]:
        """Releases before the algorithm's: the sum of records, then the second moments if any."""
        return tuple(record_sum.release_of(0) for record_sum in self.record_sums)

    @property
    def record_sums(self) -> tuple[RecordSums, ...]:
        """Private sums over all records: `mean` and, if it is not None, `moment`."""
        if self.moment is None:
            return (self.mean,)
        return (self.mean, self.moment)

    def sensitivity(self, t: int) -> Sensitivity:
        """Return the sensitivity of round t's last release that depends on the data."""
        sensitivity: Sensitivity = self.algorithm.sensitivity(t)  # type: ignore[attr-defined]
        if t == 0 and sensitivity.bound == 0:  # the algorithm begins without a private release
            return self.stages[-1].sensitivity
        return sensitivity

    def release_of(self, t: int) -> Any:
        """Return the releases of the algorithm; in round 0, `stages` before them."""
        algorithm_releases = self.algorithm.release_of(t)
        if t:
            return algorithm_releases
        if isinstance(algorithm_releases, Release):
            return (*self.stages, algorithm_releases)
        return (*self.stages, *algorithm_releases)

    def plan(self, rounds: int, problem: Problem | LossFacts | None = None) -> Plan:
        """Return the plan of the algorithm with the sums over records before it.

        It has no epsilon under a weaker adversary: `problem` only decides whether it states why.
        """
        algorithm_plan = self.algorithm.plan(rounds)
        releases: list[Release] = []
        for record_sum in self.record_sums:
            releases += record_sum.plan(1).releases
        releases += algorithm_plan.releases
        return replace(
            algorithm_plan,
            releases=tuple(releases),
            reaction=self._checked_reaction(rounds, problem),
        )

    def outgrows_single(self, rounds: int, dim: int) -> bool:
        """Return True if rounding messages to float32 might exceed what the noise covers.

        A released row has `dim` weights, then the centre, then the axes of the second moments.
        """
        outgrows = getattr(self.algorithm, "outgrows_single", None)
        if outgrows is None:
            return False
        vectors_of_features = 1  # the centre
        if self.moment is not None:
            vectors_of_features += AXES
        return bool(outgrows(rounds, dim + vectors_of_features * self.mean.dim))

    def init(self, problem: LinearProblem, key: Key) -> FirstStageState:
        """Return the state before round 0: a centre of 0, and the algorithm's state.

        Raises
        ------
        ValueError
            If the problem is not linear with dense records, if its features, sites or records
            differ from `mean`, or if it does not fit the algorithm.
        """
        require_dense(problem)
        if problem.train.dim != self.mean.dim:
            fail("mean", f"dim={problem.train.dim}, the features of a record", self.mean.dim)
        counts = problem.records if problem.nodes == self.mean.sites else problem.all_records
        record_count = int(counts.sum())
        if record_count > self.mean.records:
            fail("mean", f"records={record_count}, those of all nodes", self.mean.records)
        centre = self.mean.init(problem, key).total
        state = self.algorithm.init(problem.centred_blank(), key)
        if self.moment is not None:
            centre = Released(np.pad(centre, ((0, 0), (0, AXES * self.mean.dim))))
        return FirstStageState(centre=centre, state=state)

    def round(
        self, state: FirstStageState, t: int, problem: LinearProblem, key: Key
    ) -> Round[FirstStageState]:
        """Release the mean in round 0, and run the algorithm's round on centred records."""
        centre = state.centre
        if t == 0:
            centre = yield from self._centre(problem, key)
        centred_problem = problem.centred(centre[0])
        after = yield from self.algorithm.round(state.state, t, centred_problem, key)
        return FirstStageState(centre=centre, state=after)

    def centred_records(self, state: FirstStageState, problem: LinearProblem) -> LinearProblem:
        """Return the problem with centred records, from which the algorithm learns.

        Parameters
        ----------
        state
            State after round 0.
        problem
            Problem with the original records.
        """
        return problem.centred(state.centre[0])

    def _centre(self, problem: LinearProblem, key: Key) -> Generator[Message, Released, Released]:
        """Release the sum of all records, and return their noisy mean, shape (1, features).

        With second moments, these are released, too, and their axes follow the mean.
        """
        mean = (yield from self._total(self.mean, problem, key)) / self.mean.records
        if self.moment is None:
            return Released(mean)
        total = yield from self._total(self.moment, problem.centred(mean[0]), key)
        moment_axes = axes(total[0], self.moment.noise_scale, self.mean.dim)
        return Released(np.concatenate([mean, moment_axes[np.newaxis]], axis=1))

    def _total(
        self, record_sum: RecordSums, problem: LinearProblem, key: Key
    ) -> Generator[Message, Released, Released]:
        """Release a sum over all records, and return the noisy total, shape (1, dim).

        It runs the only round of `record_sum`, whose message by gossip is unmixed.
        """
        sum_round = record_sum.round(record_sum.init(problem, key), 0, problem, key)
        message = next(sum_round)
        assert isinstance(message, Message)
        if self.communication == "gossip":  # each row is sent over all links
            message = message._replace(unmixed=True, copies=None, bits=None)
        arrived = yield message
        try:
            sum_round.send(arrived)
        except StopIteration as end:
            return Released(end.value.total)
        raise AssertionError("a sum of records is one release")

    def published(self, state: FirstStageState, received: Any) -> Any:
        """Return the algorithm's published models, each followed by the centre.

        Shape (nodes, dim + length of the centre); None if the algorithm publishes nothing yet.
        """
        models = self.algorithm.published(state.state, received)
        if models is None:
            return None
        return Released(_with_centre(models, state.centre))

    def parameters(self, state: FirstStageState) -> Floats:
        """Return each node's current model, followed by the centre."""
        return _with_centre(self.algorithm.parameters(state.state), state.centre)

    def losses(
        self, state: FirstStageState, t: int, problem: LinearProblem, key: Key
    ) -> Numbers | None:
        """Return the losses of the algorithm on centred records."""
        return self.algorithm.losses(state.state, t, problem.centred(state.centre[0]), key)


def _with_centre(models: Floats, centre: Released) -> Floats:
    """Return the models with the centre appended to each row."""
    rows = np.repeat(centre.astype(models.dtype), len(models), axis=0)
    return np.concatenate([models, rows], axis=1)

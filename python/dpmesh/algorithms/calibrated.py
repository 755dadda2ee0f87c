"""Calibration of a private linear regression by a linear map of its predictions.

Clipped gradients make a regression nearly a median regression: on a skewed target the predictions
add up to much less than the targets. In the last round, after the algorithm's messages, all nodes
release the noisy second moments of (1, p, y) over all records:

    m = sum_r (sqrt 2 p_r, sqrt 2 y_r, p_r^2, sqrt 2 p_r y_r, y_r^2) + noise

Here p_r is the released model's prediction of record r and y_r its target, both in [-1, 1]. The
linear map follows from m and public numbers (`dpmesh.tables.calibration.Calibration.of`).

An algorithm with secure aggregation also sums the moments by secure aggregation: all nodes receive
the total. By gossip, all nodes first receive the released models of all nodes without mixing; the
mean of these models is calibrated. They then receive the noisy moments of each node.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any

import numpy as np

from dpmesh._privacy_types import Floats, Released, Sensitive
from dpmesh._ragged import Numbers
from dpmesh._validate import fail, instance, integer, refuse
from dpmesh.algorithms.base import AN_ALGORITHM, KNOWN_TO_ALL, Algorithm, AnyAlgorithm
from dpmesh.algorithms.first_stage import FirstStage
from dpmesh.algorithms.messages import Message, Relay, Round
from dpmesh.algorithms.record_sums import RecordSums
from dpmesh.algorithms.worst_case import AuditSize, Crowd, Pair
from dpmesh.kernels.linear import linear_scores
from dpmesh.keys import Key
from dpmesh.noise.mechanisms import NoNoise
from dpmesh.noise.secure import SecureSum
from dpmesh.noise.sensitivity import Sensitivity
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.releases import Release
from dpmesh.privacy.views import LossFacts
from dpmesh.problems import LinearProblem, Problem
from dpmesh.tables.calibration import MOMENTS, moments_of, predictions_of
from dpmesh.tables.kinds import Count

LONGEST = sqrt(8)
"""Largest L2 norm of a record's moments, at p = y = 1."""

DISTANCE = 4.0
"""Largest L2 distance between the moments of two records, at p = y = 1 and p = y = -1."""

AT_ONCE = 4096
"""Number of records in a block of moments, which bounds the memory."""

NO_PROOF_BETWEEN_PARTIES = (
    "wanted none under a contract: there is no proof yet for a last sum of moments that may fail "
    "and be repeated. By gossip, parties that miss rows have different models, so that their "
    "moments do not add up"
)
"""Reason why parties of a contract cannot calibrate."""

KNOWN = "follows from earlier releases: the models that the nodes have sent"
"""Reason why sending the models again has a sensitivity of 0."""


@dataclass(frozen=True, kw_only=True)
class CalibratedState:
    """State after a round: the outcome with its noisy moments, and the algorithm's state.

    Parameters
    ----------
    outcome
        The released model and, after it, the noisy moments, shape (1, dim + 5); NaN before the
        last round.
    state
        State of the algorithm.
    """

    outcome: Released = field(metadata=KNOWN_TO_ALL)
    state: Any


@dataclass(frozen=True, kw_only=True)
class Calibrated(Algorithm[CalibratedState, LinearProblem]):
    """Private linear regression whose predictions are calibrated by a linear map.

    Clipped gradients bias predictions on a skewed target. In the last round the noisy moments of
    predictions and targets over all records are released, and the map follows from them.

    Parameters
    ----------
    algorithm
        Algorithm that learns a linear model, by gossip or by secure aggregation.
    rounds
        Number of rounds of the algorithm; the moments are released in the last one.
    moments
        `RecordSums` that release the moments, by secure aggregation if the algorithm uses it.

    Guarantee
    ---------
    All releases together are (epsilon, delta)-DP, as `plan` computes, for replacing one record,
    against the adversary of the algorithm. A record moves the moments of its node by at most 4 in
    L2 norm, for any released model. The plan has the releases of the algorithm, then `moments`
    (proof: ``docs/privacy/regression.md``). Released parameters are the model, then the noisy
    moments.

    Examples
    --------
    >>> import dpmesh as dm
    >>> sizes = dm.defaults.Sizes(nodes=5, fewest_records=2000, total_records=10_000, dim=4)
    >>> how = {"epsilon": 1.0, "delta": 1e-5, "task": "regression", "calibrate": True}
    >>> type(dm.defaults.choose(sizes, **how).algorithm).__name__
    'Calibrated'
    """

    algorithm: AnyAlgorithm
    rounds: int
    moments: RecordSums

    messages_need_no_trust = (
        "predictions and targets are clipped to [-1, 1], whatever model was released"
    )
    view_refusal = "the release of moments after the last round is not accounted for"
    communication = Algorithm.of_part("algorithm.communication")
    parameters_are_released = Algorithm.of_part("algorithm.parameters_are_released")
    public_coins = Algorithm.of_part("algorithm.public_coins")
    takes_directed = Algorithm.of_part("algorithm.takes_directed")
    rewinds = Algorithm.of_part("algorithm.rewinds")
    releases_decide = Algorithm.of_part("algorithm.releases_decide")
    neighboring_relation = Algorithm.of_part("algorithm.neighboring_relation")
    unit = Algorithm.of_part("algorithm.unit")
    assumptions = Algorithm.of_part("algorithm.assumptions")

    def __post_init__(self) -> None:
        instance("algorithm", self.algorithm, AN_ALGORITHM, Algorithm)
        instance("moments", self.moments, "a RecordSums", RecordSums)
        integer("rounds", self.rounds, at_least=1)
        if self.algorithm.run_length not in (None, self.rounds):
            fail("rounds", f"{self.algorithm.run_length}, as of the algorithm", self.rounds)
        if self.unit != "record" or self.neighboring_relation != "replace_one":
            relation = self.neighboring_relation.replace("_", "-")
            reason = (
                f"this algorithm has {self.unit}-level DP under {relation}, and calibration is "
                "proved for record-level DP under replace-one alone"
            )
            refuse("algorithm", reason)
        sums = self.secure_sum
        if self.communication != "gossip" and sums is None:
            reason = (
                "calibration needs totals that all sites receive: use a gossip algorithm, or "
                "secure aggregation"
            )
            refuse("algorithm", reason)
        expected = replace(
            self.moments,
            dim=MOMENTS,
            longest=LONGEST,
            diameter=DISTANCE / LONGEST,
            rounds=1,
            secure=sums is not None,
        )
        if sums is not None:
            expected = replace(expected, colluding=sums.colluding, dropouts=sums.dropouts)
        if self.moments != expected:
            fail("moments", f"{expected}, as the algorithm needs", self.moments)

    @staticmethod
    def moments_like(
        algorithm: AnyAlgorithm, *, sites: int, records: int, noise_to_sensitivity: float | None
    ) -> RecordSums:
        """Return the release of the calibration's moments, which follows an algorithm.

        Parameters
        ----------
        algorithm
            The algorithm. If it uses secure aggregation, the moments are summed by secure
            aggregation with the same limits on colluding sites and dropouts.
        sites, records, noise_to_sensitivity
            As in `RecordSums`.
        """
        moments = RecordSums(
            dim=MOMENTS,
            sites=sites,
            records=records,
            noise_to_sensitivity=noise_to_sensitivity,
            longest=LONGEST,
            diameter=DISTANCE / LONGEST,
            secure=False,
        )
        sums = getattr(algorithm, "secure_sum", None)
        if sums is None:
            return moments
        return replace(moments, secure=True, colluding=sums.colluding, dropouts=sums.dropouts)

    @property
    def run_length(self) -> int:
        """Number of rounds of the run."""
        return self.rounds

    def refused_by_parties(self) -> dict[str, str]:
        """Refuse `moments` in a contract, since their release has no proof between parties."""
        return {"moments": NO_PROOF_BETWEEN_PARTIES}

    @property
    def secure_sum(self) -> SecureSum | None:
        """Public parameters of the algorithm's secure aggregation; None without it."""
        return getattr(self.algorithm, "secure_sum", None)

    @property
    def record_sums(self) -> tuple[RecordSums, ...]:
        """Sums over records that are released in addition to the learning algorithm's messages."""
        return (*getattr(self.algorithm, "record_sums", ()), self.moments)

    def leaking_data(self, size: AuditSize) -> tuple[Pair, Crowd]:
        """Return the inner algorithm's problems for audits.

        An audit of the sums uses the problems of each of `record_sums`.
        """
        data: tuple[Pair, Crowd] = self.algorithm.leaking_data(size)
        return data

    def sensitivity(self, t: int) -> Sensitivity:
        """Return the sensitivity to a record of round t's last release that depends on the data."""
        if self._is_last(t):
            return self.moments.sensitivity(t)
        sensitivity: Sensitivity = self.algorithm.sensitivity(t)  # type: ignore[attr-defined]
        return sensitivity

    def release_of(self, t: int) -> Any:
        """Return the releases of the algorithm; the last round also releases the moments."""
        releases = self.algorithm.release_of(t)
        if not self._is_last(t):
            return releases
        if isinstance(releases, Release):
            releases = (releases,)
        return (*releases, *self._last_releases)

    def plan(self, rounds: int, problem: Problem | LossFacts | None = None) -> Plan:
        """Return the plan of the algorithm with the release of the moments after it.

        Under secure aggregation the moments are released once more for each dropout. The plan has
        no epsilon under a weaker adversary: `problem` only decides whether it states why.
        """
        reaction = self._checked_reaction(rounds, problem)
        plan = replace(self.algorithm.plan(rounds), reaction=reaction)
        if rounds < self.rounds:
            return plan
        *models, moments = self._last_releases
        attempts = 1
        if self.moments.secure:
            attempts += self.moments.dropouts
        return replace(plan, releases=(*plan.releases, *models, *[moments] * attempts))

    @property
    def _last_releases(self) -> tuple[Release, ...]:
        """Releases of the last round after the algorithm's: models, by gossip only, and moments."""
        last = self.rounds - 1
        moments = self.moments.release_of(last)
        if self.secure_sum is not None:
            return (moments,)
        return (Release(last, NoNoise(), Sensitivity(0.0, "l2", KNOWN)), moments)

    def _is_last(self, t: int) -> bool:
        """Return True if t is the last round."""
        return t == self.rounds - 1

    def outgrows_single(self, rounds: int, dim: int) -> bool:
        """Return True if rounding messages to float32 might exceed what the noise covers."""
        outgrows = getattr(self.algorithm, "outgrows_single", None)
        return outgrows is not None and bool(outgrows(rounds, dim))

    def init(self, problem: LinearProblem, key: Key) -> CalibratedState:
        """Return the state before round 0: the algorithm's state, and no moments yet.

        Raises
        ------
        ValueError
            If the problem is not a linear regression, if its sites or records differ from
            `moments`, or if it does not fit the algorithm.
        """
        instance("problem", problem, "a LinearProblem", LinearProblem)
        if problem.loss not in ("squared", "absolute", "huber", "poisson"):
            fail("problem", "a regression, whose predictions are numbers", problem.loss)
        counts = problem.records if problem.nodes == self.moments.sites else problem.all_records
        total = int(counts.sum())
        if total > self.moments.records:
            fail("moments", f"records={total}, those of all nodes", self.moments.records)
        self.moments.init(problem, key)
        state = self.algorithm.init(problem, key)
        dim = self.algorithm.parameters(state).shape[1]
        outcome = Released(np.full((1, dim + MOMENTS), np.nan))
        return CalibratedState(outcome=outcome, state=state)

    def round(
        self, state: CalibratedState, t: int, problem: LinearProblem, key: Key
    ) -> Round[CalibratedState]:
        """Run the algorithm's round; in the last one, release the moments of its model."""
        requests = self.algorithm.round(state.state, t, problem, key)
        after, received = yield from _with_last_answer(requests)
        if not self._is_last(t):
            return CalibratedState(outcome=state.outcome, state=after)
        models = self.algorithm.published(after, received)
        *model_releases, _ = self._last_releases
        for release in model_releases:
            models = yield Message(Sensitive(models), release, unmixed=True)
        model = np.asarray(models, np.float64).mean(axis=0, keepdims=True)
        if isinstance(self.algorithm, FirstStage):
            problem = self.algorithm.centred_records(after, problem)
        records = RecordsOfModel(problem=problem, weights=model[0, : problem.dim])
        total = yield from self._moments(records, t, key)
        outcome = Released(np.concatenate([model, total], axis=1))
        return CalibratedState(outcome=outcome, state=after)

    def _moments(
        self, records: RecordsOfModel, t: int, key: Key
    ) -> Generator[Message, Released, Floats]:
        """Release the moments, and return their total over all sites, shape (1, 5)."""
        message = self.moments.message(records, t)
        if self.communication == "gossip":  # each row is sent over all links, unmixed
            message = message._replace(unmixed=True, copies=None, bits=None)
        arrived = yield message
        return np.asarray(arrived.sum(axis=0, keepdims=True), np.float64)

    def published(self, state: CalibratedState, received: Any) -> Any:
        """Return the outcome, shape (1, dim + 5): the model, then the noisy moments.

        Before the last round, return the algorithm's published models.
        """
        if np.isnan(state.outcome).any():
            return self.algorithm.published(state.state, received)
        return state.outcome

    def parameters(self, state: CalibratedState) -> Floats:
        """Return each node's current model, which is not calibrated."""
        return self.algorithm.parameters(state.state)

    def losses(
        self, state: CalibratedState, t: int, problem: LinearProblem, key: Key
    ) -> Numbers | None:
        """Return the losses of the algorithm."""
        return self.algorithm.losses(state.state, t, problem, key)


@dataclass(frozen=True, kw_only=True, eq=False)
class RecordsOfModel:
    """Problem whose records are the moments of a released model's predictions and of targets.

    Parameters
    ----------
    problem
        The regression, with its records.
    weights
        Weights of the released model, shape (dim,).
    """

    problem: LinearProblem
    weights: Floats

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.problem.nodes

    def vectors(self, node: int) -> Iterator[Sensitive]:
        """Return the moments of a node's records in blocks, each of shape (records, 5)."""
        problem = self.problem
        assert problem.outline is not None
        target = problem.outline.target
        features = problem.train.features
        members = problem.partition[node]
        weights = np.asarray(self.weights[np.newaxis], features.dtype)
        for first in range(0, len(members), AT_ONCE):
            block = members[first : first + AT_ONCE]
            scores = np.asarray(linear_scores(weights, features[block])[:, 0], np.float64)
            targets = np.asarray(problem.train.labels[block], np.float64)
            if isinstance(target, Count):  # counts are scaled to [0, 1]
                targets = 2 * targets - 1
            yield Sensitive(moments_of(predictions_of(scores, target), np.clip(targets, -1, 1)))


def _with_last_answer(
    requests: Round[Any],
) -> Generator[Message | Relay, Released, tuple[Any, Released | None]]:
    """Run a round; return its next state and the rows that were received last."""
    answer: Any = None
    received: Released | None = None
    while True:
        try:
            request = requests.send(answer)
        except StopIteration as end:
            return end.value, received
        answer = yield request
        if isinstance(request, Relay) or request.is_sent:
            received = answer

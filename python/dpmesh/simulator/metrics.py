"""What can be measured in a round, by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dpmesh._validate import fail, one_of
from dpmesh.algorithms.base import AnyAlgorithm, Info
from dpmesh.data import Dataset
from dpmesh.privacy.types import Floats, Released
from dpmesh.problems import LinearProblem
from dpmesh.problems.hindsight import best_fixed_predictor


class Testable(Protocol):
    """What many nodes learn, and how well they do."""

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        ...

    @property
    def test(self) -> Dataset | None:
        """Records to test on, if there are any."""
        ...

    def accuracy(self, params: Floats) -> npt.NDArray[np.float64]:
        """Fraction of the test records that each row of `params` classifies correctly."""
        ...


class Metric(Protocol):
    """Watches every round and is asked for its values now and then."""

    def observe(self, parameters: Floats, info: Info) -> None:
        """See the parameters (nodes, dim) before a round, and what the round told."""
        ...

    def values(self, parameters: Floats, received: Released) -> dict[str, float]:
        """Return named values of all that was observed, and of the last round's results.

        Parameters
        ----------
        parameters
            Shape (nodes, dim): the nodes' own models after the round.
        received
            Shape (nodes, dim): the messages that they received in it.
        """
        ...


@dataclass
class Loss:
    """Mean loss of the nodes on the records of the round."""

    _losses: npt.NDArray[np.float64] = field(default_factory=lambda: np.zeros(1))

    def observe(self, parameters: Floats, info: Info) -> None:
        """Keep the losses of the round, unless nobody learned in it."""
        if info.losses.size:
            self._losses = info.losses

    def values(self, parameters: Floats, received: Released) -> dict[str, float]:
        """Return the mean."""
        return {"loss": float(self._losses.mean())}


@dataclass(frozen=True)
class Accuracy:
    """Mean accuracy on the test set: of the nodes' own models, and of the messages they received.

    ``accuracy`` is what a node enjoys, ``released_accuracy`` what may be published.
    """

    problem: Testable

    def observe(self, parameters: Floats, info: Info) -> None:
        """Need nothing of the round."""

    def values(self, parameters: Floats, received: Released) -> dict[str, float]:
        """Return both means over the nodes."""
        return {
            "accuracy": float(self.problem.accuracy(parameters).mean()),
            "released_accuracy": float(self.problem.accuracy(received).mean()),
        }


@dataclass(frozen=True)
class Consensus:
    """Root mean square distance of the nodes' models from their average."""

    def observe(self, parameters: Floats, info: Info) -> None:
        """Need nothing of the round."""

    def values(self, parameters: Floats, received: Released) -> dict[str, float]:
        """Return the distance."""
        spread = parameters - parameters.mean(axis=0)
        return {"consensus_distance": float(np.sqrt((spread**2).sum(axis=1).mean()))}


@dataclass
class Regret:
    """Regret of Definition 2: a learner's losses on all examples, less the best fixed model's.

    ``regret`` is divided by the number of rounds and learners and averaged over j; ``worst_regret``
    is that of the worst learner. The best model is the minimizer over the ball of `radius`.
    """

    problem: LinearProblem
    radius: float | None
    _examples: list[npt.NDArray[np.int64]] = field(default_factory=list)
    _total: npt.NDArray[np.float64] | None = None

    def observe(self, parameters: Floats, info: Info) -> None:
        """Add each learner's losses on all examples of the round."""
        assert info.records is not None
        examples = info.records.ravel()
        everybody = np.broadcast_to(examples, (len(parameters), len(examples)))
        losses_of_learner = len(examples) * self.problem.objective(parameters, everybody)
        self._total = losses_of_learner if self._total is None else self._total + losses_of_learner
        self._examples.append(examples)

    def values(self, parameters: Floats, received: Released) -> dict[str, float]:
        """Return the average regret per example so far."""
        examples = np.concatenate(self._examples)
        best = best_fixed_predictor(self.problem, examples, radius=self.radius).value
        assert self._total is not None
        regrets = self._total / len(examples) - best
        return {"regret": float(regrets.mean()), "worst_regret": float(regrets.max())}


NAMES = ("loss", "accuracy", "regret", "consensus")


def build_metrics(
    names: Sequence[str] | None, algorithm: AnyAlgorithm, problem: Testable
) -> list[Metric]:
    """Return the metrics of these names; for None, all that the problem and the algorithm allow.

    Accuracy needs test data; regret a linear problem and an algorithm with a ``radius``, the ball
    of its comparator; consensus a network.
    """
    radius = getattr(algorithm, "radius", None)
    makers: dict[str, Callable[[], Metric]] = {"loss": Loss}
    if problem.test is not None:
        makers["accuracy"] = lambda: Accuracy(problem)
    if radius and isinstance(problem, LinearProblem):
        makers["regret"] = lambda: Regret(problem, radius)
    if algorithm.travels == "gossip":
        makers["consensus"] = Consensus
    for name in makers if names is None else names:
        one_of("metrics", name, NAMES)
        if name not in makers:
            fail("metrics", f"what can be measured here ({', '.join(makers)})", repr(name))
    return [makers[name]() for name in (makers if names is None else names)]

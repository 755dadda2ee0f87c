"""Which algorithm, network, rounds and steps serve a budget: a rule over public numbers.

The rule is for records of norm 1, as `dpmesh.ranges` and `dpmesh.data.unit_norm` make them, and
gradient descent by gossip. Let a path be the length of all steps together, A = (rounds - 1) *
step_size. At an epsilon and a delta that are those of mu-Gaussian-DP, noise adds up to a standard
deviation of

    A * 2 * clipping_norm / (records * sqrt(nodes) * mu)

in the score of a record, however many rounds share the path. The path is as long as that noise
allows, and at most a length after which training changes little. It has 100 steps: fewer and longer
ones are unstable, and more send more and learn no better. ``docs/estimators.md`` has the
measurements behind the constants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Any, Literal, NamedTuple

from dpmesh._validate import fail, integer, one_of, positive, probability
from dpmesh.algorithms.gradient_descent import GradientDescent
from dpmesh.keys import Key
from dpmesh.privacy.accounting import analytic_gaussian_noise_multiplier
from dpmesh.privacy.budget import Budget
from dpmesh.topology import Topology, complete, random_regular

__all__ = ["Choice", "Task", "choose", "network"]

Task = Literal["classification", "regression"]

COMPLETE = 64
"""Up to this many nodes everybody sends to everybody; more form a random regular graph."""

DEGREE = 8
"""Neighbours of a node in that graph."""


class _Constants(NamedTuple):
    clipping_norm: float
    noise: float
    """Largest standard deviation of the noise in a score, at the end of the path."""
    longest: float
    """Longest path."""


_CONSTANTS: dict[Task, _Constants] = {
    "classification": _Constants(clipping_norm=0.5, noise=2.0, longest=800.0),
    "regression": _Constants(clipping_norm=0.1, noise=0.25, longest=400.0),
}

STEPS = 100
"""Steps of the path; the first round sends a model that no data has touched."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """What to run.

    Parameters
    ----------
    algorithm
        With the noise that the budget needs.
    topology
        The network, None for an algorithm without one.
    rounds
        Number of rounds.
    """

    algorithm: Any
    topology: Topology | None
    rounds: int


def choose(
    *,
    nodes: int,
    records: int,
    epsilon: float | None,
    delta: float,
    task: Task = "classification",
    key: Key | None = None,
) -> Choice:
    """Return what serves a budget best, by the rule of this module.

    This is the one place that decides on an algorithm: gradient descent by gossip.

    Parameters
    ----------
    nodes
        Number of nodes.
    records
        The smallest number of records of a node.
    epsilon, delta
        The budget of the whole run; an epsilon of None runs without noise, for comparison.
    task
        ``"classification"`` (softmax) or ``"regression"`` (squared loss, targets in [-1, 1]).
    key
        Draws the network of more than 64 nodes; by default a new one.

    Raises
    ------
    ValueError
        If a number is out of its range.
    """
    integer("nodes", nodes, at_least=1)
    integer("records", records, at_least=1)
    clipping_norm, noise, path = _CONSTANTS[one_of("task", task, [*_CONSTANTS])]
    if epsilon is not None:
        positive("epsilon", epsilon)
        if not probability("delta", delta, one=False):
            wanted = (
                "a positive number such as 1e-5: Gaussian noise has no finite epsilon at delta 0"
            )
            fail("delta", wanted, delta)
        mu = 1 / analytic_gaussian_noise_multiplier(target_epsilon=epsilon, target_delta=delta)
        path = min(path, noise * records * sqrt(nodes) * mu / (2 * clipping_norm))

    def algorithm(noise_multiplier: float | None) -> GradientDescent:
        return GradientDescent(
            records=records,
            noise_multiplier=noise_multiplier,
            step_size=path / STEPS,
            clipping_norm=clipping_norm,
        )

    return Choice(
        algorithm=_private(algorithm, STEPS + 1, epsilon, delta),
        topology=network(nodes, key=key),
        rounds=STEPS + 1,
    )


def network(nodes: int, *, key: Key | None = None) -> Topology:
    """Return a well-connected network: complete up to 64 nodes, else random with 8 neighbours.

    Raises
    ------
    ValueError
        If `nodes` is not an integer of at least 1.
    """
    if integer("nodes", nodes, at_least=1) <= COMPLETE:
        return complete(nodes)
    return random_regular(nodes, DEGREE, key=Key.generate() if key is None else key)


def _private(
    algorithm: Callable[[float | None], GradientDescent],
    rounds: int,
    epsilon: float | None,
    delta: float,
) -> GradientDescent:
    if epsilon is None:
        return algorithm(None)
    return algorithm(Budget(epsilon, delta).calibrate(algorithm, rounds))


def __dir__() -> list[str]:
    return sorted(__all__)

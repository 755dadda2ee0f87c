"""A user's program, which must run, and pass mypy --strict."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

import dpmesh as dm


def largest(
    problem: dm.LinearProblem,
    parameters: npt.NDArray[np.float64],
    received: npt.NDArray[np.float64],
) -> float:
    return float(abs(parameters).max())


def until_good(round: int, values: dict[str, float]) -> None:
    if values["released_accuracy"] >= 0.0:
        raise dm.StopRun


def test_the_types_of_a_program() -> None:
    x = np.random.default_rng(0).normal(size=(40, 3))
    mine = dm.Dataset(x, x[:, 0] > 0, "mine").relabelled(lambda label: 2 * label - 1)
    assert mine.take([0, 1]).records == mine.take(np.array([0, 1])).records == 2
    for parts in [np.arange(20), np.arange(20, 40)], np.array_split(np.arange(40), 2):
        problem = dm.LinearProblem(mine, parts, "logistic", test=mine)
    online = dm.OnlineLearning(epsilon=None)
    gossip = dm.QuantizedGossip(
        step_size=0.1, consensus_step_size=0.5, sample_size=10, noise_std=0.5
    )
    for algorithm in online, gossip:
        run = dm.simulate(algorithm, problem, dm.topology.ring(2), rounds=2, delta=1e-5)
        assert run.history.last("megabytes") == run.traffic.megabytes

    budget = dm.privacy.Budget(epsilon=3.0, delta=1e-5)
    noise = budget.calibrate(lambda noise: replace(gossip, noise_std=noise), rounds=5)
    run = dm.simulate(
        replace(gossip, noise_std=noise),
        problem,
        dm.topology.ring(2),
        rounds=5,
        budget=budget,
        metrics=dm.Metrics(["accuracy", largest], every=1, callback=until_good),
    )
    assert run.history.metrics == ("accuracy", "released_accuracy", "largest", "megabytes")
    assert len(run.history["largest"]) == 1

"""Runs side by side are what single runs are."""

from __future__ import annotations

import numpy as np
import pytest

import dpmesh as dm
from dpmesh import topology
from dpmesh_papers.repeats import Repeats

NODES, RECORDS, DIM, RUNS = 4, 12, 3, 5


def make_problem(loss: str = "logistic") -> dm.LinearProblem:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(NODES * RECORDS + 3, DIM))
    labels = np.where(features[:, 0] > 0, 1, -1)
    parts = tuple(np.array_split(np.arange(len(labels)), NODES))
    return dm.LinearProblem(dm.Dataset(features, labels, "synthetic"), parts, loss)


def single(repeats: Repeats, run: int) -> dm.LinearProblem:
    problem = repeats.problem
    return dm.LinearProblem(problem.train, problem.partition[run::RUNS], problem.loss)


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize(
    "failing", [None, dm.Network(max_delay=2), dm.Network(offline=0.4, outage_rounds=2)]
)
def test_a_run_is_a_simulation(batch_size: int, failing: dm.Network | None) -> None:
    """Without noise each run is, to the digit, what `simulate` makes of its records."""
    network = topology.random_matchings(NODES, key=dm.Key.seeded(2))
    repeats = Repeats.deal(make_problem(), RUNS, key=dm.Key.seeded(1))
    algorithm = dm.OnlineLearning(epsilon=None, radius=2.0, batch_size=batch_size)
    checkpoints = [6, 12]
    key = dm.Key.seeded(3)
    runs = repeats.simulate(algorithm, network, checkpoints=checkpoints, key=key, network=failing)
    regret = runs.regret(repeats.best(checkpoints, radius=2.0))
    for r in range(RUNS):
        rounds = RECORDS // batch_size
        options = {
            "rounds": rounds,
            "metrics": dm.Metrics(["regret"], every=rounds // 2),
            "key": key,
            "engine": failing,
        }
        expected = dm.simulate(algorithm, single(repeats, r), network, **options)
        np.testing.assert_allclose(runs.parameters[r], expected.parameters, atol=1e-12)
        np.testing.assert_allclose(runs.released[r], expected.released, atol=1e-12)
        history = expected.history
        np.testing.assert_allclose(regret[r].mean(axis=0), history["regret"], atol=1e-3)
        np.testing.assert_allclose(regret[r].max(axis=0), history["worst_regret"], atol=1e-3)


def test_runs_differ_in_order_and_noise() -> None:
    problem, network = make_problem(), topology.ring(NODES)
    repeats = Repeats.deal(problem, RUNS, key=dm.Key.seeded(1))
    firsts = [repeats.problem.train.features[repeats.problem.partition[r][0]] for r in range(RUNS)]
    assert len({tuple(first) for first in firsts}) > 1
    noisy = dm.OnlineLearning(epsilon=1.0)
    runs = repeats.simulate(noisy, network, checkpoints=[RECORDS], key=dm.Key.seeded(3))
    again = repeats.simulate(noisy, network, checkpoints=[RECORDS], key=dm.Key.seeded(3))
    np.testing.assert_array_equal(runs.losses, again.losses)
    assert len(np.unique(runs.losses[:, 0, 0])) == RUNS
    assert repr(runs) == "RepeatedRuns(5 runs of 4 nodes, 1 checkpoints)"
    for run in range(RUNS):  # all records of a run are records of the problem, each once
        chosen = np.concatenate(repeats.problem.partition[run::RUNS])
        rows = {tuple(row) for row in repeats.problem.train.features[chosen]}
        assert len(rows) == NODES * RECORDS
        assert rows <= {tuple(row) for row in problem.train.features}


def test_one_key_serves_any_number_of_calls() -> None:
    """Two calls under a key from the operating system have different noise."""
    repeats, key = Repeats.deal(make_problem(), 2, key=dm.Key.seeded(1)), dm.Key.generate()
    one, other = (
        repeats.simulate(
            dm.OnlineLearning(epsilon=1.0), topology.ring(NODES), checkpoints=[3], key=key
        )
        for _ in range(2)
    )
    assert not np.isclose(one.released, other.released).any()


def test_bad_input_is_named() -> None:
    problem, key = make_problem(), dm.Key.seeded(0)
    with pytest.raises(ValueError, match="runs: wanted an integer of at least 1, got 0"):
        Repeats.deal(problem, 0, key=key)
    repeats = Repeats.deal(problem, 2, key=key)
    with pytest.raises(ValueError, match="topology: wanted 4 nodes, as a copy has, got 3"):
        repeats.simulate(dm.OnlineLearning(), topology.ring(3), checkpoints=[1], key=key)
    with pytest.raises(ValueError, match=r"topology: wanted a topology of .*, got None"):
        repeats.simulate(dm.OnlineLearning(), None, checkpoints=[1], key=key)
    with pytest.raises(ValueError, match=r"network: wanted a dpmesh\.Network or None, got 0"):
        repeats.simulate(
            dm.OnlineLearning(), topology.ring(4), checkpoints=[1], key=key, network=0.1
        )
    with pytest.raises(ValueError, match=r"key: wanted a Key, such as .*, got 3"):
        repeats.simulate(dm.OnlineLearning(), topology.ring(4), checkpoints=[1], key=3)
    gossip = dm.QuantizedGossip(
        step_size=0.1, consensus_step_size=0.5, sample_size=1, noise_std=1.0
    )
    with pytest.raises(ValueError, match="algorithm: wanted one that uses each example once"):
        repeats.simulate(gossip, topology.ring(4), checkpoints=[1], key=key)
    algorithm = dm.OnlineLearning(batch_size=3)
    with pytest.raises(ValueError, match="problem: wanted a LinearProblem, got 1"):
        Repeats.deal(1, 2, key=key)
    for checkpoints in (6, []):
        with pytest.raises(ValueError, match="checkpoints: wanted a list of numbers of examples"):
            repeats.simulate(algorithm, topology.ring(4), checkpoints=checkpoints, key=key)
    with pytest.raises(ValueError, match="checkpoints: wanted at most 12 examples, as many"):
        repeats.simulate(algorithm, topology.ring(4), checkpoints=[3, 15], key=key)
    with pytest.raises(ValueError, match="checkpoints: wanted ascending multiples of 3"):
        repeats.simulate(algorithm, topology.ring(4), checkpoints=[4, 6], key=key)

"""Private decentralized gradient descent, written with loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from one_round import one_round

import dpmesh as dm
from dpmesh import kernels
from dpmesh.audit import audit_layers
from dpmesh.keys import Key, Purpose

Gradient = Callable[[np.ndarray], np.ndarray]


def gradient_descent(
    A: np.ndarray,
    gradients: Sequence[Sequence[Gradient]],  # of node i, record r
    noise: Callable[[int], np.ndarray],  # round t -> (nodes, dim)
    *,
    rounds: int,
    dim: int,
    alpha: Callable[[int], float],
    L: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the models after the last round, and what was received in it."""
    nodes = len(gradients)
    x = np.zeros((nodes, dim))
    received = np.zeros((nodes, dim))
    for t in range(rounds):
        messages = [x[i] + noise(t)[i] for i in range(nodes)]
        next_models = np.zeros_like(x)
        for i in range(nodes):
            mixed = np.zeros(dim)
            for j in range(nodes):
                mixed = mixed + A[i, j] * messages[j]
            next_models[i] = mixed - alpha(t + 1) * clipped_mean(gradients[i], mixed, L)
            received[i] = mixed
        x = next_models
    return x, received


def clipped_mean(gradients: Sequence[Gradient], point: np.ndarray, L: float) -> np.ndarray:
    """Return the mean of the records' gradients, each clipped to L."""
    mean = np.zeros_like(point)
    for gradient in gradients:
        g = gradient(point)
        mean = mean + g * min(1.0, L / max(np.linalg.norm(g), 1e-300))
    return mean / len(gradients)


def small_problem(nodes: int, records: int, dim: int, seed: int) -> dm.LinearProblem:
    """Return logistic regression on random records."""
    rng = np.random.default_rng(seed)
    x = 2 * rng.normal(size=(nodes * records, dim))
    train = dm.Dataset(x, np.where(rng.random(len(x)) < 0.5, -1, 1), "synthetic")
    parts = tuple(np.split(rng.permutation(len(x)), nodes))
    return dm.LinearProblem(train, parts, "logistic")


def gradients_of(problem: dm.LinearProblem) -> list[list[Gradient]]:
    """Return the gradient of each record's loss, by node."""

    def gradient_of(record: int) -> Gradient:
        features = problem.train.features[record]
        label = problem.train.labels[record]
        return lambda w: -label * features / (1 + np.exp(label * (features @ w)))

    return [[gradient_of(record) for record in part] for part in problem.partition]


def small_runs(test):
    """Run a test on small problems and runs, drawn by hypothesis."""
    with_arguments = given(
        nodes=st.integers(2, 6),
        records=st.integers(1, 4),
        dim=st.integers(1, 5),
        rounds=st.integers(1, 6),
        multiplier=st.none() | st.floats(0.1, 5),
        clipping_norm=st.floats(0.1, 3),
        seed=st.integers(0, 2**32),
    )
    return settings(max_examples=25, deadline=None)(with_arguments(test))


def neighbours(data):
    """Return two problems of long records that differ in the label of one record of node 1."""
    features = 100 * data.train.features
    labels = data.train.labels.copy()
    labels[data.partition[1][2]] *= -1
    return [
        dm.LinearProblem(dm.Dataset(features, labels_of_one, "data"), data.partition, "logistic")
        for labels_of_one in (data.train.labels, labels)
    ]


def audits_catch_half_the_noise(kind):
    """Audit an algorithm of gradients, and one that claims twice the noise that it adds."""

    class Half(kind):
        @property
        def mean_gradient_sensitivity(self) -> float:
            return super().mean_gradient_sensitivity / 2

    for audited, caught in ((kind, False), (Half, True)):
        layers = audited(records=4, noise_multiplier=3.0).worst_case(canaries=200)
        results = audit_layers(*layers, runs=300, confidence=0.999, key=Key.seeded(5))
        assert any(result.violated for result in results) == caught


def beside_its_twin(kind, network_of, deviation, case):
    """Run an algorithm; return the run, its network, and its twin's arguments but the network.

    ``deviation(t, step)`` is that of the noise of round t over a record's share of the sum.
    """
    nodes, records, dim, rounds = (case[name] for name in ("nodes", "records", "dim", "rounds"))
    problem = small_problem(nodes, records, dim, case["seed"])
    key = Key.seeded(case["seed"])
    multiplier = case["multiplier"]
    bound = case["clipping_norm"]
    step = dm.schedules.InverseSqrt(0.7)
    doubled = None if multiplier is None else 2 * multiplier
    algorithm = kind(records=records, noise_multiplier=doubled, step_size=step, clipping_norm=bound)
    network = network_of(nodes, case["seed"], key)
    run = dm.simulate(algorithm, problem, network, rounds=rounds, key=key, metrics=[])
    assert run.ledger == algorithm.plan(rounds)

    def noise(t):
        scale = (multiplier or 0.0) * 2 * bound / records * deviation(t, step)
        return kernels.gaussian((nodes, dim), scale, key.stream(Purpose.NOISE, t))

    arguments_of_twin = {
        "gradients": gradients_of(problem),
        "noise": noise,
        "rounds": rounds,
        "dim": dim,
    }
    return run, network, arguments_of_twin | {"alpha": step, "L": bound}


def ring(nodes, seed, key):
    """Return a ring, or a complete graph of few nodes."""
    return dm.topology.complete(nodes) if nodes < 4 else dm.topology.ring(nodes)


def of_the_step(t, step):
    """Return the noise on the models of round t: those of round 0 depend on no data."""
    if t == 0:
        return 0.0
    return step(t)


def moved_by_a_record(algorithm, data, part):
    """Return the change of a part of the state in round 0 by one record of node 1."""
    start = algorithm.init(data, Key.seeded(0))
    states = [
        one_round(algorithm, start, 0, problem, Key.seeded(0)).state for problem in neighbours(data)
    ]
    return getattr(states[0], part) - getattr(states[1], part)

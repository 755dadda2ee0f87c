"""What one noise for all sites buys: accuracy at a small epsilon, beside what a site has without.

    python -m benches.cross_silo_table [splits]
    python -m benches.cross_silo_table mnist [splits]    # set DPMESH_DATA

The rule for the number of rounds is `suggested_rounds`, the step is 1 / smoothness, and nothing
else is chosen. Guarantees are for one record, delta 1e-5, with proved accounting: replace-one with
full batches (`silo`), add-remove with full batches (`add`) and with Poisson batches of a fifth
(`poisson`); c sites may collude. `central` is a trusted server that adds continuous noise under the
accounting of Gaussian differential privacy, or as much as all shares of `silo c=0` together.

MNIST is limited by the length of a run: there secure sums and gossip both take the rounds that the
rule gives at epsilon 1 where it is not cut off at 200, with the same step, and gossip 40, too.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import dpmesh as dm
from benches.suggested_rounds import suggested_rounds
from dpmesh.algorithms import Average, FederatedLearning, RecordGradients, SecureAggregation
from dpmesh.data import Dataset, breast_cancer, digits, mnist, unit_norm
from dpmesh.keys import Key
from dpmesh.privacy.accounting import analytic_gaussian_noise_multiplier

DELTA = 1e-5
EPSILONS = (1.0, 2.0, 4.0, 8.0)
BREAST_SITES = (38, 62, 83, 95, 149)
MNIST_EPSILONS, MNIST_ROUNDS, MNIST_STEP = (1.0, 4.0), 765, 2.0


def with_constant(dataset: Dataset) -> Dataset:
    """Records of norm 1, of which one feature was the same for all before."""
    x = np.asarray(dataset.features)
    return unit_norm(Dataset(np.c_[x, np.ones(len(x))], dataset.labels, dataset.name))


def split(dataset: Dataset, seed: int) -> tuple[Dataset, Dataset]:
    """Three quarters to learn from."""
    order = np.random.default_rng(seed).permutation(dataset.records)
    train = round(0.75 * dataset.records)
    return dataset.take(order[:train]), dataset.take(order[train:])


def two_classes_each(train: Dataset, seed: int) -> list[Any]:
    """Ten sites: each class is divided between two of them, at random."""
    rng = np.random.default_rng(seed)
    halves: list[list[Any]] = [[] for _ in range(10)]
    for k in range(10):
        first, second = np.array_split(rng.permutation(np.flatnonzero(train.labels == k)), 2)
        halves[k].append(first)
        halves[(k + 1) % 10].append(second)
    return [np.concatenate(half) for half in halves]


def digits_problem(seed: int) -> dm.LinearProblem:
    train, test = split(with_constant(digits()), seed)
    parts = two_classes_each(train, seed)
    return dm.LinearProblem(train, parts, "softmax", test=test, classes=10)


def breast_problem(seed: int) -> dm.LinearProblem:
    whole = breast_cancer()
    x = np.asarray(whole.features)
    # Means and deviations of the measurements count as public: published with the data set.
    x = (x - x.mean(axis=0)) / x.std(axis=0)
    train, test = split(with_constant(Dataset(x, whole.labels, whole.name)), seed)
    parts = np.split(np.arange(train.records), np.cumsum(BREAST_SITES)[:-1])
    return dm.LinearProblem(train, parts, "logistic", test=test)


def mnist_problem(seed: int) -> dm.LinearProblem:
    learned, test = (with_constant(mnist(part)) for part in ("train", "test"))
    parts = two_classes_each(learned, seed)
    return dm.LinearProblem(learned, parts, "softmax", test=test, classes=10)


def pooled(problem: dm.LinearProblem) -> dm.LinearProblem:
    everything = np.concatenate([np.asarray(part) for part in problem.partition])
    return dm.LinearProblem(
        problem.train, [everything], problem.loss, test=problem.test, classes=problem.classes
    )


def averaged(rounds: int) -> Average:
    """The models of the last half."""
    return Average(since=rounds // 2 + 1)


def train(algorithm: FederatedLearning, problem: dm.LinearProblem, key: Key) -> float:
    """Accuracy of the model after all rounds."""
    run = dm.simulate(
        algorithm,
        problem,
        rounds=algorithm.run_length or 0,
        key=key,
        delta=DELTA,
        metrics=dm.Metrics([], progress=False),
    )
    return float(problem.accuracy(run.parameters)[0])


def descend(
    problem: dm.LinearProblem, rounds: int, step: float, noise: float, rng: Any
) -> tuple[float, ...]:
    """Accuracies of gradient descent at each node alone: mean of the last half of its models."""
    w = problem.zeros()
    counts = problem.records[:, np.newaxis]
    tail = np.zeros(w.shape)
    for t in range(rounds):
        g = problem.gradient_sum(w, problem.everything, clipping_norm=1.0)
        w = w - step * (g + noise * rng.normal(size=w.shape)) / counts
        tail += w * (t + 1 > rounds / 2)
    return tuple(problem.accuracy(tail))


def gossip(problem: dm.LinearProblem, rounds: int, step: float, epsilon: float, key: Key) -> float:
    """Mean accuracy of `GradientDescent` on a complete graph."""
    z = analytic_gaussian_noise_multiplier(target_epsilon=epsilon, target_delta=DELTA) * np.sqrt(
        rounds - 1
    )
    algorithm = dm.GradientDescent(
        records=int(problem.records.min()), noise_multiplier=z, step_size=step
    )
    run = dm.simulate(
        algorithm,
        problem,
        dm.topology.complete(problem.nodes),
        rounds=rounds,
        key=key,
        metrics=dm.Metrics([], progress=False),
    )
    return float(problem.accuracy(run.parameters).mean())


def rows(problem: dm.LinearProblem, seed: int, step: float, trace: float) -> dict[str, list[float]]:
    """Accuracies at each epsilon, of one split."""
    n, total = problem.nodes, int(problem.records.sum())
    key, rng = Key.seeded(seed), np.random.default_rng(seed)
    found: dict[str, list[float]] = defaultdict(list)
    alone = descend(problem, 400, step, 0.0, rng)
    found["alone"] = [float(np.mean(alone))] * 4
    found["best alone"] = [max(alone)] * 4
    found["pooled"] = [descend(pooled(problem), 400, step, 0.0, rng)[0]] * 4
    test = problem.test
    assert test is not None
    found["chance"] = [
        float(np.unique(test.labels, return_counts=True)[1].max() / test.records)
    ] * 4
    for epsilon in EPSILONS:
        public: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA, "dim": problem.dim}

        def silo(relation: Any, c: int, q: float = 1.0, public: Any = public) -> FederatedLearning:
            rounds = suggested_rounds(
                delta=DELTA,
                epsilon=public["epsilon"],
                records=total,
                step_size=step,
                curvature_trace=trace,
                neighboring_relation=relation,
            )
            return FederatedLearning.for_budget(
                RecordGradients(
                    clients=n, records=total, sampling_rate=q, neighboring_relation=relation
                ),
                epsilon=public["epsilon"],
                delta=DELTA,
                step_size=step,
                average=averaged(rounds),
                combination=SecureAggregation(dim=public["dim"], rounds=rounds, colluding=c),
            )

        plain = silo("replace_one", 0)
        found["silo c=0"].append(train(plain, problem, key))
        found["silo c=1"].append(train(silo("replace_one", 1), problem, key))
        found["silo c=n/3"].append(train(silo("replace_one", max(1, n // 3)), problem, key))
        found["add c=1"].append(train(silo("add_remove", 1), problem, key))
        found["poisson c=1"].append(train(silo("add_remove", 1, 0.2), problem, key))
        length = plain.run_length or 0
        z = analytic_gaussian_noise_multiplier(
            target_epsilon=epsilon, target_delta=DELTA
        ) * np.sqrt(length)
        found["central"].append(descend(pooled(problem), length, step, 2 * z, rng)[0])
        noise = plain.noise_multiplier * plain.secure_sum.sensitivity
        noise *= plain.secure_sum.grid
        same = descend(pooled(problem), length, step, noise, rng)[0]
        found["central, noise of c=0"].append(same)
        found["alone private"].append(_alone(problem, epsilon, step, trace, rng))
        choices = {length, 40}
        found["gossip"].append(max(gossip(problem, r, step, epsilon, key) for r in choices))
        found["rounds"].append(length)
    return found


def _alone(problem: dm.LinearProblem, epsilon: float, step: float, trace: float, rng: Any) -> float:
    found = []
    for node, part in enumerate(problem.partition):
        own = problem.for_nodes(np.array([node]))
        rounds = suggested_rounds(
            delta=DELTA, epsilon=epsilon, records=len(part), step_size=step, curvature_trace=trace
        )
        z = analytic_gaussian_noise_multiplier(
            target_epsilon=epsilon, target_delta=DELTA
        ) * np.sqrt(rounds)
        found.append(descend(own, rounds, step, 2 * z, rng)[0])
    return float(np.mean(found))


def table(name: str, make: Callable[[int], dm.LinearProblem], splits: int, *rule: float) -> None:
    """Print mean and standard deviation over splits."""
    runs = [rows(make(200 + seed), 200 + seed, *rule) for seed in range(splits)]
    print(f"\n{name}, {splits} splits\n{'':21s}" + "".join(f"{e:>14g}" for e in EPSILONS))
    for row in runs[0]:
        values = np.array([run[row] for run in runs])
        cells = zip(values.mean(axis=0), values.std(axis=0), strict=True)
        print(f"{row:21s}" + "".join(f"  {m:7.3f}+-{s:.3f}" for m, s in cells))


def long_runs(
    problem: dm.LinearProblem, epsilon: float, key: Key, rounds: int
) -> Iterator[tuple[str, float]]:
    """Yield each method with its accuracy at one epsilon; one site may collude with the server."""
    for relation, q in (("replace_one", 1.0), ("add_remove", 1.0), ("add_remove", 0.1)):
        algorithm = FederatedLearning.for_budget(
            RecordGradients(
                clients=problem.nodes,
                records=int(problem.records.sum()),
                sampling_rate=q,
                neighboring_relation=relation,
            ),
            epsilon=epsilon,
            delta=DELTA,
            step_size=MNIST_STEP,
            average=averaged(rounds),
            combination=SecureAggregation(dim=problem.dim, rounds=rounds),
        )
        yield f"secure sum, {relation}, q = {q:g}, {rounds} rounds", train(algorithm, problem, key)
    for length in (rounds, 40):
        yield f"gossip, {length} rounds", gossip(problem, length, MNIST_STEP, epsilon, key)


def mnist_table(splits: int, rounds: int = MNIST_ROUNDS) -> None:
    """Print the accuracy of each method, split and epsilon as soon as it is known."""
    print("MNIST, ten sites of two classes\nsplit  epsilon  accuracy  seconds  method")
    for seed in range(200, 200 + splits):
        problem = mnist_problem(seed)
        for epsilon in MNIST_EPSILONS:
            begun = time.perf_counter()
            for method, accuracy in long_runs(problem, epsilon, Key.seeded(seed), rounds):
                seconds, begun = time.perf_counter() - begun, time.perf_counter()
                cells = f"{seed:5d}  {epsilon:7g}  {accuracy:8.3f}  {seconds:7.0f}  {method}"
                print(cells, flush=True)


def main(arguments: list[str]) -> None:
    """Print the tables that the command line asks for."""
    if arguments[:1] == ["mnist"]:
        mnist_table(int(arguments[1]) if len(arguments) > 1 else 2)
        return
    count = int(arguments[0]) if arguments else 10
    table("digits, ten sites of two classes", digits_problem, count, 2.0, 0.9)
    table("breast cancer, five sites", breast_problem, count, 4.0, 0.25)


if __name__ == "__main__":
    main(sys.argv[1:])

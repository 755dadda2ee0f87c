"""Data, network, runs and regret of the experiments of the online paper (its section 6).

The paper leaves open lambda, the radius of the ball W, the network and the number of repetitions.
Ours are below. Losses are hinge losses; learners are called nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from dpmesh.algorithms.online import OnlineLearning
from dpmesh.data import Dataset, rcv1
from dpmesh.keys import Key, Purpose, generator
from dpmesh.problems import LinearProblem
from dpmesh.run import Network
from dpmesh.schedules import InverseTime
from dpmesh.topology import Topology, complete, cycle, random_regular, shuffled
from dpmesh_papers._scaffold import Row, interval, with_spread
from dpmesh_papers.repeats import RepeatedRuns, Repeats

Values = npt.NDArray[np.float64]

NODES = (1, 4, 64)
"""Numbers of nodes in the paper's table."""
MOST_NODES = max(NODES)
GRAPHS = 16
"""The network cycles through this many shufflings of a random 4-regular graph (a ring of 4)."""

OUR_CHOICES = (
    "The paper leaves open lambda, W and the network; ours: lambda = 1 and radius 1 (synthetic), "
    "0.01 and 10 (RCV1), a 4-regular graph that changes every round."
)


@dataclass(frozen=True)
class Source:
    """Data, and the parameters of learning that the paper leaves open.

    Parameters
    ----------
    name
        ``"synthetic"`` or ``"rcv1"``.
    load
        Function that returns the records to learn from, and those to test on if there are any.
    radius
        Radius of the ball W that models are projected to.
    strong_convexity
        lambda of the learning rates 1 / (lambda t).
    checkpoints
        In examples of each of 64 nodes, ascending; the last is the length of the run.
    runs
        Runs per seed: more where they are cheap.
    """

    name: str
    load: Callable[[], tuple[Dataset, Dataset | None]]
    radius: float
    strong_convexity: float
    checkpoints: tuple[int, ...]
    runs: int = 1


def synthetic() -> tuple[Dataset, None]:
    """Return 100,000 points of the 10-dimensional unit ball, labelled by a hyperplane.

    The hyperplane goes through the centre of the ball.

    The paper does not say how it labels them.
    """
    draw = generator(Key.seeded(0), Purpose.SAMPLE)
    count = 100_000
    dim = 10
    directions = draw.normal(size=(count, dim))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    points = directions * draw.random((count, 1)) ** (1 / dim)
    labels = np.where(points @ draw.normal(size=dim) > 0, 1, -1)
    return Dataset(points.astype(np.float32), labels, "synthetic"), None


def reuters() -> tuple[Dataset, Dataset]:
    """Return RCV1's training and test documents, in float64, which much noise needs."""
    train, test = (rcv1(part) for part in ("train", "test"))
    return train, test


def read(sources: Iterable[Source], checkpoints: int | None) -> tuple[Source, ...]:
    """Return the sources with their data in memory: missing data are reported before any run.

    Parameters
    ----------
    sources
        The sources, not loaded.
    checkpoints
        Number of checkpoints after which runs end; None for all.
    """

    def in_memory(source: Source) -> Source:
        records = source.load()
        return replace(source, load=lambda: records, checkpoints=source.checkpoints[:checkpoints])

    return tuple(map(in_memory, sources))


SOURCES = (
    Source("synthetic", synthetic, 1.0, 1.0, (10, 40, 160, 600, 1560), runs=4),
    Source("rcv1", reuters, 10.0, 0.01, (20, 60, 190)),
)


@dataclass(frozen=True, eq=False)
class PartitionedSource:
    """The data of all runs, partitioned among different numbers of nodes in the same orders.

    Parameters
    ----------
    source
        The data, and the parameters of learning.
    repeats
        The runs' problems, by number of nodes.
    best_losses
        Shape (runs, checkpoints): mean loss of the best fixed predictor. The examples that all
        nodes together have used at a checkpoint are the same for all numbers of nodes.
    """

    source: Source
    repeats: dict[int, Repeats]
    best_losses: Values

    @classmethod
    def deal(
        cls, source: Source, seeds: int, node_counts: Iterable[int] = (MOST_NODES,)
    ) -> PartitionedSource:
        """Partition the data for all runs of `seeds` seeds, at each number of nodes."""
        train, test = source.load()
        records = np.arange(source.checkpoints[-1] * MOST_NODES)
        repeats = {}
        for nodes in {*node_counts, MOST_NODES}:
            problem = LinearProblem(train, tuple(records.reshape(nodes, -1)), "hinge", test=test)
            repeats[nodes] = Repeats.deal(problem, seeds * source.runs, key=Key.seeded(1))
        best_losses = repeats[MOST_NODES].best(
            source.checkpoints, radius=source.radius, tolerance=1e-3
        )
        return cls(source, repeats, best_losses)

    def algorithm(self, epsilon: float | None, batch_size: int = 1) -> OnlineLearning:
        """Return the paper's algorithm, with steps 1 / (lambda t); None for no noise."""
        step_size = InverseTime(scale=1 / self.source.strong_convexity)
        radius = self.source.radius
        return OnlineLearning(
            epsilon=epsilon, step_size=step_size, radius=radius, batch_size=batch_size
        )

    def run(
        self, algorithm: OnlineLearning, nodes: int = MOST_NODES, network: Network | None = None
    ) -> RepeatedRuns:
        """Simulate all runs at this number of nodes."""
        checkpoints = [count * MOST_NODES // nodes for count in self.source.checkpoints]
        topology = changing_graph(nodes)
        key = Key.seeded(2)
        return self.repeats[nodes].simulate(
            algorithm, topology, checkpoints=checkpoints, key=key, network=network
        )


def changing_graph(nodes: int) -> Topology:
    """Return a graph that changes from round to round (see `GRAPHS`); alone a node has none."""
    if nodes == 1:
        return complete(1)
    base = random_regular(nodes, min(4, nodes - 2), key=Key.seeded(3))
    varying = shuffled(base, key=Key.seeded(3))
    return cycle([varying.matrix(t) for t in range(GRAPHS)])


def measured(data: PartitionedSource, cell: Row, algorithm: OnlineLearning) -> list[Row]:
    """Run one setting and return its curve, a row for each checkpoint.

    `examples` are those used so far by all nodes together. `regret` is the mean over runs and
    learners for each example, with half its 95% interval and the standard deviation between runs;
    `worst_regret` is that of the worst learner. Where there are test records, `accuracy` is that of
    the learners' own models at the end, and `released_accuracy` that of the last broadcasts, which
    may be published; in percent, mean over nodes and runs.
    """
    nodes = cell["nodes"]
    runs = data.run(algorithm, nodes)
    regret = runs.regret(data.best_losses)  # shape (runs, nodes, checkpoints)
    means = regret.mean(axis=1)
    worst = regret.max(axis=1).mean(axis=0)
    spread = np.full(means.shape[1], np.nan)
    if len(means) > 1:
        spread = means.std(axis=0, ddof=1)
    accuracies_at_end = accuracies(data.repeats[nodes].problem, runs)
    return [
        {
            "examples": count * MOST_NODES,
            "regret": float(means[:, k].mean()),
            "interval": interval(means[:, k]),
            "spread": float(spread[k]),
            "worst_regret": float(worst[k]),
            "runs": len(means),
            **accuracies_at_end,
        }
        for k, count in enumerate(data.source.checkpoints)
    ]


def accuracies(problem: LinearProblem, runs: RepeatedRuns) -> Row:
    """Return accuracies in percent and half of their 95% intervals over runs.

    `accuracy` is of the nodes' own models, `released_accuracy` of their last broadcasts. All are
    None if there are no test records.
    """
    result: Row = {}
    for name, models in (("accuracy", runs.parameters), ("released_accuracy", runs.released)):
        if problem.test is None:
            result |= {name: None, f"{name}_interval": None}
            continue
        run_accuracies = [problem.accuracy(np.ascontiguousarray(run)).mean() for run in models]
        result[name] = 100 * float(np.mean(run_accuracies))
        result[f"{name}_interval"] = interval(100 * np.array(run_accuracies))
    return result


def in_words(row: Row) -> str:
    """Return the end of a curve as a line."""
    regret = with_spread(row["regret"], row["interval"], 4)
    return (
        f"{row['data']:<10} {row['mechanism']:<9} epsilon {epsilon_in_words(row['epsilon']):<5} "
        f"{row['nodes']:>2} nodes  batch {row['batch_size']:<3} regret {regret}"
    )


def runs_in_words(rows: Iterable[Row]) -> str:
    """Return the number of runs on each data set in words."""
    runs = {row["data"]: row["runs"] for row in rows}
    return " and ".join(f"{count} runs ({name})" for name, count in runs.items())


def epsilon_in_words(epsilon: float | None) -> str:
    """Return an epsilon in words, ``"none"`` for no noise."""
    if epsilon is None:
        return "none"
    return f"{epsilon:g}"

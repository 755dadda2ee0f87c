"""Random allocation in the two papers that use each record once, at a proved epsilon of 1.

With *arrival* sampling the round that uses a record is public; with *allocation* it is secret and
random, which amplifies privacy. `online` runs online learning on RCV1 as in Table 1 of its paper,
with batches and learning rates by a rule over public numbers. `without_replacement` runs SGD
without replacement on MNIST in the setting of Figure 3, fully collaborative, with the paper's
learning rate and with one by the rule of `dpmesh.defaults`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dpmesh.algorithms import OnlineLearning, WithoutReplacement
from dpmesh.algorithms.allocation import BatchSampling
from dpmesh.algorithms.controllers import AlwaysGlobal
from dpmesh.data import rcv1
from dpmesh.keys import Key, Purpose, generator
from dpmesh.problems import LinearProblem
from dpmesh.run import Metrics, simulate
from dpmesh.schedules import Piecewise
from dpmesh_papers._figure import Panel, drawn, lines_of
from dpmesh_papers._scaffold import Experiment, Progress, Row, repeated, with_spread
from dpmesh_papers.benchmark.methods import with_replacement_by_rule, without_replacement_by_rule
from dpmesh_papers.online import PAPER_ACCURACY
from dpmesh_papers.online_runs import NODES as ONLINE_NODES
from dpmesh_papers.online_runs import changing_graph
from dpmesh_papers.without_replacement_setting import (
    BATCH_SIZE,
    DELTA,
    STEP_SIZE,
    dealt_out,
    in_double_precision,
    mnist_setting,
    run,
    with_replacement,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPSILON = 1.0
NEWS_DELTA = 1e-5
DOCUMENTS = 12_160
"""Number of documents of all nodes together."""
NOISE = 0.3
"""Standard deviation of a document's score by the noise of published models; the margin is 1.

Of 0.02, 0.1 and 0.3 it was the best for one node, on training documents that were split off, and
as good as the others for 64 nodes."""
LONGEST = 8.0
"""Largest learning rate, as in `dpmesh.defaults`."""
IMAGE_NODES = 10
"""Number of nodes that share MNIST."""

# Values of the column ``task``.
NEWS = "RCV1, online learning"
IMAGES = "MNIST, without replacement"
_SETTINGS = {
    NEWS: (
        f"{DOCUMENTS:,} documents, delta 1e-5, hinge, network and paper's numbers of Table 1;\n"
        "rule: steps follow from public numbers, and so do batches above 1."
    ),
    IMAGES: (
        f"delta {DELTA:.1e}, logistic one-vs-all, fully collaborative;\n"
        f"steps of {STEP_SIZE:g}, or by the rule of dpmesh.defaults, from public numbers alone;\n"
        "features by a PCA fitted on all private images, which no epsilon covers."
    ),
}
CLAIMED = {
    (NEWS, nodes): accuracy
    for nodes, accuracy in zip(ONLINE_NODES, PAPER_ACCURACY[EPSILON], strict=True)
}
"""Accuracies of the paper's Table 1 at epsilon 1, in percent."""

# Values of the column ``sampling``.
ARRIVAL: BatchSampling = "arrival"
ALLOCATION: BatchSampling = "allocation"
REPLACEMENT = "replaced"

# Values of the column ``step``.
RULE = "rule"
PAPER = "paper"


class Outcome(NamedTuple):
    """A private run.

    Attributes
    ----------
    accuracy
        Mean test accuracy of the released models, a share.
    noise_to_sensitivity
        Standard deviation of the noise over the sensitivity of a release.
    """

    accuracy: float
    noise_to_sensitivity: float


def online(folder: Path, *, seeds: int = 5, progress: Progress = print) -> list[Path]:
    """Run online learning on RCV1: the round that uses a document is public, or secret.

    All runs have a proved epsilon of 1.
    """
    experiment = Experiment(folder, "online-allocated", progress)
    cells = [
        {"task": NEWS, "nodes": nodes, "batch": batch, "step": RULE, "sampling": sampling}
        for nodes in ONLINE_NODES
        for sampling in (ARRIVAL, ALLOCATION)
        for batch in _batches(sampling, nodes)
    ]
    experiment.measure(cells, lambda cell: _measured(_online, cell, seeds), _in_words)
    return experiment.write(as_text, _figure)


def _batches(sampling: BatchSampling, nodes: int) -> list[int]:
    """Return the batch of the longest path if it is above 1; for most nodes also batches of 1."""
    batches = []
    longest = longest_path_batch(sampling, nodes)
    if longest > 1:
        batches.append(longest)
    if sampling == ALLOCATION and nodes == max(ONLINE_NODES):
        batches.append(1)
    return batches


def without_replacement(
    folder: Path, *, seeds: int = 3, records: int | None = None, progress: Progress = print
) -> list[Path]:
    """Run SGD without replacement on MNIST, fully collaborative, with public or secret rounds.

    SGD with replacement is run for comparison. Nodes share the first `records` images; None for
    all.
    """
    experiment = Experiment(folder, "without-replacement-allocated", progress)
    cells = [
        {"task": IMAGES, "batch": BATCH_SIZE, "step": step, "sampling": sampling}
        for step in (PAPER, RULE)
        for sampling in (ARRIVAL, ALLOCATION, REPLACEMENT)
    ]
    images = partial(_images, images=records)
    experiment.measure(cells, lambda cell: _measured(images, cell, seeds), _in_words)
    return experiment.write(as_text, _figure)


def _measured(run: Callable[[Row, Key], Outcome], cell: Row, seeds: int) -> Row:
    """Return ``noise_to_sensitivity``, and mean accuracy (%) with its interval over seeds."""
    outcomes = [run(cell, Key.seeded(seed)) for seed in range(seeds)]
    noise = {"noise_to_sensitivity": outcomes[0].noise_to_sensitivity}
    return noise | repeated([100 * outcome.accuracy for outcome in outcomes])


def _online(cell: Row, key: Key) -> Outcome:
    """Run online learning on RCV1 once."""
    train, test = _news("train"), _news("test")
    nodes = cell["nodes"]
    split_generator = generator(key, Purpose.SPLIT)
    parts = split_generator.permutation(train.records)[:DOCUMENTS].reshape(nodes, -1)
    problem = LinearProblem(train, tuple(parts), "hinge", test=test)
    learning = online_by_rule(cell["sampling"], nodes, cell["batch"]).algorithm
    run = simulate(
        learning,
        problem,
        changing_graph(nodes),
        rounds=learning.most_rounds(problem),
        key=key,
        metrics=Metrics([], progress=False),
    )
    accuracy = float(problem.accuracy(run.released).mean())
    return Outcome(accuracy, learning.mechanism.noise_to_sensitivity)


def longest_path_batch(
    sampling: BatchSampling, nodes: int, *, epsilon: float = EPSILON, documents: int = DOCUMENTS
) -> int:
    """Return the batch size with the largest sum of learning rates, for 2 to 200 rounds.

    The parameters are those of `online_by_rule`.
    """
    documents_of_node = documents // nodes
    numbers_of_rounds = np.geomspace(2, min(documents_of_node, 200), 30)
    sizes = {documents_of_node // int(rounds) for rounds in numbers_of_rounds}

    def path_of(batch: int) -> float:
        return online_by_rule(sampling, nodes, batch, epsilon=epsilon, documents=documents).path

    return max(sorted(sizes), key=path_of)


class RatedLearning(NamedTuple):
    """Online learning with data-independent learning rates.

    Attributes
    ----------
    algorithm
        The algorithm.
    path
        Sum of its learning rates.
    """

    algorithm: OnlineLearning
    path: float


@cache
def online_by_rule(
    sampling: BatchSampling,
    nodes: int,
    batch: int,
    *,
    epsilon: float = EPSILON,
    documents: int = DOCUMENTS,
    noise_in_score: float = NOISE,
) -> RatedLearning:
    """Return online learning with data-independent learning rates.

    The noise of all steps together has the standard deviation `noise_in_score` in a document's
    score. Mixing leaves a share of the variance of a step's noise in the published models. For a
    given noise of all steps, rates in inverse proportion to these shares have the largest sum
    (Cauchy and Schwarz). No rate is above `LONGEST`.

    Parameters
    ----------
    sampling
        Public rounds (`ARRIVAL`), or secret and random ones (`ALLOCATION`).
    nodes
        Number of nodes, on the network of the paper's experiments.
    batch
        Number of documents that a node uses in a round; the expected number with allocation.
    epsilon
        Budget of the run; its delta is `NEWS_DELTA`.
    documents
        Number of documents of all nodes together.
    noise_in_score
        Standard deviation of the noise in a document's score.
    """
    documents_of_node = documents // nodes
    allocated_records = None
    if sampling == ALLOCATION:
        allocated_records = documents_of_node
    plain = OnlineLearning(
        epsilon=epsilon,
        delta=NEWS_DELTA,
        step_size=1.0,
        batch_size=batch,
        radius=1e6,
        projection="none",
        sampling=sampling,
        records=allocated_records,
    )
    noisy_rounds = documents_of_node // batch
    if sampling == ARRIVAL:  # the first round sends a public start without noise
        noisy_rounds -= 1
    weights = 1 / _shares_left(nodes, noisy_rounds)
    noise = plain.noise_std(1, 1) * np.sqrt(weights.sum())
    rates = np.minimum(noise_in_score / noise * weights, LONGEST)
    schedule = Piecewise(starts=tuple(range(1, noisy_rounds + 1)), values=tuple(rates.tolist()))
    return RatedLearning(replace(plain, step_size=schedule), float(rates.sum()))


def _shares_left(nodes: int, rounds: int) -> np.ndarray:
    """Return the shares of the variance of each step's noise in the last models, shape (rounds,).

    The noise of step t is mixed in rounds t to `rounds`; a share is a mean over the nodes.
    """
    links = changing_graph(nodes)
    mixing = np.eye(nodes)
    shares = np.empty(rounds)
    for t in range(rounds, 0, -1):
        mixing = mixing @ links.matrix(t).weights
        shares[t - 1] = (mixing**2).sum() / nodes
    return shares


def _images(cell: Row, key: Key, *, images: int | None) -> Outcome:
    """Run SGD without replacement, or with it, on MNIST once."""
    setting = _mnist(images)
    problem = dealt_out(setting, IMAGE_NODES, "convex", key)
    if cell["sampling"] == REPLACEMENT:
        return _with_replacement(cell, problem, key)
    allocated_records = None
    if cell["sampling"] == ALLOCATION:
        allocated_records = problem.fewest_records
    algorithm = WithoutReplacement(
        epsilon=EPSILON,
        delta=DELTA,
        models=setting.classes,
        batch_size=BATCH_SIZE,
        step_size=STEP_SIZE,
        controller=AlwaysGlobal(),
        decisions="together",
        sampling=cell["sampling"],
        records=allocated_records,
    )
    rounds = problem.rounds(BATCH_SIZE)
    if cell["step"] == RULE:
        algorithm = without_replacement_by_rule(algorithm, problem, rounds, share=1.0)
    finished = simulate(
        algorithm, problem, rounds=rounds, key=key, metrics=Metrics([], progress=False)
    )
    accuracy = float(problem.accuracy(finished.released).mean())
    return Outcome(accuracy, algorithm.mechanism.noise_to_sensitivity)


def _with_replacement(cell: Row, problem: LinearProblem, key: Key) -> Outcome:
    """Run the paper's baseline, SGD with replacement, once."""
    problem = in_double_precision(problem)  # much noise takes its models far out
    baseline = with_replacement(problem, "proved", EPSILON)
    if cell["step"] == RULE:
        baseline = with_replacement_by_rule(baseline, problem)
    finished = run(baseline, problem, key)
    accuracy = float(problem.accuracy(finished.released).mean())
    return Outcome(accuracy, baseline.noise_to_sensitivity or 0.0)


_mnist = cache(mnist_setting)
_news = cache(rcv1)


def _in_words(row: Row) -> str:
    setting = f"{row['task']}, {row['sampling']}, batches of {row['batch']}, {row['step']} step"
    return f"{setting}: {with_spread(row['accuracy'], row['interval'], 1)}"


def as_text(rows: list[Row]) -> str:
    """Return all cells as a table."""
    lines = [
        "Test accuracy (%) of released models at a proved epsilon of 1 (replace one record), with",
        "half of the 95% interval. arrival: it is public which round uses a record. allocation:",
        "each record draws its round secretly, and `batch` is the expected size. replaced: SGD",
        "with replacement, the paper's baseline, 5 visits of a record on average.",
        _SETTINGS[rows[0]["task"]],
        "",
        f"{'':<36}{'batch':>6}{'step':>7}{'sampling':>12}{'noise':>8}{'accuracy':>15}{'seeds':>7}"
        f"{'paper':>8}",
    ]
    for row in rows:
        nodes = row.get("nodes", IMAGE_NODES)
        name = f"{row['task']}, {nodes} node(s)"
        accuracy = with_spread(row["accuracy"], row["interval"], 1)
        claimed = CLAIMED.get((row["task"], nodes), "")
        lines.append(
            f"{name:<36}{row['batch']:>6}{row['step']:>7}{row['sampling']:>12}"
            f"{row['noise_to_sensitivity']:>8.3f}{accuracy:>15}{row['seeds']:>7}"
            f"{claimed:>8}".rstrip()
        )
    return "\n".join(lines)


def _figure(rows: list[Row]) -> Figure:
    """Draw accuracy by nodes and steps; needs the extra ``plots``."""

    def name(row: Row) -> str:
        single = ", batches of 1" if row["batch"] == 1 else ""
        return f"{row.get('nodes', IMAGE_NODES)} node(s){single}\nstep: {row['step']}"

    named = [row | {"name": name(row)} for row in rows]
    lines = lines_of(named, by="sampling", x="name", y="accuracy", spread="interval")
    return drawn([Panel(title=rows[0]["task"], y="accuracy (%) at epsilon 1", lines=lines)])

"""The experiments of the without-replacement paper's section V: data, problems, algorithms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

import dpmesh.accounting as accounting
from dpmesh.accounting.papers import without_replacement as claims
from dpmesh.algorithms import WithoutReplacement, WithReplacement
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.algorithms.controllers import AnyController
from dpmesh.data import Dataset, covertype, iid, mnist, train_test_split
from dpmesh.data.preprocessing import scaled, unit_norm, with_constant
from dpmesh.keys import Key, Purpose, generator
from dpmesh.problems import LinearProblem
from dpmesh.run import Metrics, Run, simulate
from dpmesh.schedules import Schedule
from dpmesh_papers.bounds.without_replacement import theorem_4_steps

Case = Literal["convex", "strongly convex"]
"""The logistic loss (2) without and with its regularizer."""
Noise = Literal["none", "paper", "proved"]
"""None, the paper's formula for each single release, or what keeps a record's budget in all."""

CASES: tuple[Case, ...] = ("convex", "strongly convex")
BATCH_SIZE = 50
"""b."""
STEP_SIZE = 0.1
"""eta of the convex case."""
REGULARIZATION = 1e-4
"""lambda of the strongly convex case; its models stay in a ball of diameter R = 1 / lambda."""
SMALLEST_CHANCE = 0.05
"""The paper's a, which it only says is at least half the exploration rate, 0.1."""
VISITS = 5
"""Times that SGD with replacement uses as many records as a node has."""
DELTA = 1 / 60_000**2
PUBLIC_RECORDS = 1_000


@dataclass(frozen=True, eq=False)
class ExperimentData:
    """A data set as section V prepares it.

    Parameters
    ----------
    train, test
        Records of norm 1, by default a constant feature among them: the paper's networks have
        d + 2 inputs, so its models may have an intercept.
    public
        Part of the publisher's test records, for a controller that needs some; the rest is `test`.
    classes
        Number of classes, of which each has a one-vs-all model.
    """

    train: Dataset
    test: Dataset
    public: Dataset
    classes: int


def mnist_setting(
    records: int | None = None, *, intercept: bool = True, public_components: bool = False
) -> ExperimentData:
    """Return MNIST by its 50 principal components, fitted to all of the training images.

    Nodes hold the first `records` of them, by default all. No epsilon covers components of private
    images. With `public_components` they are fitted to the first 1,000 of the publisher's test
    images instead, which then count as public and are no longer tested on.
    """
    train = mnist("train")
    test = mnist("test")
    fitted = train.features
    if public_components:
        fitted = test.features[:PUBLIC_RECORDS]
        test = test.take(np.arange(PUBLIC_RECORDS, test.records))
    train_components, test_components = principal_components(
        train.features, test.features, count=50, fitted=fitted
    )
    return prepared(
        replace(train, features=train_components),
        replace(test, features=test_components),
        classes=10,
        records=records,
        intercept=intercept,
    )


def principal_components(
    train: npt.NDArray[np.float32],
    test: npt.NDArray[np.float32],
    *,
    count: int,
    fitted: npt.NDArray[np.float32] | None = None,
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Return the first components of pixels in [0, 1], with the same bits on any machine.

    They are fitted to the pixels `fitted`, by default those of `train`, all of the shape (images,
    pixels); what is returned has the shapes (images, count).

    Pixels are whole numbers of 255ths, and axes are rounded to whole numbers of 2^-20: all sums are
    of integers below 2^53, which floating point adds without rounding, in any order.
    """
    source = _grey_levels(train)
    if fitted is not None:
        source = _grey_levels(fitted)
    total = source.sum(axis=0)
    records = len(source)
    covariance = source.T @ source - np.outer(total, total) / records
    axes = np.linalg.eigh(covariance)[1][:, : -count - 1 : -1]
    largest_entries = axes[np.abs(axes).argmax(axis=0), np.arange(count)]
    axes = axes * np.sign(largest_entries)
    axes = np.rint(2.0**20 * axes) / 2.0**20
    centre = (total @ axes) / records

    def components(images: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        projected = (_grey_levels(images) @ axes - centre) / 255
        return np.asarray(projected, dtype=np.float32)

    return components(train), components(test)


def _grey_levels(pixels: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    """Return pixels in [0, 1] as whole numbers from 0 to 255."""
    return np.rint(255 * pixels.astype(np.float64))


def covertype_setting(records: int | None = None, *, intercept: bool = True) -> ExperimentData:
    """Return Covertype with its seven classes, each feature divided by its norm in training."""
    train, test = train_test_split(covertype(7), 0.2, generator(Key.seeded(0), Purpose.SPLIT))
    norms = np.linalg.norm(train.features, axis=0)
    norms[norms == 0] = 1
    return prepared(
        scaled(train, norms), scaled(test, norms), classes=7, records=records, intercept=intercept
    )


def prepared(
    train: Dataset, test: Dataset, *, classes: int, records: int | None, intercept: bool
) -> ExperimentData:
    """Return the first `records` training records and the test records, scaled to norm 1.

    `PUBLIC_RECORDS` of the test records become public instead.
    """
    train = unit_norm(train.take(np.arange(train.records)[:records]))
    test = unit_norm(test)
    if intercept:
        train = unit_norm(with_constant(train))
        test = unit_norm(with_constant(test))
    train = replace(train, features=train.features.astype(np.float32))
    test = replace(test, features=test.features.astype(np.float32))
    share = PUBLIC_RECORDS / test.records
    test, public = train_test_split(test, share, generator(Key.seeded(1), Purpose.SPLIT))
    return ExperimentData(train, test, public, classes)


def shuffled_copies(data: ExperimentData, nodes: int, case: Case, key: Key) -> LinearProblem:
    """Give each node a copy of all training records, in an order of its own, as in section V-B."""
    draw = generator(key, Purpose.SPLIT)
    records = data.train.records
    train = data.train.take(np.concatenate([draw.permutation(records) for _ in range(nodes)]))
    parts = tuple(np.split(np.arange(train.records), nodes))
    return _problem(replace(data, train=train), parts, case)


def dealt_out(data: ExperimentData, nodes: int, case: Case, key: Key) -> LinearProblem:
    """Partition the training records among the nodes, as in section V-A."""
    draw = generator(key, Purpose.SPLIT)
    return _problem(data, iid(data.train, nodes, draw, equal_sizes=True), case)


def _problem(
    data: ExperimentData, parts: tuple[npt.NDArray[np.integer], ...], case: Case
) -> LinearProblem:
    regularization = 0.0
    if case == "strongly convex":
        regularization = REGULARIZATION
    return LinearProblem(
        data.train,
        parts,
        "logistic",
        test=data.test,
        classes=data.classes,
        regularization=regularization,
        feature_norm=1.0,
    )


def in_double_precision(problem: LinearProblem) -> LinearProblem:
    """Return the problem, which has test records, with features in double precision."""
    assert problem.test is not None
    train = replace(problem.train, features=problem.train.features.astype(np.float64))
    test = replace(problem.test, features=problem.test.features.astype(np.float64))
    return replace(problem, train=train, test=test)


def step_sizes(case: Case, problem: LinearProblem) -> float | Schedule:
    """Return the paper's step sizes; strongly convex with mu = 1 + lambda, as the paper has it."""
    if case == "convex":
        return STEP_SIZE
    return theorem_4_steps(problem, SMALLEST_CHANCE, smoothness=1 + REGULARIZATION)


def without_replacement(
    data: ExperimentData,
    problem: LinearProblem,
    case: Case,
    controller: AnyController,
    noise: Noise,
    epsilon: float,
    *,
    copies: int,
) -> WithoutReplacement:
    """Return Algorithm 1, with the paper's noise or the noise that keeps a record's budget.

    `copies` nodes hold the same record.
    """
    radius = None
    if case == "strongly convex":
        radius = 1 / REGULARIZATION / 2
    return WithoutReplacement(
        epsilon=None if noise == "none" else epsilon,
        delta=DELTA,
        models=data.classes,
        batch_size=BATCH_SIZE,
        step_size=step_sizes(case, problem),
        controller=controller,
        calibration="analytic" if noise == "proved" else "paper",
        copies=copies,
        radius=radius,
        public_data=data.public,
    )


def with_replacement(problem: LinearProblem, noise: Noise, epsilon: float) -> WithReplacement:
    """Return the baseline, with a fifth of the budget for each of five visits, or proved noise.

    The paper's noise is for each model as if it were alone, the proved noise for all of them.
    """
    records = int(problem.records[0])
    turns = VISITS * records // BATCH_SIZE
    if noise == "paper":
        z = claims.classical_noise_std(
            target_epsilon=epsilon / VISITS, target_delta=DELTA / VISITS, sensitivity=1.0
        )
    else:
        one_model = accounting.fixed_size_gaussian_noise_to_sensitivity(
            target_epsilon=epsilon,
            target_delta=DELTA,
            sampling_rate=BATCH_SIZE / records,
            neighboring_relation="replace_one",
            count=turns,
        )
        z = float(np.sqrt(problem.models) * one_model)
    return WithReplacement(
        nodes=problem.nodes,
        records=records,
        noise_multiplier=2 * z,
        models=problem.models,
        batch_size=BATCH_SIZE,
        visits=VISITS,
    )


def run(algorithm: AnyAlgorithm, problem: LinearProblem, key: Key) -> Run:
    """Run one pass over the data (or five visits), and measure at the end."""
    rounds = problem.rounds(BATCH_SIZE)
    if isinstance(algorithm, WithReplacement):
        rounds = algorithm.nodes * algorithm.turns_of_a_node
    return simulate(
        algorithm,
        problem,
        rounds=rounds,
        key=key,
        delta=DELTA,
        metrics=Metrics(["accuracy"], every=rounds, progress=False),
    )

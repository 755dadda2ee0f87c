"""Baselines of a private federation: majority class, single nodes, and a centralized model.

These are research figures, computed where all nodes' data are in one process. They are made from
the data without noise (but for `Baselines.alone_private`), and no epsilon covers them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from scipy.sparse import issparse

from dpmesh._arrays import FloatArray
from dpmesh._epsilons import rounded_up
from dpmesh._files import JsonObject
from dpmesh._ragged import Indices, Numbers
from dpmesh._validate import fail, instance, integer
from dpmesh.algorithms.gradients import MOST_RECORDS
from dpmesh.defaults import Sizes, choose
from dpmesh.keys import Key, Purpose, generator
from dpmesh.privacy.report import Report
from dpmesh.problems import LinearProblem
from dpmesh.run.candidates import Matrix, NonPrivate, non_private
from dpmesh.run.channel import run_rounds
from dpmesh.run.failing import carrier_for
from dpmesh.run.measures import Measures
from dpmesh.run.populations import Population, RareClass, owners_by_label
from dpmesh.run.prepare import wide_enough
from dpmesh.run.tasks import BY_LOSS, scores_of_test, task_of_problem, trivial_measures
from dpmesh.run.tasks import measured as measured_model

__all__ = ["Baselines", "alone_private", "beside", "compute", "measured", "population_of"]

Scores = Numbers

_CLASSES = {"logistic": 0.25, "softmax": 0.5, "multilabel": 0.25}
"""Losses of classifiers, and their largest second derivatives."""

LARGEST = 5_000_000
"""Up to so many stored features times outputs, baselines of a run are computed by default."""

SHOWN = 8
"""Nodes that work alone and private beside a run."""

SHOWN_OF_MANY = 2
"""Nodes that work alone and private beside a fit of more records than baselines learn from."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Baselines:
    """Majority-class, single-site and centralized baselines: their scores on the test records.

    All nodes' baselines are scored on the same test records, in one measure.

    Parameters
    ----------
    metric
        Name of the measure: ``"accuracy"`` or ``"R²"``, and in `others` ``"balanced accuracy"`` or
        ``"AUC"``.
    chance
        Score of the majority-class baseline, which always predicts the most frequent class of the
        training records. For a regression, the score of always predicting the mean target of the
        test records.
    alone
        Scores of the single-site baselines: models that each node trains on its own records,
        without privacy, shape (nodes,).
    alone_private
        Scores of private single-site baselines at `epsilon` and `delta`, one per node tried, shape
        (nodes tried,). None if no epsilon was given.
    pooled
        Score of the centralized baseline: one model of all nodes' records, without privacy.
    epsilon, delta
        Budget of each model of `alone_private`; None without such models.
    tested, held_out
        Number of test records, and their fraction of all records; 0 in results saved by an earlier
        version.
    sampled
        True if a baseline without privacy was trained on a stratified sample of its records.
    others
        The same baselines in further measures, by the name of the measure.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> draw = np.random.default_rng(0)
    >>> data = dm.data.breast_cancer()
    >>> train, test = dm.data.train_test_split(dm.data.unit_norm(data), 0.25, draw)
    >>> problem = dm.LinearProblem(train, dm.data.iid(train, 4, draw), "logistic", test=test)
    >>> beside = dm.baselines.compute(problem)
    >>> bool(beside.pooled > beside.chance)
    True
    """

    metric: str
    chance: float
    alone: Scores
    alone_private: Scores | None = None
    pooled: float
    epsilon: float | None = None
    delta: float | None = None
    tested: int = 0
    held_out: float = 0.0
    sampled: bool = False
    others: Mapping[str, Baselines] = field(default_factory=dict)

    @property
    def measures(self) -> dict[str, Baselines]:
        """These baselines and `others`, by the name of the measure."""
        return {self.metric: self, **self.others}

    def beside(self, private: Sequence[Measures], epsilon: float | None, delta: float) -> Baselines:
        """Return the baselines with private single-site scores added.

        Parameters
        ----------
        private
            Scores of each private single-site model, by the name of the measure.
        epsilon, delta
            Budget of each of these models.
        """

        def with_private(baselines: Baselines) -> Baselines:
            scores = np.array([measures[baselines.metric] for measures in private])
            return replace(baselines, alone_private=scores, epsilon=epsilon, delta=delta)

        further = {name: with_private(baselines) for name, baselines in self.others.items()}
        return replace(with_private(self), others=further)

    def as_dict(self) -> JsonObject:
        """Return the baselines in types of JSON."""
        content = dict(vars(self))
        content["alone"] = self.alone.tolist()
        if self.alone_private is not None:
            content["alone_private"] = self.alone_private.tolist()
        content["others"] = {name: baselines.as_dict() for name, baselines in self.others.items()}
        return content

    @classmethod
    def from_dict(cls, saved: JsonObject) -> Baselines:
        """Return the baselines that `as_dict` gave."""
        content = dict(saved)
        content["alone"] = np.array(saved["alone"])
        if saved["alone_private"] is not None:
            content["alone_private"] = np.array(saved["alone_private"])
        further = saved.get("others", {})
        content["others"] = {name: cls.from_dict(baselines) for name, baselines in further.items()}
        return cls(**content)


class _Known(NamedTuple):
    """Models without privacy, as scores of the test records, and the baselines that follow."""

    models: NonPrivate
    baselines: Baselines


_known: WeakKeyDictionary[LinearProblem, _Known] = WeakKeyDictionary()
"""They are the same for all runs on a problem."""


def compute(
    problem: LinearProblem,
    *,
    epsilon: float | None = None,
    delta: float = 1e-5,
    key: Key | None = None,
    most: int = 32,
    columns: tuple[Matrix, Matrix] | None = None,
    quick: bool = False,
) -> Baselines:
    """Train the majority-class, single-site and centralized baselines, and score them.

    The scores are for comparison: no epsilon covers them. All but those of private single-site
    models come from models without privacy.

    Parameters
    ----------
    problem
        A linear problem with test records. The models without privacy are those of scikit-learn in
        `dpmesh.run.candidates`, chosen by cross-validation within the training records of the node,
        or of all nodes.
    epsilon, delta
        Budget of each private single-site model, trained with the hyperparameters of
        `dpmesh.defaults.choose` for one node. With an epsilon of None, no private models are
        trained. Records should have L2 norms of about 1.
    key
        Seeded key of the noise of private single-site models, which makes them reproducible; by
        default a new key from the operating system for each model. Other keys are refused.
    most
        Largest number of nodes, evenly spaced, for which private single-site models are trained.
    columns
        Encoded columns of training and test records, a matrix each of shape (records, columns),
        for models without privacy, if the problem has features made from them (such as
        splines). None recovers the columns where the features are the columns, and uses the
        features otherwise.
    quick
        True to choose models without privacy by one penalty and one fold alone.

    Returns
    -------
    The scores, as `Baselines`.

    Raises
    ------
    ValueError
        If the problem has no test records, or an argument is invalid.
    ModuleNotFoundError
        If scikit-learn (extra ``data``) is not installed.
    """
    instance("problem", problem, "a LinearProblem", LinearProblem)
    _require_test(problem)
    if problem not in _known:
        models = non_private(problem, columns, quick=quick)
        _known[problem] = _Known(models=models, baselines=_without_privacy(problem, models))
    without_privacy = _known[problem].baselines
    if epsilon is None:
        return without_privacy
    private = alone_private_measures(problem, epsilon, delta, key=key, most=most)
    return without_privacy.beside(private, epsilon, delta)


def beside(problem: object, privacy: Report) -> Baselines | None:
    """Return the baselines of a run; None if they cannot be computed in a few seconds.

    Nodes alone and private have the epsilon and delta of the run's report, where that protects
    records, delta is positive and records have norms of at most 1. Their noise has a fixed seed:
    nothing of them is released.
    """
    if not isinstance(problem, LinearProblem) or problem.test is None:
        return None
    features = problem.train.features
    if features.size * max(problem.classes or 1, 1) > LARGEST:
        return None
    epsilon = float(rounded_up(privacy.epsilon))
    if find_spec("sklearn") is None:
        return None
    protects_records = privacy.unit == "record" and privacy.is_finite and privacy.delta > 0
    if not protects_records or epsilon <= 0 or problem.loss not in _CLASSES:
        return compute(problem)
    if _longest(problem) > 1.001:
        return compute(problem)
    key = Key.seeded(0)
    return compute(problem, epsilon=epsilon, delta=privacy.delta, key=key, most=SHOWN)


def _without_privacy(problem: LinearProblem, models: NonPrivate) -> Baselines:
    """Return the baselines whose models gave these scores of the test records."""
    assert problem.test is not None
    assert problem.outline is not None
    task = task_of_problem(problem)
    labels = problem.test.labels
    tested = len(labels)
    trivial = trivial_measures(problem)
    alone = [task.measures(problem.outline, scores, labels) for scores in models.alone]
    pooled = task.measures(problem.outline, models.pooled, labels)
    held_out = tested / (tested + int(problem.records.sum()))

    def baselines_in(metric: str) -> Baselines:
        return Baselines(
            metric=metric,
            chance=trivial[metric],
            alone=np.array([measures[metric] for measures in alone]),
            pooled=pooled[metric],
            tested=tested,
            held_out=held_out,
            sampled=models.sampled,
        )

    main_metric, *further_metrics = pooled
    further = {metric: baselines_in(metric) for metric in further_metrics}
    return replace(baselines_in(main_metric), others=further)


def population_of(problem: LinearProblem, params: FloatArray) -> Population:
    """Compare released models with each node on test records like the node's own.

    Test records are dealt to nodes by their labels: see `dpmesh.run.populations.owners_by_label`.

    Parameters
    ----------
    problem
        A problem whose baselines were computed.
    params
        Released models, shape (nodes, dim), or (1, dim) where all nodes share one.
    """
    assert problem.test is not None
    starts, records = problem.everything
    owners = owners_by_label(
        problem.train.labels[records],
        np.repeat(np.arange(problem.nodes), np.diff(starts)),
        problem.test.labels,
        sites=problem.nodes,
        by_value=task_of_problem(problem).name != "classes",
    )
    models = [np.asarray(scores_of_test(problem, row), np.float64) for row in params]
    if len(models) == 1:
        return population(problem, owners, models[0])
    return population(problem, owners, models)


def population(
    problem: LinearProblem, owners: Indices, federation: Scores | Sequence[Scores]
) -> Population:
    """Compare the federation with each node on the node's own test records, and on a rare class.

    Parameters
    ----------
    problem
        A problem whose baselines were computed.
    owners
        Node of each test record, shape (test records,).
    federation
        Scores of the federation's model, shape (test records, outputs); or of one of each node.
    """
    assert problem.test is not None
    assert problem.outline is not None
    outline = problem.outline
    labels = problem.test.labels
    task = task_of_problem(problem)
    models = _known[problem].models
    if isinstance(federation, np.ndarray):
        released: Sequence[Scores] = [federation] * problem.nodes
    else:
        released = federation
    records_of_node = [np.flatnonzero(owners == node) for node in range(problem.nodes)]

    def scores_by_node(models_of_nodes: Iterable[Scores]) -> Scores:
        """Return the main measure of each node's model on its own test records; 0 without any."""
        values = []
        for scores, records in zip(models_of_nodes, records_of_node, strict=True):
            if len(records):
                measures = task.measures(outline, scores[records], labels[records])
                values.append(next(iter(measures.values())))
            else:
                values.append(0.0)
        return np.array(values)

    rare = None
    if task.name == "classes":
        rare = _rarest_class(problem, models, released)
    return Population(
        federation=scores_by_node(released),
        alone=scores_by_node(models.alone),
        tested=np.array([len(records) for records in records_of_node]),
        rare=rare,
    )


def _rarest_class(
    problem: LinearProblem, models: NonPrivate, released: Sequence[Scores]
) -> RareClass | None:
    """Return recall of the class with the fewest training records."""
    assert problem.test is not None
    assert problem.outline is not None
    if problem.classes is None or problem.outline.classes is None:
        return None
    _, trained_records = problem.everything
    trained = problem.train.labels[trained_records]
    rarest = int(np.bincount(trained, minlength=problem.classes).argmin())
    records = problem.test.labels == rarest
    if not records.any():
        return None

    def recall(scores: Scores) -> float:
        return float((scores[records].argmax(axis=1) == rarest).mean())

    return RareClass(
        name=str(problem.outline.classes[rarest]),
        federation=float(np.mean([recall(scores) for scores in released])),
        alone=float(np.mean([recall(scores) for scores in models.alone])),
        tested=int(records.sum()),
    )


def alone_private(
    problem: LinearProblem,
    epsilon: float,
    delta: float = 1e-5,
    *,
    key: Key | None = None,
    most: int = 32,
) -> Scores:
    """Return the test score of a private single-site model of each node, shape (nodes tried,).

    The parameters are those of `compute`; `most` limits the nodes tried.

    Raises
    ------
    ValueError
        As `compute`.
    """
    measures_of_nodes = alone_private_measures(problem, epsilon, delta, key=key, most=most)
    return np.array([next(iter(measures.values())) for measures in measures_of_nodes])


def alone_private_measures(
    problem: LinearProblem,
    epsilon: float,
    delta: float = 1e-5,
    *,
    key: Key | None = None,
    most: int = 32,
) -> list[Measures]:
    """Return all test scores of a private single-site model of each node, by measure.

    The parameters are those of `compute`; `most` limits the nodes tried.

    Raises
    ------
    ValueError
        As `compute`.
    """
    if key is not None and not key.is_seeded:
        fail("key", "a seeded key, or None: a key serves one run", key)
    count = min(problem.nodes, integer("most", most, at_least=1))
    nodes = np.linspace(0, problem.nodes - 1, count).round().astype(int)
    return [_private(problem, int(node), epsilon, delta, key) for node in nodes]


def measured(problem: LinearProblem, params: FloatArray) -> Measures:
    """Return scores on the test records, averaged over models, by the name of the measure.

    A classification has accuracy, balanced accuracy and, for two classes, the area under the ROC
    curve (AUC); a regression has R².

    Parameters
    ----------
    problem
        A linear problem with test records.
    params
        Parameters of each model, shape (models, dim).

    Raises
    ------
    ValueError
        If the problem has no test records.
    """
    _require_test(problem)
    measures_of_models = [measured_model(problem, row) for row in params]
    means = {}
    for metric in measures_of_models[0]:
        values = [measures[metric] for measures in measures_of_models]
        means[metric] = float(np.mean(values))
    return means


def _require_test(problem: LinearProblem) -> None:
    if problem.test is None:
        fail("test", "records to compare models on", None)


def _longest(problem: LinearProblem) -> float:
    """Return the largest norm of a training record."""
    features = problem.train.features
    squares = features.power(2) if hasattr(features, "power") else np.square(features)
    return float(np.sqrt(squares.sum(axis=1).max()))


def _private(
    problem: LinearProblem, node: int, epsilon: float, delta: float, key: Key | None
) -> Measures:
    """Return the measures of a node that trains alone and publishes a private model."""
    alone = _node_alone(problem, node)
    if key is None:
        key = Key.generate()
    else:  # nodes that work apart must not share noise
        seed = int(generator(key, Purpose.INIT, node=node).integers(2**62))
        key = Key.seeded(seed)
    rule = BY_LOSS[problem.loss].rule
    choice = choose(Sizes.of(alone), epsilon=epsilon, delta=delta, task=rule)
    algorithm = choice.algorithm
    alone = wide_enough(algorithm, alone, choice.rounds)
    carrier = carrier_for(algorithm, alone, choice.topology, None, key)
    *_, last = run_rounds(algorithm, alone, carrier, rounds=choice.rounds, key=key)
    return measured(problem, algorithm.published(last.state, last.received))


def _node_alone(problem: LinearProblem, node: int) -> LinearProblem:
    """Return the problem of one node, with the features of its records alone."""
    train = problem.train.take(problem.partition[node])
    if train.records > MOST_RECORDS and not issparse(train.features):
        train = replace(train, features=train.features.astype(np.float64))
    everything = (np.arange(train.records),)
    alone = replace(problem, train=train, partition=everything, test=None, memory=None)
    return alone.as_node(int(problem.members[node]), problem.all_records)

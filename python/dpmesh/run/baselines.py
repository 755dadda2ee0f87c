"""Baselines of a private federation: majority class, single sites, and a centralized model.

`compute` trains them; `Run.baselines` and `dpmesh.sklearn.evaluate` call it. A *site* is a node of
the problem.

These are research figures, computed where all nodes' data are in one process. They are made from
the data without noise (but for `Baselines.private_single_sites`), and no epsilon covers them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from scipy.sparse import issparse

from dpmesh._arrays import FloatArray
from dpmesh._epsilons import rounded_up
from dpmesh._files import JsonObject
from dpmesh._ragged import Indices, Numbers
from dpmesh._rounded import RoundedFeatures
from dpmesh._validate import fail, instance, integer
from dpmesh.algorithms.gradients import MOST_RECORDS
from dpmesh.data import Dataset
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

__all__ = [
    "Baselines",
    "baselines_of_run",
    "compute",
    "measured",
    "population_of",
    "private_single_sites",
]

Scores = Numbers

_CLASSES = {"logistic": 0.25, "softmax": 0.5, "multilabel": 0.25}
"""Losses of classifiers, and their largest second derivatives."""

_SAVED_KEYS = {
    "majority_class": "chance",
    "single_sites": "alone",
    "private_single_sites": "alone_private",
    "centralized": "pooled",
}
"""Keys of saved files, where they differ from the names of the attributes."""

LARGEST = 5_000_000
"""Largest number of stored feature values times outputs for which a run has baselines."""

_NORM_TOLERANCE = 1e-3
"""Rounding error that is allowed in records of L2 norm 1, for which defaults choose step sizes."""

SHOWN = 8
"""Largest number of private single-site models that are trained for comparison with a run."""

SHOWN_OF_MANY = 2
"""The same number for a fit of more than `MOST_RECORDS` records, whose training takes longer."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Baselines:
    """Majority-class, single-site and centralized baselines: their scores on the test records.

    All nodes' baselines are scored on the same test records, in one measure.

    Parameters
    ----------
    metric
        Name of the measure: ``"accuracy"``, ``"balanced accuracy"``, ``"AUC"`` or ``"R²"``. The
        main measure is accuracy, balanced accuracy if public shares of the classes are stated, or
        R² for a regression.
    majority_class
        Score of the majority-class baseline, which always predicts the most frequent class of the
        training records. For a regression, the score of always predicting the mean target of the
        test records.
    single_sites
        Scores of the single-site baselines: models that each node trains on its own records,
        without privacy, shape (nodes,).
    private_single_sites
        Scores of private single-site baselines at `epsilon` and `delta`, one per node tried, shape
        (nodes tried,). None if no epsilon was given.
    centralized
        Score of the centralized baseline: one model of all nodes' records, without privacy.
    epsilon, delta
        Budget of each model of `private_single_sites`; None without such models.
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
    >>> baselines = dm.baselines.compute(problem)
    >>> bool(baselines.centralized > baselines.majority_class)
    True
    """

    metric: str
    majority_class: float
    single_sites: Scores
    private_single_sites: Scores | None = None
    centralized: float
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

    def with_private_single_sites(
        self, private: Sequence[Measures], epsilon: float | None, delta: float
    ) -> Baselines:
        """Return the baselines with private single-site scores added.

        Parameters
        ----------
        private
            Scores of each private single-site model, by the name of the measure.
        epsilon, delta
            Budget of each of these models.
        """

        def with_private_scores(baselines: Baselines) -> Baselines:
            """Return the baselines in one measure with the private scores in this measure."""
            scores = np.array([measures[baselines.metric] for measures in private])
            return replace(baselines, private_single_sites=scores, epsilon=epsilon, delta=delta)

        further = {name: with_private_scores(baselines) for name, baselines in self.others.items()}
        return replace(with_private_scores(self), others=further)

    def as_dict(self) -> JsonObject:
        """Return the baselines in types of JSON, under the keys of saved files."""
        content = {_SAVED_KEYS.get(name, name): value for name, value in vars(self).items()}
        content["alone"] = self.single_sites.tolist()
        if self.private_single_sites is not None:
            content["alone_private"] = self.private_single_sites.tolist()
        content["others"] = {name: baselines.as_dict() for name, baselines in self.others.items()}
        return content

    @classmethod
    def from_dict(cls, saved: JsonObject) -> Baselines:
        """Return the baselines of which `as_dict` returned this dictionary."""
        field_of_key = {key: name for name, key in _SAVED_KEYS.items()}
        content = {field_of_key.get(key, key): value for key, value in saved.items()}
        content["single_sites"] = np.array(saved["alone"])
        if saved["alone_private"] is not None:
            content["private_single_sites"] = np.array(saved["alone_private"])
        further = saved.get("others", {})
        content["others"] = {name: cls.from_dict(baselines) for name, baselines in further.items()}
        return cls(**content)


class _Known(NamedTuple):
    """Scores of non-private models on the test records, and the baselines computed from them."""

    models: NonPrivate
    baselines: Baselines


_known: WeakKeyDictionary[LinearProblem, _Known] = WeakKeyDictionary()
"""Non-private baselines already computed, by problem: all runs on a problem share them."""


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
        True to choose models without privacy by one penalty and one fold alone. These models are
        trained once for each problem; later calls ignore `columns` and `quick`.

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
    private = private_single_site_measures(problem, epsilon, delta, key=key, most=most)
    return without_privacy.with_private_single_sites(private, epsilon, delta)


def baselines_of_run(problem: object, privacy: Report) -> Baselines | None:
    """Compute the baselines of a run; return None if that would take more than a few seconds.

    Private single-site models have the epsilon and delta of the run's report. They are trained
    only if the report's unit is the record, its epsilon is finite, its delta is positive, the
    problem is a classification, and all records have norms of at most 1. Their noise has a fixed
    seed, so their scores are NOT private.

    Parameters
    ----------
    problem
        Problem of the run. None is returned if the problem is not linear, has no test records, or
        has more than `LARGEST` values; or if scikit-learn is missing.
    privacy
        Privacy report of the run.
    """
    if not isinstance(problem, LinearProblem) or problem.test is None:
        return None
    features = problem.train.features
    if features.size * max(problem.classes or 1, 1) > LARGEST:
        return None
    if find_spec("sklearn") is None:
        return None
    epsilon = float(rounded_up(privacy.epsilon))
    protects_records = privacy.unit == "record" and privacy.is_finite and privacy.delta > 0
    if not protects_records or epsilon <= 0 or problem.loss not in _CLASSES:
        return compute(problem)
    if _largest_norm(problem) > 1 + _NORM_TOLERANCE:
        return compute(problem)
    key = Key.seeded(0)
    return compute(problem, epsilon=epsilon, delta=privacy.delta, key=key, most=SHOWN)


def _without_privacy(problem: LinearProblem, models: NonPrivate) -> Baselines:
    """Return the baselines of non-private models, from their scores on the test records."""
    assert problem.test is not None
    assert problem.outline is not None
    task = task_of_problem(problem)
    labels = problem.test.labels
    tested = len(labels)
    trivial = trivial_measures(problem)
    single_sites = [
        task.measures(problem.outline, scores, labels) for scores in models.single_sites
    ]
    centralized = task.measures(problem.outline, models.centralized, labels)
    held_out = tested / (tested + int(problem.records.sum()))

    def baselines_in(metric: str) -> Baselines:
        return Baselines(
            metric=metric,
            majority_class=trivial[metric],
            single_sites=np.array([measures[metric] for measures in single_sites]),
            centralized=centralized[metric],
            tested=tested,
            held_out=held_out,
            sampled=models.sampled,
        )

    main_metric, *further_metrics = centralized
    further = {metric: baselines_in(metric) for metric in further_metrics}
    return replace(baselines_in(main_metric), others=further)


def population_of(problem: LinearProblem, params: FloatArray) -> Population:
    """Compare released models with single-site models, on test records like those of each node.

    Each test record is assigned to a node by its label, so that labels are distributed as in the
    node's training records: see `dpmesh.run.populations.owners_by_label`.

    Parameters
    ----------
    problem
        A problem whose baselines were computed.
    params
        Released models, shape (nodes, dim), or (1, dim) where all nodes share one.
    """
    assert problem.test is not None
    starts, records = problem.full_batches
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
    """Compare the federation with single-site models, on each node's test records and a rare class.

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
        single_sites=scores_by_node(models.single_sites),
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
    _, trained_records = problem.full_batches
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
        single_site=float(np.mean([recall(scores) for scores in models.single_sites])),
        tested=int(records.sum()),
    )


def private_single_sites(
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
    measures_of_nodes = private_single_site_measures(problem, epsilon, delta, key=key, most=most)
    return np.array([next(iter(measures.values())) for measures in measures_of_nodes])


def private_single_site_measures(
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


def _largest_norm(problem: LinearProblem) -> float:
    """Return the largest L2 norm of a training record."""
    features = problem.train.features
    squares = features.power(2) if hasattr(features, "power") else np.square(features)
    return float(np.sqrt(squares.sum(axis=1).max()))


def _private(
    problem: LinearProblem, node: int, epsilon: float, delta: float, key: Key | None
) -> Measures:
    """Return the test scores of a private model that one node trains on its own records."""
    local_problem = _problem_of_node(problem, node)
    if key is None:
        key = Key.generate()
    else:  # models of different nodes must not share noise
        seed = int(generator(key, Purpose.INIT, node=node).integers(2**62))
        key = Key.seeded(seed)
    task = BY_LOSS[problem.loss].defaults_task
    choice = choose(Sizes.of(local_problem), epsilon=epsilon, delta=delta, task=task)
    algorithm = choice.algorithm
    local_problem = wide_enough(algorithm, local_problem, choice.rounds)
    carrier = carrier_for(algorithm, local_problem, choice.topology, None, key)
    *_, last = run_rounds(algorithm, local_problem, carrier, rounds=choice.rounds, key=key)
    return measured(problem, algorithm.published(last.state, last.received))


def _problem_of_node(problem: LinearProblem, node: int) -> LinearProblem:
    """Return a problem whose only node holds the records of `node`, without test records."""
    members = problem.partition[node]
    features: Any = problem.train.features
    memory = None
    if isinstance(features, RoundedFeatures):
        copied = features.take(members)
        train = Dataset(copied, problem.train.labels[members], problem.train.name)
        if copied.has_room:
            memory = copied  # centered in place: no other problem has this copy
    else:
        train = problem.train.take(members)
    features = train.features
    is_single = not issparse(features) and features.dtype == np.float32
    if is_single and train.records > MOST_RECORDS:
        train = replace(train, features=np.asarray(features, np.float64))
    partition = (np.arange(train.records),)
    local_problem = replace(problem, train=train, partition=partition, test=None, memory=memory)
    return local_problem.as_node(int(problem.members[node]), problem.all_records)

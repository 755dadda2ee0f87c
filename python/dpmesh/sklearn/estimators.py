"""A classifier and a regression, learned by sites that keep their records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from dpmesh._networks import MakeNetwork, named
from dpmesh._validate import fail
from dpmesh.defaults import Method
from dpmesh.defaults.rule import COMPLETE, Noise, Sizes, calibration_pays
from dpmesh.kernels.linear_model import as_sets
from dpmesh.run.tasks import TASKS, LearningTask
from dpmesh.sklearn.base import Encoded, MakeAlgorithm, PrivateEstimator, RandomState, warn
from dpmesh.sklearn.report import totals_in_words
from dpmesh.tables import Category, Number, Ranges
from dpmesh.tables.calibration import Calibration
from dpmesh.tables.cells import Cells, name_of
from dpmesh.tables.columns import clipped
from dpmesh.tables.labels import read_labels
from dpmesh.tables.ranges import as_label
from dpmesh.tables.table import ColumnLike, TableLike, array_of, cells_of
from dpmesh.topology import Topology


class PrivateClassifier(ClassifierMixin, PrivateEstimator):  # type: ignore[misc]
    """A private classifier (softmax) of records at many sites, linear or by a network.

    With y of shape (records, labels), of 0 and 1, a record may have several labels, at most 63.
    There is a logistic model for each. A record's gradients in all of them are clipped together, so
    that one record costs what it costs with one class.

    Parameters
    ----------
    epsilon, delta
        Privacy budget of a whole `fit`, for replacing one record of one site. `report_` has the
        threat model. An epsilon of None learns without noise, for comparison.
    ranges
        Public ranges of the columns, see `dpmesh.tables.Columns.of`. They must not be computed from
        the data. None stands for [-1, 1] in each column.
    classes
        All classes there may be, from public knowledge. None takes those of `class_shares`, or else
        those of `y`, which then count as public. With labels: their names.
    class_shares
        The share of all records that each class has, such as ``{"no": 0.97, "yes": 0.03}``, from
        public knowledge. A record's weight is then in inverse proportion to the share of its class,
        and verdicts are about balanced accuracy. None gives all records the same weight.
    features
        What the model makes of each record's columns: ``"columns"``, ``"hats"``, ``"cosines"``,
        ``"scattering"`` for images, or a union such as ``"hats+cosines"``; see
        `dpmesh.tables.features`. None decides by `dpmesh.defaults.rule.features_for`.
    fit_intercept
        Whether the model has an intercept.
    network
        None for a linear model. Or a function without arguments, or its name "module:function",
        that makes a network in JAX: it returns a module with init(key, x) and apply(params, x), as
        of Flax, or functions start(key) and scores(params, x). A record x is a vector of the
        encoded columns; its scores are one number for each class.
    algorithm
        ``"secure"``: secure aggregation of gradients; the server learns only noisy sums.
        ``"gossip"``: sites send each other noisy models, and all messages may be public. None
        chooses ``"secure"`` from 3 sites on (with 1 colluding), else ``"gossip"``: see
        `dpmesh.defaults.choose`. Or a function from a noise multiplier to an algorithm of dpmesh;
        its noise is calibrated to `epsilon`.
    noise
        ``"BetweenPartners"``: gossip with pairwise-cancelling noise. Partners share noise that
        cancels in the mean over all sites. The adversary of `epsilon` sees all messages and
        colludes with up to `colluding` sites, but knows no shared noise of other sites. None for
        independent noise of each site.
    colluding
        With ``"secure"``, or `noise`: sites that may collude with the server, or with each other.
    rounds
        None: the rule chooses them. An `algorithm` that is a function needs a number.
    topology
        The network of an algorithm that gossips; by default a complete or random regular graph.
        With `algorithm` None it stands for ``"gossip"``, as does a `noise`.
    random_state
        None draws noise from the operating system. A seed makes the fit reproducible and not
        private, which `report_` states.

    Attributes
    ----------
    classes_
        The classes, shape (classes,), sorted; or the labels in their order.
    model_
        The released `dpmesh.tables.models.Model`.
    report_
        A `FitReport`: the choices of the fit, its epsilon and its threat model.
    ledger_
        What was released; ``dm.privacy.total_cost`` of several is their joint cost.
    sites_
        The distinct `groups`.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> data = dm.data.digits()
    >>> X, sites = data.features, np.arange(data.records) % 4
    >>> ranges = {name: [0, 1] for name in range(64)}
    >>> model = dm.sklearn.PrivateClassifier(2.0, classes=range(10), ranges=ranges)
    >>> fitted = model.fit(X, data.labels, groups=sites)
    >>> fitted.predict(X[:3]).shape
    (3,)
    """

    classes: Sequence[Any] | None
    class_shares: Mapping[Any, float] | None
    network: str | MakeNetwork | None
    classes_: Cells

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def __init__(
        self,
        epsilon: float | None = 1.0,
        *,
        delta: float = 1e-5,
        classes: Sequence[Any] | None = None,
        class_shares: Mapping[Any, float] | None = None,
        ranges: Ranges = None,
        features: str | None = None,
        fit_intercept: bool = True,
        network: str | MakeNetwork | None = None,
        algorithm: Method | MakeAlgorithm | None = None,
        noise: Noise | None = None,
        colluding: int = 1,
        rounds: int | None = None,
        topology: Topology | None = None,
        random_state: RandomState = None,
    ) -> None:
        self._keep_parameters(locals())

    @property
    def _learning_task(self) -> LearningTask:
        """Classes; what is learned from y of several columns is told by the fitted model alone."""
        return TASKS["classes"]

    def _encoded_problem(self, X: TableLike, y: ColumnLike, groups: ColumnLike) -> Encoded:
        """Return the problem that `fit` solves. Nothing is released."""
        labels = self._checked_targets(X, y)
        public = ""
        if labels.ndim == 2:
            return self._of_labels(X, labels, getattr(y, "columns", None), groups)
        classes: Any = self.class_shares if self.classes is None else self.classes
        if isinstance(classes, str):
            fail("classes", "a list of all classes, such as ['no', 'yes']", classes)
        if classes is None:
            if labels.dtype != object:
                check_classification_targets(labels)
            public = "which classes there are"
            values = labels.tolist() if labels.dtype == object else np.unique(labels).tolist()
            classes = {_class_of(label): label for label in reversed(values)}.values()
        self.classes_ = _sorted(Category(categories=tuple(classes)).categories)
        if len(self.classes_) < 2:
            fail("y", "at least 2 classes", f"1 class: {self.classes_.tolist()[0]!r}")
        listed = Category(categories=tuple(self.classes_.tolist()), shares=self._shares())
        codes = read_labels("y", listed, labels)
        network = None if self.network is None else named(self.network)
        return self._encode(
            X, groups, codes, public, classes=self.classes_, network=network, shares=listed.shares
        )

    def _of_labels(
        self, X: TableLike, labels: npt.NDArray[np.int64], names: Any, groups: ColumnLike
    ) -> Encoded:
        """Return the problem of records that may have several labels."""
        if self.class_shares is not None or self.network is not None:
            fail("y", "one class of each record, with class_shares or a network", "labels")
        label_names = self.classes if self.classes is not None else names
        self.classes_ = (
            np.arange(labels.shape[1]) if label_names is None else np.asarray([*label_names])
        )
        if len({*self.classes_.tolist()}) != labels.shape[1] or self.classes_.ndim != 1:
            fail("classes", f"a name of each of {labels.shape[1]} labels", self.classes_.tolist())
        return self._encode(X, groups, as_sets(labels), classes=self.classes_, several=True)

    def _shares(self) -> tuple[float, ...] | None:
        """Return the public shares in the order of the classes."""
        shares = self.class_shares
        if shares is None:
            return None
        if not isinstance(shares, Mapping):
            fail("class_shares", "a share of each class, such as {'no': 0.97, 'yes': 0.03}", shares)
        listed = Category(categories=tuple(self.classes_.tolist()))
        places = listed.codes(cells_of([*shares])).tolist()
        if sorted(places) != [*range(listed.width)]:
            fail("class_shares", f"a share of each of {self.classes_.tolist()}", [*shares])
        share_at = dict(zip(places, shares.values(), strict=True))
        return tuple(share_at[place] for place in range(listed.width))

    def score(self, X: TableLike, y: ColumnLike, sample_weight: ColumnLike = None) -> float:
        """Return the accuracy, of labels the mean over all; they are compared as in `fit`."""
        return float(np.average(self._correct(X, y), weights=sample_weight))

    def _correct(self, X: TableLike, y: ColumnLike) -> Cells:
        """Return whether each record's class is predicted, or which share of its labels."""
        predicted = self.predict(X)
        if self.model_.several:
            return np.asarray((predicted == self._checked_targets(X, y)).mean(axis=1))
        codes = self.model_.listed.codes
        return np.asarray(codes(np.asarray(y)) == codes(predicted))

    def predict_proba(self, X: TableLike) -> npt.NDArray[np.float64]:
        """Return the probability of each class, shape (records, classes)."""
        check_is_fitted(self)
        return self.model_.predict_proba(self._table(X, reset=False))


def _class_of(label: object) -> str | None:
    """Return the class that a label is, where none are listed: 1, True and "1" are one."""
    return name_of(int(label) if isinstance(label, (bool, np.bool_)) else label)


def _sorted(classes: Sequence[Any]) -> Cells:
    """Return classes in order as one array, whole numbers exactly."""
    values = array_of(classes)
    if values.dtype != object:
        return np.unique(values)
    return cells_of(sorted(classes))


class PrivateRegressor(RegressorMixin, PrivateEstimator):  # type: ignore[misc]
    """A private regression of records at many sites: linear, or of counts.

    Squared losses of records of norm 1, whose gradients are clipped to 0.1, are Huber's: the loss
    is linear in errors beyond a twentieth of the range, so that no outlier dominates.

    Parameters
    ----------
    target_range
        Public range of y, ``(low, high)``: targets beyond are clipped. None stands for (-1, 1).
    counts
        Public bound of y, if it counts something: in place of a target range. A Poisson regression
        then learns the logarithm of the expected count, which is never above the bound.
    calibrate
        Whether one noisy sum over all records, part of the budget, maps the predictions such that
        they add up to the targets. Gradients are clipped: without it totals of skewed targets are
        too low. None: if the noise is small enough, by `dpmesh.defaults.rule.calibration_pays`.
    features
        As for `PrivateClassifier`; None stands for ``"columns"``.
    epsilon, delta, ranges, fit_intercept
        As for `PrivateClassifier`.
    algorithm, noise, colluding, rounds, topology, random_state
        As for `PrivateClassifier`.

    Attributes
    ----------
    model_, report_, ledger_, sites_
        As of `PrivateClassifier`.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> X = np.random.default_rng(0).uniform(-1, 1, size=(300, 3))
    >>> model = dm.sklearn.PrivateRegressor(4.0, target_range=(-1, 1), ranges=(-1, 1))
    >>> model.fit(X, X[:, 0], groups=np.arange(300) % 3).predict(X[:2]).shape
    (2,)
    """

    target_range: tuple[float, float] | None
    counts: float | None
    calibrate: bool | None

    def __init__(
        self,
        epsilon: float | None = 1.0,
        *,
        delta: float = 1e-5,
        target_range: tuple[float, float] | None = None,
        counts: float | None = None,
        calibrate: bool | None = None,
        ranges: Ranges = None,
        features: str | None = None,
        fit_intercept: bool = True,
        algorithm: Method | MakeAlgorithm | None = None,
        noise: Noise | None = None,
        colluding: int = 1,
        rounds: int | None = None,
        topology: Topology | None = None,
        random_state: RandomState = None,
    ) -> None:
        self._keep_parameters(locals())

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # scikit-learn's checks give no range of the target
        return tags

    def _calibrates(self, sizes: Sizes, epsilon: float | None) -> bool:
        """True if predictions are calibrated: on request, or by public numbers."""
        if self.calibrate is not None:
            return self.calibrate
        if self.topology is not None or self.noise is not None:
            return False
        gossips = self.algorithm == "gossip" or epsilon is None
        if gossips and sizes.nodes > COMPLETE:
            return False
        method: Any = self.algorithm
        return calibration_pays(
            sizes, epsilon, self.delta, algorithm=method, colluding=self.colluding
        )

    def _calibration_text(self, calibration: Calibration | None, target: Number | None) -> str:
        """Return the totals before and after; or why predictions are not calibrated."""
        if calibration is not None:
            assert target is not None
            return totals_in_words(calibration, target)
        if self.calibrate is not None:
            return "none (calibrate=False): totals of skewed targets are too low"
        why = "too few records at this noise"
        if callable(self.algorithm):
            why = "the algorithm is a function"
        elif self.topology is not None or self.noise is not None:
            why = "sites gossip over a network, or share noise"
        return f"none, since {why}: totals of skewed targets are too low"

    @property
    def _learning_task(self) -> LearningTask:
        """Numbers, or counts where `counts` states their bound."""
        return TASKS["numbers" if self.counts is None else "counts"]

    def _encoded_problem(self, X: TableLike, y: ColumnLike, groups: ColumnLike) -> Encoded:
        """Return the problem that `fit` solves. Nothing is released."""
        bounds = (-1.0, 1.0) if self.target_range is None else self.target_range
        if np.shape(bounds) != (2,):
            fail("target_range", "(low, high), the public range of y", bounds)
        guessed = self.target_range is None and self.counts is None
        if self.counts is not None and self.target_range is not None:
            fail("counts", "None beside a target_range", self.counts)
        form = {"target": [*bounds]} if self.counts is None else {"counts": self.counts}
        target = as_label("y", form)
        assert isinstance(target, Number)
        scaled, outside, _ = target.encode("y", self._checked_targets(X, y))
        assumption = "target_range= is missing, and [-1, 1] was taken. " if guessed else ""
        beyond = clipped("y", outside, len(scaled))
        warn(beyond, assumption, f"{self._learning_task.range_parameter}= to what may occur")
        return self._encode(X, groups, scaled[:, 0], target=target)


Estimator: TypeAlias = PrivateClassifier | PrivateRegressor

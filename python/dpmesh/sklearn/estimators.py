"""`PrivateClassifier` and `PrivateRegressor`: DP estimators trained across sites.

Each class checks and encodes its targets (`_encoded_problem`). The base class
`dpmesh.sklearn.base.PrivateEstimator` encodes the features, trains, reports and saves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    """A classifier trained with record-level DP across sites: softmax regression or a network.

    The default is multinomial logistic (softmax) regression on the features of a record. A
    `network` replaces the linear model.

    Multi-label classification: y of shape (records, labels) with values 0 and 1, at most 63 labels.
    Each label has a logistic model. The gradient of a record in all models is clipped to one joint
    norm. So more labels need no more epsilon.

    Parameters
    ----------
    epsilon, delta
        Privacy budget of one `fit`. The unit of privacy is a record, and neighbouring datasets
        differ in the value of one record of one site (replace-one). The adversary depends on
        `algorithm`, and `report_` names the adversary. With an epsilon of None the fit adds no
        noise and is not private.
    ranges
        Public range or categories of each column, in a form that `dpmesh.tables.Columns.of`
        accepts. State the ranges from public knowledge, never from the data. Numbers outside are
        clipped. None stands for [-1, 1] in each column.
    classes
        All possible classes, from public knowledge. None reads the classes from `class_shares`, or
        else from `y`: the set of classes then counts as public. With multi-label y: the names of
        the labels.
    class_shares
        Public share of each class among all records, such as ``{"no": 0.97, "yes": 0.03}``. The
        loss of a record is then weighted in inverse proportion to the share of its class, and
        `evaluate` reports balanced accuracy. None gives all records the same weight.
    features
        Feature map: ``"columns"`` (the encoded columns), ``"hats"`` (piecewise-linear splines),
        ``"cosines"`` (random Fourier features), ``"scattering"`` (wavelet features of images), or a
        union such as ``"hats+cosines"``; see `dpmesh.tables.features`. None chooses by public
        sizes, see `dpmesh.defaults.rule.features_for`.
    fit_intercept
        True to add a constant 1 to each record.
    network
        None for a linear model. Else a function without arguments that returns a JAX network, or
        the function's name "module:function". The network is an object with ``init(key, x)`` and
        ``apply(params, x)``, such as a Flax module, or with ``start(key)`` and
        ``scores(params, x)``. Here x is the vector of a record's encoded columns, and the network
        returns one score for each class.
    algorithm
        ``"secure"``: gradient descent with secure aggregation. Sites send masked noisy sums of
        clipped gradients, and the adversary is the server, which learns only the noisy total.
        ``"gossip"``: decentralized learning. Sites send each other noisy models, and the adversary
        reads all messages. None chooses ``"secure"`` if at least ``colluding + 2`` sites take
        part and there is an epsilon, else ``"gossip"``. Or a function that accepts a noise
        multiplier (standard deviation over clipping norm) and returns an algorithm of dpmesh;
        `fit` finds the noise multiplier for `epsilon`.
    noise
        ``"BetweenPartners"``: gossip with pairwise-cancelling noise. Two partners share noise,
        which one adds and the other subtracts, so that it cancels in the mean over all sites. The
        adversary then sees all messages and colludes with up to `colluding` sites, but does not
        know the noise that other sites share. None: independent noise at each site.
    colluding
        Number of sites in the adversary's coalition. With ``"secure"``: sites that collude with the
        server. With `noise`: sites that collude with the reader of all messages.
    rounds
        Number of rounds; None chooses it by public sizes and epsilon. Required if `algorithm` is a
        function.
    topology
        Communication graph of gossip; by default a complete or a random regular graph. If
        `algorithm` is None, a `topology` or a `noise` selects ``"gossip"``.
    random_state
        None draws noise from the operating system. A seed makes the fit reproducible: the fit is
        then not private, and `report_` says so.

    Attributes
    ----------
    classes_
        The classes, shape (classes,), sorted. With multi-label y: names of the labels, in the order
        of the columns of y.
    model_
        The released model, a `dpmesh.tables.models.Model`.
    report_
        A `FitReport`: settings of the fit, epsilon and threat model.
    ledger_
        The noisy releases of the fit, as a `dpmesh.privacy.Plan`. `dpmesh.privacy.total_cost`
        composes the ledgers of several fits of the same records.
    sites_
        The distinct values of `groups`, sorted.

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
        """Classes, also for multi-label y, which is known only in `fit`."""
        return TASKS["classes"]

    def _encoded_problem(self, X: TableLike, y: ColumnLike, groups: ColumnLike) -> Encoded:
        """Return the problem that `fit` solves. Nothing is released."""
        labels = self._checked_targets(X, y)
        if labels.ndim == 2:
            return self._encoded_multilabel_problem(X, labels, getattr(y, "columns", None), groups)
        public = ""
        classes: Any = self.class_shares if self.classes is None else self.classes
        if isinstance(classes, str):
            fail("classes", "a list of all classes, such as ['no', 'yes']", classes)
        if classes is None:
            classes = _classes_of(labels)
            public = "which classes there are"
        self.classes_ = _sorted(Category(categories=tuple(classes)).categories)
        if len(self.classes_) < 2:
            fail("y", "at least 2 classes", f"1 class: {self.classes_.tolist()[0]!r}")
        class_list = Category(categories=tuple(self.classes_.tolist()), shares=self._shares())
        codes = read_labels("y", class_list, labels)
        network = None if self.network is None else named(self.network)
        return self._encode(
            X,
            groups,
            codes,
            public,
            classes=self.classes_,
            network=network,
            shares=class_list.shares,
        )

    def _encoded_multilabel_problem(
        self, X: TableLike, labels: npt.NDArray[np.int64], names: Any, groups: ColumnLike
    ) -> Encoded:
        """Return the problem of multi-label y.

        Parameters
        ----------
        X, groups
            As for `fit`.
        labels
            0 or 1 for each label, shape (records, labels).
        names
            Names of the columns of y; None if they have none.
        """
        if self.class_shares is not None or self.network is not None:
            fail("y", "one class of each record, with class_shares or a network", "labels")
        label_names = names if self.classes is None else self.classes
        if label_names is None:
            self.classes_ = np.arange(labels.shape[1])
        else:
            self.classes_ = np.asarray([*label_names])
        if len({*self.classes_.tolist()}) != labels.shape[1] or self.classes_.ndim != 1:
            fail("classes", f"a name of each of {labels.shape[1]} labels", self.classes_.tolist())
        return self._encode(X, groups, as_sets(labels), classes=self.classes_, multilabel=True)

    def _shares(self) -> tuple[float, ...] | None:
        """Return the public shares in the order of the classes."""
        shares = self.class_shares
        if shares is None:
            return None
        if not isinstance(shares, Mapping):
            fail("class_shares", "a share of each class, such as {'no': 0.97, 'yes': 0.03}", shares)
        class_list = Category(categories=tuple(self.classes_.tolist()))
        codes = class_list.codes(cells_of([*shares])).tolist()
        if sorted(codes) != [*range(class_list.width)]:
            fail("class_shares", f"a share of each of {self.classes_.tolist()}", [*shares])
        share_of_code = dict(zip(codes, shares.values(), strict=True))
        return tuple(share_of_code[code] for code in range(class_list.width))

    def score(self, X: TableLike, y: ColumnLike, sample_weight: ColumnLike = None) -> float:
        """Return the accuracy on records with known classes.

        The accuracy is a plain mean, also with `class_shares`. With multi-label y it is the share
        of correct labels. No epsilon covers the score, which is computed without noise.

        Parameters
        ----------
        X, y
            Records and classes, as for `fit`.
        sample_weight
            Weight of each record in the mean, shape (records,); None for equal weights.
        """
        return float(np.average(self._correctness(X, y), weights=sample_weight))

    def _correctness(self, X: TableLike, y: ColumnLike) -> Cells:
        """Return True for each record with a correct class, or its share of correct labels."""
        predicted = self.predict(X)
        if self.model_.multilabel:
            return np.asarray((predicted == self._checked_targets(X, y)).mean(axis=1))
        codes = self.model_.class_kind.codes
        return np.asarray(codes(np.asarray(y)) == codes(predicted))

    def predict_proba(self, X: TableLike) -> npt.NDArray[np.float64]:
        """Return the probability of each class, shape (records, classes).

        With multi-label y: the probability of each label, shape (records, labels).

        Parameters
        ----------
        X
            A table or an array with the columns of `fit`.

        Raises
        ------
        ValueError
            If the columns are not those of `fit`.
        """
        check_is_fitted(self)
        return self.model_.predict_proba(self._table(X, reset=False))


def _classes_of(labels: Cells) -> Iterable[Any]:
    """Return the classes that occur, where no parameter states them: one label of each class."""
    if labels.dtype == object:
        values = labels.tolist()
    else:
        check_classification_targets(labels)
        values = np.unique(labels).tolist()
    by_name = {_class_name(label): label for label in reversed(values)}
    return by_name.values()


def _class_name(label: object) -> str | None:
    """Return the name of a label's class: the same for 1, True and "1"."""
    if isinstance(label, (bool, np.bool_)):
        label = int(label)
    return name_of(label)


def _sorted(classes: Sequence[Any]) -> Cells:
    """Return classes in order as one array, whole numbers exactly."""
    values = array_of(classes)
    if values.dtype != object:
        return np.unique(values)
    return cells_of(sorted(classes))


class PrivateRegressor(RegressorMixin, PrivateEstimator):  # type: ignore[misc]
    """A regression trained with record-level DP across sites: linear, or Poisson for counts.

    For linear regression, targets are scaled to [-1, 1], records have norm 1, and the default
    algorithms clip gradients to norm 0.1. The clipped squared loss is then the Huber loss: linear
    for errors above 5% of the target range, and quadratic for smaller ones. No outlier dominates.

    Parameters
    ----------
    target_range
        Public range of y, ``(low, high)``, in the units of y. Targets outside are clipped. None
        stands for (-1, 1).
    counts
        Public upper bound of y, if y counts events; give it in place of `target_range`. The model
        is then a Poisson regression with a logarithmic link, and no predicted count exceeds the
        bound.
    calibrate
        True to release one more noisy sum over all records, and to correct the predictions so that
        their total agrees with the total of the targets. The sum uses part of the budget. Clipped
        gradients underestimate the total of skewed targets. None calibrates if the noise in the sum
        is small enough, see `dpmesh.defaults.rule.calibration_pays`.
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
        """Return True if predictions are calibrated: by `calibrate`, or by public sizes."""
        if self.calibrate is not None:
            return self.calibrate
        if self.topology is not None or self.noise is not None:
            return False
        is_gossip = self.algorithm == "gossip" or epsilon is None
        if is_gossip and sizes.nodes > COMPLETE:  # calibration needs all sites as neighbours
            return False
        method: Any = self.algorithm
        return calibration_pays(
            sizes, epsilon, self.delta, algorithm=method, colluding=self.colluding
        )

    def _calibration_text(self, calibration: Calibration | None, target: Number | None) -> str:
        """Return the totals before and after calibration, or the reason for no calibration."""
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
        target_description: dict[str, Any] = {"target": [*bounds]}
        if self.counts is not None:
            target_description = {"counts": self.counts}
        target = as_label("y", target_description)
        assert isinstance(target, Number)
        scaled, outside, _ = target.encode("y", self._checked_targets(X, y))
        assumption = "target_range= is missing, and [-1, 1] was taken. " if guessed else ""
        notices = clipped("y", outside, len(scaled))
        warn(notices, assumption, f"{self._learning_task.range_parameter}= to what may occur")
        return self._encode(X, groups, scaled[:, 0], target=target)


Estimator: TypeAlias = PrivateClassifier | PrivateRegressor

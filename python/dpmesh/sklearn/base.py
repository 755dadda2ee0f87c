"""Base class of `PrivateClassifier` and `PrivateRegressor`, with the steps that they share.

A fit has four steps. `PrivateEstimator._encoded_problem` (of the subclass) checks and encodes the
table: each record becomes a vector of norm 1, and `groups` splits the records into sites.
`PrivateEstimator._choose_settings` chooses algorithm, network, rounds and noise from public sizes
(`dpmesh.defaults`). `dpmesh.simulate` runs the algorithm with all sites in this process. The
released weights, the public ranges and the report then form a `dpmesh.tables.models.Model`, which
`save` writes to a file.

Terms: an *outline* is a model without its weights; a *calibration* is a correction of a
regression's predictions by noisy sums, released in the last round; a *first stage* is a private
mean, and for images a second moment, released before learning.
"""

from __future__ import annotations

import os
import reprlib
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from traceback import walk_stack
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, is_classifier
from sklearn.utils import check_array, check_consistent_length, check_random_state, column_or_1d
from sklearn.utils.validation import check_is_fitted, validate_data

import dpmesh as dm
from dpmesh._epsilons import rounded_up
from dpmesh._memory import return_freed_memory
from dpmesh._networks import MakeNetwork
from dpmesh._rounded import RoundedFeatures
from dpmesh._validate import fail, positive
from dpmesh.algorithms.base import AnyAlgorithm
from dpmesh.algorithms.calibrated import Calibrated
from dpmesh.data.partition import Partition
from dpmesh.defaults import Choice, Method, Sizes, choose, network
from dpmesh.defaults.rule import Noise, features_for
from dpmesh.keys import Key
from dpmesh.privacy.budget import Budget
from dpmesh.privacy.plan import Plan
from dpmesh.problems import LinearProblem
from dpmesh.problems.named import jax_model
from dpmesh.run.tasks import LearningTask
from dpmesh.sklearn.repeated import EarlierFits, earlier_fits, fingerprints_of, share_history
from dpmesh.sklearn.report import FitReport, report_of
from dpmesh.tables import Columns, Number, Ranges, Table, as_table
from dpmesh.tables.calibration import MOMENTS, Calibration
from dpmesh.tables.cells import Cells, FloatArray, TableError, is_missing, map_cells
from dpmesh.tables.copies import describe_copies, fingerprints
from dpmesh.tables.features import COLUMNS, SCATTERING, FeatureMap, stored_type
from dpmesh.tables.labels import MOST_LABELS
from dpmesh.tables.models import Model, Outline, as_json
from dpmesh.tables.sites import site_of_each
from dpmesh.tables.table import ColumnLike, TableLike, array_keeping_types, is_arrow, without_mask
from dpmesh.topology import Topology

if TYPE_CHECKING:
    from dpmesh.problems.jax_model import JaxProblem

RandomState: TypeAlias = int | np.random.RandomState | None
"""As in scikit-learn: a seed, a generator, or None for fresh randomness."""

SelfT = TypeVar("SelfT", bound="PrivateEstimator")

MakeAlgorithm = Callable[[float], AnyAlgorithm]
"""Function of a noise multiplier that returns an algorithm of dpmesh with it.

An example is ``lambda z: GradientDescent(.., noise_multiplier=z)``.
"""

SHOWN_NOTICES = 3
"""Largest number of columns that a warning about clipped or missing values names."""

ONE_SITE = (
    "all records are one site; give groups=, the site of each record (where scikit-learn calls "
    "fit: set_fit_request(groups=True) with metadata routing)"
)
"""Warning of a fit without `groups`."""

OTHER_FITS = (
    "scikit-learn's search and cross-validation fit more than once, and each fit costs its epsilon"
)
"""Warning of a fit that scikit-learn's model selection calls."""

TUNE_INSTEAD = "dm.sklearn.tune keeps to one epsilon"


class Encoded(NamedTuple):
    """Training data of an estimator, encoded.

    Attributes
    ----------
    problem
        The problem to solve.
    columns
        The columns of the table, with their ranges and feature map.
    named
        True if the columns have names.
    also_public
        Facts that the guarantee assumes to be public, in words, in addition to the numbers of sites
        and records; may be empty.
    outline
        The model without its weights.
    """

    problem: LinearProblem | JaxProblem
    columns: Columns
    named: bool
    also_public: str
    outline: Outline


class PrivateEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """The base of `PrivateClassifier` and `PrivateRegressor`."""

    # Parameters.
    epsilon: float | None
    delta: float
    ranges: Ranges
    features: str | None
    fit_intercept: bool
    algorithm: Method | MakeAlgorithm | None
    noise: Noise | None
    colluding: int
    rounds: int | None
    topology: Topology | None
    random_state: RandomState

    # Results of `fit`, see the docstrings of the subclasses.
    model_: Model
    report_: FitReport
    ledger_: Plan
    sites_: Cells
    n_features_in_: int

    def _keep_parameters(self, parameters: Mapping[str, Any]) -> None:
        """Store a constructor's parameters unchanged, as scikit-learn requires."""
        for name in self._get_param_names():
            setattr(self, name, parameters[name])

    @property
    def _learning_task(self) -> LearningTask:
        """The entry of `dpmesh.run.tasks.TASKS` for the targets: classes, numbers or counts."""
        raise NotImplementedError

    @property
    def _colluding_partners(self) -> int | None:
        """Number of sites that may collude where link partners share noise; None without it."""
        if self.noise is None:
            return None
        return self.colluding

    def _choose_settings(self, sizes: Sizes, epsilon: float | None = None) -> Choice:
        """Return algorithm, network and rounds of a fit, chosen from public sizes alone.

        Parameters
        ----------
        sizes
            The public sizes of the problem.
        epsilon
            By default the estimator's.

        Raises
        ------
        ValueError
            If a parameter does not fit.
        """
        if epsilon is None:
            epsilon = self.epsilon
        algorithm = self.algorithm
        if isinstance(algorithm, (type, dm.algorithms.Algorithm)):
            expected = "'secure', 'gossip', or a function that makes one for a noise, such as "
            expected += "lambda noise: FederatedLearning(.., noise_multiplier=noise)"
            fail("algorithm", expected, reprlib.repr(algorithm))
        if callable(algorithm):
            return self._choose_noise(algorithm, sizes, epsilon)
        return choose(
            sizes,
            epsilon=epsilon,
            delta=self.delta,
            task=self._learning_task.defaults_task,
            linear=getattr(self, "network", None) is None,
            algorithm=algorithm,
            noise=self.noise,
            topology=self.topology,
            colluding=self.colluding,
            rounds=self.rounds,
            calibrate=self._calibrates(sizes, epsilon),
            key=self._key(),
        )

    def _choose_noise(
        self, make_algorithm: MakeAlgorithm, sizes: Sizes, epsilon: float | None
    ) -> Choice:
        """Return the choice for an `algorithm` function, with the least noise for epsilon."""
        if getattr(self, "calibrate", None):
            fail("calibrate", "None or False beside an algorithm that is a function", True)
        if self.noise is not None:
            fail("noise", "None beside an algorithm, whose function names its noise", self.noise)
        if self.rounds is None or epsilon is None:
            fail("rounds", "a number of rounds and an epsilon, beside an algorithm", self.rounds)
        budget = Budget(positive("epsilon", epsilon), delta=self.delta)
        noise_multiplier = budget.calibrate(make_algorithm, self.rounds)
        algorithm = make_algorithm(noise_multiplier)
        topology = None
        needs_network = getattr(algorithm, "communication", None) == "gossip"
        if needs_network:
            topology = self.topology or network(sizes.nodes, key=self._key())
        return Choice(algorithm=algorithm, topology=topology, rounds=self.rounds)

    def _calibrates(self, sizes: Sizes, epsilon: float | None) -> bool:
        """Return True if the last round calibrates predictions; False unless a subclass differs.

        Parameters
        ----------
        sizes, epsilon
            As for `_choose_settings`.
        """
        return False

    def _split_off_calibration(
        self, released: npt.NDArray[np.float64], chosen: Choice
    ) -> tuple[npt.NDArray[np.float64], Calibration | None]:
        """Return the weights of the model, and the calibration of its predictions if it has one.

        Parameters
        ----------
        released
            The released vector, shape (weights,). A calibrated algorithm appends its noisy moments,
            shape (weights + MOMENTS,).
        chosen
            The settings of the fit.
        """
        if not isinstance(chosen.algorithm, Calibrated):
            return released, None
        moments = chosen.algorithm.moments
        calibration = Calibration.of(
            released[-MOMENTS:], noise=moments.noise_scale, records=moments.records
        )
        return released[:-MOMENTS], calibration

    def _calibration_text(self, calibration: Calibration | None, target: Number | None) -> str:
        """Return the report's text on calibration; empty for a classifier."""
        return ""

    def __sklearn_clone__(self: SelfT) -> SelfT:
        """Return a clone as `sklearn.base.clone` does, with a fit history shared by both."""
        copy: SelfT = BaseEstimator.__sklearn_clone__(self)
        share_history(copy, self)
        return copy

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the released model, the public ranges and the report into one file.

        The file is a numpy archive (npz), see `dpmesh.tables.models.Model.save`. It holds no
        records.

        Parameters
        ----------
        path
            Path of the file.

        Raises
        ------
        OSError
            If the file cannot be written.
        """
        check_is_fitted(self)
        self.model_.save(path)

    @classmethod
    def load(
        cls: type[SelfT], path: str | os.PathLike[str], *, network: str | MakeNetwork | None = None
    ) -> SelfT:
        """Return a fitted estimator with the model from a file that `save` wrote.

        The file restores the model, the report, the classes and the parameters `epsilon`, `delta`,
        `ranges`, `features`, `fit_intercept` and `class_shares`. Other parameters have their
        defaults.

        Parameters
        ----------
        path
            Path of the file.
        network
            Function that returns the network, or its name "module:function", if the model is a
            network. The file holds no code.

        Raises
        ------
        ValueError
            If the file holds no model of this class of estimators, or the model is a network and
            `network` is missing.
        OSError
            If the file cannot be read.
        """
        model = Model.load(path, network=network)
        saved = model.about.get("fit")
        if saved is None or saved["estimator"] != cls.__name__:
            fail("path", f"a model that {cls.__name__}.save wrote", repr(model))
        estimator = cls()
        estimator.report_ = FitReport.from_dict(saved)
        estimator.epsilon = model.about["epsilon"]
        estimator.delta = model.about["delta"]
        estimator.ranges = [kind.as_dict() for kind in model.columns.kinds]
        columns = model.columns
        assert isinstance(columns, Columns)
        estimator.features = columns.features.name
        estimator.fit_intercept = columns.intercept
        estimator.model_ = model
        estimator.n_features_in_ = len(model.columns.names)
        if model.about["named"]:
            estimator.feature_names_in_ = np.array(model.columns.names, dtype=object)
        if model.classes is not None:
            estimator.classes_ = model.classes
            if model.shares is not None:
                estimator.class_shares = dict(zip(model.classes, model.shares, strict=True))
        return estimator

    def predict(self, X: TableLike) -> Cells:
        """Return the predicted class of each record, or the predicted target in the units of y.

        Parameters
        ----------
        X
            A table or an array with the columns of `fit`.

        Returns
        -------
        Shape (records,). With multi-label y: 0 or 1 for each label, shape (records, labels).

        Raises
        ------
        ValueError
            If the columns are not those of `fit`.
        """
        check_is_fitted(self)
        return self.model_.predict(self._table(X, reset=False))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags

    def _table(self, X: TableLike, *, reset: bool) -> Table:
        """Return the columns of X, checked as scikit-learn does.

        Parameters
        ----------
        X
            A table or an array.
        reset
            True in `fit`, which keeps names and number of the columns; otherwise they are compared.
        """
        if _has_names(X):
            validate_data(self, X, reset=reset, skip_check_array=True)
            table = as_table(X)
            if not table.records:
                fail("X", "at least 1 record", "Found array with 0 sample(s)")
            return table
        if isinstance(X, (list, tuple)):
            X = np.array(X, dtype=object)  # keeps the type of each cell
        X = without_mask(X)
        if getattr(X, "ndim", 2) > 2:
            X = X.reshape(len(X), -1)  # images, for instance: one row for each record
        if reset:
            has_numbers_alone = self.ranges is None
        else:
            has_numbers_alone = self._has_numbers_alone()
        try:
            checked = validate_data(
                self,
                X,
                reset=reset,
                dtype=np.float64 if has_numbers_alone else None,
                ensure_all_finite=has_numbers_alone,
            )
        except OverflowError:
            fail("X", "finite numbers", "an integer beyond their range")
        return as_table(checked)

    def _has_numbers_alone(self) -> bool:
        """Return True if all columns of the model hold numbers, and no cell may be missing."""
        kinds = self.model_.columns.kinds
        return all(isinstance(kind, Number) and not kind.missing for kind in kinds)

    def _checked_targets(self, X: TableLike, y: ColumnLike) -> Cells:
        """Return y, checked as scikit-learn does.

        Returns
        -------
        Shape (records,), or for several labels of a record (records, labels), integers 0 and 1.
        """
        if y is None:
            name = type(self).__name__
            raise ValueError(f"{name} requires y to be passed, but the target y is None")
        if isinstance(y, str):
            fail("y", "the label of each record, such as table['diagnosis']", repr(y))
        labels = array_keeping_types(without_mask(y.toarray() if hasattr(y, "toarray") else y))
        if labels.ndim == 2 and labels.shape[1] > 1 and is_classifier(self):
            check_consistent_length(X, labels)
            if not np.isin(labels, (0, 1)).all():
                fail("y", "0 or 1 for each label of a record", "others")
            if labels.shape[1] > MOST_LABELS:
                fail("y", f"at most {MOST_LABELS} labels of a record", labels.shape[1])
            return labels.astype(np.int64)
        if labels.ndim == 1 and labels.dtype.kind in "fO":
            for record in np.flatnonzero(map_cells(is_missing, labels, bool)):
                raise TableError(int(record), "y has no label (None or NaN); leave it out")
        numeric = None if is_classifier(self) else "numeric"
        targets = check_array(labels, ensure_2d=False, dtype=numeric, input_name="y")
        targets = column_or_1d(targets, warn=True)
        check_consistent_length(X, targets)
        return np.asarray(targets)

    def _key(self) -> Key:
        """Return the key of a fit's noise: fresh, or seeded by `random_state`."""
        if self.random_state is None:
            return Key.generate()
        return Key.seeded(int(check_random_state(self.random_state).randint(2**31 - 1)))

    def _encoded_problem(self, X: TableLike, y: ColumnLike, groups: ColumnLike) -> Encoded:
        """Return the problem that `fit` solves; release nothing."""
        raise NotImplementedError

    def fit(self: SelfT, X: TableLike, y: ColumnLike, groups: ColumnLike = None) -> SelfT:
        """Train one model on the records of all sites, simulated in this process.

        All releases of one fit are (`epsilon`, `delta`)-DP for replacing one record of one site.
        `report_` states the adversary and the assumptions. Every further fit of the same records
        adds its own epsilon. A fit with an epsilon of None, or with a seeded `random_state`, is not
        private.

        Parameters
        ----------
        X
            A pandas, polars or pyarrow table, or an array of shape (records, columns).
        y
            The class or the target of each record, shape (records,). A classifier also accepts
            several labels of 0 and 1, shape (records, labels).
        groups
            The site of each record, shape (records,). With None all records belong to one site,
            and a warning says so. If scikit-learn calls `fit`, as a pipeline does, enable metadata
            routing and call ``set_fit_request(groups=True)``.

        Returns
        -------
        The estimator itself.

        Raises
        ------
        ValueError
            If an argument or a parameter is invalid.

        Warns
        -----
        UserWarning
            If values are clipped to their range, two sites hold the same record, or earlier fits
            used the same records.
        """
        encoded = self._encoded_problem(X, y, groups)
        _check_writable(encoded.outline)
        chosen = self._choose_settings(Sizes.of(encoded.problem))
        fingerprints = None
        if self.epsilon is not None:
            fingerprints = fingerprints_of(encoded.problem.train.features)
        run = dm.simulate(
            chosen.algorithm,
            encoded.problem,
            chosen.topology,
            rounds=chosen.rounds,
            metrics=dm.Metrics([], progress=False),
            key=self._key(),
            delta=self.delta,
        )
        node_models = np.asarray(run.released, np.float64)  # shape (nodes, weights)
        released = node_models.mean(axis=0)
        weights, calibration = self._split_off_calibration(released, chosen)
        self.report_ = report_of(
            type(self).__name__,
            run,
            chosen,
            encoded.problem,
            encoded.columns,
            encoded.also_public,
            self._calibration_text(calibration, encoded.outline.target),
        )
        self.ledger_ = run.ledger
        report = self.report_.as_dict()
        about = {
            "privacy": report["privacy"],
            "fit": report,
            "named": encoded.named,
            "epsilon": None if self.epsilon is None else float(self.epsilon),
            "delta": float(self.delta),
            "plan": run.ledger.as_dict(),
            "colluding": self._colluding_partners,
        }
        model = encoded.outline.model(weights, about)
        self.model_ = replace(model, calibration=calibration)
        if self.epsilon is not None and fingerprints is not None:
            if _is_searched():
                self._restate_cost(self.epsilon, f"of this fit alone: {OTHER_FITS}")
                warnings.warn(f"{OTHER_FITS}; {TUNE_INSTEAD}", UserWarning, stacklevel=2)
            self._count_fits(earlier_fits(self, fingerprints, self.epsilon))
        return self

    def _count_fits(self, earlier: EarlierFits) -> None:
        """State earlier fits of the same records in report and model, and warn of their total."""
        if not earlier.count:
            return
        assert self.epsilon is not None
        fits = earlier.count + 1
        total = rounded_up(earlier.epsilon + self.epsilon)
        self.report_ = replace(self.report_, fits=fits)
        counted = f"epsilon = {total} (the sum) for the {fits} fits of this estimator together"
        self._restate_cost(self.epsilon, f"of this fit alone: {counted}")
        warnings.warn(
            f"{fits} fits of this estimator and its clones in this process share records, and each "
            f"fit costs its epsilon: at most {counted}; {TUNE_INSTEAD}",
            UserWarning,
            stacklevel=3,
        )

    def _restate_cost(
        self,
        epsilon: float,
        why: str,
        earlier: Sequence[Plan] = (),
        *,
        selection: float | None = None,
    ) -> None:
        """State an epsilon and its scope in the report and in the saved model.

        Parameters
        ----------
        epsilon
            The epsilon to state.
        why
            An assumption to add to the report, in words: the releases that `epsilon` covers, or
            does not cover.
        earlier
            Ledgers of other releases of the same records that `epsilon` includes.
        selection
            Epsilon of a private choice among fits; None without a choice.
        """
        privacy = self.report_.privacy
        privacy = replace(privacy, epsilon=epsilon, assumptions=(*privacy.assumptions, why))
        self.report_ = replace(self.report_, privacy=privacy)
        fit = self.report_.as_dict()
        about = {**self.model_.about, "privacy": fit["privacy"], "fit": fit, "epsilon": epsilon}
        if earlier:
            plans = about.get("earlier", [])
            about["earlier"] = [*plans, *(plan.as_dict() for plan in earlier)]
        if selection is not None:
            about["selection"] = selection
        self.model_ = replace(self.model_, about=about)

    def _encode(
        self,
        X: TableLike,
        groups: ColumnLike,
        labels: Cells,
        also_public: str = "",
        *,
        classes: Cells | None = None,
        target: Number | None = None,
        network: MakeNetwork | None = None,
        shares: tuple[float, ...] | None = None,
        multilabel: bool = False,
    ) -> Encoded:
        """Encode a table, and return its problem with labels that are encoded already.

        Parameters
        ----------
        X, groups
            As for `fit`.
        labels
            Encoded labels, shape (records,): indices of classes, targets scaled to their range, or
            the labels of a record as the bits of an integer.
        also_public
            See `Encoded`.
        classes, target, network, shares, multilabel
            See `Outline`.
        """
        table = self._table(X, reset=True)
        named = table.names is not None
        names = table.names or tuple(f"x{i}" for i in range(len(table.columns)))
        columns = Columns.of(
            self.ranges, _keys(self.ranges, names, named), intercept=bool(self.fit_intercept)
        )
        self.sites_, partition = _sites(groups, table.records)
        warning = describe_copies(fingerprints(table), partition, self.sites_)
        if warning is not None:
            warnings.warn(warning, UserWarning, stacklevel=4)
        columns = replace(columns, features=self._features(columns, partition, network))
        dtype = stored_type(table.records, columns.dim, rounded=network is None)
        encoded = columns.encode(table.columns, dtype=dtype)
        return_freed_memory()  # encoded columns, before their features
        assumption = ""
        if self.ranges is None:
            assumption = "ranges= is missing, and [-1, 1] was taken. "
        warn(encoded.notices(), assumption, "ranges= to what may occur")
        if groups is None:
            warnings.warn(ONE_SITE, UserWarning, stacklevel=4)
        outline = Outline(
            columns=columns,
            classes=classes,
            target=target,
            network=network,
            shares=shares,
            multilabel=multilabel,
        )
        train = dm.Dataset(encoded.features, labels)
        problem: LinearProblem | JaxProblem
        if network is not None:
            problem = jax_model(train, partition, model=network, outline=outline)
        else:
            # A first stage centers the records in place, in this memory. Records with scattering
            # features may be centered twice (for their second moment), and thus keep a copy.
            memory = encoded.memory
            if columns.features == SCATTERING:
                memory = None
            problem = linear_problem(outline, train, partition, memory=memory)
        return Encoded(problem, columns, named, also_public, outline)

    def _features(
        self, columns: Columns, partition: Partition, network: MakeNetwork | None
    ) -> FeatureMap:
        """Return the feature map: the parameter `features`, or a default by public sizes.

        The default is by `features_for` for a linear classifier, unless `algorithm` is a function.
        Any other estimator has the encoded columns alone.
        """
        if self.features is not None:
            return FeatureMap.of(self.features)
        if not is_classifier(self) or network is not None or callable(self.algorithm):
            return COLUMNS
        counts = [len(members) for members in partition]
        # `features_for` does not read `dim`, which depends on its result
        sizes = Sizes(
            nodes=len(counts), fewest_records=min(counts), total_records=sum(counts), dim=1
        )
        algorithm = self.algorithm
        if self.noise is not None or self.topology is not None:
            algorithm = "gossip"
        features = features_for(
            sizes,
            len(columns.layout.numbers),
            epsilon=self.epsilon,
            delta=self.delta,
            colluding=self.colluding,
            algorithm=algorithm,
            noise=self.noise,
        )
        return FeatureMap.of(features)


def _has_names(X: TableLike) -> bool:
    """Return True for tables of pandas, pyarrow, polars and others with named columns."""
    return hasattr(X, "iloc") or is_arrow(X)


def _check_writable(outline: Outline) -> None:
    """Fail, before anything is released, if a model file could not hold classes or ranges."""
    try:
        as_json(outline.as_dict())
    except TypeError as error:
        expected = "texts, numbers and booleans, which model files can hold"
        fail("ranges and classes", expected, str(error))


def _is_searched() -> bool:
    """Return True if scikit-learn's model selection calls `fit`, as it does more than once."""
    frames = (frame.f_globals.get("__name__", "") for frame, _ in walk_stack(None))
    return any(name.startswith("sklearn.model_selection.") for name in frames)


def linear_problem(
    outline: Outline,
    train: dm.Dataset,
    partition: Partition,
    test: dm.Dataset | None = None,
    memory: FloatArray | RoundedFeatures | None = None,
) -> dm.LinearProblem:
    """Return the linear problem of encoded records, with the loss that the outline implies.

    Parameters
    ----------
    outline
        The model without its weights.
    train, test
        Encoded records, each of norm 1, with encoded labels.
    partition
        Indices of each site's training records.
    memory
        See `LinearProblem`; None to copy the features where they are centered.
    """
    return dm.LinearProblem(
        train,
        partition,
        outline.loss,
        test=test,
        outline=outline,
        classes=None if outline.classes is None else len(outline.classes),
        feature_norm=1.0,  # `Columns.encode` scales each record to norm 1
        memory=memory,
    )


def _keys(ranges: Ranges, names: tuple[str, ...], named: bool) -> list[str | int]:
    """Return the key of each column in `ranges`: its name, or its position in an array."""
    if not isinstance(ranges, dict) or named:
        return [*names]
    has_default_names = bool({*map(str, ranges)} & {*names})  # such as x0
    if has_default_names:
        return [*names]
    return [*range(len(names))]


def _sites(groups: ColumnLike, records: int) -> tuple[Cells, tuple[npt.NDArray[np.int64], ...]]:
    """Return the sites, shape (sites,), and the indices of each site's records."""
    if groups is None:
        return np.zeros(1, dtype=np.int64), (np.arange(records),)
    owners = site_of_each(groups, records)
    sites, codes = np.unique(owners, return_inverse=True)
    return sites, tuple(np.flatnonzero(codes == site) for site in range(len(sites)))


def warn(notices: list[str], assumption: str, change: str) -> None:
    """Warn the caller about values that are clipped or count as missing.

    The counts are exact and not released: only the caller, who holds the records, sees them.

    Parameters
    ----------
    notices
        One text for each column with such values.
    assumption
        Beginning of the warning.
    change
        The parameter to set, in words.
    """
    if not notices:
        return
    columns = "; ".join(notices[:SHOWN_NOTICES])
    if len(notices) > SHOWN_NOTICES:
        columns += f"; and {len(notices) - SHOWN_NOTICES} more columns"
    text = f"{assumption}{columns}; set {change}"
    warnings.warn(text, UserWarning, stacklevel=4)

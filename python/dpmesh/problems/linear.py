"""Linear classification and regression on records that are divided among nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from types import NoneType
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import sparse

import dpmesh.kernels as kernels
from dpmesh._arrays import FloatArray
from dpmesh._privacy_types import Sensitive
from dpmesh._ragged import Numbers, Ragged, Walks
from dpmesh._rounded import RoundedFeatures
from dpmesh._validate import as_python_numbers, fail, instance, integer, non_negative, positive
from dpmesh.data import Dataset
from dpmesh.data.dataset import A_DATASET
from dpmesh.kernels.linear import LinearModel, linear_scores
from dpmesh.kernels.linear_model import REGRESSION, Batches, Loss, check_loss
from dpmesh.kernels.projection import Norm
from dpmesh.keys import Key
from dpmesh.problems.constants import Constants, linear_constants
from dpmesh.problems.partition import IndexArrays, PartitionedProblem, flat_partition
from dpmesh.tables import Features
from dpmesh.tables.features import AXES, centred, centred_in_place, centred_rounded
from dpmesh.tables.kinds import Count
from dpmesh.tables.models import Model, Outline

_AT_ONCE = 1 << 12
"""Number of records in a block of features, which bounds the memory."""

SLACK = 1e-6
"""Largest relative excess of a norm over `feature_norm` that counts as rounding."""


@dataclass(frozen=True, eq=False)
class LinearProblem(PartitionedProblem):
    """Linear classification or regression on records that are divided among nodes.

    The objective of a node is the mean loss of a batch of its records plus the regularizer.
    `dpmesh.kernels.linear` defines the losses. Parameters have the type of the features, float32
    or float64.

    Parameters
    ----------
    train
        Training records of all nodes together.
    partition
        Indices in `train` of each node's records: one integer array per node, in the order in which
        the records arrive. The arrays are disjoint and not empty. `dpmesh.data.iid` and other
        functions of `dpmesh.data` make partitions.
    loss
        Loss of a record: ``"logistic"`` or ``"hinge"`` for labels -1 and +1; ``"softmax"`` for
        labels 0 to ``classes - 1``; ``"squared"``, ``"absolute"`` or ``"huber"`` for real targets;
        ``"poisson"`` for counts divided by their public bound; ``"multilabel"`` for sets of labels,
        each set as one integer whose bit j is set if the record has label j.
    test
        Test records, with the features and the kind of labels of `train`, for `accuracy`,
        baselines and custom metrics; None for none. Real targets have no accuracy.
    classes
        Number of classes for ``"softmax"``; number of one-vs-all models for another loss; number of
        labels for ``"multilabel"``. None for a single model.
    regularization
        Factor lambda of the regularizer ``lambda |w|^2 / 2`` in each node's objective (weight
        decay), at least 0.
    feature_norm
        Public upper bound on the L2 norm of a record's features. By default the bound that `train`
        states, such as 1 after `dpmesh.data.unit_norm`. Sensitivities without clipping rest on it.
        Each training record is checked against it. An excess of up to 1e-6 of the bound is
        attributed to rounding; a sensitivity may then be too small by that fraction.
    label_bound
        Public upper bound on the absolute value of a real target, for a single model.
    outline
        Meaning of features and labels, which released models carry; by default features and labels
        as they are. If it states frequencies of the classes, they weight the losses of the training
        records.
    memory
        Memory of the training features with room for one more number per record: a flat array that
        begins with them, shape (records * (features + 1),), or features in 8 bits with such room.
        `centred` overwrites it, after which this problem cannot be used. None makes `centred` copy
        the features.

    Raises
    ------
    ValueError
        If labels do not fit the loss, indices overlap or are out of range, a node has no records,
        the test records do not fit, or a record or target exceeds its bound.

    Examples
    --------
    >>> import dpmesh as dm
    >>> data = dm.data.unit_norm(dm.Dataset([[3.0, 4.0], [1.0, 0.0]], [1, -1]))
    >>> dm.LinearProblem(data, [[0], [1]], "logistic").constants().lipschitz
    1.0
    """

    train: Dataset
    partition: IndexArrays = field(repr=False)
    loss: Loss
    _: KW_ONLY
    test: Dataset | None = None
    classes: int | None = None
    regularization: float = 0.0
    feature_norm: float | None = None
    label_bound: float = 1.0
    outline: Outline | None = field(default=None, repr=False)
    memory: FloatArray | RoundedFeatures | None = field(default=None, repr=False)
    _records: Ragged = field(init=False, repr=False)
    _linear: LinearModel = field(init=False, repr=False)

    def __post_init__(self) -> None:
        as_python_numbers(self)
        instance("train", self.train, A_DATASET, Dataset)
        instance("test", self.test, f"{A_DATASET}, or None", Dataset, NoneType)
        if self.feature_norm is None:
            object.__setattr__(self, "feature_norm", self.train.feature_norm)
        check_loss(self.loss, self.classes)
        non_negative("regularization", self.regularization)
        positive("label_bound", self.label_bound)
        object.__setattr__(self, "_records", flat_partition(self.partition, self.train.records))
        self._check_labels("train", self.train)
        self._set_outline()
        object.__setattr__(self, "_linear", self._model_of(self.train))
        self._check_feature_norm()
        if self.test is not None:
            self._check_test(self.test)

    @property
    def dim(self) -> int:
        """Number of parameters of a node: features, times `classes` if that is not None."""
        return self.train.dim * (self.classes or 1)

    @property
    def models(self) -> int:
        """Number of one-vs-all models of a node, which share no parameters; 1 for other losses."""
        if self.classes is None or self.loss == "softmax":
            return 1
        return self.classes

    def zeros(self, nodes: int | None = None) -> FloatArray:
        """Return parameters of 0, shape (nodes, dim), by default for all nodes of the problem."""
        count = self.nodes if nodes is None else integer("nodes", nodes, at_least=1)
        params = np.empty((count, self.dim), self.train.features.dtype)
        params.fill(0.0)
        return params

    def initial(self, key: Key) -> FloatArray:
        """Return the initial parameters of one model, shape (1, dim): 0, for any key.

        A subclass may return other parameters, which must not depend on the nodes' records.
        """
        return self.zeros(1)

    def gradient(
        self, params: npt.ArrayLike, batches: Batches, *, clipping_norm: float | None = None
    ) -> FloatArray:
        """Return each node's gradient of its objective on its batch, shape (nodes, dim).

        See `dpmesh.kernels.LinearModel.gradient` for the parameters.
        """
        return self._linear.gradient(
            params, batches, regularization=self.regularization, clipping_norm=clipping_norm
        )

    def gradient_sum(
        self,
        params: npt.ArrayLike,
        batches: Batches,
        *,
        clipping_norm: float | None,
        norm: Norm = "l2",
    ) -> FloatArray:
        """Return each node's sum of clipped record gradients, shape (nodes, dim).

        With a `clipping_norm` of None gradients are not clipped. The regularizer is not included. A
        node without records has a sum of 0. See `dpmesh.kernels.LinearModel.gradient` for the
        parameters.
        """
        return self._linear.gradient(
            params, batches, clipping_norm=clipping_norm, norm=norm, divide_by=1.0
        )

    def clipped_sums(
        self, params: npt.ArrayLike, batches: Batches, clipping_norm: float
    ) -> Sensitive:
        """Return each node's sum of clipped record gradients in float64, shape (nodes, dim).

        The regularizer is not included. See `dpmesh.kernels.LinearModel.clipped_sums`.
        """
        return Sensitive(self._linear.clipped_sums(params, batches, clipping_norm=clipping_norm))

    def step(
        self,
        params: npt.ArrayLike,
        step_size: npt.ArrayLike,
        batches: Batches,
        *,
        clipping_norm: float | None = None,
        norm: Norm = "l2",
        divide_by: float | None = None,
        radius: float | None = None,
        out: FloatArray | None = None,
    ) -> FloatArray:
        """Return the parameters after one gradient step of each node, shape (nodes, dim).

        See `dpmesh.kernels.LinearModel.step` for the parameters.
        """
        return self._linear.step(
            params,
            step_size,
            batches,
            regularization=self.regularization,
            clipping_norm=clipping_norm,
            norm=norm,
            divide_by=divide_by,
            radius=radius,
            out=out,
        )

    def local_training(
        self, start: npt.ArrayLike, walks: Walks, *, step_size: float, radius: float
    ) -> FloatArray:
        """Return each node's model update after local training from one model, shape (nodes, dim).

        See `dpmesh.kernels.LinearModel.train` for the parameters.
        """
        updates, _ = self._linear.train(
            start, walks, step_size=step_size, radius=radius, regularization=self.regularization
        )
        return updates

    def objective(self, params: npt.ArrayLike, batches: Batches) -> Numbers:
        """Return each node's objective on its batch, at the node's parameters, shape (nodes,)."""
        return self._linear.losses(params, batches, regularization=self.regularization)

    def class_objectives(self, params: npt.ArrayLike, batches: Batches) -> Numbers:
        """Return the objective of each model of each node on its batch, shape (nodes, models).

        A node has `classes` one-vs-all models, or a single model.
        """
        if self.models == 1:
            return self.objective(params, batches)[:, np.newaxis]
        return self._linear.class_losses(params, batches, regularization=self.regularization)

    def record_losses(self, params: npt.ArrayLike, batches: Batches) -> Numbers:
        """Return the loss of each record of each node's batch, at the node's parameters.

        The shape is (nodes, batch size), or (sum of lengths,) for batches of different lengths.
        """
        return self._linear.record_losses(params, batches)

    @property
    def classifies(self) -> bool:
        """True if there are test records whose labels are classes, as `accuracy` needs."""
        if self.test is None:
            return False
        return self.classes is not None or bool((np.abs(self.test.labels) == 1).all())

    def accuracy(self, params: npt.ArrayLike) -> Numbers:
        """Return the fraction of the test records that each model classifies correctly.

        Parameters
        ----------
        params
            Parameters of each model, shape (models, dim). They are rounded to the type of the
            features, since a run may have float64 models of float32 features.

        Returns
        -------
        Accuracies from 0 to 1, shape (models,); means over all labels for ``"multilabel"``.

        Raises
        ------
        ValueError
            If there are no test records, or their labels are not classes.
        """
        if self.test is None:
            fail("test", "records to measure the accuracy on", None)
        rows = np.asarray(params, self.test.features.dtype)
        if self._holds_centre(rows):
            accuracies = []
            for row in rows:
                centred_problem, weights = self.split_centre(row)
                accuracies.append(centred_problem.accuracy(weights[np.newaxis]))
            return np.concatenate(accuracies)
        return self._tested.accuracy(rows)

    @cached_property
    def _tested(self) -> LinearModel:
        """Kernel of the test records."""
        assert self.test is not None
        return self._model_of(self.test)

    def model(self, params: npt.ArrayLike) -> Model:
        """Return a model that predicts with the given parameters.

        Parameters
        ----------
        params
            Parameters of one model, shape (dim,), such as ``run.released[0]``.

        Raises
        ------
        ValueError
            If the number of parameters is not `dim`.
        """
        assert self.outline is not None
        return self.outline.model(params)

    def vectors(self, node: int) -> Iterator[Sensitive]:
        """Yield the features of a node's records in blocks of shape (records, dim), float64."""
        members = self.partition[node]
        for first in range(0, len(members), _AT_ONCE):
            features: Any = self.train.features[members[first : first + _AT_ONCE]]
            if sparse.issparse(features):
                features = features.toarray()
            yield Sensitive(np.asarray(features, np.float64))

    def centred(self, centre: FloatArray) -> LinearProblem:
        """Return the problem with a centre subtracted from each record, rescaled to norm 1.

        Parameters
        ----------
        centre
            Released mean of the records (private centering), shape (features,), or longer: see
            `dpmesh.tables.features.centred`.

        Returns
        -------
        The problem with one more feature, a constant. The problem of the last centre is cached.

        Raises
        ------
        ValueError
            If the records are centred already.
        RuntimeError
            If an earlier call with another centre has overwritten the features in `memory`.
        """
        centre_bytes = centre.tobytes()
        cached: tuple[bytes, LinearProblem] | None = self.__dict__.get("_centred")
        if cached is not None and cached[0] == centre_bytes:
            return cached[1]
        assert self.outline is not None
        columns = self.outline.columns
        if columns.centre is not None:
            fail("problem", "records that are not centred", "records less a centre")
        if self.memory is not None and cached is not None:  # `memory` was overwritten
            raise RuntimeError(
                "the features of this problem were replaced by others, less a centre"
            )
        self.__dict__.pop("_centred", None)  # frees the memory of an earlier centred problem
        features: Any
        if self.memory is None:
            features = _centred_copy(self.train.features, centre)
        elif isinstance(self.memory, RoundedFeatures):
            features = centred_rounded(self.memory.widened(self.train.dim), centre, self.memory)
        else:
            features = centred_in_place(self.memory, self.train.records, centre)
        test = self.test
        if test is not None:
            test = replace(test, features=_centred_copy(test.features, centre))
        problem = replace(
            self,
            train=replace(self.train, features=features),
            test=test,
            feature_norm=1.0,
            outline=replace(
                self.outline, columns=columns.with_centre(np.asarray(centre, np.float64))
            ),
            memory=None,
        )
        problem.__dict__["_part"] = self._part  # `members` and `all_records` stay the same
        self.__dict__["_centred"] = centre_bytes, problem
        return problem

    def centred_blank(self) -> LinearProblem:
        """Return a problem with the shapes of `centred` and features of 0.

        `FirstStage` makes initial models with it, before the centre is known.
        """
        assert self.outline is not None
        features = self.train.dim + 1

        def blank(data: Dataset) -> Dataset:
            stored: Any = data.features
            zeros: Any
            if isinstance(stored, RoundedFeatures):
                zeros = RoundedFeatures.empty(data.records, features)
            else:
                zeros = np.zeros((data.records, features), stored.dtype)
            return replace(data, features=zeros)

        columns = self.outline.columns.with_centre(np.zeros(self.train.dim))
        problem = replace(
            self,
            train=blank(self.train),
            test=None if self.test is None else blank(self.test),
            feature_norm=1.0,
            outline=replace(self.outline, columns=columns),
            memory=None,
        )
        problem.__dict__["_part"] = self._part
        return problem

    def split_centre(self, params: FloatArray) -> tuple[LinearProblem, FloatArray]:
        """Return the problem that a model's weights refer to, and the weights.

        Released parameters of a `FirstStage` (private centering) end with the centre. For these,
        the problem is the one with centred records, and the centre is cut off. For other parameters
        the result is this problem and the parameters unchanged.

        Parameters
        ----------
        params
            Parameters of one model, shape (dim,) or longer.
        """
        if not self._holds_centre(params):
            return self, params
        weights, centre = self._cut_at_centre(params)
        return self.centred(centre), weights

    def scores_of_test(self, params: FloatArray) -> FloatArray:
        """Return the scores of one model on the test records, shape (records, outputs).

        Parameters
        ----------
        params
            Parameters of one model, shape (dim,); for a `FirstStage`, the centre follows them.

        Raises
        ------
        ValueError
            If there are no test records.
        """
        if self.test is None:
            fail("test", "records to score", None)
        features: Any = self.test.features
        outputs = self.classes or 1
        centre = None
        if self._holds_centre(params):
            params, centre = self._cut_at_centre(params)
        rows = np.asarray(params.reshape(outputs, -1), features.dtype)
        if centre is None:
            return linear_scores(rows, features)
        scores = np.empty((self.test.records, outputs), features.dtype)
        for first in range(0, len(scores), _AT_ONCE):
            block = centred(features[first : first + _AT_ONCE], centre)
            scores[first : first + _AT_ONCE] = linear_scores(rows, block)
        return scores

    def _holds_centre(self, params: FloatArray) -> bool:
        """Return True if models end with a centre, or with a centre and its axes.

        Their length tells. Such models have one more feature than this problem, the constant.
        """
        centre_length = params.shape[-1] - self._centred_dim
        return centre_length in (self.train.dim, (1 + AXES) * self.train.dim)

    @property
    def _centred_dim(self) -> int:
        """Length of the weights of a centred problem, whose records have one more feature."""
        return self.dim + (self.classes or 1)

    def _cut_at_centre(self, params: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the weights of one model, and its centre (with axes, if any) that follows them."""
        return params[: self._centred_dim], params[self._centred_dim :]

    def constants(self, radius: float | None = None) -> Constants:
        """Return Lipschitz, smoothness and strong convexity constants of a node's objective.

        Parameters
        ----------
        radius
            Largest L2 norm of a node's parameters, for bounds within that ball; None for no bound.
            See `dpmesh.problems.linear_constants`.

        Raises
        ------
        ValueError
            If the problem has no `feature_norm`.
        """
        return self._constants(self.classes, radius)

    def model_constants(self, radius: float | None = None) -> Constants:
        """Return Lipschitz, smoothness and strong convexity constants of one of a node's `models`.

        Parameters
        ----------
        radius
            Largest L2 norm of that one model; None for no bound.

        Raises
        ------
        ValueError
            If the problem has no `feature_norm`, or a subclass overrides `gradient`: the constants
            do not apply to it.
        """
        if type(self).gradient is not LinearProblem.gradient:
            fail("problem", "model_constants of its own for a gradient of its own", "ours")
        return self._constants(self.classes if self.models == 1 else None, radius)

    def _constants(self, classes: int | None, radius: float | None) -> Constants:
        """Return the constants of models of this problem with this number of classes."""
        if self.feature_norm is None:
            fail("feature_norm", "a public bound on the norm of a record", None)
        loss = self.loss
        if loss == "multilabel" and classes is None:  # the model of one label
            loss = "logistic"
        return linear_constants(
            loss,
            self.feature_norm,
            classes=classes,
            regularization=self.regularization,
            radius=radius,
            label_bound=self.label_bound if self.classes is None else 1.0,
        )

    def _model_of(self, data: Dataset) -> LinearModel:
        """Return the kernel of training or test records, with the outline's weights of classes."""
        weights = None if self.outline is None else self.outline.class_weights
        if weights is not None:
            classes = np.maximum(data.labels, 0)  # a label of -1 is class 0
            weights = weights[classes]
        return LinearModel(
            data.features, data.labels, self.loss, classes=self.classes, weights=weights
        )

    def _check_labels(self, argument: str, dataset: Dataset) -> None:
        """Raise a ValueError unless a dataset's labels suit the loss; `argument` names it."""
        labels = dataset.labels
        if self.classes is not None:
            largest = self.classes - 1
            if self.loss == "multilabel":
                largest = 2**self.classes - 1
            expected = f"integer labels from 0 to {largest}"
            if labels.dtype != np.int64:
                fail(argument, expected, f"labels of {labels.dtype}")
            fits = (labels >= 0) & (labels <= largest)
        elif self.loss == "poisson":
            expected = "counts divided by their public bound, from 0 to 1"
            fits = (labels >= 0) & (labels <= 1)
        elif self.loss in REGRESSION:
            expected = f"labels of at most {self.label_bound} (label_bound)"
            fits = np.abs(labels) <= self.label_bound
        else:
            expected = "labels of -1 and +1 (see Dataset.relabelled, or data.positive in a file)"
            fits = np.abs(labels) == 1
        if not fits.all():
            fail(argument, expected, labels[~fits][0])

    def _default_outline(self) -> Outline:
        """Return an outline in which features and labels stand for themselves."""
        classes = None
        if self.classes is not None:
            classes = np.arange(self.classes)
        elif self.loss not in REGRESSION:
            classes = np.array([-1, 1])
        return Outline(
            columns=Features(dim=self.train.dim),
            classes=classes,
            target=Count(high=1.0) if self.loss == "poisson" else None,
            multilabel=self.loss == "multilabel",
        )

    def _set_outline(self) -> None:
        """Set the default outline if there is none; check that it suits data and loss."""
        outline = self.outline
        if outline is None:
            outline = self._default_outline()
        instance("outline", outline, "a dpmesh.tables.models.Outline, or None", Outline)
        fits_features = outline.columns.dim == self.train.dim
        fits_outputs = max(outline.outputs, 2) == (self.classes or 2)
        if not fits_features or not fits_outputs:
            expected = f"{self.train.dim} features, {self.classes or 'at most 2'} outputs"
            fail("outline", expected, f"{outline.columns.dim} and {outline.outputs}")
        if (self.loss == "poisson") != isinstance(outline.target, Count):
            fail("loss", "'poisson' for a label {counts = ..}, and for no other", repr(self.loss))
        if (self.loss == "multilabel") != outline.multilabel:
            labels_per_record = "several" if outline.multilabel else "one"
            expected = "'multilabel' for several labels of a record, and for no other"
            fail("loss", expected, f"{self.loss!r} for {labels_per_record}")
        object.__setattr__(self, "outline", outline)

    def _check_feature_norm(self) -> None:
        """Raise a ValueError if a training record's norm exceeds `feature_norm` beyond rounding."""
        if self.feature_norm is None:
            return
        bound = positive("feature_norm", self.feature_norm)
        x: Any = self.train.features
        if sparse.issparse(x):
            norms = np.sqrt(x.power(2, np.float64).sum(axis=1))
        elif isinstance(x, RoundedFeatures):
            norms = x.norms()
        else:
            norms = kernels.row_norms(x)
        longest = float(norms.max())
        if longest > bound * (1 + SLACK):
            fail("feature_norm", "at least the norm of every record", f"{bound} below {longest}")

    def _check_test(self, test: Dataset) -> None:
        """Raise a ValueError unless the test has the features and kind of labels of `train`."""
        if test.dim != self.train.dim or test.features.dtype != self.train.features.dtype:
            expected = f"{self.train.dim} features of {self.train.features.dtype}, as in train"
            fail("test", expected, f"{test.dim} of {test.features.dtype}")
        self._check_labels("test", test)


def _centred_copy(records: Any, centre: FloatArray) -> Any:
    """Return centered records in the type of the records, see `dpmesh.tables.features.centred`."""
    if isinstance(records, RoundedFeatures):
        return centred_rounded(records, centre, None)
    return centred(np.asarray(records), centre)

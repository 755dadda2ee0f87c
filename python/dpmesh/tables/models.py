"""Released models: prediction, saving and loading.

An `Outline` is the public part of a model: columns with their ranges, and classes or target range.
A `Model` adds the released weights. `Outline.model` makes a model from the vector that a run
released. Estimators, ``dpmesh fit`` and parties of a contract save a model as one npz file. To load
and apply a model of columns needs no part of the simulator.
"""

from __future__ import annotations

import io
import json
import os
import struct
import warnings
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from dpmesh import __version__
from dpmesh._files import JsonObject, replacing
from dpmesh._networks import MakeNetwork, name_of, named, scores_of
from dpmesh._untrusted import check_archive
from dpmesh._validate import fail, instance
from dpmesh.tables import Category, Columns, Features, Number
from dpmesh.tables.calibration import Calibration
from dpmesh.tables.cells import Cells
from dpmesh.tables.features import AXES
from dpmesh.tables.kinds import Count
from dpmesh.tables.labels import Label, Labels
from dpmesh.tables.ranges import as_label
from dpmesh.tables.table import TableLike

__all__ = ["Model", "Outline"]

Facts: TypeAlias = Mapping[str, Any]
"""Further facts about a model in plain types, such as its privacy report."""

_FORMAT = 1
"""Format of a model file without a calibration."""

_CALIBRATED_FORMAT = 2
"""Format of a model file with a calibration, which a reader of format 1 would ignore."""

_DAMAGED = (
    *(ValueError, KeyError, TypeError, EOFError, AttributeError, IndexError, OverflowError),
    *(MemoryError, RecursionError, NotImplementedError),
    *(zipfile.BadZipFile, zlib.error, struct.error, io.UnsupportedOperation),
)
"""Errors from reading a damaged or forged file, such as false headers or deeply nested JSON."""


def as_json(content: JsonObject) -> str:
    """Return the content of a model file as a JSON text.

    Raises
    ------
    TypeError
        If a value is of a type that JSON cannot hold.
    """
    return json.dumps(content, default=_python_scalar)


def _python_scalar(value: object) -> object:
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"{value!r} ({type(value).__name__}) cannot be written to a file")


@dataclass(frozen=True, kw_only=True, eq=False)
class Outline:
    """The public facts about a model: its inputs, its outputs and its loss, without weights.

    Parameters
    ----------
    columns
        The columns that the model reads, with their public ranges; or `Features`, numbers that need
        no encoding.
    classes
        The classes of a classifier, shape (outputs,): texts, numbers or booleans. With `multilabel`
        the names of the labels. None for a regression.
    target
        The public range of the target of a regression, mapped linearly to scores in [-1, 1]. A
        `Count` for a Poisson regression, whose scores are logarithms of shares of its bound. None
        for a classifier, and for a regression whose predictions are its scores.
    network
        Function that returns the network of a classifier, see `dpmesh.sklearn.PrivateClassifier`;
        None for a linear model.
    shares
        Share of each class among all records, in the order of `classes`, from public knowledge and
        never from labels. The loss of a record then has the weight ``min(shares) / share`` of its
        class, so that all classes have the same total weight. Weights are at most 1, so that the
        sensitivity does not grow. None for equal weights.
    multilabel
        True for multi-label classification: a record has any number of the labels `classes`.

    Raises
    ------
    ValueError
        If `classes` and `target` are both set, or `multilabel` is set without `classes`, with
        `shares` or with a network.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> columns = dm.tables.Columns.of({"age": [0, 100]}, ["age"])
    >>> dm.tables.models.Outline(columns=columns, classes=np.array(["ill", "well"])).outputs
    2
    """

    columns: Columns | Features
    classes: Cells | None = None
    target: Number | None = None
    network: MakeNetwork | None = None
    shares: tuple[float, ...] | None = None
    multilabel: bool = False

    def __post_init__(self) -> None:
        if self.classes is not None and self.target is not None:
            fail("classes", "classes of a classifier or the target range of a regression", "both")
        if not self.multilabel:
            return
        if self.classes is None or self.shares or self.network is not None:
            fail("multilabel", "labels of a linear model, without shares of classes", "others")

    @classmethod
    def of(
        cls, columns: Columns | Features, label: Label, network: MakeNetwork | None = None
    ) -> Outline:
        """Return the outline of a model for a label.

        Parameters
        ----------
        columns
            The columns or features that the model reads.
        label
            Public range of the label, or of several labels.
        network
            As for `Outline`.
        """
        if isinstance(label, Labels):
            names = np.array(label.names)
            return Outline(columns=columns, classes=names, network=network, multilabel=True)
        if isinstance(label, Number):
            return Outline(columns=columns, target=label)
        classes = np.array(label.categories)
        return Outline(columns=columns, classes=classes, network=network, shares=label.shares)

    @property
    def outputs(self) -> int:
        """Number of scores of a record."""
        if self.classes is None:
            return 1
        return len(self.classes)

    @property
    def loss(self) -> Literal["softmax", "multilabel", "squared", "poisson"]:
        """Loss of a linear model, as for `dpmesh.LinearProblem`."""
        if self.multilabel:
            return "multilabel"
        if self.classes is not None:
            return "softmax"
        if isinstance(self.target, Count):
            return "poisson"
        return "squared"

    @property
    def class_kind(self) -> Category:
        """The classes as a `Category`, whose `codes` finds the class of a label of any type."""
        assert self.classes is not None
        return Category(categories=tuple(self.classes.tolist()), shares=self.shares)

    def encode_labels(self, labels: Cells) -> Cells:
        """Encode labels for training, shape (records,).

        Parameters
        ----------
        labels
            Indices of classes or numbers, shape (records,), as `dpmesh.tables.labels.read_labels`
            returns them; 0 and 1 of several labels, shape (records, labels).

        Returns
        -------
        Indices of classes unchanged, numbers scaled to [-1, 1] (counts to [0, 1]), or the labels of
        a record as the bits of an integer.
        """
        if self.target is not None:
            return self.target.encode("label", labels).features[:, 0]
        if not self.multilabel:
            return labels
        from dpmesh.kernels.linear_model import as_sets  # a model is loaded without it

        return as_sets(labels)

    @property
    def class_weights(self) -> npt.NDArray[np.float64] | None:
        """Weight of the loss of a record, by class, in (0, 1]; None if all weights are 1."""
        if self.shares is None:
            return None
        return min(self.shares) / np.asarray(self.shares)

    def model(self, params: npt.ArrayLike, about: Facts | None = None) -> Model:
        """Return the model with released parameters.

        Parameters
        ----------
        params
            Released vector, such as a row of ``run.released``: the weights of each output in turn.
            A classifier of two classes may have the weights of the second class alone. After a
            `FirstStage` each output has one more weight, for the constant, and the centre follows
            the weights.
        about
            Further facts for the model to store, such as its privacy report.

        Raises
        ------
        ValueError
            If the number of parameters does not fit.
        """
        numbers = np.asarray(params, np.float64).reshape(-1)
        if self.network is not None:
            return self._with_weights(numbers.reshape(1, -1), about)
        two_classes = self.outputs == 2 and not self.multilabel
        dim = self.columns.dim
        if self.columns.centre is None:
            # with a first stage: weights of one more feature, then a centre, perhaps with axes
            possible_weight_vectors = (1, 2) if two_classes else (self.outputs,)
            for weight_vectors in possible_weight_vectors:
                centre_size = len(numbers) - weight_vectors * (dim + 1)
                if centre_size in (dim, (1 + AXES) * dim):
                    columns = self.columns.with_centre(numbers[-centre_size:])
                    centred = replace(self, columns=columns)
                    return centred.model(numbers[:-centre_size], about)
        if two_classes and len(numbers) == dim:
            # scores -s/2 and s/2 have the difference s, the score of the second class
            numbers = np.concatenate([-numbers, numbers]) / 2
        if len(numbers) != self.outputs * dim:
            fail("params", f"{self.outputs} x {dim} numbers", len(numbers))
        return self._with_weights(numbers.reshape(self.outputs, -1), about)

    def _with_weights(self, weights: npt.NDArray[np.float64], about: Facts | None) -> Model:
        """Return the model of this outline with these weights, shape (outputs, dim)."""
        return Model(
            columns=self.columns,
            classes=self.classes,
            target=self.target,
            network=self.network,
            shares=self.shares,
            multilabel=self.multilabel,
            weights=weights,
            about={} if about is None else about,
        )

    def as_dict(self) -> JsonObject:
        """Return the outline in plain types that JSON can hold."""
        return {
            "columns": self.columns.as_dict(),
            "classes": None if self.classes is None else self.classes.tolist(),
            "target": None if self.target is None else self.target.as_dict(),
            "network": None if self.network is None else name_of(self.network),
            "shares": self.shares,
            "several": self.multilabel,
        }

    @classmethod
    def from_dict(cls, saved: JsonObject, network: str | MakeNetwork | None = None) -> Outline:
        """Return the outline from a dictionary that `as_dict` returned.

        Parameters
        ----------
        saved
            The dictionary; it holds the name of a network, not the network.
        network
            Function that returns the network, or its name "module:function".

        Raises
        ------
        ValueError
            If the outline has a network and `network` is None.
        """
        name = saved.get("network")
        make_network: MakeNetwork | None = None
        if name is not None:
            if network is None:
                expected = f"the function that makes {name} (in the shell: --network {name})"
                fail("network", expected, None)
            make_network = named(network)
        columns: Columns | Features
        if "names" in saved["columns"]:
            columns = Columns.from_dict(saved["columns"])
        else:
            columns = Features.from_dict(saved["columns"])
        target: Any = None
        if saved["target"]:
            target = as_label("target", saved["target"])
        shares = saved.get("shares")
        return Outline(
            columns=columns,
            classes=None if saved["classes"] is None else np.array(saved["classes"]),
            target=target,
            network=make_network,
            shares=tuple(shares) if shares else None,
            multilabel=bool(saved.get("several")),
        )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Model(Outline):
    """A trained model: public facts and released weights.

    The model holds only public facts and releases. It may be published under the guarantee in
    ``about["privacy"]``.

    Parameters
    ----------
    columns, classes, target, network, shares, multilabel
        The public facts about the model, each as in `Outline`.
    weights
        Weights of a linear model, shape (outputs, ``columns.dim``): one row for each class or
        label, or one row for a regression. All parameters of a network, shape (1, parameters).
    about
        Further facts in plain types, such as the privacy report (key ``privacy``).
    calibration
        Correction of the predictions of a regression, see `dpmesh.algorithms.Calibrated`; None for
        no correction.

    Raises
    ------
    ValueError
        If shapes do not fit, `classes` and `target` are both set, or a classifier has a
        calibration.

    Examples
    --------
    >>> import numpy as np
    >>> import dpmesh as dm
    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, size=(300, 3))
    >>> model = dm.sklearn.PrivateClassifier(2.0, ranges=(-1, 1), classes=[False, True])
    >>> model.fit(X, X[:, 0] > 0, groups=np.arange(300) % 3).model_
    Model(2 classes, 3 columns, epsilon 2)
    """

    weights: npt.NDArray[np.float64]
    about: Facts = field(default_factory=dict)
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.calibration is not None and self.classes is not None:
            fail("calibration", "None for a classifier", self.calibration)
        shape = (self.outputs, self.columns.dim)
        if self.network is None and self.weights.shape != shape:
            fail("weights", f"shape {shape}", f"shape {self.weights.shape}")

    def __repr__(self) -> str:
        from dpmesh._epsilons import rounded_up  # a model is loaded without it

        if self.classes is None:
            kind = "regression"
        elif self.multilabel:
            kind = f"{len(self.classes)} labels"
        else:
            kind = f"{len(self.classes)} classes"
        if self.network is not None:
            kind += f", network {name_of(self.network)}"
        report = self.about.get("privacy", {})
        spent = self.about.get("epsilon", report.get("epsilon"))
        epsilon = "unknown" if spent is None else rounded_up(spent)
        return f"Model({kind}, {len(self.columns.names)} columns, epsilon {epsilon})"

    @property
    def params(self) -> npt.NDArray[np.float64]:
        """All released parameters in one vector, as `Outline.model` accepts it."""
        return np.concatenate([self.weights.reshape(-1), self.columns.centre or ()])

    def scores(self, table: TableLike) -> npt.NDArray[np.float64]:
        """Return the score of each output, shape (records, outputs).

        Parameters
        ----------
        table
            A table with the model's columns by name, as for `Columns.encode_table`, or an array of
            shape (records, columns). If `columns` are `Features`: an array or a sparse matrix of
            features, prepared like the training data.

        Raises
        ------
        ValueError
            If a column is missing, or holds values that its range does not allow.

        Warns
        -----
        UserWarning
            If values count as missing: they cannot be read or are not listed, or the table lacks
            their column.
        """
        features: Any
        if isinstance(self.columns, Features):
            features = self.columns.encode(table)
        else:
            encoded = self.columns.encode_table(table)
            features = encoded.features
            for notice in encoded._replace(outside={}).notices():
                warnings.warn(notice, UserWarning, stacklevel=3)
        if self.network is not None:
            return scores_of(self.network, self.weights[0], features)
        return self.calibrated(np.asarray(features @ self.weights.T))

    def calibrated(self, scores: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return scores after the calibration; unchanged if the model has none."""
        if self.calibration is None:
            return scores
        return self.calibration.of_scores(scores, self.target)

    def predict(self, table: TableLike) -> Cells:
        """Return the predicted class or number of each record, shape (records,).

        With `multilabel`: 1 for each label that is predicted and 0 for others, shape (records,
        labels).

        Parameters
        ----------
        table
            As for `scores`.
        """
        scores = self.scores(table)
        if self.multilabel:
            return (scores > 0).astype(np.int64)
        if self.classes is not None:
            return np.asarray(self.classes[scores.argmax(axis=1)])
        if self.target is None:
            return scores[:, 0]
        if isinstance(self.target, Count):
            return np.asarray(self.target.expected(scores[:, 0]))
        low, high = self.target.low, self.target.high
        predicted = (low + high) / 2 + (high - low) / 2 * scores[:, 0]
        return np.asarray(np.clip(predicted, low, high))

    def predict_proba(self, table: TableLike) -> npt.NDArray[np.float64]:
        """Return the probability of each class, or of each label, shape (records, classes).

        Parameters
        ----------
        table
            As for `scores`.

        Raises
        ------
        ValueError
            If the model is a regression, or as `scores`.
        """
        if self.classes is None:
            fail("model", "a classifier", "a regression, which has no probabilities")
        scores = self.scores(table)
        if self.multilabel:
            # the logistic function, whose exponential must not overflow
            return np.asarray(1 / (1 + np.exp(-np.clip(scores, -500, 500))))
        odds = np.exp(scores - scores.max(axis=1, keepdims=True))
        return np.asarray(odds / odds.sum(axis=1, keepdims=True))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model into one file.

        The file is a numpy archive (npz) without pickled objects: ``numpy.load(path)`` gives the
        arrays ``weights`` and ``about``, a JSON text with classes, ranges and the privacy report.

        Raises
        ------
        OSError
            If the file cannot be written; an older file of this name is then unchanged.
        """
        about = {
            "format": _FORMAT if self.calibration is None else _CALIBRATED_FORMAT,
            "dpmesh": __version__,
            **self.as_dict(),
            "about": dict(self.about),
        }
        if self.calibration is not None:
            about["calibration"] = self.calibration.as_dict()
        text = np.array(as_json(about))
        with replacing(os.fspath(path)) as file:
            np.savez(file, weights=self.weights, about=text)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, network: str | MakeNetwork | None = None
    ) -> Model:
        """Return the model from a file that `save` wrote.

        Parameters
        ----------
        path
            Path of the file.
        network
            Function that returns the network, or its name "module:function", if the model is a
            network. The file holds no code, and the name in the file is not imported.

        Raises
        ------
        ValueError
            If the file holds no model, or the model is a network and `network` is None.
        OSError
            If the file cannot be read.
        """
        instance("path", path, "the path of a file that Model.save wrote", str, os.PathLike)
        try:
            # read whole first: a false offset in a file must not look like an error of the disk
            content = io.BytesIO(Path(path).read_bytes())
            check_archive(content)
            with np.load(content, allow_pickle=False) as archive:
                weights = archive["weights"]
                saved = json.loads(str(archive["about"]))
            if not np.isfinite(weights).all():
                fail("weights", "finite numbers", "others")
            if saved["format"] not in (_FORMAT, _CALIBRATED_FORMAT):
                expected = f"a model of format {_FORMAT} or {_CALIBRATED_FORMAT}"
                fail("path", expected, f"format {saved['format']}")
            if saved.get("network") is None:
                model = Outline.from_dict(saved).model(weights, saved["about"])
                if saved["format"] == _FORMAT:
                    return model
                return replace(model, calibration=Calibration(**saved["calibration"]))
        except _DAMAGED as error:
            problem = f"{os.fspath(path)} holds no model of dpmesh, or is damaged"
            raise ValueError(f"{problem}; Model.save writes one") from error
        return Outline.from_dict(saved, network).model(weights, saved["about"])

"""Loaders of known data sets: two that ship with scikit-learn, and publishers' files.

No function downloads files, except `from_sklearn`. Features are as published, or divided by a
public number where stated; nothing is fitted to the data. Records keep the publisher's order, which
may be sorted: split and partition them with functions that shuffle.
"""

from __future__ import annotations

import os
from importlib import import_module, util
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dpmesh._arrays import new
from dpmesh._extras import needed_by
from dpmesh._validate import fail, one_of
from dpmesh.data.dataset import Dataset
from dpmesh.data.formats import StrPath, read_idx, read_libsvm, read_mat
from dpmesh.data.preprocessing import scaled

FOLDER_VARIABLE = "DPMESH_DATA"
"""Environment variable that names the folder with the subfolders mnist, svhn, rcv1 and so on."""

Part = Literal["train", "test"]

LIBSVM_SITE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets"
SOURCES = {
    "covtype": f"covtype.libsvm.binary.bz2 of {LIBSVM_SITE}/binary.html for two classes, "
    "covtype.data.gz of https://archive.ics.uci.edu/dataset/31/covertype for seven",
    "mnist": "the four .gz files of Y. LeCun's MNIST database of handwritten digits",
    "rcv1": f"rcv1_train.binary.bz2 and rcv1_test.binary.bz2 of {LIBSVM_SITE}/binary.html",
    "shakespeare": "t8.shakespeare.txt, Project Gutenberg's complete works of 1994",
    "svhn": "the cropped digits (format 2) of Netzer's Street View House Numbers",
}
"""Description of the publisher's files, by the name of the subfolder that holds them."""


def digits() -> Dataset:
    """Load the digits data set of scikit-learn: 1,797 handwritten digits, classes 0 to 9.

    A record has 8 x 8 pixels in [0, 1], row by row.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.data.digits()
    Dataset('digits', 1797 records of 64 features)
    """
    path = _shipped("digits.csv.gz")
    if path is None:
        return scaled(from_sklearn("digits"), 16)
    table = np.loadtxt(path, delimiter=",")
    return scaled(Dataset(table[:, :-1], table[:, -1].astype(int), "digits"), 16)


def _shipped(name: str) -> Path | None:
    """Return a data file that ships with scikit-learn, or None if it is not where it used to be.

    To import scikit-learn takes longer than all else that a short experiment does.
    """
    package = util.find_spec("sklearn")
    if package is None or package.origin is None:
        return None
    path = Path(package.origin).parent / "datasets" / "data" / name
    return path if path.is_file() else None


def breast_cancer() -> Dataset:
    """Load the breast cancer data set of scikit-learn: 569 tumours with 30 measurements each.

    The label is -1 for malignant and +1 for benign tumours.

    Examples
    --------
    >>> import dpmesh as dm
    >>> dm.data.breast_cancer().records
    569
    """
    return from_sklearn("breast_cancer").relabelled(lambda benign: 2 * benign - 1)


def from_sklearn(name: str, /, **options: Any) -> Dataset:
    """Load a data set of ``sklearn.datasets``, which may download it.

    Parameters
    ----------
    name
        ``"wine"`` for ``load_wine``, ``"covtype"`` for ``fetch_covtype``, ``"openml"`` for
        ``fetch_openml`` and so on.
    options
        Arguments of the function of ``sklearn.datasets``, as in
        ``from_sklearn("openml", name="mnist_784", version=1)``.

    Returns
    -------
    The records. Text labels become classes 0, 1, .. in alphabetical order.

    Raises
    ------
    ImportError
        If scikit-learn is not installed.
    ValueError
        If scikit-learn has no such data set, or its records are not numbers with one label each.
    """
    with needed_by(f"the data set {name!r}"):
        datasets = import_module("sklearn.datasets")
    load = getattr(datasets, f"load_{name}", None)
    if load is None:
        load = getattr(datasets, f"fetch_{name}", None)
    if load is None:
        fail("name", "a data set that sklearn.datasets loads or fetches", repr(name))
    bunch = load(**options)
    labels = np.asarray(bunch["target"])
    if labels.dtype.kind in "OUS":
        labels = np.unique(labels.astype(str), return_inverse=True)[1]
    return Dataset(bunch["data"], labels, str(options.get("name", name)))


def mnist(part: Part = "train", *, folder: StrPath | None = None) -> Dataset:
    """Load the MNIST data set: handwritten digits of 28 x 28 pixels, classes 0 to 9.

    There are 60,000 training records and 10,000 test records. Pixels are in [0, 1] (float32).

    ``images, digits = dm.data.mnist()`` gives the pair of arrays, with one row for each image.

    Parameters
    ----------
    part
        ``"train"`` or ``"test"``.
    folder
        Folder of the IDX files; by default the subfolder mnist of the folder that the environment
        variable DPMESH_DATA names.

    Raises
    ------
    ValueError
        If no folder is known, or a file is damaged.
    FileNotFoundError
        If the folder has no such file.
    """
    one_of("part", part, ("train", "test"))
    stem = {"train": "train", "test": "t10k"}[part]
    images = _read_mnist_file(f"{stem}-images-idx3-ubyte", folder)
    labels = _read_mnist_file(f"{stem}-labels-idx1-ubyte", folder)
    return Dataset(_unit_pixels(images), labels, "mnist")


def _read_mnist_file(name: str, folder: StrPath | None) -> npt.NDArray[Any]:
    """Return the array of one of MNIST's files, compressed or not."""
    return read_idx(find_file("mnist", folder, [f"{name}.gz", name]))


def svhn(
    part: Literal["train", "extra", "test"] = "train", *, folder: StrPath | None = None
) -> Dataset:
    """Load the SVHN data set: photographs of house-number digits, classes 0 to 9.

    A record has 32 x 32 pixels with 3 colours in [0, 1] (float32), in the order of an array of
    shape (32, 32, 3): ``record_shape=(32, 32, 3)``. There are 73,257 training records, 531,131
    easier ones (``"extra"``), and 26,032 test records.

    Parameters
    ----------
    part
        ``"train"``, ``"extra"`` or ``"test"``.
    folder
        Folder of ``train_32x32.mat`` and so on; by default the subfolder svhn of the folder that
        the environment variable DPMESH_DATA names.

    Raises
    ------
    ValueError
        If no folder is known, or a file is damaged.
    FileNotFoundError
        If the folder has no such file.
    """
    one_of("part", part, ("train", "extra", "test"))
    path = find_file("svhn", folder, [f"{part}_32x32.mat"])
    images, labels = read_mat(path, "X", "y")
    labels = labels.reshape(-1).astype(np.int64)
    shape = (32, 32, 3, len(labels))
    is_known_label = (labels >= 1) & (labels <= 10)
    if images.shape != shape or not is_known_label.all():
        got = f"{images.shape} in {os.fspath(path)}"
        fail("path", f"images of shape {shape} and labels 1 to 10", got)
    pixels = _unit_pixels(np.moveaxis(images, 3, 0))
    digit_labels = labels % 10  # 10 stands for the digit 0
    return Dataset(pixels, digit_labels, "svhn")


def rcv1(part: Part = "train", *, folder: StrPath | None = None) -> Dataset:
    """Load the RCV1 data set: Reuters news in two groups of topics, labels -1 and +1.

    A record has 47,236 sparse features, and norm 1. The function reads LIBSVM's files, or subsets
    of them with the same numbering of features (``rcv1_subset_train.binary.bz2``,
    ``rcv1_subset_test.binary.bz2``).

    Parameters
    ----------
    part
        ``"train"`` or ``"test"``.
    folder
        Folder of the files; by default the subfolder rcv1 of the folder that the environment
        variable DPMESH_DATA names.

    Raises
    ------
    ImportError
        If scikit-learn is not installed.
    ValueError
        If no folder is known, or a file is damaged.
    FileNotFoundError
        If the folder has no such file.
    """
    one_of("part", part, ("train", "test"))
    names = [f"rcv1_{part}.binary.bz2", f"rcv1_subset_{part}.binary.bz2"]
    return read_libsvm(find_file("rcv1", folder, names), dim=47_236)


def covertype(classes: Literal[2, 7] = 2, *, folder: StrPath | None = None) -> Dataset:
    """Load the covertype data set: forest cover types from 54 features, 581,012 records.

    The features are dense and not scaled. The records have the publisher's order.

    Parameters
    ----------
    classes
        2 reads LIBSVM's binary file: +1 for lodgepole pine (the publisher's class 2), -1 for the
        rest. 7 reads the UCI table, or its sample ``covtype_sample50k.data.gz``; the publisher's
        classes 1 to 7 become 0 to 6.
    folder
        Folder of the file; by default the subfolder covtype of the folder that the environment
        variable DPMESH_DATA names.

    Raises
    ------
    ImportError
        If `classes` is 2 and scikit-learn is not installed.
    ValueError
        If no folder is known, or the file is damaged.
    FileNotFoundError
        If the folder has no such file.
    """
    if one_of("classes", classes, (2, 7)) == 7:
        names = ["covtype.data.gz", "covtype.data", "covtype_sample50k.data.gz"]
        path = find_file("covtype", folder, names)
        table = np.loadtxt(path, delimiter=",", ndmin=2)
        labels = table[:, -1].astype(np.int64) - 1
        return Dataset(table[:, :-1], labels, path.name.split(".")[0])
    path = find_file("covtype", folder, ["covtype.libsvm.binary.bz2"])
    dataset = read_libsvm(path, dim=54)
    dense = dataset.features.toarray()  # type: ignore[union-attr]  # a LIBSVM file is sparse
    signed_labels = 2 * dataset.labels - 3  # the file's labels are 1 and 2
    return Dataset(dense, signed_labels, dataset.name)


def _unit_pixels(images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Divide pixels, from 0 to 255, by 255; return one row for each image."""
    rows = images.reshape(len(images), -1)
    pixels = new(rows.shape, np.float32)
    np.divide(rows, np.float32(255), out=pixels, dtype=np.float32)
    return pixels


def find_file(data_set: str, folder: StrPath | None, names: list[str]) -> Path:
    """Return the path of the first of several files that exists.

    Parameters
    ----------
    data_set
        Name of the data set: a key of `SOURCES`.
    folder
        Folder of the files. None stands for the subfolder `data_set` of the folder that the
        environment variable DPMESH_DATA names.
    names
        Names of the files, in order of preference.

    Raises
    ------
    ValueError
        If `folder` is None and the environment variable is not set.
    FileNotFoundError
        If the folder has none of the files.
    """
    source = SOURCES[data_set]
    argument = "folder"
    if folder is None:
        argument = FOLDER_VARIABLE
        root = os.environ.get(FOLDER_VARIABLE)
        if not root:
            expectation = (
                f"the folder that holds {source}; or set {FOLDER_VARIABLE}, "
                f"whose subfolder {data_set} is taken"
            )
            fail("folder", expectation, "None")
        folder = Path(root) / data_set
    for name in names:
        path = Path(folder) / name
        if path.is_file():
            return path
    choices = " or ".join(names)
    raise FileNotFoundError(f"{argument}: wanted {choices} in {os.fspath(folder)}; get {source}")

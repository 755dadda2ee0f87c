"""Readers of files against files written here, and the loaders of named data sets."""

from __future__ import annotations

import bz2
import gzip
import struct
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse
from scipy.io import savemat

from dpmesh import data
from dpmesh.data import loaders
from dpmesh.data.formats import IDX_TYPES


def write(path: Path, content: bytes) -> Path:
    compress = {".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix, bytes)
    path.write_bytes(compress(content))
    return path


def idx(array: np.ndarray) -> bytes:
    code = next(c for c, dtype in IDX_TYPES.items() if np.dtype(dtype) == array.dtype)
    head = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    return head + array.tobytes()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(sorted(IDX_TYPES.values())).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=4, max_side=4))
    ),
    st.sampled_from(["", ".gz", ".bz2"]),
)
def test_idx_files_give_their_array(tmp_path: Path, array: np.ndarray, suffix: str) -> None:
    read = data.read_idx(write(tmp_path / f"x{suffix}", idx(array)))
    np.testing.assert_array_equal(read, array)
    assert read.dtype.isnative


@pytest.mark.parametrize("suffix", ["", ".gz", ".bz2"])
def test_libsvm_files(tmp_path: Path, suffix: str) -> None:
    path = write(tmp_path / f"toy.v1{suffix}", b"+1 1:0.5 3:-2e-3\n-1 2:7 # note\n-1\n")
    read = data.read_libsvm(path, dim=5)
    assert read.name == "toy"
    assert read.labels.dtype == np.int64
    np.testing.assert_array_equal(read.labels, [1, -1, -1])
    assert isinstance(read.features, sparse.csr_array)
    assert read.features.indices.dtype == np.int32
    expected = [[0.5, 0, -0.002, 0, 0], [0, 7, 0, 0, 0], [0, 0, 0, 0, 0]]
    np.testing.assert_array_equal(read.features.toarray(), expected)
    assert data.read_libsvm(path).dim == 3


def test_real_targets_stay_real(tmp_path: Path) -> None:
    read = data.read_libsvm(write(tmp_path / "x", b"0.5 1:1\n2 1:2\n"))
    np.testing.assert_array_equal(read.labels, [0.5, 2.0])


@pytest.mark.parametrize(
    ("reader", "content", "message"),
    [
        (data.read_idx, b"", "path: wanted an IDX file, got .*x, which starts with $"),
        (data.read_idx, b"P5 12", "path: wanted an IDX file, .* starts with 50352031"),
        (data.read_idx, b"\0\0\x07\x01\0\0\0\0", "path: wanted an IDX file"),
        (data.read_idx, b"\0\0\x08\x01\0\0\0\x03ab", "wanted an IDX file of 11 bytes.*, got 10 in"),
        (data.read_idx, b"\0\0\x08\x01\0\0\0\x01ab", "wanted an IDX file of 9 bytes.*, got 10 in"),
        (data.read_idx, b"\0\0\x08\x02\0\0\0\x01", "path: wanted an IDX file"),
        (data.read_libsvm, b"1 0:3\n", "path: wanted a LIBSVM file, got .*x: "),
        (data.read_libsvm, b"one 1:3\n", "path: wanted a LIBSVM file, got .*x: "),
        (lambda p: data.read_libsvm(p, dim=2), b"1 3:1\n", "wanted a LIBSVM file of 2 features"),
        (lambda p: data.read_libsvm(p, dim=0), b"1 3:1\n", "dim: wanted an integer of at least 1"),
        (data.read_libsvm, b"1 1:nan\n", "features: wanted finite numbers"),
    ],
)
def test_a_damaged_file_is_named(
    tmp_path: Path, reader: object, content: bytes, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        reader(write(tmp_path / "x", content))  # type: ignore[operator]


def test_embedded_data_sets() -> None:
    digits = data.digits()
    assert digits.features.shape == (1797, 64)
    assert (digits.features.min(), digits.features.max()) == (0.0, 1.0)
    np.testing.assert_array_equal(np.unique(digits.labels), range(10))
    cancer = data.breast_cancer()
    assert cancer.features.shape == (569, 30)
    assert [int((cancer.labels == label).sum()) for label in (-1, 1)] == [212, 357]
    assert data.from_sklearn("wine").records == 178
    assert data.from_sklearn("diabetes").labels.dtype == np.float64


def test_digits_are_those_of_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read without it, and through it if it keeps the file elsewhere."""
    code = "import sys, dpmesh as dm; dm.data.digits(); sys.exit('sklearn' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    fast = data.digits()
    monkeypatch.setattr(loaders, "_shipped", lambda name: None)
    slow = data.digits()
    assert fast.name == slow.name
    for name in ("features", "labels"):
        ours, theirs = getattr(fast, name), getattr(slow, name)
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def test_fetched_data_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch_openml(name: str, version: int) -> dict[str, object]:
        assert (name, version) == ("pets", 3)
        return {"data": [[1.0], [2.0], [3.0]], "target": np.array(["dog", "cat", "dog"], object)}

    fake = SimpleNamespace(fetch_openml=fetch_openml)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", fake)
    pets = data.from_sklearn("openml", name="pets", version=3)
    assert pets.name == "pets"
    np.testing.assert_array_equal(pets.labels, [1, 0, 1])
    with pytest.raises(ValueError, match=r"name: wanted a data set .* got 'horses'"):
        data.from_sklearn("horses")


def test_a_missing_scikit_learn_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    monkeypatch.setattr(loaders, "_shipped", lambda name: None)
    for call in (data.digits, lambda: data.read_libsvm(tmp_path / "x")):
        with pytest.raises(ImportError, match=r"needs scikit-learn: pip install scikit-learn"):
            call()


def test_folders_are_resolved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DPMESH_DATA", raising=False)
    with pytest.raises(ValueError, match=r"folder: wanted .*MNIST.*DPMESH_DATA, .* mnist is taken"):
        data.mnist()
    with pytest.raises(FileNotFoundError, match=r"covtype\.data\.gz or .*; get .*archive\.ics"):
        data.covertype(7, folder=tmp_path)
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    (tmp_path / "mnist").mkdir()
    for name, array in [("images-idx3", pixels), ("labels-idx1", np.array([7, 2], np.uint8))]:
        write(tmp_path / "mnist" / f"t10k-{name}-ubyte", idx(array))
    monkeypatch.setenv("DPMESH_DATA", str(tmp_path))
    for read in (data.mnist("test"), data.mnist("test", folder=tmp_path / "mnist")):
        assert read.features.dtype == np.float32
        np.testing.assert_array_equal(read.features * 255, pixels.reshape(2, 12))
        np.testing.assert_array_equal(read.labels, [7, 2])
    images, digits = data.mnist("test")
    assert (images.shape, digits.tolist()) == ((2, 12), [7, 2])
    with pytest.raises(FileNotFoundError, match=r"train-images-idx3-ubyte\.gz or .* in .*mnist;"):
        data.mnist()
    for call in (lambda: data.mnist("dev"), lambda: data.rcv1("dev")):  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="part: wanted one of 'train', 'test', got 'dev'"):
            call()
    with pytest.raises(ValueError, match="classes: wanted one of 2, 7, got 3"):
        data.covertype(3)  # type: ignore[arg-type]


def test_covertype_labels(tmp_path: Path) -> None:
    row = ",".join(["3"] * 54)
    write(tmp_path / "covtype.data.gz", f"{row},1\n{row},7\n".encode())
    write(tmp_path / "covtype.libsvm.binary.bz2", b"1 1:2596\n2 54:1\n")
    seven, two = data.covertype(7, folder=tmp_path), data.covertype(folder=tmp_path)
    np.testing.assert_array_equal(seven.labels, [0, 6])
    np.testing.assert_array_equal(two.labels, [-1, 1])
    assert two.dim == seven.dim == 54
    assert isinstance(two.features, np.ndarray)


@pytest.mark.slow
def test_real_mnist(real_data: Path) -> None:
    train, test = data.mnist(folder=real_data / "mnist"), data.mnist("test")
    assert train.features.shape == (60000, 784)
    assert test.features.shape == (10000, 784)
    assert train.features.mean(dtype=float) == pytest.approx(0.1307, abs=5e-5)
    assert train.features.std(dtype=float) == pytest.approx(0.3081, abs=5e-5)
    counts = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    np.testing.assert_array_equal(np.bincount(train.labels), counts)
    counts = [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    np.testing.assert_array_equal(np.bincount(test.labels), counts)


@pytest.mark.slow
def test_real_rcv1(real_data: Path) -> None:
    for part, positive, negative, used in [
        ("train", 6111, 6295, 23973),
        ("test", 5715, 5618, 23628),
    ]:
        records = data.rcv1(part, folder=real_data / "rcv1")  # type: ignore[arg-type]
        assert records.dim == 47236
        assert [int((records.labels == label).sum()) for label in (1, -1)] == [positive, negative]
        assert len(np.unique(records.features.indices)) == used
        norms = np.sqrt(records.features.multiply(records.features).sum(axis=1))
        np.testing.assert_allclose(norms, 1, atol=2.3e-6)


@pytest.mark.slow
def test_real_covertype(real_data: Path) -> None:
    full = data.covertype(folder=real_data / "covtype")
    assert full.features.shape == (581012, 54)
    assert [int((full.labels == label).sum()) for label in (-1, 1)] == [297711, 283301]
    first, last = full.features[0, :10], full.features[-1, :10]
    np.testing.assert_array_equal(first, [2596, 51, 3, 258, 0, 510, 221, 232, 148, 6279])
    np.testing.assert_array_equal(last, [2383, 165, 13, 60, 4, 67, 231, 244, 141, 875])
    areas, soils = full.features[:, 10:14], full.features[:, 14:]
    np.testing.assert_array_equal(areas.sum(axis=0), [260796, 29884, 253364, 36968])
    assert (areas.sum(axis=1) == 1).all()
    assert (soils.sum(axis=1) == 1).all()
    sample = data.covertype(7, folder=real_data / "covtype")
    counts = [18230, 24380, 3077, 236, 817, 1495, 1765]
    np.testing.assert_array_equal(np.bincount(sample.labels), counts)


@pytest.mark.parametrize("read", [data.read_idx, data.read_libsvm, data.read_mat])
def test_a_number_is_no_file(read) -> None:
    """Opened as a descriptor it would be read, and closed under whoever else has it open."""
    with pytest.raises(ValueError, match="path: wanted the path of a file"):
        read(3)


def house_numbers(folder, part, images, labels) -> None:
    savemat(folder / f"{part}_32x32.mat", {"X": images, "y": labels})


def test_svhn_is_read_from_the_publishers_files(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "svhn"
    folder.mkdir()
    images = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
    for part in ("train", "extra", "test"):
        house_numbers(folder, part, images, np.array([[1], [10], [3], [9]], np.uint8))
        records = data.svhn(part, folder=folder)
        assert records.labels.tolist() == [1, 0, 3, 9]
        assert records.features.dtype == np.float32
        pixels = records.features.reshape(4, 32, 32, 3)
        np.testing.assert_allclose(pixels[2, 5, 7, 1], images[5, 7, 1, 2] / 255)
    monkeypatch.setenv("DPMESH_DATA", str(tmp_path))
    np.testing.assert_array_equal(data.svhn("test").features, records.features)


def test_house_numbers_that_do_not_fit_are_named(tmp_path, monkeypatch) -> None:
    images = np.zeros((32, 32, 3, 2), np.uint8)
    with pytest.raises(FileNotFoundError, match=r"train_32x32\.mat in .*; get the cropped digits"):
        data.svhn(folder=tmp_path)
    with pytest.raises(ValueError, match="part: wanted one of 'train', 'extra', 'test'"):
        data.svhn("dev", folder=tmp_path)  # type: ignore[arg-type]
    monkeypatch.delenv("DPMESH_DATA", raising=False)
    with pytest.raises(ValueError, match="folder: wanted the folder that holds the cropped digits"):
        data.svhn()
    for bad in (np.array([1, 11]), np.array([0, 1]), np.array([1, 2, 3])):
        house_numbers(tmp_path, "train", images, bad)
        with pytest.raises(ValueError, match=r"path: wanted images of shape .* and labels 1 to 10"):
            data.svhn(folder=tmp_path)
    savemat(tmp_path / "train_32x32.mat", {"X": images})
    with pytest.raises(ValueError, match="path: wanted arrays X, y, got none y in"):
        data.svhn(folder=tmp_path)
    (tmp_path / "train_32x32.mat").write_bytes(b"no such file at all" * 20)
    with pytest.raises(ValueError, match="path: wanted a MATLAB file, got"):
        data.svhn(folder=tmp_path)

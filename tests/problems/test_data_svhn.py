"""House numbers: the publisher's MATLAB files, in small."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.io import savemat

from dpmesh import data


def write(folder, part, images, labels) -> None:
    savemat(folder / f"{part}_32x32.mat", {"X": images, "y": labels})


def test_images_and_labels(tmp_path, monkeypatch) -> None:
    folder = tmp_path / "svhn"
    folder.mkdir()
    images = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 4), dtype=np.uint8)
    for part in ("train", "extra", "test"):
        write(folder, part, images, np.array([[1], [10], [3], [9]], np.uint8))
        records = data.svhn(part, folder=folder)
        assert records.labels.tolist() == [1, 0, 3, 9]
        assert records.features.dtype == np.float32
        pixels = records.features.reshape(4, 32, 32, 3)
        np.testing.assert_allclose(pixels[2, 5, 7, 1], images[5, 7, 1, 2] / 255)
    monkeypatch.setenv("DPMESH_DATA", str(tmp_path))
    np.testing.assert_array_equal(data.svhn("test").features, records.features)


def test_what_does_not_fit_is_named(tmp_path, monkeypatch) -> None:
    images = np.zeros((32, 32, 3, 2), np.uint8)
    with pytest.raises(FileNotFoundError, match=r"train_32x32\.mat in .*; get the cropped digits"):
        data.svhn(folder=tmp_path)
    with pytest.raises(ValueError, match="part: wanted one of 'train', 'extra', 'test'"):
        data.svhn("dev", folder=tmp_path)  # type: ignore[arg-type]
    monkeypatch.delenv("DPMESH_DATA", raising=False)
    with pytest.raises(ValueError, match="folder: wanted the folder that holds the cropped digits"):
        data.svhn()
    for bad in (np.array([1, 11]), np.array([0, 1]), np.array([1, 2, 3])):
        write(tmp_path, "train", images, bad)
        with pytest.raises(ValueError, match=r"path: wanted images of shape .* and labels 1 to 10"):
            data.svhn(folder=tmp_path)
    savemat(tmp_path / "train_32x32.mat", {"X": images})
    with pytest.raises(ValueError, match="path: wanted arrays X, y, got none y in"):
        data.svhn(folder=tmp_path)
    (tmp_path / "train_32x32.mat").write_bytes(b"no such file at all" * 20)
    with pytest.raises(ValueError, match="path: wanted a MATLAB file, got"):
        data.svhn(folder=tmp_path)

"""Record-local preprocessing: the formulas, scattering, and that a record is changed by itself."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from refused import refused
from scipy import fft, sparse

from dpmesh import data
from dpmesh.data import Dataset
from dpmesh.tables.wavelets import _filters, transform

FEATURES = st.sampled_from([np.float32, np.float64]).flatmap(
    lambda dtype: hnp.arrays(
        dtype,
        hnp.array_shapes(min_dims=2, max_dims=2, max_side=8),
        elements=st.one_of(st.just(0.0), st.floats(-1000, 1000, width=16)),
    )
)


def both(x: np.ndarray) -> list[Dataset]:
    """The same records dense and sparse."""
    labels = np.arange(len(x))
    return [Dataset(x, labels, "x"), Dataset(sparse.csr_array(x), labels, "x")]


def dense(dataset: Dataset) -> np.ndarray:
    x = dataset.features
    return x.toarray() if sparse.issparse(x) else x


def test_many_records_begin_with_a_line_of_the_cache() -> None:
    """Kernels then read no vector in two pieces."""
    dataset = Dataset(np.ones((1000, 48), np.float32), np.zeros(1000, int))
    for made in (data.scaled(dataset, 2), data.unit_norm(dataset), dataset.take(np.arange(900))):
        assert made.features.ctypes.data % 64 == 0


@given(FEATURES, st.floats(1e-3, 1e3))
def test_the_formulas(x: np.ndarray, divisor: float) -> None:
    norms = np.linalg.norm(x.astype(float), axis=1, keepdims=True)
    divisors = np.linspace(1, divisor, x.shape[1])
    tolerance = {"rtol": 4 * np.finfo(x.dtype).eps, "atol": 0}
    for dataset in both(x):
        cases = [
            (data.scaled(dataset, divisor), x / divisor),
            (data.scaled(dataset, divisors), x / divisors),
            (data.unit_norm(dataset), x / np.where(norms > 0, norms, 1)),
            (data.with_constant(dataset, 2.0), np.hstack([x, np.full((len(x), 1), 2.0)])),
        ]
        for after, expected in cases:
            np.testing.assert_allclose(dense(after), expected, **tolerance)
            assert after.features.dtype == x.dtype
            assert type(after.features) is type(dataset.features)
            np.testing.assert_array_equal(after.labels, dataset.labels)


@given(FEATURES, st.integers(1, 5))
def test_a_projection_is_public_and_the_same_for_all(x: np.ndarray, dim: int) -> None:
    directions = np.random.default_rng(1).standard_normal((x.shape[1], dim)) / np.sqrt(dim)
    for dataset in both(x):
        projected = data.random_projection(dataset, dim, np.random.default_rng(1))
        assert projected.features.dtype == x.dtype
        bound = 10 * np.finfo(x.dtype).eps * np.abs(x).sum(axis=1).max() * np.abs(directions).max()
        np.testing.assert_allclose(projected.features, x @ directions, rtol=0, atol=bound)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: data.scaled(d, 7),
        data.unit_norm,
        data.with_constant,
        lambda d: data.random_projection(d, 3, np.random.default_rng(0)),
    ],
)
def test_no_record_depends_on_another(change: Callable[[Dataset], Dataset]) -> None:
    x = np.random.default_rng(0).standard_normal((6, 5))
    for before, other in zip(both(x), both(np.vstack([x[:5], 100 * x[5:] + 1])), strict=True):
        one, two = dense(change(before)), dense(change(other))
        np.testing.assert_array_equal(one[:5], two[:5])
        assert (one[5] != two[5]).any()


def test_records_are_taken_and_relabelled() -> None:
    for dataset in both(np.arange(6.0).reshape(3, 2)):
        np.testing.assert_array_equal(dense(dataset.take(np.array([2, 0]))), [[4, 5], [0, 1]])
        np.testing.assert_array_equal(dataset.take(np.array([2, 0])).labels, [2, 0])
        np.testing.assert_array_equal(dense(dataset.take(np.array([-1]))), [[4, 5]])
        for which in ([True] * 3, [False, True, True]):
            mask = np.array(which)
            np.testing.assert_array_equal(dense(dataset.take(mask)), dense(dataset)[mask])
            np.testing.assert_array_equal(dataset.take(mask).labels, dataset.labels[mask])
        for wrong in (np.array([3]), np.array([-4]), np.array([True, False])):
            with pytest.raises(IndexError):
                dataset.take(wrong)
        odd = dataset.relabelled(lambda label: label % 2 == 1)
        np.testing.assert_array_equal(odd.labels, [0, 1, 0])
        assert odd.labels.dtype == np.int64
        with pytest.raises(ValueError, match="labels: wanted shape"):
            dataset.relabelled(lambda label: label[:1])


TOY = Dataset(np.ones((2, 3)), [0, 1], "toy")


test_bad_input_is_named = refused(
    (lambda: data.scaled(TOY, [1, -1, 1]), "divisor: wanted finite numbers greater than 0"),
    (lambda: data.scaled(TOY, [1, 2]), r"divisor: wanted one number or shape \(3,\), got .*2"),
    (lambda: data.scaled(np.eye(2), 1.0), "dataset: wanted a Dataset, such as .*, got array"),
    (lambda: data.unit_norm(np.eye(2)), "dataset: wanted a Dataset, such as .*, got array"),
    (lambda: data.with_constant(np.eye(2)), "dataset: wanted a Dataset, such as .*, got array"),
    (lambda: data.random_projection(None, 1, None), "dataset: wanted a Dataset, .*, got None"),
)


def in_full(x: np.ndarray, scales: int, angles: int) -> np.ndarray:
    """Convolve with every filter at every pixel, and keep every 2^J-th at the end."""
    window = 2**scales
    padded = np.pad(x.astype(np.float64), window, mode="reflect")
    phi, psi = _filters(padded.shape, scales, angles)

    def apart(image: np.ndarray, spectrum: np.ndarray) -> np.ndarray:
        return fft.ifft2(fft.fft2(image) * spectrum.astype(np.float64))

    first = [(j, np.abs(apart(padded, one))) for j, some in enumerate(psi) for one in some]
    second = [
        np.abs(apart(image, one))
        for j, image in first
        for above in range(j + 1, scales)
        for one in psi[above]
    ]
    means = [apart(image, phi).real for image in (padded, *(image for _, image in first), *second)]
    inside = np.stack(means)[:, ::window, ::window]
    return inside[:, 1 : 1 + x.shape[0] // window, 1 : 1 + x.shape[1] // window]


def pictures(count: int, height: int, width: int) -> np.ndarray:
    draw = np.random.default_rng(3)
    rough = draw.random((count, height, width))
    return fft.ifft2(fft.fft2(rough) * np.exp(-0.3 * np.arange(width))).real.astype(np.float32)


@pytest.mark.parametrize(
    ("scales", "angles", "size"), [(1, 4, (6, 8)), (2, 4, (12, 8)), (2, 8, (28, 28))]
)
def test_coefficients_are_those_of_full_convolutions(
    scales: int, angles: int, size: tuple[int, int]
) -> None:
    x = pictures(2, *size)
    found = transform(x, scales=scales, angles=angles)
    for image, coefficients in zip(x, found, strict=True):
        expected = in_full(image, scales, angles)
        scale = np.abs(expected).max(axis=(1, 2), keepdims=True)
        assert (np.abs(coefficients - expected) / scale).max() < 0.06  # aliases of wide filters
    channels = 1 + scales * angles + angles**2 * scales * (scales - 1) // 2
    assert found.shape == (2, channels, size[0] // 2**scales, size[1] // 2**scales)


def test_coefficients_are_those_of_kymatio() -> None:
    frontend = pytest.importorskip("kymatio.scattering2d.frontend.numpy_frontend")
    x = pictures(3, 28, 28)
    expected = frontend.ScatteringNumPy2D(2, (28, 28), L=8)(x.astype(np.float64))
    found = transform(x, scales=2, angles=8)
    scale = np.abs(expected).max(axis=(0, 2, 3), keepdims=True)
    assert (np.abs(found - expected) / scale).max() < 0.02  # filters end elsewhere


def test_a_record_is_transformed_by_itself() -> None:
    x = pictures(300, 8, 8).reshape(300, -1)
    labels = np.zeros(300)
    together = data.scattering(Dataset(x, labels), (8, 8), angles=4)
    alone = data.scattering(Dataset(x[257:258], labels[:1]), (8, 8), angles=4)
    np.testing.assert_allclose(together.features[257:258], alone.features, atol=1e-4)
    assert together.features.dtype == np.float32
    twice = data.scattering(Dataset(2 * x[:1], labels[:1]), (8, 8), angles=4)
    np.testing.assert_allclose(twice.features, together.features[:1], atol=1e-4)


def test_a_blank_image_has_features_of_zero() -> None:
    blank = data.scattering(Dataset(np.zeros((1, 64)), np.zeros(1)), (8, 8), angles=4)
    assert not blank.features.any()


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match="multiples of 4"):
        data.scattering(Dataset(np.zeros((1, 60)), np.zeros(1)), (6, 10))
    with pytest.raises(ValueError, match="8 x 8 = 64 pixels"):
        data.scattering(Dataset(np.zeros((1, 63)), np.zeros(1)), (8, 8))

"""Results of kernels: memory of their own, taken over from arrays that are gone."""

import gc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from dpmesh import _memory, kernels
from dpmesh.data import Dataset

WIDE = _memory.SMALLEST // 4


def address(array):
    return array.ctypes.data


@pytest.fixture(autouse=True)
def nothing_kept():
    gc.collect()  # what earlier tests left in cycles would be kept when it goes
    _memory._kept.clear()


def test_memory_of_an_array_that_is_gone_is_used_again():
    first = kernels.clip_rows(np.ones((2, WIDE), np.float32), 1.0)
    where = address(first)
    del first
    assert address(kernels.clip_rows(np.ones((2, WIDE), np.float32), 1.0)) == where


def test_memory_is_not_used_again_while_a_view_refers_to_it():
    x = np.ones((2, WIDE), np.float32)
    view = kernels.clip_rows(x, 1.0)[1:].view(np.int32)
    kept = view.copy()
    others = [kernels.clip_rows(2 * x, 2.0) for _ in range(3)]
    assert len({address(other) for other in others}) == 3
    np.testing.assert_array_equal(view, kept)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "bool"])
def test_an_array_is_as_numpy_makes_it(dtype):
    array = _memory.empty((3, WIDE, 2), np.dtype(dtype))
    assert (array.shape, array.dtype) == ((3, WIDE, 2), dtype)
    assert array.flags.carray
    assert address(array) % _memory.LINE == 0
    array[:] = 1
    assert array.all()


def test_small_arrays_are_numpys_own():
    assert kernels.clip_rows(np.ones(8), 1.0).base is None


def test_what_is_kept_has_a_bound():
    shapes = [(_memory.SMALLEST + 64 * i,) for i in range(_memory.MOST + 3)]
    arrays = [_memory.empty(shape, np.dtype(np.int8)) for shape in shapes]
    newest = [array.size for array in arrays[3:]]
    while arrays:
        del arrays[0]
    gc.collect()
    assert [memory.size for memory in _memory._kept] == newest
    large = _memory.empty((_memory.LARGEST + 1,), np.dtype(np.int8))
    assert address(large) % _memory.LINE == 0
    del large
    assert [memory.size for memory in _memory._kept] == newest


def test_threads_never_share_memory():
    def work(number):
        for _ in range(200):
            array = _memory.empty((_memory.SMALLEST,), np.dtype(np.int8))
            array[:] = number
            if not (array == number).all():
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_arrays_between_the_places_of_numbers_are_copied():
    def misplaced(array):
        return np.frombuffer(b"!" + array.tobytes(), np.uint8)[1:].view(array.dtype)

    x, labels, batch = np.arange(6.0), np.array([1.0, -1.0]), np.array([1, 0])
    between = misplaced(x)
    assert between.flags.c_contiguous
    assert not between.flags.aligned
    np.testing.assert_array_equal(kernels.clip_rows(between, 2.0), kernels.clip_rows(x, 2.0))
    features, params = x.reshape(2, 3), np.ones((1, 3))
    found = kernels.linear_loss(
        params, between.reshape(2, 3), misplaced(labels), misplaced(batch).reshape(1, 2), "hinge"
    )
    expected = kernels.linear_loss(params, features, labels, batch.reshape(1, 2), "hinge")
    np.testing.assert_array_equal(found, expected)
    assert Dataset(between.reshape(2, 3), labels).features.flags.aligned


def test_an_array_may_outlive_the_names_of_its_module(monkeypatch):
    failed = []
    monkeypatch.setattr("sys.unraisablehook", failed.append)
    arrays = [_memory.empty((size,), np.dtype(np.int8)) for size in (2**17, 2**25)]
    with monkeypatch.context() as at_the_end_of_python:
        for name in {*vars(_memory)} - {"__builtins__"}:
            at_the_end_of_python.setitem(vars(_memory), name, None)
        arrays.clear()
    assert not failed

"""Arrays of every make enter the kernels: the right answer or a `ValueError`, nothing else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse as sp
from hypothesis import given
from hypothesis import strategies as st
from linear_calls import linear_gradient, linear_loss, linear_step
from numpy.lib.stride_tricks import as_strided

from dpmesh import kernels
from dpmesh.keys import Key
from dpmesh_papers.qnet import q_init, q_values

Array = npt.NDArray[Any]

KEY = Key.seeded(7)
STREAM, COINS = KEY.stream(3), KEY.stream(4)
NODES, RECORDS, DIM = 4, 6, 5


def unaligned(x: Array) -> Array:
    """Return a copy one byte after where such numbers may begin."""
    copy = np.empty(x.nbytes + x.itemsize, np.uint8)[1:][: x.nbytes].view(x.dtype).reshape(x.shape)
    copy[...] = x
    return copy


def read_only(x: Array) -> Array:
    copy = x.copy()
    copy.flags.writeable = False
    return copy


def with_gaps(x: Array) -> Array:
    copy = np.full((*x.shape[:-1], 2 * x.shape[-1]), x.flat[0])
    copy[..., ::2] = x
    return copy[..., ::2]


class Own(np.ndarray[Any, Any]):
    """An array of somebody's own class."""


MAKES: dict[str, Callable[[Array], Array]] = {
    "plain": np.array,
    "unaligned": unaligned,
    "read-only": read_only,
    "with gaps": with_gaps,
    "backwards": lambda x: np.flip(np.flip(x).copy()),
    "Fortran": np.asfortranarray,
    "other bytes": lambda x: x.astype(x.dtype.newbyteorder()),
    "own class": lambda x: x.view(Own),
}


def csr(data: Array, indices: Array, indptr: Array, shape: tuple[int, int]) -> sp.csr_array:
    """Return a matrix of just these arrays, which scipy would make its own."""
    matrix = sp.csr_array(shape)
    matrix.data, matrix.indices, matrix.indptr = data, indices, indptr
    return matrix


def values_of(x: Array) -> Array:
    parameters = q_init(NODES, DIM, STREAM, hidden=16)
    return q_values(parameters, x)


RNG = np.random.default_rng(0)
X = RNG.normal(size=(NODES, DIM))
PARAMS, FEATURES = RNG.normal(size=(NODES, DIM)), RNG.normal(size=(RECORDS, DIM))
LABELS, STEPS = np.array([1.0, -1, 1, 1, -1, -1]), np.array([0.1, 0.0, 0.3, 0.2])
BATCHES = RNG.integers(0, RECORDS, (NODES, 3))
IDS, SCALES = np.array([7, 1, 2**32 - 1, 3]), np.array([1.0, 0.0, 2.0, 0.5])
CODES = RNG.integers(-100, 100, (NODES, DIM))
FEW = sp.csr_array(FEATURES * RNG.integers(0, 2, FEATURES.shape))
PARTS = (FEW.data, FEW.indices, FEW.indptr)
SQUARE = sp.csr_array(RNG.normal(size=(NODES, NODES)) * RNG.integers(0, 2, (NODES, NODES)))
SQUARE_PARTS = (SQUARE.data, SQUARE.indices, SQUARE.indptr)

CALLS: dict[str, tuple[Callable[..., Any], tuple[Array, ...]]] = {
    "add_noise": (
        lambda x, scales, ids: kernels.add_noise("gaussian", x, scales, STREAM, nodes=ids),
        (X, SCALES, IDS),
    ),
    "quantize": (lambda x, ids: kernels.quantize(x, 0.1, COINS, nodes=ids), (X, IDS)),
    "dequantize": (lambda codes: kernels.dequantize(codes, 0.1), (CODES,)),
    "pack": (lambda codes: kernels.pack(codes, 5).message, (CODES,)),
    "clip_rows": (lambda x: kernels.clip_rows(x, 1.0), (X,)),
    "cosines": (kernels.cosines, (X,)),
    "smooth": (lambda x: kernels.smooth(x, 2.0, blocks=[2, 3]), (X,)),
    "weighted_sum": (lambda x, y: kernels.weighted_sum((2, x), (-1, y)), (X, PARAMS)),
    "column_sums": (kernels.column_sums, (X,)),
    "mix": (lambda x, *parts: kernels.mix(csr(*parts, SQUARE.shape), x), (X, *SQUARE_PARTS)),
    "linear_step": (
        lambda *a: linear_step(*a, "logistic", clipping_norm=0.5),
        (PARAMS, STEPS, FEATURES, LABELS, BATCHES),
    ),
    "linear_loss": (
        lambda params, *parts: linear_loss(
            params, csr(*parts, FEW.shape), LABELS, BATCHES, "hinge"
        ),
        (PARAMS, *PARTS),
    ),
    "sample": (
        lambda counts, ids: kernels.sample(counts, 3, STREAM, nodes=ids),
        (IDS % 100 + 3, IDS),
    ),
    "q_values": (values_of, (X,)),
}


SPARSE = {"mix", "linear_loss"}
"""Calls that take sparse matrices, whose arrays scipy makes: aligned, in the usual bytes."""


@pytest.mark.parametrize("name", CALLS)
@given(data=st.data())
def test_how_an_array_is_made_does_not_matter(name: str, data: st.DataObject) -> None:
    call, arrays = CALLS[name]
    kinds = sorted(MAKES.keys() - {"other bytes", "unaligned"} if name in SPARSE else MAKES)
    makes = data.draw(st.tuples(*[st.sampled_from(kinds) for _ in arrays]))
    made = [MAKES[make](array) for make, array in zip(makes, arrays, strict=True)]
    np.testing.assert_array_equal(call(*made), call(*arrays))


INTO: dict[str, Callable[[Array, Array | None], Any]] = {
    "noise": lambda x, out: kernels.add_noise("laplace", x, 1.0, STREAM, out=out),
    "clipping": lambda x, out: kernels.clip_rows(x, 1.0, out=out),
    "smoothing": lambda x, out: kernels.smooth(x, 2.0, out=out),
    "cosines": lambda x, out: kernels.cosines(x, out=out),
    "mixing": lambda x, out: kernels.mix(SQUARE, x, out=out),
    "sums": lambda x, out: kernels.weighted_sum((1, x), (2, x), out=out),
    "gradient": lambda x, out: linear_gradient(x, FEATURES, LABELS, BATCHES, "squared", out=out),
}
IN_PLACE = {"noise", "clipping", "cosines", "smoothing"}
"""Those that work in place, in the very memory of `x`."""
OTHER_BASES: dict[str, Callable[[Array], Array]] = {
    "view": lambda x: x[...],
    "as_strided": lambda x: as_strided(x, x.shape, x.strides),
    "frombuffer": lambda x: np.frombuffer(x).reshape(x.shape),
    "memoryview": lambda x: np.asarray(memoryview(x)),
}


@pytest.mark.parametrize("name", INTO)
@given(
    base=st.sampled_from(sorted(OTHER_BASES)), starts=st.tuples(*[st.integers(0, 2 * NODES)] * 2)
)
def test_an_out_that_overlaps_is_refused_whatever_its_base(
    name: str, base: str, starts: tuple[int, int]
) -> None:
    memory = RNG.normal(size=(3 * NODES, DIM))
    x, out = (memory[start : start + NODES] for start in starts)
    kept, expected = memory.copy(), INTO[name](x.copy(), None)
    in_place = starts[0] == starts[1] and name in IN_PLACE
    if abs(starts[0] - starts[1]) < NODES and not in_place:
        with pytest.raises(ValueError, match=r"wanted an? .*(its own|nothing else)"):
            INTO[name](x, OTHER_BASES[base](out))
        np.testing.assert_array_equal(memory, kept)
    else:
        np.testing.assert_array_equal(INTO[name](x, OTHER_BASES[base](out)), expected)
        np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("name", sorted(IN_PLACE))
def test_a_file_in_memory_is_worked_on_in_place(name: str, tmp_path: Path) -> None:
    x = np.memmap(tmp_path / "x", np.float64, "w+", shape=X.shape)
    x[...] = X
    assert INTO[name](x, x) is x
    np.testing.assert_array_equal(x, INTO[name](X, None))


def test_memory_is_free_again_after_a_refusal_and_after_a_call() -> None:
    x = np.ones((NODES, DIM))
    for _ in range(3):
        with pytest.raises(ValueError, match="out: wanted"):
            kernels.mix(SQUARE, x, out=as_strided(x, x.shape, x.strides))
        with pytest.raises(ValueError, match="x: wanted finite"):
            kernels.add_noise("gaussian", x * np.nan, 1.0, STREAM, out=x)
        kernels.mix(SQUARE, np.ones((NODES, DIM)), out=x)


def test_a_matrix_without_any_offsets_is_refused() -> None:
    matrix = csr(np.ones(0), np.zeros(0, np.int32), np.zeros(0, np.int32), (NODES, NODES))
    with pytest.raises(ValueError, match="indptr: wanted offsets that rise from 0 to 0, got"):
        kernels.mix(matrix, X)


def test_unaligned_weights_are_refused_by_name() -> None:
    matrix = csr(unaligned(SQUARE.data), SQUARE.indices, SQUARE.indptr, SQUARE.shape)
    with pytest.raises(ValueError, match="weights: wanted a C-contiguous, aligned array"):
        kernels.mix(matrix, X)


def test_networks_of_unaligned_parameters_are_refused_by_name() -> None:
    parameters = unaligned(q_init(NODES, DIM, STREAM, hidden=16))
    with pytest.raises(ValueError, match="parameters: wanted a C-contiguous, aligned array"):
        q_values(parameters, X)

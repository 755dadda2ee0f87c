"""The extension module: kernels on C-contiguous arrays, documented in `dpmesh.kernels`."""

from collections.abc import Sequence
from os import PathLike
from typing import Any, NoReturn, TypeAlias, TypeGuard, final

import numpy as np
import numpy.typing as npt

_Floats: TypeAlias = npt.NDArray[np.floating[Any]]
_Float64s: TypeAlias = npt.NDArray[np.float64]
_PerRow: TypeAlias = float | _Float64s
_Integers: TypeAlias = npt.NDArray[np.signedinteger[Any]]

__version__: str

# threads
def set_threads(count: int) -> None: ...
def get_threads() -> int: ...
def before_fork() -> None: ...
def after_fork(is_child: bool) -> None: ...

# arguments
def is_float_array(value: object) -> TypeGuard[_Floats]: ...
def is_index_array(value: object) -> TypeGuard[npt.NDArray[np.int64]]: ...

# accounting
def gdp_epsilons(mu: _Float64s, delta: float) -> _Float64s: ...
def gdp_log_deltas(mu: _Float64s, epsilon: float) -> _Float64s: ...
def gaussian_noise_multiplier(epsilon: float, delta: float) -> float: ...
def rdp_gaussian(noise: _Float64s, count: _Float64s, orders: _Float64s) -> _Float64s: ...
def rdp_laplace(noise: _Float64s, count: _Float64s, orders: _Float64s) -> _Float64s: ...
def rdp_poisson_gaussian(
    rate: _Float64s, noise: _Float64s, count: _Float64s, orders: _Float64s
) -> _Float64s: ...
def rdp_fixed_size_gaussian(
    bound: str, rate: _Float64s, noise: _Float64s, count: _Float64s, orders: _Float64s
) -> _Float64s: ...
def rdp_to_epsilon(
    orders: _Float64s, rdp: _Float64s, delta: float, conversion: str
) -> tuple[float, int]: ...
def rdp_to_log_delta(orders: _Float64s, rdp: _Float64s, epsilon: float) -> tuple[float, int]: ...

# stream
@final
class Key:
    def __new__(cls, *_args: NoReturn, **_kwargs: NoReturn) -> Key: ...
    @staticmethod
    def generate(cipher: str = "aes") -> Key: ...
    @staticmethod
    def seeded(seed: int, cipher: str = "aes") -> Key: ...
    @staticmethod
    def load(path: str | PathLike[str]) -> Key: ...
    def save(self, path: str | PathLike[str]) -> None: ...
    @property
    def cipher(self) -> str: ...
    @property
    def is_seeded(self) -> bool: ...
    def derive(self, data: bytes) -> Key: ...
    def stream(self, purpose: int, round: int = 0) -> Stream: ...
    def for_nodes(self, nodes: npt.NDArray[np.uint32]) -> Key: ...
    def __reduce__(self) -> NoReturn: ...

@final
class Stream:
    @property
    def cipher(self) -> str: ...
    @property
    def is_seeded(self) -> bool: ...
    @property
    def purpose(self) -> int: ...
    @property
    def round(self) -> int: ...
    def words(self, node: int, out: npt.NDArray[np.uint32]) -> None: ...
    def for_nodes(self, nodes: npt.NDArray[np.uint32]) -> Stream: ...
    def __reduce__(self) -> NoReturn: ...

# masking
def mask_and_pack(
    values: npt.NDArray[np.int64], pairs: list[tuple[bytes, bool]], bits: int
) -> bytes: ...
def unpack_sum(messages: list[bytes], bits: int, out: npt.NDArray[np.int64]) -> None: ...

# mixing
_Rows: TypeAlias = tuple[_Integers, _Integers, _Floats]  # indptr, indices, data

def mix(rows: _Rows, x: _Floats, out: _Floats | None) -> _Floats: ...

# complexity
def rademacher_suprema(
    vectors: _Floats, p: float, stream: Stream, first: int, out: npt.NDArray[np.float64]
) -> None: ...

# correlated
def correlated_noise(
    scale: _PerRow,
    weights: list[float],
    earlier: list[_Floats],
    stream: Stream,
    nodes: npt.NDArray[np.uint32] | None,
    out: _Floats,
) -> None: ...
def add_pair_noise(
    x: _Floats,
    pairs: npt.NDArray[np.uint32] | None,
    ends: npt.NDArray[np.int64],
    scale: float,
    stream: Stream,
) -> None: ...

# discrete
def discrete_noise(
    distribution: str,
    scale: float,
    stream: Stream,
    nodes: npt.NDArray[np.uint32] | None,
    out: npt.NDArray[np.int64],
) -> None: ...

# draws
def uniform(stream: Stream, nodes: npt.NDArray[np.uint32] | None, out: _Floats) -> None: ...
def bernoulli(
    p: float, stream: Stream, nodes: npt.NDArray[np.uint32] | None, out: npt.NDArray[np.bool_]
) -> None: ...
def sample(
    counts: npt.NDArray[np.int64],
    stream: Stream,
    nodes: npt.NDArray[np.uint32] | None,
    out: npt.NDArray[np.int64],
) -> None: ...
def shuffle(
    rows: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]],
    lengths: npt.NDArray[np.int64],
    stream: Stream,
    nodes: npt.NDArray[np.uint32] | None,
    out: npt.NDArray[np.int64],
) -> None: ...
def batch_ends(
    sizes: npt.NDArray[np.int64],
    batches: npt.NDArray[np.int64],
    batch_size: int,
    out: npt.NDArray[np.int64],
) -> None: ...

# noise
def add_noise(
    distribution: str,
    x: _Floats,
    scale: _PerRow,
    stream: Stream,
    nodes: npt.NDArray[np.uint32] | None,
    out: _Floats | None,
    longest: float | None,
) -> _Floats: ...
def noise(
    distribution: str,
    scale: _PerRow,
    stream: Stream,
    nodes: npt.NDArray[np.uint32] | None,
    out: _Floats,
) -> None: ...

# linear
_Features: TypeAlias = (
    _Floats  # dense
    | tuple[_Integers, _Integers, _Floats, int]  # CSR
    | tuple[_Integers, _Floats, int]  # in 8 bits
)
_Ragged: TypeAlias = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]  # indptr, indices
_Batches: TypeAlias = _Ragged | npt.NDArray[np.int64]

@final
class LinearModel:
    def __new__(
        cls,
        features: _Features,
        labels: npt.NDArray[Any],
        loss: str,
        classes: int | None,
        weights: npt.NDArray[np.float64] | None = None,
    ) -> LinearModel: ...
    def gradient(
        self,
        params: _Floats,
        batches: _Batches,
        regularization: float,
        divide_by: float | None,
        clipping_norm: float | None,
        norm: str,
        out: _Floats | None,
    ) -> _Floats: ...
    def clipped_sums(
        self, params: _Float64s, batches: _Batches, clipping_norm: float, norm: str
    ) -> _Float64s: ...
    def step(
        self,
        params: _Floats,
        step_size: _PerRow,
        batches: _Batches,
        regularization: float,
        divide_by: float | None,
        clipping_norm: float | None,
        norm: str,
        radius: float | None,
        out: _Floats | None,
    ) -> _Floats: ...
    def train(
        self,
        start: _Floats,
        walks: tuple[npt.NDArray[np.int64], _Ragged],
        step_size: float,
        radius: float,
        regularization: float,
        form: str | None,
    ) -> tuple[_Floats, _Float64s]: ...
    def losses(
        self,
        params: _Floats,
        batches: _Batches,
        regularization: float,
        divide_by: float | None,
        of_classes: bool,
    ) -> _Float64s: ...
    def record_losses(self, params: _Floats, batches: _Batches) -> _Float64s: ...
    def count_correct(self, params: _Floats) -> npt.NDArray[np.int64]: ...

def linear_scores(params: _Floats, features: _Features, out: _Floats) -> None: ...

# features
def cosines(
    angles: npt.NDArray[np.float64], out: npt.NDArray[np.float64] | None
) -> npt.NDArray[np.float64]: ...

# projection
def all_finite(x: _Floats) -> bool: ...
def row_norms(x: _Floats, norm: str) -> _Float64s: ...
def clip_rows(x: _Floats, bound: float, norm: str, out: _Floats | None) -> _Floats: ...

# qnet
_Float32s: TypeAlias = npt.NDArray[np.float32]

def q_values(
    parameters: _Float32s, states: _Float32s, hidden: int, activation: str, values: _Float32s
) -> None: ...
def q_learn(
    trained: tuple[_Float32s, _Float32s, _Float32s, npt.NDArray[np.uint32]],
    targets: _Float32s,
    replay: tuple[_Float32s, npt.NDArray[np.uint8], _Float32s, _Float32s],
    picks: npt.NDArray[np.uint32],
    learns: npt.NDArray[np.bool_],
    hidden: int,
    activation: str,
    adam: tuple[float, float, float, float],
    losses: _Float32s,
) -> None: ...

# quantize
_Codes = npt.NDArray[np.signedinteger[Any]]

def quantize(
    x: _Floats,
    step: float,
    stream: Stream,
    saturate: bool,
    dtype: np.dtype[Any],
    nodes: npt.NDArray[np.uint32] | None,
    out: _Codes | None,
) -> tuple[_Codes, int]: ...
def dequantize(codes: _Codes, step: float, out: _Floats) -> None: ...
def bits_needed(codes: _Codes) -> int: ...
def packed_sizes(codes: _Codes, bits: int, out: npt.NDArray[np.uint64]) -> None: ...
def pack(codes: _Codes, bits: int) -> bytes: ...
def unpack(message: bytes, bits: int, out: _Codes) -> None: ...

# smoothing
def smooth(
    x: _Floats,
    smoothing: float,
    power: int,
    blocks: Sequence[int] | None,
    method: str | None,
    out: _Floats | None,
) -> _Floats: ...
def smoothing_spectrum(smoothing: float, power: int, out: npt.NDArray[np.float64]) -> None: ...
def effective_dimensions(dim: int, smoothing: float, power: int) -> tuple[float, float]: ...

# sums
def weighted_sum(terms: list[tuple[float, _Floats]], out: _Floats) -> None: ...
def column_sums(x: _Floats, out: npt.NDArray[np.float64]) -> None: ...

# views
@final
class ViewSystem:
    def __new__(
        cls,
        nodes: int,
        rows: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], _Float64s],
        mixings: npt.NDArray[np.int64],
        gains: _Float64s,
        own: _Float64s,
        noise: _Float64s,
        fresh: _Float64s,
        rounding: float,
        published: npt.NDArray[np.bool_],
        received: npt.NDArray[np.int64],
        mean_of_last: bool,
    ) -> ViewSystem: ...
    def everybody(self, target: int) -> float: ...
    def seen(self, observer: Sequence[int]) -> npt.NDArray[np.bool_]: ...
    def cheap(
        self, observers: Sequence[Sequence[int]], pairs: npt.NDArray[np.int64]
    ) -> _Float64s: ...
    def solve(
        self,
        observers: Sequence[Sequence[int]],
        pairs: npt.NDArray[np.int64],
        gap: float,
        at_most: float,
        iterations: int,
    ) -> tuple[_Float64s, _Float64s, npt.NDArray[np.int64]]: ...

"""Numerical kernels in Rust, called with numpy arrays: noise, clipping, gradients, mixing, packing.

All kernels run in several threads without the interpreter lock, and follow the same rules:

- Arrays of float32 and float64 are not copied if they are C-contiguous.
- ``out=`` receives the result; passing the input itself works in place. Without it a new array is
  made.
- Results do not depend on the number of threads (`set_threads`).
- An ``out=`` that shares memory with another argument is refused, however the two were made.
- Python threads may call them at once, with and without an interpreter lock. An ``out=`` that
  another call uses is refused; while a call uses arrays, others must not change their values, shape
  or type.
- A `ValueError` names the argument, the accepted values and the actual one. Kernels that would turn
  NaN or infinity into a plausible number (clipping, quantization) refuse it; linear ones pass it
  on, as numpy does.
"""

from dpmesh.kernels.draws import batch_ends, bernoulli, integers, sample, shuffle, uniform
from dpmesh.kernels.features import cosines
from dpmesh.kernels.linear import LinearModel, linear_scores
from dpmesh.kernels.masking import mask_and_pack, tag, unpack_sum
from dpmesh.kernels.mixing import mix
from dpmesh.kernels.noise import (
    add_noise,
    add_pair_gaussian,
    correlated_gaussian,
    discrete_gaussian,
    discrete_laplace,
    gaussian,
    laplace,
)
from dpmesh.kernels.projection import all_finite, clip_rows, column_sums, row_norms, weighted_sum
from dpmesh.kernels.quantization import (
    Packed,
    bits_needed,
    dequantize,
    pack,
    packed_sizes,
    quantize,
    unpack,
)
from dpmesh.kernels.smoothing import effective_dimensions, smooth, smoothing_spectrum
from dpmesh.kernels.threads import get_threads, set_threads

__all__ = [
    "LinearModel",
    "Packed",
    "add_noise",
    "add_pair_gaussian",
    "all_finite",
    "batch_ends",
    "bernoulli",
    "bits_needed",
    "clip_rows",
    "column_sums",
    "correlated_gaussian",
    "cosines",
    "dequantize",
    "discrete_gaussian",
    "discrete_laplace",
    "effective_dimensions",
    "gaussian",
    "get_threads",
    "integers",
    "laplace",
    "linear_scores",
    "mask_and_pack",
    "mix",
    "pack",
    "packed_sizes",
    "quantize",
    "row_norms",
    "sample",
    "set_threads",
    "shuffle",
    "smooth",
    "smoothing_spectrum",
    "tag",
    "uniform",
    "unpack",
    "unpack_sum",
    "weighted_sum",
]

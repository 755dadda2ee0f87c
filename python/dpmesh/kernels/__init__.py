"""Numerical kernels in Rust, called with numpy arrays: noise, clipping, gradients, mixing, packing.

All kernels run on several threads without Python's interpreter lock, and follow the same rules:

- Arrays of float32 and float64 are not copied if they are C-contiguous.
- The result is written into ``out``, or into a new array if ``out`` is None. Where the
  documentation allows it, ``out`` may be the input itself, for a computation in place. Any other
  ``out`` that shares memory with an argument is refused.
- Results do not depend on the number of threads (`set_threads`).
- Several Python threads may call kernels at once. An ``out`` that another call uses is refused. No
  thread may change the values, shape or type of an array while a call uses it.
- A `ValueError` names the argument, the accepted values and the actual value. Kernels that would
  turn NaN or infinity into a plausible number (clipping, quantization) raise it for such values.
  Linear kernels return NaN and infinity, as numpy does.
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

"""The extension module: kernels on C-contiguous arrays, documented in `dpmesh.kernels`."""

from typing import Any

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.floating[Any]]

__version__: str

# threads
def set_threads(count: int) -> None: ...
def get_threads() -> int: ...

# projection
def row_norms(x: _Floats, kind: str, out: npt.NDArray[np.float64]) -> None: ...
def clip_rows(x: _Floats, bound: float, kind: str, out: _Floats) -> None: ...
def clip_rows_in_place(x: _Floats, bound: float, kind: str) -> None: ...

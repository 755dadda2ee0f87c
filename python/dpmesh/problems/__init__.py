"""Learning problems: linear models on the kernels, models in JAX and PyTorch, constants.

`JaxProblem`, the papers' `networks` for it, and `TorchProblem` are imported when they are first
used, since each needs its extra: `jax`, `torch`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from dpmesh._extras import needed_by
from dpmesh.problems.constants import Constants, linear_constants
from dpmesh.problems.hindsight import NotReached, best_fixed_predictor
from dpmesh.problems.linear import LinearProblem
from dpmesh.problems.problem import (
    ClientProblem,
    GradientProblem,
    ModelProblem,
    Problem,
    VectorProblem,
)

if TYPE_CHECKING:
    from dpmesh.problems import networks
    from dpmesh.problems.jax_model import JaxProblem
    from dpmesh.problems.torch_model import TorchProblem

__all__ = [
    "ClientProblem",
    "Constants",
    "GradientProblem",
    "JaxProblem",
    "LinearProblem",
    "ModelProblem",
    "NotReached",
    "Problem",
    "TorchProblem",
    "VectorProblem",
    "best_fixed_predictor",
    "linear_constants",
    "networks",
]

_HOMES = {"JaxProblem": "jax_model", "TorchProblem": "torch_model"}


def __getattr__(name: str) -> object:
    if name == "networks":
        with needed_by(name):
            return import_module(f"dpmesh.problems.{name}")
    if name in _HOMES:
        with needed_by(name):
            return getattr(import_module(f"dpmesh.problems.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'dpmesh.problems' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

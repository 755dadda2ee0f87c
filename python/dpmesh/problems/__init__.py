"""What is learned: linear models, their constants, and the best of them in hindsight."""

from dpmesh.problems.constants import Constants, linear_constants
from dpmesh.problems.hindsight import BestPredictor, best_fixed_predictor
from dpmesh.problems.linear import LinearProblem

__all__ = [
    "BestPredictor",
    "Constants",
    "LinearProblem",
    "best_fixed_predictor",
    "linear_constants",
]

"""Experiments that TOML files describe: single runs, parallel sweeps, and pages of results.

``dpmesh run`` and ``dpmesh report`` use this package. `Experiment` builds a run from settings,
`run_sweep` runs all combinations of a sweep, and `Result` reads a finished run.
"""

from dpmesh.experiments.experiment import Experiment
from dpmesh.experiments.results import Result
from dpmesh.experiments.sweep import run_sweep
from dpmesh.settings import read

__all__ = ["Experiment", "Result", "read", "run_sweep"]

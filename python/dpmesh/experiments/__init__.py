"""Experiments from files: settings with precise errors, parallel sweeps, a report page."""

from dpmesh.experiments.experiment import Experiment
from dpmesh.experiments.results import Result
from dpmesh.experiments.sweep import run_sweep
from dpmesh.settings import read

__all__ = ["Experiment", "Result", "read", "run_sweep"]

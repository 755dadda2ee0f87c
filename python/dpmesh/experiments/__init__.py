"""Experiments from files: settings with precise errors, parallel sweeps, a report page."""

from dpmesh.experiments.experiment import Experiment, Result
from dpmesh.experiments.settings import read
from dpmesh.experiments.sweep import run_sweep

__all__ = ["Experiment", "Result", "read", "run_sweep"]

"""Experiments from files: settings with good errors, sweeps over many processes, a report page."""

from dpmesh.experiments.experiment import Experiment
from dpmesh.experiments.settings import read
from dpmesh.experiments.sweep import run_sweep

__all__ = ["Experiment", "read", "run_sweep"]

"""Measurements of a run for TensorBoard, MLflow and Weights & Biases; needs the extra ``tracking``.

Each is a context that gives a callback for `simulate`:

```python
with dm.run.trackers.tensorboard("logs") as callback:
    run = dm.simulate(algorithm, problem, topology, rounds=100,
                      metrics=dm.Metrics(callback=callback))
```

Losses, and accuracies of models before noise, are covered by no epsilon. ``released_only`` leaves
them out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from dpmesh._extras import needed_by
from dpmesh.privacy.report import not_covered

__all__ = ["mlflow", "tensorboard", "wandb"]

Tracked = Callable[[int, Mapping[str, Any]], None]


@contextmanager
def tensorboard(
    folder: str | os.PathLike[str], *, released_only: bool = False
) -> Iterator[Tracked]:
    """Write measurements into a folder that TensorBoard shows.

    Parameters
    ----------
    folder
        Where to write.
    released_only
        Whether to leave out what no epsilon covers.
    """
    with needed_by("a tracker"):
        from tensorboardX import SummaryWriter

    with SummaryWriter(os.fspath(folder), flush_secs=10) as writer:

        def callback(t: int, values: Mapping[str, Any]) -> None:
            for name, value in _numbers(values, released_only).items():
                writer.add_scalar(name, value, t)

        yield callback


@contextmanager
def mlflow(
    experiment: str,
    *,
    name: str | None = None,
    tracking_uri: str | None = None,
    released_only: bool = False,
) -> Iterator[Tracked]:
    """Log measurements as a run of MLflow, which ends as finished or as failed.

    Parameters
    ----------
    experiment
        Name of the experiment, which is made if it is not there.
    name
        Name of the run.
    tracking_uri
        Where MLflow keeps its runs; by default as it is configured.
    released_only
        Whether to leave out what no epsilon covers.
    """
    with needed_by("a tracker"):
        from mlflow import MlflowClient
        from mlflow.entities import Metric
    from time import time_ns

    client = MlflowClient(tracking_uri)
    found = client.get_experiment_by_name(experiment)
    place = client.create_experiment(experiment) if found is None else found.experiment_id
    run = client.create_run(place, run_name=name).info.run_id

    def callback(t: int, values: Mapping[str, Any]) -> None:
        now = time_ns() // 10**6
        numbers = _numbers(values, released_only)
        client.log_batch(run, [Metric(name, value, now, t) for name, value in numbers.items()])

    try:
        yield callback
    except BaseException:
        client.set_terminated(run, "FAILED")
        raise
    client.set_terminated(run, "FINISHED")


@contextmanager
def wandb(project: str, *, released_only: bool = False, **options: Any) -> Iterator[Tracked]:
    """Log measurements as a run of Weights & Biases.

    Parameters
    ----------
    project
        Its project.
    released_only
        Whether to leave out what no epsilon covers.
    options
        As for ``wandb.init``, such as ``mode="offline"``.
    """
    with needed_by("a tracker"):
        import wandb as tracker

    with tracker.init(project=project, **options) as run:

        def callback(t: int, values: Mapping[str, Any]) -> None:
            run.log(_numbers(values, released_only), step=t)

        yield callback


def _numbers(values: Mapping[str, Any], released_only: bool) -> dict[str, float]:
    """Return the measurements of the whole network."""
    hidden = not_covered(values, parameters_are_released=False) if released_only else ()
    return {
        name: float(value)
        for name, value in values.items()
        if np.ndim(value) == 0 and name not in hidden
    }

"""Differentially private learning among many nodes.

```python
import dpmesh as dm
problem = dm.LinearProblem(train, parts, "logistic", test=test)
run = dm.simulate(
    dm.OnlineLearning(epsilon=1.0), problem, dm.topology.ring(16), rounds=100
)
print(run.privacy)
```

Names are imported when they are first used, so that ``import dpmesh`` is instant.
"""

from importlib import import_module
from threading import RLock
from typing import TYPE_CHECKING

from dpmesh._core import __version__

if TYPE_CHECKING:
    from dpmesh import (
        accounting,
        algorithms,
        audit,
        data,
        defaults,
        deploy,
        engines,
        experiments,
        forecast,
        kernels,
        keys,
        noise,
        plots,
        privacy,
        problems,
        run,
        schedules,
        sklearn,
        statistics,
        tables,
        topology,
    )
    from dpmesh.algorithms import (
        ClientUpdates,
        FederatedLearning,
        GradientDescent,
        GradientTracking,
        OnlineLearning,
        PushSum,
        QuantizedGossip,
        RecordGradients,
        SecureGossip,
        WithoutReplacement,
        WithReplacement,
    )
    from dpmesh.data import Dataset
    from dpmesh.keys import Key
    from dpmesh.problems import LinearProblem
    from dpmesh.run import Checkpoint, Metrics, Network, Run, StopRun, baselines, simulate
    from dpmesh.tables.models import Model

__all__ = [
    "Checkpoint",
    "ClientUpdates",
    "Dataset",
    "FederatedLearning",
    "GradientDescent",
    "GradientTracking",
    "Key",
    "LinearProblem",
    "Metrics",
    "Model",
    "Network",
    "OnlineLearning",
    "PushSum",
    "QuantizedGossip",
    "RecordGradients",
    "Run",
    "SecureGossip",
    "StopRun",
    "WithReplacement",
    "WithoutReplacement",
    "__version__",
    "accounting",
    "algorithms",
    "audit",
    "baselines",
    "data",
    "defaults",
    "deploy",
    "engines",
    "experiments",
    "forecast",
    "kernels",
    "keys",
    "noise",
    "plots",
    "privacy",
    "problems",
    "run",
    "schedules",
    "simulate",
    "sklearn",
    "statistics",
    "tables",
    "topology",
]

_HOMES = {"Dataset": "data", "Key": "keys", "LinearProblem": "problems", "Model": "tables.models"}
_HOMES |= dict.fromkeys(
    ["Checkpoint", "Metrics", "Network", "Run", "StopRun", "baselines", "simulate"], "run"
)
_ONE_AT_A_TIME = RLock()
"""Held while names are imported: before CPython 3.15, two threads that import modules of one
package at once may deadlock. Our own modules must not use these names: one that is being imported
would wait here for a thread that waits for it."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'dpmesh' has no attribute {name!r}")
    with _ONE_AT_A_TIME:
        if name.islower() and name not in _HOMES:
            value: object = import_module(f"dpmesh.{name}")
        else:  # an algorithm has the name of a class
            value = getattr(import_module(f"dpmesh.{_HOMES.get(name, 'algorithms')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

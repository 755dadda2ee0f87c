"""Examples in docstrings run, and print what they say."""

from __future__ import annotations

import doctest
import inspect
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import dpmesh

PACKAGE = Path(dpmesh.__file__).parent
WITH_EXAMPLES = sorted(
    path.relative_to(PACKAGE.parent)
    for path in PACKAGE.rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="numbers print otherwise")
@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: path.stem)
def test_the_examples_of_a_module(path: Path) -> None:
    pytest.importorskip("sklearn")
    parts = path.with_suffix("").parts
    module = import_module(".".join(part for part in parts if part != "__init__"))
    assert not doctest.testmod(module).failed


ELSEWHERE = {
    *("Contract", "Node", "Router", "Row"),
    *(
        "Experiment",
        "Settings",
        "Channel",
        "Forecast",
        "ForecastRow",
        "ReserveCost",
        "Broadcast",
        "Gossip",
    ),
}
"""What needs a file, several processes or a run around it: the pages show these."""


def test_every_class_that_a_user_makes_has_an_example() -> None:
    for extra in ("sklearn", "jax", "cryptography"):
        pytest.importorskip(extra)
    lacking = set()
    for path in [*PACKAGE.glob("[a-z]*.py"), *PACKAGE.rglob("__init__.py")]:
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        if {"flower", "cli"} & {*parts}:  # apps
            continue
        module = import_module(".".join(part for part in parts if part != "__init__"))
        for name in {*getattr(module, "__all__", ())} - {"TorchProblem"}:
            kind = getattr(module, name)
            if not inspect.isclass(kind) or kind.__module__ == "dpmesh._core":
                continue
            is_part = inspect.isabstract(kind) or getattr(kind, "_is_protocol", False)
            if not is_part and not issubclass(kind, Exception) and ">>>" not in str(kind.__doc__):
                lacking.add(name)
    assert lacking <= ELSEWHERE

"""Examples in docstrings run, and print what they say."""

from __future__ import annotations

import doctest
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

"""Settings shared by all tests."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# "ci" draws the same examples on every run; set HYPOTHESIS_PROFILE=search to look for new ones.
settings.register_profile("ci", derandomize=True, deadline=None, database=None, max_examples=50)
settings.register_profile("search", deadline=None, max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


COMPILED = "JAX_COMPILATION_CACHE_DIR"
"""Folder in which JAX keeps compiled programs."""


@pytest.hookimpl(wrapper=True)
def pytest_cmdline_main() -> Iterator[None]:
    """Let the processes of one test run share what JAX compiles; the next run compiles it again.

    Many problems have the same program, which JAX compiles for each of them in a second or more.
    """
    if COMPILED in os.environ:  # a worker of pytest-xdist, or the caller's folder
        return (yield)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        os.environ[COMPILED] = folder
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        return (yield)


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets; without it a test that needs it is skipped, and says so."""
    folder = os.environ.get("DPMESH_DATA")
    if not folder:
        pytest.skip("needs real data sets: set DPMESH_DATA to their folder")
    return Path(folder)


@pytest.fixture
def inside_an_app(monkeypatch: pytest.MonkeyPatch) -> None:
    """Newer releases of Flower make messages only in a process that knows its task."""
    pytest.importorskip("flwr.app", reason="needs the extra 'flower'")
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:
        return
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)

"""``dpmesh reproduce --all``: what lacks its data says so, and the others go on."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from inspect import signature
from pathlib import Path

import numpy as np
import pytest

from dpmesh.problems import LinearProblem
from dpmesh_papers import catalog, online, quantized_comparison
from dpmesh_papers.catalog import REPRODUCTIONS, reproduce

WITHOUT_DATA = "federated-figureS15"
WITH_DATA = "online-table1"


def broken(folder: Path) -> list[Path]:
    raise ZeroDivisionError(folder.name)


@pytest.mark.slow
def test_all_go_on_without_what_cannot_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    from command import command

    chosen = {name: REPRODUCTIONS[name] for name in (WITH_DATA, WITHOUT_DATA)}
    monkeypatch.setattr(catalog, "REPRODUCTIONS", chosen)
    asked = "reproduce", "--all", "--quick", "--output", tmp_path
    monkeypatch.delenv("DPMESH_DATA", raising=False)
    assert "not run: DPMESH_DATA is not set" in command(*asked)
    monkeypatch.setenv("DPMESH_DATA", str(tmp_path))
    *_, missing, done = command(*asked).strip().splitlines()
    assert missing.startswith(WITH_DATA)
    assert "not run: DPMESH_DATA: wanted rcv1_train.binary.bz2" in missing
    assert done.startswith(WITHOUT_DATA)
    assert done.endswith("done")
    by = json.loads((tmp_path / f"{WITHOUT_DATA}.json").read_text())
    assert (by["experiment"], by["quick"]) == (WITHOUT_DATA, True)
    assert {"commit", "dpmesh", "machine", "seconds"} <= {*by}
    monkeypatch.setattr(catalog.Reproduction, "function", property(lambda _: broken))
    assert "failed: ZeroDivisionError" in command(*asked, code=1)


def test_all_go_on_without_an_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The module of an experiment on networks imports JAX, which ended the command."""
    name = "federated-table3"
    monkeypatch.setattr(catalog, "REPRODUCTIONS", {name: REPRODUCTIONS[name]})
    monkeypatch.delitem(sys.modules, "dpmesh_papers.federated_networks", raising=False)
    monkeypatch.setitem(sys.modules, "jax", None)
    (outcome,) = catalog.reproduce_all(tmp_path, progress=lambda line: None)
    assert not outcome.failed
    assert "jax" in outcome.why


def test_settings_are_arguments_of_the_functions() -> None:
    pytest.importorskip("jax")
    for shown in REPRODUCTIONS.values():
        assert {*shown.settings, *shown.quick} <= {*signature(shown.function).parameters}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["online-table1", "quantized-figure4"])
def test_claims_of_the_readme_run_in_small_on_real_data(
    name: str, tmp_path: Path, real_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made-up data of few dimensions hid that their noise is too much for float32."""
    pytest.importorskip("matplotlib")
    task = quantized_comparison.TASKS["regression"]

    def tested_on_few_images() -> LinearProblem:
        problem = quantized_comparison.mnist_regression()
        assert problem.test is not None
        return replace(problem, test=problem.test.take(np.arange(500)))

    epsilons = (task.epsilons[0], quantized_comparison.SHOWN_EPSILON)
    small = replace(task, problem=tested_on_few_images, epsilons=epsilons)
    monkeypatch.setitem(quantized_comparison.TASKS, "regression", small)
    monkeypatch.setattr(online, "SOURCES", (replace(online.SOURCES[-1], checkpoints=(20,)),))
    files = reproduce(name, tmp_path, quick=True, progress=lambda line: None)
    assert [file.suffix for file in files] == [".csv", ".txt", ".png", ".json"]

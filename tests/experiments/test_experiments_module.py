"""Experiments with an algorithm, network, partition and schedule from a module of one's own."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from test_experiments import TEXT, write

from dpmesh.experiments import Experiment, read, run_sweep

OWN = """
from dataclasses import dataclass

import networkx
import numpy as np

import dpmesh as dm


@dataclass(frozen=True)
class Halved(dm.OnlineLearning):
    factor: float = 0.5

    def noise_std(self, *arguments):
        return self.factor * super().noise_std(*arguments)


def path(nodes, key, *, closed: bool = False):
    graph = networkx.cycle_graph(nodes) if closed else networkx.path_graph(nodes)
    return dm.topology.from_networkx(graph, description="my path")


def in_order(dataset, nodes: int):
    return np.array_split(np.arange(dataset.records), nodes)


def chain(nodes, key, width):
    return dm.topology.ring(nodes)


@dataclass(frozen=True)
class Alternating:
    scale: float

    def __call__(self, t):
        return self.scale * (1 + t % 2)
"""

WITH_OWN = (
    TEXT.replace('"OnlineLearning"', '"Halved"')
    .replace('"ring"', '"path"\nclosed = true')
    .replace('"iid"', '"in_order"')
    .replace('{kind = "InverseSqrt", scale = 4.0}', '{kind = "Alternating", scale = 2.0}')
)


@pytest.mark.slow
def test_parts_of_a_module_of_ones_own_can_be_named(tmp_path, monkeypatch) -> None:
    (tmp_path / "own_parts.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    settings = read(write(tmp_path, WITH_OWN), module="own_parts")
    experiment = Experiment.of(settings.replaced({"algorithm.factor": 0.25}))
    assert str(experiment.algorithm).startswith("Halved(epsilon=1.0")
    assert experiment.algorithm.factor == 0.25
    assert experiment.algorithm.step_size(1) == 4.0
    said = "my path (4 nodes), each link up with probability 0.7"
    assert str(experiment.topology) == said
    assert experiment.topology.matrix(0).nodes == 4
    np.testing.assert_array_equal(experiment.problem().partition[0][:3], [0, 1, 2])
    assert run_sweep(settings, tmp_path / "results", processes=2) == []
    assert len(list((tmp_path / "results").glob("*/run.json"))) == 4


def test_only_a_module_that_was_given_is_searched(tmp_path, monkeypatch) -> None:
    (tmp_path / "own_parts.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    path = write(tmp_path, WITH_OWN)
    with pytest.raises(ValueError, match=r"partition\.kind: wanted one of iid, .*, got 'in_order'"):
        Experiment.of(read(path))
    for name in ("Third", "dm", 3):
        text = WITH_OWN.replace('kind = "Halved"', f"kind = {json.dumps(name)}")
        of_mine = read(write(tmp_path, text), module="own_parts")
        with pytest.raises(
            ValueError, match=r"algorithm\.kind: wanted .*, or one of own_parts, got"
        ):
            Experiment.of(of_mine)
    text = WITH_OWN.replace('"path"\nclosed = true', '"chain"')
    with pytest.raises(ValueError, match=r"topology\.kind: wanted a type .*, got chain\(width\)"):
        Experiment.of(read(write(tmp_path, text), module="own_parts"))
    text = WITH_OWN.partition("[algorithm]")[0] + '[algorithm]\nkind = "Alternating"\nscale = 1.0'
    with pytest.raises(ValueError, match=r"line 23: algorithm: wanted an algorithm of dpm"):
        Experiment.of(read(write(tmp_path, text), module="own_parts"))
    write(tmp_path)
    for name in ("own_parts.py", "no_folder.own_parts", ".own_parts", "./own_parts", ""):
        with pytest.raises(ValueError, match=rf"module: wanted .* mine, got '{re.escape(name)}'"):
            read(path, module=name)

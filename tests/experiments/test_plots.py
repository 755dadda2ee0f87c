"""Figures show the numbers that they were given."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from refused import refused

from dpmesh import plots, topology
from dpmesh.run import History

pytest.importorskip("matplotlib").use("Agg")


@pytest.fixture(autouse=True)
def _closed() -> Any:
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def history(*values: float, every: int = 1) -> History:
    measured = History()
    for i, value in enumerate(values):
        measured.add((i + 1) * every, {"accuracy": value})
    return measured


def test_bands_show_the_mean_and_its_interval() -> None:
    groups = {
        "a": [history(0.1, 0.5), history(0.2, 0.6), history(0.3, 1.0)],
        "b": [history(0.2, 0.2)],
    }
    ax = plots.bands(groups, "accuracy")
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [0.2, 0.7])
    np.testing.assert_allclose(ax.lines[1].get_ydata(), [0.2, 0.2])
    corners = ax.collections[0].get_paths()[0].vertices
    half = 4.302653 * 0.1 / np.sqrt(3)  # Student's quantile with two degrees of freedom
    assert min(corners[:, 1]) == pytest.approx(0.2 - half, abs=1e-6)
    assert np.isfinite(ax.collections[0].get_paths()[0].vertices).all()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b"]
    assert ax.lines[0].get_color() != ax.lines[1].get_color()
    assert ax.lines[0].get_linestyle() != ax.lines[1].get_linestyle()


def test_long_labels_go_on_in_the_next_line_of_the_legend() -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.5), layout="constrained")
    label = "folder = " + 20 * "results-"
    ax = plots.curves(
        {label: history(0.1, 0.5), "b": history(0.2)}, "accuracy", ax=figure.subplots()
    )
    figure.canvas.draw()  # which warns where no room is left
    long, short = (text.get_text() for text in ax.get_legend().get_texts())
    assert long.replace("\n", "") == label
    assert max(map(len, long.splitlines())) <= 40
    assert short == "b"


def test_bands_can_lie_over_virtual_time() -> None:
    slow, fast = history(0.1, 0.5), history(0.3, 0.9)
    for run, seconds in ((slow, (3.0, 6.0)), (fast, (1.0, 2.0))):
        for t, value in enumerate(seconds, 1):
            run.add(t, {"seconds": value})
    ax = plots.bands({"a": [slow, fast]}, "accuracy", x="seconds")
    np.testing.assert_allclose(ax.lines[0].get_xydata(), [[2.0, 0.2], [4.0, 0.7]])
    assert ax.get_xlabel() == "virtual time in seconds"


def test_a_legend_tells_only_curves_apart_that_differ() -> None:
    from matplotlib.figure import Figure

    for count in (28, 29):
        ax = Figure(figsize=(5, 3.5), layout="constrained").subplots()
        plots.curves({f"run-{i}": history(0.1, i) for i in range(count)}, "accuracy", ax=ax)
        ax.figure.canvas.draw()  # which warns where no room is left
        assert (ax.get_legend() is not None) == (count == 28)


@pytest.mark.parametrize("nodes", [6, 40])
def test_a_network_has_its_links(nodes: int) -> None:
    matrix = topology.ring(nodes).matrix(0)
    ax = plots.network(matrix.edges, nodes, title="ring")
    assert len(ax.lines) == nodes
    assert len(ax.collections[0].get_offsets()) == nodes
    assert ax.get_title() == "ring"


def test_a_torus_is_a_grid_and_a_star_has_its_hub_in_the_middle() -> None:
    edges = topology.torus(3, 4).matrix(0).edges
    ax = plots.network(edges, 12, grid=(3, 4))
    places = np.asarray(ax.collections[0].get_offsets())
    corners = set(itertools.product(range(4), range(3)))
    assert {tuple(place) for place in places.astype(int)} == corners
    assert len(ax.lines) + len(ax.texts) == len(edges)
    assert len(ax.texts) == 3 + 4  # links around it
    star = plots.network(topology.star(9).matrix(0).edges, 9)
    offsets = np.asarray(star.collections[0].get_offsets())
    distances = np.linalg.norm(offsets - offsets.mean(axis=0), axis=1)
    assert np.sort(distances)[0] < 1e-6  # single precision
    assert np.sort(distances)[1] > 0.1


def test_figures_draw_where_they_are_told() -> None:
    import matplotlib.pyplot as plt

    ax = plt.figure().subplots()
    assert plots.curves({"a": history(1.0)}, "accuracy", ax=ax) is ax
    assert ax.get_legend() is None
    assert plots.network([], 1, ax=ax) is ax


test_bad_arguments_are_named = refused(
    (lambda: plots.bands({"a": []}, "accuracy"), "groups: wanted at least 1 run in each"),
    (
        lambda: plots.bands({"a": [history(1.0), history(1.0, every=2)]}, "accuracy"),
        "groups: wanted runs measured in the same rounds, got different ones in 'a'",
    ),
    (lambda: plots.bands({"a": history(1.0)}, "accuracy"), "groups: wanted a list of histories"),
    (lambda: plots.curves(history(1.0), "loss"), "histories: wanted the history of each run"),
    (lambda: plots.curves({"a": 1.0}, "loss"), "'a': wanted the history of a run, .*, got 1"),
    (lambda: plots.curves({"a": history(1.0)}, "loss"), "metric: wanted one of 'accuracy'"),
    (lambda: plots.network([[0, 3]], 3), "edges: wanted pairs of nodes below 3, got 0 to 3"),
    (lambda: plots.network([], 0), "nodes: wanted an integer of at least 1, got 0"),
)

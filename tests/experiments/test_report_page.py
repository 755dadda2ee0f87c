"""Figures show what they were given; the page about finished runs is one file that holds all."""

from __future__ import annotations

import itertools
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pytest
from problems import stream_problem as make_problem
from refused import refused
from test_experiments import TEXT, write

import dpmesh as dm
from dpmesh import plots, topology
from dpmesh.experiments import Experiment, html, page, read, run_sweep, sweep
from dpmesh.experiments.experiment import run_into
from dpmesh.experiments.figures import drawings
from dpmesh.experiments.results import load_results
from dpmesh.experiments.sweep import cells
from dpmesh.run import History

pytest.importorskip("matplotlib").use("Agg")


class Links(HTMLParser):
    """Collects what a page loads or points to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.found += [value for name, value in attributes if name in ("src", "href")]


@pytest.mark.slow
def test_the_page_holds_everything_itself(tmp_path) -> None:
    run_sweep(read(write(tmp_path)), tmp_path / "results", processes=1)
    path = page.write_page([tmp_path / "results"])
    text, links = path.read_text(), Links()
    links.feed(text)
    assert path == tmp_path / "results" / "report.html"
    pictures, papers = links.found[::2], links.found[1::2]
    # against epsilon; rounds; seconds and megabytes; graph
    assert len(pictures) == len(papers) == 1 + 2 + 2 + 1
    assert all(link.startswith("data:image/svg+xml,") for link in pictures)
    assert all(link.startswith("data:application/pdf;base64,") for link in papers)
    for picture in pictures:
        ElementTree.fromstring(unquote(picture.partition(",")[2]))
    for wanted in (
        "4 runs of 2 settings",
        "epsilon = 1.0",
        "epsilon = none",
        "NOT private: seeded noise",
        "spectral gap",
        "What privacy buys",
        "over single site",
        "No epsilon covers these figures",
        "ariaSort",
        "ring (4 nodes), each link up with probability 0.7",
        "&quot;positive&quot;",
        "numpy",
    ):
        assert wanted in text
    assert text.index("<td>epsilon = 1.0") < text.index("<td>epsilon = none")
    run = tmp_path / "results" / cells(read(write(tmp_path)))[0].name
    page.write_page([run], tmp_path / "one")
    assert "1 run of 1 setting." in (tmp_path / "one").read_text()
    with pytest.raises(ValueError, match="folder: wanted one with finished runs"):
        page.write_page([run, tmp_path / "nowhere"])


def test_places_are_rounded_and_labels_are_not() -> None:
    from matplotlib.figure import Figure

    figure = Figure()
    figure.subplots().set(yticks=[0.35, 0.4], ylim=(0.317, 0.4))
    picture = unquote(html.figures([(figure, "two ticks")]))
    assert ">0.35<" in picture
    assert ">0.40<" in picture
    assert not re.search(r' (?:x|y|d)="[^"]*\.\d\d', picture)


@pytest.mark.slow
def test_runs_of_a_program_have_a_page(tmp_path) -> None:
    """They were no results: only `dpmesh run` leaves notes on what a run changes."""
    for epsilon in (1.0, 4.0):
        algorithm = dm.OnlineLearning(epsilon=epsilon)
        run = dm.simulate(algorithm, make_problem(), dm.topology.ring(4), rounds=3)
        run.save(tmp_path / f"at {epsilon}")
    text = page.write_page([tmp_path]).read_text()
    assert "2 runs of 2 settings" in text
    for epsilon in (1, 4):
        assert (
            f"<summary>run = at {epsilon}.0</summary><pre>privacy     epsilon = {epsilon}, " in text
        )
        assert f"OnlineLearning(epsilon={epsilon}.0" in text
    assert "1 run of 1 setting." in page.write_page([tmp_path / "at 1.0"]).read_text()
    assert page.write_page([tmp_path], tmp_path / "a.csv").read_text().count("\n") == 3
    assert r"\begin{tabular}" in page.write_page([tmp_path], tmp_path / "a.tex").read_text()


@pytest.mark.slow
def test_runs_that_differ_by_chance_are_shown_with_the_privacy_of_the_dearest(tmp_path) -> None:
    """A run that by chance released nothing has epsilon 0; others of its settings have not."""
    settings = read(write(tmp_path, TEXT.replace('[1.0, "none"]', "[1.0]")))
    run_sweep(settings, tmp_path / "results", processes=1)
    first = tmp_path / "results" / cells(settings)[0].name / "run.json"
    run = json.loads(first.read_text())
    run["privacy"] |= {"epsilon": 0.0, "releases": 0}
    first.write_text(json.dumps(run))
    text = page.write_page([tmp_path / "results"]).read_text()
    assert "<td>epsilon = 1.0</td><td>2</td><td>1</td>" in text
    assert "NOT private: seeded noise. With secret noise: epsilon = 1," in text
    alone = page.write_page([first.parent]).read_text()
    assert "With secret noise: epsilon = 0," in alone
    assert "against epsilon" not in alone


@pytest.mark.slow
def test_what_is_written_is_utf_8_in_any_locale(tmp_path) -> None:
    run_sweep(read(write(tmp_path)), tmp_path / "results", processes=1)
    code = """
import sys
from dpmesh.experiments.page import write_page
from dpmesh.run import History
print(write_page([sys.argv[1]]))
measured = History()
measured.add(1, {"\\u03b5": 1.0})
measured.to_csv(sys.argv[1] + "/history.csv")
"""
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "MPLBACKEND": "Agg"}
    command = [sys.executable, "-c", code, str(tmp_path / "results")]
    subprocess.run(command, env=os.environ | plain, check=True, capture_output=True)
    assert "\u00b1" in (tmp_path / "results" / "report.html").read_text(encoding="utf-8")
    assert "\u03b5" in (tmp_path / "results" / "history.csv").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_page_of_several_folders_compares_them(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    seeds = TEXT.replace('algorithm.epsilon = [1.0, "none"]', "")
    for name, radius in (("small", "10"), ("large", "20")):
        run_sweep(read(write(tmp_path, seeds.replace("10", radius))), Path(name), processes=1)
    path = page.write_page(["small", "large"])
    assert path.resolve() == tmp_path / "report.html"
    text = path.read_text()
    assert "<h1>small, large</h1>" in text
    assert "4 runs of 2 settings" in text
    assert text.index("<td>folder = small") < text.index("<td>folder = large")
    assert "&quot;radius&quot;: 10" in text
    assert "&quot;radius&quot;: 20" in text


@pytest.mark.slow
def test_methods_stand_in_a_panel_for_each_network_and_failures_on_top(
    tmp_path, monkeypatch
) -> None:
    """Nine methods in three networks were one picture with a legend of 21 entries over it."""
    swept = """
seeds = [1, 2, 4]
topology = [{kind = "ring"}, {kind = "complete"}]
algorithm = [
    {kind = "OnlineLearning", epsilon = 4},
    {kind = "GradientDescent", epsilon = 4},
    {kind = "FederatedLearning", epsilon = 4, contribution = {kind = "ClientUpdates", steps = 1}},
]
"""

    def run(folder: Path, experiment: Experiment, changes: Any, *more: Any, **options: Any) -> None:
        if changes["run.seed"] == 4:
            raise ValueError("no disk for seed 4")
        run_into(folder, experiment, changes, *more, **options)

    monkeypatch.setattr(sweep, "run_into", run)
    settings = read(write(tmp_path, f"{TEXT.partition('[sweep]')[0]}[sweep]{swept}"))
    assert len(run_sweep(settings, tmp_path / "results", processes=1)) == 2 * 2 + 1
    results, _ = load_results(tmp_path / "results")
    assert len(results) == 2 * (2 * 2 + 1)  # a server needs no network, and runs once
    first, *_ = drawings(results)
    assert [ax.get_title() for ax in first[0].axes] == ["no network", "complete", "ring"]
    text = page.write_page([tmp_path / "results"]).read_text()
    assert "5 runs failed. The same command repeats them." in text
    assert text.index("5 runs failed") < text.index("What privacy buys")
    assert text.count("no disk for seed 4") == 1  # one line for all of them
    assert len(text) < 500_000


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

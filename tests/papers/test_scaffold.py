"""Cells that fail, rows in files, verdicts with intervals, and colours of figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dpmesh_papers._figure import Line, Panel, drawn
from dpmesh_papers._scaffold import Experiment, IncompleteError, Row, compared, grid, read, repeated

PANEL = Panel(title="", lines=[Line(label="one", x=[1, 2], y=[1, 2])])


def divided(cell: Row) -> Row:
    return {"inverse": 1 / cell["number"], "name": None}


def test_a_cell_that_fails_leaves_the_others(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    experiment = Experiment(tmp_path, "inverses", lambda line: None)
    experiment.measure([{"number": number} for number in (2, 0, 4)], divided)
    with pytest.raises(
        IncompleteError, match=r"1 cell.* failed; .*number 0: ZeroDivision"
    ) as error:
        experiment.write(lambda rows: f"{len(rows)} rows", lambda rows: drawn([PANEL]))
    table, text, figure = error.value.files
    assert read(table) == [
        {"number": 2, "inverse": 0.5, "name": None},
        {"number": 4, "inverse": 0.25, "name": None},
    ]
    assert text.read_text() == f"2 rows\nfailed: {error.value.failures[0]}\n"
    assert figure.stat().st_size > 10_000


def test_an_interrupt_leaves_what_was_measured(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    def measured(cell: Row) -> Row:
        if cell["number"] == 0:
            raise KeyboardInterrupt
        return divided(cell)

    experiment = Experiment(tmp_path, "inverses", lambda line: None)
    experiment.measure([{"number": number} for number in (2, 0, 4)], measured)
    with pytest.raises(KeyboardInterrupt, match="interrupted"):
        experiment.write(lambda rows: "", lambda rows: drawn([PANEL]))
    assert [row["number"] for row in read(tmp_path / "inverses.csv")] == [2]
    assert "interrupted" in (tmp_path / "inverses.txt").read_text()


def test_a_table_shows_what_is_missing() -> None:
    rows = [{"a": a, "b": b} for a, b in ((1, "x"), (1, "y"), (2, "y"))]
    lines = grid(rows, row="a", column="b", show=lambda row: "here", widths=(3, 6))
    assert [line.split() for line in lines] == [
        ["x", "y"],
        ["1", "here", "here"],
        ["2", "-", "here"],
    ]


def test_verdicts_want_intervals_apart() -> None:
    low, high, wide = (repeated(values) for values in ([1, 1.1], [3, 3.1], [-9, 12]))
    assert (compared(high, low), compared(low, high)) == ("ahead", "behind")
    assert compared(low, wide) == "no clear difference"
    assert "one run each" in compared(repeated([1]), repeated([2]))
    assert np.isnan(repeated([1])["interval"])


def test_a_method_has_its_colour_in_every_panel_and_in_the_legend() -> None:
    """The left panel lacks a method: its colours followed positions, the legend the right one."""
    pytest.importorskip("matplotlib")
    right = [f"method {number}" for number in range(9)]
    panels = [
        Panel(title="", lines=[Line(label=name, x=[1, 2], y=[1, 2]) for name in names])
        for names in (right[:3] + right[4:], right)
    ]
    figure = drawn(panels)
    looks: dict[str, set[tuple[str, str]]] = {}
    for ax in figure.axes:
        for bars in ax.containers:
            line = bars.lines[0]
            looks.setdefault(bars.get_label(), set()).add((line.get_color(), line.get_linestyle()))
    (legend,) = figure.legends
    for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
        looks[text.get_text()].add((handle.get_color(), handle.get_linestyle()))
    assert set(looks) == set(right)
    assert all(len(look) == 1 for look in looks.values())
    assert len({look.pop() for look in looks.values()}) == len(right)

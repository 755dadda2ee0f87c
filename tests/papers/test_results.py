"""The committed results: what the documentation shows is what the commands wrote."""

from __future__ import annotations

import json
import runpy
import subprocess
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from dpmesh_papers import (
    allocated,
    demonstration,
    federated,
    online,
    online_counterexample,
    online_delay,
    quantized_comparison,
    quoted,
    scale,
)
from dpmesh_papers._output import commit_of
from dpmesh_papers._scaffold import read
from dpmesh_papers.catalog import REPRODUCTIONS
from dpmesh_papers.without_replacement import table_as_text

DOCS = Path(__file__).parents[2] / "docs"
RESULTS = DOCS / "results"
QUANTIZED, TOKEN = "algorithms/quantized.md", "algorithms/without_replacement.md"


def test_results_say_what_made_them() -> None:
    found = {path.stem: json.loads(path.read_text()) for path in RESULTS.glob("*.json")}
    for by in [*found.pop("benchmark")["made"].values(), *found.values()]:
        assert {"commit", "machine", "numpy"} <= {*by}
        assert "program" in by or ("keys" in by and not by["quick"])
        if "experiment" in by:
            function = REPRODUCTIONS[by["experiment"]].function
            assert "seeds" in by or "seeds" not in signature(function).parameters
        assert "dirty" not in by["commit"]


def test_the_page_of_the_benchmark_is_made_of_its_cells() -> None:
    pytest.importorskip("sklearn")
    from dpmesh_papers.benchmark.results import as_markdown
    from dpmesh_papers.benchmark.results import read as read_benchmark

    assert (RESULTS / "benchmark.md").read_text() == as_markdown(*read_benchmark(RESULTS)) + "\n"


def text_of_networks(rows: list[dict[str, Any]], table: str = "") -> str:
    pytest.importorskip("jax")
    from dpmesh_papers import federated_networks, federated_stability

    if not table:
        return federated_stability.as_text(rows)
    data = "texts" if table == "table6" else "mnist"
    return federated_networks.as_text(f"federated-{table}", data, rows)


@pytest.mark.parametrize(
    ("name", "as_text", "page"),
    [
        ("online-counterexample", online_counterexample.as_text, "errata.md"),
        ("federated-table2", federated.as_text, "algorithms/federated.md"),
        ("federated-figure4", text_of_networks, "algorithms/federated.md"),
        *(
            (f"federated-{name}", partial(text_of_networks, table=name), "algorithms/federated.md")
            for name in ("table3", "table4", "table5", "table6")
        ),
        ("scale", scale.as_text, "findings.md"),
        ("demo", demonstration.as_text, "which_algorithm.md"),
        ("online-allocated", allocated.as_text, "algorithms/online.md"),
        ("online-delay", online_delay.as_text, "algorithms/online.md"),
        ("without-replacement-allocated", allocated.as_text, TOKEN),
        ("online-figure1", online.text_of_figure1, "algorithms/online.md"),
        ("online-figure2", online.text_of_figure2, "algorithms/online.md"),
        ("online-mechanisms", online.text_of_mechanisms, "algorithms/online.md"),
        ("online-table1", online.text_of_table1, "algorithms/online.md"),
        ("quantized-figure4", quantized_comparison.as_text, QUANTIZED),
        (
            "quantized-figure4-network",
            partial(quantized_comparison.as_text, of="network"),
            QUANTIZED,
        ),
        *(
            (f"without-replacement-{table}", partial(table_as_text, source=source), TOKEN)
            for table, source in (
                ("table1", "Table I, Covertype"),
                ("table2", "Table II, MNIST"),
                ("table2-intercept", "Table II, MNIST, without an intercept"),
            )
        ),
    ],
)
def test_a_text_is_made_of_its_rows_and_shown(name: str, as_text: Any, page: str) -> None:
    assert (RESULTS / f"{name}.txt").read_text() == as_text(read(RESULTS / f"{name}.csv")) + "\n"
    assert f'--8<-- "docs/results/{name}.txt"' in (DOCS / page).read_text()


def test_answers_about_real_files_are_shown() -> None:
    pytest.importorskip("pandas")
    from dpmesh_papers.studies.real_files import as_text

    rows = read(RESULTS / "real-files.csv")
    assert len(rows) >= 30
    assert all(row["lines_outside"] == 0 for row in rows)
    test_a_text_is_made_of_its_rows_and_shown("real-files", as_text, "statistics_accuracy.md")


def test_three_populations_of_seven_tasks_are_shown() -> None:
    pytest.importorskip("sklearn")
    from dpmesh_papers.studies.populations import as_text

    rows = read(RESULTS / "populations.csv")
    assert len({row["task"] for row in rows}) == 7
    for task in {row["task"] for row in rows}:
        names = [row["population"] for row in rows if row["task"] == task]
        assert names[:2] == ["all sites' records", "each site's own records"]
    test_a_text_is_made_of_its_rows_and_shown("populations", as_text, "verdicts.md")


def test_baselines_take_at_most_their_share_of_a_large_fit() -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("typer")
    from dpmesh_papers.studies.evaluation_time import as_text

    rows = read(RESULTS / "evaluation-time.csv")
    large = [row["share"] for row in rows if row["records"] > 20_000]
    assert large
    assert max(large) <= 0.3
    test_a_text_is_made_of_its_rows_and_shown("evaluation-time", as_text, "verdicts.md")


def test_pages_quote_the_committed_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert quoted.main(check=True) == 0, capsys.readouterr().out
    written = quoted.written("reaches 12.3 here", "reaches {n} here", {"n": "45.6"})
    assert written == "reaches 45.6 here"


@pytest.mark.slow
def test_the_table_of_what_composes_is_what_the_code_does(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for needed in ("flwr", "mpi4py"):
        pytest.importorskip(needed)
    program = runpy.run_path(str(DOCS.parent / ".ci" / "composed.py"))
    assert program["main"](check=True) == 0, capsys.readouterr().out


def test_results_that_a_run_writes_do_not_make_its_commit_dirty(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True)

    results = tmp_path / "docs" / "results"
    results.mkdir(parents=True)
    result, code = results / "a.csv", tmp_path / "code.py"
    assert commit_of(tmp_path).startswith("unknown")
    git("init", "--quiet")
    for file in (result, code):
        file.write_text("1\n")
    git("add", ".")
    git("commit", "--quiet", "--message", "a")
    clean = commit_of(tmp_path)
    assert len(clean) == 12
    result.write_text("2\n")
    assert commit_of(tmp_path) == clean
    code.write_text("2\n")
    assert commit_of(results) == f"{clean}-dirty"

"""What the documentation says: its programs run, and the code that it quotes is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import dpmesh
from dpmesh.reproduce.catalog import REPRODUCTIONS

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
SOURCES = Path(dpmesh.__file__).parent
PRINTED = [
    "estimators.md",
    "secure_sums.md",
    "which_algorithm.md",
    "how_much_data.md",
    "algorithms/cross_silo.md",
    "algorithms/with_replacement.md",
]
"""Pages whose programs are followed by what they print."""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT / "docs"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", [page for page in PAGES if name(page) not in PRINTED], ids=name)
def test_the_programs_of_a_page_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M)
    if not programs:
        pytest.skip("has no programs")
    for extra in ("sklearn", "jax", "matplotlib", "pandas"):
        pytest.importorskip(extra)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for program in programs:
        exec(compile(program, str(page), "exec"), names)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", PRINTED)
def test_programs_print_what_stands_below_them(
    page: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for extra in ("sklearn", "pandas", "cryptography"):
        pytest.importorskip(extra)
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / page).read_text()
    names: dict[str, object] = {}
    pairs = re.findall(r"^```python\n(.*?)^```(?:\n\n```text\n(.*?)^```)?", text, re.S | re.M)
    assert any(printed for _, printed in pairs)
    for program, printed in pairs:
        exec(compile(program, page, "exec"), names)
        found = capsys.readouterr().out
        if printed:
            assert without_numbers(found) == without_numbers(printed)


def without_numbers(text: str) -> list[str]:
    """Return the words of a text, each number as #: the last digits differ between platforms."""
    return re.sub(r"[\d.]+", "#", text).replace("none of #", "# of #").split()


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "algorithms").glob("*.md")), ids=name)
def test_the_code_beside_the_paper_is_the_algorithms(page: Path) -> None:
    text = page.read_text()
    files = re.findall(r"`dpmesh/(\w+/\w+\.py)`", text)
    assert files[0] == f"algorithms/{page.stem}.py"
    source = " ".join(" ".join((SOURCES / file).read_text() for file in files).split())
    table = re.findall(r"^\|.*\| `([^`]*)` \|$", text, re.M)
    assert len(table) >= 5
    for code in table:
        squeezed = code.replace("(", "( ").replace(")", " )")
        assert code in source or squeezed in source, code


def test_every_experiment_and_its_data_are_on_the_page() -> None:
    rows = re.findall(r"^\|.*$", (ROOT / "docs" / "reproduce.md").read_text(), re.M)
    for experiment, shown in REPRODUCTIONS.items():
        data = shown.data
        (row,) = (row for row in rows if f"`{experiment}`" in row)
        assert f"| {data or 'none'} |" in row, experiment
        assert not data or any(row.startswith(f"| `{data}` |") for row in rows)


def test_bounds_are_reached_from_the_packages_own_name() -> None:
    for paper in dpmesh.bounds.__all__:
        assert getattr(dpmesh.bounds, paper).__doc__


def test_what_the_papers_claim_is_reached_from_the_packages_own_name() -> None:
    code = "import dpmesh as dm; dm.privacy.accounting.papers.federated.theorem_noise"
    subprocess.run([sys.executable, "-c", code], check=True)

"""What the documentation says: its programs run, and the code that it quotes is there."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import dpmesh
from dpmesh_papers.catalog import REPRODUCTIONS

ROOT = Path(__file__).parent.parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
SOURCES = Path(dpmesh.__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
WIDTH = 100
"""Characters of a line of code for which `docs/code_width.css` makes room."""
PRINTED = [
    "estimators.md",
    "estimator_recipes.md",
    "statistics.md",
    "which_epsilon.md",
    "secure_aggregation_simulation.md",
    "secure_aggregation_contract.md",
    "privacy/accountant_howto.md",
    "privacy/accounting.md",
    "privacy/first_stage.md",
    "privacy/report.md",
    "privacy/random_allocation.md",
    "privacy/random_allocation_accuracy.md",
    "which_algorithm.md",
    "how_much_data.md",
    "algorithms/federated_gradients.md",
    "algorithms/secure_gossip.md",
    "algorithms/with_replacement.md",
]
"""Pages whose programs are followed by what they print."""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT / "docs"))


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_it_prints(
    notebook: Path,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for extra in ("sklearn", "cryptography"):
        pytest.importorskip(extra)
    pytest.importorskip("matplotlib").use("Agg")
    assert f"notebooks/{notebook.name}" in (ROOT / "mkdocs.yml").read_text()
    monkeypatch.chdir(tmp_path)
    cells = [c for c in json.loads(notebook.read_text())["cells"] if c["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    names: dict[str, object] = {"__name__": notebook.stem}
    monkeypatch.setitem(sys.modules, notebook.stem, ModuleType(notebook.stem))
    for cell in cells:
        results = [out for out in cell["outputs"] if out["output_type"] == "execute_result"]
        result = run_cell("".join(cell["source"]), names, notebook.stem, has_result=bool(results))
        if notebook.stem == "audit":  # its verdicts rest on noise from the operating system
            results = []
        for out in results:
            displayed = {"text/plain": repr(result)}
            if hasattr(result, "_repr_html_"):
                displayed["text/html"] = result._repr_html_()
            for kind, text in displayed.items():
                assert without_numbers("".join(out["data"][kind])) == without_numbers(text)
        shown = [out.get("text", ()) for out in cell["outputs"] if out["output_type"] == "stream"]
        printed = "".join(line for lines in shown for line in lines)
        found = capsys.readouterr().out
        if notebook.stem == "audit":
            assert bool(found) == bool(printed)
        else:
            assert without_numbers(found) == without_numbers(printed)


def run_cell(source: str, names: dict[str, object], name: str, *, has_result: bool) -> object:
    """Run a cell; return the value of its last expression if it shows one."""
    program = ast.parse(source)
    last = program.body[-1]
    if not has_result or not isinstance(last, ast.Expr):
        exec(compile(program, name, "exec"), names)
        return None
    program.body.pop()
    exec(compile(program, name, "exec"), names)
    return eval(compile(ast.Expression(last.value), name, "eval"), names)


def slug(heading: str) -> str:
    """Return the anchor of a heading, as the site has it."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def test_links_between_pages_lead_somewhere() -> None:
    """The site's build checks its own; README and its neighbours are not in it."""
    lost = []
    for page in [*PAGES, *ROOT.glob("*.md")]:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.S | re.M)
        for link in re.findall(r"\]\(([^)\s]+)\)", text):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            if "://" in link or link.startswith("mailto:"):
                continue
            if not target.exists():
                lost.append(f"{page.name}: {link}")
            elif anchor and target.suffix == ".md" and target.parent.name != "api":
                headings = re.findall(r"^#+ (.*)", target.read_text(), re.M)
                lost += [] if anchor in map(slug, headings) else [f"{page.name}: {link}"]
    assert not lost


def test_no_line_of_a_program_is_wider_than_the_pages() -> None:
    assert "code_width.css" in (ROOT / "mkdocs.yml").read_text()
    wide = [
        f"{name(page)}: {line}"
        for page in PAGES
        for program in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.S | re.M)
        for line in program.splitlines()
        if len(line) > WIDTH
    ]
    for notebook in NOTEBOOKS:
        cells = json.loads(notebook.read_text())["cells"]
        lines = [line.rstrip() for c in cells if c["cell_type"] == "code" for line in c["source"]]
        wide += [f"{notebook.name}: {line}" for line in lines if len(line) > WIDTH]
    assert not wide


def without_numbers(text: str) -> list[str]:
    """Return the words of a text, each number as #: the last digits differ between platforms."""
    return re.sub(r"[\d.]+", "#", text).replace("none of #", "# of #").split()


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "algorithms").glob("*.md")), ids=name)
def test_the_code_beside_the_paper_is_the_algorithms(page: Path) -> None:
    text = page.read_text()
    files = re.findall(r"`(dpmesh(?:_papers)?(?:/\w+)+\.py)`", text)
    assert files[0] == f"dpmesh/algorithms/{page.stem}.py"
    source = " ".join(" ".join((SOURCES / file).read_text() for file in files).split())
    table = re.findall(r"^\|.*\| `([^`]*)` \|$", text, re.M)
    assert len(table) >= 5
    for code in table:
        squeezed = code.replace("(", "( ").replace(")", " )")
        assert code in source or squeezed in source, code


def test_every_experiment_and_its_data_are_on_the_page() -> None:
    rows = [
        row
        for page in ("reproduce.md", "data_sets.md")
        for row in re.findall(r"^\|.*$", (ROOT / "docs" / page).read_text(), re.M)
    ]
    for experiment, shown in REPRODUCTIONS.items():
        data = shown.data
        row = next(row for row in rows if f"`{experiment}`" in row)
        assert f"| {data or 'none'} |" in row, experiment
        assert not data or any(row.startswith(f"| `{data}` |") for row in rows)


@pytest.mark.slow
def test_commands_that_pages_and_results_name_exist() -> None:
    typer = pytest.importorskip("typer.main")
    from dpmesh.cli import app
    from dpmesh_papers.benchmark.tasks import TASKS

    named = {"reproduce": {*REPRODUCTIONS}, "benchmark": {*TASKS}}
    pages = [ROOT / "README.md", ROOT / "docs" / "results" / "made.txt", *PAGES]
    text = "\n".join(page.read_text() for page in pages)
    blocks = "".join(re.findall(r"^```sh\n(.*?)^```", text, re.S | re.M)).replace("\\\n", " ")
    lines = re.findall(r"`(dpmesh [^`\n]+)`", text) + re.findall(r"^dpmesh .+$", blocks, re.M)
    program = typer.get_command(app)
    imported = cache(lambda command: getattr(command, "imported_command", lambda: command)())
    for line in dict.fromkeys(lines):
        command, words, place = program, shlex.split(line, comments=True)[1:], ""
        while words and words[0] in getattr(command, "list_commands", lambda _: ())(None):
            place = words.pop(0)
            command = imported(command.get_command(None, place))
        options = {option for one in command.params for option in (*one.opts, *one.secondary_opts)}
        asked = {word for word in words if word.startswith("--")}
        assert asked <= options, line
        if place in named and words and words[0] not in options:
            assert words[0] in named[place], line
    for file, test in re.findall(r"`pytest (\S+) -k (\w+)`", text):
        assert re.search(rf"def test_\w*{test}", (ROOT / file).read_text()), file
    for module in re.findall(r"`python -m (benches\.\w+|dpmesh_papers\.studies\.\w+)", text):
        file = f"{module.replace('.', '/')}.py"
        assert (ROOT / file).exists() or (ROOT / "python" / file).exists(), module


@pytest.mark.slow
def test_what_the_papers_claim_is_reached_from_the_packages_own_name() -> None:
    code = "import dpmesh as dm; dm.accounting.papers.quantized.sensitivities"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_site_is_read_by_keyboard_and_its_signatures_line_by_line() -> None:
    """`.ci/axe.py` looks at the pages in a browser, which CI does not have."""
    config = (ROOT / "mkdocs.yml").read_text()
    assert "extra_javascript: [keyboard.js]" in config
    assert "separate_signature: true" in config
    docs = re.search(r"^docs = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.M)
    assert docs is not None
    assert '"ruff>=' in docs[1]  # it breaks the lines of signatures


@pytest.mark.slow
def test_pages_help_docstrings_and_reports_have_the_words_of_the_field() -> None:
    """Search terms lead somewhere, no phrase to avoid is used, and few sentences are long."""
    asked = [sys.executable, str(ROOT / ".ci" / "words.py"), "--check"]
    counted = subprocess.run(asked, capture_output=True, text=True)
    assert counted.returncode == 0, counted.stdout

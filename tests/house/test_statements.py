"""The pages that list every numbered statement of a paper name code and commands that exist."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from dpmesh_papers.catalog import REPRODUCTIONS

FOLDER = Path(__file__).parents[2] / "docs" / "papers"
PAGES = sorted(page for page in FOLDER.glob("*.md") if page.stem != "bounds")
COMMAND = "dpmesh reproduce "

NUMBERED = {
    "online": [*(f"Definition {k}" for k in (1, 2, 3)), *(f"Lemma {k}" for k in range(1, 11))]
    + [f"Theorem {k}" for k in range(1, 5)]
    + ["Assumption 1", "Assumption 2", "Algorithm 1", "Algorithm 2", "Figure 1", "Figure 2"]
    + ["Table I", "(19)", "(45)", "(46)", "(58)", "(59)", "(60)", "(61)"],
    "quantized": [*(f"Assumption {k}" for k in range(1, 5)), *(f"Lemma {k}" for k in range(1, 6))]
    + [f"Theorem {k}" for k in range(1, 5)]
    + ["Corollary 1", "Definition 1", "Definition 2", "Definition 3", "Definition 4, 5"]
    + ["Algorithm 1", "Figures 2 and 3", "Figure 4a", "Figure 4c", "Figure 5"],
    "federated": [f"Theorem {k}" for k in range(1, 7)]
    + ["Lemma 1", "Lemma 2", "Lemma 3", "Lemma 4", "Lemmas 5 and 6", "Lemma 7", "Lemma 8"]
    + ["Lemma 9", "Corollary 1", "Corollary 2", "Assumptions 1 to 6", "Proposition 1", "(15)"]
    + ["Definition 3", "Definitions 1 and 2", "Remark 3", "Tables 3 to 6", "Table 2"],
    "without_replacement": [f"Theorem {k}" for k in range(1, 5)]
    + ["Definition 1", "Definition 2", "Definition 3", "Definition 4", "Lemmas 1 to 3", "Lemma 4"]
    + ["Lemma 5", "Lemma 6", "Lemma 7", "Algorithm 1", "Algorithm 2", "Assumption 1"]
    + ["Figures 1 to 4", "Tables I and II", "(9)", "(10)", "(43)", "(44)", "(45)"],
}
"""What each paper numbers; its page must have a row that names it."""


def rows_of(page: Path) -> list[list[str]]:
    """Return the cells of a page's table, without its head."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[1:]]


def named_object(name: str) -> object:
    """Return what ``module:Class.member`` names."""
    module, _, members = name.partition(":")
    found: object = import_module(module)
    for position, member in enumerate(filter(None, members.split("."))):
        fields = getattr(found, "__dataclass_fields__", {})
        if position and member in fields:
            return fields[member]
        found = getattr(found, member)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_statement_has_code_or_a_command(page: Path) -> None:
    for statement, _, state, here in rows_of(page):
        names = re.findall(r"`([^`]+)`", here)
        assert state, statement
        assert names, f"{page.name}: {statement} names no code and no command"
        for name in names:
            if name.startswith(COMMAND):
                assert name.removeprefix(COMMAND) in REPRODUCTIONS, f"{statement}: {name}"
            else:
                assert named_object(name) is not None, f"{statement}: {name}"


@pytest.mark.parametrize("paper", NUMBERED)
def test_no_numbered_statement_is_missing(paper: str) -> None:
    page = next(page for page in PAGES if page.stem == paper)
    listed = [statement for statement, *_ in rows_of(page)]
    for wanted in NUMBERED[paper]:
        pattern = re.compile(re.escape(wanted) + r"(?!\d)")
        inside = any(pattern.search(statement) or _spans(statement, wanted) for statement in listed)
        assert inside, f"docs/papers/{paper}.md has no row for {wanted}"


def _spans(statement: str, wanted: str) -> bool:
    """Return True if a range such as ``(19) to (29)`` or ``Definition 1 and 2`` contains a name."""
    kind, _, number = wanted.rpartition(" ")
    if not number.isdigit():
        return False
    plural = re.search(rf"{kind}s? ((?:\d+(?:, | and )?)+)", statement)
    return plural is not None and number in re.findall(r"\d+", plural.group(1))


def test_all_four_papers_have_a_page() -> None:
    assert [page.stem for page in PAGES] == sorted(NUMBERED)

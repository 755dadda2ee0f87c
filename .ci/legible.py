"""Print how readable each room of a package is, in figures; a table for the log, never a failure.

usage: python .ci/legible.py [PACKAGE ..]    (default: all packages of python/)
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import shutil
import subprocess
import tempfile
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path

PACKAGES = Path(__file__).parents[1] / "python"
LAYOUT = frozenset(
    {
        tokenize.COMMENT,
        tokenize.DEDENT,
        tokenize.ENCODING,
        tokenize.ENDMARKER,
        tokenize.INDENT,
        tokenize.NEWLINE,
        tokenize.NL,
    }
)
GRAMMAR_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        alike also apart asked at begins begun both drawn each found given heard held here
        how kept known left made needed of one other others own said seen sent some taken
        told together used wanted whole written
        """,
    )
)
CLAUSE_WORDS = frozenset({"how", "what", "whether", "who"})
FORMAT = ("ruff", "format", "--isolated", "--quiet", "--line-length", "100")


@dataclass
class Counts:
    """Counts of one file or of several."""

    tokens: int = 0
    lines: int = 0
    conditionals: int = 0
    walruses: int = 0
    any_types: int = 0
    any_dictionaries: int = 0
    splats: int = 0
    names: int = 0
    grammar_names: int = 0
    docstrings: int = 0
    clause_docstrings: int = 0

    def add(self, other: Counts) -> None:
        """Add the counts of other files."""
        for field in fields(self):
            total = getattr(self, field.name) + getattr(other, field.name)
            setattr(self, field.name, total)

    def figures(self) -> list[str]:
        """Return the cells of this row of the table."""
        thousands = max(self.lines, 1) / 1000
        return [
            f"{self.tokens:,}",
            f"{self.lines:,}",
            f"{self.tokens / max(self.lines, 1):.1f}",
            f"{self.conditionals / thousands:.1f}",
            f"{self.walruses / thousands:.1f}",
            f"{self.any_types / thousands:.1f}",
            f"{self.any_dictionaries}",
            f"{self.splats}",
            f"{100 * self.grammar_names / max(self.names, 1):.1f}%",
            f"{100 * self.clause_docstrings / max(self.docstrings, 1):.1f}%",
        ]


COLUMNS = [
    "tokens",
    "lines",
    "tokens/line",
    "if-else",
    ":=",
    "Any",
    "Any dicts",
    "**",
    "names",
    "docs",
]
GOALS = ["", "", "8.0", "15", "0.3", "12", "0", "40", "1.0%", "0.5%"]
LEGEND = """\
lines: of code, formatted alike; if-else (conditional expressions), := and Any: per 1,000 of them;
Any dicts: variables annotated Any that hold a dictionary; **: calls with a dictionary splatted;
names: local names that are grammar words; docs: docstrings that open
with What, Whether, How, Who."""


def count_file(source: str) -> Counts:
    """Count what one file holds."""
    tree = ast.parse(source)
    texts = text_lines(tree)
    counts = Counts()
    code_lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in LAYOUT or token.start[0] in texts:
            continue
        counts.tokens += 1
        code_lines.update(range(token.start[0], token.end[0] + 1))
    counts.lines = len(code_lines - texts)
    for node in ast.walk(tree):
        count_expression(node, counts)
        count_documentation(node, counts)
        for name in local_names(node):
            counts.names += 1
            counts.grammar_names += name in GRAMMAR_WORDS
    return counts


def text_lines(tree: ast.Module) -> set[int]:
    """Return the numbers of the lines of strings that stand as statements."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Expr) or not isinstance(node.value, ast.Constant):
            continue
        if isinstance(node.value.value, str):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def count_expression(node: ast.AST, counts: Counts) -> None:
    """Count a conditional expression, a walrus, an `Any` or a splatted dictionary."""
    if isinstance(node, ast.IfExp):
        counts.conditionals += 1
    elif isinstance(node, ast.NamedExpr):
        counts.walruses += 1
    elif isinstance(node, ast.Name) and node.id == "Any":
        counts.any_types += 1
    elif isinstance(node, ast.AnnAssign):
        is_any = isinstance(node.annotation, ast.Name) and node.annotation.id == "Any"
        counts.any_dictionaries += is_any and isinstance(node.value, (ast.Dict, ast.BinOp))
    elif isinstance(node, ast.Call):
        for keyword in node.keywords:
            value = keyword.value
            is_splat = keyword.arg is None
            counts.splats += is_splat and isinstance(
                value, (ast.Name, ast.BinOp, ast.Dict, ast.IfExp)
            )


def count_documentation(node: ast.AST, counts: Counts) -> None:
    """Count a docstring."""
    if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        return
    text = ast.get_docstring(node)
    if not text:
        return
    first_word = re.split(r"\W", text, maxsplit=1)[0].lower()
    counts.docstrings += 1
    counts.clause_docstrings += first_word in CLAUSE_WORDS


def local_names(node: ast.AST) -> Iterator[str]:
    """Yield the names that a node assigns, and the parameters that it declares."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        yield node.id
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        arguments = node.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            if argument.arg not in ("self", "cls"):
                yield argument.arg


def count_package(package: Path) -> dict[str, Counts]:
    """Count each room of a package: the folders and modules at its top, and all together."""
    rooms: dict[str, Counts] = {}
    total = Counts()
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / package.name
        shutil.copytree(
            package, copy, ignore=shutil.ignore_patterns("*.so", "*.pyi", "__pycache__")
        )
        subprocess.run([*FORMAT, str(copy)], check=True)  # so that no style of layout counts
        for path in sorted(copy.rglob("*.py")):
            room = path.relative_to(copy).parts[0].removesuffix(".py")
            counts = count_file(path.read_text(encoding="utf-8"))
            rooms.setdefault(room, Counts()).add(counts)
            total.add(counts)
    return {**rooms, package.name: total}


def print_table(rows: dict[str, list[str]]) -> None:
    """Print rows of cells, each column as wide as its widest cell."""
    columns = list(zip(*rows.values(), strict=True))
    widths = [max(map(len, column)) for column in columns]
    first = max(map(len, rows))
    for title, cells in rows.items():
        padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        print(title.ljust(first), *padded, sep="  ")


def main() -> None:
    """Print the table of each package."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="*", type=Path, metavar="PACKAGE")
    options = parser.parse_args()
    for package in options.packages or sorted(PACKAGES.iterdir()):
        if not (package / "__init__.py").exists():
            continue
        rooms = {room: counts.figures() for room, counts in count_package(package).items()}
        print_table({"": COLUMNS, "goal": GOALS, **rooms})
        print()
    print(LEGEND)


if __name__ == "__main__":
    main()

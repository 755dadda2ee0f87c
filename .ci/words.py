"""Words of README, docs, help, docstrings, errors and reports.

``python .ci/words.py`` prints what it counts: search terms, phrases to avoid, length of sentences.
With ``--check`` it ends with 1 where a search term leads nowhere, a phrase to avoid is used, a
docstring begins with a question word, or sentences are too long.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SEARCH_TERMS = (
    "threat model",
    "secure aggregation",
    "honest-but-curious",
    "user-level",
    "record-level",
    "learning rate",
    "hyperparameter",
    "heterogeneous",
    "non-i.i.d.",
    "majority class",
    "privacy budget",
    "local DP",
    "central DP",
    "DP-SGD",
    "DP-FTRL",
    "matrix factorization",
    "max_grad_norm",
    "target_epsilon",
    "GDPR",
    "HIPAA",
    "quickstart",
    "utility",
    "Opacus",
    "Flower",
    "PyTorch",
    "JAX",
    "TensorFlow Privacy",
)
"""What a newcomer types into a search box: each has at least one hit."""

LONGEST_MEAN = 18.0
"""Words of a sentence, on average."""
LONG = 30
"""Words of a sentence that is an exception."""
LARGEST_SHARE = {"pages": 0.05, "help": 0.0, "errors and reports": 0.01, "docstrings": 0.025}
"""Share of sentences that are exceptions."""

PACKAGE = ROOT / "python" / "dpmesh"
SECTIONS = ("Parameters", "Attributes", "Raises", "Returns", "Yields", "Examples", "Notes")
"""Heads of the sections of a docstring."""
QUESTION = re.compile(r"(What|Whether|How|Who)\b")
"""Words with which no docstring begins: it names or commands."""


def pages() -> list[Path]:
    """Return README and all pages that people wrote; results are written by commands."""
    docs = ROOT / "docs"
    return [ROOT / "README.md"] + [
        page for page in sorted(docs.rglob("*.md")) if docs / "results" not in page.parents
    ]


def help_texts() -> dict[Path, str]:
    """Return the help of all commands and options, by the module that holds it."""
    texts = {}
    for module in sorted((ROOT / "python" / "dpmesh" / "cli").glob("*.py")):
        tree = ast.parse(module.read_text())
        helps = [ast.get_docstring(node) or "" for node in tree.body if _is_public(node)]
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and _name(call) in ("Option", "Argument"):
                helps += [_texts(word.value) for word in call.keywords if word.arg == "help"]
        constants = [node.value for node in tree.body if isinstance(node, ast.Assign)]
        helps += [_texts(value) for value in constants if isinstance(value, ast.Constant)]
        texts[module] = "\n\n".join(helps)
    return texts


def _is_public(node: ast.stmt) -> bool:
    """Return whether a statement defines a command."""
    return isinstance(node, ast.FunctionDef) and not node.name.startswith("_")


def spoken_texts() -> dict[Path, str]:
    """Return all texts of code, by module: those of errors, warnings, reports, pages and plots."""
    return {
        module: _texts(_without_docstrings(ast.parse(module.read_text())))
        for module in sorted(PACKAGE.rglob("*.py"))
    }


def spoken_sentences() -> dict[Path, str]:
    """Return the texts of code with blanks, by module, a paragraph each; a value is one word."""
    texts = {}
    for module in sorted(PACKAGE.rglob("*.py")):
        tree = _without_docstrings(ast.parse(module.read_text()))
        formatted = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
        inside = {id(part) for node in formatted for part in ast.walk(node) if part is not node}
        spoken = [_with_values(node) for node in ast.walk(tree) if id(node) not in inside]
        texts[module] = "\n\n".join(text for text in spoken if " " in text.strip())
    return texts


def _with_values(node: ast.AST) -> str:
    """Return a text, in which x stands for each value; empty if the node is no text."""
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "x" for part in node.values]
        return "".join(map(str, parts))
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return ""


def docstrings() -> dict[Path, list[str]]:
    """Return the docstrings of all public names, by module."""
    texts: dict[Path, list[str]] = {}
    for module in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(module.read_text())):
            if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
                continue
            text = ast.get_docstring(node)
            if text and not getattr(node, "name", "").startswith("_"):
                texts.setdefault(module, []).append(text)
    return texts


def _without_docstrings(tree: ast.Module) -> ast.Module:
    """Return a module without texts that stand as statements."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [line for line in body if not _is_text(line)]  # type: ignore[attr-defined]
    return tree


def _is_text(node: ast.stmt) -> bool:
    """Return whether a statement is a text alone."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def paragraphs_of(docstring: str) -> str:
    """Return the prose of a docstring: without heads of sections, parameters' names and programs.

    The text of each parameter is a paragraph.
    """
    blocks: list[list[str]] = [[]]
    in_section = in_program = False
    for line in docstring.splitlines():
        is_name = in_section and line.strip() and not line.startswith(" ")
        if line.strip() in SECTIONS:
            in_section, is_name = True, True
        is_row = line.startswith("`") and "  " in line  # of a table
        if line.startswith(">>>"):
            in_program = True
        elif not line.strip():
            in_program = False
        if is_name or is_row or in_program or not line.strip() or not line.strip("-= "):
            blocks.append([])
        elif in_section:
            blocks[-1].append(line.removeprefix("    "))
        else:
            blocks[-1].append(line)
    text = "\n\n".join("\n".join(block) for block in blocks if block)
    return re.sub(r"``[^`]*``", "`code`", re.sub(r"^.*::$", "", text, flags=re.M))


def _name(call: ast.Call) -> str:
    """Return the last name of what is called."""
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def _texts(node: ast.AST) -> str:
    """Return all texts inside an expression."""
    parts = [part.value for part in ast.walk(node) if isinstance(part, ast.Constant)]
    return " ".join(part for part in parts if isinstance(part, str))


def prose_of(text: str) -> str:
    """Return a page's sentences: without code, tables, titles, snippets and links' targets."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)
    text = re.sub(r"^(\||#|--8<--|!|    ).*$", "", text, flags=re.M)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return re.sub(r"`[^`]*`", "code", text)


def sentences_of(text: str) -> list[str]:
    """Return the sentences of a page's prose; each item of a list ends one."""
    blocks = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", prose_of(text))
    sentences = []
    for block in blocks:
        joined = " ".join(block.split())
        sentences += re.split(
            r"(?<=[.!?:])[*_)]*\s+(?=[A-Z\[\"'(*_])|(?<=[.!?])\s+(?=code\b)", joined
        )
    return [sentence for sentence in sentences if len(sentence.split()) > 2]


def main(check: bool) -> int:
    """Print all counts; return 1 if `check` is set and a word is missing or to be avoided."""
    texts = {page: page.read_text() for page in pages()}
    together = " ".join(" ".join(text.split()) for text in texts.values()).lower()
    missing = [term for term in SEARCH_TERMS if term.lower() not in together]
    print("search terms without a hit:", ", ".join(missing) or "none")

    documented = {module: "\n\n".join(texts) for module, texts in docstrings().items()}
    phrases = (Path(__file__).parent / "banned_phrases.txt").read_text().splitlines()
    used = 0
    for source in (texts, help_texts(), spoken_texts(), documented):
        for page, text in source.items():
            flat = " ".join(text.split()).lower()
            for phrase in filter(None, phrases):
                count = flat.count(phrase.lower())
                used += count
                if count:
                    print(f"{page.relative_to(ROOT)}: {phrase!r} {count} times")
    questions = [
        f"{module.relative_to(ROOT)}: {text.splitlines()[0]}"
        for module, module_texts in docstrings().items()
        for text in module_texts
        if QUESTION.match(text)
    ]
    for line in questions:
        print(line)
    print(f"phrases to avoid: {used}; docstrings that begin with a question word: {len(questions)}")

    documented = {
        module: "\n\n".join(map(paragraphs_of, module_texts))
        for module, module_texts in docstrings().items()
    }
    is_long = [
        _print_lengths("pages", texts),
        _print_lengths("help", help_texts()),
        _print_lengths("errors and reports", spoken_sentences()),
        _print_lengths("docstrings", documented),
    ]
    return int(check and bool(missing or used or questions or any(is_long)))


def _print_lengths(kind: str, texts: dict[Path, str]) -> bool:
    """Print the length of sentences; return whether they are too long."""
    sentences = [
        (len(sentence.split()), sentence, place)
        for place, text in texts.items()
        for sentence in sentences_of(text)
    ]
    mean = sum(length for length, *_ in sentences) / len(sentences)
    exceptions = [found for found in sentences if found[0] > LONG]
    share = len(exceptions) / len(sentences)
    longest, sentence, place = max(sentences)
    print(
        f"{kind}: {len(sentences)} sentences of {mean:.1f} words on average (at most "
        f"{LONGEST_MEAN:g}), {len(exceptions)} of more than {LONG} "
        f"(at most {LARGEST_SHARE[kind]:.0%}); longest: {longest} words, "
        f"{place.relative_to(ROOT)}: {sentence[:60]}"
    )
    if "--long" in sys.argv:
        for length, sentence, place in sorted(exceptions, reverse=True):
            print(f"    {place.relative_to(ROOT)}: {length} words: {sentence}")
    return mean > LONGEST_MEAN or share > LARGEST_SHARE[kind]


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))

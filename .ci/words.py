"""Words of README, docs, help and errors: search terms, phrases to avoid, length of sentences.

``python .ci/words.py`` prints what it counts; with ``--check`` it ends with 1 where a search term
leads nowhere or a phrase to avoid is used.
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


def error_texts() -> dict[Path, str]:
    """Return what errors and warnings say, by the module that raises them."""
    texts = {}
    for module in sorted((ROOT / "python" / "dpmesh").rglob("*.py")):
        calls = [node for node in ast.walk(ast.parse(module.read_text())) if _tells(node)]
        texts[module] = "\n".join(_texts(call) for call in calls)
    return texts


def _tells(node: ast.AST) -> bool:
    """Return whether a node is a call whose texts a user reads as an error or a warning."""
    if not isinstance(node, ast.Call):
        return False
    name = _name(node)
    return name in ("fail", "warn", "NotProved") or name.endswith("Error")


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
        sentences += re.split(r"(?<=[.!?:])\s+(?=[A-Z\[\"'(*_])|(?<=[.!?])\s+(?=code\b)", joined)
    return [sentence for sentence in sentences if len(sentence.split()) > 2]


def main(check: bool) -> int:
    """Print all counts; return 1 if `check` is set and a word is missing or to be avoided."""
    texts = {page: page.read_text() for page in pages()}
    together = " ".join(" ".join(text.split()) for text in texts.values()).lower()
    missing = [term for term in SEARCH_TERMS if term.lower() not in together]
    print("search terms without a hit:", ", ".join(missing) or "none")

    phrases = (Path(__file__).parent / "banned_phrases.txt").read_text().splitlines()
    used = 0
    spoken = {**help_texts()}
    for module, text in error_texts().items():
        spoken[module] = f"{spoken.get(module, '')} {text}"
    for page, text in {**texts, **spoken}.items():
        flat = " ".join(text.split()).lower()
        for phrase in filter(None, phrases):
            count = flat.count(phrase.lower())
            used += count
            if count:
                print(f"{page.relative_to(ROOT)}: {phrase!r} {count} times")

    longest_help = 0
    for module, text in help_texts().items():
        for sentence in sentences_of(text):
            longest_help = max(longest_help, len(sentence.split()))
            if len(sentence.split()) > LONG:
                print(f"{module.relative_to(ROOT)}: {len(sentence.split())} words: {sentence}")
    lengths = [len(s.split()) for text in texts.values() for s in sentences_of(text)]
    mean = sum(lengths) / len(lengths)
    long = sum(length > LONG for length in lengths)
    print(
        f"{len(lengths)} sentences of {mean:.1f} words on average (at most {LONGEST_MEAN:g}), "
        f"{long} of more than {LONG}; longest sentence of help: {longest_help}; "
        f"phrases to avoid: {used}"
    )
    return int(check and bool(missing or used or mean > LONGEST_MEAN))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))

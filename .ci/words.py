"""The words of README and docs: search terms, phrases to avoid, length of sentences.

``python .ci/words.py`` prints what it counts; with ``--check`` it ends with 1 where a search term
leads nowhere or a phrase to avoid is used.
"""

from __future__ import annotations

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
    for page, text in texts.items():
        flat = " ".join(text.split()).lower()
        for phrase in filter(None, phrases):
            count = flat.count(phrase.lower())
            used += count
            if count:
                print(f"{page.relative_to(ROOT)}: {phrase!r} {count} times")

    lengths = [len(s.split()) for text in texts.values() for s in sentences_of(text)]
    mean = sum(lengths) / len(lengths)
    long = sum(length > LONG for length in lengths)
    print(
        f"{len(lengths)} sentences of {mean:.1f} words on average (at most {LONGEST_MEAN:g}), "
        f"{long} of more than {LONG}; phrases to avoid: {used}"
    )
    return int(check and bool(missing or used or mean > LONGEST_MEAN))


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))

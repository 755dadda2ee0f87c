"""Numbers that pages quote from committed results: write them into the pages, or compare.

A claim is a piece of a page with a name in braces for each number. ``python .ci/quoted.py`` writes
the numbers of today's results into the pages; with ``--check`` it only lists what differs.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from dpmesh.privacy.shown import rounded_up
from dpmesh.reproduce._scaffold import Row, compared, only, read

ROOT = Path(__file__).parents[1]
NUMBER = r"(?:[\d.,]+(?: ± [\d.]+)?|[a-z ]+?)"
"""Or the words of a verdict."""


def result(name: str, **wanted: object) -> Row:
    """Return the row of a committed result that has these values."""
    return only(read(ROOT / "docs" / "results" / f"{name}.csv"), **wanted)


def claims() -> dict[tuple[str, str], dict[str, str]]:
    """Return the numbers of each claim, by page and text."""
    regret = result("online-counterexample", dim=20, epsilon=1.0, rounds=100_000)
    svm = result("online-table1", epsilon=1.0, nodes=64)
    at_1 = {"epsilon": 1.0, "round": 200}
    quantized, floats, rival = (
        result("quantized-figure4", algorithm=name, **at_1)
        for name in ("quantized", "not quantized", "noise on gradients")
    )
    words = {"ahead": "behind", "behind": "ahead", "no clear difference": "not clearly ahead"}
    table = {"case": "convex", "nodes": 10, "noise": "paper"}
    shared = {"noise": "proved", "epsilon": 1.0}
    before, learned, random = (
        result("without-replacement-table2", method=name, **table)
        for name in ("fully collaborative", "Algorithm 1", "5 % at random")
    )
    baseline, alone = (
        result("without-replacement-figure3", method=name, **shared)
        for name in ("with replacement", "Algorithm 1")
    )
    smoothed = [
        [
            result("federated-table2", sampling="uniform", epsilon=6, noise=noise, smoothing=s)
            for s in (0.0, 1.0, 2.0, 3.0)
        ]
        for noise in ("paper", "tight")
    ]
    secret, known = (
        result("online-allocated", batch=5, sampling=name) for name in ("allocation", "arrival")
    )
    papers, ruled = (
        result("without-replacement-allocated", step=name, sampling="allocation")
        for name in ("paper", "rule")
    )
    plain, best = ([f"{pick:.2f}" for pick in _plain_and_best(rows)] for rows in smoothed)
    return {
        (
            "README.md",
            "100,000 rounds measured regret is {regret}, where it allows {printed} (",
        ): {"regret": f"{regret['regret']:,.0f}", "printed": f"{regret['printed']:,.0f}"},
        (
            "README.md",
            "epsilon 1, proved: {ours}%, where the largest class has {chance} (paper: {paper})",
        ): {
            "ours": _with(svm["accuracy"], svm["accuracy_interval"]),
            "chance": f"{svm['chance']:.1f}",
            "paper": f"{svm['paper']:.2f}",
        },
        (
            "README.md",
            "the same proved epsilon gives {secret} in place of {known} |",
        ): {
            "secret": _with(secret["accuracy"], secret["interval"]),
            "known": _with(known["accuracy"], known["interval"]),
        },
        (
            "README.md",
            "always global, proved: {papers} with the paper's steps, {ruled} with steps by",
        ): {
            "papers": _with(papers["accuracy"], papers["interval"]),
            "ruled": _with(ruled["accuracy"], ruled["interval"]),
        },
        (
            "README.md",
            "{seeds} seeds: {ours}% with {saved} times fewer bits than unquantized messages of 64 "
            "bits a number; Theorem 1 charges {charged} for that run. The plain rival, noise on "
            "gradients, is {verdict} with {rival}%",
        ): {
            "seeds": str(quantized["seeds"]),
            "ours": _with(100 * quantized["accuracy"], 100 * quantized["interval"]),
            "saved": f"{floats['bits'] / quantized['bits']:.1f}",
            "charged": rounded_up(quantized["paper_epsilon"], 3),
            "verdict": words[compared(quantized, rival)],
            "rival": _with(100 * rival["accuracy"], 100 * rival["interval"]),
        },
        (
            "README.md",
            "2 seeds: {plain} to {smoothed} at the paper's noise; at the noise that epsilon 6 "
            "really needs, {needed} without smoothing and {best} at best with it",
        ): {"plain": plain[0], "smoothed": plain[1], "needed": best[0], "best": best[1]},
        (
            "README.md",
            "3 seeds: {before} to {learned}, but at that noise a record costs an epsilon of "
            "{cost}, and random decisions (5% global) reach {random}.",
        ): {
            "before": f"{before['released']:.2f}",
            "learned": f"{learned['released']:.2f}",
            "cost": rounded_up(learned["epsilon_proved"], 3),
            "random": f"{random['released']:.2f}",
        },
        (
            "README.md",
            "SGD with replacement {baseline}, proved; Algorithm 1 {alone}, not proved",
        ): {
            "baseline": _with(baseline["released"], baseline["released_interval"]),
            "alone": _with(alone["released"], alone["released_interval"]),
        },
    }


def _plain_and_best(rows: list[Row]) -> tuple[float, float]:
    return rows[0]["accuracy"], max(row["accuracy"] for row in rows[1:])


def _with(mean: float, half: float) -> str:
    return f"{mean:.1f} ± {half:.1f}"


def written(page: str, text: str, numbers: dict[str, str]) -> str:
    """Return a page with these numbers in place of those that it has.

    Raises
    ------
    LookupError
        If the text stands there not exactly once.
    """
    pieces = [re.escape(piece) for piece in re.split(r"\{\w+\}", text)]
    pattern = re.compile(NUMBER.join(pieces))
    if len(pattern.findall(page)) != 1:
        raise LookupError(f"wanted once on the page: {text}")
    return pattern.sub(lambda _: text.format(**numbers), page)


def main(check: bool) -> int:
    """Write or compare all pages; return how many claims differ."""
    different = 0
    for (name, text), numbers in claims().items():
        page = (ROOT / name).read_text()
        new = written(page, text, numbers)
        if new != page:
            different += 1
            print(f"{name}: {text.format(**numbers)}")
            if not check:
                (ROOT / name).write_text(new)
    return different if check else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))

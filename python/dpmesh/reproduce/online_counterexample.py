"""The regret bound (45) of the online paper is too small: one learner, one loss, plain numpy."""

from __future__ import annotations

from math import log, sqrt
from pathlib import Path

import numpy as np

from dpmesh.keys import Key, Purpose, generator
from dpmesh.reproduce._figure import Line, Panel, drawn
from dpmesh.reproduce._scaffold import Experiment, Progress, Row, interval, paragraph, with_spread

STRONG_CONVEXITY, DIAMETER = 1.0, 2.0
LIPSCHITZ = STRONG_CONVEXITY * DIAMETER / 2
RUNS = 20
SETTINGS = ((10, 2.0), (10, 1.0), (20, 1.0))


def counterexample(
    folder: Path, *, rounds: int = 100_000, progress: Progress = print
) -> list[Path]:
    """Measure the regret of Algorithm 1 on ``|w|^2 / 2`` in the ball of radius 1, beside (45).

    The least loss is 0, at 0, where the learner starts. `regret` is the sum over the rounds, mean
    of 20 runs; `printed` is (45), and `corrected` the bound of order n^2 / epsilon^2.
    """
    experiment = Experiment(folder, "online-counterexample", progress)
    cells = [{"dim": dim, "epsilon": epsilon} for dim, epsilon in SETTINGS]
    experiment.measure(cells, lambda cell: _curve(cell["dim"], cell["epsilon"], rounds), _in_words)
    return experiment.write(as_text, lambda rows: drawn(_panels(rows)))


def _curve(dim: int, epsilon: float, rounds: int) -> list[Row]:
    draw = generator(Key.seeded(0), Purpose.NOISE)
    w, total, rows = np.zeros((RUNS, dim)), np.zeros(RUNS), []
    shown = {rounds // 100, rounds // 10, rounds}
    for t in range(1, rounds + 1):
        total += STRONG_CONVEXITY / 2 * (w**2).sum(axis=1)
        step = 1 / (STRONG_CONVEXITY * t)
        b = w + draw.laplace(scale=2 * step * sqrt(dim) * LIPSCHITZ / epsilon, size=w.shape)
        gradient = _within(STRONG_CONVEXITY * b, LIPSCHITZ)
        w = _within(b - gradient / (STRONG_CONVEXITY * (t + 1)), DIAMETER / 2)
        if t in shown:
            found = {"regret": float(total.mean()), "interval": interval(total), "runs": RUNS}
            rows.append({"rounds": t, **found, **_bounds(dim, epsilon, t)})
    return rows


def _within(x: np.ndarray, radius: float) -> np.ndarray:
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    return np.asarray(x * np.minimum(1, radius / np.maximum(lengths, 1e-30)))


def _bounds(dim: int, epsilon: float, rounds: int) -> Row:
    grows = 1 + log(rounds)
    bound, ball = LIPSCHITZ, DIAMETER
    noise = sqrt(2) * dim * bound / (STRONG_CONVEXITY * epsilon)
    without = bound / STRONG_CONVEXITY * (ball + 6.5 * bound) * grows + ball / 2
    corrected = (bound**2 + dim * 8 * dim * bound**2 / epsilon**2) / (2 * STRONG_CONVEXITY) * grows
    return {"printed": without + (2 * bound + 1) * noise * grows, "corrected": corrected}


def _in_words(row: Row) -> str:
    regret = with_spread(row["regret"], row["interval"], 0)
    return (
        f"{row['dim']} numbers, epsilon {row['epsilon']:g}, {row['rounds']:,} rounds: regret "
        f"{regret}, printed {row['printed']:,.0f}, corrected {row['corrected']:,.0f}"
    )


def as_text(rows: list[Row]) -> str:
    """Return all regrets beside both bounds."""
    head = (
        "The regret of Algorithm 1 of the online paper, one learner, f(w) = |w|^2 / 2 in every "
        "round, steps 1 / t, Laplace noise as printed. (45) is of order n / epsilon. Regret is of "
        "order n^2 / epsilon^2; the claimed order holds with steps of order epsilon / n."
    )
    broken = sum(row["regret"] - row["interval"] > row["printed"] for row in rows)
    held = sum(row["regret"] + row["interval"] <= row["corrected"] for row in rows)
    verdict = (
        f"Of {len(rows)} rows {broken} are clearly above the printed bound, "
        f"{held} clearly within the corrected one."
    )
    return "\n".join([paragraph(head), "", *map(_in_words, rows), "", verdict])


def _panels(rows: list[Row]) -> list[Panel]:
    panels = []
    for dim, epsilon in dict.fromkeys((row["dim"], row["epsilon"]) for row in rows):
        own = [row for row in rows if (row["dim"], row["epsilon"]) == (dim, epsilon)]
        x = [row["rounds"] for row in own]
        names = {"regret": "measured", "printed": "(45)", "corrected": "corrected"}
        lines = [Line(label=label, x=x, y=[row[c] for row in own]) for c, label in names.items()]
        title = f"{dim} numbers, epsilon {epsilon:g}"
        panels.append(Panel(title=title, x="rounds", y="regret", log="xy", lines=lines))
    return panels

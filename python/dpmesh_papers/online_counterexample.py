"""Counterexample to the regret bound (45) of the online paper: one learner, one loss, plain numpy.

The measured regret exceeds the bound as printed, and stays within a corrected bound.
`counterexample` is one of the experiments of ``dpmesh reproduce``.
"""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dpmesh.keys import Key, Purpose, generator
from dpmesh_papers._figure import Line, Panel, drawn
from dpmesh_papers._scaffold import (
    Experiment,
    Progress,
    Row,
    interval,
    paragraph,
    pick,
    with_spread,
)
from dpmesh_papers.bounds.online import Mixing, OnlineRun, laplace_noise, regret, regret_as_printed

Floats = npt.NDArray[np.float64]

DIAMETER = 2.0
"""Diameter of the unit ball, to which models are projected."""
LIPSCHITZ = 1.0
"""Lipschitz constant of the loss ``|w|^2 / 2`` in the ball; its strong convexity is 1."""
RUNS = 20
SETTINGS = ((10, 1.0), (20, 1.0), (20, 0.2))
"""Dimension n and epsilon."""
MIXINGS = {"printed": Mixing.from_assumption_2(1, 1.0, 1), "printed_alone": Mixing(theta=1, beta=0)}
"""Mixing of one learner: by Lemma 3 with the eta that makes (45) least, and none at all."""


def counterexample(
    folder: Path, *, rounds: int = 1_000_000, progress: Progress = print
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
    """Run Algorithm 1 `RUNS` times at once; return regret and bounds at three checkpoints."""
    noise_generator = generator(Key.seeded(0), Purpose.NOISE)
    w = np.zeros((RUNS, dim))
    regrets = np.zeros(RUNS)
    rows = []
    checkpoints = {rounds // 100, rounds // 10, rounds}
    for t in range(1, rounds + 1):
        regrets += (w**2).sum(axis=1) / 2
        noise_scale = 2 * sqrt(dim) * LIPSCHITZ / (t * epsilon)  # S(t) / epsilon, alpha_t = 1 / t
        broadcast = w + noise_generator.laplace(scale=noise_scale, size=w.shape)
        gradient = _within(broadcast, LIPSCHITZ)  # of |w|^2 / 2, clipped
        w = _within(broadcast - gradient / (t + 1), DIAMETER / 2)
        if t in checkpoints:
            row = {
                "rounds": t,
                "regret": float(regrets.mean()),
                "interval": interval(regrets),
                "runs": RUNS,
            }
            rows.append(row | _bounds(dim, epsilon, t))
    return rows


def _within(x: Floats, radius: float) -> Floats:
    """Project the rows of x onto the ball of this radius."""
    lengths = np.sqrt(np.einsum("ij,ij->i", x, x))[:, None]
    return np.asarray(x * np.minimum(1, radius / np.maximum(lengths, 1e-30)))


def _bounds(dim: int, epsilon: float, rounds: int) -> Row:
    """Return (45) with both mixings of `MIXINGS`, and the corrected bound."""
    run = OnlineRun(
        nodes=1,
        dim=dim,
        rounds=rounds,
        lipschitz=LIPSCHITZ,
        diameter=DIAMETER,
        strong_convexity=1.0,
        noise=laplace_noise(epsilon, dim, LIPSCHITZ),
    )
    bounds = {
        name: regret_as_printed(run, mixing, epsilon=epsilon) for name, mixing in MIXINGS.items()
    }
    return bounds | {"corrected": regret(run)}


def _in_words(row: Row) -> str:
    measured = with_spread(row["regret"], row["interval"], 0)
    return (
        f"{row['dim']} numbers, epsilon {row['epsilon']:g}, {row['rounds']:,} rounds: regret "
        f"{measured}, printed {row['printed']:,.0f} ({row['printed_alone']:,.0f}), corrected "
        f"{row['corrected']:,.0f}"
    )


def as_text(rows: list[Row]) -> str:
    """Return the text: each regret with its bounds, and how many exceed which bound."""
    head = (
        "The regret of Algorithm 1 of the online paper, one learner, f(w) = |w|^2 / 2 in every "
        "round, steps 1 / t, Laplace noise as printed. (45) is of order n / epsilon. Regret is of "
        "order n^2 / epsilon^2. printed: (45) with the constants of Lemma 3 for one learner, "
        "eta = N = 1, where it is least. In brackets: with beta = 0, since one learner mixes "
        "nothing."
    )
    counts = {
        name: sum(row["regret"] - row["interval"] > row[name] for row in rows) for name in MIXINGS
    }
    within = sum(row["regret"] + row["interval"] <= row["corrected"] for row in rows)
    verdict = (
        f"Of {len(rows)} rows, clearly above the printed bound: {counts['printed']}; above that in "
        f"brackets: {counts['printed_alone']}; clearly within the corrected one: {within}."
    )
    return "\n".join([paragraph(head), "", *map(_in_words, rows), "", paragraph(verdict)])


def _panels(rows: list[Row]) -> list[Panel]:
    panels = []
    for dim, epsilon in dict.fromkeys((row["dim"], row["epsilon"]) for row in rows):
        points = pick(rows, dim=dim, epsilon=epsilon)
        rounds = [row["rounds"] for row in points]
        names = {
            "regret": "measured",
            "printed": "(45)",
            "printed_alone": "(45), beta = 0",
            "corrected": "corrected",
        }
        lines = [
            Line(label=label, x=rounds, y=[row[column] for row in points])
            for column, label in names.items()
        ]
        lines[0] = replace(lines[0], spread=[row["interval"] for row in points])
        title = f"{dim} numbers, epsilon {epsilon:g}"
        panels.append(Panel(title=title, x="rounds", y="regret", log="xy", lines=lines))
    return panels

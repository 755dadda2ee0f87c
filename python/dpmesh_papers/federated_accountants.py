"""Figures S7, S8 and S9 of the federated paper: steps of its proofs, and what they are worth."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from dpmesh.accounting.papers import NotProved
from dpmesh_papers._figure import Line, Panel, drawn, lines_of
from dpmesh_papers._scaffold import Experiment, Progress, Row, pick
from dpmesh_papers.claims import federated as claims
from dpmesh_papers.federated import (
    SAMPLING_RATE,
    SENSITIVITY,
    theorem_noise_to_sensitivity,
    tight_noise_to_sensitivity,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPSILONS = np.geomspace(4, 32, 13)
KINDS = ("theorem", "moments", "tight")
"""The noise of Theorem 1 or 2, of the moments accountants of Tables 3 and 6, and the least."""
REMARK_EPSILON = 6.0
"""At which the text compares how many rounds the theorem and exact accounting allow."""
PAPER_FITS = {
    ("uniform", 1000, "theorem"): (-0.80, 3.31),
    ("uniform", 1000, "moments"): (-0.73, 2.29),
}
"""Slope and intercept of log noise over log epsilon that the caption reports."""

Side: TypeAlias = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]


class Inequality(NamedTuple):
    """A step of a proof: left <= right for all variances from `least_variance` on."""

    claim: str
    least_variance: float
    left: Side
    """Of the variance v = nu^2."""
    right: Side


INEQUALITIES = {
    "(16), Figure S7": Inequality(
        claim="min(4 (e^(1/nu^2) - 1), 2 e^(1/nu^2)) <= 6 / nu^2",
        least_variance=2 / 3,
        left=lambda v: np.minimum(4 * np.expm1(1 / v), 2 * np.exp(1 / v)),
        right=lambda v: 6 / v,
    ),
    "(21), Figure S8": Inequality(
        claim="e^(1/nu^2) <= 7 / (2 nu^2)",
        least_variance=5 / 9,
        left=lambda v: np.exp(1 / v),
        right=lambda v: 7 / (2 * v),
    ),
}
"""By the equation's number and the figure that the paper verifies it by."""


class Setting(NamedTuple):
    """One panel: Theorem 1 for uniform, Theorem 2 for Poisson sampling."""

    sampling: claims.Sampling
    rounds: int
    clients: int

    @property
    def title(self) -> str:
        """The title of its panel."""
        return f"{self.sampling}, T = {self.rounds}, N = {self.clients}"


SETTINGS = tuple(
    Setting(sampling, rounds, clients)
    for sampling in ("uniform", "poisson")
    for rounds, clients in ((30, 500), (200, 2000), (1000, 2000))
)


def noise_std(kind: str, setting: Setting, epsilon: float) -> float:
    """Return the standard deviation nu on the sum of updates clipped to norm 1.

    NaN where the theorem's conditions fail. `kind` is one of `KINDS`.
    """
    sampling, rounds, clients = setting
    delta = clients**-1.1
    if kind == "theorem":
        try:
            z = theorem_noise_to_sensitivity(sampling, epsilon, delta, rounds)
        except NotProved:
            return np.nan
    elif kind == "moments":
        z = _moments_noise_to_sensitivity(setting, epsilon, delta)
    else:
        z = tight_noise_to_sensitivity(sampling, epsilon, delta, rounds)
    return SENSITIVITY[sampling] * z


def _moments_noise_to_sensitivity(setting: Setting, epsilon: float, delta: float) -> float:
    """Return the noise over sensitivity at which `claims.table_epsilon` is epsilon."""

    def excess(log_z: float) -> float:
        table = claims.table_epsilon(
            delta,
            sampling_rate=SAMPLING_RATE,
            noise_to_sensitivity=float(np.exp(log_z)),
            rounds=setting.rounds,
            sampling=setting.sampling,
        )
        return float(np.log(table.epsilon / epsilon))

    return float(np.exp(brentq(excess, np.log(0.2), np.log(50), xtol=1e-6)))


def fit(epsilons: npt.ArrayLike, noises: npt.ArrayLike) -> tuple[float, float]:
    """Return slope and intercept of log noise over log epsilon by least squares, without NaN."""
    x = np.log(np.asarray(epsilons))
    y = np.log(np.asarray(noises))
    has_noise = ~np.isnan(y)
    slope, intercept = np.polyfit(x[has_noise], y[has_noise], 1)
    return float(slope), float(intercept)


def rounds_allowed(setting: Setting, epsilon: float) -> int:
    """Return the most rounds of this epsilon by exact accounting, at the noise of the theorem.

    The theorem, and formula (6) of Remark 3, which solves it for the rounds, allow
    `Setting.rounds` at that noise.
    """
    delta = setting.clients**-1.1
    z = theorem_noise_to_sensitivity(setting.sampling, epsilon, delta, setting.rounds)
    allowed = setting.rounds
    refused = 100 * setting.rounds
    while refused - allowed > 1:
        middle = (allowed + refused) // 2
        if tight_noise_to_sensitivity(setting.sampling, epsilon, delta, middle) <= z:
            allowed = middle
        else:
            refused = middle
    return allowed


def figure_s9(folder: Path, *, progress: Progress = print) -> list[Path]:
    """Draw the noise of Theorems 1 and 2, of the accountants of their time, and of tight ones.

    A row has the standard deviation on the sum of updates clipped to norm 1, at an epsilon and
    delta = 1 / clients ** 1.1; NaN where the theorem's conditions fail.
    """

    def measured(cell: Row) -> list[Row]:
        setting = Setting(**cell)
        return [
            {
                "kind": kind,
                "epsilon": float(epsilon),
                "noise_std": noise_std(kind, setting, epsilon),
            }
            for kind in KINDS
            for epsilon in EPSILONS
        ]

    experiment = Experiment(folder, "federated-figureS9", progress)
    experiment.measure(
        (setting._asdict() for setting in SETTINGS), measured, lambda row: _setting_of(row).title
    )
    return experiment.write(as_text, draw)


def _setting_of(row: Row) -> Setting:
    return Setting(row["sampling"], row["rounds"], row["clients"])


def _settings(rows: list[Row]) -> dict[Setting, list[Row]]:
    """Return the rows of each panel."""
    settings = dict.fromkeys(map(_setting_of, rows))
    return {setting: pick(rows, **setting._asdict()) for setting in settings}


def figure_s7(folder: Path, *, progress: Progress = print) -> list[Path]:
    """Draw both sides of (16) and (21), which the paper verifies by Figures S7 and S8.

    Here they are drawn for variances up to 6.
    """

    def measured(cell: Row) -> list[Row]:
        inequality = INEQUALITIES[cell["inequality"]]
        variances = np.linspace(inequality.least_variance, 6, 2001)
        left = inequality.left(variances)
        right = inequality.right(variances)
        return [
            {"variance": variance, "left": left_side, "right": right_side}
            for variance, left_side, right_side in zip(variances, left, right, strict=True)
        ]

    experiment = Experiment(folder, "federated-figureS7", progress)
    experiment.measure(({"inequality": name} for name in INEQUALITIES), measured)
    progress(text_of_inequalities(experiment.rows))
    return experiment.write(text_of_inequalities, draw_inequalities)


def text_of_inequalities(rows: list[Row]) -> str:
    """Return up to which variance each inequality holds."""
    lines = ["Figures S7 and S8: inequalities of the proofs of Lemmas 2 and 3, in nu^2.", ""]
    for name, (claim, least_variance, _, _) in INEQUALITIES.items():
        points = pick(rows, inequality=name)
        violations = [row["variance"] for row in points if row["left"] > row["right"]]
        outcome = "holds"
        if violations:
            outcome = f"is false from nu^2 = {violations[0]:.2f} on"
        lines.append(f"{name}: {claim} for nu^2 >= {least_variance:.4g}: {outcome}")
    return "\n".join(
        [*lines, "", "Lemma 3 stands by a repaired proof; no accountant here rests on it."]
    )


def draw_inequalities(rows: list[Row]) -> Figure:
    """Draw both sides over the variance; needs the extra ``plots``."""
    panels = []
    for name, inequality in INEQUALITIES.items():
        points = pick(rows, inequality=name)
        variances = [row["variance"] for row in points]
        sides = inequality.claim.split(" <= ")
        lines = [
            Line(label=label, x=variances, y=[row[side] for row in points])
            for side, label in zip(("left", "right"), sides, strict=True)
        ]
        panels.append(Panel(title=name, x="nu^2", y="each side", lines=lines, kind="bands"))
    return drawn(panels)


def as_text(rows: list[Row]) -> str:
    """Return the lines fitted to the noises, beside the paper's."""
    lines = [
        "Figure S9: noise nu on the sum (clipping norm 1) over epsilon; log nu = slope log epsilon",
        "+ intercept by least squares, over the epsilons at which the theorem holds.",
    ]
    for setting, rows_of_setting in _settings(rows).items():
        lines += ["", setting.title]
        noises = {
            kind: np.array([row["noise_std"] for row in pick(rows_of_setting, kind=kind)])
            for kind in KINDS
        }
        epsilons = np.array([row["epsilon"] for row in pick(rows_of_setting, kind="theorem")])
        proved = ~np.isnan(noises["theorem"])
        for kind, values in noises.items():
            slope, intercept = fit(epsilons[proved], values[proved])
            line = f"  {kind:<8} slope {slope:.2f}, intercept {intercept:.2f}"
            paper = PAPER_FITS.get((setting.sampling, setting.rounds, kind))
            if paper is not None:
                line += f"; paper {paper[0]:.2f}, {paper[1]:.2f}"
            lines.append(line)
        ratio = noises["theorem"] / noises["tight"]
        lines.append(
            f"  the theorem holds from epsilon {epsilons[proved][0]:.1f}; its noise is "
            f"{np.nanmin(ratio):.1f} to {np.nanmax(ratio):.1f} times the tight one"
        )
    remark = Setting("uniform", 30, 1000)  # as in Table 2
    lines += [
        "",
        f"Remark 3: at the noise by which its formula (6) allows {remark.rounds} rounds at epsilon "
        f"{REMARK_EPSILON:g}",
        f"(uniform, N = {remark.clients:,}), exact accounting allows "
        f"{rounds_allowed(remark, REMARK_EPSILON)}.",
        "",
        "The paper does not say over which epsilons it fits. At T = 1000 the theorem's line is the",
        "paper's; the moments accountant's has its slope, and an intercept that is larger by about",
        "log 2: the paper's curve is perhaps in units of L, while replacing a client moves the sum",
        "by 2 L. Measured alike, theorem and accountant differ by less than the caption says.",
    ]
    return "\n".join(lines)


def draw(rows: list[Row]) -> Figure:
    """Draw noise over epsilon, a panel for each setting; needs the extra ``plots``."""
    x = "epsilon"
    y = "noise on the sum"
    ticks = (4, 8, 16, 32)
    panels = []
    for setting, rows_of_setting in _settings(rows).items():
        lines = lines_of(rows_of_setting, by="kind", x="epsilon", y="noise_std")
        panels.append(Panel(title=setting.title, x=x, y=y, log="xy", ticks=ticks, lines=lines))
    return drawn(panels, columns=3)

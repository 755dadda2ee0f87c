"""Figures S7, S8 and S9 of the federated paper: steps of its proofs, and what they are worth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq

from dpmesh.privacy.accounting.papers import NotProved
from dpmesh.reproduce._output import Output, Progress
from dpmesh.reproduce.claims import federated as claims
from dpmesh.reproduce.federated import (
    SAMPLING_RATE,
    SENSITIVITY,
    theorem_multiplier,
    tight_multiplier,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EPSILONS = np.geomspace(4, 32, 13)
KINDS = ("theorem", "moments", "tight")
REMARK_EPSILON = 6.0
"""At which the text compares how many rounds the theorem and exact accounting allow."""
PAPER_FITS = {
    ("uniform", 1000, "theorem"): (-0.80, 3.31),
    ("uniform", 1000, "moments"): (-0.73, 2.29),
}
"""Slope and intercept of log noise over log epsilon that the caption reports."""

Side: TypeAlias = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]

INEQUALITIES: tuple[tuple[str, str, float, Side, Side], ...] = (
    (
        "(16), Figure S7",
        "min(4 (e^(1/nu^2) - 1), 2 e^(1/nu^2)) <= 6 / nu^2",
        2 / 3,
        lambda v: np.minimum(4 * np.expm1(1 / v), 2 * np.exp(1 / v)),
        lambda v: 6 / v,
    ),
    (
        "(21), Figure S8",
        "e^(1/nu^2) <= 7 / (2 nu^2)",
        5 / 9,
        lambda v: np.exp(1 / v),
        lambda v: 7 / (2 * v),
    ),
)
"""Name, claim, the least variance, and both sides as functions of it."""


class Setting(NamedTuple):
    """One panel: Theorem 1 for uniform, Theorem 2 for Poisson sampling."""

    sampling: claims.Sampling
    rounds: int
    clients: int

    @property
    def title(self) -> str:
        """The panel's."""
        return f"{self.sampling}, T = {self.rounds}, N = {self.clients}"


SETTINGS = tuple(
    Setting(sampling, rounds, clients)
    for sampling in ("uniform", "poisson")
    for rounds, clients in ((30, 500), (200, 2000), (1000, 2000))
)

Noises: TypeAlias = dict[Setting, dict[str, list[float]]]
"""For each panel and kind, the noise at each of `EPSILONS`."""


@dataclass(frozen=True)
class Point:
    """The noise that one accountant asks for.

    Parameters
    ----------
    sampling, rounds, clients
        Which panel.
    kind
        ``"theorem"`` of the paper; ``"moments"``, the accountant of its time; ``"tight"``, ours.
    epsilon
        The budget, at delta = 1 / clients ** 1.1.
    noise_std
        nu, on the sum of updates clipped to norm 1; NaN where the theorem's conditions fail.
    """

    sampling: str
    rounds: int
    clients: int
    kind: str
    epsilon: float
    noise_std: float


def noise_std(kind: str, setting: Setting, epsilon: float) -> float:
    """Return the standard deviation nu on the sum of updates clipped to norm 1."""
    sampling, rounds, clients = setting
    delta = clients**-1.1
    if kind == "theorem":
        try:
            multiplier = theorem_multiplier(sampling, epsilon, delta, rounds)
        except NotProved:
            return np.nan
    elif kind == "moments":
        multiplier = _moments_multiplier(setting, epsilon, delta)
    else:
        multiplier = tight_multiplier(sampling, epsilon, delta, rounds)
    return SENSITIVITY[sampling] * multiplier


def _moments_multiplier(setting: Setting, epsilon: float, delta: float) -> float:
    def excess(log_multiplier: float) -> float:
        table = claims.table_epsilon(
            delta,
            sampling_rate=SAMPLING_RATE,
            noise_multiplier=float(np.exp(log_multiplier)),
            rounds=setting.rounds,
            sampling=setting.sampling,
        )
        return float(np.log(table.epsilon / epsilon))

    return float(np.exp(brentq(excess, np.log(0.2), np.log(50), xtol=1e-6)))


def fit(epsilons: npt.ArrayLike, noises: npt.ArrayLike) -> tuple[float, float]:
    """Return slope and intercept of log noise over log epsilon, where there is a noise."""
    x, y = np.log(np.asarray(epsilons)), np.log(np.asarray(noises))
    slope, intercept = np.polyfit(x[~np.isnan(y)], y[~np.isnan(y)], 1)
    return float(slope), float(intercept)


def rounds_allowed(setting: Setting, epsilon: float) -> int:
    """Return the most rounds of this epsilon at the noise that the theorem asks for.

    The theorem, and formula (6) of Remark 3, which solves it for the rounds, allow
    `Setting.rounds`; these are those that exact accounting allows.
    """
    delta = setting.clients**-1.1
    noise = theorem_multiplier(setting.sampling, epsilon, delta, setting.rounds)
    few, many = setting.rounds, 100 * setting.rounds
    while many - few > 1:
        middle = (few + many) // 2
        enough = tight_multiplier(setting.sampling, epsilon, delta, middle) <= noise
        few, many = (middle, many) if enough else (few, middle)
    return few


def figure_s9(folder: Path, *, progress: Progress = print) -> list[Path]:
    """Draw the noise of Theorems 1 and 2, of the accountants of their time, and of tight ones."""
    noises: Noises = {}
    for setting in SETTINGS:
        noises[setting] = {kind: [noise_std(kind, setting, e) for e in EPSILONS] for kind in KINDS}
        progress(setting.title)
    output = Output(folder, "federated-figureS9")
    output.records(
        [
            Point(*setting, kind, float(epsilon), value)
            for setting, by_kind in noises.items()
            for kind, values in by_kind.items()
            for epsilon, value in zip(EPSILONS, values, strict=True)
        ]
    )
    output.text(as_text(noises))
    output.figure(draw(noises))
    return output.files


def figure_s7(folder: Path) -> list[Path]:
    """Draw both sides of the inequalities (16) and (21), which the paper checks by eye.

    Figures S7 and S8 draw them for small variances; here for variances up to 6.
    """
    from matplotlib.figure import Figure

    output = Output(folder, "federated-figureS7")
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    rows: list[tuple[str, float, float, float]] = []
    lines = ["Figures S7 and S8: inequalities of the proofs of Lemmas 2 and 3, in nu^2.", ""]
    for ax, (name, claim, least, left, right) in zip(
        figure.subplots(1, len(INEQUALITIES)), INEQUALITIES, strict=True
    ):
        variances = np.linspace(least, 6, 2001)
        sides = left(variances), right(variances)
        fails = variances[sides[0] > sides[1]]
        holds = "holds" if not len(fails) else f"is false from nu^2 = {fails[0]:.2f} on"
        lines.append(f"{name}: {claim} for nu^2 >= {least:.4g}: {holds}")
        rows += [(name, *numbers) for numbers in zip(variances, *sides, strict=True)]
        for side, label in zip(sides, claim.split(" <= "), strict=True):
            ax.plot(variances, side, label=label)
        ax.set_title(name)
        ax.set_xlabel("nu^2")
        ax.legend(frameon=False)
    lines += ["", "Lemma 3 stands by a repaired proof; no accountant here rests on it."]
    output.table(("inequality", "variance", "left", "right"), rows)
    output.text("\n".join(lines))
    output.figure(figure)
    return output.files


def as_text(noises: Noises) -> str:
    """Return the lines fitted to the noises, beside the paper's."""
    lines = [
        "Figure S9: noise nu on the sum (clipping norm 1) over epsilon; log nu = slope log epsilon",
        "+ intercept by least squares, over the epsilons at which the theorem holds.",
    ]
    for setting, by_kind in noises.items():
        lines += ["", setting.title]
        proved = ~np.isnan(by_kind["theorem"])
        for kind, values in by_kind.items():
            slope, intercept = fit(EPSILONS[proved], np.array(values)[proved])
            paper = PAPER_FITS.get((setting.sampling, setting.rounds, kind))
            beside = "" if paper is None else f"; paper {paper[0]:.2f}, {paper[1]:.2f}"
            lines.append(f"  {kind:<8} slope {slope:.2f}, intercept {intercept:.2f}{beside}")
        ratio = np.array(by_kind["theorem"]) / np.array(by_kind["tight"])
        lines.append(
            f"  the theorem holds from epsilon {EPSILONS[proved][0]:.1f}; its noise is "
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


def draw(noises: Noises) -> Figure:
    """Draw noise over epsilon, a panel for each setting; needs the extra ``plots``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), layout="constrained")
    for (setting, by_kind), ax in zip(noises.items(), figure.subplots(2, 3).flat, strict=True):
        for kind, values in by_kind.items():
            ax.loglog(EPSILONS, values, marker=".", label=kind)
        ax.set_title(setting.title)
        ax.set_xlabel("epsilon")
        ax.set_xticks([4, 8, 16, 32], ["4", "8", "16", "32"])
        ax.set_xticks([], minor=True)  # their labels would overlap
    figure.axes[0].set_ylabel("noise on the sum")
    figure.axes[0].legend(frameon=False)
    return figure

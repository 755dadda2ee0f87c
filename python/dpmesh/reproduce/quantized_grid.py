"""Beyond the quantized paper: uncredited privacy of quantization, and noise on coarse grids."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from scipy import special, stats

from dpmesh.keys import Key, Purpose
from dpmesh.privacy import Gaussian, Quantizer, Sensitive, Sensitivity, accounting
from dpmesh.reproduce._output import Output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[Any]

STEPS = tuple(2.0**power for power in range(-6, 5))
"""Quantizer steps, in standard deviations of the noise; powers of 2, as grids are."""

SHIFT = 1.0
"""Distance of the neighbours, in standard deviations of the noise."""

EPSILON = 1.0
DIM = 100
FINE_GRID = 2.0**-20


@dataclass(frozen=True)
class Row:
    """What a quantizer step does, everything in units of the noise's standard deviation.

    Parameters
    ----------
    step
        Of the quantizer.
    total_variation, delta
        Distance of two quantized releases that are `SHIFT` apart in one coordinate, over that of
        the same releases without quantization: at epsilon 0 and at `EPSILON`. Below 1 is privacy
        that the accounting does not credit.
    error
        Mean squared error of a coordinate after Gaussian noise and quantization.
    error_own_grid
        The same, if the accounted privacy comes from discrete noise on the quantizer's own grid.
    error_fine_grid
        The same, if it comes from discrete noise on a fine grid, before quantization.
    """

    step: float
    total_variation: float
    delta: float
    error: float
    error_own_grid: float
    error_fine_grid: float


def grid(folder: Path) -> list[Path]:
    """Measure what quantization adds to privacy, and what noise on a coarse grid costs."""
    rows = [measured(step) for step in STEPS]
    output = Output(folder, "quantized-grid")
    output.records(rows)
    output.text(_text(rows))
    output.figure(_draw(rows))
    return output.files


def measured(step: float) -> Row:
    """Return the numbers of one step."""
    total_variation = accounting.gdp_delta(epsilon=1e-12, mu=SHIFT)  # at epsilon 0, to rounding
    return Row(
        step,
        quantized_delta(0.0, SHIFT, step) / total_variation,
        quantized_delta(EPSILON, SHIFT, step) / accounting.gdp_delta(epsilon=EPSILON, mu=SHIFT),
        squared_error(step, None),
        squared_error(step, step),
        squared_error(step, FINE_GRID),
    )


def quantized_delta(epsilon: float, shift: float, step: float) -> float:
    """Return the delta of a number with standard Gaussian noise, quantized, at this epsilon.

    It is the largest over the positions of the two neighbours, `shift` apart, relative to the
    quantizer's levels. Exact up to tails of 10 standard deviations.
    """
    codes = np.arange(-int(10 / step) - 2, int((10 + shift) / step) + 3)
    largest = 0.0
    for phase in np.linspace(0, step, 41):
        law, other = (quantized_law(phase + moved, step, codes) for moved in (0.0, shift))
        largest = max(
            largest,
            float(np.maximum(law - exp(epsilon) * other, 0).sum()),
            float(np.maximum(other - exp(epsilon) * law, 0).sum()),
        )
    return largest


def quantized_law(x: float, step: float, codes: npt.NDArray[np.int64]) -> Floats:
    """Return the probabilities of codes of x after standard Gaussian noise.

    With ``h(u) = u Phi(u / t) + t phi(u / t)``, ``t = 1 / step`` and ``a = x / step - code`` it is
    ``h(a + 1) - 2 h(a) + h(a - 1)``.
    """

    def h(u: Floats) -> Floats:
        smooth: Floats = u * special.ndtr(u * step) + stats.norm.pdf(u * step) / step
        return smooth

    a = x / step - codes
    law: Floats = np.maximum(h(a + 1) - 2 * h(a) + h(a - 1), 0)
    return law


def squared_error(step: float, noise_grid: float | None) -> float:
    """Return the measured error of a coordinate of rows of `DIM`, on average over 400,000."""
    key = Key.seeded(0)
    values = np.random.default_rng(0).normal(scale=10 * step, size=(4000, DIM))
    sensitivity = Sensitivity(SHIFT, "l2", "neighbours one standard deviation apart")
    mechanism = Gaussian(1 / SHIFT, grid=noise_grid)
    noisy = mechanism.release(Sensitive(values), sensitivity, key.stream(Purpose.NOISE))
    released = Quantizer(step).compress(noisy, key.stream(Purpose.QUANTIZE)).values
    return float(((released - values) ** 2).mean())


def _text(rows: list[Row]) -> str:
    lines = [
        "What quantization adds to privacy and nobody credits, and what noise on a grid costs.",
        "",
        "The quantized paper accounts for the noise and takes quantization as post-processing, as",
        "does this package. How much more private is a quantized number really? And what does",
        "discrete Gaussian noise on the quantizer's own grid cost, which hides nothing in the last",
        f"bits of floating-point numbers? Units: the noise, in rows of {DIM} numbers whose",
        f"neighbours are {SHIFT:g} apart; privacy is exact, for two that differ in one number;",
        "errors are measured.",
        "",
        f"{'':<9}{'of the Gaussian':<24}{'mean squared error, noise':<30}",
        f"{'step':<9}{'variation':<12}{f'delta({EPSILON:g})':<12}"
        f"{'real':<10}{'on the step':<14}on a fine grid",
    ]
    lines += [
        f"{row.step:<9g}{row.total_variation:<12.4f}{row.delta:<12.4f}"
        f"{row.error:<10.4g}{row.error_own_grid:<14.4g}{row.error_fine_grid:.4g}"
        for row in rows
    ]
    lines += [
        "",
        "Rounding to the grid may move neighbours apart by one step in every number, and the noise",
        f"has to cover 1 + step sqrt({DIM}) / sensitivity as much. On a grid of 2^-20 that is",
        f"{1 + FINE_GRID * sqrt(DIM) / SHIFT:.6f}: make the noise on a fine grid, then quantize.",
    ]
    return "\n".join(lines)


def _draw(rows: list[Row]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    privacy, error = figure.subplots(1, 2)
    steps = [row.step for row in rows]
    privacy.semilogx(steps, [row.total_variation for row in rows], ".-", label="total variation")
    privacy.semilogx(steps, [row.delta for row in rows], ".-", label=f"delta at {EPSILON:g}")
    privacy.set_ylabel("of Gaussian noise alone")
    error.loglog(steps, [row.error for row in rows], ".-", label="real noise")
    error.loglog(steps, [row.error_own_grid for row in rows], ".-", label="on the step")
    error.loglog(steps, [row.error_fine_grid for row in rows], "--", label="on a fine grid")
    error.set_ylabel("mean squared error")
    for ax in (privacy, error):
        ax.set_xlabel("quantizer step / noise")
        ax.legend(frameon=False)
    return figure

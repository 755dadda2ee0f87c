"""Beyond the quantized paper: uncredited privacy of quantization, and noise on coarse grids.

All lengths are in standard deviations of the noise.
"""

from __future__ import annotations

from math import exp, sqrt
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy import special, stats

import dpmesh.accounting as accounting
from dpmesh._privacy_types import Floats
from dpmesh.keys import Key, Purpose
from dpmesh.noise import Gaussian, Quantizer, Sensitivity
from dpmesh.privacy import Sensitive
from dpmesh_papers._figure import Line, Panel, drawn
from dpmesh_papers._scaffold import Experiment, Progress, Row

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STEPS = tuple(2.0**power for power in range(-6, 5))
"""Quantizer steps, in standard deviations of the noise; powers of 2, as grids are."""

SHIFT = 1.0
"""Distance of the neighbours, in standard deviations of the noise."""

EPSILON = 1.0
"""At which delta is compared."""
DIM = 100
"""Numbers in a row whose errors are measured."""
FINE_GRID = 2.0**-20


def grid(folder: Path, *, progress: Progress = print) -> list[Path]:
    """Measure what quantization adds to privacy, and what noise on a coarse grid costs."""
    experiment = Experiment(folder, "quantized-grid", progress)
    experiment.measure(({"step": step} for step in STEPS), lambda cell: measured(**cell))
    return experiment.write(as_text, draw)


def measured(step: float) -> Row:
    """Return privacy and errors at one quantizer step.

    `total_variation` and `delta` are of two quantized releases that are `SHIFT` apart in one
    coordinate, over those without quantization: at epsilon 0 and at `EPSILON`. Below 1 is privacy
    that the accounting does not credit. `error` is the mean squared error of a coordinate after
    Gaussian noise and quantization. `error_own_grid` and `error_fine_grid` are with discrete noise,
    which the accounting then covers, on the quantizer's grid or on a fine one before quantization.
    """
    total_variation = accounting.gdp_delta(epsilon=1e-12, mu=SHIFT)  # at epsilon 0, to rounding
    at_epsilon = accounting.gdp_delta(epsilon=EPSILON, mu=SHIFT)
    return {
        "total_variation": quantized_delta(0.0, SHIFT, step) / total_variation,
        "delta": quantized_delta(EPSILON, SHIFT, step) / at_epsilon,
        "error": squared_error(step, None),
        "error_own_grid": squared_error(step, step),
        "error_fine_grid": squared_error(step, FINE_GRID),
    }


def quantized_delta(epsilon: float, shift: float, step: float) -> float:
    """Return the delta of a number with standard Gaussian noise, quantized, at this epsilon.

    It is the largest over the positions of the two neighbours, `shift` apart, relative to the
    quantizer's levels. Exact up to tails of 10 standard deviations.
    """
    codes = np.arange(-int(10 / step) - 2, int((10 + shift) / step) + 3)
    deltas = []
    for phase in np.linspace(0, step, 41):
        first = quantized_law(phase, step, codes)
        second = quantized_law(phase + shift, step, codes)
        deltas.append(float(np.maximum(first - exp(epsilon) * second, 0).sum()))
        deltas.append(float(np.maximum(second - exp(epsilon) * first, 0).sum()))
    return max(deltas)


def quantized_law(x: float, step: float, codes: npt.NDArray[np.int64]) -> Floats:
    """Return the probabilities of the values ``code * step`` of x after noise and quantization.

    The noise is standard Gaussian, the quantizer (3) rounds up or down at random without bias. With
    ``h(u) = u Phi(u / t) + t phi(u / t)``, ``t = 1 / step`` and ``a = x / step - code`` it is
    ``h(a + 1) - 2 h(a) + h(a - 1)``; shape of `codes`.
    """

    def h(u: Floats) -> Floats:
        return np.asarray(u * special.ndtr(u * step) + stats.norm.pdf(u * step) / step)

    a = x / step - codes
    return np.maximum(h(a + 1) - 2 * h(a) + h(a - 1), 0)


def squared_error(step: float, noise_grid: float | None) -> float:
    """Return the measured mean squared error of 400,000 coordinates, in rows of `DIM`.

    `noise_grid` is the grid of discrete Gaussian noise; None for real noise.
    """
    key = Key.seeded(0)
    values = np.random.default_rng(0).normal(scale=10 * step, size=(4000, DIM))
    sensitivity = Sensitivity(SHIFT, "l2", "neighbours one standard deviation apart")
    mechanism = Gaussian(1 / SHIFT, grid=noise_grid)
    noisy = mechanism.release(Sensitive(values), sensitivity, key.stream(Purpose.NOISE))
    released = Quantizer(step).compress(noisy, key.stream(Purpose.QUANTIZE)).values
    return float(((released - values) ** 2).mean())


def as_text(rows: list[Row]) -> str:
    """Return all steps as a table."""
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
        f"{row['step']:<9g}{row['total_variation']:<12.4f}{row['delta']:<12.4f}"
        f"{row['error']:<10.4g}{row['error_own_grid']:<14.4g}{row['error_fine_grid']:.4g}"
        for row in rows
    ]
    lines += [
        "",
        "Rounding to the grid may move neighbours apart by one step in every number, and the noise",
        f"has to cover 1 + step sqrt({DIM}) / sensitivity as much. On a grid of 2^-20 that is",
        f"{1 + FINE_GRID * sqrt(DIM) / SHIFT:.6f}: make the noise on a fine grid, then quantize.",
    ]
    return "\n".join(lines)


def draw(rows: list[Row]) -> Figure:
    """Draw privacy and error over the quantizer's step; needs the extra ``plots``."""

    def lines(names: dict[str, str]) -> list[Line]:
        steps = [row["step"] for row in rows]
        return [
            Line(label=label, x=steps, y=[row[name] for row in rows])
            for name, label in names.items()
        ]

    privacy = {"total_variation": "total variation", "delta": f"delta at {EPSILON:g}"}
    errors = {
        "error": "error, real noise",
        "error_own_grid": "error, noise on the step",
        "error_fine_grid": "error, noise on a fine grid",
    }
    x = "quantizer step / noise"
    return drawn(
        [
            Panel(
                title="privacy", x=x, y="share of Gaussian noise's", log="x", lines=lines(privacy)
            ),
            Panel(title="error", x=x, y="mean squared error", log="xy", lines=lines(errors)),
        ]
    )

"""Why smoothing helps: Figures 1, S14 and S15 of the federated paper."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

import dpmesh.kernels as kernels
from dpmesh.algorithms.denoisers import Identity, smoothing_risk
from dpmesh.data import mnist
from dpmesh.keys import Key, Purpose, generator
from dpmesh.problems import LinearProblem
from dpmesh_papers._figure import Line, Panel, drawn, lines_of
from dpmesh_papers._scaffold import Experiment, Progress, Row, kinds, pick
from dpmesh_papers.federated import algorithm_of, mnist_clients, standardized, states

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Floats = npt.NDArray[np.float64]

SHOWN_ROUNDS = (1, 10, 20, 30)
"""Rounds of Figure 1."""
SMOOTHINGS = (0.5, 1.0, 2.0, 3.0)
"""Smoothing factors of Figure S15."""
NOISE_SCALES = np.geomspace(1e-3, 1.0, 25)
"""Standard deviations of the noise of Figure S15."""
CLASSES = 10

SPECTRA = """\
Figure 1: Fourier coefficients of the federated average of moves, trained without noise.

The paper shows two tensors of a network on SVHN. Here it is the model of Table 2, softmax
regression on MNIST, whose 7,840 coefficients lie class by class and row by row of the image. Every
tenth frequency is left out: as the moves of the ten classes add up to 0, so does it. The peaks are
the multiples of 280, one period in each row of an image.

The paper: magnitudes fall as a power of the frequency, in all rounds; so smoothing, which takes
noise from the high frequencies, takes little else. Here, the power in the upper half of the
frequencies, and the energy in the lowest tenth (of white noise: 0, and 10%):
"""

SINE = """\
Figure S15: a noisy sine before and after smoothing (a), and the share of the mean square error
that Laplacian smoothing takes away (b).

Exact, by Proposition 1. The paper does not say how finely it samples sin(x) on [0, 30]; here at 301
points, steps of 0.1.

The paper: under little noise smoothing adds to the error; under much it takes some away, the more
the stronger it is. Here, noise as its standard deviation:
"""


PATHS = """\
Figure S14: the path of a linear classifier in two dimensions under noisy gradients; the best W has
equal coordinates.

The paper: the path of smoothed gradients is the smoother one. Here:
"""


def spectrum(vector: npt.ArrayLike) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return the frequencies 1, 2, .. of a vector, and the magnitudes of its Fourier coefficients.

    Both have the shape (n // 2,) for a vector of length n.
    """
    magnitude = np.abs(np.fft.rfft(np.asarray(vector, dtype=np.float64)))[1:]
    return np.arange(1, len(magnitude) + 1), magnitude


def decay(frequency: npt.ArrayLike, magnitude: npt.ArrayLike) -> float:
    """Return the exponent of the power law through the upper half of the frequencies.

    It is the slope of the line through the logarithms, by least squares.
    """
    x = np.log(frequency)
    y = np.log(np.asarray(magnitude) + 1e-300)
    middle = len(x) // 2
    slope, _ = np.polyfit(x[middle:], y[middle:], 1)
    return float(slope)


def energy_below_a_tenth(magnitude: npt.ArrayLike) -> float:
    """Return the share of the energy in the lowest tenth of the frequencies.

    White noise has a share of 0.1 there.
    """
    energy = np.square(magnitude)
    return float(energy[: len(energy) // 10].sum() / energy.sum())


def average_moves(problem: LinearProblem, key: Key, rounds: Iterable[int]) -> dict[int, Floats]:
    """Return the mean of the clients' updates in these rounds (from 1), trained without noise.

    By round, shape (dim,).
    """
    chosen_rounds = set(rounds)
    algorithm = algorithm_of("uniform", None, Identity())
    moves = {}
    previous_total = algorithm.init(problem, key).total
    for t, state in enumerate(states(algorithm, problem, max(chosen_rounds), key), 1):
        if t in chosen_rounds:
            moves[t] = np.asarray(state.total - previous_total, dtype=np.float64)[0]
        previous_total = state.total
    return moves


def figure1(folder: Path, *, progress: Progress = print) -> list[Path]:
    """Draw the spectrum of the federated average over the rounds of training without privacy.

    The paper shows two tensors of a network on SVHN; here it is the model of Table 2, logistic
    regression on MNIST, whose coefficients lie class by class and row by row of the image. As the
    moves of the classes add up to 0, so do those frequencies that are multiples of their number.
    """
    train, test = (standardized(mnist(part)) for part in ("train", "test"))
    key = Key.seeded(0)
    moves = average_moves(mnist_clients(train, test, 1000, key), key, SHOWN_ROUNDS)

    def measured(cell: Row) -> list[Row]:
        frequencies, magnitudes = spectrum(moves[cell["round"]])
        return [
            {"frequency": frequency, "magnitude": magnitude}
            for frequency, magnitude in zip(frequencies.tolist(), magnitudes.tolist(), strict=True)
            if frequency % CLASSES
        ]

    experiment = Experiment(folder, "federated-figure1", progress)
    experiment.measure(({"round": t} for t in SHOWN_ROUNDS), measured)
    return experiment.write(text_of_spectra, draw_spectra)


def _spectra(rows: list[Row]) -> Iterator[tuple[int, list[int], list[float]]]:
    """Yield each round with its frequencies and magnitudes."""
    for t in kinds(rows, "round"):
        points = pick(rows, round=t)
        yield t, [row["frequency"] for row in points], [row["magnitude"] for row in points]


def text_of_spectra(rows: list[Row]) -> str:
    """Return the decay of magnitudes, and the share of energy at low frequencies."""
    lines = [
        f"    round {t:<2d}  power {decay(frequency, magnitude):.2f}, "
        f"{100 * energy_below_a_tenth(magnitude):.0f}% of the energy in the lowest tenth"
        for t, frequency, magnitude in _spectra(rows)
    ]
    return "\n".join([SPECTRA, *lines])


def draw_spectra(rows: list[Row]) -> Figure:
    """Draw magnitudes over frequencies; needs the extra ``plots``."""
    panels = [
        Panel(
            title=f"round {t}: decay {decay(frequencies, magnitudes):.2f}",
            x="frequency",
            y="magnitude",
            log="xy",
            lines=[Line(label="", x=frequencies, y=magnitudes)],
            kind="dots",
        )
        for t, frequencies, magnitudes in _spectra(rows)
    ]
    return drawn(panels)


def figure_s14(folder: Path, *, progress: Progress = print) -> list[Path]:
    """Draw the path of a linear classifier by noisy gradient descent, smoothed and not.

    y = sigmoid(W x) in two dimensions, standard deviation 0.3 of the gradients' noise, steps of
    0.1, 100 updates, smoothing 1, from (0, 0). The paper does not give its points; here there are
    100 around (1, 1) of class 0 and 100 around (-1, -1) of class 1.
    """
    draw = generator(Key.seeded(0), Purpose.INIT)
    labels = np.repeat([0.0, 1.0], 100)
    x = draw.normal(np.where(labels, -1.0, 1.0)[:, np.newaxis], 0.5, (200, 2))
    noise = draw.normal(0.0, 0.3, (100, 2))

    def measured(cell: Row) -> list[Row]:
        w = np.zeros(2)
        path = [w]
        for gradient_noise in noise:
            prediction = 1 / (1 + np.exp(-x @ w))
            gradient = (prediction - labels) @ x / len(x) + gradient_noise
            smoothed = kernels.smooth(gradient[np.newaxis], cell["smoothing"])[0]
            w = w - 0.1 * smoothed
            path.append(w)
        return [{"update": t, "first": w[0], "second": w[1]} for t, w in enumerate(path)]

    experiment = Experiment(folder, "federated-figureS14", progress)
    experiment.measure(({"smoothing": smoothing} for smoothing in (0.0, 1.0)), measured)
    return experiment.write(text_of_paths, draw_paths)


def text_of_paths(rows: list[Row]) -> str:
    """Return the mean distance of the two coordinates along each path."""
    lines = []
    for smoothing in kinds(rows, "smoothing"):
        path = pick(rows, smoothing=smoothing)
        difference = np.mean([abs(row["second"] - row["first"]) for row in path])
        lines.append(
            f"    {_named(smoothing)}: the coordinates differ by {difference:.3f} on average"
        )
    return "\n".join([PATHS, *lines])


def draw_paths(rows: list[Row]) -> Figure:
    """Draw both paths; needs the extra ``plots``."""
    lines = lines_of(rows, by="smoothing", x="first", y="second", name=_named)
    panel = Panel(
        title="", x="first coordinate of W", y="second coordinate", lines=lines, kind="bands"
    )
    return drawn([panel])


def _named(smoothing: float) -> str:
    return f"smoothing {smoothing:g}"


def error_reduction(signal: Floats, noise_scale: float, smoothing: float) -> float:
    """Return the share of the mean square error that smoothing removes; negative if it adds to it.

    By Proposition 1; `noise_scale` is nu, the standard deviation of the noise on the signal.
    """
    bias, variance = smoothing_risk(signal, noise_scale, smoothing)
    plain = len(signal) * noise_scale**2
    return 1 - (bias + variance) / plain


def least_noise(signal: Floats, smoothing: float) -> float:
    """Return the standard deviation of the noise above which smoothing reduces the error."""
    bias, variance = smoothing_risk(signal, 1.0, smoothing)
    return sqrt(bias / (len(signal) - variance))


def figure_s15(folder: Path, *, progress: Progress = print) -> list[Path]:
    """Draw the share of a noisy sine's mean square error that smoothing removes (Figure S15).

    Exact, by Proposition 1. The paper does not say how finely it samples sin(x) on [0, 30]; here
    at 301 points, steps of 0.1.
    """

    def measured(cell: Row) -> list[Row]:
        return [
            {"noise_scale": nu, "reduction": error_reduction(SIGNAL, nu, cell["smoothing"])}
            for nu in NOISE_SCALES.tolist()
        ]

    experiment = Experiment(folder, "federated-figureS15", progress)
    experiment.measure(({"smoothing": smoothing} for smoothing in SMOOTHINGS), measured)
    return experiment.write(text_of_sine, draw_sine)


PLACES = np.linspace(0, 30, 301)
SIGNAL = np.sin(PLACES)


def text_of_sine(rows: list[Row]) -> str:
    """Return from which noise on smoothing pays."""
    lines = []
    for smoothing in kinds(rows, "smoothing"):
        at_tenth = 100 * error_reduction(SIGNAL, 0.1, smoothing)
        at_one = 100 * error_reduction(SIGNAL, 1.0, smoothing)
        least = f"smoothing {smoothing:<3g}  pays from noise {least_noise(SIGNAL, smoothing):.4f}"
        lines.append(f"    {least}: takes {at_tenth:.0f}% at 0.1, {at_one:.0f}% at 1")
    return "\n".join([SINE, *lines])


def draw_sine(rows: list[Row]) -> Figure:
    """Draw the sine, and the share of the error; needs the extra ``plots``."""
    noisy = SIGNAL + generator(Key.seeded(0), Purpose.INIT).normal(0, 0.1, len(SIGNAL))
    smoothed = kernels.smooth(noisy[np.newaxis], 1.0)[0]
    curves = {"sin(x)": SIGNAL, "noise 0.1": noisy, "smoothing 1": smoothed}
    signals = [
        Line(label=name, x=PLACES.tolist(), y=(y - 3 * shift).tolist())
        for shift, (name, y) in enumerate(curves.items())
    ]
    lines = lines_of(rows, by="smoothing", x="noise_scale", y="reduction", name=_named)
    share = Panel(
        title="",
        x="standard deviation of the noise",
        y="share of the error taken away",
        lines=lines,
        log="x",
        limits=(-1.0, 1.0),
        kind="bands",
    )
    return drawn([Panel(title="", x="x", y="signals, 3 apart", lines=signals, kind="bands"), share])

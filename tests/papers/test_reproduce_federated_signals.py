"""Figures 1 and S15 of the federated paper: their numbers on known signals, and their files."""

from __future__ import annotations

import csv
import re

import numpy as np
import pytest

from dpmesh import plots
from dpmesh.keys import Key
from dpmesh_papers import federated_signals as figures
from dpmesh_papers.catalog import reproduce

SINE = np.sin(np.linspace(0, 30, 301))


def test_a_spectrum_finds_one_frequency_and_a_power_law() -> None:
    frequency, magnitude = figures.spectrum(3.0 + np.cos(2 * np.pi * 5 * np.arange(64) / 64))
    assert len(frequency) == 32
    assert frequency[magnitude.argmax()] == 5
    assert magnitude.max() == pytest.approx(32)
    powers = np.arange(501)
    coefficients = np.where(powers > 0, np.maximum(powers, 1) ** -1.5, 0)
    law = figures.spectrum(np.fft.irfft(coefficients))
    assert figures.decay(*law) == pytest.approx(-1.5, abs=1e-6)
    assert figures.energy_below_a_tenth(law[1]) > 0.99
    _, white = figures.spectrum(np.random.default_rng(0).normal(size=20_000))
    # 1,000 exponential energies of 10,000: a share of 0.1 with standard error 0.003
    assert figures.energy_below_a_tenth(white) == pytest.approx(0.1, abs=6 * 0.003)


def test_smoothing_takes_error_away_where_there_is_noise() -> None:
    """As the paper says of its Figure S15."""
    little, much = ([figures.error_reduction(SINE, nu, s) for s in (1, 3)] for nu in (1e-3, 1))
    assert little[1] < little[0] < 0
    assert 0.5 < much[0] < much[1] < 1
    assert figures.error_reduction(SINE, 0.1, 0.0) == pytest.approx(0)


def test_figure_s15_files(tmp_path) -> None:
    table, text, picture = figures.figure_s15(tmp_path / "new")
    with table.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4 * 25
    found = re.findall(
        r"smoothing (\S+) +pays from noise (\S+): .* at 0\.1, (\S+)% at 1", text.read_text()
    )
    for smoothing, least, share in found:
        for noise, pays in ((0.99, False), (1.01, True)):
            reduction = figures.error_reduction(SINE, noise * float(least), float(smoothing))
            assert (reduction > 0) == pays
        reduction = figures.error_reduction(SINE, 1.0, float(smoothing))
        assert float(share) == pytest.approx(100 * reduction, abs=0.5)
    assert len(found) == 4
    assert picture.stat().st_size > 10_000


def test_figures_take_colours_that_all_readers_can_tell_apart(tmp_path, monkeypatch) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure
    colors = pytest.importorskip("matplotlib.colors")
    drawn: list[str] = []

    def savefig(self, file, **_) -> None:
        drawn.extend(colors.to_hex(line.get_color()).upper() for line in self.axes[-1].lines)

    monkeypatch.setattr(figure, "savefig", savefig)
    reproduce("federated-figureS15", tmp_path)
    assert drawn[:4] == list(plots.COLOURS[:4])


@pytest.mark.slow
def test_the_federated_average_is_smooth(real_data, tmp_path) -> None:
    """Far more low frequencies than white noise has, and fewer the higher they are."""
    table, text, _ = figures.figure1(tmp_path)
    rows = np.loadtxt(table, delimiter=",", skiprows=1)
    assert set(rows[:, 0]) == set(figures.SHOWN_ROUNDS)
    for t in figures.SHOWN_ROUNDS:
        _, frequency, magnitude = rows[rows[:, 0] == t].T
        decay = figures.decay(frequency, magnitude)
        assert figures.energy_below_a_tenth(magnitude) > 0.3
        assert decay < -0.5
        assert magnitude.min() > 1e-6  # no rounding errors of what is 0
        assert f"round {t:<2d}  power {decay:.2f}, " in text.read_text()


def test_moves_are_those_of_the_algorithm() -> None:
    from dpmesh.data import Dataset, iid
    from dpmesh.problems import LinearProblem

    rng = np.random.default_rng(0)
    train = Dataset(rng.normal(size=(1000, 3)), rng.integers(0, 2, 1000), "synthetic")
    problem = LinearProblem(train, iid(train, 1000, rng), "softmax", classes=2)
    moves = figures.average_moves(problem, Key.seeded(0), (1, 3))
    assert set(moves) == {1, 3}
    assert 0 < np.linalg.norm(moves[1]) <= 0.3


def test_smoothed_gradients_keep_the_coordinates_together(tmp_path) -> None:
    """Smoothing 1 on a cycle of two divides the difference of the gradients by 5."""
    table, text, _ = figures.figure_s14(tmp_path)
    rows = np.loadtxt(table, delimiter=",", skiprows=1)
    plain, smoothed = (np.abs(np.diff(rows[rows[:, 0] == s, 2:], axis=1)).mean() for s in (0, 1))
    assert smoothed < plain / 3
    assert f"smoothing 1: the coordinates differ by {smoothed:.3f}" in text.read_text()

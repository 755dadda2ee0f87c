"""Figure S9 of the federated paper: a fit that its caption reports, and the files."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from dpmesh_papers import federated_accountants as s9


def test_the_theorem_has_the_captions_slope_and_intercept() -> None:
    """Slopes -0.80 and -0.73, intercept 3.31; the accountant's own is log 2 above the caption's."""
    setting = s9.Setting("uniform", 1000, 2000)
    noises = {
        kind: np.array([s9.noise_std(kind, setting, e) for e in s9.EPSILONS])
        for kind in ("theorem", "moments")
    }
    proved = ~np.isnan(noises["theorem"])
    assert 3 < proved.sum() < len(proved)
    slope, intercept = s9.fit(s9.EPSILONS, noises["theorem"])
    assert (slope, intercept) == pytest.approx((-0.80, 3.31), abs=0.02)
    slope, intercept = s9.fit(s9.EPSILONS[proved], noises["moments"][proved])
    assert (slope, intercept - np.log(2)) == pytest.approx((-0.73, 2.29), abs=0.06)


@pytest.mark.slow
def test_files(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(s9, "EPSILONS", np.array([12.0, 20.0]))
    monkeypatch.setattr(s9, "noise_std", lambda kind, setting, e: len(kind) / e)
    table, text, figure = s9.figure_s9(tmp_path, progress=lambda line: None)
    with table.open() as file:
        assert len(list(csv.DictReader(file))) == 6 * 3 * 2
    assert "slope -1.00, intercept 1.95; paper -0.80, 3.31" in text.read_text()
    assert "exact accounting allows 959." in text.read_text()
    assert figure.stat().st_size > 10_000


def test_the_inequality_of_figure_s8_is_false_for_large_variances(tmp_path) -> None:
    """At nu^2 = 2.3: e^(1 / 2.3) = 1.5446 > 3.5 / 2.3 = 1.5217."""
    _, text, figure = s9.figure_s7(tmp_path)
    assert "Figure S7: min(4 (e^(1/nu^2) - 1)" in text.read_text()
    assert "for nu^2 >= 0.6667: holds" in text.read_text()
    assert "for nu^2 >= 0.5556: is false from nu^2 = 2.24 on" in text.read_text()
    assert figure.stat().st_size > 10_000

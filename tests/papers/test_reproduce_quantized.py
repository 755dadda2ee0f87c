"""The quantized paper's figures: the files, and what their numbers must obey."""

from __future__ import annotations

import csv
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpmesh as dm
from dpmesh import topology
from dpmesh.accounting import gdp_delta
from dpmesh.audit import couple
from dpmesh.data import iid
from dpmesh.problems import LinearProblem
from dpmesh.run.carriers import Gossip
from dpmesh_papers import quantized, quantized_comparison, quantized_grid, quantized_horizon
from dpmesh_papers.bounds.quantized import Powers
from dpmesh_papers.claims.quantized import theorem_1
from dpmesh_papers.quantized_comparison import TASKS, GradientPerturbation, ModelName, contenders

pytest.importorskip("matplotlib", reason="needs the extra plots")

pytestmark = pytest.mark.slow  # whole tables and figures in small


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_figure_5_falls_in_both_exponents(tmp_path: Path) -> None:
    table, text, picture = quantized.figure5(tmp_path, iterations=200)
    assert picture.stat().st_size > 10_000
    rows = rows_of(table)
    assert len(rows) == 11 * 15
    for name in ("paper", "exact", "safe"):
        grid = np.array([float(row[name]) for row in rows]).reshape(11, 15)
        grid = np.where(grid < inf, grid, 1e300)
        assert (np.diff(grid, axis=0) <= 0).all()
        assert (np.diff(grid, axis=1) <= 0).all()
    assert all(float(row["exact"]) < float(row["safe"]) < float(row["paper"]) for row in rows)
    assert "does not always fall" not in text.read_text()
    assert "cannot" in text.read_text()  # be compared: the paper's numbers are unknown


@pytest.mark.parametrize(
    ("iterations", "smallest", "largest"), [(100, "12.9", "22.3"), (2000, "49.6", "179")]
)
def test_theorem_1_exceeds_the_exact_epsilon_as_its_docstring_states(
    iterations: int, smallest: str, largest: str
) -> None:
    points = rows_of(Path(__file__).parents[2] / "docs" / "results" / "quantized-figure5.csv")
    budgets = [
        quantized.budgets(
            Powers(0.9, 0.7, float(point["gamma"]), float(point["zeta"])), iterations, "paper"
        )
        for point in points
    ]
    ratios = [claimed / exact for claimed, exact in budgets if claimed < inf]
    assert (f"{min(ratios):.3g}", f"{max(ratios):.3g}") == (smallest, largest)
    words = " ".join((theorem_1.__doc__ or "").split())
    assert f"{smallest} to {largest} times" in words


def test_figure_4c_stays_finite_only_for_growing_samples(tmp_path: Path) -> None:
    table, text, picture = quantized_horizon.figure4c(tmp_path)
    rows = rows_of(table)
    assert len(rows) == 4 * len(quantized_horizon.HORIZONS)
    by_name = {(row["run"], int(row["horizon"])): row for row in rows}
    known = by_name["growing samples", 1000]  # of the specification, as the next
    assert int(known["sample_size"]) == 355
    assert float(known["paper"]) == pytest.approx(3.1242, abs=1e-4)
    assert float(known["exact"]) == pytest.approx(0.041963, abs=1e-6)
    assert float(by_name["growing samples, nonconvex", 1000]["exact"]) == pytest.approx(
        0.055085, abs=1e-6
    )
    for name in quantized_horizon.RUNS:
        paper, exact = (
            np.array([float(by_name[name, k][how]) for k in quantized_horizon.HORIZONS])
            for how in ("paper", "exact")
        )
        assert (exact < paper).all()
        if name.startswith("growing"):
            assert paper.max() < 5
            assert (np.diff(exact) < 0).all()
        else:
            assert (np.diff(paper) > 0).all()
            assert (np.diff(exact) > 0).all()
    assert "growing samples, exact                   falls by a factor of 71" in text.read_text()
    assert "is not proved" not in text.read_text()
    assert picture.stat().st_size > 10_000


def five_nodes(records: int = 60) -> LinearProblem:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(5 * records, 6)).astype(np.float32)
    features /= np.linalg.norm(features, axis=1)[:, np.newaxis]
    train = dm.Dataset(features, rng.integers(0, 10, 5 * records), "synthetic")
    parts = iid(train, 5, rng, equal_sizes=True)
    return LinearProblem(train, parts, "softmax", test=train, classes=10, feature_norm=1.0)


@pytest.mark.parametrize(("of", "rounds"), [("regression", 200), ("network", 40)])
def test_every_contender_keeps_its_epsilon(of: ModelName, rounds: int) -> None:
    for name, contender in contenders(rounds, TASKS[of]).items():
        for epsilon in (0.3, 3.0):
            cost = contender.at_epsilon(epsilon).plan(rounds).cost(quantized.DELTA)
            assert cost.epsilon == pytest.approx(epsilon, rel=1e-4), name
            assert cost.epsilon <= epsilon * (1 + 1e-9)
        assert contender.at_epsilon(inf).plan(rounds).cost(quantized.DELTA).epsilon == inf
        assert contender.samples > 0


def test_noise_on_gradients_keeps_its_contract() -> None:
    problem = five_nodes()
    algorithm = GradientPerturbation(
        step_size=0.5, sample_size=20, records=60, noise_to_sensitivity=1.3, clipping_norm=0.7
    )
    run = dm.simulate(algorithm, problem, topology.ring(5), rounds=8, delta=1e-5)
    assert run.ledger == algorithm.plan(8)
    assert 0 < run.privacy.epsilon < inf
    np.testing.assert_array_equal(run.parameters, run.released)
    labels = problem.train.labels.copy()
    labels[problem.partition[0][0]] = (labels[problem.partition[0][0]] + 1) % 10
    other = five_nodes()
    other = LinearProblem(
        dm.Dataset(other.train.features, labels, "neighbour"),
        other.partition,
        "softmax",
        classes=10,
        feature_norm=1.0,
    )
    seen = couple(algorithm, problem, other, Gossip(topology.ring(5)), rounds=8)
    assert not seen.violated, str(seen)


def five_networks() -> Any:
    """The same with one hidden layer, in JAX."""
    from jax import nn, numpy

    from dpmesh.problems.jax_model import JaxProblem
    from dpmesh.problems.networks import cross_entropy

    def start(key: Any) -> Any:
        draw = np.random.default_rng(1)
        return {"in": draw.normal(size=(6, 5)), "out": draw.normal(size=(5, 10))}

    def scores(params: Any, x: Any) -> Any:
        return nn.relu(numpy.asarray(x) @ params["in"]) @ params["out"]

    linear = five_nodes()
    settings: Any = {"test": linear.test, "nodes_at_once": 5}
    return JaxProblem(
        linear.train, linear.partition, start, cross_entropy(scores), scores, **settings
    )


@pytest.mark.parametrize(("of", "rounds"), [("regression", 12), ("network", 5)])
def test_figure_4_writes_all_points(
    of: ModelName, rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if of == "network":
        pytest.importorskip("jax", reason="needs the extra jax")
    monkeypatch.setattr(quantized_comparison, "RECORDS", 60)
    powers = type(TASKS[of].powers)(0.9, 0.7, 0.5, 0.0, 2.0, 1.5, 10.0)
    problem = five_nodes if of == "regression" else five_networks
    monkeypatch.setitem(
        TASKS, of, replace(TASKS[of], problem=problem, powers=powers, epsilons=(1.0, inf))
    )
    said: list[str] = []
    table, text, picture = quantized_comparison.figure4(
        tmp_path, of=of, rounds=rounds, progress=said.append
    )
    rows = [row for row in rows_of(table) if row["round"] == str(rounds)]
    assert len(rows) == len(said) == 12
    by_name = {(row["algorithm"], float(row["epsilon"])): row for row in rows}
    quantized_bits = float(by_name["quantized", 1.0]["bits"])
    floats = rounds * 32 * problem().dim
    assert quantized_bits < float(by_name["not quantized", 1.0]["bits"]) == floats
    assert TASKS[of].title in text.read_text()
    assert "Theorem 1 charges" in text.read_text()
    assert picture.stat().st_size > 10_000


def test_the_law_of_quantized_numbers() -> None:
    """The specification's values at x = 0.37, sigma = 1.3, step 1; it sums to 1."""
    codes = np.arange(-20, 21)
    law = quantized_grid.quantized_law(0.37 / 1.3, 1 / 1.3, codes)
    assert law[codes == 1] == pytest.approx(0.2630054292, rel=1e-9)
    assert law[codes == 0] == pytest.approx(0.2820323593, rel=1e-9)
    assert law.sum() == pytest.approx(1.0, abs=1e-12)


def test_quantization_adds_privacy_and_coarse_grids_cost_noise(tmp_path: Path) -> None:
    """Section 2 of the specification: 0.96 of the variation at step 1, half of it at step 5."""
    gaussian = gdp_delta(epsilon=1e-12, mu=1.0)
    assert quantized_grid.quantized_delta(0.0, 1.0, 1.0) / gaussian == pytest.approx(0.96, abs=0.01)
    assert quantized_grid.quantized_delta(0.0, 1.0, 5.0) / gaussian == pytest.approx(0.5, abs=0.05)
    for epsilon in (0.3, 2.0):
        for step in (0.05, 0.7, 20.0):
            delta = quantized_grid.quantized_delta(epsilon, 0.5, step)
            assert delta <= gdp_delta(epsilon=epsilon, mu=0.5) + 1e-11
    table, text, picture = quantized_grid.grid(tmp_path)
    rows = [{name: float(cell) for name, cell in row.items()} for row in rows_of(table)]
    assert all(row["total_variation"] <= 1 + 1e-9 and row["delta"] <= 1 + 1e-9 for row in rows)
    for row in rows:  # p (1 - p) is 1/6 on average; 400,000 errors have 1% at most as 5 deviations
        assert row["error"] == pytest.approx(1 + row["step"] ** 2 / 6, rel=0.02)
        assert row["error_fine_grid"] == pytest.approx(row["error"], rel=0.03)
        own = (1 + row["step"] * 10) ** 2 + row["step"] ** 2 / 12  # rounding is to the nearest
        assert row["error_own_grid"] == pytest.approx(own, rel=0.03)
    assert "fine grid" in text.read_text()
    assert picture.stat().st_size > 10_000


def test_figure_2_on_real_digits(
    tmp_path: Path, real_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("jax", reason="needs the extra jax")
    problem = quantized.mnist_network()
    assert (problem.nodes, problem.dim) == (5, 5994)
    small = replace(problem, test=problem.test.take(np.arange(100)))
    monkeypatch.setattr(quantized, "mnist_network", lambda: small)
    monkeypatch.setattr(quantized, "QUANTIZER_STEPS", (0.01, 0.5))
    monkeypatch.setattr(quantized, "NOISE_EXPONENTS", (0.05,))
    said: list[str] = []
    table, _text, picture = quantized.figure2(tmp_path, rounds=2, progress=said.append)
    rows = [row for row in rows_of(table) if row["bits"]]  # the ends of runs
    assert len(rows) == len(said) == 3
    fine, coarse, _ = (float(row["bits"]) for row in rows)
    proved, unproved = (float(rows[-1][name]) for name in ("epsilon", "unproved_epsilon"))
    assert proved == pytest.approx(unproved)
    assert float(rows[0]["epsilon"]) >= float(rows[0]["unproved_epsilon"])
    assert coarse < fine < 32
    assert all(0 < float(row["training_accuracy"]) < 0.5 for row in rows)  # after two rounds
    assert picture.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("powers", "paper", "tight"),
    [
        (Powers(0.9, 0.7, 0.85, 0.05), True, True),
        (Powers(0.9, 0.7, 0.5, 0.1), False, True),
        (Powers(0.7, 0.5, 0.3, 0.0), False, True),  # on the border, which floats miss
        (Powers(0.9, 0.7, 0.7, 0.1), False, True),  # on that of the paper
        (Powers(0.9, 0.7, 0.1, 0.0), False, False),
    ],
)
def test_budgets_stay_finite_as_the_conditions_say(
    powers: Powers, paper: bool, tight: bool
) -> None:
    assert (powers.stays_finite("paper"), powers.stays_finite("tight")) == (paper, tight)

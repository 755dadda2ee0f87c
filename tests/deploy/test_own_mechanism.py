"""A mechanism in a module of one's own, through every door: the page's own example."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from math import pi
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mesh_parties import Parties
from problems import contract_problem as make_problem

import dpmesh as dm
from dpmesh.audit import audit_layers
from dpmesh.experiments import Experiment, read
from dpmesh.noise import Gaussian, Independent, Laplace
from dpmesh.noise.mechanisms import proof_of
from dpmesh.privacy import Plan

PAGE = Path(__file__).parents[2] / "docs" / "own_mechanism.md"
DELTA = 1e-5
EXPERIMENT = """format = 2
[run]
rounds = 3
seed = 1
delta = 1e-5
[data]
source = "digits"
positive = [5, 6, 7, 8, 9]
records = 200
[partition]
kind = "iid"
nodes = 4
[problem]
loss = "logistic"
feature_norm = 1.0
[topology]
kind = "complete"
[algorithm]
kind = "GradientDescent"
noise_multiplier = 40.0
noise = {kind = "Logistic"}
"""


@pytest.fixture
def logistic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The class `Logistic` in a temporary module of that name."""
    (program,) = re.findall(r"^```python\n(\"\"\"Logistic.*?)^```", PAGE.read_text(), re.S | re.M)
    (tmp_path / "logistic.py").write_text(program)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    import logistic  # type: ignore[import-not-found]

    yield logistic.Logistic
    sys.modules.pop("logistic")


def descent(noise: Any, **changes: Any) -> dm.GradientDescent:
    given: dict[str, Any] = {"records": 12, "noise_multiplier": 100.0, "noise": noise}
    return dm.GradientDescent(**given | changes)


def test_the_example_is_short() -> None:
    (program,) = re.findall(r"^```python\n(\"\"\"Logistic.*?)^```", PAGE.read_text(), re.S | re.M)
    assert len(program.splitlines()) <= 40


def test_a_plan_costs_what_the_class_states(logistic: Any) -> None:
    plan = descent(logistic).plan(5)
    assert plan.cost(0.0).epsilon == pytest.approx(4 / 50)
    assert Plan.from_dict(plan.as_dict()) == plan
    report = dm.privacy.report(plan, DELTA)
    assert any("floating-point" in text for text in report.assumptions)


@pytest.mark.parametrize("kind", [dm.GradientDescent, dm.PushSum, dm.GradientTracking])
def test_descent_uses_it(kind: Any, logistic: Any) -> None:
    algorithm = kind(records=12, noise_multiplier=100.0, noise=logistic)
    mechanism = algorithm.noisy_release(algorithm.first_noisy_round).mechanism
    assert type(mechanism) is logistic
    assert mechanism.noise_to_sensitivity == 50.0


def test_a_run_has_its_noise(logistic: Any) -> None:
    """Its standard deviation is pi / sqrt(3) scales."""
    dim, records = 3000, 4
    rows = np.zeros((2 * records, dim))
    data = dm.Dataset(rows, np.ones(len(rows)))
    parts = tuple(np.arange(len(rows)).reshape(2, records))
    problem = dm.LinearProblem(data, parts, "logistic", feature_norm=1.0)
    algorithm = descent(logistic, records=records)
    run = dm.simulate(
        algorithm,
        problem,
        dm.topology.complete(2),
        rounds=2,
        key=dm.Key.seeded(3),
        delta=DELTA,
        metrics=[],
    )
    assert run.ledger == algorithm.plan(2)
    assert run.privacy.epsilon == pytest.approx(1 / 50, rel=1e-3)
    scale = algorithm.mechanism.noise_scale(algorithm.sensitivity(1), dim)
    expected = scale * pi / np.sqrt(3) / np.sqrt(2)  # a mean of two
    assert run.released[0].std() == pytest.approx(expected, rel=6 / np.sqrt(dim))


def test_online_learning_finds_its_noise(logistic: Any) -> None:
    algorithm = dm.OnlineLearning(epsilon=0.5, noise=logistic)
    assert algorithm.mechanism.noise_to_sensitivity == pytest.approx(2.0, rel=1e-5)
    assert algorithm.plan(3).cost(0.0).epsilon == pytest.approx(0.5, rel=1e-5)


def test_a_trusted_server_uses_it(logistic: Any) -> None:
    clients = dm.ClientUpdates(clients=4, sampling_rate=0.5, steps=1)
    algorithm = dm.FederatedLearning(clients, noise_multiplier=9.0, noise=logistic)
    seen = []

    def estimator(average: Any, noise_scale: float, so_far: Any) -> Any:
        seen.append(noise_scale)
        return average

    run = dm.simulate(
        dm.FederatedLearning(clients, noise_multiplier=9.0, noise=logistic, denoiser=estimator),
        make_problem(),
        rounds=1,
        delta=DELTA,
        metrics=[],
    )
    assert run.privacy.epsilon == algorithm.plan(1).cost(DELTA).epsilon
    scale = algorithm.mechanism.noise_scale(algorithm.sensitivity(0), run.released.shape[1])
    assert seen == [pytest.approx(scale * pi / np.sqrt(3) / 2)]


def test_a_budget_calibrates_it(logistic: Any) -> None:
    made = dm.GradientDescent.for_budget(
        records=12, epsilon=1.0, delta=DELTA, rounds=5, noise=logistic
    )
    assert made.plan(5).cost(DELTA).epsilon == pytest.approx(1.0, rel=1e-3)


def test_a_file_names_it(logistic: Any, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    experiment = Experiment.of(read(tmp_path / "experiment.toml", "logistic"))
    assert experiment.algorithm == descent(logistic, records=40, noise_multiplier=40.0)
    assert experiment.simulate().privacy.epsilon == pytest.approx(0.1, rel=0.01)


def test_a_file_gives_the_settings_of_a_kind(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    text = EXPERIMENT.replace('{kind = "Logistic"}', '{kind = "Laplace", grid = 0.0009765625}')
    (tmp_path / "experiment.toml").write_text(text)
    algorithm = Experiment.of(read(tmp_path / "experiment.toml")).algorithm
    assert algorithm.noise == Independent(Laplace, (("grid", 2.0**-10),))  # type: ignore[attr-defined]
    (tmp_path / "experiment.toml").write_text(text.replace("grid", "gird"))
    settings = read(tmp_path / "experiment.toml")
    with pytest.raises(ValueError, match=r"algorithm\.noise\.gird: wanted .*did you mean grid"):
        Experiment.of(settings)


def test_parties_run_it_under_a_contract(logistic: Any, tmp_path: Path) -> None:
    """Four nodes in one process, with the bits of the simulator."""
    changes = {"noise": {"kind": "Logistic"}}
    parties = Parties(tmp_path, "gradient descent", changes=changes, module="logistic")
    assert isinstance(parties.contract.algorithm.noise, Independent)
    parties.run()
    np.testing.assert_array_equal(parties.models(), parties.simulated().parameters)


@pytest.mark.parametrize("grid", [None, 2.0**-10])
def test_parties_run_another_kind_of_the_package(grid: float | None, tmp_path: Path) -> None:
    noise = {"kind": "Laplace"} | ({} if grid is None else {"grid": grid})
    parties = Parties(tmp_path, "gradient descent", changes={"noise": noise})
    parties.run()
    np.testing.assert_array_equal(parties.models(), parties.simulated().parameters)


def test_a_contract_names_the_missing_proof(
    logistic: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert proof_of(logistic(1.0))
    monkeypatch.setattr(logistic, "proof", "")
    changes = {"noise": {"kind": "Logistic"}}
    with pytest.raises(ValueError, match=r"wanted noise whose class proves .*\(`proof`\)"):
        Parties(tmp_path, "gradient descent", changes=changes, module="logistic")


def test_a_subclass_inherits_no_proof() -> None:
    class Half(Gaussian):
        pass

    assert proof_of(Gaussian(1.0))
    assert not proof_of(Half(1.0))


def test_an_estimator_uses_it(logistic: Any) -> None:
    pytest.importorskip("sklearn")
    rows = np.random.default_rng(0).normal(size=(60, 3))
    sites = np.repeat(np.arange(3), 20)
    model = dm.sklearn.PrivateClassifier(
        epsilon=4.0,
        delta=DELTA,
        ranges=(-4, 4),
        algorithm=lambda noise: descent(logistic, records=20, noise_multiplier=noise),
        rounds=3,
        random_state=0,
    )
    model.fit(rows, rows[:, 0] > 0, groups=sites)
    assert model.report_.privacy.epsilon == pytest.approx(4.0, rel=1e-4)


def test_a_view_names_the_missing_proof(logistic: Any) -> None:
    problem = make_problem()
    view = dm.privacy.views.OneNode(topology=dm.topology.ring(4))
    cost = descent(logistic).plan(3, problem).cost(DELTA, view=view)
    assert "no proof for logistic of Logistic noise" in cost.reason
    assert cost.epsilon == descent(logistic).plan(3).cost(DELTA).epsilon


@pytest.mark.slow
@pytest.mark.parametrize("honest", [True, False])
def test_an_audit_compares_it_with_its_claim(honest: bool, logistic: Any) -> None:
    @dataclass(frozen=True)
    class Quarter(logistic):  # type: ignore[misc]
        def _add_noise(self, values: Any, scale: float, source: Any) -> Any:
            return super()._add_noise(values, scale / 4, source)

    kind = logistic if honest else Quarter
    layers = descent(kind, records=4, noise_multiplier=1.0).worst_case(dim=1, canaries=500)
    results = audit_layers(*layers, runs=500, confidence=0.999, key=dm.Key.seeded(2))
    assert any(result.violated for result in results) is not honest


def test_commands_name_it(logistic: Any) -> None:
    typer = pytest.importorskip("typer")
    del typer
    from typer.testing import CliRunner

    from dpmesh.cli import app

    def shown(*words: str) -> str:
        result = CliRunner().invoke(app, [*words, "--mechanism", "logistic:Logistic"])
        assert result.exit_code == 0, result.output
        return result.output

    asked = ("--records", "50", "--noise", "100", "--rounds", "5")
    assert "logistic of Logistic, scale 2 where" in shown("privacy", "gradient-descent", *asked)
    few = ("--runs", "20", "--canaries", "20", "--seed", "1")
    assert "no violation found" in shown("audit", "gradient-descent", *few)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda kind: descent(kind(2.0)), "noise: wanted the class Logistic, whose amount"),
        (lambda kind: descent(dm.noise.NoNoise), "noise: wanted a class of independent noise"),
        (lambda kind: descent(dm.Key), "noise: wanted correlated"),
        (
            lambda kind: descent(Independent(kind, (("gird", 1.0),))),
            "noise: wanted settings of Log",
        ),
        (lambda kind: dm.WithoutReplacement(delta=DELTA, noise=kind), "no other noise is proved"),
        (
            lambda kind: dm.WithReplacement(
                nodes=2, records=4, models=3, batch_size=2, noise_multiplier=1.0, noise=kind
            ),
            "noise: wanted None with several models",
        ),
        (
            lambda kind: dm.FederatedLearning(
                dm.RecordGradients(clients=5, records=50),
                noise_multiplier=9.0,
                noise=kind,
                combination=dm.algorithms.SecureAggregation(dim=3, rounds=4),
            ),
            "noise: wanted None under a secure sum: shares of other noise are not proved",
        ),
        (
            lambda kind: dm.OnlineLearning(epsilon=1.0, copies=2, noise=kind),
            "copies: wanted 1 with this noise",
        ),
    ],
)
def test_what_is_not_proved_is_refused(make: Any, message: str, logistic: Any) -> None:
    with pytest.raises(ValueError, match=message):
        make(logistic)

"""The noise multiplier: a standard deviation over a clipping norm, as in other libraries."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from hypothesis import given
from hypothesis import strategies as st

import dpmesh as dm
from dpmesh import accounting
from dpmesh.algorithms import ClientUpdates, FederatedLearning, RecordGradients, SecureAggregation
from dpmesh.algorithms.clipping import Clipping
from dpmesh.experiments import Experiment, read

NORM, MULTIPLIER = 0.25, 3.0
UPDATES: dict[str, Any] = {"clients": 100, "clipping_norm": NORM, "steps": 1}
RECORDS: dict[str, Any] = {"clients": 3, "records": 300, "clipping_norm": NORM}

FEDERATED: dict[str, Any] = {
    "poisson": ClientUpdates(**UPDATES, sampling_rate=0.1),
    "uniform": ClientUpdates(**UPDATES, sampling_rate=0.1, sampling="uniform"),
    "cyclic": ClientUpdates(**UPDATES, sampling_rate=0.1, sampling="cyclic"),
    "allocation": ClientUpdates(**UPDATES, sampling_rate=0.1, sampling="allocation"),
    "records": RecordGradients(**RECORDS),
    "records added": RecordGradients(**RECORDS, neighboring_relation="add_remove"),
}


@given(st.floats(1e-3, 1e3))
def test_the_conversion_is_exact(ratio: float) -> None:
    def converted(relation: Any) -> float:
        return accounting.noise_to_sensitivity(2 * ratio, neighboring_relation=relation)

    assert converted("replace_one") == ratio
    assert converted("add_remove") == 2 * ratio


def test_a_bad_argument_is_named() -> None:
    with pytest.raises(ValueError, match="noise_multiplier: wanted"):
        accounting.noise_to_sensitivity(0.0, neighboring_relation="add_remove")
    with pytest.raises(ValueError, match="neighboring_relation: wanted"):
        accounting.noise_to_sensitivity(1.0, neighboring_relation="both")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", FEDERATED)
def test_noise_on_a_sum_over_the_norm(name: str) -> None:
    learning = FederatedLearning(FEDERATED[name], noise_multiplier=MULTIPLIER)
    scale = learning.mechanism.noise_scale(learning.sensitivity(0), 10)
    assert scale == MULTIPLIER * NORM
    shown = learning.plan(3).clipped
    assert shown is not None
    assert shown.standard_deviation == MULTIPLIER * NORM


def test_noise_of_a_secure_sum_over_the_norm() -> None:
    """The noise that `colluding` clients do not know, which covers the grid: up to 1% more."""
    secure = SecureAggregation(dim=10, rounds=3)
    learning = FederatedLearning(
        FEDERATED["records"], noise_multiplier=MULTIPLIER, combination=secure
    )
    numbers = learning.secure_sum
    assert numbers is not None
    unknown = numbers.share * sqrt(numbers.honest) * numbers.grid
    assert MULTIPLIER * NORM <= unknown <= 1.01 * MULTIPLIER * NORM


def on_the_sum_of_gradients(kind: Any) -> float:
    """Return the standard deviation in a round's message, without the division by the records."""
    records = 30
    learning = kind(records=records, noise_multiplier=MULTIPLIER, clipping_norm=NORM)
    release = learning.sensitivity(learning.first_noisy_round)
    return float(learning.mechanism.noise_scale(release, 4) * records)


@pytest.mark.parametrize("kind", [dm.GradientDescent, dm.PushSum, dm.GradientTracking])
def test_noise_on_a_sum_of_gradients_over_the_norm(kind: Any) -> None:
    assert on_the_sum_of_gradients(kind) == pytest.approx(MULTIPLIER * NORM, rel=1e-12)


def test_released_noise_over_the_norm() -> None:
    """As drawn: all gradients are 0, so that the released sum is the noise."""
    nodes, records, dim, step = 4, 5, 4000, 0.5
    rows = np.zeros((nodes * records, dim))
    data = dm.Dataset(rows, np.ones(len(rows)), "zeros")
    parts = np.arange(len(rows)).reshape(nodes, records)
    problem = dm.LinearProblem(data, tuple(parts), "logistic", feature_norm=1.0)
    learning = dm.GradientDescent(
        records=records, noise_multiplier=MULTIPLIER, clipping_norm=NORM, step_size=step
    )
    run = dm.simulate(
        learning, problem, dm.topology.complete(nodes), rounds=2, key=dm.Key.seeded(4), metrics=[]
    )
    mean_of_all = run.released[0] * records / step
    expected = MULTIPLIER * NORM / sqrt(nodes)
    assert mean_of_all.std() == pytest.approx(expected, rel=6 / sqrt(2 * dim))


def test_epsilon_of_poisson_cohorts_is_that_of_dp_accounting() -> None:
    learning = FederatedLearning(FEDERATED["poisson"], noise_multiplier=1.0)
    theirs = PLDAccountant()
    gaussian = dp_accounting.GaussianDpEvent(1.0)
    theirs.compose(dp_accounting.PoissonSampledDpEvent(0.1, gaussian), 50)
    cost = learning.plan(50).cost(1e-3)
    assert cost.epsilon == pytest.approx(theirs.get_epsilon(1e-3), rel=1e-3)
    assert round(cost.epsilon, 2) == 3.31


def test_epsilon_of_uniform_cohorts_counts_both_clients() -> None:
    learning = FederatedLearning(FEDERATED["uniform"], noise_multiplier=1.0)
    assert round(learning.plan(50).cost(1e-3).epsilon, 1) == 16.9
    doubled = replace(learning, noise_multiplier=2.0)
    assert round(doubled.plan(50).cost(1e-3).epsilon, 2) == 3.70


def test_noise_is_shown_with_norm_and_relation() -> None:
    learning = FederatedLearning(FEDERATED["uniform"], noise_multiplier=MULTIPLIER)
    plan = learning.plan(2)
    shown = "noise multiplier 3: standard deviation 0.75 on the sum, clipping norm 0.25"
    assert f"{shown} (replace-one)" in str(dm.privacy.report(plan, 1e-5))
    assert f"{shown} (replace-one)" in str(plan)
    again = dm.privacy.Plan.from_dict(plan.as_dict())
    assert dm.privacy.report(again, 1e-5) == dm.privacy.report(plan, 1e-5)
    assert replace(learning, noise_multiplier=None).plan(2).clipped is None


@pytest.mark.parametrize("name", ["uniform", "records", "poisson"])
def test_a_budget_gives_the_least_noise_multiplier(name: str) -> None:
    learning = FederatedLearning.for_budget(FEDERATED[name], epsilon=2.0, delta=1e-5, rounds=5)
    assert learning.plan(5).cost(1e-5).epsilon == pytest.approx(2.0, rel=1e-5)


def test_all_algorithms_that_clip_convert() -> None:
    from dpmesh.algorithms.registry import REGISTRY

    clipping = [one.example for one in REGISTRY if "noise_multiplier" in vars(one.example)]
    assert len(clipping) >= 6
    for example in clipping:
        assert isinstance(example, Clipping)
        assert example.noise_multiplier is not None
        factor = 2 if example.neighboring_relation == "replace_one" else 1
        assert example.noise_to_sensitivity == example.noise_multiplier / factor


# Files


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
noise_multiplier = 1.1
"""


def experiment(folder: Path, text: str) -> Experiment:
    pytest.importorskip("sklearn")  # whose digits the file names
    (folder / "experiment.toml").write_text(text)
    return Experiment.of(read(folder / "experiment.toml"))


def without_format(text: str) -> str:
    return text.replace("format = 2\n", "")


def test_a_file_of_format_2_is_read(tmp_path: Path) -> None:
    run = experiment(tmp_path, EXPERIMENT).simulate()
    assert "noise multiplier 1.1: standard deviation 1.1 on the sum" in str(run.privacy)


def test_a_file_without_a_format_is_told_the_line_to_type(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"line 25: .*`format = 2`.*`noise_multiplier = 2\.2`"):
        experiment(tmp_path, without_format(EXPERIMENT)).simulate()


CLIENTS = """[algorithm]
kind = "FederatedLearning"
contribution = {kind = "ClientUpdates", steps = 1, sampling_rate = 0.5, sampling = "SAMPLING"}
noise_multiplier = 1.1
"""


@pytest.mark.parametrize(("sampling", "number"), [("poisson", "1.1"), ("uniform", "2.2")])
def test_the_line_follows_the_relation(sampling: str, number: str, tmp_path: Path) -> None:
    head = without_format(EXPERIMENT).partition("[algorithm]")[0]
    text = head.replace('[topology]\nkind = "complete"\n', "")
    with pytest.raises(ValueError, match=f"here `noise_multiplier = {number}`"):
        experiment(tmp_path, text + CLIENTS.replace("SAMPLING", sampling)).simulate()


@pytest.mark.parametrize("noise", ['"none"', "epsilon"])
def test_a_file_that_sets_no_noise_needs_no_format(noise: str, tmp_path: Path) -> None:
    line = "epsilon = 9.0" if noise == "epsilon" else f"noise_multiplier = {noise}"
    text = without_format(EXPERIMENT).replace("noise_multiplier = 1.1", line)
    experiment(tmp_path, text).simulate()


def test_the_line_of_a_sweep_has_all_its_numbers(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")  # whose digits the file names
    settings = read(written(tmp_path, without_format(EXPERIMENT)))
    swept = replace(
        settings,
        content=settings.content | {"sweep": {"algorithm": {"noise_multiplier": [2.0, 0.5]}}},
    )
    cell = swept.replaced({"algorithm.noise_multiplier": 0.5})
    with pytest.raises(ValueError, match=r"`algorithm\.noise_multiplier = \[4\.0, 1\.0\]`"):
        Experiment.of(cell).simulate()


def written(folder: Path, text: str) -> Path:
    (folder / "experiment.toml").write_text(text)
    return folder / "experiment.toml"


def test_a_first_stage_is_told_its_key(tmp_path: Path) -> None:
    text = without_format(EXPERIMENT) + "\n[first_stage]\nnoise_multiplier = 7.0\n"
    with pytest.raises(ValueError, match=r"first_stage.*`noise_to_sensitivity = 7\.0`"):
        experiment(tmp_path, text).simulate()


@pytest.mark.parametrize("stated", ["3", "0", "true", '"2"'])
def test_another_format_is_refused(stated: str, tmp_path: Path) -> None:
    text = EXPERIMENT.replace("format = 2", f"format = {stated}")
    with pytest.raises(ValueError, match="format: wanted 2, got"):
        experiment(tmp_path, text)


def test_a_contract_is_told_the_line_to_type() -> None:
    pytest.importorskip("cryptography")
    from dpmesh.deploy import Contract
    from dpmesh.deploy.signing import SigningKey

    asked = {
        "contract": {"rounds": 1, "public_key": "05" * 32, "deadline": 10.0, "quorum": 3},
        "ranges": {"age": [0, 100]},
        "questions": {"mean": ["age"]},
        "algorithm": {"kind": "RecordSums", "noise_multiplier": 9.0},
        "party": [
            {
                "name": name,
                "signing_key": SigningKey.generate().public.hex(),
                "records": 30,
                "epsilon": 9.0,
                "delta": 1e-5,
            }
            for name in "abc"
        ],
    }
    with pytest.raises(ValueError, match=r"`format = 2`.*`noise_to_sensitivity = 9\.0`"):
        Contract.of(asked)

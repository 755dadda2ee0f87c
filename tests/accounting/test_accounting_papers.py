"""The papers' claims: known values, and refusals where a theorem says nothing."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused import refused
from sampled_calls import fixed_size_epsilon, poisson_epsilon

from dpmesh import accounting
from dpmesh.accounting.papers import NotProved, quantized, without_replacement
from dpmesh_papers.claims import federated, online
from dpmesh_papers.claims.quantized import theorem_1

# The quantized paper, with the schedules P1 and P4 that 40-digit arithmetic was run on:
# alpha_K = (K+1)^-0.9, beta_K = (K+1)^-0.7, C = 1, delta = 1e-5.


def state_sensitivities(iterations: int, sample_size: int, **options: object) -> np.ndarray:
    chosen = {
        "step_size": (iterations + 1) ** -0.9,
        "consensus_step_size": (iterations + 1) ** -0.7,
        "mode": "paper",
        "smoothness": 1.0,
        **options,
    }
    return quantized.sensitivities(
        iterations, gradient_bound=1.0, sample_size=sample_size, **chosen
    )


def noise_stds(iterations: int, zeta: float) -> np.ndarray:
    return np.arange(2, iterations + 2.0) ** zeta


@pytest.mark.parametrize(
    ("iterations", "sample_size", "options", "known"),
    [
        (100, 50, {}, {1: 3.141526730e-4, 2: 6.158855117e-4, 100: 0.007805596618}),
        (100, 50, {"mode": "public_point", "smoothness": math.inf}, {100: 0.007805596618}),
        (2000, 639, {}, {2000: 3.421571645e-4}),
        (100, 50, {"mode": "safe"}, {2: 6.208201068e-4, 100: 0.01200246585}),
        (2000, 639, {"mode": "safe"}, {2000: 4.377218714e-4}),
    ],
)
def test_quantized_sensitivities(
    iterations: int, sample_size: int, options: dict[str, object], known: dict[int, float]
) -> None:
    deltas = state_sensitivities(iterations, sample_size, **options)
    for k, value in known.items():
        assert deltas[k - 1] == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize(
    ("iterations", "sample_size", "epsilon", "mu", "exact"),
    [
        (100, 50, 3.072701821, 0.05194198538, 0.1668379843),
        (2000, 639, 3.084395895, 0.009986007778, 0.02717701854),
    ],
)
def test_quantized_theorem_1_and_the_exact_epsilon(
    iterations: int, sample_size: int, epsilon: float, mu: float, exact: float
) -> None:
    deltas, stds = state_sensitivities(iterations, sample_size), noise_stds(iterations, 0.05)
    claimed = theorem_1(target_delta=1e-5, sensitivities=deltas, noise_stds=stds)
    assert claimed == pytest.approx(epsilon, rel=1e-9)
    assert accounting.gdp_mu(stds / deltas) == pytest.approx(mu, rel=1e-9)
    assert accounting.gdp_epsilon(delta=1e-5, mu=mu) == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize(
    ("iterations", "sample_size", "mu", "exact"),
    [(100, 50, 0.07228381343, 0.2392132167), (2000, 639, 0.01242559431, 0.03464885742)],
)
def test_quantized_safe_mode(iterations: int, sample_size: int, mu: float, exact: float) -> None:
    deltas = state_sensitivities(iterations, sample_size, mode="safe")
    found = accounting.gdp_mu(noise_stds(iterations, 0.05) / deltas)
    assert found == pytest.approx(mu, rel=1e-9)
    assert accounting.gdp_epsilon(delta=1e-5, mu=found) == pytest.approx(exact, rel=1e-8)


def test_quantized_refuses_large_iterations_where_the_classical_formula_fails() -> None:
    deltas, stds = state_sensitivities(100, 1), noise_stds(100, 0.1)
    with pytest.raises(NotProved, match=r"an epsilon below 1 in each iteration, got 1\.576"):
        theorem_1(target_delta=1e-5, sensitivities=deltas, noise_stds=stds)
    mu = accounting.gdp_mu(stds / deltas)
    assert mu == pytest.approx(2.121706435, rel=1e-9)
    assert accounting.gdp_epsilon(delta=1e-5, mu=mu) == pytest.approx(10.75440902, rel=1e-9)
    # composed classically it would be smaller than the truth
    classical = mu * without_replacement.classical_noise_to_sensitivity(1e-5)
    assert classical == pytest.approx(10.27925450, rel=1e-9)


def test_quantized_paper_mode_is_proved_up_to_a_smoothness() -> None:
    """Where step_size * smoothness is 2 (1 - consensus_step_size): 0.25."""
    steps = {"step_size": 2.0, "consensus_step_size": 0.75}
    assert state_sensitivities(3, 5, **steps, smoothness=0.25).size == 3
    with pytest.raises(NotProved, match=r"= 0\.5; got 0\.52"):
        state_sensitivities(3, 5, **steps, smoothness=0.26)


def test_quantized_gdp_curve_and_classical_formula() -> None:
    assert accounting.gdp_delta(epsilon=1.0, mu=1.0) == pytest.approx(0.1269367375, rel=1e-9)
    assert accounting.gdp_epsilon(delta=1e-5, mu=1.0) == pytest.approx(4.377178096, rel=1e-9)
    assert accounting.gdp_epsilon(delta=1e-5, mu=0.5) == pytest.approx(1.993091404, rel=1e-9)
    constant = without_replacement.classical_noise_to_sensitivity(1e-5)
    assert constant == pytest.approx(4.844805263, rel=1e-9)
    assert accounting.gdp_epsilon(delta=1e-5, mu=1 / constant) == pytest.approx(
        0.7509769569, rel=1e-9
    )


@given(
    st.integers(1, 200),
    st.floats(0.001, 0.5),
    st.floats(0.01, 1),
    st.integers(1, 100),
    st.floats(0.01, 100),
)
def test_safe_mode_is_never_below_the_paper(
    iterations: int, step: float, consensus: float, sample_size: int, smoothness: float
) -> None:
    shared = {
        "step_size": step,
        "consensus_step_size": consensus,
        "gradient_bound": 2.0,
        "sample_size": sample_size,
    }
    public = quantized.sensitivities(iterations, mode="public_point", **shared)
    safe = quantized.sensitivities(iterations, mode="safe", smoothness=smoothness, **shared)
    unknown = quantized.sensitivities(iterations, mode="safe", **shared)
    assert np.all(public <= safe * (1 + 1e-12))
    assert np.all(safe <= unknown * (1 + 1e-12))
    assert unknown[-1] <= step * 2.0 / consensus * (1 + 1e-12)


@pytest.mark.parametrize(
    ("mode", "smoothness"), [("safe", math.inf), ("safe", 2.0), ("public_point", 2.0), ("paper", 2)]
)
def test_a_state_at_a_time_is_as_all_together(mode: quantized.Mode, smoothness: float) -> None:
    constants = {**QUANTIZED, "mode": mode, "smoothness": smoothness}
    one, many = 0.0, []
    for _ in range(30):
        one = quantized.next_sensitivity(one, **constants)
        many.append(one)
    np.testing.assert_array_equal(quantized.sensitivities(30, **constants), many)


# The federated paper


def theorem(epsilon: float, sampling: federated.Sampling, **options: object) -> float:
    clients = 1000 if sampling == "uniform" else 500
    arguments = {"sampling_rate": 0.05, "rounds": 30, "clipping_norm": 0.3, **options}
    return federated.theorem_noise(
        target_epsilon=epsilon, target_delta=clients**-1.1, sampling=sampling, **arguments
    ).noise_std


@pytest.mark.parametrize(("sampling", "least"), [("uniform", 5.50), ("poisson", 4.88)])
def test_the_theorems_refuse_small_budgets(sampling: federated.Sampling, least: float) -> None:
    assert theorem(least + 0.01, sampling) > 0
    with pytest.raises(NotProved, match=r"no lambda in \(0, 1\) satisfies both conditions"):
        theorem(least - 0.02, sampling)


@pytest.mark.slow
@given(st.floats(6, 12), st.sampled_from(["uniform", "poisson"]))
def test_the_theorems_noise_keeps_its_budget(epsilon: float, sampling: federated.Sampling) -> None:
    noise = theorem(epsilon, sampling)
    assert theorem(epsilon + 0.5, sampling) <= noise * (1 + 1e-12)
    assert theorem(epsilon, sampling, clipping_norm=0.6) == pytest.approx(2 * noise)
    options = {"count": 30, "accountant": "rdp"}
    if sampling == "uniform":
        spent = fixed_size_epsilon(1000**-1.1, 0.05, noise / 0.6, **options)
    else:
        spent = poisson_epsilon(500**-1.1, 0.05, noise / 0.3, **options)
    assert spent < epsilon


# The paper on SGD without replacement


def test_without_replacement_sensitivity_is_that_of_the_largest_step() -> None:
    arguments = {"lipschitz": 1.0, "batch_size": 50}
    found = without_replacement.sensitivity([0.2, 0.1], smoothness=2.5, **arguments)
    assert found == pytest.approx(2 * 0.2 / 50)
    with pytest.raises(NotProved, match=r"1 / \(2 smoothness\) = 0\.1666, got 0\.2"):
        without_replacement.sensitivity([0.2, 0.1], smoothness=3.0, **arguments)
    rounded = np.sqrt(2) ** 2 / 4  # the logistic loss on records of norm 1 with a constant: 1 / 2
    assert rounded > 0.5
    assert without_replacement.sensitivity(1.0, smoothness=rounded, **arguments) == 2 / 50
    with pytest.raises(NotProved, match=r"= 1, got 1\.001"):
        without_replacement.sensitivity(1 + 1e-9, smoothness=rounded, **arguments)


def test_without_replacement_noise_of_the_paper() -> None:
    delta = 1 / 60000**2
    noise = without_replacement.classical_noise_std(
        target_epsilon=1.0, target_delta=delta, sensitivity=2 * 0.1 / 50
    )
    assert noise == pytest.approx(0.026669739, rel=1e-7)
    exact = accounting.analytic_gaussian_noise_to_sensitivity(
        target_epsilon=1.0, target_delta=delta
    )
    assert exact == pytest.approx(5.7050377, rel=1e-7)


# The online paper


def test_the_unnoised_regularizer_costs_e_times_epsilon_at_first() -> None:
    """Step 6 as printed, two values of the first example, the same broadcasts."""
    phi, steps, w, losses = 0.5, 1 / (0.5 * np.arange(1, 101)), np.zeros(2), []
    broadcasts = np.random.default_rng(0).normal(size=steps.size)
    for t, (step, b) in enumerate(zip(steps, broadcasts, strict=True)):
        gradients = np.array([-1.0, 1.0]) if t == 0 else np.zeros(2)
        w = b - step * (phi * w + gradients)
        losses.append(abs(w[1] - w[0]) / (2 * step))  # over the noise's scale, of epsilon 1
    factors = online.unnoised_regularizer_factors(steps, phi)
    assert sum(losses) == pytest.approx(factors[0]) == pytest.approx(math.e)
    assert np.all(np.diff(factors) < 0)
    assert factors[-1] == 1
    # a constant step never damps it
    constant = online.unnoised_regularizer_factors(np.full(10_000, 0.5), 1.9)
    assert constant[0] == pytest.approx(1 / (1 - 0.95))


QUANTIZED = {
    "step_size": 0.1,
    "consensus_step_size": 0.5,
    "gradient_bound": 1.0,
    "sample_size": 5,
    "mode": "safe",
}


test_bad_input_is_named = refused(
    (
        lambda: quantized.sensitivities(2, **{**QUANTIZED, "sample_size": [5, 0]}),
        "sample_size: wanted integers of at least 1, got 0",
    ),
    (
        lambda: quantized.sensitivities(9, **{**QUANTIZED, "mode": "paper"}),
        "smoothness: Lemma 2 leaves out",
    ),
    (
        lambda: quantized.next_sensitivity(0.1, **{**QUANTIZED, "sample_size": 0}),
        "sample_size: wanted an integer of at least 1, got 0",
    ),
    (
        lambda: quantized.next_sensitivity(0.1, **{**QUANTIZED, "mode": "paper"}),
        "smoothness: Lemma 2 leaves out",
    ),
    (
        lambda: theorem_1(target_delta=1e-5, sensitivities=[1.0], noise_stds=[1.0, 2.0]),
        "noise_stds: wanted one for each",
    ),
    (
        lambda: theorem_1(target_delta=1e-5, sensitivities=[1.0], noise_stds=[9.0], decay=1),
        "decay: wanted a number great",
    ),
    (
        lambda: theorem_1(target_delta=1e-5, sensitivities=[1.0], noise_stds=[9.0], decay=2000),
        "decay: wanted a number whose",
    ),
    (
        lambda: without_replacement.sensitivity([], lipschitz=1, batch_size=1, smoothness=1),
        "step_size: wanted at least 1 step",
    ),
    (
        lambda: without_replacement.classical_noise_std(
            target_epsilon=0.5, target_delta=1e-5, sensitivity=0
        ),
        "sensitivity: wanted a finite number greater than 0, got 0",
    ),
    (lambda: online.unnoised_regularizer_factors([], 1), "step_sizes: wanted one step for"),
)

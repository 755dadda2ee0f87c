"""Every oracle value is checked here."""

from __future__ import annotations

import math
import re
from importlib.metadata import version

import dp_accounting
import numpy as np
import oracles_federated  # noqa: F401 (registers its checks)
import pytest
from dp_accounting.rdp import rdp_privacy_accountant as internals
from oracle_checks import CHECKS, ORACLES, Oracle, Values, check, delta_of, laplace_cost
from scipy import special

from dpmesh import accounting, audit
from dpmesh.accounting.papers import without_replacement
from dpmesh.audit.one_run import epsilon_lower_bound, p_value
from dpmesh.audit.statistics import Tally, lower_bound, rate_limits
from dpmesh_papers.bounds.online import OnlineRun, laplace_noise, regret
from dpmesh_papers.claims import online


def marks_of(oracle: Oracle) -> tuple[pytest.MarkDecorator, ...]:
    """A published sample size has thousands of pairs to integrate: a second and more."""
    if re.match(r"federated\.poisson\.(divided_by_random_S|S_revealed)", oracle["id"]):
        return (pytest.mark.slow,)
    return ()


@pytest.mark.parametrize(
    "oracle", [pytest.param(oracle, id=oracle["id"], marks=marks_of(oracle)) for oracle in ORACLES]
)
def test_oracle(oracle: Oracle) -> None:
    patterns = [pattern for pattern in CHECKS if re.match(pattern, oracle["id"])]
    assert len(patterns) == 1, f"one check for each oracle, not {patterns}"
    got = CHECKS[patterns[0]](oracle)
    tolerance = max(oracle["rel_tol"], 5e-8)  # the oracles carry 8 significant digits
    assert got.keys() <= oracle["output"].keys()
    if "divided_by_random_S" in oracle["id"]:
        tolerance += 1e-6  # the oracle's grid, and ours, each err by some 1e-6, ours upwards
    for name, value in got.items():
        assert value == pytest.approx(oracle["output"][name], rel=tolerance), name


def test_no_check_is_left_over() -> None:
    for pattern in CHECKS:
        assert any(re.match(pattern, oracle["id"]) for oracle in ORACLES), pattern


# Rényi curves


@check(r"rdp\.poisson\.dp_accounting_0_6_0")
def _(oracle: Oracle) -> Values:
    if version("dp-accounting") != "0.6.0":
        pytest.skip("the differences of dp-accounting 0.6.0")
    q, sigma, alpha = oracle["inputs"].values()
    return {"rdp": internals._compute_rdp_poisson_subsampled_gaussian(q, sigma, [alpha])[0]}


@check(r"rdp\.poisson\.q")
def _(oracle: Oracle) -> Values:
    q, sigma, alpha = oracle["inputs"].values()
    curve = accounting.rdp_poisson_gaussian(
        sampling_rate=q, noise_to_sensitivity=sigma, neighboring_relation="add_remove", orders=alpha
    )
    return {"rdp": curve[0]}


@check(r"rdp\.wor\.")
def _(oracle: Oracle) -> Values:
    q, sigma, alpha = oracle["inputs"].values()
    bounds = {"t27": "theorem_27", "t9": "theorem_9", "symmetrised_pair": "dominating_pair"}
    return {
        name: accounting.rdp_fixed_size_gaussian(
            sampling_rate=q,
            noise_to_sensitivity=sigma,
            neighboring_relation="replace_one",
            bound=bound,
            orders=alpha,
        )[0]
        for name, bound in bounds.items()
    }


# Gaussian releases, and the paper on SGD without replacement


@check(r"analytic_gauss\.eps")
def _(oracle: Oracle) -> Values:
    return {
        "epsilon": accounting.gdp_epsilon(delta=1e-5, mu=1 / oracle["inputs"]["sigma_over_sens"])
    }


@check(r"analytic_gauss\.sigma")
def _(oracle: Oracle) -> Values:
    inputs = oracle["inputs"]
    found = accounting.analytic_gaussian_noise_to_sensitivity(
        target_epsilon=inputs["eps"], target_delta=inputs["delta"]
    )
    return {"sigma_over_sens": found}


@check(r"without_replacement\.true_delta_of_paper_sigma")
def _(oracle: Oracle) -> Values:
    multiplier = without_replacement.classical_noise_to_sensitivity(delta_of(oracle))
    return {"delta_true": accounting.gdp_delta(epsilon=1.0, mu=1 / multiplier)}


@check(r"without_replacement\.true_eps_of_paper_sigma")
def _(oracle: Oracle) -> Values:
    multiplier = without_replacement.classical_noise_to_sensitivity(delta_of(oracle))
    return {"epsilon": accounting.gdp_epsilon(delta=delta_of(oracle), mu=1 / multiplier)}


@check(r"without_replacement\.one_vs_all")
def _(oracle: Oracle) -> Values:
    models, delta = oracle["inputs"]["k"], delta_of(oracle)
    multiplier = without_replacement.classical_noise_to_sensitivity(delta)
    found = {
        "epsilon": accounting.gdp_epsilon(
            delta=delta, mu=accounting.gdp_mu(multiplier, count=models)
        )
    }
    if "c" in oracle["output"]:
        return {**found, "c": multiplier}
    single = accounting.analytic_gaussian_noise_to_sensitivity(
        target_epsilon=1.0, target_delta=delta
    )
    return {**found, "sigma_over_sens_for_total_eps1": math.sqrt(models) * single}


@check(r"without_replacement\.convention")
def _(oracle: Oracle) -> Values:
    if version("dp-accounting") != "0.6.0":
        pytest.skip("the differences of dp-accounting 0.6.0")
    found = {}
    for name, relation in (
        ("add_remove", dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE),
        ("replace_one", dp_accounting.NeighboringRelation.REPLACE_ONE),
    ):
        for kind, accountant in (
            ("PLD", dp_accounting.pld.PLDAccountant(relation)),
            ("RDP", dp_accounting.rdp.RdpAccountant(neighboring_relation=relation)),
        ):
            accountant.compose(dp_accounting.GaussianDpEvent(2.0))
            found[f"{kind}_{name}"] = accountant.get_epsilon(oracle["inputs"]["delta"])
    return found


def printed_steps(oracle: Oracle, canary: int, steps: int, radius: float) -> float:
    """A local model after steps of eta_t = 1/(a lam t) with the logistic loss, from 0."""
    lam, a, b = (oracle["inputs"][name] for name in ("lam", "a", "b"))
    labels = [np.array([1] * 24 + [-1] * 24 + [canary]), np.ones(b), np.ones(b)]
    w = 0.0
    for t, y in enumerate(labels[:steps], start=1):
        gradient = np.sum(-y * special.expit(-y * w)) / b + lam * w
        w = float(np.clip(w - 2 * gradient / (a * lam * t), -radius, radius))
    return w


def distance(oracle: Oracle, steps: int, radius: float) -> tuple[float, float]:
    """Half of what the canary's label moves it by, and Lemma 4's bound with L = 1 + lam R = 2."""
    inputs = oracle["inputs"]
    one, other = (printed_steps(oracle, canary, steps, radius) for canary in (1, -1))
    bound = 2 / (inputs["a"] * inputs["lam"]) * 2 / inputs["b"]
    return abs(one - other) / 2, bound


@check(r"without_replacement\.strongly_convex\.counterexample$")
def _(oracle: Oracle) -> Values:
    half, bound = distance(oracle, 2, math.inf)
    delta = 1 / 60_000**2
    mu = half / bound / without_replacement.classical_noise_to_sensitivity(delta)
    return {
        "claimed_bound": bound,
        "half_distance": half,
        "ratio": half / bound,
        "epsilon_true_if_claim_eps1": accounting.gdp_epsilon(delta=delta, mu=mu),
    }


@check(r"without_replacement\.strongly_convex\.counterexample_projected")
def _(oracle: Oracle) -> Values:
    half, bound = distance(oracle, 3, oracle["inputs"]["R"])
    return {"half_distance_after_3": half, "ratio": half / bound}


# Audits


@check(r"audit\.cp\.")
def _(oracle: Oracle) -> Values:
    inputs = oracle["inputs"]
    error = (1 - inputs["joint_conf"]) / 2
    tally = Tally(inputs["k"], inputs["n"], inputs["k0"], inputs["n0"])
    claim = audit.EpsilonClaim(1.0, delta=inputs["delta"])
    return {
        "tpr_low": float(rate_limits(inputs["k"], inputs["n"], error)[0]),
        "fpr_high": float(rate_limits(inputs["k0"], inputs["n0"], error)[1]),
        "eps_lb": lower_bound(claim, tally, inputs["joint_conf"]),
    }


@check(r"audit\.gdp\.")
def _(oracle: Oracle) -> Values:
    inputs = oracle["inputs"]
    tally = Tally(inputs["n"] - inputs["fn"], inputs["n"], inputs["fp"], inputs["n0"])
    return {"mu_lb": lower_bound(audit.GaussianClaim(1.0), tally, inputs["joint_conf"])}


@check(r"audit\.one_run\.")
def _(oracle: Oracle) -> Values:
    inputs = oracle["inputs"]
    run = {
        "canaries": inputs["m"],
        "guesses": inputs["r"],
        "correct": inputs["v"],
        "delta": inputs["delta"],
    }
    return {
        "eps_lb": epsilon_lower_bound(**run, confidence=inputs["confidence"]),
        "p_value_at_eps1": p_value(1.0, **run),
    }


# The online paper


@check(r"online\.bug_multiplier\.(t\d|phi2lam)")
def _(oracle: Oracle) -> Values:
    inputs, lambda_ = oracle["inputs"], 0.3
    phi = {"lambda": lambda_, "2 lambda": 2 * lambda_}[inputs["phi"]]
    steps = 1 / (lambda_ * np.arange(1, 60))
    factors = online.unnoised_regularizer_factors(steps, phi)
    return {"multiplier": factors[inputs["release_index"] - 1]}


@check(r"online\.bug_multiplier\.sqrt")
def _(oracle: Oracle) -> Values:
    steps = 1 / (2 * np.sqrt(np.arange(1, 200)))
    factors = online.unnoised_regularizer_factors(steps, oracle["inputs"]["phi"])
    return {"multiplier": factors[0]}


@check(r"online\.laplace_vector")
def _(oracle: Oracle) -> Values:
    inputs = oracle["inputs"]
    coordinate = inputs["n"] / inputs["eps_pure"]
    found = laplace_cost(delta=inputs["delta"], noise_to_sensitivity=coordinate, count=inputs["n"])
    return {"epsilon": found}


@check(r"online\.l1_projection_counterexample")
def _(oracle: Oracle) -> Values:
    line = np.array([math.cos(math.pi / 8), math.sin(math.pi / 8)])
    a, b = (np.array(oracle["inputs"][name], dtype=float) for name in "ab")
    projected = line * (line @ (a - b))
    after = float(np.abs(projected).sum())
    return {"l1_before": float(np.abs(a - b).sum()), "l1_after": after}


@check(r"online\.regret\.corrected_strongly_convex")
def _(oracle: Oracle) -> Values:
    given = oracle["inputs"]
    noise = laplace_noise(given["eps"], given["n"], given["L"])
    run = OnlineRun(
        nodes=given["m"],
        dim=given["n"],
        rounds=given["T"],
        lipschitz=given["L"],
        diameter=2.0,
        strong_convexity=given["lam"],
        noise=noise,
    )
    return {"bound": regret(run)}

"""Every oracle value of privacy is checked here, or said to be checked elsewhere."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize_scalar

from dpmesh.privacy import accounting
from dpmesh.privacy.accounting.papers import federated, online, without_replacement

ORACLES = json.loads((Path(__file__).parent / "data" / "oracles.json").read_text())["oracles"]

Oracle = dict[str, Any]
Values = dict[str, float]
CHECKS: dict[str, Callable[[Oracle], Values]] = {}

ELSEWHERE = {
    r"audit\.": "tests of the audit",
    r"federated\.poisson\.divided_by_random_S": "an attack on a fault that the code does not have",
    r"federated\.poisson\.S_revealed": "the same",
    r"federated\.lemma[23]\.": "steps of the lemmas' proofs: no code of ours rests on them",
    r"rdp\.poisson\.dp_accounting_0_6_0": "test_accounting_renyi: what dp-accounting returns",
    r"without_replacement\.convention": "test_accounting_renyi: what dp-accounting returns",
    r"without_replacement\.strongly_convex": "tests of that algorithm's step sizes",
    r"online\.l1_projection_counterexample": "an instance of l1_projection_factor.n2",
    r"online\.regret": "tests of the regret bounds",
}


def check(pattern: str) -> Callable[[Callable[[Oracle], Values]], Callable[[Oracle], Values]]:
    def register(function: Callable[[Oracle], Values]) -> Callable[[Oracle], Values]:
        CHECKS[pattern] = function
        return function

    return register


@pytest.mark.parametrize("oracle", ORACLES, ids=lambda oracle: oracle["id"])
def test_oracle(oracle: Oracle) -> None:
    patterns = [p for p in (*CHECKS, *ELSEWHERE) if re.match(p, oracle["id"])]
    assert len(patterns) == 1, f"one check for each oracle, not {patterns}"
    if patterns[0] in ELSEWHERE:
        pytest.skip(ELSEWHERE[patterns[0]])
    got = CHECKS[patterns[0]](oracle)
    tolerance = max(oracle["rel_tol"], 5e-8)  # the oracles carry 8 significant digits
    assert got.keys() <= oracle["output"].keys()
    for name, value in got.items():
        assert value == pytest.approx(oracle["output"][name], rel=tolerance), name


def test_no_check_is_left_over() -> None:
    for pattern in (*CHECKS, *ELSEWHERE):
        assert any(re.match(pattern, oracle["id"]) for oracle in ORACLES), pattern


def delta_of(oracle: Oracle) -> float:
    delta, inputs = oracle["inputs"]["delta"], oracle["inputs"]
    if delta == "N^-1.1":
        return inputs["N"] ** -1.1
    if isinstance(delta, str) and "/" in delta:
        size = int(delta.removeprefix("1/").removesuffix("^2"))
        return 1 / size**2
    return float(delta)


# The federated paper


def table(oracle: Oracle, sampling: federated.Sampling) -> accounting.RdpGuarantee:
    inputs = oracle["inputs"]
    return federated.table_epsilon(
        delta_of(oracle),
        sampling_rate=inputs["tau"],
        noise_multiplier=inputs["noise_multiplier"],
        rounds=inputs["T"],
        sampling=sampling,
    )


@check(r"federated\.poisson\.paper")
def _(oracle: Oracle) -> Values:
    found = table(oracle, "poisson")
    return {"epsilon": found.epsilon, "order": found.order}


@check(r"federated\.uniform\.paper")
def _(oracle: Oracle) -> Values:
    found = table(oracle, "uniform")
    printed = oracle.get("paper_prints")
    assert printed is None or abs(found.epsilon - printed) < 0.01
    return {"epsilon": found.epsilon, "order": found.order}


def converted(oracle: Oracle, orders: tuple[float, ...], curve: Any, **options: Any) -> Values:
    inputs = oracle["inputs"]
    rdp = curve(
        inputs["tau"], inputs["noise_multiplier"], count=inputs["T"], orders=orders, **options
    )
    found = accounting.rdp_epsilon(delta_of(oracle), rdp, orders=orders)
    return {"epsilon": found.epsilon, "order": found.order}


@check(r"federated\.poisson\.rdp_new_conversion")
def _(oracle: Oracle) -> Values:
    curve = accounting.rdp_poisson_gaussian
    return converted(oracle, federated.POISSON_ORDERS, curve, neighboring_relation="add_remove")


@check(r"federated\.uniform\.rdp_new_conversion")
def _(oracle: Oracle) -> Values:
    return converted(
        oracle,
        federated.UNIFORM_ORDERS,
        accounting.rdp_fixed_size_gaussian,
        neighboring_relation="replace_one",
        bound="theorem_27",
    )


def tight(oracle: Oracle, sampling: str, noise_multiplier: float) -> float:
    inputs = oracle["inputs"]
    epsilon, relation = {
        "poisson": (accounting.poisson_gaussian_epsilon, "add_remove"),
        "uniform": (accounting.fixed_size_gaussian_epsilon, "replace_one"),
    }[sampling]
    return epsilon(
        delta_of(oracle),
        inputs["tau"],
        noise_multiplier,
        neighboring_relation=relation,
        count=inputs["T"],
        accountant="pld",
    )


@check(r"federated\.poisson\.tight")
def _(oracle: Oracle) -> Values:
    return {"epsilon": tight(oracle, "poisson", oracle["inputs"]["noise_multiplier"])}


@check(r"federated\.uniform\.tight_upper")
def _(oracle: Oracle) -> Values:
    return {"epsilon": tight(oracle, "uniform", oracle["inputs"]["noise_multiplier"])}


@check(r"federated\.uniform\.if_std_is_z_times_L")
def _(oracle: Oracle) -> Values:
    half = oracle["inputs"]["noise_multiplier"] / 2
    return {
        "epsilon_upper": tight(oracle, "uniform", half),
        "epsilon_lower": tight(oracle, "poisson", half),
    }


def of_theorem(oracle: Oracle, nu: float) -> float:
    """The noise multiplier of a noise on the sum."""
    sensitivity = 2 if oracle["inputs"]["sampling"] == "uniform" else 1
    return nu / (sensitivity * oracle["inputs"]["L"])


@check(r"federated\.theorem\.")
def _(oracle: Oracle) -> Values:
    inputs = oracle["inputs"]
    found = federated.theorem_noise(
        inputs["epsilon"],
        delta_of(oracle),
        sampling_rate=inputs["tau"],
        rounds=inputs["T"],
        clipping_norm=inputs["L"],
        sampling=inputs["sampling"],
    )
    return {"nu": found.noise_std, "lambda_star": found.lambda_, "alpha": found.order}


@check(r"federated\.theorem_true_eps\.")
def _(oracle: Oracle) -> Values:
    inputs = oracle["inputs"]
    return {"epsilon": tight(oracle, inputs["sampling"], of_theorem(oracle, inputs["nu"]))}


@check(r"federated\.theorem_unconstrained\.")
def _(oracle: Oracle) -> Values:
    # the closed form with its conditions ignored costs more than it promises
    inputs = oracle["inputs"]
    factor = 14 if inputs["sampling"] == "uniform" else 2

    def nu_at(lambda_: float) -> float:
        spent = -math.log(delta_of(oracle)) / (1 - lambda_) + inputs["epsilon"]
        composed = math.sqrt(factor * inputs["T"] / lambda_ * spent)
        return inputs["tau"] * inputs["L"] / inputs["epsilon"] * composed

    nu = nu_at(minimize_scalar(nu_at, bounds=(0.01, 0.99), method="bounded").x)
    multiplier = of_theorem(oracle, nu)
    lower, upper = tight(oracle, "poisson", multiplier), tight(oracle, "uniform", multiplier)
    assert lower > inputs["epsilon"]
    if inputs["sampling"] == "poisson":
        upper = lower
    return {"nu": nu, "true_epsilon_lower": lower, "true_epsilon_upper": upper}


@check(r"federated\.nu_needed\.")
def _(oracle: Oracle) -> Values:
    inputs, output = oracle["inputs"], oracle["output"]
    uniform = inputs["sampling"] == "uniform"
    orders = federated.UNIFORM_ORDERS if uniform else federated.POISSON_ORDERS

    def curve(multiplier: float) -> np.ndarray:
        if uniform:
            return accounting.rdp_fixed_size_gaussian(
                inputs["tau"],
                multiplier,
                neighboring_relation="replace_one",
                bound="theorem_27",
                count=inputs["T"],
                orders=orders,
            )
        return accounting.rdp_poisson_gaussian(
            inputs["tau"],
            multiplier,
            neighboring_relation="add_remove",
            count=inputs["T"],
            orders=orders,
        )

    def by_curve(multiplier: float, conversion: str) -> float:
        rdp = curve(multiplier)
        return accounting.rdp_epsilon(
            delta_of(oracle), rdp, orders=orders, conversion=conversion
        ).epsilon

    found = {}
    for name, conversion in [("nu_rdp_old", "mironov"), ("nu_rdp_new", "optimal")]:
        guess = of_theorem(oracle, output[name])
        multiplier = accounting.calibrate_noise(
            lambda m, conversion=conversion: by_curve(m, conversion),
            inputs["epsilon"],
            guess=guess,
        )
        found[name] = output[name] * multiplier / guess
    noise = {
        "uniform": accounting.fixed_size_gaussian_noise_multiplier,
        "poisson": accounting.poisson_gaussian_noise_multiplier,
    }[inputs["sampling"]]
    multiplier = noise(
        inputs["epsilon"],
        delta_of(oracle),
        inputs["tau"],
        neighboring_relation="replace_one" if uniform else "add_remove",
        count=inputs["T"],
    )
    found["nu_pld"] = output["nu_pld"] * multiplier / of_theorem(oracle, output["nu_pld"])
    return found


@check(r"federated\.calibrate\.poisson")
def _(oracle: Oracle) -> Values:
    inputs = oracle["inputs"]
    found = accounting.poisson_gaussian_noise_multiplier(
        inputs["epsilon"],
        delta_of(oracle),
        inputs["tau"],
        neighboring_relation="add_remove",
        count=inputs["T"],
    )
    return {"z": found}


@check(r"federated\.calibrate\.uniform")
def _(oracle: Oracle) -> Values:
    inputs = oracle["inputs"]
    found = accounting.fixed_size_gaussian_noise_multiplier(
        inputs["epsilon"],
        delta_of(oracle),
        inputs["tau"],
        neighboring_relation="replace_one",
        count=inputs["T"],
    )
    return {"std_over_2L": found}


# Rényi curves


@check(r"rdp\.poisson\.q")
def _(oracle: Oracle) -> Values:
    q, sigma, alpha = oracle["inputs"].values()
    curve = accounting.rdp_poisson_gaussian(
        q, sigma, neighboring_relation="add_remove", orders=alpha
    )
    return {"rdp": curve[0]}


@check(r"rdp\.wor\.")
def _(oracle: Oracle) -> Values:
    q, sigma, alpha = oracle["inputs"].values()
    bounds = {"t27": "theorem_27", "t9": "theorem_9", "symmetrised_pair": "dominating_pair"}
    return {
        name: accounting.rdp_fixed_size_gaussian(
            q, sigma, neighboring_relation="replace_one", bound=bound, orders=alpha
        )[0]
        for name, bound in bounds.items()
    }


# Gaussian releases, and the paper on SGD without replacement


@check(r"analytic_gauss\.eps")
def _(oracle: Oracle) -> Values:
    return {"epsilon": accounting.gdp_epsilon(1e-5, 1 / oracle["inputs"]["sigma_over_sens"])}


@check(r"analytic_gauss\.sigma")
def _(oracle: Oracle) -> Values:
    inputs = oracle["inputs"]
    found = accounting.analytic_gaussian_noise_multiplier(inputs["eps"], inputs["delta"])
    return {"sigma_over_sens": found}


@check(r"without_replacement\.true_delta_of_paper_sigma")
def _(oracle: Oracle) -> Values:
    multiplier = without_replacement.classical_noise_multiplier(delta_of(oracle))
    return {"delta_true": accounting.gdp_delta(1.0, 1 / multiplier)}


@check(r"without_replacement\.true_eps_of_paper_sigma")
def _(oracle: Oracle) -> Values:
    multiplier = without_replacement.classical_noise_multiplier(delta_of(oracle))
    return {"epsilon": accounting.gdp_epsilon(delta_of(oracle), 1 / multiplier)}


@check(r"without_replacement\.classical_valid_until")
def _(oracle: Oracle) -> Values:
    return {"epsilon_max": without_replacement.classical_breakdown(delta_of(oracle))}


@check(r"without_replacement\.one_vs_all")
def _(oracle: Oracle) -> Values:
    models, delta = oracle["inputs"]["k"], delta_of(oracle)
    multiplier = without_replacement.classical_noise_multiplier(delta)
    found = {"epsilon": accounting.gdp_epsilon(delta, accounting.gdp_mu(multiplier, count=models))}
    if "c" in oracle["output"]:
        return {**found, "c": multiplier}
    single = accounting.analytic_gaussian_noise_multiplier(1.0, delta)
    return {**found, "sigma_over_sens_for_total_eps1": math.sqrt(models) * single}


@check(r"without_replacement\.decision")
def _(oracle: Oracle) -> Values:
    exploration = oracle["inputs"]["p_explore"]
    return {
        "eps_decision": without_replacement.decision_epsilon(exploration),
        "delta_at_eps1": without_replacement.decision_delta(1.0, exploration),
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


@check(r"online\.l1_projection_factor")
def _(oracle: Oracle) -> Values:
    return {"factor": online.l1_projection_factor(oracle["inputs"]["n"])}


@check(r"online\.laplace_vector")
def _(oracle: Oracle) -> Values:
    inputs = oracle["inputs"]
    coordinate = inputs["n"] / inputs["eps_pure"]
    found = accounting.laplace_epsilon(inputs["delta"], coordinate, count=inputs["n"])
    return {"epsilon": found}

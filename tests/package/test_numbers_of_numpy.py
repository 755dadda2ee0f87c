"""Numbers of numpy give the noise and the cost of Python's: theirs wrap around and lose digits."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import dpmesh as dm
from dpmesh import accounting
from dpmesh._epsilons import rounded_up
from dpmesh.accounting.papers import quantized, without_replacement
from dpmesh.algorithms.denoisers import AdaptiveSmoothing
from dpmesh.audit import one_run
from dpmesh.noise import Gaussian, Laplace, Sensitivity
from dpmesh.privacy import Budget, Plan, PoissonSampling, Release
from dpmesh.schedules import at
from dpmesh_papers.bounds import online as online_bounds
from dpmesh_papers.bounds import quantized as quantized_bounds
from dpmesh_papers.claims import federated
from dpmesh_papers.claims.quantized import theorem_1

FEW, MANY = np.uint8(10), np.uint8(200)
TENTH = np.float16(0.1)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (dm.OnlineLearning, {"epsilon": TENTH, "clipping_norm": TENTH, "batch_size": MANY}),
        (dm.WithoutReplacement, {"models": FEW, "copies": MANY, "epsilon": TENTH, "delta": TENTH}),
        (
            dm.WithReplacement,
            {
                "nodes": FEW,
                "records": MANY,
                "noise_multiplier": TENTH,
                "models": MANY,
                "batch_size": FEW,
                "visits": FEW,
            },
        ),
        (
            dm.QuantizedGossip,
            {
                "step_size": TENTH,
                "consensus_step_size": TENTH,
                "sample_size": FEW,
                "noise_std": TENTH,
                "clipping_norm": TENTH,
                "smoothness": np.float16(3),
            },
        ),
        (dm.GradientDescent, {"records": FEW, "noise_multiplier": TENTH, "clipping_norm": TENTH}),
    ],
)
def test_algorithms_are_those_of_the_same_numbers(kind: Any, settings: dict[str, Any]) -> None:
    given, same = kind(**settings), kind(**{name: x.item() for name, x in settings.items()})
    assert given == same
    assert str(given) == str(same)
    assert given.plan(5).releases == same.plan(5).releases
    assert given.plan(5).cost(1e-5) == same.plan(5).cost(1e-5)


def test_noise_is_as_large_as_it_is_said_to_be() -> None:
    """In float16 the product has 1 bit."""
    mechanism = Gaussian(np.float16(1.0), clipping_norm=np.float16(60_000))
    assert mechanism.noise_scale(Sensitivity(8.5e-8, "l2", "tiny"), 1) == 8.5e-8
    sensitivity = Sensitivity(np.float16(0.1), "l2", "a tenth")
    assert Gaussian(1.1).noise_scale(sensitivity, 1) == 1.1 * float(TENTH)


def test_a_budget_is_not_rounded_up() -> None:
    plan = dm.OnlineLearning(epsilon=1.0004).plan(3)
    assert not Budget(np.float16(1.0)).allows(plan)
    assert Budget(np.float16(1.0), delta=np.float16(0.5)).delta == 0.5


def test_the_last_node_that_a_byte_counts_pays() -> None:
    sensitivity = Sensitivity(1.0, "l2", "one")
    release = Release(0, Laplace(np.float32(2.0)), sensitivity, nodes=(np.uint8(255),))
    costs = Plan(
        releases=(release,), neighboring_relation="replace_one", unit="record"
    ).costs_by_node()
    assert costs.tolist() == 255 * [0.0] + [0.5]


def test_schedules_of_ones_own_may_return_them() -> None:
    assert type(at(lambda t: TENTH / t, 1)) is float


LEARNING = {"nodes": FEW, "dim": MANY, "rounds": FEW, "lipschitz": MANY, "diameter": FEW}


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (
            lambda **given: without_replacement.sensitivity(0.001, **given),
            {"lipschitz": MANY, "batch_size": FEW, "smoothness": MANY},
        ),
        (
            without_replacement.classical_noise_std,
            {"target_epsilon": TENTH, "target_delta": TENTH, "sensitivity": MANY},
        ),
        (
            lambda **given: federated.theorem_noise(sampling="uniform", **given),
            {
                "target_epsilon": np.float16(6.1),
                "target_delta": np.float16(1e-4),
                "sampling_rate": np.float16(0.01),
                "rounds": MANY,
                "clipping_norm": TENTH,
            },
        ),
        (
            lambda **given: quantized.next_sensitivity(mode="safe", **given),
            {
                "sensitivity": TENTH,
                "step_size": TENTH,
                "consensus_step_size": TENTH,
                "gradient_bound": MANY,
                "sample_size": FEW,
                "smoothness": np.float16(3.3),
            },
        ),
        (
            lambda **given: theorem_1(sensitivities=[0.001], noise_stds=[1.0], **given),
            {"target_delta": TENTH, "decay": np.uint8(2)},
        ),
        (
            lambda **given: accounting.rdp_epsilon(rdp=accounting.rdp_gaussian(2.0), **given),
            {"delta": TENTH},
        ),
        (
            one_run.p_value,
            {"epsilon": TENTH, "canaries": MANY, "guesses": 20, "correct": 15, "delta": TENTH / 99},
        ),
        (online_bounds.OnlineRun, LEARNING),
        (lambda **given: online_bounds.regret(online_bounds.OnlineRun(**given)), LEARNING),
        (
            quantized_bounds.Powers,
            {"step_size": TENTH, "consensus_step_size": TENTH, "sample_size": FEW, "noise": TENTH},
        ),
        (rounded_up, {"value": TENTH, "digits": FEW}),
        (lambda **given: AdaptiveSmoothing(rounds=3, blocks=(given["length"],)), {"length": MANY}),
        (PoissonSampling, {"rate": np.longdouble(0.1)}),
    ],
)
def test_functions_find_what_they_find_of_the_same_numbers(
    function: Callable[..., Any], arguments: dict[str, Any]
) -> None:
    same = {name: int(x) if x == int(x) else float(x) for name, x in arguments.items()}
    assert repr(function(**arguments)) == repr(function(**same))


class Odd(float):
    """A number that multiplies as it likes."""

    def __mul__(self, other: float) -> float:
        return 0.0

    __rmul__ = __mul__


@pytest.mark.parametrize("kind", [Odd, Fraction, np.longdouble])
def test_other_kinds_of_numbers_are_kept_as_pythons(kind: Any) -> None:
    algorithm = dm.OnlineLearning(epsilon=kind(0.5), clipping_norm=kind(0.5))
    assert algorithm == dm.OnlineLearning(epsilon=0.5, clipping_norm=0.5)
    assert type(algorithm.clipping_norm) is float
    assert algorithm.sensitivity(1) == dm.OnlineLearning(
        epsilon=0.5, clipping_norm=0.5
    ).sensitivity(1)


@pytest.mark.parametrize("name", ["epsilon", "clipping_norm", "step_size"])
@pytest.mark.parametrize("value", [10**400, Fraction(10**400)])
def test_a_number_that_no_float_holds_is_named(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}: wanted a finite number"):
        dm.OnlineLearning(**{name: value})


def test_the_nodes_of_a_release_cannot_be_changed() -> None:
    nodes: Any = [0, 1]
    release = Release(0, Laplace(2.0), Sensitivity(1.0, "l2", "one"), nodes=nodes)
    nodes.append(2)
    assert release.nodes == (0, 1)
    assert hash(release) == hash(Release(0, Laplace(2.0), release.sensitivity, nodes=(0, 1)))

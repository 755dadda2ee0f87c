"""Methods of the benchmark with correlated noise: in time, between partners, or both."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import dpmesh.accounting as accounting
from dpmesh.algorithms import GradientDescent, OnlineLearning
from dpmesh.defaults import network, step_size
from dpmesh.defaults.rule import COMPLETE, STEPS
from dpmesh.keys import Key
from dpmesh.noise import correlated
from dpmesh.privacy import Budget
from dpmesh.privacy.views import EverybodyButPartners
from dpmesh.problems import LinearProblem
from dpmesh.topology import Topology
from dpmesh_papers.benchmark.setting import (
    CLIPPING_NORM,
    PARTNER_MIXINGS,
    PASSES,
    CannotRun,
    Setting,
    Trial,
)

Strategy = type[correlated.CorrelatedStrategy]


def _strategy(
    setting: Setting, kind: Strategy, links: Topology, rounds: int
) -> tuple[correlated.CorrelatedStrategy, Budget]:
    """Return correlated noise for a network, and the budget with its adversary's view."""
    if not issubclass(kind, correlated.BetweenPartners):
        return kind(topology=links, rounds=rounds), setting.budget
    mixings = 1 if links.nodes <= COMPLETE else PARTNER_MIXINGS
    noise = kind(topology=links, rounds=rounds, mixings=mixings, coalition=1)
    return noise, replace(setting.budget, view=EverybodyButPartners(coalition=1))


def _noise_of_models(noise: correlated.CorrelatedStrategy, **uses: int) -> float:
    """Return the standard deviation of the noise that mixing leaves in the models."""
    try:
        deviation = noise.mixed_noise(**uses)
    except ValueError as error:
        raise CannotRun(str(error)) from error
    if noise.correlates_time:
        return deviation
    return sqrt(2) * deviation  # it grows towards the end


def gradient_descent(setting: Setting, kind: Strategy, *, server: bool = False) -> Trial:
    """Descend with correlated noise: on batches in turn if it is correlated in time."""
    problem = setting.pooled if server else setting.problem
    links = network(problem.nodes, key=Key.seeded(0))
    rounds = STEPS + 1
    noise, budget = _strategy(setting, kind, links, rounds)
    batches = min(PASSES, problem.fewest_records) if noise.correlates_time else 1
    uses = STEPS // batches
    multiplier = accounting.analytic_gaussian_noise_to_sensitivity(
        target_epsilon=setting.epsilon, target_delta=setting.delta
    )
    unit = 2 * CLIPPING_NORM / (problem.fewest_records // batches)
    noise_left = _noise_of_models(noise, uses=uses, separation=batches)
    algorithm = GradientDescent(
        records=problem.fewest_records,
        noise_multiplier=2 * multiplier * sqrt(uses),
        step_size=step_size(noise_left * multiplier * unit),
        clipping_norm=CLIPPING_NORM,
        batches=batches,
        noise=noise,
    )
    return Trial(algorithm, problem, links, rounds, budget)


def online_learning(setting: Setting, online: Trial, kind: Strategy) -> Trial:
    """Give a trial of online learning noise that works together, and a step for it."""
    plain, problem, links, rounds, _ = online
    assert isinstance(plain, OnlineLearning)
    assert isinstance(problem, LinearProblem)
    assert links is not None
    noise, budget = _strategy(setting, kind, links, rounds)
    once = replace(plain, step_size=1.0).noise_std(1, problem.dim)
    step = step_size(_noise_of_models(noise) * once, rounds=rounds)
    return Trial(replace(plain, step_size=step, noise=noise), problem, links, rounds, budget)

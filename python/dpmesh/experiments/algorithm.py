"""The algorithm of an experiment: public numbers filled in, noise calibrated to an epsilon."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from dpmesh._validate import instance
from dpmesh.algorithms.base import AN_ALGORITHM, NOISES, Algorithm, AnyAlgorithm
from dpmesh.algorithms.first_stage import require_dense
from dpmesh.privacy.budget import Budget
from dpmesh.settings import Settings
from dpmesh.settings.format import refuse_old_keys, refuse_old_noise
from dpmesh.settings.parts import NUMBERS, SECTIONS, entries
from dpmesh.settings.stage import RULE, Stage
from dpmesh.topology import Topology


def algorithm_of(
    settings: Settings,
    *,
    nodes: int,
    rounds: int,
    delta: float | None,
    problem: Callable[[], Any],
    topology: Callable[[], Topology],
) -> AnyAlgorithm:
    """Return the algorithm that the table [algorithm] describes.

    Public numbers that it, or a part of it, leaves out (`clients`, `records`, `dim`, `rounds`) are
    those of the problem and the run. An ``epsilon`` stands for the noise of any algorithm. A table
    [first_stage] puts a `FirstStage` before it, within that epsilon.

    Raises
    ------
    ValueError
        If a setting does not fit.
    """
    problem, staged = _first_stage(settings, nodes, problem)
    table, kinds = dict(settings.table("algorithm")), SECTIONS["algorithm"]
    maker = settings.maker("algorithm", table, kinds)
    refuse_old_keys(settings, "algorithm", table, maker)
    known, given = entries(maker), {"rounds": rounds}
    of_network: dict[str, Any] = {}
    if "topology" in inspect.signature(maker).parameters:
        if "topology" not in settings.content:
            settings.fail("topology", f"wanted a table [topology] for {maker.__name__}, got none")
        of_network["topology"] = topology()
    gossips = getattr(maker, "travels", None) == "gossip" and "topology" in settings.content
    parts: dict[str, Any] = {"rounds": rounds, "clients": nodes, "topology": None}
    if isinstance(table.get("noise"), dict) and gossips:
        parts["topology"] = topology()
    if {"contribution", "combination"} & table.keys():
        sizes = problem()
        parts |= {"records": int(sizes.records.sum()), "dim": sizes.dim}
    settings = replace(settings, filled=parts)
    if any(_lacks(known, name, table) for name in ("records", "dim")):
        sizes = problem()
        together = bool(of_network)  # secure gossip; else the smallest node's count
        given["records"] = int(sizes.records.sum() if together else sizes.records.min())
        given["dim"] = sizes.dim
    for name in ("records", "dim", "rounds"):
        if _lacks(known, name, table):
            table[name] = given[name]
    make: Callable[..., Any] = partial(
        settings.make, "algorithm", kinds=kinds, nodes=nodes, clients=nodes, **of_network
    )
    if "epsilon" not in table or "epsilon" in known:
        noise = next((name for name in NOISES if _lacks(known, name, table)), None)
        if noise is not None:
            settings.known("algorithm", table, (*known, "kind", "epsilon"))
            of = "; tables in [sweep] replace all of [algorithm]" * ("sweep" in settings.content)
            settings.fail("algorithm", f"wanted epsilon, or {noise}, for {maker.__name__}{of}")
        algorithm = _checked(settings, make(table))
        refuse_old_noise(settings, algorithm)
        return staged(algorithm=algorithm)
    numbers = {name: nodes for name in NUMBERS if name in known and name not in table} | of_network
    return _calibrated(settings, table, maker, make, numbers, rounds, delta, staged)


def _first_stage(
    settings: Settings, nodes: int, problem: Callable[[], Any]
) -> tuple[Callable[[], Any], Callable[..., AnyAlgorithm]]:
    """Return what is learned after the table [first_stage], and what puts the stage before it."""
    if "first_stage" not in settings.content:
        return problem, lambda algorithm: algorithm
    whole = problem()
    settings.call("problem", require_dense, problem=whole)
    table, dim = settings.table("first_stage"), whole.train.dim
    refuse_old_keys(settings, "first_stage", table, Stage)
    stage = settings.make("first_stage", table, SECTIONS["first_stage"])
    public = {"sites": nodes, "records": int(whole.records.sum()), "dim": dim}
    left = whole.centred(np.zeros(dim))
    return lambda: left, partial(settings.call, "first_stage", stage.before, **public)


def _calibrated(
    settings: Settings,
    table: dict[str, Any],
    maker: Any,
    make: Callable[..., Any],
    numbers: dict[str, Any],
    rounds: int,
    delta: float | None,
    staged: Callable[..., AnyAlgorithm],
) -> AnyAlgorithm:
    """Return the algorithm with the noise that the epsilon of its table allows."""
    known = entries(maker)
    noise = next((name for name in NOISES if name in known), None)
    epsilon = settings.convert("algorithm.epsilon", table.pop("epsilon"), float | None)
    own = table.pop("delta", None) if "delta" not in known else table.get("delta")
    if noise is None:
        settings.fail("algorithm.epsilon", "wanted none: it has no noise to calibrate")
    if noise in table:
        settings.fail("algorithm.epsilon", f"wanted either it or {noise}, got both")
    if epsilon is None:
        return staged(algorithm=_checked(settings, make({**table, noise: "none"})))
    delta = settings.convert("algorithm.delta", own, float) if own is not None else delta
    if not delta:
        settings.fail("run.delta", "wanted a positive number such as 1e-5, for Gaussian noise")
    if not hasattr(maker, "for_budget"):
        settings.fail("algorithm.epsilon", "wanted none for a function of one's own")
    plain = {name: value for name, value in table.items() if name != "kind"} | {noise: 1.0}
    public = settings.arguments("algorithm", plain, known, maker.__name__) | numbers
    del public[noise]
    budget: Budget = settings.call("algorithm", Budget, epsilon=epsilon, delta=delta)
    if "first_stage" not in settings.content:
        public = {"epsilon": epsilon, "delta": delta, "rounds": rounds} | public
        return _checked(settings, settings.call("algorithm", maker.for_budget, **public))

    def after_stage(scale: float) -> AnyAlgorithm:
        own = settings.call("algorithm", maker, **public, **{noise: scale})
        return staged(algorithm=own, budget=budget)

    after_stage(1.0)  # whose errors are of other parameters
    try:
        return after_stage(budget.calibrate(after_stage, rounds))
    except ValueError as error:
        settings.fail("first_stage", f'wanted more noise, or "{RULE}", within {budget} ({error})')


def _lacks(known: Mapping[str, Any], name: str, table: Mapping[str, Any]) -> bool:
    """Whether a part requires a number that its table leaves out."""
    return name in known and known[name].required and name not in table


def _checked(settings: Settings, algorithm: Any) -> AnyAlgorithm:
    settings.call("algorithm", partial(instance, "algorithm", algorithm, AN_ALGORITHM, Algorithm))
    made: AnyAlgorithm = algorithm
    return made

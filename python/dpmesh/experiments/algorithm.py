"""The algorithm of an experiment: public numbers filled in, noise calibrated to an epsilon."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from dpmesh._validate import instance
from dpmesh.algorithms.base import AN_ALGORITHM, NOISES, Algorithm, AnyAlgorithm
from dpmesh.settings import Settings
from dpmesh.settings.parts import NUMBERS, SECTIONS, entries
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
    those of the problem and the run. An ``epsilon`` stands for the noise of any algorithm.

    Raises
    ------
    ValueError
        If a setting does not fit.
    """
    table, kinds = dict(settings.table("algorithm")), SECTIONS["algorithm"]
    maker = settings.maker("algorithm", table, kinds)
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
            of = "; tables in [sweep] replace all of [algorithm]" * ("sweep" in settings.content)
            settings.fail("algorithm", f"wanted epsilon, or {noise}, for {maker.__name__}{of}")
        return _checked(settings, make(table))
    numbers = {name: nodes for name in NUMBERS if name in known and name not in table} | of_network
    return _calibrated(settings, table, maker, make, numbers, rounds, delta)


def _calibrated(
    settings: Settings,
    table: dict[str, Any],
    maker: Any,
    make: Callable[..., Any],
    numbers: Mapping[str, Any],
    rounds: int,
    delta: float | None,
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
        return _checked(settings, make({**table, noise: "none"}))
    delta = settings.convert("algorithm.delta", own, float) if own is not None else delta
    if not delta:
        settings.fail("run.delta", "wanted a positive number such as 1e-5, for Gaussian noise")
    if not hasattr(maker, "for_budget"):
        settings.fail("algorithm.epsilon", "wanted none for a function of one's own")
    own_length = {} if "rounds" in known else {"rounds": rounds}
    plain = {name: value for name, value in table.items() if name != "kind"}
    public = settings.arguments("algorithm", {**plain, noise: 1.0}, known, maker.__name__)
    public |= numbers
    del public[noise]
    budget = {"epsilon": epsilon, "delta": delta, **own_length}
    return _checked(settings, settings.call("algorithm", maker.for_budget, **budget, **public))


def _lacks(known: Mapping[str, Any], name: str, table: Mapping[str, Any]) -> bool:
    """Whether a part requires a number that its table leaves out."""
    return name in known and known[name].required and name not in table


def _checked(settings: Settings, algorithm: Any) -> AnyAlgorithm:
    settings.call("algorithm", partial(instance, "algorithm", algorithm, AN_ALGORITHM, Algorithm))
    made: AnyAlgorithm = algorithm
    return made

"""What a contract must fulfil: its guarantee then holds for any rows, by public numbers alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from dpmesh.algorithms import (
    GradientDescent,
    Muffliato,
    OnlineLearning,
    QuantizedGossip,
    WithoutReplacement,
    WithReplacement,
)
from dpmesh.controllers.fixed import FixedController
from dpmesh.privacy.mechanisms import Gaussian, Laplace
from dpmesh.privacy.shown import ROUNDING, rounded_up
from dpmesh.run.arguments import check_records

if TYPE_CHECKING:
    from dpmesh.engines.mesh.contract import Contract

PROVED = (
    GradientDescent,
    Muffliato,
    OnlineLearning,
    QuantizedGossip,
    WithReplacement,
    WithoutReplacement,
)
"""The algorithms of this package whose sensitivity holds for any rows that a node accepts."""


def check(contract: Contract) -> None:
    """Fail unless a contract's guarantee holds among parties who do not trust each other."""
    _check_parties(contract)
    _check_algorithm(contract)
    _check_records(contract)
    _check_costs(contract)


def _check_parties(contract: Contract) -> None:
    settings, terms = contract.settings, contract.terms
    for name in ("name", "signing_key"):
        values = [getattr(party, name) for party in contract.parties]
        if len(set(values)) < len(values):
            settings.fail("party", f"wanted a {name} of its own for each party")
    if terms.quorum > contract.nodes:
        settings.fail("contract.quorum", f"wanted at most {contract.nodes}, the parties")
    if (contract.columns is None) == (terms.features is None):
        settings.fail("contract.features", "wanted features, or a table [ranges]")


def _check_algorithm(contract: Contract) -> None:
    """Refuse an algorithm whose guarantee needs more than the parties can check."""
    algorithm, settings, rounds = contract.algorithm, contract.settings, contract.terms.rounds
    kind = type(algorithm)
    if kind.__module__.startswith("dpmesh.") and kind not in PROVED:
        names = ", ".join(each.__name__ for each in PROVED)
        settings.fail("algorithm", f"wanted one of {names}, got {kind.__name__}")
    if algorithm.travels == "server":
        settings.fail("algorithm", f"wanted one without a server, got {kind.__name__}")
    if (algorithm.neighboring_relation, algorithm.unit) != ("replace_one", "record"):
        settings.fail("algorithm", "wanted replace_one of a record, as counts are public")
    for release in algorithm.plan(rounds).touching:
        if release.mechanism.distribution == "none":
            settings.fail("algorithm", f"wanted noise, got {kind.__name__} without")
        if type(release.mechanism) not in (Gaussian, Laplace):
            wanted = "wanted Gaussian or Laplace noise of each node and round by itself"
            settings.fail("algorithm", f"{wanted}, got {release.mechanism}")
    if isinstance(algorithm, WithoutReplacement):
        if algorithm.calibration == "paper":
            settings.fail("algorithm.calibration", "wanted one that is proved, got 'paper'")
        if not isinstance(algorithm.controller, FixedController):
            settings.fail("algorithm.controller", "wanted one that looks at no data")
    if contract.topology is not None:
        for t in range(min(rounds, 3)):
            if not contract.topology.matrix(t).is_symmetric:
                settings.fail("topology", "wanted a symmetric mixing matrix")


def _check_records(contract: Contract) -> None:
    """Refuse records without a public bound, or too few for the rounds.

    A gradient overflows at a record of norm 1e155, and a node that then stops says that it has one.
    """
    algorithm, settings = contract.algorithm, contract.settings
    bounded = contract.made_up.feature_norm is not None
    if contract.columns is None and not bounded:
        settings.fail("problem.feature_norm", "wanted a public bound on the norm of a record")
    needs_number = getattr(algorithm, "mode", "") == "paper" or np.isfinite(
        getattr(algorithm, "smoothness", np.inf)
    )
    if needs_number and not bounded:
        settings.fail("problem.feature_norm", "wanted a public bound, for this algorithm")
    made_up, rounds = contract.made_up, contract.terms.rounds
    settings.call("contract", check_records, algorithm=algorithm, problem=made_up, rounds=rounds)


def _check_costs(contract: Contract) -> None:
    for party in contract.parties:
        cost = contract.cost(party.delta)
        if cost > party.epsilon * (1 + ROUNDING):
            wanted = f"wanted at least {rounded_up(cost)} for {party.name}, which the plan costs"
            contract.settings.fail("party.epsilon", f"{wanted}, got {party.epsilon:g}")

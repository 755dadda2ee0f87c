"""Checks of a contract: its algorithm, parties, sums, records and epsilons.

`dpmesh.deploy.contract.Contract` calls them when a contract is read. Each check refuses a contract
by a `ValueError` that names the key in its file. All checks use public numbers alone. Under the
contract's assumptions, its guarantee then holds for any rows that other parties send.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dpmesh._epsilons import ROUNDING, rounded_up
from dpmesh.algorithms.adaptive_sums import AdaptiveSums
from dpmesh.algorithms.base import AnyAlgorithm, reason_messages_need_no_trust
from dpmesh.algorithms.calibrated import NO_PROOF_BETWEEN_PARTIES, Calibrated
from dpmesh.algorithms.record_sums import RecordSums
from dpmesh.deploy.terms import Party, Terms
from dpmesh.noise.mechanisms import Mechanism, proof_of
from dpmesh.noise.secure import SecureSum
from dpmesh.noise.secure.mechanism import is_summed
from dpmesh.problems.dense import DenseProblem
from dpmesh.run.prepare import check_records as last_long_enough
from dpmesh.settings import Settings
from dpmesh.settings.parts import SECTIONS, Maker
from dpmesh.statistics.ask import Questions
from dpmesh.topology import Topology

MOST_BITS = 61
"""Most bits of a number in a sum for all parties. Tags are modulo the prime 2^61 - 1."""

SUMS = {kind.__name__: kind for kind in (RecordSums, AdaptiveSums)}
"""Algorithms that answer questions by sums over records, by their names in a contract."""


def algorithm_kinds() -> dict[str, Maker]:
    """Return the makers of the algorithms that a contract can name, by name."""
    return {**SECTIONS["algorithm"], **SUMS}


def check_modules(settings: Settings) -> None:
    """Refuse a network of a Python module that this party did not name: its code would run."""
    named = str(settings.table("problem").get("model", "")).partition(":")[0]
    if named not in ("", settings.module):
        instruction = f"read {named}, and give --module {named} if you want to run its code"
        settings.fail("problem.model", instruction)


def refuse_calibration(settings: Settings) -> None:
    """Refuse a contract that asks for calibrated predictions; name the proof that is missing."""
    for table in ("contract", "algorithm"):
        if settings.table(table).get("calibrate", False):
            settings.fail(f"{table}.calibrate", NO_PROOF_BETWEEN_PARTIES)
    if settings.table("algorithm").get("kind") == Calibrated.__name__:
        settings.fail("algorithm.kind", NO_PROOF_BETWEEN_PARTIES)


def check_parties(settings: Settings, terms: Terms, parties: Sequence[Party]) -> None:
    """Refuse two parties with the same name or key, and a quorum that is not a majority.

    With a quorum of half, two routers could each run half of the parties, in two versions of a run.
    """
    for name in ("name", "signing_key"):
        values = [getattr(party, name) for party in parties]
        if len(set(values)) < len(values):
            settings.fail("party", f"wanted a {name} of its own for each party")
    fewest = len(parties) // 2 + 1
    if not fewest <= terms.quorum <= len(parties):
        requirement = (
            f"wanted more than half of the {len(parties)} parties: {fewest} to {len(parties)}"
        )
        settings.fail("contract.quorum", f"{requirement}, got {terms.quorum}")


def check_algorithm(
    settings: Settings, algorithm: AnyAlgorithm, topology: Topology | None, terms: Terms
) -> None:
    """Refuse an algorithm whose guarantee rests on facts that a party cannot check.

    Such facts are bounds on the messages of others, and a trusted server. Sums are checked by
    `check_sums`.
    """
    kind = type(algorithm)
    if not reason_messages_need_no_trust(algorithm):
        reason = (
            "a party cannot check what other parties send, and no proof of this algorithm's "
            "sensitivity covers any messages of theirs (messages_need_no_trust)"
        )
        settings.fail("algorithm", f"{reason}, got {kind.__name__}")
    for name, problem in algorithm.refused_by_parties().items():
        settings.fail(f"algorithm.{name}", problem)
    if is_summed(algorithm.release_of(0)):
        check_sums(settings, algorithm, terms)
        return
    if algorithm.communication == "server":
        reason = (
            "parties of a contract trust no server with their updates: use "
            'combination = {kind = "SecureAggregation"}, or a gossip algorithm'
        )
        settings.fail("algorithm", f"{reason}, got {kind.__name__}")
    if (algorithm.neighboring_relation, algorithm.unit) != ("replace_one", "record"):
        settings.fail("algorithm", "wanted replace_one of a record, as counts are public")
    for release in settings.call("algorithm", algorithm.plan, rounds=terms.rounds).touching:
        if not release.mechanism.adds_noise:
            settings.fail("algorithm", f"wanted noise, got {kind.__name__} without")
        check_noise(settings, algorithm, release.mechanism)
    if topology is not None:
        for t in range(min(terms.rounds, 3)):
            if not topology.matrix(t).is_symmetric:
                settings.fail("topology", "wanted a symmetric mixing matrix")


def check_noise(settings: Settings, algorithm: AnyAlgorithm, mechanism: Mechanism) -> None:
    """Refuse noise whose guarantee rests on facts that a party cannot check.

    Temporally correlated noise is a matter of one node alone, which adds it to its messages in
    their order. Of pairwise-cancelling noise a node counts the secrets that it shares itself (a
    star), as it cannot check that other parties use theirs.
    """
    joint = mechanism.joint_event
    if joint is None:
        if not proof_of(mechanism):
            requirement = "wanted noise whose class proves the loss that it states (`proof`)"
            settings.fail("algorithm", f"{requirement}, got {mechanism}")
    elif joint.secrets is not None and not joint.claims_star:
        requirement = (
            "wanted star = true: else the proof is for a whole graph of secrets, and no party"
        )
        settings.fail("algorithm.noise", f"{requirement} can check that others still use theirs")
    elif algorithm.communication != "gossip":
        reason = "correlated noise has no proof if a node misses turns: leave out noise"
        settings.fail("algorithm.noise", reason)


def check_questions(settings: Settings, terms: Terms, questions: Questions | None) -> None:
    """Refuse questions together with a model, and an algorithm that does not fit the questions."""
    kind = settings.table("algorithm").get("kind")
    wanted_kind = RecordSums.__name__ if questions is None else questions.algorithm.__name__
    if questions is None or kind != wanted_kind:
        requirement = (
            f"wanted {wanted_kind} for a contract with these [questions], and for no other"
        )
        settings.fail("algorithm.kind", f"{requirement}, got {kind}")
    if questions.rounds > 1 and terms.rounds != questions.rounds:
        requirement = f"wanted {questions.rounds}, the rounds of these questions"
        settings.fail("contract.rounds", f"{requirement}, got {terms.rounds}")
    for key in ("problem", "topology"):
        if settings.table(key):
            settings.fail(key, "questions learn no model; remove it")
    if (terms.features, terms.label) != (None, None):
        settings.fail("contract", "questions have no features and no label; remove them")


def check_network(settings: Settings, classifies: bool, numbers: str) -> None:
    """Refuse a network without a label of classes, or in other numbers than float32."""
    if not classifies:
        settings.fail("contract.label", "wanted a column of categories for a network")
    if numbers != "float32":
        settings.fail("contract.numbers", f"wanted 'float32' for a network, got {numbers!r}")


def check_sums(settings: Settings, algorithm: AnyAlgorithm, terms: Terms) -> None:
    """Refuse secure sums that do not fit the quorum, numbers and topology of a contract.

    Numbers of records are public, so a record is protected under replace-one alone. A client is
    protected under add-or-remove, too: one that does not take part sends its noise alone.

    Raises
    ------
    ValueError
        If they do not fit. The text names the key of the contract.
    """
    first: Any = algorithm.release_of(0)
    first_releases = first if isinstance(first, tuple) else (first,)
    sums_of_round = [release.mechanism.numbers for release in first_releases]
    numbers = sums_of_round[-1]
    most = max(sums.modulus_bits for sums in sums_of_round)
    if algorithm.unit == "record" and algorithm.neighboring_relation != "replace_one":
        settings.fail("algorithm", "wanted replace_one of a record, as counts are public")
    for_all = isinstance(numbers, SecureSum)
    if for_all and most > MOST_BITS:
        requirement = (
            f"wanted sums of at most {MOST_BITS} bits a number, whose total can carry a tag"
        )
        settings.fail("algorithm", f"{requirement}, got {most}")
    if for_all and numbers.sites <= 2 * numbers.dropouts + numbers.colluding:
        requirement = (
            "wanted more parties than 2 dropouts + colluding, so that only one model is sealed"
        )
        settings.fail("algorithm.dropouts", f"{requirement}, got {numbers.sites}")
    if terms.quorum != numbers.fewest_parties:
        requirement = f"wanted {numbers.fewest_parties} for these sums, got {terms.quorum}"
        if not for_all:
            requirement += ": no proof covers sums over neighbours in which a party is missing"
        settings.fail("contract.quorum", requirement)
    linear = settings.table("problem").get("kind", "linear") == "linear"
    if linear and terms.numbers != "float64":
        settings.fail("contract.numbers", f"wanted float64 for these sums, got {terms.numbers}")
    if for_all and settings.table("topology"):
        settings.fail("topology", "secure sums have a server and no topology; remove it")


def check_records(
    settings: Settings, algorithm: AnyAlgorithm, dummy_problem: Any, rounds: int
) -> None:
    """Refuse records without a public bound on their norm, or too few records for the rounds.

    Without a bound, the gradient of a linear model overflows at a record of norm 1e155: the node
    stops, which reveals the record. A gradient of a network that is not finite counts as 0.

    Parameters
    ----------
    settings, algorithm
        The content of the contract, and its algorithm.
    dummy_problem
        The contract's problem, with zeros in place of records.
    rounds
        Number of rounds.
    """
    bounded = isinstance(dummy_problem, DenseProblem) or dummy_problem.feature_norm is not None
    if not settings.table("ranges") and not bounded:
        settings.fail("problem.feature_norm", "wanted a public bound on the norm of a record")
    smooth = np.isfinite(getattr(algorithm, "smoothness", np.inf))
    needs_number = smooth or getattr(algorithm, "mode", "") == "paper"
    if needs_number and not bounded:
        settings.fail("problem.feature_norm", "wanted a public bound, for this algorithm")
    settings.call(
        "contract", last_long_enough, algorithm=algorithm, problem=dummy_problem, rounds=rounds
    )


class PartyEpsilonError(ValueError):
    """A party's epsilon in the contract is smaller than the epsilon of the plan."""


def check_costs(
    settings: Settings, parties: Sequence[Party], cost_at: Callable[[float], float]
) -> None:
    """Refuse a plan whose epsilon is larger than a party's, at the party's delta.

    Parameters
    ----------
    settings, parties
        The content of the contract, and its parties.
    cost_at
        Returns the epsilon of the plan at a delta.

    Raises
    ------
    PartyEpsilonError
        If it is larger. The text names the party.
    """
    for party in parties:
        cost = settings.call("algorithm", cost_at, delta=party.delta)
        if cost > party.epsilon * (1 + ROUNDING):
            requirement = (
                f"wanted at least {rounded_up(cost)} for {party.name}, which the plan costs"
            )
            error = settings.error("party.epsilon", f"{requirement}, got {party.epsilon:g}")
            raise PartyEpsilonError(str(error))

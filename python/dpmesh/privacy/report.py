"""Privacy reports of runs: guarantee, threat model, assumptions and epsilon."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf
from typing import Any, NamedTuple

import numpy as np

from dpmesh._epsilons import NEIGHBOURS, but_partners, rounded_up
from dpmesh._html import InNotebooks
from dpmesh._privacy_types import NeighboringRelation, Unit
from dpmesh._validate import instance, probability
from dpmesh.noise.mechanisms import Mechanism
from dpmesh.privacy.charged import secrets_in
from dpmesh.privacy.plan import Plan
from dpmesh.privacy.sampling import RandomAllocation
from dpmesh.privacy.views import EverybodyButPartners, OneNode, Reaction, View, costs_by_distance
from dpmesh.topology.topology import Static

COVERED_METRICS = ("released_accuracy", "bits_per_node", "compression", "megabytes", "seconds")
"""Metrics that follow from releases, public numbers and test records alone.

The epsilon of a run covers them: it protects training records."""

MOST_NODES_BY_DISTANCE = 64
"""Most nodes of a network for which a report has epsilon by distance, since that takes a search for
each pair of nodes."""

MODEL_METRICS = ("accuracy", "node_accuracy", "consensus_distance", "run.parameters")
"""Metrics of the nodes' models, and these models: covered if the algorithm releases the models."""

SEES_ALL = "an adversary who sees all that is released"
"""The adversary of an epsilon, unless partners or a secure sum share its noise."""

SEEDED = "NOT private: seeded noise. Whoever knows the seed can remove the noise"
"""Assumption in the report of a run under a key with a known seed."""

_VIEW_ASSUMPTIONS = (
    "the view covers what its observers receive during the run: models or messages that are "
    "published need also=PublishedMessages(..) or PublishedMean(..)",
    "nodes follow the public schedule, and losses are as convex and smooth as stated",
)


class Spread(NamedTuple):
    """Spread of epsilon over the nodes."""

    smallest: float
    median: float
    largest: float


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """A guarantee with all that it rests on: none of it can be left out of its words.

    Parameters
    ----------
    epsilon, delta
        Infinite epsilon: none.
    unit, neighboring_relation
        What is protected: see `Plan`.
    adversary
        The adversary, in words.
    conditions
        What it rests on.
    accountant
        How epsilon was computed.
    seeded
        Whether the noise can be computed from a known seed: then nothing is private.

    Examples
    --------
    >>> import dpmesh as dm
    >>> plan = dm.GradientDescent(records=100, noise_multiplier=40.0).plan(50)
    >>> dm.privacy.report(plan, delta=1e-5).guarantee.unit
    'record'
    """

    epsilon: float
    delta: float
    unit: Unit
    neighboring_relation: NeighboringRelation
    adversary: str
    conditions: tuple[str, ...]
    accountant: str
    seeded: bool

    @property
    def sentence(self) -> str:
        """The guarantee in one line, to be quoted, with its adversary and its conditions."""
        if self.epsilon == inf:
            return "Nothing is guaranteed: epsilon is infinite."
        relation = self.neighboring_relation.replace("_", "-")
        guarantee = f"({rounded_up(self.epsilon)}, {rounded_up(self.delta)})"
        proviso = ""
        if self.conditions:
            proviso = f", provided that {'; '.join(self.conditions)}"
        claim = (
            f"{guarantee}-differentially private for one {self.unit} ({relation}), against "
            f"{self.adversary}{proviso} (accountant: {self.accountant})."
        )
        if not self.seeded:
            return claim
        return (
            "NOT private: the noise is seeded, and whoever knows the seed can remove it. With "
            f"secret noise this run would be {claim}"
        )


@dataclass(frozen=True, kw_only=True)
class Report(InNotebooks):
    """Privacy report of a run or of a plan: the guarantee, its adversary and its assumptions.

    Parameters
    ----------
    epsilon, delta
        Guarantee for the data of every node. An infinite epsilon guarantees nothing.
    neighboring_relation, unit
        Neighbouring relation and unit of privacy of the guarantee, see `Plan`.
    accountant
        Method that computed epsilon.
    releases
        Number of rounds with a release that depends on the data.
    assumptions
        Assumptions of the guarantee that the package cannot check, in words.
    noise
        Noise multiplier, standard deviation and clipping norm, in words; None if the algorithm does
        not clip.
    by_node
        Smallest, median and largest epsilon over the nodes; None if no release names its nodes.
    view
        Epsilon against an adversary who sees part of the messages, in words, or the reason why no
        smaller epsilon is proved; None if no view was requested.
    view_proof
        Proof of the epsilon against the view, with the worst observer and target that were found.
    by_distance
        Epsilon against a single node at distance 1, 2, and so on, in a fixed network of at most 64
        nodes; else empty.
    not_covered
        Names of metrics of the run that the guarantee does not cover, such as losses of private
        records: do not publish them.
    adversary
        The adversary of `epsilon`, in words.
    seeded
        True if the noise came from a key with a known seed: nothing is private then.

    Examples
    --------
    >>> import dpmesh as dm
    >>> plan = dm.GradientDescent(records=100, noise_multiplier=40.0).plan(50)
    >>> report = dm.privacy.report(plan, delta=1e-5)
    >>> round(report.epsilon, 3), report.unit
    (1.341, 'record')
    """

    epsilon: float
    delta: float
    neighboring_relation: NeighboringRelation
    unit: Unit
    accountant: str
    releases: int
    assumptions: tuple[str, ...]
    noise: str | None = None
    by_node: Spread | None = None
    view: str | None = None
    view_proof: str | None = None
    by_distance: tuple[float, ...] = ()
    not_covered: tuple[str, ...] = ()
    adversary: str = SEES_ALL
    seeded: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the report in plain types; infinity, which JSON lacks, becomes a text."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Report:
        """Return the report from a dictionary that `as_dict` returned."""
        spread = fields["by_node"]
        return cls(
            **{
                **fields,
                "epsilon": float(fields["epsilon"]),
                "assumptions": tuple(fields["assumptions"]),
                "by_distance": tuple(map(float, fields.get("by_distance", ()))),
                "not_covered": tuple(fields.get("not_covered", ())),
                "by_node": None if spread is None else Spread(*map(float, spread)),
            }
        )

    @property
    def is_finite(self) -> bool:
        """True if epsilon is finite; see `is_private` for seeded noise."""
        return self.epsilon < inf

    @property
    def is_private(self) -> bool:
        """True if epsilon is finite and the noise does not come from a known seed."""
        return self.is_finite and not self.seeded

    @property
    def adversary_in_brief(self) -> str:
        """The adversary in a few words, for a column of a table."""
        brief = self.adversary.replace(SEES_ALL, "sees all releases")
        return brief.replace(" and colludes with up to ", ", colludes with ")

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee with its adversary and all conditions, as a `Guarantee`."""
        return Guarantee(
            epsilon=self.epsilon,
            delta=self.delta,
            unit=self.unit,
            neighboring_relation=self.neighboring_relation,
            adversary=self.adversary if self.view is None else f"{self.adversary} ({self.view})",
            conditions=tuple(text for text in self.assumptions if text != SEEDED),
            accountant=self.accountant,
            seeded=self.seeded,
        )

    @property
    def sentence(self) -> str:
        """The guarantee in one line, to be quoted: see `Guarantee.sentence`."""
        return self.guarantee.sentence

    def __str__(self) -> str:
        return "\n".join(f"{label:<11} {text}" for label, text in self._lines())

    def _lines(self) -> Iterator[tuple[str, str]]:
        """Yield the label and the text of each line of the report."""
        yield "privacy", self._guarantee_in_words()
        if self.view is not None:
            yield "view", self.view
        if self.view_proof is not None:
            yield "view proof", self.view_proof
        if self.by_distance:
            epsilons = [
                f"{distance}: {rounded_up(epsilon, 3)}"
                for distance, epsilon in enumerate(self.by_distance, 1)
            ]
            yield "by distance", f"epsilon = {', '.join(epsilons)}"
        if self.noise is not None:
            yield "noise", self.noise
        yield "neighbours", NEIGHBOURS[self.neighboring_relation].format(unit=self.unit)
        yield "unit", f"one {self.unit}"
        yield "accountant", self.accountant
        yield "releases", f"{self.releases} round{'' if self.releases == 1 else 's'}"
        if self.by_node is not None:
            smallest, median, largest = map(rounded_up, self.by_node)
            yield "by node", f"epsilon = {smallest} to {largest}, median {median}"
        if self.not_covered:
            metrics = ", ".join(self.not_covered)
            yield "not covered", f"{metrics}: of private records, or of models before noise"
        for assumption in self.assumptions:
            yield "assumption", assumption

    def _guarantee_in_words(self) -> str:
        """Return epsilon and delta, and the adversary unless it sees all that is released."""
        if not self.is_finite:
            return "none (epsilon is infinite)"
        guarantee = f"epsilon = {rounded_up(self.epsilon)}, delta = {rounded_up(self.delta)}"
        if self.seeded:
            guarantee = f"NOT private: seeded noise. With secret noise: {guarantee}"
        if self.adversary != SEES_ALL:
            return f"{guarantee}, against {self.adversary}"
        if self.view is not None:
            return f"{guarantee}, against an adversary who sees every message"
        return guarantee


def _plain(value: Any) -> Any:
    """Return a value in types that JSON can hold."""
    if isinstance(value, tuple):
        return [_plain(element) for element in value]
    if value == inf:
        return "infinity"
    return value


def not_covered(measured: Iterable[str], *, parameters_are_released: bool) -> tuple[str, ...]:
    """Return the names of metrics that the epsilon of a run does not cover: do not publish them.

    Epsilon covers releases and functions of them alone. Losses and regret depend on private
    records, and local models of nodes are not released. A custom metric may depend on anything.

    Parameters
    ----------
    measured
        Names of metrics.
    parameters_are_released
        True if the nodes' models are what is released, as where a server publishes them.
    """
    covered = set(COVERED_METRICS)
    if parameters_are_released:
        covered.update(MODEL_METRICS)
    return tuple(name for name in measured if name not in covered)


def _allocation_assumption(allocations: Sequence[RandomAllocation], unit: Unit) -> str:
    """Return what random allocation keeps secret, in words."""
    counts = [allocation.rounds for allocation in allocations]
    rounds = f"{min(counts)}"
    if min(counts) != max(counts):
        rounds = f"{min(counts)} to {max(counts)}"
    return (
        f"each {unit} is used in one round of {rounds}, a secret one: neither that nor how many "
        "take part in a round is published, and nobody infers it from the time of an answer"
    )


def _by_distance(plan: Plan, delta: float, view: View | None) -> tuple[float, ...]:
    """Return the epsilon against a node at distance 1, 2, ..; nothing where it has no proof."""
    if not isinstance(view, OneNode) or not isinstance(view.topology, Static):
        return ()
    if view.topology.nodes > MOST_NODES_BY_DISTANCE or not isinstance(plan.reaction, Reaction):
        return ()
    costs = costs_by_distance(delta, plan.reaction, view)
    return tuple(min(cost.epsilon, cost.full_view_epsilon) for _, cost in sorted(costs.items()))


def report(
    plan: Plan,
    delta: float = 0.0,
    *,
    seeded: bool = False,
    nodes: int | None = None,
    units: int | None = None,
    view: View | None = None,
    not_covered: tuple[str, ...] = (),
) -> Report:
    """Return the privacy report of a plan, or of the ledger of a run.

    Parameters
    ----------
    plan
        Planned releases, or the ledger of a run.
    delta
        In [0, 1).
    seeded
        True if the noise comes from a key with a known seed. A ledger does not record the key; the
        report of a run, ``run.privacy``, states whether the key was seeded.
    nodes
        Number of nodes; by default 1 plus the largest index of a node in the releases.
    units
        Number of records or users in the data; None if unknown. The report warns if `delta` exceeds
        ``1 / units``.
    view
        Weaker adversary, who sees part of the messages, to report in addition; see `Plan.cost`.
        None reports the epsilon against an adversary who sees all messages. With noise that
        partners share, it reports the epsilon against all parties except link partners.
    not_covered
        Names of metrics that the guarantee does not cover, to list in the report.

    Raises
    ------
    ValueError
        If `plan` is not a plan, `delta` is outside [0, 1), or `nodes` is less than that number.

    Examples
    --------
    >>> import dpmesh as dm
    >>> plan = dm.GradientDescent(records=100, noise_multiplier=10.0).plan(20)
    >>> dm.privacy.report(plan, 1e-5).epsilon
    3.7369179925404143
    """
    instance("plan", plan, "a Plan, such as algorithm.plan(rounds)", Plan)
    delta = probability("delta", delta, one=False)
    cost = plan.cost(delta)
    by_node = None
    if plan.names_nodes:
        epsilons = plan.costs_by_node(delta, nodes)
        smallest, median, largest = np.quantile(epsilons, [0, 0.5, 1], method="higher")
        by_node = Spread(float(smallest), float(median), float(largest))
    if view is None:
        view = _claimed_view(plan)
    view_cost = _ViewCost() if view is None else _view_cost(plan, delta, view)
    return Report(
        adversary=_adversary(plan),
        seeded=seeded,
        epsilon=cost.epsilon,
        delta=delta,
        neighboring_relation=plan.neighboring_relation,
        unit=plan.unit,
        accountant=cost.accountant,
        releases=len({release.round for release in plan.touching}),
        assumptions=(*_assumptions(plan, delta, units, seeded=seeded), *view_cost.assumptions),
        noise=_noise_in_words(plan),
        by_node=by_node,
        view=view_cost.sentence,
        view_proof=view_cost.proof,
        by_distance=_by_distance(plan, delta, view),
        not_covered=not_covered,
    )


def _is_on_reals(mechanism: Mechanism) -> bool:
    """Return True if noise is real-valued: its low-order bits may reveal more than epsilon says."""
    return mechanism.noise_to_sensitivity > 0 and mechanism.spacing == 0


def _noise_in_words(plan: Plan) -> str | None:
    """Return noise multiplier, deviation and clipping norm; None where no algorithm clips."""
    if plan.clipped is None:
        return None
    relation = plan.neighboring_relation.replace("_", "-")
    return f"{plan.clipped} ({relation})"


def _adversary(plan: Plan) -> str:
    """Return the adversary of a plan's epsilon, in words.

    With pairwise secrets of the kind `star`, epsilon excludes a node's link partners from the
    adversary. With secure aggregation, the adversary includes a number of colluding parties.
    """
    coalitions = [secrets.coalition for secrets in secrets_in(plan.releases) if secrets.star]
    adversary = but_partners(max(coalitions)) if coalitions else SEES_ALL
    mechanisms = [release.mechanism for release in plan.touching]
    secure_sums = [m.sums for m in mechanisms if m.sums is not None]
    if not secure_sums:
        return adversary
    colluding = min(sums.colluding for sums in secure_sums)
    parties = "party" if colluding == 1 else "parties"
    if coalitions:
        return f"{adversary}; of secure sums, up to {colluding} colluding {parties}"
    return f"{adversary} and colludes with up to {colluding} {parties}"


def _assumptions(plan: Plan, delta: float, units: int | None, *, seeded: bool) -> Iterator[str]:
    """Yield what the guarantee of a plan rests on."""
    yield from plan.assumptions
    if any(_is_on_reals(release.mechanism) for release in plan.touching):
        yield (
            "the adversary does not exploit floating-point rounding (use grid= to remove this "
            "assumption)"
        )
    for secrets in secrets_in(plan.releases):
        if secrets.star:  # the reported epsilon is against all but link partners
            view = EverybodyButPartners(coalition=secrets.coalition)
            epsilon = rounded_up(plan.cost(delta, view=view).full_view_epsilon)
            run_cost = f"a run has epsilon = {epsilon}"
            yield f"against all other nodes together, who know each secret, {run_cost}"
    if seeded:
        yield SEEDED
    if units is not None and delta > 1 / units:
        yield f"delta may exceed 1 / {units}: to publish one {plan.unit} as it is would satisfy it"
    if plan.allocations:
        yield _allocation_assumption(plan.allocations, plan.unit)


def _claimed_view(plan: Plan) -> View | None:
    """Return the view for which partners of a network share secrets; None if none do."""
    coalitions = [secrets.coalition for secrets in secrets_in(plan.releases) if not secrets.star]
    if not coalitions:
        return None
    return EverybodyButPartners(coalition=max(coalitions))


class _ViewCost(NamedTuple):
    """The cost against a view, in words; nothing where no view was asked for."""

    sentence: str | None = None
    proof: str | None = None
    assumptions: tuple[str, ...] = ()


def _view_cost(plan: Plan, delta: float, view: View) -> _ViewCost:
    """Return the cost against a view in words, its proof, and what that rests on."""
    cost = plan.cost(delta, view=view)
    if cost.reason:
        return _ViewCost(f"nothing less is proved against {cost.view}: {cost.reason}")
    sentence = f"epsilon = {rounded_up(cost.epsilon)} against {cost.view}"
    if isinstance(view, EverybodyButPartners):
        return _ViewCost(sentence, cost.accountant)
    return _ViewCost(sentence, cost.accountant, _VIEW_ASSUMPTIONS)

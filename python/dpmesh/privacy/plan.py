"""The privacy of a whole run: its releases, and what they cost together.

A plan is made from public numbers, before a run. The ledger that a run keeps is a plan too, made of
the releases that happened; the two must be equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import chain, combinations_with_replacement, product
from math import prod
from typing import TYPE_CHECKING, Any, get_args, overload

import numpy as np

from dpmesh._epsilons import NEIGHBOURS
from dpmesh._html import InNotebooks
from dpmesh._privacy_types import NeighboringRelation, Unit
from dpmesh._validate import fail, instance, integer, one_of, probability
from dpmesh.noise.rows import INDEPENDENT_ONLY
from dpmesh.privacy.charged import charged, joints, joints_from, secrets_in
from dpmesh.privacy.cost import Cost, Costs, costs
from dpmesh.privacy.parts import Numbers, Parts, nodes_named, parts_of
from dpmesh.privacy.releases import Release
from dpmesh.privacy.sampling import RandomAllocation
from dpmesh.privacy.views.reaction import NotProved, Reaction

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from dpmesh.noise.correlated import CorrelatedGaussian
    from dpmesh.privacy.views import View
    from dpmesh.privacy.views.cost import ViewCost

MOST_ROUNDS = 10_000_000
"""A plan lists the releases of every round: so many take some gigabytes."""


def each_round(rounds: int) -> range:
    """Return the rounds that a plan is made for, from 0.

    Raises
    ------
    ValueError
        If `rounds` is not an integer of at least 1, or there are more than `MOST_ROUNDS`.
    """
    if integer("rounds", rounds, at_least=1) > MOST_ROUNDS:
        fail("rounds", f"at most {MOST_ROUNDS}, each of which a plan lists", rounds)
    return range(rounds)


@dataclass(frozen=True, kw_only=True)
class ClippedNoise:
    """Noise multiplier and clipping norm of an algorithm that adds noise to clipped sums.

    Reports print both numbers; no epsilon is computed from them.

    Parameters
    ----------
    noise_multiplier
        Standard deviation of the noise on the sum over the clipping norm.
    clipping_norm
        Largest norm of the vector of one unit; None if it depends on the problem.

    Examples
    --------
    >>> from dpmesh.privacy import ClippedNoise
    >>> print(ClippedNoise(noise_multiplier=1.5, clipping_norm=0.5))
    noise multiplier 1.5: standard deviation 0.75 on the sum, clipping norm 0.5
    """

    noise_multiplier: float
    clipping_norm: float | None = None

    @property
    def standard_deviation(self) -> float | None:
        """Standard deviation of the noise on the sum; None if `clipping_norm` is None."""
        if self.clipping_norm is None:
            return None
        return self.noise_multiplier * self.clipping_norm

    def __str__(self) -> str:
        ratio = f"noise multiplier {self.noise_multiplier:.6g}"
        if self.clipping_norm is None:
            return f"{ratio}: standard deviation on the sum over the clipping norm"
        deviation = f"standard deviation {self.standard_deviation:.6g} on the sum"
        return f"{ratio}: {deviation}, clipping norm {self.clipping_norm:.6g}"


@dataclass(frozen=True, kw_only=True)
class Plan(InNotebooks):
    """List of all noisy releases of a run, from which epsilon is computed.

    An algorithm makes its plan from public numbers before the run: ``algorithm.plan(rounds)``.

    Parameters
    ----------
    releases
        The releases, in the order in which they happen.
    neighboring_relation
        Definition of neighbouring datasets. ``"replace_one"``: they differ in the value of one
        unit. ``"add_remove"``: one of them has one unit more.
    unit
        Unit of privacy: ``"record"``, or ``"user"`` for all records of a user.
    assumptions
        Assumptions of the guarantee that this package cannot check, in words.
    copies
        Largest number of nodes that hold the same record. Epsilon then covers the releases of that
        many nodes, each with independent noise.
    clipped
        Noise multiplier and clipping norm, for reports; None for an algorithm without clipping.
    reaction
        Bounds on the change of a message with one record and with earlier messages. The epsilon
        against a view of `dpmesh.privacy.views` needs them. None if the plan was made without the
        learning problem.

    Raises
    ------
    ValueError
        If the relation or unit is unknown, or `releases` is not a tuple of releases.

    Examples
    --------
    >>> from dpmesh.noise import Gaussian, Sensitivity
    >>> from dpmesh.privacy import Plan, Release
    >>> count = Release(0, Gaussian(2.0), Sensitivity(1.0, "l2", "a count"))
    >>> plan = Plan(releases=(count,), neighboring_relation="replace_one", unit="record")
    >>> print(plan.cost(delta=1e-5))
    epsilon = 1.9931 (Gaussian differential privacy, exact, mu = 0.5)
    """

    releases: tuple[Release, ...]
    neighboring_relation: NeighboringRelation
    unit: Unit
    assumptions: tuple[str, ...] = ()
    copies: int = 1
    clipped: ClippedNoise | None = field(default=None, compare=False)
    reaction: Reaction | NotProved | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        instance("releases", self.releases, "a tuple of releases", tuple, list)
        if type(self.releases) is not tuple:  # others may change after the cost was computed
            object.__setattr__(self, "releases", tuple(self.releases))
        for release in self.releases:
            if not isinstance(release, Release):
                instance("releases", release, "releases alone", Release)
        instance("assumptions", self.assumptions, "a tuple of texts", tuple)
        one_of("neighboring_relation", self.neighboring_relation, get_args(NeighboringRelation))
        one_of("unit", self.unit, get_args(Unit))
        integer("copies", self.copies, at_least=1)
        if self.copies > 1 and any(joint.claims_star for joint in joints(self.releases)):
            expected = "1: no proof covers partners that hold the same record, each with a star of"
            fail("copies", f"{expected} its own", self.copies)

    def __repr__(self) -> str:
        return f"Plan({len(self.releases)} releases, {self.neighboring_relation}, {self.unit})"

    def __str__(self) -> str:
        touching = self.touching
        rounds = len({release.round for release in touching})
        lines = [f"releases    {len(touching)} that depend on data, in {rounds} rounds"]
        for name, count in Counter(release.name for release in touching).items():
            multipliers = sorted(
                release.noise_to_sensitivity for release in touching if release.name == name
            )
            span = " to ".join(dict.fromkeys(f"{z:.4g}" for z in (multipliers[0], multipliers[-1])))
            amount = f", {span} times the sensitivity" if multipliers[-1] > 0 else ""
            lines.append(f"noise       {name} in {count} of them{amount}")
        if self.clipped is not None:
            relation = self.neighboring_relation.replace("_", "-")
            lines.append(f"            {self.clipped} ({relation})")
        lines.append(f"neighbours  {NEIGHBOURS[self.neighboring_relation].format(unit=self.unit)}")
        return "\n".join([*lines, *(f"assumption  {text}" for text in self.assumptions)])

    def with_releases(self, releases: Iterable[Release]) -> Plan:
        """Return a copy of the plan with these releases in place of its own."""
        releases = tuple(releases)
        reaction = self.reaction
        if reaction is not None and releases != self.releases:
            reaction = NotProved(reason="the run did not make the releases of its plan")
        return replace(self, releases=releases, reaction=reaction)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan in plain types that JSON can hold.

        ``kinds`` has each kind of release once: releases that are equal but for round and batch.
        ``releases`` has a list ``[round, index of the kind, batch]`` for each release. With
        correlated noise, ``correlated`` has its joint events.
        """
        events = joints(self.releases)
        index_of_event = {event: index for index, event in enumerate(events)}
        kinds: list[dict[str, Any]] = []
        index_of_kind: dict[tuple[object, ...], int] = {}
        rows: list[list[int | None]] = []
        for release in self.releases:
            kind = (release.mechanism, release.sensitivity, release.sampling, release.nodes)
            index = index_of_kind.setdefault(kind, len(kinds))
            if index == len(kinds):  # the first release of its kind
                kinds.append(_kind_as_dict(release, index_of_event))
            rows.append([release.round, index, release.batch])
        stored: dict[str, Any] = {
            "neighboring_relation": self.neighboring_relation,
            "unit": self.unit,
            "assumptions": list(self.assumptions),
            "copies": self.copies,
            "clipped": None if self.clipped is None else asdict(self.clipped),
        }
        if events:
            stored["correlated"] = [event.as_dict() for event in events]
        stored["kinds"] = kinds
        stored["releases"] = rows
        return stored

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Plan:
        """Return the plan from a dictionary that `as_dict` returned."""
        events = joints_from(fields.get("correlated", ()))
        kinds = [_release_of_kind(kind, events) for kind in fields["kinds"]]
        clipped = fields.get("clipped")
        return cls(
            releases=tuple(
                replace(kinds[index], round=t, batch=batch)
                for t, index, batch in fields["releases"]
            ),
            neighboring_relation=fields["neighboring_relation"],
            unit=fields["unit"],
            assumptions=tuple(fields["assumptions"]),
            copies=fields.get("copies", 1),
            clipped=None if clipped is None else ClippedNoise(**clipped),
        )

    def compositions(self, colluding: int | None = None) -> list[tuple[Release, ...]]:
        """Return the distinct sequences of releases that can depend on the data of one unit.

        There is at most one sequence for each batch of each node.

        Parameters
        ----------
        colluding
            Number of nodes that collude with an adversary who sees all messages, for noise that
            partners share; None for all other nodes.
        """
        by_node = self._compositions(self._nodes(None), colluding)
        distinct = {
            key: composition
            for compositions_of_node in by_node
            for key, composition in compositions_of_node.items()
        }
        return list(distinct.values())

    def compositions_of_copies(self, colluding: int | None = None) -> list[tuple[Release, ...]]:
        """Return `compositions` for a record that `copies` different nodes hold.

        For such a record, noise that partners share counts as known to the adversary.

        Raises
        ------
        ValueError
            If there are more than 10,000 combinations of batches.
        """
        if self.copies == 1:
            return self.compositions(colluding)
        if self.names_nodes:  # beside those that are named there may be others
            by_node = self._compositions(self._nodes(None) + self.copies)
        else:
            by_node = self._compositions(1) * self.copies
        nodes_alike = Counter(tuple(sorted(keys, key=hash)) for keys in by_node)
        released = {
            key: composition
            for compositions_of_node in by_node
            for key, composition in compositions_of_node.items()
        }
        compositions = []
        for chosen in combinations_with_replacement(nodes_alike, self.copies):
            times = Counter(chosen)
            if all(number <= nodes_alike[kind] for kind, number in times.items()):
                choices = (combinations_with_replacement(*pair) for pair in times.items())
                for keys in product(*choices):
                    compositions.append(sum((released[key] for key in chain(*keys)), ()))
                    _check_number(len(compositions))
        return compositions

    def _compositions(
        self, nodes: int, colluding: int | None = None
    ) -> list[dict[tuple[object, ...], tuple[Release, ...]]]:
        """Return the distinct sequences of releases that each node's batches touch."""
        touching = charged(self.touching, colluding)
        parts = parts_of(touching, nodes)
        by_node: list[dict[tuple[object, ...], tuple[Release, ...]]] = [{} for _ in range(nodes)]
        for part, owner in enumerate(parts.owners.tolist()):
            touched = tuple(touching[index] for index in parts.releases(part))
            key = tuple((r.mechanism, r.sampling, _steps(r)) for r in touched)
            by_node[owner][key] = touched
        return by_node

    @overload
    def cost(self, delta: float = 0.0, *, view: None = None) -> Cost: ...
    @overload
    def cost(self, delta: float = 0.0, *, view: View) -> ViewCost: ...
    def cost(self, delta: float = 0.0, *, view: View | None = None) -> Cost | ViewCost:
        """Return the smallest proved epsilon at which the whole plan is (epsilon, delta)-DP.

        The guarantee is for `unit` and `neighboring_relation`. It holds for the data of every node:
        the result is the largest epsilon over nodes and batches.

        Parameters
        ----------
        delta
            In [0, 1). At 0, Gaussian releases have infinite epsilon.
        view
            The adversary's view, such as ``OneNode(topology=topology)`` of `dpmesh.privacy.views`.
            None: the adversary sees every message. With secure aggregation the adversary also
            colludes with as many parties as the mechanism states. With noise that partners share
            all other nodes collude, or as many as the claim states if it counts only a node's own
            secrets (``star=True``). A view needs the plan of a learning problem,
            ``algorithm.plan(rounds, problem)``. If no smaller epsilon is proved for the view, the
            result states the reason.

        Raises
        ------
        ValueError
            If `delta` is outside [0, 1), or privacy amplification by the sampling of a release is
            not proved under this neighbouring relation.
        """
        full_view = self._worst(delta)
        if view is None:
            return full_view
        from dpmesh.privacy.views import EverybodyButPartners, view_cost
        from dpmesh.privacy.views.cost import partners_cost

        secrets = secrets_in(self.releases)
        stars = [shared.nodes for shared in secrets if shared.star]
        if stars:
            full_view = self._worst(delta, max(stars))  # all nodes, who know each secret
        if isinstance(view, EverybodyButPartners):
            against = self._worst(delta, view.coalition)
            return partners_cost(delta, view, against, full_view, shared=bool(secrets))

        reaction = self.reaction or NotProved(reason="the plan was made without its problem")
        if self.copies > 1:
            reaction = NotProved(reason="views of a record at several nodes are not computed")
        elif joints(self.releases):
            reaction = NotProved(reason=INDEPENDENT_ONLY)
        elif self.allocations:
            reaction = NotProved(reason="views of random allocation are not proved")
        rounds = 1 + max((release.round for release in self.releases), default=-1)
        if isinstance(reaction, Reaction) and reaction.rounds != rounds:
            reaction = NotProved(reason="the plan has other rounds than its reaction")
        return view_cost(delta, reaction, view, full_view=full_view)

    @property
    def names_nodes(self) -> bool:
        """True if some release depends on the data of some nodes only."""
        return any(release.nodes is not None for release in self.releases)

    def costs_by_node(self, delta: float = 0.0, nodes: int | None = None) -> Numbers:
        """Return the epsilon for the data of each node, the largest over the node's batches.

        Parameters
        ----------
        delta
            In [0, 1).
        nodes
            Number of nodes. By default the smallest number that includes all nodes named by
            releases, or 1.

        Returns
        -------
        Shape (nodes,). A release that names no nodes depends on the data of all nodes, and counts
        for each of them.

        Raises
        ------
        ValueError
            As `cost`, or if a release names a node that is not below `nodes`.
        """
        count = self._nodes(nodes)
        if not self.names_nodes or self.copies > 1:
            return np.full(count, self.cost(delta).epsilon)
        costs, parts = self._costs(count, delta)
        return parts.worst_by_node(costs.epsilons)

    def event(self, delta: float = 1e-9) -> DpEvent:
        """Return the plan as one event of the library dp-accounting.

        The event composes the releases of the node and batch with the largest epsilon at `delta`.

        Raises
        ------
        ValueError
            As `cost`.
        """
        import dp_accounting

        if self.copies > 1:
            return _together([self]).event(delta)
        costs, parts = self._costs(self._nodes(None), delta)
        worst = parts.releases(int(np.argmax(costs.epsilons)))
        touching = charged(self.touching)
        return dp_accounting.ComposedDpEvent([touching[index].event for index in worst])

    def _nodes(self, nodes: int | None) -> int:
        named = max(1, nodes_named(self.releases))
        if nodes is None:
            return named
        return integer("nodes", nodes, at_least=named)

    @property
    def touching(self) -> list[Release]:
        """The releases that depend on the data."""
        return [release for release in self.releases if release.sensitivity.bound > 0]

    @property
    def allocations(self) -> list[RandomAllocation]:
        """The distinct random allocations among the samplings of the releases."""
        samplings = (release.sampling for release in self.touching)
        allocations = [sampling for sampling in samplings if isinstance(sampling, RandomAllocation)]
        return list(dict.fromkeys(allocations))

    def _worst(self, delta: float, colluding: int | None = None) -> Cost:
        """Return the cost of the part that costs most, against so many colluding nodes or all."""
        if self.copies > 1:
            return _together([self]).cost(delta)
        costs, _ = self._costs(self._nodes(None), delta, colluding)
        return costs.cost(int(np.argmax(costs.epsilons)))

    def _costs(self, nodes: int, delta: float, colluding: int | None = None) -> tuple[Costs, Parts]:
        delta = probability("delta", delta, one=False)
        touching = charged(self.touching, colluding)
        parts = parts_of(touching, nodes)
        return costs(touching, parts, delta, self.neighboring_relation), parts


MOST_COMBINATIONS = 10_000
"""The most combinations of parts of the data, one part per run, that pay differently."""


def total_cost(plans: Iterable[Plan], delta: float = 0.0, *, colluding: int | None = None) -> Cost:
    """Return the smallest proved epsilon of several runs on the same data together.

    The runs draw independent noise, each from a different key. The algorithm of a run may depend on
    what earlier runs released; its noise and its sampling must not. Nodes and batches may differ
    between the runs: the result covers a unit that is in the batch with the largest epsilon in
    every run.

    Parameters
    ----------
    plans
        Plans or ledgers of the runs. Pass the plan, not the ledger, of a run that ended early
        because of its releases.
    delta
        In [0, 1).
    colluding
        For pairwise-cancelling noise: number of nodes that collude with an adversary who sees all
        messages and none of the noise that other nodes share. None: all other nodes collude, or as
        many as the claim states if it counts only a node's own secrets (``star=True``).

    Raises
    ------
    ValueError
        If there is no plan, the neighbouring relations or the units differ, or `delta` is outside
        [0, 1). Also if amplification by a sampling is not proved, or the runs have more than 10,000
        combinations of batches with different releases.

    Examples
    --------
    >>> import dpmesh as dm
    >>> plan = dm.GradientDescent(records=100, noise_multiplier=10.0).plan(20)
    >>> dm.privacy.total_cost([plan, plan], 1e-5).epsilon > plan.cost(1e-5).epsilon
    True
    """
    if isinstance(plans, Plan):
        fail("plans", "a list of plans", repr(plans))
    runs = list(plans)
    if not runs:
        fail("plans", "at least 1 plan", "none")
    first = runs[0]
    for plan in runs:
        instance("plans", plan, "plans, such as algorithm.plan(rounds) or run.ledger", Plan)
        one_of("neighboring_relation", plan.neighboring_relation, (first.neighboring_relation,))
        one_of("unit", plan.unit, (first.unit,))
    return _together(runs, colluding).cost(delta)


def _kind_as_dict(
    release: Release, index_of_event: Mapping[CorrelatedGaussian, int]
) -> dict[str, Any]:
    """Return a kind of release in plain types; its joint event, if any, as an index."""
    kind = {**release.as_dict(), "round": 0, "batch": None}
    event = release.mechanism.joint_event
    if event is not None:
        kind["correlated"]["joint"] = index_of_event[event]
    return kind


def _release_of_kind(kind: Mapping[str, Any], events: Sequence[CorrelatedGaussian]) -> Release:
    """Return the release that `_kind_as_dict` stored, with its joint event from `events`."""
    correlated = kind.get("correlated")
    if correlated is None:
        return Release.from_dict(kind)
    row = {**correlated, "joint": events[correlated["joint"]]}
    return Release.from_dict({**kind, "correlated": row})


def made_again(*plans: Plan) -> tuple[Plan, ...]:
    """Return the plans of runs that repeat each other with the same secret draws.

    In random allocation, a record then has the same round in each run, so that its round counts as
    known to the adversary: releases have no amplification. Each round is a separate batch. A single
    plan is returned unchanged.
    """
    if len(plans) == 1:
        return plans
    return tuple(
        plan.with_releases(
            replace(release, sampling=release.sampling.without_amplification, batch=release.round)
            if isinstance(release.sampling, RandomAllocation)
            else release
            for release in plan.releases
        )
        for plan in plans
    )


def _steps(release: Release) -> float | None:
    """Return what else a release on a grid costs by: its sensitivity there."""
    if release.mechanism.grid is None:
        return None
    return release.sensitivity.bound


def _check_number(combinations: int) -> None:
    if combinations > MOST_COMBINATIONS:
        expected = f"at most {MOST_COMBINATIONS} combinations of parts of the data"
        fail("plans", expected, f"{combinations} or more")


def _together(plans: Sequence[Plan], colluding: int | None = None) -> Plan:
    """Return the plan of all of these on the same data, one for each copy of a record."""
    parts = [plan.compositions_of_copies(colluding) for plan in plans]
    _check_number(prod(map(len, parts)))
    releases = []
    for combination, touched in enumerate(product(*parts)):
        for number, release in enumerate(chain(*touched)):
            if isinstance(release.sampling, RandomAllocation):  # drawn anew by each run and node
                redrawn = replace(release.sampling, cycle=number)
                release = replace(release, sampling=redrawn)
            releases.append(replace(release, batch=combination, nodes=None))
    return replace(plans[0], copies=1).with_releases(releases)

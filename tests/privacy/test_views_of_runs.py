"""Views of plans, budgets and runs: epsilon under weaker adversaries."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from problems import contract_problem as make_problem
from view_systems import ORACLES

import dpmesh as dm
from dpmesh.algorithms.registry import NODES, RECORDS, REGISTRY, ROUNDS
from dpmesh.kernels.views import solve_pair
from dpmesh.privacy import Budget
from dpmesh.privacy.views import (
    AnyCoalition,
    Everybody,
    LossFacts,
    Node,
    NotProved,
    OneNode,
    Reaction,
)
from dpmesh.privacy.views.system import systems_of
from dpmesh.run.carriers import Packet
from dpmesh.run.failing import FailingGossip, RealizedNetwork
from dpmesh.run.network import Conditions

DELTA = 1e-5
RING = dm.topology.ring(16)
MEETINGS = dm.topology.meetings(16, key=dm.Key.seeded(1))
ONE = OneNode(topology=RING)
ALGORITHM = dm.GradientDescent(records=RECORDS, noise_multiplier=4.0)


def of_16_nodes() -> dm.LinearProblem:
    problem = make_problem()
    parts = tuple(np.split(np.arange(len(problem.train.labels)), 16))
    return replace(problem, partition=parts)


PROBLEM = of_16_nodes()
SMALL = dm.GradientDescent(records=3, noise_multiplier=4.0)  # records of a node


def test_one_node_learns_less_than_everybody_and_a_coalition_learns_more_than_one_node() -> None:
    plan = SMALL.plan(20, PROBLEM)
    everybody = plan.cost(DELTA)
    one, two = (plan.cost(DELTA, view=v) for v in (ONE, AnyCoalition(topology=RING, size=2)))
    assert one.full_view_epsilon == two.full_view_epsilon == everybody.epsilon
    assert 0 < one.epsilon <= two.epsilon <= everybody.epsilon
    assert plan.cost(DELTA, view=Everybody()).epsilon == pytest.approx(everybody.epsilon, rel=1e-6)


def test_a_far_node_learns_less_on_meetings_than_on_a_ring_where_neighbours_hear_all() -> None:
    plan = SMALL.plan(16, PROBLEM)
    on_ring, met = (plan.cost(DELTA, view=OneNode(topology=t)) for t in (RING, MEETINGS))
    assert (
        met.epsilon
        < 0.8 * on_ring.epsilon
        == pytest.approx(0.8 * on_ring.full_view_epsilon, rel=1e-3)
    )


@pytest.mark.parametrize("entry", REGISTRY, ids=lambda entry: entry.name)
def test_every_algorithm_has_a_view_or_says_why_not(entry) -> None:
    """And none is ever cheaper than nothing, or dearer than everybody."""
    view = OneNode(topology=dm.topology.ring(NODES))
    cost = entry.example.plan(ROUNDS, make_problem()).cost(DELTA, view=view)
    assert cost.reason or 0 < cost.epsilon <= cost.full_view_epsilon
    assert cost.epsilon <= cost.full_view_epsilon


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (ALGORITHM.plan(5), "the plan was made without its problem"),
        (ALGORITHM.plan(5, replace(make_problem(), loss="hinge")), "the hinge loss has a kink"),
        (ALGORITHM.plan(5, replace(make_problem(), loss="absolute")), "absolute loss has a kink"),
        (ALGORITHM.plan(5, replace(make_problem(), feature_norm=None)), "no public bound"),
        (ALGORITHM.plan(5, object()), "the problem is no linear model"),
    ],
)
def test_where_less_is_not_proved_everybodys_cost_counts(plan, reason: str) -> None:
    cost = plan.cost(DELTA, view=OneNode(topology=dm.topology.ring(NODES)))
    assert reason in cost.reason
    assert cost.epsilon == cost.full_view_epsilon == plan.cost(DELTA).epsilon


def test_a_problem_with_a_gradient_of_its_own_has_no_view() -> None:
    class Own(dm.LinearProblem):
        pass

    problem = make_problem()
    own = Own(problem.train, problem.partition, problem.loss, feature_norm=1.0)
    assert isinstance(ALGORITHM.plan(5, own).reaction, NotProved)


def test_a_run_that_departs_from_its_plan_has_no_view() -> None:
    plan, view = SMALL.plan(16, PROBLEM), OneNode(topology=MEETINGS)
    assert plan.with_releases(plan.releases).cost(DELTA, view=view).reason == ""
    shorter = plan.with_releases(plan.releases[:-1])
    assert "did not make the releases" in shorter.cost(DELTA, view=view).reason


def test_a_budget_of_a_view_needs_less_noise_and_allows_more_rounds() -> None:
    narrow, wide = (
        Budget(2.0, delta=DELTA, view=OneNode(topology=MEETINGS)),
        Budget(2.0, delta=DELTA),
    )

    def make(noise: float) -> dm.GradientDescent:
        return dm.GradientDescent(records=3, noise_multiplier=2 * noise)

    noise = narrow.calibrate(make, 12, PROBLEM)
    assert noise < 0.85 * wide.calibrate(make, 12)
    plan = make(noise).plan(12, PROBLEM)
    assert plan.cost(DELTA, view=narrow.view).epsilon == pytest.approx(2.0, rel=1e-5)
    assert narrow.affordable_rounds(make(noise), PROBLEM, at_most=16) >= 12
    assert wide.affordable_rounds(make(noise), at_most=16) < 12


def test_a_run_reports_its_view_beside_everybody() -> None:
    budget = Budget(5.0, delta=DELTA, view=OneNode(topology=MEETINGS))
    given = {"rounds": 8, "key": dm.Key.seeded(0), "budget": budget}
    run = dm.simulate(SMALL, PROBLEM, MEETINGS, **given)
    lines = str(run.privacy).splitlines()
    assert lines[0].endswith("against an adversary who sees every message")
    assert lines[1].startswith("view        epsilon = ")
    assert "against any one node" in lines[1]
    assert lines[2].startswith("view proof  Gaussian differential privacy by coupling, mu = ")
    with pytest.raises(ValueError, match=r"^budget: wanted a view of the run's topology"):
        dm.simulate(SMALL, PROBLEM, RING, **given)
    with pytest.raises(ValueError, match=r"which cost"):
        dm.simulate(SMALL, PROBLEM, MEETINGS, **{**given, "budget": replace(budget, epsilon=0.5)})


def test_a_view_beside_earlier_runs_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^view: wanted None with a budget"):
        Budget(5.0, delta=DELTA, spent=(SMALL.plan(3),), view=ONE)


def test_a_variant_that_states_no_reaction_of_its_own_has_no_view() -> None:
    """Post-processing is free if all messages are seen, but may carry a record to another node."""

    class Doubled(dm.GradientDescent):
        def _stepped(self, b, t, problem):
            return super()._stepped(2 * b, t, problem)

    cost = (
        Doubled(records=3, noise_multiplier=4.0)
        .plan(16, PROBLEM)
        .cost(DELTA, view=OneNode(topology=MEETINGS))
    )
    assert "Doubled changes _stepped" in cost.reason
    assert cost.epsilon == cost.full_view_epsilon


def test_who_says_that_there_is_no_view_inherits_none() -> None:
    class Doubtful(dm.GradientDescent):
        view_refusal = "nobody has proved it"

    facts = LossFacts.of(PROBLEM)
    reaction = Doubtful(records=20, noise_multiplier=4.0).plan(5, facts).reaction
    assert isinstance(reaction, NotProved)
    assert reaction.reason == "nobody has proved it"


def test_a_plan_with_other_rounds_than_its_reaction_has_no_view() -> None:
    plan = SMALL.plan(16, PROBLEM)
    twice = replace(plan, releases=SMALL.plan(32).releases)
    assert "other rounds" in twice.cost(DELTA, view=OneNode(topology=MEETINGS)).reason


def test_a_late_message_is_seen_by_the_round_in_which_it_was_made() -> None:
    """The oracle's network, whose messages are one round late from round 1 on."""
    (oracle,) = (o for o in ORACLES if o["id"] == "late.ring5.delay1")
    inputs, key = oracle["inputs"], dm.Key.seeded(0)
    realized = RealizedNetwork(dm.topology.ring(5), dm.Network(min_delay=1, max_delay=1), key)
    ones = np.ones(inputs["rounds"])
    reaction = Reaction(
        sensitivity=np.array(inputs["s"]), noise=np.array(inputs["sigma"]), lipschitz=ones
    )
    view = Node(node=inputs["observers"][0], topology=realized)
    (system,) = systems_of(reaction, view)
    found = solve_pair(system, inputs["observers"], inputs["target"], gap=1e-8)
    assert found.mu == pytest.approx(oracle["output"]["mu"], abs=1e-6)


def test_a_failing_network_is_that_of_the_run() -> None:
    """Mixing what `RealizedNetwork` says gives what the nodes received."""
    key, network = dm.Key.seeded(3), dm.Network(loss=0.2, offline=0.1, max_delay=2)
    realized = RealizedNetwork(MEETINGS, network, key)
    carrier = FailingGossip(MEETINGS, Conditions(network, 16, key))
    sent = np.random.default_rng(0).normal(size=(12, 16, 2))
    for t in range(12):
        wanted = carrier.carry(t, Packet(sent[t]))
        found = sum(weights @ sent[made] for made, weights in realized.mixed(t))
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
    neighbours = {(r.round, r.receiver, r.sender) for r in realized.received(12)}
    met = {(t, *link) for t in range(12) for link in MEETINGS.matrix(t).edges.tolist()}
    assert met <= neighbours


def test_a_run_over_a_failing_network_has_its_own_view() -> None:
    budget = Budget(6.0, delta=DELTA, view=OneNode(topology=MEETINGS))
    given = {"rounds": 8, "key": dm.Key.seeded(0), "budget": budget}
    network = dm.Network(loss=0.3, max_delay=2)
    failing = dm.simulate(SMALL, PROBLEM, MEETINGS, engine=network, **given).privacy
    realized = RealizedNetwork(MEETINGS, network, dm.Key.seeded(0))
    cost = SMALL.plan(8, PROBLEM).cost(DELTA, view=OneNode(topology=realized))
    assert cost.reason == ""
    assert f"epsilon = {dm.privacy.rounded_up(cost.epsilon)} against" in str(failing.view)
    assert cost.epsilon < cost.full_view_epsilon


def test_a_report_on_a_static_network_has_epsilon_by_distance() -> None:
    report = dm.privacy.report(SMALL.plan(16, PROBLEM), DELTA, view=ONE)
    assert len(report.by_distance) == 8  # of a ring of 16
    assert report.by_distance[0] == pytest.approx(report.epsilon, rel=1e-6)
    assert list(report.by_distance) == sorted(report.by_distance, reverse=True)
    assert "by distance epsilon = 1: " in str(report)
    assert dm.privacy.Report.from_dict(report.as_dict()) == report


def test_facts_of_a_loss_plan_a_view_without_data() -> None:
    facts = LossFacts.of(PROBLEM)
    for algorithm in (SMALL, dm.OnlineLearning(epsilon=2.0, delta=DELTA)):
        with_data, without = (algorithm.plan(8, given) for given in (PROBLEM, facts))
        assert with_data.cost(DELTA, view=ONE) == without.cost(DELTA, view=ONE)

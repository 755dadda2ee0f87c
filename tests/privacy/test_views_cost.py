"""What a run costs against whom, from public numbers: views, algorithms, reasons, refusals."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest
from view_systems import ORACLES

import dpmesh as dm
from dpmesh.kernels.views import Mixing, solve_pair, view_system
from dpmesh.privacy import views
from dpmesh.privacy.cost import Cost
from dpmesh.topology import MixingMatrix, Static, cycle, ring

LOGISTIC = views.LossFacts(loss="logistic", feature_norm=1.0)
RING = ring(8)


def _descent(
    rounds: int = 10, facts: views.LossFacts = LOGISTIC, clipping_norm: float = 1.0
) -> Any:
    algorithm = dm.GradientDescent(records=50, noise_multiplier=4.0, clipping_norm=clipping_norm)
    return algorithm.reaction(rounds, facts)


def _oracle(name: str) -> dict[str, Any]:
    return next(oracle for oracle in ORACLES if oracle["id"] == name)


VIEWS = {
    "ring8.T10.distance1": lambda top: views.Node(node=0, topology=top),
    "ring8.T10.coalition2.opposite": lambda top: views.Coalition(nodes=(1, 7), topology=top),
    "ring8.T10.eavesdropper.links_2": lambda top: views.Links(links=((3, 4), (0, 1)), topology=top),
    "last.ring5.rho0.8": lambda top: views.LastOnly(topology=top),
    "checkpoint.ring8.round5": lambda top: views.Node(
        node=0, topology=top, also=(views.PublishedMessages(rounds=(5,)),)
    ),
    "final_messages.ring8": lambda top: views.Node(
        node=0, topology=top, also=(views.PublishedMessages(rounds=(-1,)),)
    ),
    "final_mean.ring8": lambda top: views.Node(node=0, topology=top, also=(views.PublishedMean(),)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_see_what_the_oracles_see(name: str) -> None:
    """Each view has the oracle's messages; its worst target costs no less than the oracle's."""
    oracle = _oracle(name)
    inputs = oracle["inputs"]
    reaction = views.Reaction(
        sensitivity=inputs["s"],
        noise=inputs["sigma"],
        lipschitz=np.full(inputs["rounds"], inputs["rho"]),
    )
    view = VIEWS[name](ring(inputs["nodes"], weights="metropolis"))
    (system,) = views.system.systems_of(reaction, view)
    seen = system.seen(views.observers.observers_of(view)[0])
    wanted = oracle["seen_by_round"]
    if not isinstance(wanted[0], list):
        wanted = [wanted] * inputs["rounds"]
    assert [np.flatnonzero(row).tolist() for row in seen.reshape(len(wanted), -1)] == wanted
    cost = views.view_cost(1e-5, reaction, view, gap=1e-6)
    assert cost.mu is not None
    assert oracle["output"]["mu"] * (1 - 1e-6) <= cost.mu <= oracle["output"]["mu_everybody"] * 1.01


def test_everybody_costs_what_the_plan_says() -> None:
    algorithm = dm.GradientDescent(records=50, noise_multiplier=4.0)
    plan = algorithm.plan(10).cost(1e-5)
    for view in (views.Everybody(), views.OneNode(topology=RING)):  # a neighbour sees everything
        cost = views.view_cost(1e-5, _descent(), view, full_view=plan)
        assert cost.full_view_epsilon == plan.epsilon
        assert cost.epsilon == pytest.approx(plan.epsilon, rel=1e-6)
    alone = views.view_cost(1e-5, _descent(), views.Everybody())
    assert alone.epsilon == pytest.approx(plan.epsilon, rel=1e-6)


def test_distance_protects_on_a_static_network() -> None:
    costs = views.costs_by_distance(1e-5, _descent(), views.OneNode(topology=RING))
    epsilons = [costs[distance].epsilon for distance in (1, 2, 3, 4)]
    assert epsilons == sorted(epsilons, reverse=True)
    assert epsilons[0] == pytest.approx(costs[1].full_view_epsilon, rel=1e-6)
    assert epsilons[3] < epsilons[0] / 4
    meetings = dm.topology.meetings(8, key=dm.Key.seeded(1))
    with pytest.raises(ValueError, match="topology"):
        views.costs_by_distance(1e-5, _descent(), views.OneNode(topology=meetings))


def test_coalitions_are_enumerated_or_bounded_from_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = dm.topology.meetings(8, key=dm.Key.seeded(3))
    pair = views.AnyCoalition(size=2, topology=topology)
    one = views.view_cost(1e-5, _descent(14), views.OneNode(topology=topology), gap=1e-5)
    exact = views.view_cost(1e-5, _descent(14), pair, gap=1e-5)
    members = [
        views.view_cost(
            1e-5, _descent(14), views.Coalition(nodes=(a, b), topology=topology), gap=1e-5
        )
        for a in range(8)
        for b in range(a)
    ]
    assert exact.mu == pytest.approx(max(cost.mu or 0.0 for cost in members), rel=1e-4)
    monkeypatch.setattr(views.coalitions, "MOST_COALITIONS", 1)
    bounded = views.view_cost(1e-5, _descent(14), pair, gap=1e-5)
    assert "bound from pairs" in bounded.accountant
    assert one.epsilon < exact.epsilon <= bounded.epsilon * (1 + 1e-6)
    assert bounded.epsilon <= bounded.full_view_epsilon


@pytest.mark.parametrize("most_coalitions", [100_000, 1])  # enumerated, bounded from pairs
@pytest.mark.parametrize("last", [0.8, 1.5])
def test_a_coalition_computes_an_unseen_message_from_the_published_mean(
    monkeypatch: pytest.MonkeyPatch, most_coalitions: int, last: float
) -> None:
    """Nodes 2 and 5 see all messages but the last one of node 0, and know it from the mean."""
    rounds, nodes = 3, 7
    round_links = [[(0, 2)], [(0, 5)], [(i, (i + 1) % nodes) for i in range(nodes)]]
    mixings = []
    for t, links in enumerate(round_links):
        weights = np.zeros((nodes, nodes))
        for i, j in links:
            weights[i, j] = weights[j, i] = 1 / 3
        np.fill_diagonal(weights, 1 - weights.sum(axis=1))
        mixings.append(Mixing(t, t, weights, 0.05))
    fresh = np.zeros((rounds, nodes))
    fresh[:, 0] = [1.0, 1.0, last]
    system = view_system(
        mixings, noise=np.ones(rounds), fresh=fresh, nodes=nodes, mean_of_last=True
    )
    together = solve_pair(system, (2, 5), 0).mu
    assert together == pytest.approx(system.everybody(0), rel=1e-6)
    monkeypatch.setattr(views.coalitions, "MOST_COALITIONS", most_coalitions)
    found, _ = views.coalitions.any_coalition(
        system, nodes, 2, rounds * nodes, mean_is_published=True
    )
    assert found.mu >= together * (1 - 1e-9)


def test_a_view_of_coalitions_counts_the_published_mean() -> None:
    """With a mean over a few unseen nodes, any two nodes see no less than the worst two."""
    topology = dm.topology.meetings(6, key=dm.Key.seeded(3))
    also = (views.PublishedMean(),)
    pair = views.AnyCoalition(size=2, topology=topology, also=also)
    exact = views.view_cost(1e-5, _descent(8), pair, gap=1e-5)
    members = [
        views.view_cost(
            1e-5, _descent(8), views.Coalition(nodes=(a, b), topology=topology, also=also), gap=1e-5
        )
        for a in range(6)
        for b in range(a)
    ]
    assert exact.mu == pytest.approx(max(cost.mu or 0.0 for cost in members), rel=1e-4)


def test_online_learning_pays_for_the_worst_round() -> None:
    inputs = _oracle("online.ring6.record_of_round0")["inputs"]
    learning = dm.OnlineLearning(
        epsilon=dm.accounting.gdp_epsilon(delta=1e-5, mu=1 / 1.5),
        delta=1e-5,
        step_size=dm.schedules.InverseSqrt(1.0),
    )
    reaction = learning.reaction(inputs["rounds"], LOGISTIC)
    topology = ring(6, weights="metropolis")
    far = views.costs_by_distance(1e-5, reaction, views.OneNode(topology=topology), gap=1e-6)
    one_record = _oracle("online.ring6.record_of_round0")["output"]
    assert far[1].mu == pytest.approx(1 / 1.5, rel=1e-6)
    assert one_record["mu"] * (1 - 1e-6) <= far[2].mu < far[1].mu
    everybody = views.view_cost(1e-5, reaction, views.Everybody())
    assert everybody.mu == pytest.approx(one_record["mu_everybody"], rel=1e-6)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_a_view_assumes_the_laplace_noise_that_is_drawn(norm: Any) -> None:
    """It grows with the number of parameters for a clipped L2 norm, not for L1."""
    algorithm = dm.OnlineLearning(epsilon=0.5, norm=norm, projection="mixture")
    dim, rounds = 100, 5
    found = algorithm.reaction(rounds, views.LossFacts(loss="logistic", feature_norm=1.0, dim=dim))
    for t in range(1, rounds):
        release = algorithm.release_of(t)
        drawn = release.mechanism.noise_scale(release.sensitivity, dim)
        assert found.noise[t] == pytest.approx(drawn, rel=1e-12)


def test_quantized_gossip_with_shared_coins_is_not_proved() -> None:
    numbers: dict[str, Any] = {
        "mode": "paper",
        "step_size": 0.1,
        "consensus_step_size": 0.5,
        "sample_size": 10,
        "noise_std": 0.05,
        "smoothness": 0.25,
    }
    coarse = dm.QuantizedGossip(**numbers).reaction(8, LOGISTIC)
    assert isinstance(coarse, views.NotProved)
    algorithm = dm.QuantizedGossip(**numbers, compressor=None)
    exact, delta = algorithm.reaction(8, LOGISTIC), algorithm.sensitivities(8)
    everybody = views.view_cost(1e-5, exact, views.Everybody())
    assert everybody.mu == pytest.approx(np.linalg.norm(delta / 0.05), rel=1e-6)
    far = views.costs_by_distance(1e-5, exact, views.OneNode(topology=RING))
    assert far[4].epsilon < far[1].epsilon


@pytest.mark.parametrize(
    ("facts", "clipping_norm", "words"),
    [
        (views.LossFacts(loss="hinge", feature_norm=1.0), 1.0, "kink"),
        (views.LossFacts(loss="absolute", feature_norm=1.0), 1.0, "kink"),
        (views.LossFacts(loss="logistic", feature_norm=None), 1.0, "feature_norm"),
        (views.LossFacts(loss="softmax", feature_norm=1.0, classes=4), 1.0, "at least 1.4143"),
        (views.LossFacts(loss="squared", feature_norm=1.0, classes=4), 1.0, "unbounded"),
    ],
)
def test_what_is_not_proved_costs_as_much_as_everybody(
    facts: views.LossFacts, clipping_norm: float, words: str
) -> None:
    reaction = _descent(facts=facts, clipping_norm=clipping_norm)
    assert words in reaction.reason
    view, plan = views.OneNode(topology=RING), Cost(2.0, "exact")
    cost = views.view_cost(1e-5, reaction, view, full_view=plan)
    assert (cost.epsilon, cost.mu) == (2.0, None)
    assert words in str(cost)


def test_softmax_whose_clipping_is_never_in_force_is_proved() -> None:
    facts = views.LossFacts(loss="softmax", feature_norm=1.0, classes=4)
    assert isinstance(_descent(facts=facts, clipping_norm=1.4143), views.Reaction)


@pytest.mark.parametrize("smoothness", [0.25, 0.5, 1.0])
@pytest.mark.parametrize("regularization", [0.0, 0.1])
def test_steps_of_known_lipschitz_constant(smoothness: float, regularization: float) -> None:
    limit = 2 / (smoothness + regularization)
    assert views.step_lipschitz(limit, smoothness, regularization) <= 1 + 1e-12
    assert views.step_lipschitz(1.01 * limit, smoothness, regularization) > 1
    best = 2 / (smoothness + 2 * regularization)
    wanted = smoothness / (smoothness + 2 * regularization)
    assert views.step_lipschitz(best, smoothness, regularization) == pytest.approx(wanted)


def test_clipped_softmax_expands() -> None:
    """The counterexample: every step expands, however small."""
    z = np.array([-0.04213, 2.01077, 0.28665, -0.20573])
    d = np.array([0.002149, -0.001113, -0.000629, -0.000294])

    def clipped(scores: np.ndarray) -> np.ndarray:
        slope = np.exp(scores) / np.exp(scores).sum() - np.eye(4)[0]
        return slope * min(1.0, 1.0 / float(np.linalg.norm(slope)))

    assert np.linalg.norm(d - 0.1 * (clipped(z + d) - clipped(z))) > np.linalg.norm(d)


def test_epsilons_of_other_noise_are_read_as_concentrated() -> None:
    assert views.epsilon_of(0.0, 0.0) == 0.0
    assert views.epsilon_of(1.0, 0.0) == inf
    exact = views.epsilon_of(1.0, 1e-5)
    assert exact < views.epsilon_of(1.0, 1e-5, "laplace") < 1.2 * exact


def test_messages_without_noise_have_no_finite_epsilon() -> None:
    reaction = views.Reaction(sensitivity=[0, 1, 1], noise=[0, 1, 0], lipschitz=[1, 1, 1])
    assert views.view_cost(1e-5, reaction, views.OneNode(topology=RING)).epsilon == inf
    first = views.Reaction(sensitivity=[0, 1, 1], noise=[0, 1, 1], lipschitz=[1, 1, 1])
    assert views.view_cost(1e-5, first, views.OneNode(topology=RING)).epsilon < inf


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: views.Node(node=8, topology=RING), "node: wanted an integer"),
        (lambda: views.Coalition(nodes=(), topology=RING), "nodes"),
        (lambda: views.Coalition(nodes=(1, 1), topology=RING), "each once"),
        (lambda: views.Coalition(nodes=tuple(range(8)), topology=RING), "outside"),
        (lambda: views.AnyCoalition(size=8, topology=RING), "size"),
        (lambda: views.Links(links=((0, 9),), topology=RING), "links"),
        (lambda: views.OneNode(topology=3), "topology"),
        (lambda: views.view_cost(1e-5, views.NotProved(reason=""), "one"), "view: wanted one of"),
        (lambda: views.Reaction(sensitivity=[1.0], noise=[-1.0], lipschitz=[1.0]), "noise"),
        (lambda: views.LossFacts(loss="softmax", feature_norm=1.0), "classes"),
        (lambda: views.Reaction(sensitivity=[1.0], noise=[1.0, 1.0], lipschitz=[1.0]), "noise"),
        (lambda: Static(MixingMatrix([[1.5, -0.5], [-0.5, 1.5]])), "at least 0"),
    ],
)
def test_bad_arguments_are_refused_in_words(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()


def test_the_target_is_never_part_of_the_observer() -> None:
    from dpmesh.kernels.views import Mixing, solve_pair, view_system

    system = view_system([Mixing(0, 0, np.eye(2))], noise=[1, 1], fresh=[1, 1], nodes=2)
    with pytest.raises(ValueError, match="target: wanted a node outside the observer"):
        solve_pair(system, [1], 1)
    with pytest.raises(ValueError, match="observer"):
        solve_pair(system, [2], 1)
    with pytest.raises(ValueError, match="weights"):
        view_system([Mixing(0, 0, -np.eye(2))], noise=[1, 1], fresh=[1, 1], nodes=2)


def test_a_network_that_changes_is_read_round_by_round() -> None:
    half, alone = MixingMatrix(np.full((2, 2), 0.5)), MixingMatrix(np.eye(2))
    meets_once = cycle([half, alone, alone, alone])
    reaction = views.Reaction(
        sensitivity=[0, 1, 1, 1], noise=np.ones(4), lipschitz=np.ones(4), one_round=True
    )
    view = views.Node(node=0, topology=meets_once)
    assert views.view_cost(1e-5, reaction, view).epsilon == 0  # met before any record was used

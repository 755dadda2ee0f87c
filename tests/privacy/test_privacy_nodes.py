"""Costs node by node: nodes that take part in different rounds pay for different releases."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from itertools import product
from math import hypot, inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused import refused
from sampled_calls import fixed_size_epsilon

from dpmesh import accounting
from dpmesh.noise import Gaussian, Laplace, NoNoise, Sensitivity
from dpmesh.privacy import FixedSizeSampling, Plan, Release, Report, report, total_cost
from dpmesh.privacy.report import Spread

ONE = Sensitivity(1.0, "l2", "a test")
NODES, DELTA = 5, 1e-11

node_sets = st.none() | st.sets(st.integers(0, NODES - 1), min_size=1).map(lambda s: tuple(s))


def releases_of(kind: type[Laplace] | type[Gaussian]) -> st.SearchStrategy[list[Release]]:
    """Releases with one kind of noise, whose costs have formulas."""
    return st.lists(
        st.builds(
            lambda z, batch, nodes: Release(0, kind(z), ONE, batch=batch, nodes=nodes),
            st.sampled_from([0.5, 1.0, 3.0]),
            st.none() | st.integers(0, 2),
            node_sets,
        ),
        max_size=12,
    )


kinds = st.sampled_from([(Laplace, 0.0), (Gaussian, DELTA)])
releases = kinds.flatmap(lambda kind: releases_of(kind[0]))
releases_of_one_law = kinds.flatmap(lambda kind: st.tuples(releases_of(kind[0]), st.just(kind[1])))
runs_of = kinds.flatmap(
    lambda kind: st.tuples(st.lists(releases_of(kind[0]), min_size=1, max_size=3), st.just(kind[1]))
)


def plan(*releases: Release) -> Plan:
    return Plan(releases=releases, neighboring_relation="replace_one", unit="record")


DIFFERENT = plan(*(Release(t, Laplace(1.0 + t), ONE, batch=t) for t in range(30)))


def slow_costs(plan: Plan) -> list[float]:
    """One node, one batch, one release at a time."""
    costs = []
    for node in range(NODES):
        touching = [r for r in plan.releases if r.nodes is None or node in r.nodes]
        by_batch: dict[int | None, list[Release]] = defaultdict(list)
        for release in touching:
            by_batch[release.batch].append(release)
        common = by_batch.pop(None, [])
        epsilons = []
        for own in [*by_batch.values(), []]:
            inverse = [(r.name, 1 / r.noise_to_sensitivity) for r in (*common, *own)]
            mu = hypot(*(x for name, x in inverse if name == "gaussian"))
            pure = sum(x for name, x in inverse if name == "laplace")
            epsilons.append(pure + accounting.gdp_epsilon(delta=DELTA, mu=mu))
        costs.append(max(epsilons))
    return costs


@given(releases_of_one_law)
def test_every_node_pays_for_its_own_releases(drawn: tuple[list[Release], float]) -> None:
    whole, delta = plan(*drawn[0]), drawn[1]
    slow = slow_costs(whole)
    np.testing.assert_allclose(whole.costs_by_node(delta, NODES), slow, rtol=1e-12, atol=1e-15)
    # what no release names pays for common releases only, and never more than the others
    assert whole.cost(delta).epsilon == pytest.approx(max(slow), rel=1e-12)


@pytest.mark.slow
@given(runs_of)
def test_several_runs_cost_what_their_worst_parts_cost_together(
    drawn: tuple[list[list[Release]], float],
) -> None:
    runs, delta = drawn
    plans = [plan(*releases) for releases in runs]
    together = [sum(touched, ()) for touched in product(*(p.compositions() for p in plans))]
    worst = max(
        plan(*(replace(r, batch=None, nodes=None) for r in all_)).cost(delta).epsilon
        for all_ in together
    )
    total = total_cost(plans, delta).epsilon
    assert total == pytest.approx(worst, rel=1e-12)
    assert total >= max(p.cost(delta).epsilon for p in plans) * (1 - 1e-12)


@given(releases_of_one_law, st.integers(2, 4))
def test_a_record_at_several_nodes_costs_what_those_that_pay_most_do(drawn, copies: int) -> None:
    """Each at another node, in the batch that costs most; some nodes may be named by no release."""
    whole, delta = replace(plan(*drawn[0]), copies=copies), drawn[1]
    used: dict[tuple[int, int], list[Release]] = defaultdict(list)
    for node, batch, release in product(range(NODES + copies), range(3), whole.releases):
        if node in (release.nodes or (node,)) and release.batch in (None, batch):
            used[node, batch].append(release)

    def spent(touched: list[Release]) -> float:
        return sum(r.noise_to_sensitivity ** (-2 if delta else -1) for r in touched)

    by_node = [max(spent(used[n, b]) for b in range(3)) for n in range(NODES + copies)]
    most = sum(sorted(by_node)[-copies:])
    exact = accounting.gdp_epsilon(delta=delta, mu=most**0.5) if delta else most
    assert whole.cost(delta).epsilon == pytest.approx(exact, rel=1e-9, abs=1e-12)


def test_copies_on_a_grid_cost_by_their_own_steps() -> None:
    """The noise multiplier is the same, but it is a coarser grid for the smaller sensitivity."""
    releases = [
        Release(0, Gaussian(2.0, grid=1.0), Sensitivity(bound, "l2", "a test"), batch=batch)
        for batch, bound in enumerate((2.0, 100.0))
    ]
    for order in (releases, releases[::-1]):
        twice = replace(plan(*order), copies=2).cost(1e-5).epsilon
        coarse = (replace(releases[0], batch=None, round=t) for t in range(2))
        assert twice == pytest.approx(plan(*coarse).cost(1e-5).epsilon, rel=1e-9)


def test_several_runs_of_all_data_are_one_long_one() -> None:
    long = plan(*(Release(t, Gaussian(2.0), ONE) for t in range(6)))
    short = plan(*(Release(t, Gaussian(2.0), ONE) for t in range(3)))
    assert total_cost([short, short], DELTA) == long.cost(DELTA)
    sampled = FixedSizeSampling(size=1, population=10)
    long, short = (
        plan(*(Release(t, Gaussian(2.0), ONE, sampling=sampled) for t in range(n))) for n in (6, 3)
    )
    assert total_cost(iter([short, short]), DELTA) == long.cost(DELTA)
    once = plan(*(Release(t, Laplace(2.0), ONE, batch=t) for t in range(6)))  # a record in a round
    assert total_cost([once] * 3).epsilon == 3 * once.cost().epsilon
    assert total_cost([plan(), plan()]).epsilon == 0


def test_the_report_tells_the_spread() -> None:
    rounds = [Release(t, Laplace(1.0), ONE, nodes=tuple(range(t, 4))) for t in range(4)]
    reported = report(plan(*rounds))
    assert reported.by_node == Spread(1.0, 3.0, 4.0)
    assert reported.epsilon == 4.0
    assert report(plan(*rounds, *rounds)).releases == reported.releases == 4  # rounds
    assert "by node     epsilon = 1 to 4, median 3" in str(reported)
    assert report(plan(*rounds), nodes=9).by_node == Spread(0.0, 0.0, 4.0)
    everybody = report(plan(Release(0, Laplace(1.0), ONE)))
    assert everybody.by_node is None
    assert "by node" not in str(everybody)


@pytest.mark.parametrize("spread", [None, Spread(1.0, 2.0, 3.0), Spread(0.5, inf, inf)])
def test_a_report_is_the_same_after_json(spread: Spread | None) -> None:
    reported = report(plan(Release(0, Laplace(1.0), ONE)), seeded=True)
    reported = replace(
        reported, epsilon=reported.epsilon if spread is None else spread.largest, by_node=spread
    )
    text = json.dumps(reported.as_dict(), allow_nan=False)
    assert Report.from_dict(json.loads(text)) == reported


@given(releases)
def test_a_plan_is_the_same_after_json(releases: list[Release]) -> None:
    small = Sensitivity(0.1, "l1", "another")
    others = (
        Release(7, Gaussian(0.3), small, sampling=FixedSizeSampling(size=1, population=9)),
        Release(8, NoNoise(), Sensitivity(0.0, "l2", "no data")),
        *(Release(9, Laplace(1.0, grid=grid), small) for grid in (0.25, 0.5)),
        *(Release(9, Laplace(1.0, clipping_norm=norm), small) for norm in (1.0, 2.0)),
    )
    whole = replace(plan(*releases, *others), assumptions=("a server", "a secret"))
    text = json.dumps(whole.as_dict(), allow_nan=False)
    assert Plan.from_dict(json.loads(text)) == whole


def test_a_plan_tells_each_kind_of_release_once() -> None:
    reported = plan(*(Release(t, Laplace(2.0), ONE, batch=t) for t in range(1000))).as_dict()
    assert len(reported["kinds"]) == 1
    assert reported["releases"][3] == [3, 0, 3]


def test_without_a_delta_nodes_pay_pure_epsilons() -> None:
    assert plan(Release(0, Laplace(0.5), ONE, nodes=(1,))).costs_by_node().tolist() == [0.0, 2.0]


@pytest.mark.slow
def test_samples_and_unprotected_values_are_told_apart_by_node() -> None:
    sampling = [FixedSizeSampling(size=10, population=100 * (1 + m)) for m in range(12)]
    sampled = [
        Release(t, Gaussian(1.0), ONE, sampling=sampling[m], nodes=(m,))
        for t in range(20)
        for m in range(12)
    ]
    costs = plan(*sampled).costs_by_node(DELTA, nodes=13)
    alone = [fixed_size_epsilon(DELTA, s.rate, 1.0, count=20) for s in sampling]
    np.testing.assert_allclose(costs, [*alone, 0], rtol=1e-9)
    bare = plan(*sampled, Release(0, NoNoise(), ONE, nodes=(3,)))
    assert np.flatnonzero(bare.costs_by_node(DELTA) == inf).tolist() == [3]
    assert bare.cost(DELTA).accountant == "none: values left without noise"


test_bad_input_is_named = refused(
    (lambda: Release(0, Laplace(1.0), ONE, nodes=()), "nodes: wanted a tuple of distinct"),
    (lambda: Release(0, Laplace(1.0), ONE, nodes=(1, 1)), "nodes: wanted .*distinct.*got \\(1"),
    (lambda: Release(0, Laplace(1.0), ONE, nodes=(-1, 1)), "nodes: wanted .* at least 0"),
    (lambda: Release(0, Laplace(1.0), ONE, nodes=(0.5,)), "nodes: wanted .*integers"),
    (lambda: Release(0, Laplace(1.0), ONE, nodes=np.arange(0)), "nodes: wanted a tuple of dis"),
    (lambda: Release(0, Laplace(1.0), ONE, nodes=3), "nodes: wanted a tuple of .*, got 3"),
    (lambda: Release(0, Laplace(1.0), ONE, nodes=((0,), (1,))), "nodes: wanted a tuple of dis"),
    (lambda: plan(Release(0, Laplace(1.0), ONE, nodes=(3,))).costs_by_node(0, 3), "nodes: want"),
    (lambda: total_cost([]), "plans: wanted at least 1 plan, got none"),
    (lambda: total_cost([plan(), 1.0]), "plans: wanted plans, .* or run.ledger, got 1.0"),
    (
        lambda: total_cost(
            [plan(), Plan(releases=(), neighboring_relation="add_remove", unit="record")]
        ),
        "neighboring_relation: ",
    ),
    (
        lambda: total_cost(
            [plan(), Plan(releases=(), neighboring_relation="replace_one", unit="user")]
        ),
        "unit: wanted one of 'rec",
    ),
    (lambda: total_cost([DIFFERENT] * 3), "plans: wanted at most 10000 combinations of parts"),
)

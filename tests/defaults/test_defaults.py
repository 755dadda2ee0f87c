"""The rule for steps and rounds keeps its budget; its noise and forecasts are what they say."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import dpmesh as dm
from dpmesh.accounting import gdp_epsilon
from dpmesh.algorithms.first_stage import FirstStage
from dpmesh.defaults import Sizes, choose, method_for, network
from dpmesh.defaults.rule import COMPLETE, LITTLE_NOISE, MOST_STEPS, STEPS
from dpmesh.forecast import _problem, forecast, public_data, reserve_cost
from dpmesh.keys import Purpose, generator
from dpmesh.privacy.plan import total_cost

SOME = Sizes(nodes=5, fewest_records=80, total_records=450, dim=12)
BUDGET = {"epsilon": 2.0, "delta": 1e-5}
MOST_NOISE = {"classification": 2.0, "regression": 0.25}


@pytest.mark.slow
@given(
    st.integers(1, 40),
    st.integers(1, 10_000),
    st.floats(0.1, 20),
    st.sampled_from(["classification", "regression"]),
)
def test_gossip_keeps_its_budget_and_limits_its_noise(nodes, records, epsilon, task) -> None:
    sizes = Sizes(nodes=nodes, fewest_records=records, total_records=3 * nodes * records, dim=7)
    chosen = choose(sizes, epsilon=epsilon, delta=1e-5, task=task, algorithm="gossip")
    algorithm = chosen.algorithm
    assert 0.999 * epsilon <= algorithm.plan(chosen.rounds).cost(1e-5).epsilon
    assert algorithm.plan(chosen.rounds).cost(1e-5).epsilon <= epsilon * (1 + 1e-9)
    # the noise of all rounds in the score of a record of norm 1, from the releases themselves
    noise = [
        algorithm.noise_to_sensitivity * algorithm.sensitivity(t).bound
        for t in range(1, chosen.rounds)
    ]
    total = sqrt(sum(scale**2 for scale in noise) / nodes)
    assert total <= MOST_NOISE[task] * (1 + 1e-6)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    st.integers(3, 40),
    st.integers(1, 5_000),
    st.integers(1, 500),
    st.floats(0.1, 20),
    st.sampled_from(["classification", "regression"]),
)
@example(30, 242, 220, 19.0, "classification")  # twice its epsilon has no delta left
def test_a_secure_sum_keeps_its_budget_and_limits_its_noise(
    nodes, records, dim, epsilon, task
) -> None:
    sizes = Sizes(nodes=nodes, fewest_records=records, total_records=nodes * records, dim=dim)
    chosen = choose(sizes, epsilon=epsilon, delta=1e-5, task=task)
    algorithm, sums = chosen.algorithm, chosen.algorithm.secure_sum
    assert chosen.sums_gradients
    assert chosen.topology is None
    cost = algorithm.plan(chosen.rounds).cost(1e-5).epsilon
    assert 0.97 * epsilon <= cost <= epsilon * (1 + 1e-9)
    # all shares of all rounds, in the score of a record of norm 1: as gossip, but for the price of
    # proved accounting and of rounding to the grid
    one = sums.share * sqrt(nodes) * sums.grid / sizes.total_records
    assert algorithm.step_size(1) * one * sqrt(STEPS) <= 1.25 * MOST_NOISE[task]


def test_gossip_takes_more_steps_where_noise_permits_and_no_longer_ones() -> None:
    few, many = SOME, replace(SOME, fewest_records=8_000, total_records=40_000)
    chosen = {}
    for sizes, task, linear, steps in (
        (few, "classification", True, STEPS),
        (many, "classification", True, MOST_STEPS),
        (many, "classification", False, STEPS),
        (many, "regression", True, STEPS),
    ):
        own = choose(sizes, **BUDGET, task=task, linear=linear, algorithm="gossip")
        assert own.rounds == steps + 1
        chosen[sizes, task, linear] = own.algorithm.step_size(1)
    longest = chosen[many, "classification", False]
    assert chosen[many, "classification", True] == longest > chosen[few, "classification", True]
    between = choose(
        replace(SOME, fewest_records=400, total_records=2_000),
        epsilon=8.0,
        delta=1e-5,
        algorithm="gossip",
    )
    assert STEPS + 1 < between.rounds < MOST_STEPS + 1
    assert between.algorithm.step_size(1) == longest
    bound = between.algorithm.sensitivity(1).bound
    noise = between.algorithm.noise_to_sensitivity * bound * sqrt((between.rounds - 1) / 5)
    assert 0.98 * LITTLE_NOISE < noise <= LITTLE_NOISE * (1 + 1e-6)
    summed = choose(many, epsilon=1.0, delta=1e-5, algorithm="secure")
    own, rounds = summed.algorithm, summed.rounds
    assert STEPS < rounds < MOST_STEPS
    of_one = own.secure_sum.noise_scale / own.expected_size * sqrt(rounds)
    noise = own.step_size(1) * of_one / (1 - own.optimizer.decay)
    assert 0.95 * LITTLE_NOISE < noise <= 1.03 * LITTLE_NOISE  # proved accounting has its price


def test_sites_share_one_noise_if_enough_of_them_are_honest() -> None:
    for nodes, colluding, expected in ((1, 1, "gossip"), (2, 1, "gossip"), (3, 1, "secure")):
        assert method_for(nodes, 1.0, colluding=colluding) == expected
    assert method_for(4, 1.0, colluding=3) == "gossip"
    assert method_for(10, None) == "gossip"
    assert method_for(10, 1.0, algorithm="gossip") == "gossip"
    with pytest.raises(ValueError, match="'secure' needs 3, of which 1 collude"):
        method_for(2, 1.0, algorithm="secure")
    with pytest.raises(ValueError, match="'gossip' without an epsilon"):
        method_for(5, None, algorithm="secure")
    with pytest.raises(ValueError, match="algorithm: wanted one of"):
        method_for(5, 1.0, algorithm="sums")


def test_more_colluding_sites_cost_noise() -> None:
    one, three = (choose(SOME, **BUDGET, colluding=c).algorithm.secure_sum for c in (1, 3))
    assert three.share * three.grid == pytest.approx(sqrt(2) * one.share * one.grid, rel=0.01)


def test_a_secure_sum_has_less_noise_than_gossip() -> None:
    chosen = [choose(SOME, **BUDGET, algorithm=method).algorithm for method in ("secure", "gossip")]
    paths = [np.sum([own.step_size(t) for t in range(1, STEPS + 1)]) for own in chosen]
    paths[0] /= 1 - chosen[0].optimizer.decay
    # the same noise in a score allows a path that is longer by the ratio of effective records
    assert paths[0] / paths[1] == pytest.approx(450 * sqrt(4 / 5) / (80 * sqrt(5)))


def test_steps_with_momentum_leave_the_noise_of_the_rule() -> None:
    """In the score of a record of norm 1, by what each round's noise becomes until the end."""
    secure = choose(SOME, **BUDGET, algorithm="secure").algorithm
    assert choose(SOME, **BUDGET, algorithm="secure", linear=False).algorithm.optimizer is None
    decay = secure.optimizer.decay
    lasting = (1 - decay ** np.arange(1, STEPS + 1)) / (1 - decay)
    a_round = secure.secure_sum.noise_scale / secure.expected_size
    assert 1.8 < secure.step_size(1) * a_round * np.sqrt(np.sum(lasting**2)) < 2.01


@pytest.mark.parametrize(
    ("sizes", "topology"),
    [(replace(SOME, features=4), None), (replace(SOME, fewest_records=90), dm.topology.ring(5))],
)
def test_partners_that_share_noise_keep_the_budget_against_everybody_else(sizes, topology) -> None:
    """With a first stage and without: Gaussian releases against one observer add mu squared."""
    given = {**BUDGET, "noise": "BetweenPartners"}
    chosen = choose(sizes, **given, topology=topology)
    plan = chosen.algorithm.plan(chosen.rounds)
    assert plan.cost(1e-5, view=chosen.view).epsilon == pytest.approx(2.0, rel=1e-5)
    assert plan.cost(1e-5).epsilon > 3
    assert isinstance(chosen.algorithm, FirstStage) is (topology is None)
    own = getattr(chosen.algorithm, "algorithm", chosen.algorithm)
    mu = sqrt(chosen.rounds - 1) / own.noise_to_sensitivity
    if topology is None:
        stage = chosen.algorithm.mean
        mu = sqrt(mu**2 + 1 / stage.noise_to_sensitivity**2)
    several = total_cost([plan] * 4, 1e-5, colluding=1).epsilon
    assert several == pytest.approx(gdp_epsilon(delta=1e-5, mu=2 * mu), rel=1e-4)
    # what is left in the mean of all nodes has the noise of nearly one node, in a longer path
    alone = choose(sizes, **BUDGET, algorithm="gossip", topology=topology)
    alone = getattr(alone.algorithm, "algorithm", alone.algorithm)
    gain = own.step_size(1) / alone.step_size(1)
    assert 0.9 * sqrt(4) < gain <= sqrt(4) * (1 + 1e-9)


def test_what_does_not_fit_is_refused_by_name() -> None:
    for changed, said in (
        ({"epsilon": -1.0}, "epsilon"),
        ({"delta": 0.0}, "Gaussian noise has no finite epsilon at delta 0"),
        ({"task": "ranking"}, "task"),
        ({"colluding": -1}, "colluding"),
        ({"noise": "InTime"}, "noise in time buys nothing where every round uses all records"),
        ({"noise": "BetweenPartners", "colluding": 4}, "fewer than 6 sites, of which 4 collude"),
        ({"noise": "BetweenPartners", "algorithm": "secure"}, "noise: wanted None with 'secure'"),
        ({"topology": dm.topology.ring(5), "algorithm": "secure"}, "topology: wanted None with"),
    ):
        with pytest.raises(ValueError, match=said):
            choose(SOME, **{**BUDGET, **changed})
    with pytest.raises(ValueError, match="larger epsilon, or algorithm='gossip'"):
        choose(replace(SOME, dim=100_000), epsilon=1e-3, delta=1e-5)
    for name in ("nodes", "fewest_records", "total_records", "dim"):
        with pytest.raises(ValueError, match=name):
            Sizes(**{**vars(SOME), name: 0})
    assert choose(SOME, epsilon=None, delta=1e-5).algorithm.noise_to_sensitivity is None


def test_many_nodes_have_few_neighbours() -> None:
    key = dm.Key.seeded(1)
    assert network(COMPLETE).matrix(0).messages == COMPLETE * (COMPLETE - 1)
    assert network(COMPLETE + 1, key=key).matrix(0).messages == (COMPLETE + 1) * 8


@pytest.mark.slow
@pytest.mark.parametrize(("records", "kind"), [(5_000, np.float64), (20, np.float32)])
def test_gossip_chooses_the_type_that_its_messages_need(records: int, kind: type) -> None:
    """In float32 those of many records grow too long for the noise, after many rounds."""
    x = np.random.default_rng(0).normal(size=(3 * records, 4)).astype(np.float32)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    train = dm.Dataset(x, (x[:, 0] > 0).astype(int))
    parts = np.arange(len(x)).reshape(3, records)
    problem = dm.LinearProblem(train, parts, "softmax", classes=2)
    chosen = choose(Sizes.of(problem), **BUDGET, algorithm="gossip")
    run = dm.simulate(chosen.algorithm, problem, chosen.topology, rounds=chosen.rounds, metrics=[])
    assert run.released.dtype == kind
    wide = dm.Dataset(x.astype(np.float64), train.labels)
    one, other = (
        dm.baselines.private_single_sites(
            replace(problem, train=records, test=records), **BUDGET, key=dm.Key.seeded(0)
        )
        for records in (train, wide)
    )
    assert one.shape == (3,)
    if kind is np.float64:  # the same numbers, since the records were widened
        np.testing.assert_array_equal(one, other)


def test_public_data_take_any_shape() -> None:
    pytest.importorskip("sklearn")
    for classes in (2, 3, 7):
        for data in public_data(classes).values():
            for features in (3, 70):
                draw = generator(dm.Key.seeded(0), Purpose.SPLIT)
                problem = _problem(data, 4, 30, features, draw)
                assert problem.records.tolist() == [30] * 4
                assert problem.train.dim == features + 1
                assert problem.classes == classes
                assert (problem.train.features**2).sum(axis=1).max() <= 1 + 1e-9


@pytest.mark.slow
def test_a_forecast_grows_with_epsilon_and_is_that_of_the_rule() -> None:
    pytest.importorskip("sklearn")
    shape = {"sites": 3, "records": 40, "features": 5, "key": dm.Key.seeded(1)}
    low, high = (forecast(**shape, epsilon=epsilon) for epsilon in (0.1, 50.0))  # type: ignore[arg-type]
    assert {row.records for row in high.rows} == {10, 40, 160}
    sizes = dm.defaults.Sizes(nodes=3, fewest_records=40, total_records=120, dim=12, features=6)
    assert high.choice == dm.defaults.choose(sizes, epsilon=50.0, delta=1e-5)
    for weak, strong in zip(low.rows_at_records, high.rows_at_records, strict=True):
        assert strong.federation > weak.federation
        assert strong.federation > strong.majority_class
    assert "by secure aggregation (FederatedLearning)" in str(high)
    assert "on the public data sets, " in high.sentence


@pytest.mark.slow
def test_a_reserve_costs_accuracy_where_noise_does() -> None:
    """With almost no noise both have the same model, up to two of the 143 test records or so."""
    pytest.importorskip("sklearn")
    shape = {"sites": 4, "records": 40, "features": 5, "dropouts": 1, "key": dm.Key.seeded(1)}
    quiet = reserve_cost(**shape, reserve=4, epsilon=1000.0)  # type: ignore[arg-type]
    assert all(abs(cost.difference.mean) < 0.01 for cost in quiet)
    noisy = reserve_cost(**shape, reserve=100, epsilon=0.5)  # type: ignore[arg-type]
    assert all(cost.difference.mean < 0 for cost in noisy)
    assert all(cost.with_reserve < cost.without_reserve for cost in noisy)
    assert "breast cancer" in str(noisy[1])


def test_what_cannot_be_forecast_is_refused() -> None:
    pytest.importorskip("sklearn")
    with pytest.raises(ValueError, match="classes: wanted an integer of at least 2"):
        public_data(1)
    with pytest.raises(ValueError, match="records: wanted at most"):
        forecast(sites=1000, records=1000, features=3, epsilon=1.0)

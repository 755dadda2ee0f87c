"""What every algorithm keeps, whatever it does: one contract for all."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, get_args

import numpy as np
import pytest
from one_round import one_round
from problems import contract_problem as make_problem

import dpmesh as dm
from dpmesh import topology
from dpmesh.algorithms import Communication, SecureAggregation, WithReplacement
from dpmesh.algorithms.registry import DIM, NODES, RECORDS, REGISTRY, ROUNDS
from dpmesh.keys import Key
from dpmesh.noise import correlated
from dpmesh.privacy import Plan, total_cost
from dpmesh.privacy.views import OneNode

DELTA = 1e-5
RING = topology.ring(NODES)

OTHERS = {
    "online, mini-batches, gaussian": dm.OnlineLearning(epsilon=2.0, delta=DELTA, batch_size=2),
    "online, noise in time": dm.OnlineLearning(
        epsilon=2.0, delta=DELTA, noise=correlated.InTime(topology=RING, rounds=ROUNDS)
    ),
    "online, noise in time and between partners": dm.OnlineLearning(
        epsilon=2.0,
        delta=DELTA,
        noise=correlated.Both(topology=RING, rounds=ROUNDS, mixings=2, coalition=1),
    ),
    "gradient descent, noise between partners": dm.GradientDescent(
        records=RECORDS,
        noise_multiplier=4.0,
        noise=correlated.BetweenPartners(topology=RING, rounds=ROUNDS, mixings=2),
    ),
    "gradient descent on batches, noise in time": dm.GradientDescent(
        records=RECORDS,
        noise_multiplier=4.0,
        batches=2,
        noise=correlated.InTime(topology=RING, rounds=ROUNDS),
    ),
    "federated, in groups, noise in time": dm.FederatedLearning(
        dm.ClientUpdates(
            clients=NODES, sampling_rate=0.5, clipping_norm=1.0, epochs=1, sampling="cyclic"
        ),
        noise_multiplier=1.0,
        noise=correlated.InTime(topology=None, rounds=ROUNDS),
    ),
    "quantized, noise between partners": dataclasses.replace(
        next(entry.example for entry in REGISTRY if entry.name == "quantized"),
        noise=correlated.BetweenPartners(topology=RING, rounds=ROUNDS),
    ),
    "federated, on a grid": dm.FederatedLearning(
        dm.ClientUpdates(clients=NODES, sampling_rate=0.5, clipping_norm=1.0, epochs=1),
        noise_multiplier=1.0,
        combination=dm.algorithms.TrustedServer(grid=2.0**-16),
    ),
    "federated, uniform": dm.FederatedLearning(
        dm.ClientUpdates(
            clients=NODES, sampling_rate=0.5, clipping_norm=1.0, sampling="uniform", steps=2
        ),
        noise_multiplier=2.0,
    ),
    "federated, clients drop out": dm.FederatedLearning(
        dm.ClientUpdates(clients=NODES, sampling_rate=0.5, clipping_norm=1.0, epochs=1),
        noise_multiplier=1.0,
        combination=dm.algorithms.TrustedServer(arrival_rate=0.7),
    ),
    "federated, records at a trusted server": dm.FederatedLearning(
        dm.RecordGradients(clients=NODES, records=NODES * RECORDS, sampling_rate=0.5),
        noise_multiplier=2.0,
    ),
    "federated, under a secure sum": dm.FederatedLearning(
        dm.ClientUpdates(clients=NODES, sampling_rate=0.5, clipping_norm=1.0, epochs=1),
        noise_multiplier=1.0,
        combination=SecureAggregation(dim=DIM, rounds=ROUNDS),
    ),
}
ALGORITHMS = {entry.name: entry.example for entry in REGISTRY if entry.learns} | OTHERS

each = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS.keys())


def run(algorithm: Any, *, problem: dm.LinearProblem | None = None, seed: int = 0) -> dm.Run:
    network = topology.ring(NODES) if algorithm.communication == "gossip" else None
    problem = make_problem() if problem is None else problem
    return dm.simulate(
        algorithm, problem, network, rounds=ROUNDS, key=Key.seeded(seed), delta=DELTA
    )


def parts_of(value: Any) -> list[Any]:
    """Return all that a state is made of."""
    if dataclasses.is_dataclass(value):
        inside = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif isinstance(value, (tuple, list)):
        inside = list(value)
    else:
        return [value]
    return [part for one in inside for part in parts_of(one)]


def same(one: Any, other: Any) -> bool:
    pairs = zip(parts_of(one), parts_of(other), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in pairs)


class Pretrained(dm.LinearProblem):
    """Starts from a model of public data."""

    def initial(self, key: Key) -> np.ndarray:
        return np.full((1, self.dim), 0.25)


@each
def test_it_starts_where_the_problem_says(algorithm: Any) -> None:
    plain, key = make_problem(), Key.seeded(0)
    own = Pretrained(plain.train, plain.partition, plain.loss, feature_norm=1.0)
    start = algorithm.parameters(algorithm.init(own, key))
    hint = "init starts at problem.initial, by dpmesh.algorithms.base.initial_parameters"
    np.testing.assert_array_equal(start, np.full_like(start, 0.25), hint)
    assert not algorithm.parameters(algorithm.init(plain, key)).any()


@each
def test_a_start_takes_the_type_of_the_records(algorithm: Any) -> None:
    plain = make_problem()
    train = dm.Dataset(plain.train.features.astype(np.float32), plain.train.labels)
    own = Pretrained(train, plain.partition, plain.loss, feature_norm=1.0)
    assert run(algorithm, problem=own).parameters.dtype == np.float32


@pytest.mark.parametrize("start", [np.zeros((NODES, DIM)), np.zeros((1, 1)), [[np.nan] * DIM], 0.0])
@each
def test_a_start_that_is_no_model_is_named(algorithm: Any, start: Any) -> None:
    plain = make_problem()

    class Other(dm.LinearProblem):
        def initial(self, key: Key) -> Any:
            return start

    own = Other(plain.train, plain.partition, plain.loss, feature_norm=1.0)
    with pytest.raises(ValueError, match="initial: wanted "):
        algorithm.init(own, Key.seeded(0))


def test_a_start_beyond_the_ball_is_projected_where_gradients_are_bounded_only_there() -> None:
    plain = make_problem()
    own = Pretrained(plain.train, plain.partition, plain.loss, feature_norm=1.0)
    algorithm = dm.WithoutReplacement(delta=DELTA, batch_size=2, radius=0.1)
    state = algorithm.init(own, Key.seeded(0))
    for models in (state.local, state.released):
        np.testing.assert_allclose(np.linalg.norm(models, axis=-1), 0.1, rtol=1e-12)


@each
def test_it_is_a_frozen_value_and_so_is_its_state(algorithm: Any) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        algorithm.communication_not = 1
    assert dataclasses.replace(algorithm) == algorithm
    state = algorithm.init(make_problem(), Key.seeded(0))
    is_frozen = dataclasses.is_dataclass(state) and type(state).__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert is_frozen, f"init returns a frozen dataclass of arrays, not {type(state).__name__}"
    assert algorithm.communication in get_args(Communication)


@each
def test_a_run_starts_before_it_has_seen_data(algorithm: Any) -> None:
    one, other = (algorithm.init(make_problem(seed), Key.seeded(0)) for seed in (0, 1))
    assert same(one, other)


@each
def test_the_ledger_is_the_plan(algorithm: Any) -> None:
    result = run(algorithm)
    planned = algorithm.plan(ROUNDS).cost(DELTA).epsilon
    if isinstance(algorithm, WithReplacement):  # whose turn it is, chance decides; all may be one's
        assert len(result.ledger.releases) == ROUNDS
        assert result.privacy.epsilon <= planned
    else:
        assert result.ledger == algorithm.plan(ROUNDS)
        assert result.privacy.epsilon == planned
    assert 0 < result.privacy.epsilon < np.inf
    assert algorithm.plan(ROUNDS) == algorithm.plan(ROUNDS)
    reported = json.loads(json.dumps(result.ledger.as_dict()))
    assert Plan.from_dict(reported) == result.ledger


@each
@pytest.mark.parametrize(("rounds", "wanted"), [(0, "an integer"), (10**9, "at most ")])
def test_a_plan_of_no_rounds_or_too_many_to_list_is_refused_at_once(
    algorithm: Any, rounds: int, wanted: str
) -> None:
    with pytest.raises(ValueError, match=f"^rounds: wanted {wanted}.*, got {rounds}$"):
        algorithm.plan(rounds)


@each
def test_the_same_key_gives_the_same_bits_and_another_key_others(algorithm: Any) -> None:
    one, again, other = run(algorithm), run(algorithm), run(algorithm, seed=1)
    np.testing.assert_array_equal(one.parameters, again.parameters)
    np.testing.assert_array_equal(one.released, again.released)
    assert (one.released != other.released).any()


@each
def test_bits_do_not_depend_on_the_number_of_threads(algorithm: Any) -> None:
    """Of vectors so long that threads share them."""
    problem, before, results = make_problem(dim=20_000), dm.kernels.get_threads(), []
    if hasattr(algorithm, "dim"):
        algorithm = dataclasses.replace(algorithm, dim=problem.dim)
    if isinstance(secure := getattr(algorithm, "combination", None), SecureAggregation):
        longer = dataclasses.replace(secure, dim=problem.dim)
        algorithm = dataclasses.replace(algorithm, combination=longer)
    try:
        for threads in (1, 2, 7):
            dm.kernels.set_threads(threads)
            results.append(run(algorithm, problem=problem))
    finally:
        dm.kernels.set_threads(before)
    for other in results[1:]:
        np.testing.assert_array_equal(other.parameters, results[0].parameters)
        np.testing.assert_array_equal(other.released, results[0].released)
        assert other.traffic == results[0].traffic


@each
def test_a_state_holds_no_key(algorithm: Any) -> None:
    problem, key = make_problem(), Key.seeded(0)
    state = algorithm.init(problem, key)
    state = one_round(algorithm, state, 0, problem, key).state
    assert not any(isinstance(part, (Key, dm.keys.Stream)) for part in parts_of(state))


@each
def test_a_report_of_a_seeded_run_says_so(algorithm: Any) -> None:
    assert "NOT private: seeded noise" in str(run(algorithm).privacy)


@pytest.mark.parametrize(
    "entry",
    [e for e in REGISTRY if hasattr(e.example, "copies") and not e.kind.counts_copies],
    ids=lambda entry: entry.name,
)
def test_copies_of_a_record_cost_what_so_many_runs_cost(entry: Any) -> None:
    """Each holder has noise of its own; where the algorithm has an epsilon, noise grows instead."""
    delta, rounds = getattr(entry.example, "delta", 1e-5), ROUNDS
    one, three = (
        dataclasses.replace(entry.example, copies=copies).plan(rounds) for copies in (1, 3)
    )
    assert "no record is held by more than 3 nodes" in three.assumptions[-1]
    assert "no record is held by more than 1 node," in one.assumptions[-1]
    if hasattr(entry.example, "epsilon"):
        assert three.cost(delta).epsilon == pytest.approx(one.cost(delta).epsilon, rel=1e-9)
        first = [next(r for r in plan.releases if r.noise_to_sensitivity) for plan in (one, three)]
        assert (
            first[1].mechanism.noise_to_sensitivity > 1.7 * first[0].mechanism.noise_to_sensitivity
        )
        return
    assert three.cost(delta) == total_cost([one] * 3, delta)
    assert Plan.from_dict(three.as_dict()).cost(delta) == three.cost(delta)
    reason = three.cost(delta, view=OneNode(topology=RING)).reason
    assert "copies" in reason or "at several nodes" in reason or "problem" in reason


@each
def test_the_sensitivity_of_a_round_is_that_of_its_release(algorithm: Any) -> None:
    hint = f"define {type(algorithm).__name__}.sensitivity(t), of which release_of is built"
    assert hasattr(algorithm, "sensitivity"), hint
    for t in range(3):
        releases = algorithm.release_of(t)
        each = releases if isinstance(releases, tuple) else (releases,)
        touching = [release for release in each if release.sensitivity.bound > 0]
        for last in touching[-1:] or each[:1]:
            assert algorithm.sensitivity(t) == last.sensitivity

"""The federated algorithm on Flower: our simulator's models, with clients of any kind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from federated_parts import changed

import dpmesh as dm

flwr = pytest.importorskip("flwr.app", reason="needs the extra 'flower'")

from flower_clients import (  # noqa: E402
    ALGORITHM,
    AVERAGED,
    CLIENTS,
    DIM,
    IN_TIME,
    NAMES,
    STEP,
    Clients,
    L,
    make_problem,
    model,
    run,
)

from dpmesh.deploy.flower import DPFedLS, flat, private_update, unflat  # noqa: E402
from dpmesh.deploy.flower.supernode import asks_for_name  # noqa: E402

pytestmark = pytest.mark.usefixtures("inside_an_app")


@pytest.mark.parametrize("algorithm", [ALGORITHM, AVERAGED, IN_TIME])
def test_the_same_models_as_in_our_simulator(algorithm) -> None:
    problem, key = make_problem(), dm.Key.seeded(3)
    simulated = dm.simulate(algorithm, problem, rounds=5, key=key, delta=1e-5)
    strategy = DPFedLS(algorithm, delta=1e-5, key=key, parties=NAMES)
    result = run(strategy, Clients(problem, private_update(L)))
    np.testing.assert_allclose(flat(result.arrays), simulated.parameters, rtol=1e-12, atol=1e-14)
    assert strategy.report == replace(simulated.privacy, not_covered=())  # no losses here
    assert strategy.report.releases == 5
    assert result.train_metrics_clientapp[5]["epsilon"] == simulated.privacy.epsilon
    assert set(result.train_metrics_clientapp[1]) == {"epsilon", "delta"}


def test_the_log_says_at_the_beginning_what_all_rounds_cost(caplog) -> None:
    """Flower asks for a summary before the first round: what was released by then is nothing."""
    caplog.set_level("INFO", logger="flwr")
    strategy = DPFedLS(ALGORITHM, delta=1e-5)
    run(strategy, Clients(make_problem(), private_update(L)), 2)
    reported = [line for line in caplog.messages if "epsilon = " in line]
    assert reported == [f"\t{str(strategy.report).splitlines()[0]}"]


def test_who_does_not_answer_is_missing_from_the_sum_alone() -> None:
    problem = make_problem()
    quiet = changed(ALGORITHM, noise_multiplier=None, denoiser=dm.algorithms.denoisers.Identity())
    clients = Clients(problem, private_update(L))
    clients.silent = {2}
    clients.spoilt = {4: np.full(DIM, np.nan)}
    strategy = DPFedLS(quiet, delta=0.0)
    w = flat(run(strategy, clients, 1).arrays)
    total = np.zeros(DIM)
    for node in (0, 1, 3, 5):
        batch = problem.records_of(np.array([node]))
        move = problem.step(np.zeros((1, DIM)), STEP, batch, out=np.zeros((1, DIM)))
        total += move[0] * min(1, L / np.linalg.norm(move))
    np.testing.assert_allclose(w[0], total / CLIENTS, rtol=1e-12)
    assert strategy.report.epsilon == np.inf


def test_the_server_clips_whatever_a_client_sends() -> None:
    clients = Clients(make_problem(), lambda message, context, call: call(message, context))
    clients.spoilt = {node: np.full(DIM, 1e9) for node in range(CLIENTS)}
    quiet = changed(ALGORITHM, noise_multiplier=None, denoiser=dm.algorithms.denoisers.Identity())
    w = flat(run(DPFedLS(quiet, delta=0.0), clients, 1).arrays)
    assert np.linalg.norm(w) == pytest.approx(L)


def test_a_client_that_answers_twice_is_in_the_sum_once() -> None:
    class Twice(Clients):
        def send_and_receive(self, messages, *, timeout=None):
            return 2 * super().send_and_receive(messages, timeout=timeout)

    problem, key = make_problem(), dm.Key.seeded(3)
    once, twice = (
        flat(run(DPFedLS(ALGORITHM, key=key), clients(problem, private_update(L)), 2).arrays)
        for clients in (Clients, Twice)
    )
    np.testing.assert_array_equal(once, twice)


@pytest.mark.parametrize(
    "sent",
    [
        {"weight": np.zeros(DIM, np.int64)},
        {"weight": np.zeros(DIM - 1)},
        {"weight": np.full(DIM, 1e300)},
        {"weight": np.full(DIM, np.inf)},
        {"weight": np.zeros(DIM - 1), "bias": np.zeros(1, np.float32)},
        {"weight": flwr.Array("float64", (DIM,), "numpy.ndarray", b"")},
        {"weight": flwr.Array("float64", (DIM,), "numpy.ndarray", b"nothing of numpy's")},
        {"weight": flwr.Array("float64", (DIM,), "of somebody else", b"")},
    ],
    ids=[
        "integers",
        "too short",
        "too long for the type",
        "infinite",
        "of two types",
        "empty",
        "no array",
        "another library's",
    ],
)
def test_what_is_no_model_counts_as_missing(sent) -> None:
    """Nothing that one client sends ends the run, or keeps the others out of the sum."""

    class Spoiling(Clients):
        def answer(self, message):
            if message.metadata.dst_node_id != 103 or asks_for_name(message):
                return super().answer(message)
            arrays = {
                name: part if isinstance(part, flwr.Array) else flwr.Array(part)
                for name, part in sent.items()
            }
            content = flwr.RecordDict({"model": flwr.ArrayRecord(arrays)})
            return flwr.Message(content, reply_to=message)

    quiet = changed(ALGORITHM, noise_multiplier=None, denoiser=dm.algorithms.denoisers.Identity())
    start = model(np.zeros(DIM, np.float32))
    missing = Clients(make_problem(), private_update(L))
    missing.silent = {3}
    spoiling = Spoiling(make_problem(), private_update(L))
    results = [DPFedLS(quiet, delta=0.0).start(grid, start, 1) for grid in (spoiling, missing)]
    np.testing.assert_array_equal(*(flat(result.arrays) for result in results))
    assert flat(results[0].arrays).any()


def test_cohorts_are_drawn_by_the_algorithm() -> None:
    poisson = changed(ALGORITHM, sampling="poisson", sampling_rate=0.4)
    key, clients = dm.Key.seeded(3), Clients(make_problem(), private_update(L))
    strategy = DPFedLS(poisson, delta=1e-5, key=key)
    run(strategy, clients, 8)
    trained = [sorted(asked) for asked in clients.asked[::2]]  # every other call evaluates
    assert trained == [poisson.contribution.cohort(t, key, None).tolist() for t in range(8)]
    assert strategy.report.epsilon == poisson.plan(8).cost(1e-5).epsilon


def test_no_round_beyond_the_budget() -> None:
    cost = ALGORITHM.plan(3).cost(1e-5).epsilon
    clients = Clients(make_problem(), private_update(L))
    strategy = DPFedLS(ALGORITHM, budget=dm.privacy.Budget(cost * 1.0001, delta=1e-5))
    with pytest.raises(ValueError, match=r"rounds: wanted at most 3, .* got 4"):
        run(strategy, clients, 4)
    assert clients.asked == []
    run(strategy, clients, 3)
    assert strategy.report.delta == 1e-5
    with pytest.raises(ValueError, match=r"rounds: wanted at most 3, .* got 4"):
        strategy.configure_train(4, model(np.zeros(DIM)), flwr.ConfigRecord(), clients)


def test_a_plan_of_too_many_rounds_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match=r"rounds: wanted at most 1.*, got 1000000000"):
        DPFedLS(ALGORITHM).plan(10**9)


def test_arguments_of_another_kind_are_named() -> None:
    with pytest.raises(ValueError, match="algorithm: wanted a FederatedLearning, got OnlineL"):
        DPFedLS(dm.OnlineLearning())
    secure = dm.algorithms.SecureAggregation(dim=DIM, rounds=3)
    with pytest.raises(ValueError, match="a contract between parties runs secure sums"):
        DPFedLS(changed(ALGORITHM, combination=secure))
    with pytest.raises(ValueError, match=r"budget: wanted a .*Budget or None, got \(1.0, 1e-05\)"):
        DPFedLS(ALGORITHM, budget=(1.0, 1e-5))
    with pytest.raises(ValueError, match=r"key: wanted a Key, .*, or None, got 3"):
        DPFedLS(ALGORITHM, key=3)


def test_a_strategy_runs_once() -> None:
    strategy = DPFedLS(ALGORITHM, budget=dm.privacy.Budget(100.0, delta=1e-5))
    run(strategy, Clients(make_problem(), private_update(L)), 2)
    with pytest.raises(ValueError, match="strategy: wanted a new one for each run, got one that"):
        run(strategy, Clients(make_problem(), private_update(L)), 1)
    assert strategy.report.releases == 2


def test_two_strategies_have_the_same_noise_only_under_a_seeded_key() -> None:
    for key, same in ((dm.Key.generate(), False), (dm.Key.seeded(1), True)):
        one, other = (
            run(DPFedLS(ALGORITHM, key=key), Clients(make_problem(), private_update(L)), 1)
            for _ in range(2)
        )
        assert np.array_equal(flat(one.arrays), flat(other.arrays)) is same


def test_arrays_come_back_as_they_went() -> None:
    record = model(np.arange(DIM, dtype=np.float32))
    back = unflat(flat(record), record)
    assert list(back) == ["weight", "bias"]
    for one, other in zip(back.to_numpy_ndarrays(), record.to_numpy_ndarrays(), strict=True):
        np.testing.assert_array_equal(one, other)
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
    mixed = flwr.ArrayRecord({"n": flwr.Array(np.zeros(2, int)), "w": flwr.Array(np.zeros(2))})
    with pytest.raises(ValueError, match=r"arrays: wanted arrays all of float32 or .* 'int64'"):
        flat(mixed)


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match=r"delta: wanted .*, got 1"):
        DPFedLS(ALGORITHM, delta=1)
    with pytest.raises(ValueError, match=r"parties: wanted 6 different names, one for each"):
        DPFedLS(ALGORITHM, delta=1e-5, parties=6 * ["north"])
    with pytest.raises(ValueError, match=r"quorum: wanted an integer .* below 7, got 7"):
        DPFedLS(ALGORITHM, delta=1e-5, quorum=7)

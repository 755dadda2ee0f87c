"""Federated learning under secure sums: what a client sends, what it costs, what is learned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federated_parts import changed

import dpmesh as dm
from dpmesh.algorithms import SecureAggregation, TrustedServer
from dpmesh.engines.secure import (
    Contract,
    Folder,
    Server,
    Site,
    client_sums,
    client_update,
    in_process,
    record_sums,
    train,
    train_federated,
)
from dpmesh.keys import Key
from dpmesh.privacy.secure import encode

CLIENTS, DIM, L, DELTA = 4, 6, 0.5, 1e-5
ALGORITHM = dm.FederatedLearning(
    dm.ClientUpdates(
        clients=CLIENTS, sampling_rate=1.0, clipping_norm=L, sampling="uniform", steps=1
    ),
    noise_multiplier=3.0,
    combination=SecureAggregation(dim=DIM, rounds=3),
)
POISSON = changed(ALGORITHM, sampling="poisson", sampling_rate=0.5)
GOALS = np.random.default_rng(2).normal(size=(CLIENTS, 1, DIM))


def towards(goal: Any) -> Any:
    return lambda w: w + 0.3 * (goal - w)


KEYS = tuple(bytes([i]) * 32 for i in range(CLIENTS))


def contract(algorithm: dm.FederatedLearning, keys: Any = KEYS) -> Contract:
    assert algorithm.secure_sum is not None
    return Contract(
        numbers=algorithm.secure_sum, model="a goal", site_keys=tuple(keys), unit="user"
    )


def contract_of(folder: Path, algorithm: dm.FederatedLearning) -> tuple[Contract, list[Folder]]:
    folders = [Folder.create(folder / f"{i}", epsilon=1e9, delta=DELTA) for i in range(CLIENTS)]
    for each in folders:
        each._require = id  # whatever it costs
    return contract(algorithm, (each.signing.public for each in folders)), folders


def server_of(folder: Path, algorithm: dm.FederatedLearning) -> tuple[Server, Any]:
    terms, folders = contract_of(folder, algorithm)
    sites = [
        Site(terms, own, client_update(terms, towards(goal)))
        for own, goal in zip(folders, GOALS, strict=True)
    ]
    return Server(terms, in_process(sites)), sites


def test_it_learns_what_federated_learning_does(tmp_path: Path) -> None:
    """Noise of 1e-3 of a clipped update: the models of plain federated averaging."""
    quiet = changed(ALGORITHM, noise_multiplier=1e-3)
    server, sites = server_of(tmp_path, quiet)
    found = train_federated(server, quiet, np.zeros((1, DIM)))
    w = np.zeros((1, DIM))
    for _ in range(3):
        updates = np.concatenate([towards(goal)(w) - w for goal in GOALS])
        w = w + dm.kernels.clip_rows(updates, L).sum(axis=0, keepdims=True) / CLIENTS
    std = 3**0.5 * server.contract.numbers.share * server.contract.numbers.grid
    np.testing.assert_allclose(found, w, atol=10 * std)
    for site in sites:
        assert site.state.spent == 3
        site.folder.close()


@pytest.mark.parametrize("algorithm", [ALGORITHM, POISSON])
def test_a_ledger_equals_the_plan(algorithm: dm.FederatedLearning, tmp_path: Path) -> None:
    server, sites = server_of(tmp_path, algorithm)
    train_federated(server, algorithm, np.zeros((1, DIM)))
    planned, simulated = server.contract.plan, algorithm.plan(3)
    assert (planned.unit, len(planned.releases)) == ("user", 3)
    assert planned.assumptions == simulated.assumptions
    assert planned.cost(DELTA) == simulated.cost(DELTA)
    for site in sites:
        assert site.folder.ledger(server.contract) == planned
        site.folder.close()


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize("algorithm", [ALGORITHM, POISSON])
def test_a_seeded_run_has_the_simulators_bits(
    algorithm: dm.FederatedLearning, kind: Any, tmp_path: Path
) -> None:
    """Clients that train as the algorithm says, each on its own records, under real masks."""
    rng, key = np.random.default_rng(5), Key.seeded(6)
    x = rng.normal(size=(40, DIM)).astype(kind)
    train = dm.Dataset(x, np.where(rng.random(40) < 0.5, -1, 1))
    problem = dm.LinearProblem(train, np.array_split(np.arange(40), CLIENTS), "logistic")
    algorithm = changed(algorithm, steps=4, batch_size=3)
    terms, folders = contract_of(tmp_path, algorithm)
    sites = [
        Site(terms, own, client_sums(terms, algorithm, mine), rehearsal=key)
        for own, mine in zip(folders, map(problem.for_nodes, [[i] for i in range(4)]), strict=True)
    ]
    server = Server(terms, in_process(sites))
    found = train_federated(server, algorithm, algorithm.init(problem, key).w)
    run = dm.simulate(algorithm, problem, rounds=3, key=key, delta=DELTA, metrics=[])
    assert found.dtype == run.parameters.dtype == kind
    np.testing.assert_array_equal(found, run.parameters)
    with pytest.raises(ValueError, match="the records of one client"):
        client_sums(terms, algorithm, problem)
    with pytest.raises(ValueError, match="that of the contract"):
        client_sums(terms, changed(algorithm, clipping_norm=1.0), problem.for_nodes([0]))
    for own in folders:
        own.close()


@pytest.mark.parametrize("trained", [1e3, 1e154, -1e300, np.nan, np.inf])
def test_a_client_moves_the_sum_by_at_most_the_sensitivity(trained: float) -> None:
    """Replaced by another: in steps of the grid, after rounding, whatever training returns."""
    terms, w, coins = contract(ALGORITHM), np.zeros((1, DIM)), Key.seeded(1)
    numbers = terms.numbers

    def steps(value: float) -> Any:
        return encode(numbers, client_update(terms, lambda w: np.full_like(w, value))(w, 0, coins))

    moved = float(np.linalg.norm(steps(trained) - steps(-trained)))
    assert moved <= numbers.sensitivity
    if np.isfinite(trained):
        assert moved > 0.99 * 2 * numbers.steps


def test_a_client_whose_training_fails_sends_noise_alone_and_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(w: Any) -> Any:
        raise ValueError("patient 17")

    assert not client_update(contract(ALGORITHM), fails)(np.ones((1, DIM)), 0, Key.seeded(1)).any()
    assert "patient 17" in caplog.text


def test_each_client_takes_part_by_a_coin_of_its_own() -> None:
    """Half of 2,000 coins: 6 standard errors, false alarm 2e-9."""
    sums, w = client_update(contract(POISSON), towards(GOALS[0])), np.zeros((1, DIM))
    took_part = [bool(sums(w, 0, Key.seeded(seed)).any()) for seed in range(2000)]
    assert abs(np.mean(took_part) - 0.5) < 6 * 0.5 / 2000**0.5


def test_an_algorithm_of_another_contract_is_refused(tmp_path: Path) -> None:
    server, sites = server_of(tmp_path, ALGORITHM)
    for other in ({"noise_multiplier": 2.0}, {"combination": TrustedServer()}):
        with pytest.raises(ValueError, match="whose secure_sum is that of the contract"):
            train_federated(server, changed(ALGORITHM, **other), np.zeros((1, DIM)))
    for site in sites:
        site.folder.close()


def test_a_contract_of_another_unit_is_refused(tmp_path: Path) -> None:
    """Where it says "record", a whole client's update would be charged as one record's."""
    server, sites = server_of(tmp_path, ALGORITHM)
    records = replace(server.contract, unit="record")
    silo: Any = dm.CrossSiloSGD
    for act in (
        lambda: client_update(records, towards(GOALS[0])),
        lambda: client_sums(records, ALGORITHM, None),
        lambda: train_federated(Server(records, server._carry), ALGORITHM, np.zeros((1, DIM))),
    ):
        with pytest.raises(ValueError, match='unit="user", where a client\'s whole update'):
            act()
    for act in (
        lambda: record_sums(server.contract, silo, None),
        lambda: train(server, silo, np.zeros((1, DIM))),
    ):
        with pytest.raises(ValueError, match='unit="record", where the gradient of each record'):
            act()
    for site in sites:
        site.folder.close()

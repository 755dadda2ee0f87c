"""Federated learning under secure sums: what a client sends, what it costs, what is learned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpmesh as dm
from dpmesh.algorithms.federated_server import AdaptiveClipping
from dpmesh.engines.secure import (
    Contract,
    Folder,
    Server,
    Site,
    client_update,
    federated_sum,
    in_process,
    train_federated,
)
from dpmesh.keys import Key
from dpmesh.privacy.secure import encode

CLIENTS, DIM, L, DELTA = 4, 6, 0.5, 1e-5
ALGORITHM = dm.FederatedLearning(
    clients=CLIENTS,
    sampling_rate=1.0,
    clipping_norm=L,
    noise_multiplier=3.0,
    sampling="uniform",
    local_steps=1,
)
POISSON = replace(ALGORITHM, sampling="poisson", sampling_rate=0.5)
GOALS = np.random.default_rng(2).normal(size=(CLIENTS, 1, DIM))


def towards(goal: Any) -> Any:
    return lambda w: w + 0.3 * (goal - w)


def server_of(folder: Path, algorithm: dm.FederatedLearning, rounds: int) -> tuple[Server, Any]:
    folders = [Folder.create(folder / f"{i}", epsilon=1e9, delta=DELTA) for i in range(CLIENTS)]
    numbers = federated_sum(algorithm, DIM, rounds)
    for each in folders:
        each._require = id  # whatever it costs
    keys = tuple(each.signing.public for each in folders)
    contract = Contract(numbers=numbers, model="a goal", site_keys=keys, unit="user")
    sites = [
        Site(contract, own, client_update(numbers, towards(goal)))
        for own, goal in zip(folders, GOALS, strict=True)
    ]
    return Server(contract, in_process(sites)), sites


def test_it_learns_what_federated_learning_does(tmp_path: Path) -> None:
    """Noise of 1e-3 of a clipped update: the models of plain federated averaging."""
    quiet = replace(ALGORITHM, noise_multiplier=1e-3)
    server, sites = server_of(tmp_path, quiet, rounds=5)
    found = train_federated(server, quiet, np.zeros((1, DIM)))
    w = np.zeros((1, DIM))
    for _ in range(5):
        updates = np.concatenate([towards(goal)(w) - w for goal in GOALS])
        w = w + dm.kernels.clip_rows(updates, L).sum(axis=0, keepdims=True) / CLIENTS
    std = 5**0.5 * server.contract.numbers.share * server.contract.numbers.grid
    np.testing.assert_allclose(found, w, atol=10 * std)
    for site in sites:
        assert site.state.spent == 5
        site.folder.close()


@pytest.mark.parametrize("algorithm", [ALGORITHM, POISSON])
def test_a_ledger_equals_the_plan(algorithm: dm.FederatedLearning, tmp_path: Path) -> None:
    server, sites = server_of(tmp_path, algorithm, rounds=3)
    train_federated(server, algorithm, np.zeros((1, DIM)))
    planned = server.contract.plan
    assert (planned.unit, len(planned.releases)) == ("user", 3)
    for site in sites:
        assert site.folder.ledger(server.contract) == planned
        site.folder.close()


@pytest.mark.parametrize("trained", [1e3, 1e154, -1e300, np.nan, np.inf])
def test_a_client_moves_the_sum_by_at_most_the_sensitivity(trained: float) -> None:
    """Replaced by another: in steps of the grid, after rounding, whatever training returns."""
    numbers = federated_sum(ALGORITHM, DIM, 1)
    w, coins = np.zeros((1, DIM)), Key.seeded(1)

    def steps(value: float) -> Any:
        return encode(
            numbers, client_update(numbers, lambda w: np.full_like(w, value))(w, 0, coins)
        )

    moved = float(np.linalg.norm(steps(trained) - steps(-trained)))
    assert moved <= numbers.sensitivity
    if np.isfinite(trained):
        assert moved > 0.99 * 2 * numbers.steps


def test_a_client_whose_training_fails_sends_noise_alone_and_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(w: Any) -> Any:
        raise ValueError("patient 17")

    numbers = federated_sum(ALGORITHM, DIM, 1)
    assert not client_update(numbers, fails)(np.ones((1, DIM)), 0, Key.seeded(1)).any()
    assert "patient 17" in caplog.text


def test_each_client_takes_part_by_a_coin_of_its_own() -> None:
    """Half of 2,000 coins: 6 standard errors, false alarm 2e-9."""
    numbers = federated_sum(POISSON, DIM, 1)
    sums, w = client_update(numbers, towards(GOALS[0])), np.zeros((1, DIM))
    took_part = [bool(sums(w, 0, Key.seeded(seed)).any()) for seed in range(2000)]
    assert abs(np.mean(took_part) - 0.5) < 6 * 0.5 / 2000**0.5


def test_what_a_secure_sum_cannot_keep_is_refused(tmp_path: Path) -> None:
    for wrong, said in [
        (replace(ALGORITHM, sampling_rate=0.5), "must not know the cohort"),
        (replace(ALGORITHM, noise_multiplier=None), "one with noise"),
        (replace(ALGORITHM, arrival_rate=0.9), "arrival_rate of 1"),
        (replace(ALGORITHM, adaptive_clipping=AdaptiveClipping()), "a clipping norm that stays"),
    ]:
        with pytest.raises(ValueError, match=said):
            federated_sum(wrong, DIM, 1)
    server, sites = server_of(tmp_path, ALGORITHM, rounds=1)
    with pytest.raises(ValueError, match="that of the contract's sums"):
        train_federated(server, replace(ALGORITHM, noise_multiplier=2.0), np.zeros((1, DIM)))
    for site in sites:
        site.folder.close()

"""Clients of Flower that die, return, lie or say nothing, and a server that is killed."""

from __future__ import annotations

import logging

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
    Clients,
    L,
    make_problem,
    model,
    run,
)

from dpmesh.deploy.flower import DPFedLS, TooFewAnswersError, flat, parties, private_update  # noqa: E402

pytestmark = [pytest.mark.usefixtures("inside_an_app"), pytest.mark.slow]

KEY = dm.Key.seeded(3)
QUIET = changed(ALGORITHM, noise_multiplier=None, denoiser=dm.algorithms.denoisers.Identity())
POISSON = changed(ALGORITHM, sampling="poisson")


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parties, "PAUSE", 0.0)


def clients(**options) -> Clients:
    return Clients(make_problem(), private_update(L), **options)


class Changing(Clients):
    """Clients to which something happens before a round, given by its number from 0."""

    def __init__(self, happens) -> None:
        super().__init__(make_problem(), private_update(L))
        self.happens, self.rounds = happens, 0

    def send_and_receive(self, messages, *, timeout=None):
        messages = list(messages)
        if messages:
            self.happens(self, self.rounds)
            self.rounds += 1
        return super().send_and_receive(messages, timeout=timeout)


def test_a_killed_supernode_counts_as_missing() -> None:
    """The SuperLink answers for it, under an id of its own, 1."""
    killed, silent = Changing(lambda grid, done: grid.dead.add(102)), clients()
    silent.silent = {2}
    models = [flat(run(DPFedLS(ALGORITHM, key=KEY), grid).arrays) for grid in (killed, silent)]
    np.testing.assert_array_equal(*models)


def test_a_supernode_that_restarts_is_the_same_party() -> None:
    """It has a new id, while the old one still counts as connected."""

    def restarts(grid, done):
        if done == 1:
            grid.dead, grid.nodes[7] = {102}, 2
        if done == 3:
            grid.gone = {102}

    grid = Changing(restarts)
    sampled = changed(ALGORITHM, sampling_rate=0.7)
    run(DPFedLS(sampled, key=KEY), grid, 8)
    cohorts = [sampled.contribution.cohort(t, KEY, None).tolist() for t in range(8)]
    assert [sorted(asked) for asked in grid.asked[::2]] == cohorts


def test_a_supernode_too_many_is_not_asked(caplog) -> None:
    several = clients(nodes=CLIENTS + 1)
    models = [flat(run(DPFedLS(ALGORITHM, key=KEY), grid).arrays) for grid in (clients(), several)]
    np.testing.assert_array_equal(*models)
    said = [line for line in caplog.messages if "none of" in line]
    assert said == ["client 6 is none of the 6 clients of this run"]


def test_parties_can_be_named_beforehand() -> None:
    names = [f"client {i}" for i in (3, 4, 5, 0, 1, 2)]
    grid = clients(nodes=CLIENTS + 1)
    alone = changed(ALGORITHM, sampling_rate=1e-9)  # a cohort of one
    run(DPFedLS(alone, key=KEY, parties=names), grid, 3)
    expected = [
        [(number + 3) % 6 for number in alone.contribution.cohort(t, KEY, None)] for t in range(3)
    ]
    assert grid.asked[::2] == expected


def test_a_client_that_leaves_for_good_is_missing_from_then_on() -> None:
    def leaves(grid, done):
        grid.silent = {5}  # the message that was just sent
        grid.gone = {105}

    left, silent = Changing(leaves), clients()
    silent.silent = {5}
    models = [flat(run(DPFedLS(ALGORITHM, key=KEY), grid).arrays) for grid in (left, silent)]
    np.testing.assert_array_equal(*models)
    assert [len(asked) for asked in left.asked[::2]] == [6, 5, 5, 5, 5]


def test_the_run_waits_for_the_quorum_and_says_for_whom(caplog) -> None:
    caplog.set_level("INFO", logger="flwr")
    strategy = DPFedLS(ALGORITHM, key=KEY, quorum=5, patience=0.05)
    grid = clients()
    grid.gone = {101, 104}
    names = r"4 of 6 clients are connected, and the quorum is 5; not connected: client 1, client 4$"
    strategy.parties.numbers = {f"client {i}": i for i in range(CLIENTS)}
    with pytest.raises(TooFewAnswersError, match=names):
        run(strategy, grid)
    assert "4 clients of at least 6; not connected: client 1, client 4" in caplog.messages


@pytest.mark.parametrize(
    ("dtype", "entry"),
    [
        (np.float32, 1e12),
        (np.float32, -3e38),
        (np.float64, 1e154),
        (np.float64, 1e300),
        (np.float64, -1.7e308),
    ],
)
def test_a_row_at_the_edge_of_its_type_is_clipped_like_any_other(dtype, entry) -> None:
    grid = clients()
    grid.mod = lambda message, context, call: call(message, context)
    row = np.full(DIM, entry, dtype)
    grid.spoilt = {1: row}
    grid.silent = set(range(CLIENTS)) - {1}
    start = model(np.zeros(DIM, dtype))
    moved = flat(DPFedLS(QUIET, quorum=0).start(grid, start, 1).arrays)[0] * CLIENTS
    np.testing.assert_allclose(moved, np.sign(entry) * np.full(DIM, L / np.sqrt(DIM)), rtol=1e-6)


@pytest.mark.parametrize("training", [1e154, 1e300])
def test_a_client_whose_training_diverges_sends_a_clipped_move(training) -> None:
    grid = clients()
    grid.spoilt = {1: np.full(DIM, training)}
    grid.silent = set(range(CLIENTS)) - {1}
    moved = flat(run(DPFedLS(QUIET, quorum=0), grid, 1).arrays)[0] * CLIENTS
    np.testing.assert_allclose(moved, np.full(DIM, L / np.sqrt(DIM)), rtol=1e-6)


def test_a_round_that_too_few_answer_stops_the_run(tmp_path) -> None:
    """Nothing is released of it."""
    path = tmp_path / "run.ckpt"
    whole = flat(run(DPFedLS(ALGORITHM, key=KEY), clients(), 3).arrays)

    def silence(grid, done):
        grid.silent = {0, 1, 2, 3} if done == 1 else set()

    strategy = DPFedLS(ALGORITHM, key=KEY, checkpoint=path, delta=1e-5)
    with pytest.raises(TooFewAnswersError, match=r"^2 of 6 clients answered in round 2, less than"):
        run(strategy, Changing(silence), 3)
    assert strategy.report.epsilon == strategy.plan(1).cost(1e-5).epsilon
    again = DPFedLS(ALGORITHM, key=KEY, checkpoint=path, delta=1e-5)
    np.testing.assert_array_equal(flat(run(again, clients(), 3).arrays), whole)
    assert again.report.epsilon == pytest.approx(again.plan(3).cost(1e-5).epsilon)


def test_how_many_answered_is_said_where_it_is_no_secret(caplog) -> None:
    caplog.set_level("INFO", logger="flwr")
    grid = clients()
    grid.silent = {1}
    run(DPFedLS(ALGORITHM), grid, 1)
    assert "\t5 of 6 clients answered in round 1" in caplog.messages
    caplog.clear()
    run(DPFedLS(POISSON), grid, 1)
    assert not [line for line in caplog.messages if "answered" in line]
    grid.silent = set(range(CLIENTS))
    run(DPFedLS(POISSON), grid, 1)
    (warning,) = [record for record in caplog.records if "answered" in record.getMessage()]
    assert warning.levelno == logging.WARNING
    assert "0 of 6 clients answered in round 1; keep this line" in warning.getMessage()


class KilledError(Exception):
    pass


@pytest.mark.parametrize("weighted", [AVERAGED, IN_TIME])
def test_a_killed_server_goes_on_after_its_last_round_to_the_same_bits(weighted, tmp_path) -> None:
    whole = run(DPFedLS(weighted, key=KEY, delta=1e-5), clients(), 4)
    tested, budget = [], dm.privacy.Budget(weighted.plan(4).cost(1e-5).epsilon, delta=1e-5)

    def killed(grid, done):
        if done == 2:
            raise KilledError

    def again():
        return DPFedLS(weighted, key=KEY, budget=budget, checkpoint=tmp_path / "run.ckpt")

    with pytest.raises(KilledError):
        run(again(), Changing(killed), 4)
    strategy, start = again(), model(np.zeros(DIM))
    result = strategy.start(clients(), start, 4, evaluate_fn=lambda t, _: tested.append(t))
    np.testing.assert_array_equal(flat(result.arrays), flat(whole.arrays))
    assert tested == [2, 3, 4]
    assert strategy.report.releases == 4
    with pytest.raises(ValueError, match=r"rounds: wanted at most 4, .* got 5"):
        run(again(), clients(), 5)  # a new start has no new budget
    finished = run(again(), clients(), 4)
    np.testing.assert_array_equal(flat(finished.arrays), flat(whole.arrays))


def test_a_checkpoint_of_another_run_is_refused(tmp_path) -> None:
    path = tmp_path / "run.ckpt"
    run(DPFedLS(ALGORITHM, key=KEY, checkpoint=path), clients(), 1)
    for other, said in [
        (DPFedLS(changed(ALGORITHM, noise_multiplier=0.6), key=KEY, checkpoint=path), "algorithm"),
        (DPFedLS(ALGORITHM, key=dm.Key.seeded(4), checkpoint=path), "key"),
    ]:
        with pytest.raises(ValueError, match=f"^{said}: wanted .* in the checkpoint"):
            run(other, clients(), 2)


def test_a_model_is_stored_before_it_is_sent(tmp_path) -> None:
    path, kept = tmp_path / "run.ckpt", []

    def looks(grid, done):
        other = DPFedLS(ALGORITHM, key=KEY, checkpoint=path)
        other._resume(model(np.zeros(DIM)))
        kept.append(other.report.releases if done else 0)

    run(DPFedLS(ALGORITHM, key=KEY, checkpoint=path), Changing(looks), 3)
    assert kept == [0, 1, 2]


def test_a_restored_checkpoint_gives_another_sum_other_noise(tmp_path) -> None:
    """Under a key from the operating system: the difference of two sums keeps their noise."""
    key, path, moves = dm.Key.generate(), tmp_path / "run.ckpt", []
    plain = changed(ALGORITHM, denoiser=dm.algorithms.denoisers.Identity())
    DPFedLS(plain, key=key, checkpoint=path)._resume(model(np.zeros(4000)))
    restored = path.read_bytes()
    for sent in (0.0, 0.0, 1e-9):
        path.write_bytes(restored)
        grid = clients()
        grid.spoilt = {i: np.full(4000, sent) for i in range(CLIENTS)}
        strategy = DPFedLS(plain, key=key, checkpoint=path)
        moves.append(flat(strategy.start(grid, model(np.zeros(4000)), 1).arrays) * CLIENTS)
    np.testing.assert_array_equal(moves[0], moves[1])
    variance = np.var(moves[2] - moves[0]) / (2 * (0.7 * 2 * L) ** 2)
    assert variance == pytest.approx(1, abs=6 * np.sqrt(2 / 4000))  # of two releases, 6 errors

"""Runs that their callback ends: whole as far as they went, and they can go on."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any

import pytest
from problems import Spendthrift
from problems import stream_problem as make_problem
from test_checkpoint import ROUNDS, StoppedError, assert_same, online

import dpmesh as dm
from dpmesh.privacy import Budget


def at(last: int) -> Any:
    """A callback that ends a run after so many rounds."""

    def callback(t: int, values: Any) -> None:
        if t == last:
            raise dm.StopRun

    return callback


def test_it_ends_whole_and_the_report_says_so() -> None:
    ended, whole = online(callback=at(5)), online()
    assert ended.settings["rounds"] == f"5 of {ROUNDS}: there the callback ended it"
    assert ended.ledger.releases == whole.ledger.releases[:5]
    assert ended.history.records == [
        record for record in whole.history.records if record.round <= 5
    ]
    assert ended.released.shape == whole.released.shape
    said = f"the callback ended the run after 5 of {ROUNDS} rounds without a look at "
    assert set(ended.privacy.assumptions) - set(whole.privacy.assumptions) == {
        f"{said}private data"
    }
    assert ended.ledger.assumptions[-1] == f"{said}data or releases"


def test_its_report_counts_the_rounds_that_it_could_have_had() -> None:
    """What was released may decide when a run ends: that costs as much as not to end."""

    def run(**options: Any) -> dm.Run:
        problem = make_problem()
        algorithm = dm.GradientDescent(records=len(problem.partition[0]), noise_multiplier=10.0)
        options = {"rounds": ROUNDS, "delta": 1e-5, "key": dm.Key.seeded(1)} | options
        return dm.simulate(algorithm, problem, dm.topology.complete(problem.nodes), **options)

    ended, whole = run(metrics=dm.Metrics(every=1, callback=at(5))), run()
    assert ended.privacy.epsilon == whole.privacy.epsilon
    assert ended.privacy.releases == whole.privacy.releases
    assert dm.privacy.report(ended.ledger, 1e-5).epsilon == run(rounds=5).privacy.epsilon
    assert run(rounds=5).privacy.epsilon < 0.8 * whole.privacy.epsilon


def test_it_costs_its_plan_where_chance_gave_out_the_rounds() -> None:
    """Coins give turns to the nodes, one of which may have had all that the run did not have."""
    problem = replace(make_problem(), feature_norm=10.0)
    algorithm = dm.WithReplacement(
        nodes=problem.nodes, records=len(problem.partition[0]), noise_multiplier=4.0, batch_size=1
    )
    measured = dm.Metrics(every=1, callback=at(10))
    ended = dm.simulate(
        algorithm, problem, rounds=ROUNDS, delta=1e-5, key=dm.Key.seeded(1), metrics=measured
    )
    assert len(ended.ledger.releases) == 10
    assert ended.privacy.epsilon == algorithm.plan(ROUNDS).cost(1e-5).epsilon


@dataclass(frozen=True)
class Spending(dm.GradientDescent):
    """Releases with less noise than it planned, from some round on."""

    def round(self, state: Any, t: int, *others: Any) -> Any:
        less = replace(self, noise_multiplier=2.0) if t > 2 else self
        return dm.GradientDescent.round(less, state, t, *others)


def test_what_it_released_in_place_of_its_plan_is_counted() -> None:
    problem = make_problem()
    network = dm.topology.complete(problem.nodes)
    algorithm = Spending(records=len(problem.partition[0]), noise_multiplier=10.0)
    measured = dm.Metrics(every=1, callback=at(5))
    options: dict[str, Any] = {"rounds": ROUNDS, "delta": 1e-5, "key": dm.Key.seeded(1)}
    ended = dm.simulate(algorithm, problem, network, metrics=measured, **options)
    could = ended.ledger.with_releases(
        (*ended.ledger.releases, *algorithm.plan(ROUNDS).releases[5:])
    )
    assert ended.privacy.epsilon == could.cost(1e-5).epsilon


@dataclass(frozen=True)
class Falling(dm.GradientDescent):
    """Falls silent after some rounds, as an algorithm does that finds its releases good enough."""

    silent_after: int = ROUNDS

    def round(self, state: Any, t: int, *others: Any) -> Any:
        if t < self.silent_after:
            return (yield from super().round(state, t, *others))
        return state


def test_planned_releases_that_are_missing_are_told_of() -> None:
    """What was released may have decided that, too: the run then costs what it had planned."""
    problem = make_problem()
    algorithm = Falling(records=len(problem.partition[0]), noise_multiplier=10.0)

    def run(algorithm: Any, **options: Any) -> dm.Run:
        options = {"rounds": ROUNDS, "delta": 1e-5, "key": dm.Key.seeded(1)} | options
        return dm.simulate(algorithm, problem, dm.topology.complete(problem.nodes), **options)

    whole, part = run(algorithm), run(replace(algorithm, silent_after=5))
    assert part.privacy.epsilon < 0.8 * whole.privacy.epsilon
    silent = f"{ROUNDS - 5} of {ROUNDS - 1} planned releases did not happen"
    said = f"{silent}, which neither data nor releases decided"
    assert set(part.privacy.assumptions) - set(whole.privacy.assumptions) == {said}
    assert part.ledger.assumptions[1:] == (said,)
    without_cost = run(replace(algorithm, silent_after=5), delta=0.0)
    assert len(without_cost.ledger.assumptions) == 1  # infinite as it is


def test_it_goes_on_from_its_checkpoint_to_the_same_bits(tmp_path) -> None:
    path, whole = tmp_path / "run", online()
    for last in (5, 9):
        run = online(path, callback=at(last), save_every=100)
        assert len(run.ledger.releases) == last
    assert_same(online(path), whole)


def test_a_run_that_is_over_is_not_ended() -> None:
    assert_same(online(callback=at(ROUNDS)), online())


def test_another_error_is_no_end() -> None:
    def callback(t: int, values: Any) -> None:
        raise StopIteration

    with pytest.raises(StopIteration):
        online(callback=callback)


def reported(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    said = [(record.levelname, record.getMessage()) for record in caplog.records]
    caplog.clear()
    return said


def test_runs_tell_where_they_begin_and_end_and_of_their_checkpoints(tmp_path, caplog) -> None:
    caplog.set_level(logging.DEBUG, logger="dpmesh")
    path, nodes = tmp_path / "run", "on 4 nodes: OnlineLearning(epsilon=2.0, "
    with pytest.raises(StoppedError):
        online(path, 2, save_every=2)
    first, begun, *others = reported(caplog)
    assert first == ("DEBUG", f"0 rounds are in {path}")
    assert begun[1].startswith(f"a run begins with 0 of {ROUNDS} rounds done, {nodes}")
    assert not others
    with pytest.raises(StoppedError):
        online(path, 3, save_every=2)
    assert reported(caplog)[1:] == [("DEBUG", f"2 rounds are in {path}")]
    online(path)
    begun, *_, last = reported(caplog)
    assert begun[0] == "INFO"
    assert begun[1].startswith(f"a run begins with 2 of {ROUNDS} rounds done, {nodes}")
    assert last == ("INFO", f"a run ends with {ROUNDS} of {ROUNDS} rounds done")


def test_a_run_that_the_budget_ends_warns(caplog) -> None:
    online(algorithm=Spendthrift(epsilon=0.1), budget=Budget(1.0))
    assert ("WARNING", "the budget ended a run after 5 rounds") in reported(caplog)

"""The privacy of SGD without replacement: plan, ledger, and what one record moves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf, sqrt
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from one_round import one_round, watcher_of
from without_replacement_problems import FIXED, make_problem, neighbours

import dpmesh as dm
from dpmesh.algorithms.controllers import (
    AlwaysGlobal,
    AlwaysLocal,
    FixedController,
    Observation,
    Periodic,
    RandomGlobal,
)
from dpmesh.audit import alone, couple
from dpmesh.audit.transcript import record
from dpmesh.schedules import Constant, InverseTime, Piecewise
from dpmesh_papers.bounds.without_replacement import theorem_4_steps
from dpmesh_papers.deep_q import DeepQ


@pytest.mark.parametrize("controller", FIXED)
@pytest.mark.parametrize("epsilon", [None, 1.0])
def test_the_ledger_of_a_known_schedule_equals_its_plan(controller, epsilon) -> None:
    problem = make_problem([40, 40, 40], 3, 4)
    algorithm = dm.WithoutReplacement(
        epsilon=epsilon, delta=1e-5, models=4, batch_size=4, controller=controller
    )
    run = dm.simulate(algorithm, problem, rounds=10, delta=1e-5)
    assert run.ledger == algorithm.plan(10)
    nothing = controller == AlwaysLocal()
    expected = 0.0 if nothing else inf if epsilon is None else 1.0
    assert run.privacy.epsilon == pytest.approx(expected, rel=1e-9)
    assert run.privacy.unit == "record"
    assert run.privacy.neighboring_relation == "replace_one"
    # its numbers, and an announcement to each of the two others
    assert run.traffic.bits == 64 * (3 + 2) * run.traffic.messages
    releases_a_node = {AlwaysGlobal(): 10, AlwaysLocal(): 0, Periodic(3): 3}[controller]
    assert run.traffic.messages == 3 * 4 * releases_a_node


@given(rate=st.floats(0, 1), arrival_rate=st.floats(0.05, 1), seed=st.integers(0, 2**32))
def test_a_ledger_by_coins_is_the_plan_without_the_rounds_in_which_nobody_released(
    rate: float, arrival_rate: float, seed: int
) -> None:
    problem = make_problem([12, 12], 2, 2)
    algorithm = dm.WithoutReplacement(
        models=2, batch_size=2, controller=RandomGlobal(rate), arrival_rate=arrival_rate
    )
    run = dm.simulate(algorithm, problem, rounds=6, key=dm.Key.seeded(seed), delta=1e-5)
    plan = algorithm.plan(6)
    planned = iter(plan.releases)
    assert all(release in planned for release in run.ledger.releases)  # in the plan's order
    assert bool(run.ledger.releases) == bool(run.traffic.messages)
    if run.ledger.releases:
        assert run.ledger.cost(1e-5) == plan.cost(1e-5)
    else:
        assert run.privacy.epsilon == 0


def test_noise_is_for_all_releases_that_a_record_moves() -> None:
    """The numbers of the paper: 10 models, and 20 nodes that hold the same images."""
    delta = 1 / 60_000**2
    paper = dm.WithoutReplacement(
        epsilon=1.0, delta=delta, models=10, calibration="paper", controller=AlwaysGlobal()
    )
    assert paper.plan(1).cost(delta).epsilon == pytest.approx(2.8516081, rel=1e-7)
    shared = replace(paper, copies=20)
    assert shared.plan(1).cost(delta).epsilon == pytest.approx(14.939302, rel=1e-7)
    assert "held by more than 20 nodes" in str(dm.privacy.report(shared.plan(1), delta))
    assert replace(paper, copies=2).plan(1).assumptions == (
        "no record is held by more than 2 nodes, nor twice by one",
    )
    assert paper.plan(1).assumptions == ("no record is held by more than 1 node, nor twice by one",)
    local = replace(paper, controller=dm.algorithms.controllers.RandomGlobal(0.5))
    assert "rounding of local steps" in local.plan(1).assumptions[0]
    single = replace(paper, models=1)
    assert single.plan(1).cost(delta).epsilon == pytest.approx(0.84991906, rel=1e-7)
    for calibration, of_one in (("analytic", 18.040913), ("classical", 6.6674348 * sqrt(10))):
        algorithm = replace(paper, calibration=calibration)
        std = algorithm.mechanism.noise_scale(algorithm.sensitivity(0), 50)
        assert std == pytest.approx(of_one, rel=1e-7)
        assert algorithm.plan(1).cost(delta).epsilon <= 1 + 1e-9


@pytest.mark.parametrize("controller", [AlwaysGlobal(), RandomGlobal(1.0)])
def test_a_coupled_audit_finds_no_fault(controller) -> None:
    problem = make_problem([30], 4)
    algorithm = dm.WithoutReplacement(batch_size=3, controller=controller, step_size=Constant(1.0))
    datasets = neighbours(problem, 0, 13)
    shown = couple(algorithm, *datasets, alone, rounds=10, key=dm.Key.seeded(1))
    assert not shown.violated, shown
    assert [m.release.round for m in shown.movements if m.distance > 0] == [4]


@pytest.mark.slow
@given(
    K=st.sampled_from([None, 3]),
    controller=st.sampled_from([AlwaysGlobal(), Periodic(4), RandomGlobal(0.3)]),
    schedule=st.sampled_from(
        [Constant(2.0), InverseTime(scale=2.0), InverseTime(scale=8.0, offset=3.0)]
    ),
    radius=st.sampled_from([None, 0.2]),
    regularization=st.sampled_from([0.0, 0.05]),
    place=st.integers(0, 29),
    seed=st.integers(0, 2**32),
)
def test_a_record_moves_one_release_of_each_model_within_lemma_4(
    K, controller, schedule, radius, regularization, place, seed
) -> None:
    """Two runs on neighbouring data that hear the same releases, as in the guarantee's proof."""
    problem = make_problem([30, 30], 3, K, seed=seed, regularization=regularization)
    cap = 1 / (2 * problem.model_constants().smoothness)
    algorithm = dm.WithoutReplacement(
        epsilon=1.0,
        delta=1e-5,
        models=K or 1,
        batch_size=3,
        step_size=_Capped(schedule, cap),
        controller=controller,
        radius=radius,
    )
    key = dm.Key.seeded(seed)
    one, other = neighbours(problem, 1, place)
    run = record(algorithm, one, alone, rounds=10, key=key)
    again = record(algorithm, other, alone, rounds=10, key=key, replay=run)
    moved = 0.0
    for passage, twin in zip(run.passages, again.passages, strict=True):
        moved += float(((passage.inside - twin.inside) ** 2).sum())
    assert sqrt(moved) <= algorithm.sensitivity(0).bound * (1 + 1e-9)
    for mine, theirs in zip(run.received, again.received, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@dataclass(frozen=True)
class _Capped:
    schedule: InverseTime | Constant
    cap: float

    def __call__(self, t: int) -> float:
        return min(self.schedule(t), self.cap)


def test_lemma_4_is_reached() -> None:
    """Two records on nearly opposite sides, both far on the wrong side of the model."""
    problem = make_problem([1], 2)
    algorithm = dm.WithoutReplacement(batch_size=1, controller=AlwaysGlobal())
    passages: list[Any] = []
    for side in (0.995, -0.995):
        train = replace(problem.train, features=np.array([[-0.0995, side]]), labels=np.array([1]))
        dataset = replace(problem, train=train, test=None)
        far = replace(algorithm.init(dataset, dm.Key.seeded(0)), released=np.array([[200.0, 0.0]]))
        one_round(algorithm, far, 0, dataset, dm.Key.seeded(0), watcher=watcher_of(passages))
    assert (
        0.99
        < np.linalg.norm(passages[0].inside - passages[1].inside) / algorithm.sensitivity(0).bound
        <= 1
    )


def test_each_model_remembers_its_own_longest_step() -> None:
    """A release of one model forgets that model's steps, and not those of the node's others."""

    @dataclass(frozen=True)
    class FirstAlone(FixedController):
        def choose(self, shape, round, key):
            return np.broadcast_to([True, False], shape)

    problem = make_problem([6, 6], 2, 2)
    algorithm = dm.WithoutReplacement(
        models=2, batch_size=2, step_size=InverseTime(scale=0.5), controller=FirstAlone()
    )
    state = algorithm.init(problem, dm.Key.seeded(0))
    for t in range(3):
        state = one_round(algorithm, state, t, problem, dm.Key.seeded(0)).state
        np.testing.assert_array_equal(state.largest_step, [[0.0, 0.5]] * 2)


@dataclass(frozen=True)
class Careless(RandomGlobal):
    """Decides for nodes that do not act, too."""

    def decide(self, state, observation, round, key):
        nodes, models, _ = observation.local_models.shape
        return self.choose((nodes, models), round, key), state


def test_a_decision_for_a_node_that_does_not_act_is_none() -> None:
    """It would forget the node's longest step, which its next release has to cover."""
    problem = make_problem([20, 20], 2)
    algorithm = dm.WithoutReplacement(
        batch_size=1,
        step_size=Piecewise(starts=(1, 4), values=(1.0, 0.01)),
        controller=RandomGlobal(0.3),
        arrival_rate=0.5,
    )
    careless = replace(algorithm, controller=Careless(0.3))
    key = dm.Key.seeded(1)
    one, other = (dm.simulate(a, problem, rounds=15, key=key) for a in (algorithm, careless))
    np.testing.assert_array_equal(one.released, other.released)
    assert one.ledger == other.ledger
    assert one.traffic == other.traffic


def test_decisions_are_one_for_each_model_of_each_node() -> None:
    @dataclass(frozen=True)
    class Numbers(RandomGlobal):
        def decide(self, state, observation, round, key):
            return observation.losses > 0.0 if round else np.ones((2, 1), np.int64), state

    algorithm = dm.WithoutReplacement(batch_size=1, controller=Numbers(0.5))
    wanted = r"controller: wanted bools of shape \(2, 1\), got int64 \(2, 1\)"
    with pytest.raises(ValueError, match=wanted):
        dm.simulate(algorithm, make_problem([9, 9], 2), rounds=2)


@dataclass(frozen=True)
class InPlace(RandomGlobal):
    """Prepares what it looks at in place."""

    looks_at: str = "local_models"
    public: ClassVar[bool] = False

    def decide(self, state, observation, round, key):
        seen = getattr(observation, self.looks_at)
        seen += seen
        return super().decide(state, observation, round, key)


@pytest.mark.parametrize("name", ["local_models", "released_models", "losses", "acting"])
def test_a_controller_cannot_write_to_what_it_sees(name: str) -> None:
    """Models that it centres or scales would move releases further than Lemma 4 says."""
    algorithm = dm.WithoutReplacement(batch_size=1, controller=InPlace(0.5, looks_at=name))
    with pytest.raises(ValueError, match="read-only"):
        dm.simulate(algorithm, make_problem([4, 4], dim=2), rounds=2)


@dataclass(frozen=True)
class Watching(RandomGlobal):
    """Keeps what it sees."""

    seen: list[Observation] = field(default_factory=list, repr=False, compare=False)

    def decide(self, state, observation, round, key):
        self.seen.append(observation)
        return super().decide(state, observation, round, key)


def test_public_controllers_see_nothing_private_and_others_are_reported() -> None:
    problem = make_problem([40] * 3, 2, 3)
    watching = Watching(0.5)
    public = dm.WithoutReplacement(models=3, batch_size=4, controller=watching)
    run = dm.simulate(public, problem, rounds=10, delta=1e-5)
    assert len(watching.seen) == 10
    for observation in watching.seen:
        for private in (observation.local_models, observation.losses, observation.last_losses):
            assert np.isnan(private).all()
    assert "no proof covers" not in str(run.privacy)

    class Private(Watching):
        public = False

    for controller in (
        DeepQ(anneal_rounds=5, hidden=16),
        Private(0.5),
    ):  # one of one's own need not say so itself
        private = replace(public, controller=controller)
        run = dm.simulate(private, problem, rounds=10, delta=1e-5)
        assert "no proof covers" in str(run.privacy)

    released = replace(public, controller=DeepQ(anneal_rounds=5, hidden=16, sees="released"))
    with pytest.raises(ValueError, match="public_losses: wanted losses on public data"):
        dm.simulate(released, problem, rounds=10)
    wanted = "public_data: wanted public records, which no node holds, got those of the nodes"
    with pytest.raises(ValueError, match=wanted):
        dm.simulate(replace(released, public_data=problem.train), problem, rounds=10)
    public = make_problem([9], 2, 3, seed=1).train
    run = dm.simulate(replace(released, public_data=public), problem, rounds=10, delta=1e-5)
    assert "on which the controller scores released models is public" in str(run.privacy)


@pytest.mark.parametrize("classes", [None, 3])
def test_public_losses_are_the_objective_of_released_models_on_public_data(classes) -> None:
    problem = make_problem([40] * 3, 2, classes, regularization=0.5)
    public = replace(problem, partition=(np.arange(50),))
    watching = Watching(0.5)
    algorithm = dm.WithoutReplacement(
        models=classes or 1,
        batch_size=4,
        controller=watching,
        public_data=problem.train.take(np.arange(50)),
    )
    dm.simulate(algorithm, problem, rounds=6, key=dm.Key.seeded(0))
    for observation in watching.seen:
        models = observation.released_models.reshape(1, -1)
        expected = public.class_objectives(models, public.full_batches)[0]
        np.testing.assert_allclose(observation.public_losses, expected)
    assert np.ptp([observation.public_losses.max() for observation in watching.seen]) > 0


def test_steps_of_theorem_4_keep_lemma_4() -> None:
    problem = make_problem([20], 2, regularization=1e-4)
    steps = theorem_4_steps(problem, 0.5)
    cap = 1 / (2 * problem.model_constants().smoothness)
    assert 0.99 * cap < steps(1) < cap
    assert steps(10**7) == pytest.approx(1 / (0.5 * 1e-4 * 1e7), rel=1e-2)
    too_long = dm.WithoutReplacement(batch_size=2, step_size=InverseTime(scale=1 / (0.5 * 1e-4)))
    with pytest.raises(ValueError, match="step_size: Lemma 4 wants at most"):
        dm.simulate(replace(too_long, controller=AlwaysGlobal()), problem, rounds=3)
    once = replace(
        too_long, step_size=Piecewise(starts=(1, 2), values=(9.0, 0.1)), controller=Periodic(2)
    )
    with pytest.raises(ValueError, match=r"step_size: Lemma 4 wants at most .* got 9"):
        dm.simulate(once, make_problem([20, 1], 2), rounds=2)  # one node never steps
    with pytest.raises(ValueError, match=r"problem\.regularization: wanted .* greater than 0"):
        theorem_4_steps(make_problem([20], 2), 0.5)


def test_a_budget_is_met_however_often_nodes_release() -> None:
    problem = make_problem([40] * 3, 2, 3)
    for controller in (AlwaysGlobal(), DeepQ(anneal_rounds=5, hidden=16), RandomGlobal(0.5)):
        algorithm = dm.WithoutReplacement(models=3, batch_size=4, controller=controller)
        budget, key = dm.privacy.Budget(1.0, delta=1e-5), dm.Key.seeded(1)
        run = dm.simulate(algorithm, problem, rounds=10, key=key, budget=budget)
        assert run.privacy.epsilon <= 1.0
        assert len(run.ledger.releases) > 1
    with pytest.raises(ValueError, match="is too little"):
        dm.simulate(algorithm, problem, rounds=10, budget=dm.privacy.Budget(0.9, delta=1e-5))

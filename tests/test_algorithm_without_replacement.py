"""SGD without replacement against its loop-written twin, its plan, and what one record moves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twin_without_replacement import without_replacement

import dpmesh as dm
from dpmesh import kernels
from dpmesh.algorithms.without_replacement import theorem4_steps
from dpmesh.controllers import AlwaysGlobal, AlwaysLocal, DeepQ, Periodic, RandomGlobal
from dpmesh.keys import Purpose
from dpmesh.privacy.accounting import analytic_gaussian_noise_multiplier
from dpmesh.privacy.audit import alone, couple
from dpmesh.privacy.audit.transcript import record
from dpmesh.privacy.door import watched_by
from dpmesh.schedules import Constant, InverseTime

FIXED = [AlwaysGlobal(), AlwaysLocal(), Periodic(3)]


def make_problem(
    sizes, dim: int, classes: int | None = None, *, loss="logistic", seed: int = 0, **options
) -> dm.LinearProblem:
    """Records of norm at most 1, `sizes` of them at each node."""
    rng = np.random.default_rng(seed)
    records = sum(sizes)
    features = rng.normal(size=(records, dim))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    labels = rng.integers(classes, size=records) if classes else rng.choice([-1, 1], size=records)
    parts = tuple(np.split(rng.permutation(records), np.cumsum(sizes)[:-1]))
    dataset = dm.data.Dataset(features, labels, "synthetic")
    return dm.LinearProblem(
        dataset, parts, loss, classes=classes, feature_norm=1.0, test=dataset, **options
    )


@given(
    M=st.integers(1, 5),
    K=st.sampled_from([None, 2, 3]),
    d=st.integers(1, 5),
    T=st.integers(1, 8),
    b=st.integers(1, 4),
    epsilon=st.one_of(st.none(), st.floats(0.1, 0.9)),
    calibration=st.sampled_from(["analytic", "classical", "paper"]),
    copies=st.integers(1, 3),
    schedule=st.sampled_from([Constant(0.4), InverseTime(0.8), InverseTime(1.5, 3.0)]),
    controller=st.sampled_from([*FIXED, RandomGlobal(0.5)]),
    radius=st.sampled_from([None, 0.3]),
    regularization=st.sampled_from([0.0, 0.2]),
    arrival_rate=st.sampled_from([1.0, 0.6]),
    seed=st.integers(0, 2**32),
)
def test_equals_its_twin(
    M, K, d, T, b, epsilon, calibration, copies, schedule, controller, radius, regularization,
    arrival_rate, seed,
) -> None:  # fmt: skip
    key = dm.Key.seeded(seed)
    rng = np.random.default_rng(seed)
    sizes = rng.integers(0, 2 * T, size=M) * b + rng.integers(1, b + 1, size=M)
    sizes[0] = T * b
    problem = make_problem(sizes, d, K, seed=seed, regularization=regularization)
    models = K or 1
    algorithm = dm.WithoutReplacement(
        epsilon, 1e-6, models, b, schedule, controller, calibration, copies, radius, arrival_rate
    )
    state = algorithm.init(problem, key)
    for t in range(T):
        state, info = algorithm.step(state, t, problem, alone, key)
        np.testing.assert_array_equal(info.received, state.released.reshape(1, -1))

    used = [0] * M

    def order(t: int) -> list[int]:
        coins = kernels.uniform((M, 2), key.stream(Purpose.SAMPLE, t))
        acting = []
        for m in sorted(range(M), key=lambda m: coins[m, 1]):
            if coins[m, 0] < arrival_rate and (used[m] + 1) * b <= sizes[m]:
                used[m] += 1
                acting.append(m)
        return acting

    x, y = problem.train.features, problem.train.labels
    touched = models * copies
    z = {
        "analytic": lambda: sqrt(touched) * analytic_gaussian_noise_multiplier(epsilon, 1e-6),
        "classical": lambda: sqrt(touched) * sqrt(2 * np.log(1.25e6)) / epsilon,
        "paper": lambda: sqrt(2 * np.log(1.25e6)) / epsilon,
    }[calibration]
    local, released = without_replacement(
        loss="logistic",
        minibatch=lambda m, i: [(x[r], y[r]) for r in problem.partition[m][i * b : (i + 1) * b]],
        order=order,
        is_global=lambda t, m, k: controller.choose((M, models), t, key)[m, k],
        noise=lambda t, m, k: kernels.gaussian((M * models, d), 1.0, key.stream(Purpose.NOISE, t))[
            m * models + k
        ],
        eta=schedule,
        z=0.0 if epsilon is None else z(),
        M=M,
        K=models,
        d=d,
        T=T,
        b=b,
        L=1.0,
        R=radius or inf,
        lam=regularization,
        binary=K is None,
    )
    np.testing.assert_allclose(state.local, local, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(state.released, released, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("controller", FIXED)
@pytest.mark.parametrize("epsilon", [None, 1.0])
def test_the_ledger_of_a_known_schedule_equals_its_plan(controller, epsilon) -> None:
    problem = make_problem([40, 40, 40], 3, 4)
    algorithm = dm.WithoutReplacement(epsilon, 1e-5, models=4, batch_size=4, controller=controller)
    run = dm.simulate(algorithm, problem, rounds=10, delta=1e-5)
    assert run.ledger == algorithm.plan(10)
    nothing = controller == AlwaysLocal()
    expected = 0.0 if nothing else inf if epsilon is None else 1.0
    assert run.privacy.epsilon == pytest.approx(expected, rel=1e-9)
    assert run.privacy.unit == "record"
    assert run.privacy.neighboring_relation == "replace_one"
    assert run.traffic.bits == 64 * 3 * run.traffic.messages
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
    paper = dm.WithoutReplacement(1.0, delta, 10, calibration="paper", controller=AlwaysGlobal())
    assert paper.plan(1).cost(delta).epsilon == pytest.approx(2.8516081, rel=1e-7)
    shared = replace(paper, copies=20)
    assert shared.plan(1).cost(delta).epsilon == pytest.approx(14.939302, rel=1e-7)
    assert "held by more than 20 nodes" in str(dm.privacy.report(shared.plan(1), delta))
    single = replace(paper, models=1)
    assert single.plan(1).cost(delta).epsilon == pytest.approx(0.84991906, rel=1e-7)
    for calibration, of_one in (("analytic", 18.040913), ("classical", 6.6674348 * sqrt(10))):
        algorithm = replace(paper, calibration=calibration)
        std = algorithm.mechanism.noise_scale(algorithm.sensitivity, 50)
        assert std == pytest.approx(of_one, rel=1e-7)
        assert algorithm.plan(1).cost(delta).epsilon <= 1 + 1e-9


def neighbours(problem: dm.LinearProblem, node: int, place: int):
    """Return the problem with one record made extreme, and with it turned around."""
    worlds = []
    for sign in (1, -1):
        x = problem.train.features.copy()
        x[problem.partition[node][place]] = sign * np.eye(x.shape[1])[0]
        worlds.append(replace(problem, train=replace(problem.train, features=x)))
    return worlds


@pytest.mark.parametrize("controller", [AlwaysGlobal(), RandomGlobal(1.0)])
def test_a_coupled_audit_finds_no_fault(controller) -> None:
    problem = make_problem([30], 4)
    algorithm = dm.WithoutReplacement(batch_size=3, controller=controller, step_size=Constant(1.0))
    worlds = neighbours(problem, 0, 13)
    shown = couple(algorithm, *worlds, alone, rounds=10, key=dm.Key.seeded(1))
    assert not shown.violated, shown
    assert [m.release.round for m in shown.movements if m.distance > 0] == [4]


@given(
    K=st.sampled_from([None, 3]),
    controller=st.sampled_from([AlwaysGlobal(), Periodic(4), RandomGlobal(0.3)]),
    schedule=st.sampled_from([Constant(2.0), InverseTime(2.0), InverseTime(8.0, 3.0)]),
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
        1.0, 1e-5, K or 1, 3, _Capped(schedule, cap), controller, model_radius=radius
    )
    key = dm.Key.seeded(seed)
    one, other = neighbours(problem, 1, place)
    run = record(algorithm, one, alone, rounds=10, key=key)
    again = record(algorithm, other, alone, rounds=10, key=key, replay=run)
    moved = 0.0
    for passage, twin in zip(run.passages, again.passages, strict=True):
        moved += float(((passage.inside - twin.inside) ** 2).sum())
    assert sqrt(moved) <= algorithm.sensitivity.bound * (1 + 1e-9)
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
    inside = []
    for side in (0.995, -0.995):
        train = replace(problem.train, features=np.array([[-0.0995, side]]), labels=np.array([1]))
        world = replace(problem, train=train, test=None)
        far = replace(algorithm.init(world, dm.Key.seeded(0)), released=np.array([[200.0, 0.0]]))
        with watched_by(lambda passage: inside.append(passage.inside) or passage.emission):
            algorithm.step(far, 0, world, alone, dm.Key.seeded(0))
    assert 0.99 < np.linalg.norm(inside[0] - inside[1]) / algorithm.sensitivity.bound <= 1


def test_public_controllers_see_nothing_private_and_others_are_reported() -> None:
    problem = make_problem([40] * 3, 2, 3)
    seen = []

    @dataclass(frozen=True)
    class Watching(RandomGlobal):
        def decide(self, state, observation, round, key):
            seen.append(observation)
            return super().decide(state, observation, round, key)

    public = dm.WithoutReplacement(models=3, batch_size=4, controller=Watching(0.5))
    run = dm.simulate(public, problem, rounds=10, delta=1e-5)
    assert len(seen) == 10
    for observation in seen:
        for private in (observation.local_models, observation.losses, observation.last_losses):
            assert np.isnan(private).all()
    assert "no proof covers" not in str(run.privacy)

    learned = replace(public, controller=DeepQ(5, hidden=16))
    run = dm.simulate(learned, problem, rounds=10, delta=1e-5)
    assert "no proof covers" in str(run.privacy)

    released = replace(public, controller=DeepQ(5, hidden=16, sees="released"))
    with pytest.raises(ValueError, match="public_losses: wanted losses on public data"):
        dm.simulate(released, problem, rounds=10)
    run = dm.simulate(replace(released, public_data=problem.train), problem, rounds=10, delta=1e-5)
    assert "on which the controller scores released models is public" in str(run.privacy)


def test_the_controller_is_told_the_losses_of_algorithm_2() -> None:
    """f(w_t, sample_t) and f(w_t, sample_(t-1)), also of nodes that were away in between."""
    problem = make_problem([30, 30], 2, 3, regularization=0.1)
    seen = []

    @dataclass(frozen=True)
    class Private(RandomGlobal):
        public = False

        def decide(self, state, observation, round, key):
            seen.append(observation)
            return super().decide(state, observation, round, key)

    algorithm = dm.WithoutReplacement(
        models=3, batch_size=3, controller=Private(0.5), arrival_rate=0.7
    )
    key = dm.Key.seeded(2)
    state = algorithm.init(problem, key)
    for t in range(8):
        before = state
        state, _ = algorithm.step(state, t, problem, alone, key)
        for m in np.flatnonzero(seen[t].acting):
            i = before.used[m]
            for told, number in ((seen[t].losses, i), (seen[t].last_losses, i - 1)):
                if number < 0:
                    continue
                batch = problem.partition[m][number * 3 : number * 3 + 3]
                w = before.local[m].reshape(1, -1)
                np.testing.assert_allclose(
                    told[m], problem.class_objectives(w, batch[np.newaxis])[0]
                )


def test_steps_of_theorem_4_keep_lemma_4() -> None:
    problem = make_problem([20], 2, regularization=1e-4)
    steps = theorem4_steps(problem, 0.5)
    cap = 1 / (2 * problem.model_constants().smoothness)
    assert 0.99 * cap < steps(1) < cap
    assert steps(10**7) == pytest.approx(1 / (0.5 * 1e-4 * 1e7), rel=1e-2)
    too_long = dm.WithoutReplacement(batch_size=2, step_size=InverseTime(1 / (0.5 * 1e-4)))
    with pytest.raises(ValueError, match="Lemma 4 wants at most"):
        dm.simulate(replace(too_long, controller=AlwaysGlobal()), problem, rounds=3)
    with pytest.raises(ValueError, match=r"problem\.regularization: wanted .* greater than 0"):
        theorem4_steps(make_problem([20], 2), 0.5)


def test_each_record_is_used_once() -> None:
    problem = make_problem([20, 9], 2)
    algorithm = dm.WithoutReplacement(batch_size=4)
    key = dm.Key.seeded(0)
    state = algorithm.init(problem, key)
    seen = []
    for t in range(5):
        state, info = algorithm.step(state, t, problem, alone, key)
        seen += info.records.ravel().tolist()
    assert len(seen) == len(set(seen)) == 28
    with pytest.raises(ValueError, match=r"round: wanted one for which a node has .* got 5"):
        algorithm.step(state, 5, problem, alone, key)


@pytest.mark.parametrize("threads", [2, 7])
def test_the_same_bits_on_any_number_of_threads(threads: int) -> None:
    problem = make_problem([8] * 64, 30, 10)
    algorithm = dm.WithoutReplacement(
        models=10, batch_size=4, controller=DeepQ(2, hidden=16, batch_size=1, memory_size=2)
    )
    before, runs = kernels.get_threads(), []
    for count in (1, threads):
        kernels.set_threads(count)
        runs.append(dm.simulate(algorithm, problem, rounds=2, key=dm.Key.seeded(3), metrics=[]))
    kernels.set_threads(before)
    np.testing.assert_array_equal(runs[0].parameters, runs[1].parameters)
    np.testing.assert_array_equal(runs[0].released, runs[1].released)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dm.WithoutReplacement(0.0), "epsilon: wanted a finite number greater than 0"),
        (lambda: dm.WithoutReplacement(delta=0.0), r"delta: wanted a number in \(0, 1\), got 0"),
        (lambda: dm.WithoutReplacement(models=0), "models: wanted an integer of at least 1"),
        (lambda: dm.WithoutReplacement(batch_size=1.5), "batch_size: wanted an integer"),
        (lambda: dm.WithoutReplacement(copies=0), "copies: wanted an integer of at least 1"),
        (lambda: dm.WithoutReplacement(calibration="exact"), "calibration: wanted one of"),
        (lambda: dm.WithoutReplacement(model_radius=-1), "model_radius: wanted .* greater than 0"),
        (lambda: dm.WithoutReplacement(arrival_rate=0), r"arrival_rate: wanted .* in \(0, 1\]"),
        (lambda: dm.WithoutReplacement().plan(0), "rounds: wanted an integer of at least 1, got 0"),
        (
            lambda: dm.simulate(dm.WithoutReplacement(models=2), make_problem([9], 2), rounds=1),
            "models: wanted 1, as the problem has, got 2",
        ),
        (
            lambda: dm.simulate(
                dm.WithoutReplacement(batch_size=2, controller=AlwaysGlobal()),
                replace(make_problem([9], 2), feature_norm=None),
                rounds=1,
            ),
            "feature_norm: wanted a public bound on the norm of a record, got None",
        ),
        (
            lambda: dm.simulate(
                dm.WithoutReplacement(batch_size=2, controller=AlwaysGlobal()),
                make_problem([9], 2, loss="hinge"),
                rounds=1,
            ),
            "smoothness: wanted a finite number, got inf",
        ),
    ],
)
def test_bad_input_is_named(call, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_learning_run_resumes_to_the_same_bits(tmp_path) -> None:
    problem = make_problem([40] * 4, 5, 3)
    controller = DeepQ(8, hidden=16, batch_size=2, memory_size=3)
    algorithm = dm.WithoutReplacement(models=3, batch_size=4, controller=controller)
    key, file = dm.Key.seeded(6), tmp_path / "run"

    class StopError(Exception):
        pass

    def stop(round: int, values) -> None:
        if round == 6:
            raise StopError

    options = {"rounds": 10, "key": key, "every": 1, "checkpoint": file, "checkpoint_every": 2}
    with pytest.raises(StopError):
        dm.simulate(algorithm, problem, **options, callback=stop)
    resumed = dm.simulate(algorithm, problem, **options)
    whole = dm.simulate(algorithm, problem, rounds=10, key=key, every=1)
    np.testing.assert_array_equal(resumed.parameters, whole.parameters)
    np.testing.assert_array_equal(resumed.released, whole.released)
    assert resumed.ledger == whole.ledger
    assert resumed.traffic == whole.traffic


def test_a_budget_is_met_however_often_nodes_release() -> None:
    problem = make_problem([40] * 3, 2, 3)
    for controller in (AlwaysGlobal(), DeepQ(5, hidden=16), RandomGlobal(0.5)):
        algorithm = dm.WithoutReplacement(models=3, batch_size=4, controller=controller)
        run = dm.simulate(algorithm, problem, rounds=10, budget=dm.privacy.Budget(1.0, 1e-5))
        assert run.privacy.epsilon <= 1.0
        assert len(run.ledger.releases) > 1
    with pytest.raises(ValueError, match="is too little"):
        dm.simulate(algorithm, problem, rounds=10, budget=dm.privacy.Budget(0.9, 1e-5))

"""The round loop and what comes out of it: history, traffic, saved runs, errors."""

from __future__ import annotations

import html
import json
import re
import weakref
from dataclasses import replace

import numpy as np
import pytest
from problems import stream_problem as make_problem

import dpmesh as dm
from dpmesh import topology
from dpmesh.algorithms import Message, Relay
from dpmesh.run import Gossip
from dpmesh.run.channel import run_rounds


class HalfAProblem:
    nodes = 4

    def accuracy(self, params):
        return np.zeros(len(params))


def run(problem: dm.LinearProblem, **options) -> dm.Run:
    options = {"rounds": 6, "key": dm.Key.seeded(0), **options}
    return dm.simulate(dm.OnlineLearning(epsilon=2.0), problem, topology.ring(4), **options)


def models(problem: dm.LinearProblem) -> list:
    """The states of `run`: before the first round, and after each."""
    algorithm, key = dm.OnlineLearning(epsilon=2.0), dm.Key.seeded(0)
    steps = run_rounds(algorithm, problem, Gossip(topology.ring(4)), rounds=6, key=key)
    return [algorithm.init(problem, key), *(step.state for step in steps)]


def test_a_report_names_what_it_does_not_cover() -> None:
    problem = make_problem()
    private = run(problem).privacy
    losses = ("loss", "accuracy", "regret", "worst_regret", "consensus_distance", "run.parameters")
    assert private.not_covered == losses
    assert "not covered loss, accuracy, regret" in str(private)
    assert dm.privacy.Report.from_dict(private.as_dict()) == private
    own = run(problem, metrics=["released_accuracy", lambda *_: 0.0]).privacy
    assert own.not_covered == ("<lambda>", "run.parameters")


def test_only_what_is_covered_can_be_measured() -> None:
    problem = make_problem()
    found = run(problem, metrics="covered")
    assert found.history.metrics == ("released_accuracy", "megabytes")
    assert found.history.last("released_accuracy") == problem.accuracy(found.released).mean()
    server = dm.FederatedLearning(
        dm.ClientUpdates(clients=4, sampling_rate=0.5, clipping_norm=1.0, epochs=1),
        noise_multiplier=1.0,
    )
    learned = dm.simulate(server, problem, rounds=2, metrics=["accuracy"])
    assert learned.privacy.not_covered == ()
    with pytest.raises(ValueError, match="metrics: wanted accuracy, which has released_accuracy"):
        run(problem, metrics=["accuracy", "released_accuracy"])


def test_measures_what_it_says_when_it_says() -> None:
    problem, seen = make_problem(), []
    result = run(
        problem, metrics=dm.Metrics(every=4, callback=lambda t, values: seen.append((t, values)))
    )
    assert result.history.metrics == (
        "loss",
        "accuracy",
        "released_accuracy",
        "regret",
        "worst_regret",
        "consensus_distance",
        "megabytes",
    )
    np.testing.assert_array_equal(result.history.rounds("accuracy"), [4, 6])
    assert [t for t, _ in seen] == [4, 6]
    assert seen[-1][1]["accuracy"] == result.history.last("accuracy")
    assert result.history.last("accuracy") == problem.accuracy(result.parameters).mean()
    assert result.history.last("released_accuracy") == problem.accuracy(result.released).mean()
    spread = result.parameters - result.parameters.mean(axis=0)
    rms = np.sqrt((spread**2).sum(axis=1).mean())
    assert result.history.last("consensus_distance") == pytest.approx(rms)
    assert result.history.last("megabytes") == result.traffic.megabytes
    assert result.history["megabytes"][0] == pytest.approx(result.traffic.megabytes * 4 / 6)
    assert str(result).count("megabytes") == 0  # which the line of the traffic has


def test_numbers_of_numpy_are_numbers(tmp_path) -> None:
    rounds, delta = np.int64(3), np.float32(1e-5)
    network = dm.Network(latency=np.float32(0.1), max_delay=np.int64(1))
    options = {"rounds": rounds, "delta": delta, "engine": network}
    result = run(make_problem(), metrics=dm.Metrics(every=np.int64(2)), **options)
    result.save(tmp_path)
    reported = json.loads((tmp_path / "run.json").read_text())
    assert (reported["settings"]["rounds"], reported["privacy"]["delta"]) == (3, float(delta))
    assert dm.QuantizedGossip(
        step_size=0.1, consensus_step_size=0.5, sample_size=np.int64(3), noise_std=1.0
    ) == dm.QuantizedGossip(step_size=0.1, consensus_step_size=0.5, sample_size=3, noise_std=1.0)


def test_losses_are_those_of_the_models_before_they_learn() -> None:
    problem = make_problem()
    result = run(problem, metrics=dm.Metrics(["loss"], every=1))
    expected = [
        problem.objective(state.w, problem.batch(t, 1)).mean()
        for t, state in enumerate(models(problem)[:-1])
    ]
    np.testing.assert_allclose(result.history["loss"], expected, rtol=1e-12)


def test_there_is_no_loss_before_anybody_has_learned() -> None:
    class Silent(dm.OnlineLearning):
        def losses(self, state, t, problem, key):
            return super().losses(state, t, problem, key) if t > 1 else None

    options = {"rounds": 4, "metrics": dm.Metrics(every=1), "key": dm.Key.seeded(0)}
    history = dm.simulate(Silent(), make_problem(), topology.ring(4), **options).history
    np.testing.assert_array_equal(np.isnan(history["loss"]), [True, True, False, False])


def test_regret_is_that_of_definition_2() -> None:
    """The losses of each learner on everybody's examples, against the best model in the ball."""
    nodes, rounds = 4, 6
    problem = make_problem(nodes, rounds)
    result = run(problem, metrics=["regret"])
    total = np.zeros(nodes)
    for t, state in enumerate(models(problem)[:-1]):
        for j in range(nodes):
            for i in range(nodes):
                record = problem.partition[i][t]
                margin = problem.train.labels[record] * (
                    problem.train.features[record] @ state.w[j]
                )
                total[j] += np.log1p(np.exp(-margin))
    best = dm.problems.best_fixed_predictor(problem, radius=1.0).value
    regrets = total / (nodes * rounds) - best
    assert result.history.last("regret") == pytest.approx(regrets.mean(), abs=1e-4)
    assert result.history.last("worst_regret") == pytest.approx(regrets.max(), abs=1e-4)


def test_a_best_model_that_is_not_found_ends_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise dm.problems.NotReached("tolerance: wanted a gap of at most 1e-05, reached 0.1")

    monkeypatch.setattr("dpmesh.run.metrics.best_fixed_predictor", fail)
    history = run(make_problem()).history
    assert np.isnan(history["regret"]).all()
    assert np.isnan(history["worst_regret"]).all()
    assert np.isfinite(history["loss"]).all()


def test_arrays_that_no_round_needs_any_more_are_gone() -> None:
    """A state, after its round; what was received, when the next is."""
    states, received = [], []

    class Watched(dm.OnlineLearning):
        def round(self, state, t, problem, key):
            assert all(earlier() is None for earlier in states)
            states.append(weakref.ref(state.w))
            return super().round(state, t, problem, key)

        def _stepped(self, state, b, *others):
            assert all(earlier() is None for earlier in received)
            received.append(weakref.ref(b))
            return super()._stepped(state, b, *others)

    options = {"rounds": 6, "metrics": (), "key": dm.Key.seeded(0)}
    dm.simulate(Watched(epsilon=2.0), make_problem(), topology.ring(4), **options)
    assert len(states) == len(received) == 6


def test_counts_what_crosses_links() -> None:
    result = run(make_problem())
    assert result.traffic.messages == 6 * 4 * 2  # rounds x nodes x neighbours on a ring
    assert result.traffic.bits == result.traffic.messages * 5 * 64
    assert result.traffic.megabytes == result.traffic.bits / 8e6


def test_a_saved_run_holds_its_report_and_no_private_state(tmp_path) -> None:
    result = run(make_problem())
    result.save(tmp_path / "run")
    saved = json.loads((tmp_path / "run" / "run.json").read_text())
    assert saved["privacy"]["epsilon"] == 2.0
    assert saved["traffic"]["messages"] == 48
    assert len(saved["history"]) == len(result.history.records)
    np.testing.assert_array_equal(np.load(tmp_path / "run" / "released.npy"), result.released)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "released.npy",
        "run.json",
    ]


def test_a_notebook_shows_what_is_printed_in_tables() -> None:
    result = run(make_problem())
    shown = result._repr_html_()
    assert "<tr><th>unit</th><td>one record</td></tr>" in shown
    cells = re.sub("<[^>]+>", " ", shown)
    assert html.unescape(cells).split() == str(result).split()
    assert shown.count("<p>") == 2  # whether sharing paid, and what the scores are for


def test_a_saved_run_is_read_again(tmp_path) -> None:
    whole = run(make_problem(), metrics=["accuracy", "node_accuracy"])
    whole.save(tmp_path / "run")
    found = dm.experiments.Result.load(tmp_path / "run")
    assert (found.settings, found.traffic) == (whole.settings, whole.traffic)
    assert found.privacy == whole.privacy
    assert found.ledger == whole.ledger
    assert found.history.records == whole.history.records
    by_node = whole.history.node_values("node_accuracy")
    np.testing.assert_array_equal(found.history.node_values("node_accuracy"), by_node)
    assert repr(found) == repr(whole)
    with pytest.raises(FileNotFoundError):
        dm.experiments.Result.load(tmp_path)


@pytest.mark.parametrize(
    ("loss", "classes"),
    [("softmax", 3), ("hinge", 3), ("logistic", None), ("squared", None), ("absolute", None)],
)
def test_a_released_model_predicts_what_was_tested(loss, classes, tmp_path) -> None:
    draw = np.random.default_rng(0)
    labels = draw.integers(classes, size=60) if classes else draw.choice([-1, 1], 60)
    train = dm.Dataset(draw.normal(size=(60, 4)), labels)
    parts, algorithm = (
        np.arange(60).reshape(3, 20),
        dm.GradientDescent(records=20, noise_multiplier=2.0),
    )
    problem = dm.LinearProblem(train, parts, loss, test=train, classes=classes)
    whole = dm.simulate(algorithm, problem, topology.ring(3), rounds=5, delta=1e-5)
    whole.save(tmp_path)
    saved = dm.experiments.Result.load(tmp_path)
    for node, expected in enumerate(problem.accuracy(whole.released)):
        found = whole.model(node).predict(train.features)
        if loss in ("squared", "absolute"):
            scores = train.features @ whole.released[node]
            np.testing.assert_allclose(found, scores)
        else:
            assert (found == train.labels).mean() == expected
        np.testing.assert_array_equal(saved.model(node).predict(train.features), found)
        assert saved.model(node).about["privacy"]["epsilon"] == whole.privacy.epsilon
    mean = whole.model().weights
    np.testing.assert_allclose(mean, sum(whole.model(i).weights for i in range(3)) / 3)
    with pytest.raises(ValueError, match="node: wanted one of 3 released models"):
        whole.model(3)
    with pytest.raises(ValueError, match="X: wanted shape"):
        whole.model().predict(np.ones((2, 3)))


def test_plots_a_metric() -> None:
    pytest.importorskip("matplotlib").use("Agg")
    result = run(make_problem())
    line = result.plot("regret").lines[0]
    np.testing.assert_array_equal(line.get_ydata(), result.history["regret"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rounds": 0}, "rounds: wanted an integer of at least 1, got 0"),
        ({"rounds": 7}, "rounds: wanted at most 6, as many as the records last, .*, got 7"),
        ({"delta": 1.0}, r"delta: wanted a number in \[0, 1\), got 1"),
        ({"metrics": ["beauty"]}, "metrics: wanted one of 'loss', 'accuracy'"),
        ({"metrics": "loss"}, "metrics: wanted a list of names and .*, got 'loss'"),
        ({"checkpoint": 3}, "checkpoint: wanted the path of a file, or None, got 3"),
    ],
)
def test_bad_options_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(make_problem(), **options)


def test_the_report_is_at_the_delta_of_the_algorithm_unless_told() -> None:
    problem, network = make_problem(), topology.ring(4)
    gaussian = dm.OnlineLearning(epsilon=2.0, delta=1e-5)
    options = {"rounds": 6, "key": dm.Key.seeded(0)}
    own = dm.simulate(gaussian, problem, network, **options).privacy
    assert own.delta == 1e-5
    assert own.epsilon == pytest.approx(2.0)
    reported = dm.simulate(gaussian, problem, network, delta=0.0, **options).privacy
    assert not reported.is_private
    assert "none: Gaussian noise needs a delta above 0" in str(reported)
    assert run(problem).privacy.delta == 0


def test_a_step_size_of_ones_own_prints_by_its_name() -> None:
    def slower(t: int) -> float:
        return 1 / t

    algorithm = dm.OnlineLearning(epsilon=2.0, step_size=slower)
    options = {"rounds": 2, "key": dm.Key.seeded(0)}
    result = dm.simulate(algorithm, make_problem(), topology.ring(4), **options)
    assert "slower>" in result.settings["algorithm"]


def test_what_is_printed_of_a_run_and_its_problem_is_short_and_no_data() -> None:
    problem = make_problem()
    result = run(problem)
    assert "epsilon=2.0" in repr(result)
    assert repr(result) == str(result)
    assert repr(result.ledger) == "Plan(6 releases, replace_one, record)"
    assert result.baselines is not None
    assert result.score is not None
    assert replace(result, problem=None).score == result.history.last("released_accuracy")
    assert f"{result.privacy}\n\n1 run of {problem.test.records} test records" in str(result)
    assert str(result).endswith("These figures are for research: no epsilon covers the baselines.")
    assert "research    loss" in str(result)
    assert "at the end  released_accuracy" in str(result)
    assert f"accuracy {result.history.last('accuracy'):.4g}, " in str(result)
    assert repr(problem).startswith("LinearProblem(train=Dataset('")
    for shown in (result, problem, problem.train):
        assert len(repr(shown)) < 2000
        assert "array(" not in repr(shown)


def test_a_network_of_plain_arrays_is_refused() -> None:
    class Mine:
        nodes = 4

        def matrix(self, round: int) -> np.ndarray:
            return np.eye(4)

    with pytest.raises(ValueError, match=r"topology: wanted one whose matrix\(round\) is a Mixing"):
        dm.simulate(dm.OnlineLearning(), make_problem(), Mine(), rounds=2)


def test_a_network_of_another_size_is_refused() -> None:
    options = {"rounds": 2, "key": dm.Key.seeded(0)}
    with pytest.raises(ValueError, match="topology: wanted 4 nodes, as the problem has, got 5"):
        dm.simulate(dm.OnlineLearning(), make_problem(), topology.ring(5), **options)


def test_accuracy_needs_test_records() -> None:
    problem = make_problem(test=False)
    assert "accuracy" not in run(problem).history.metrics
    with pytest.raises(ValueError, match="metrics: wanted what can be measured here"):
        run(problem, metrics=["accuracy"])
    with pytest.raises(ValueError, match="metric: wanted one of"):
        run(problem).history["accuracy"]


def test_accuracy_needs_test_records_of_classes() -> None:
    """Real targets have none, but may be tested on by a metric of one's own."""
    problem = make_problem()
    train, test = (dm.Dataset(d.features, d.features[:, 0]) for d in (problem.train, problem.test))
    regression = dm.LinearProblem(train, problem.partition, "squared", test=test, label_bound=9.0)
    assert "accuracy" not in run(regression).history.metrics
    with pytest.raises(ValueError, match="metrics: wanted what can be measured here"):
        run(regression, metrics=["accuracy"])
    signs = replace(problem, loss="squared")
    assert "accuracy" in run(signs).history.metrics


def test_a_server_needs_no_network() -> None:
    problem = make_problem()
    algorithm = dm.FederatedLearning(
        dm.ClientUpdates(clients=4, sampling_rate=0.5, clipping_norm=1.0, epochs=1),
        noise_multiplier=1.0,
    )
    result = dm.simulate(algorithm, problem, rounds=5, key=dm.Key.seeded(0), delta=1e-5)
    assert result.history.metrics == ("loss", "accuracy", "released_accuracy", "megabytes")
    assert result.ledger == algorithm.plan(5)
    assert result.traffic.messages == 5 * 2 * 2  # two clients expected: the model out, a move back
    assert result.traffic.bits == result.traffic.messages * 64 * problem.dim
    options = {"rounds": 5, "key": dm.Key.seeded(0)}
    with pytest.raises(ValueError, match="sends messages by server and takes no topology; remove"):
        dm.simulate(algorithm, problem, topology.ring(4), **options)
    with pytest.raises(
        ValueError, match="topology: wanted a topology over which messages are sent"
    ):
        dm.simulate(dm.OnlineLearning(), problem, **options)


class Homeless(dm.OnlineLearning):
    communication = "post"


class PlansAList(dm.OnlineLearning):
    def plan(self, rounds):
        return list(super().plan(rounds).releases)


class ReturnsAtOnce(dm.OnlineLearning):
    def round(self, state, *others):
        return state


class YieldsValues(dm.OnlineLearning):
    def round(self, state, *others):
        yield state.w


class RelaysNothing(dm.OnlineLearning):
    def round(self, state, *others):
        yield Relay()


class OfAnotherRound(dm.OnlineLearning):
    def release_of(self, t):
        return super().release_of(t + 1)


class OneRowTooFew(dm.OnlineLearning):
    def round(self, state, t, *others):
        yield Message(state.w, self.release_of(t), rows=np.arange(3))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"algorithm": Homeless()},
            "algorithm.communication: wanted one of 'gossip', .*, got 'post'",
        ),
        ({"algorithm": PlansAList()}, r"algorithm: wanted one whose plan\(rounds\) is a Plan, got"),
        ({"algorithm": ReturnsAtOnce()}, "algorithm: wanted one whose round is a generator"),
        ({"algorithm": YieldsValues()}, "algorithm: wanted rounds that yield Message or Relay"),
        ({"algorithm": RelaysNothing()}, "algorithm: wanted a Message before a Relay in"),
        ({"algorithm": OfAnotherRound()}, "release: wanted one of round 0, got one of round 1"),
        ({"algorithm": OneRowTooFew()}, r"values: wanted an array of shape \(rows, dim\), as many"),
        ({"topology": "ring"}, "topology: wanted a topology of .*, got 'ring'"),
        ({"topology": np.eye(4)}, r"topology: wanted .* Static\(MixingMatrix\(weights\)\) .*, got"),
        ({"algorithm": dm.OnlineLearning}, "algorithm: wanted an algorithm of dpmesh.algo"),
        ({"problem": dm.OnlineLearning()}, "problem: wanted what is to be learned, with accuracy"),
        ({"problem": HalfAProblem()}, "problem: wanted what is to be learned, with test, got"),
        ({"algorithm": dm.OnlineLearning(batch_size=7)}, "problem: wanted enough records at"),
        ({"engine": "mpi"}, "engine: wanted a dpmesh.Network, an engine such as .*share, got"),
        ({"metrics": iter(["loss"])}, "metrics: wanted a list of names and .*, got <list_"),
        ({"metrics": 3}, "metrics: wanted a list of names and .*, got 3"),
        ({"checkpoint": True}, "checkpoint: wanted the path of a file, or None, got True"),
        ({"metrics": [3]}, "metrics: wanted names and functions, got 3"),
        ({"metrics": [lambda *_: 1.0] * 2}, "metrics: wanted names that differ.*, got <lambda>, <"),
        ({"key": 3}, "key: wanted a Key, such as .*, got 3"),
        ({"budget": 1.0}, "budget: wanted a dpmesh.privacy.Budget or None, got 1.0"),
    ],
)
def test_arguments_of_another_kind_are_named(wrong: dict, message: str) -> None:
    right = {"algorithm": dm.OnlineLearning(), "problem": make_problem(), "rounds": 2}
    right |= {"topology": topology.ring(4), "key": dm.Key.seeded(0)}
    with pytest.raises(ValueError, match=message):
        dm.simulate(**right | wrong)

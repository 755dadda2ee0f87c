"""Tables of a file that few have: a first stage, a view, public records."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_experiments import write

import dpmesh as dm
from dpmesh.algorithms import FirstStage, RecordSums, SecureAggregation
from dpmesh.algorithms.first_stage import SecondMoments
from dpmesh.experiments import Experiment, Result, read, run_sweep
from dpmesh.keys import Purpose, generator
from dpmesh_papers.deep_q import DeepQ

pytest.importorskip("sklearn")

TEXT = """\
format = 2

[run]
rounds = 4
seed = 1
delta = 1e-5

[data]
source = "breast_cancer"

[partition]
kind = "iid"
nodes = 5

[problem]
loss = "logistic"

[topology]
kind = "complete"

[algorithm]
kind = "FederatedLearning"
contribution = {kind = "RecordGradients"}
combination = {kind = "SecureAggregation"}
epsilon = 2.0

[first_stage]
noise_to_sensitivity = "rule"
"""

NODES, RECORDS, FEATURES, ROUNDS = 5, 455, 30, 4
LEARNS: dict[str, Any] = {
    "sum": {
        "kind": "FederatedLearning",
        "contribution": {"kind": "RecordGradients"},
        "combination": {"kind": "SecureAggregation", "dropouts": 1},
    },
    "gossip": {"kind": "GradientDescent"},
}


def settings(folder: Path, changes: dict[str, Any]) -> Any:
    return read(write(folder, TEXT)).replaced(changes)


def by_hand(kind: str) -> FirstStage:
    """Return what the files describe, without a file."""
    own: dict[str, Any] = {"sites": NODES, "records": RECORDS, "secure": kind == "sum"}
    learns: Any = dm.GradientDescent(records=RECORDS // NODES, noise_multiplier=6.0)
    moment = None
    if kind == "sum":
        own["dropouts"] = 1
        learns = dm.FederatedLearning(
            dm.RecordGradients(clients=NODES, records=RECORDS),
            noise_multiplier=6.0,
            combination=SecureAggregation(dim=FEATURES + 1, rounds=ROUNDS, dropouts=1),
        )
        moment = SecondMoments(dim=465, noise_to_sensitivity=6.0, **own)
    mean = RecordSums(dim=FEATURES, noise_to_sensitivity=7.0, **own)
    return FirstStage(algorithm=learns, mean=mean, moment=moment)


@pytest.mark.parametrize("kind", LEARNS)
def test_a_file_gives_the_bits_of_its_parts(kind: str, tmp_path: Path) -> None:
    stage = {"noise_to_sensitivity": 7.0} | ({"moment_noise": 6.0} if kind == "sum" else {})
    learns = LEARNS[kind] | {"noise_multiplier": 6.0}
    made = settings(tmp_path, {"algorithm": learns, "first_stage": stage})
    made.content["sweep"] = {"first_stage": ["none", stage]}  # with and without
    assert run_sweep(made, tmp_path / "results", processes=1) == []
    swept = sorted(each.parent for each in (tmp_path / "results").glob("*/result.json"))
    staged, plain = (Result.load(folder) for folder in swept)
    experiment, algorithm = Experiment.of(made), by_hand(kind)
    assert experiment.algorithm == algorithm
    links = experiment.topology if kind == "gossip" else None
    options: Any = {"rounds": ROUNDS, "key": dm.Key.seeded(1), "delta": 1e-5}
    run = dm.simulate(algorithm, experiment.problem(), links, **options)
    np.testing.assert_array_equal(staged.released, run.released)
    assert staged.ledger == run.ledger
    assert staged.privacy.epsilon == run.privacy.epsilon > plain.privacy.epsilon
    assert plain.released.shape[1] == FEATURES


@pytest.mark.parametrize("kind", LEARNS)
def test_the_rule_divides_an_epsilon_as_estimators_do(kind: str, tmp_path: Path) -> None:
    learns = LEARNS[kind] | {"epsilon": 2.0}
    experiment = Experiment.of(settings(tmp_path, {"algorithm": learns}))
    algorithm: Any = experiment.algorithm
    assert algorithm.plan(ROUNDS).cost(1e-5).epsilon == pytest.approx(2.0, abs=1e-6)
    if kind == "gossip":
        sizes: Any = {
            "fewest_records": RECORDS // NODES,
            "total_records": RECORDS,
            "features": FEATURES,
        }
        choice = dm.defaults.choose(
            dm.defaults.Sizes(nodes=NODES, dim=2 * FEATURES, **sizes),
            epsilon=2.0,
            delta=1e-5,
            algorithm="gossip",
            rounds=ROUNDS,
        )
        for part in ("mean", "algorithm"):
            chosen = getattr(choice.algorithm, part).noise_to_sensitivity
            assert getattr(algorithm, part).noise_to_sensitivity == pytest.approx(chosen, rel=1e-3)
    else:  # both attempts at the mean together take a tenth
        mu = 1 / dm.accounting.analytic_gaussian_noise_to_sensitivity(
            target_epsilon=2.0, target_delta=1e-5
        )
        assert 2 / algorithm.mean.noise_to_sensitivity**2 == pytest.approx(mu**2 / 10)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"first_stage": {"noise_to_sensitivity": -1.0}},
            "noise_to_sensitivity: wanted a finite number",
        ),
        (
            {"first_stage": {"noise_to_sensitivity": "no"}},
            "wanted a number or one of 'rule', got 'no'",
        ),
        (
            {"first_stage": {"moment_noise": 5.0}},
            "first_stage.noise_to_sensitivity: wanted a value",
        ),
        ({"first_stage": {"noise_to_sensitivity": 0.3}}, 'wanted more noise, or "rule"'),
        (
            {"algorithm": LEARNS["gossip"] | {"noise_multiplier": 4.0}},
            'noise as a number: "rule" divides an epsilon to calibrate to',
        ),
        (
            {"algorithm": LEARNS["gossip"] | {"epsilon": 2.0}, "first_stage.moment_noise": "rule"},
            "first_stage.moment_noise: wanted none: a second moment takes a secure sum",
        ),
        (
            {"algorithm": LEARNS["gossip"] | {"epsilon": 2.0}, "topology.kind": "ring"},
            "topology: wanted complete(5), over which all receive the same rows",
        ),
        (
            {"algorithm.contribution": {"kind": "ClientUpdates", "steps": 1}},
            "algorithm: this algorithm has user-level DP under add-remove",
        ),
        (
            {"algorithm": {"kind": "WithoutReplacement"}, "first_stage.noise_to_sensitivity": 3.0},
            "algorithm: private centering needs a mean that all nodes receive",
        ),
        ({"data": {"source": "libsvm"}, "problem.loss": "hinge"}, "problem: wanted dense records"),
    ],
)
def test_what_has_no_first_stage_is_refused(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    if "data" in changes:
        lines = [f"{(-1) ** i} 1:{i / 60} 3:0.5" for i in range(60)]
        (tmp_path / "all.libsvm").write_text("\n".join(lines))
        files = {"files": str(tmp_path / "all.libsvm"), "dim": 3, "classes": [-1, 1]}
        changes = {**changes, "data": files}
    with pytest.raises(ValueError, match=re.escape(said)):
        Experiment.of(settings(tmp_path, changes))


VIEWED: dict[str, Any] = {
    "run": {"rounds": 8, "seed": 1},
    "data": {"source": "digits", "positive": [5, 6, 7, 8, 9]},
    "partition": {"kind": "iid", "nodes": 6, "equal_sizes": True},
    "problem.feature_norm": 1.0,
    "topology.kind": "meetings",
    "algorithm": {"kind": "GradientDescent", "noise_multiplier": 4.0},
    "first_stage": "none",
    "budget": {"epsilon": 6.0, "delta": 1e-5},
    "view": {"kind": "OneNode"},
}


def test_a_file_has_a_budget_against_a_view(tmp_path: Path) -> None:
    """Against an adversary who sees every message, eight rounds exceed the budget."""
    run = Experiment.of(settings(tmp_path, VIEWED)).simulate()
    assert "against any one node" in str(run.privacy.view)
    assert run.privacy.epsilon > 6.0
    with pytest.raises(ValueError, match=r"run\.rounds: wanted at most"):
        Experiment.of(settings(tmp_path, VIEWED | {"view": "none"}))


@pytest.mark.parametrize(
    ("view", "words"),
    [
        ({"kind": "Coalition", "nodes": [1, 4]}, "against nodes 1, 4 together"),
        ({"kind": "Links", "links": [[0, 1], [2, 3]]}, "against a listener on 2 links"),
        (
            {"kind": "Node", "node": 2, "also": [{"kind": "PublishedMean"}]},
            "and the published mean of",
        ),
    ],
)
def test_a_file_names_who_looks_on(view: Any, words: str, tmp_path: Path) -> None:
    assert words in str(Experiment.of(settings(tmp_path, VIEWED | {"view": view})).budget)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": "none"}, r"view: wanted tables \[budget\]"),
        ({"view": {"kind": "Coalition"}}, r"view\.nodes: wanted a value for Coal"),
        ({"view": {"kind": "Node"}}, r"view\.node: wanted a value for N"),
        ({"view": {"kind": "Node", "node": 6}}, r"view\.node: wanted an integer .* below"),
        ({"view": {"kind": "Two"}}, r"view\.kind: wanted one of OneNode, Node"),
    ],
)
def test_a_view_that_does_not_fit_is_named(changes: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        Experiment.of(settings(tmp_path, VIEWED | changes))


SCORES = {"kind": "DeepQ", "sees": "released", "anneal_rounds": 4, "hidden": 16}
LEARNS_ALONE = {"kind": "WithoutReplacement", "epsilon": 4.0, "batch_size": 5}
RELEASED: dict[str, Any] = {
    "run": {"rounds": 6, "seed": 3, "delta": 1e-5},
    "data": {"source": "digits", "positive": [5, 6, 7, 8, 9], "records": 400},
    "data.public_fraction": 0.25,
    "partition.nodes": 4,
    "problem.feature_norm": 1.0,
    "topology": "none",
    "algorithm": LEARNS_ALONE | {"controller": SCORES},
    "first_stage": "none",
}


def test_a_controller_scores_released_models_on_public_records(tmp_path: Path) -> None:
    """Of 400 records 80 are for testing, 80 are public, and 240 lie on nodes."""
    assert run_sweep(settings(tmp_path, RELEASED), tmp_path / "results") == []
    result = Result.load(tmp_path / "results" / "run")
    assert "released models is public" in str(result.privacy.assumptions)
    digits = dm.data.unit_norm(dm.data.digits().take(np.arange(400)))
    digits = digits.relabelled(lambda label: np.where(label >= 5, 1, -1))
    key = dm.Key.seeded(3)
    draw = generator(key, Purpose.SPLIT)
    train, test = dm.data.train_test_split(digits, 0.2, draw)
    train, public = dm.data.train_test_split(train, 0.25, draw)
    problem = dm.LinearProblem(
        train, dm.data.iid(train, 4, draw), "logistic", test=test, feature_norm=1.0
    )
    assert (test.records, public.records, train.records) == (80, 80, 240)
    controller = DeepQ(anneal_rounds=4, sees="released", hidden=16)
    algorithm = dm.WithoutReplacement(
        epsilon=4.0, batch_size=5, controller=controller, public_data=public
    )
    run = dm.simulate(algorithm, problem, rounds=6, key=key, delta=1e-5)
    np.testing.assert_array_equal(
        np.load(tmp_path / "results" / "run" / "released.npy"), run.released
    )


def test_public_records_are_set_aside_for_whoever_does_not_look(tmp_path: Path) -> None:
    """So that the cells of a sweep over controllers learn from the same records."""
    others = RELEASED | {"algorithm": LEARNS_ALONE | {"controller": {"kind": "AlwaysGlobal"}}}
    made = (Experiment.of(settings(tmp_path, changes)) for changes in (RELEASED, others))
    parts = [experiment.problem() for experiment in made]
    assert parts[0].records.sum() == 240
    np.testing.assert_array_equal(parts[0].train.features, parts[1].train.features)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, r"data\.public_fraction: wanted more than 0, for a controller .*, got none"),
        ({"public_fraction": 0.0}, r"data\.public_fraction: wanted more than 0, for a con"),
        ({"public_fraction": "x"}, r"data\.public_fraction: wanted a number, got 'x'"),
    ],
)
def test_a_file_without_public_records_is_told_so(given: Any, message: str, tmp_path: Path) -> None:
    without = {key: value for key, value in RELEASED.items() if key != "data.public_fraction"}
    changes = without | {"data": RELEASED["data"] | given}
    with pytest.raises(ValueError, match=message):
        Experiment.of(settings(tmp_path, changes))

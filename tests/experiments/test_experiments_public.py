"""A controller that looks at public information alone, from a file."""

from __future__ import annotations

import numpy as np
import pytest
from test_experiments import write

import dpmesh as dm
from dpmesh.experiments import Experiment, read, run_sweep
from dpmesh.experiments.experiment import Result
from dpmesh.keys import Purpose, generator
from dpmesh.reproduce.deep_q import DeepQ

RELEASED = """
[run]
rounds = 6
seed = 3
delta = 1e-5

[data]
source = "digits"
positive = [5, 6, 7, 8, 9]
records = 400
public_fraction = 0.25

[partition]
kind = "iid"
nodes = 4

[problem]
loss = "logistic"
feature_norm = 1.0

[algorithm]
kind = "WithoutReplacement"
epsilon = 4.0
batch_size = 5
controller = {kind = "DeepQ", sees = "released", anneal_rounds = 4, hidden = 16}
"""


def test_a_controller_scores_released_models_on_public_records(tmp_path) -> None:
    """Of 400 records 80 are for testing, 80 are public, and 240 lie on nodes."""
    settings = read(write(tmp_path, RELEASED))
    assert run_sweep(settings, tmp_path / "results") == []
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


def test_public_records_are_set_aside_for_whoever_does_not_look(tmp_path) -> None:
    """So that the cells of a sweep over controllers learn from the same records."""
    other = RELEASED.replace('"DeepQ", sees = "released", anneal_rounds = 4, hidden = 16', "K")
    other = other.replace("K", '"AlwaysGlobal"')
    parts = [Experiment.of(read(write(tmp_path, text))).problem() for text in (RELEASED, other)]
    assert parts[0].records.sum() == 240
    np.testing.assert_array_equal(parts[0].train.features, parts[1].train.features)


@pytest.mark.parametrize(
    ("new", "message"),
    [
        ("", r"line 7: data\.public_fraction: wanted more than 0, for a controller .*, got none"),
        ("public_fraction = 0.0", r"line 11: data\.public_fraction: wanted more than 0, for a con"),
        ("public_fraction = 'x'", r"line 11: data\.public_fraction: wanted a number, got 'x'"),
    ],
)
def test_a_file_without_public_records_is_told_so(new: str, message: str, tmp_path) -> None:
    text = RELEASED.replace("public_fraction = 0.25", new)
    with pytest.raises(ValueError, match=message):
        Experiment.of(read(write(tmp_path, text)))

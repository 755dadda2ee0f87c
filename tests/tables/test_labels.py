"""Several labels of a record, classes by their shares: losses, what a record moves, verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit

import dpmesh as dm
from dpmesh.kernels.linear_model import as_sets, members
from dpmesh.sklearn import PrivateClassifier
from dpmesh.sklearn.tuning import tune

DRAW = np.random.default_rng(0)
LABELS, SITES = 3, 4


def drawn(records: int = 1200, seed: int = 0) -> tuple[Any, Any, Any]:
    """Records whose labels follow from their columns: two from lines, one rare."""
    draw = np.random.default_rng(seed)
    x = draw.uniform(-1, 1, (records, 4))
    scores = x @ np.array([[3.0, 0, 0], [0, 3, 0], [0, 3, 1], [1, 0, 3]]) - [0, 0.3, 1.5]
    y = (scores + 0.3 * draw.standard_normal(scores.shape) > 0).astype(int)
    return x, y, np.arange(records) % SITES


@pytest.mark.parametrize("norm", [None, 0.7])
def test_a_records_gradient_is_that_of_all_its_labels_together(norm: float | None) -> None:
    draw = np.random.default_rng(1)
    x, y = draw.standard_normal((9, 2)), draw.integers(2, size=(9, LABELS))
    model = dm.kernels.LinearModel(x, as_sets(y), "multilabel", classes=LABELS)
    w = draw.standard_normal((1, LABELS * 2))
    scores = x @ w.reshape(LABELS, 2).T
    slopes = expit(scores) - y
    each = (slopes[:, :, np.newaxis] * x[:, np.newaxis]).reshape(9, -1)
    sizes = np.linalg.norm(each, axis=1, keepdims=True)
    clipped = each if norm is None else each * np.minimum(1, norm / sizes)
    everybody = np.arange(9)[np.newaxis]
    found = model.gradient(w, everybody, clipping_norm=norm, divide_by=1.0)
    assert found == pytest.approx(clipped.sum(axis=0, keepdims=True))
    losses = np.logaddexp(0, np.where(y == 1, -scores, scores))
    assert model.record_losses(w, everybody) == pytest.approx(losses.sum(axis=1)[np.newaxis])
    assert model.class_losses(w, everybody) == pytest.approx(losses.mean(axis=0)[np.newaxis])
    assert model.accuracy(w) == pytest.approx(((scores > 0) == y).mean())
    if norm is not None:  # whatever a record holds in the place of another
        others = model.gradient(
            np.repeat(w, 9, axis=0), np.arange(9)[:, np.newaxis], clipping_norm=norm
        )
        assert np.linalg.norm(others, axis=1).max() <= norm * (1 + 1e-12)


def test_labels_are_sets_of_bits_up_to_63() -> None:
    y = np.eye(63, dtype=int)[::-1]
    assert np.array_equal(members(as_sets(y), 63), y)
    with pytest.raises(ValueError, match="below 64"):
        dm.kernels.LinearModel(np.ones((1, 1)), [1], "multilabel", classes=64)
    data = dm.Dataset(np.ones((2, 1)), [3, 8])
    with pytest.raises(ValueError, match="from 0 to 7"):
        dm.LinearProblem(data, [[0], [1]], "multilabel", classes=3)


def test_each_label_has_a_model_with_the_constants_of_a_logistic_one() -> None:
    x, y, site = drawn(40)
    problem = PrivateClassifier(1.0, ranges=(-1, 1))._encoded_problem(x, y, site).problem
    alone = dm.LinearProblem(
        dm.Dataset(problem.train.features, 2 * y[:, 0] - 1),
        problem.partition,
        "logistic",
        feature_norm=1.0,
    )
    assert (problem.models, problem.model_constants()) == (LABELS, alone.constants())
    algorithm = dm.WithoutReplacement(epsilon=1.0, models=LABELS, batch_size=2, step_size=0.1)
    run = dm.simulate(algorithm, problem, rounds=2, key=dm.Key.seeded(0), delta=1e-5, metrics=[])
    assert 0 < run.privacy.epsilon <= 1.0


@pytest.mark.parametrize("algorithm", ["secure", "gossip"])
def test_a_classifier_learns_each_label_and_its_file_predicts_them(
    algorithm: Any, tmp_path: Path
) -> None:
    x, y, site = drawn()
    names = ["asthma", "gout", "rare"]
    model = PrivateClassifier(4.0, ranges=(-1, 1), classes=names, algorithm=algorithm)
    model.set_params(random_state=0).fit(x, y, groups=site)
    often = np.maximum(y.mean(axis=0), 1 - y.mean(axis=0)).mean()
    assert model.score(x, y) > often + 0.05
    assert list(model.classes_) == names
    model.save(tmp_path / "model")
    loaded = dm.Model.load(tmp_path / "model")
    assert np.array_equal(loaded.predict(x), model.predict(x))
    assert loaded.predict_proba(x).shape == y.shape
    assert np.array_equal(loaded.predict_proba(x) > 0.5, loaded.predict(x) == 1)
    assert repr(loaded).startswith("Model(3 labels")


def test_a_record_with_other_labels_is_one_record() -> None:
    x, y, site = drawn(60)
    made = PrivateClassifier(1.0, ranges=(-1, 1))
    one, other = y.copy(), y.copy()
    one[0], other[0] = 0, 1
    problems = [made._encoded_problem(x, labels, site).problem for labels in (one, other)]
    w = np.random.default_rng(0).standard_normal((1, problems[0].dim))
    sums = [
        p.gradient_sum(np.repeat(w, SITES, axis=0), p.full_batches, clipping_norm=0.5)
        for p in problems
    ]
    moved = np.linalg.norm(sums[0] - sums[1], axis=1)
    assert 0 < moved[0] <= 1.0
    assert moved[1:] == pytest.approx(0, abs=1e-12)


@pytest.mark.slow
def test_verdicts_are_of_the_mean_and_of_each_label() -> None:
    pd = pytest.importorskip("pandas")
    x, y, site = drawn()
    table = pd.DataFrame(y, columns=["asthma", "gout", "rare"])
    model = PrivateClassifier(8.0, ranges=(-1, 1), random_state=0)
    found = dm.sklearn.evaluate(model, x, table, groups=site).verdict
    own = found.measured[0]
    each = [own[f"accuracy ({name})"] for name in table.columns]
    assert own["accuracy"] == pytest.approx(np.mean(each))
    assert {"balanced accuracy", "AUC"} < {*own} == {*found.baselines_by_split[0].measures}
    assert found.baselines_by_split[0].majority_class == pytest.approx(
        np.maximum(y.mean(axis=0), 1 - y.mean(axis=0)).mean(), abs=0.05
    )
    assert "accuracy (gout)" in str(found.table)
    for name in found.heads[1:]:
        assert found.mean(name) > found.baselines.measures[name].majority_class - 0.02


def test_a_choice_counts_a_record_once() -> None:
    x, y, site = drawn(400)
    model = PrivateClassifier(4.0, ranges=(-1, 1), random_state=0)
    tuned = tune(model, [{"rounds": 20}, {"rounds": 40}], x, y, groups=site)
    assert (
        0
        <= tuned.estimator._correctness(x, y).min()
        <= tuned.estimator._correctness(x, y).max()
        <= 1
    )


@pytest.mark.parametrize(
    ("changes", "y", "said"),
    [
        ({}, [[0, 2], [1, 0], [0, 1], [1, 1]], "0 or 1"),
        ({"class_shares": {0: 0.5, 1: 0.5}}, np.eye(4, dtype=int), "one class of each record"),
        ({"classes": ["a", "b"]}, np.eye(4, dtype=int), "a name of each of 4 labels"),
        ({"classes": ["a", "a"]}, np.eye(4, 2, dtype=int), "a name of each of 2 labels"),
        ({}, np.eye(4, 64, dtype=int), "at most 63 labels of a record, got 64"),
    ],
)
def test_what_is_no_set_of_labels_is_refused(changes: Any, y: Any, said: str) -> None:
    model = PrivateClassifier(1.0, ranges=(-1, 1)).set_params(**changes)
    with pytest.raises(ValueError, match=said):
        model.fit(np.zeros((4, 2)), y, groups=range(4))


RANGES = "a = [-1, 1]\nb = [-1, 1]\nc = [-1, 1]\nd = [-1, 1]\n"
RANGES += 'asthma = {flag = true}\ngout = {classes = ["no", "yes"]}\nrare = {flag = true}\n'
NAMES = ("asthma", "gout", "rare")


def written(folder: Path, change: Any = None) -> list[Path]:
    """A file of each site, and the public ranges beside them; `change` changes the first line."""
    pd = pytest.importorskip("pandas")
    x, y, site = drawn(80)
    (folder / "ranges.toml").write_text(RANGES)
    paths = [folder / f"s{own}.csv" for own in range(SITES)]
    for own, path in enumerate(paths):
        table = pd.DataFrame(x[site == own], columns=[*"abcd"])
        for name, column in zip(NAMES, y[site == own].T, strict=True):
            table[name] = np.where(column, "yes", "no") if name == "gout" else column
        table = table.astype(object)
        if own == 0 and change is not None:
            table.loc[0, change[0]] = change[1]
        table.to_csv(path, index=False)
    return paths


def read(paths: list[Path], label: str, *, drop: bool = False) -> Any:
    """Read files as `dpmesh fit` does, by the ranges beside them."""
    pytest.importorskip("typer")
    from dpmesh.cli import _sites
    from dpmesh.tables.reader import TextFormat

    used, labels, target = _sites.public_ranges(paths[0].parent / "ranges.toml", label, None, [])
    return _sites.read_sites(paths, used, labels, target, None, TextFormat(), drop=drop)


@pytest.mark.slow
def test_files_experiments_and_contracts_read_several_labels_alike(tmp_path: Path) -> None:
    from command import command

    from dpmesh.deploy import read_contract
    from dpmesh.deploy.rehearsal import rehearse
    from dpmesh.experiments.files import load_files

    paths, (_, y, site) = written(tmp_path), drawn(80)
    sets = [as_sets(y[site == own]) for own in range(SITES)]
    ranges, model = str(tmp_path / "ranges.toml"), str(tmp_path / "model")
    own = load_files(
        tuple(map(str, paths)), NAMES, ranges=ranges, generator=np.random.default_rng(0)
    )
    found = np.concatenate([own.train.labels, own.test.labels])
    assert sorted(found) == sorted(np.concatenate(sets))
    assert (own.outline.multilabel, own.outline.loss, own.outline.outputs) == (
        True,
        "multilabel",
        3,
    )

    asked = ["--label", "asthma, gout,rare", "--epsilon", 4, "--ranges", ranges]
    fitted = command("fit", *paths, *asked, "--output", model, "--splits", 1)
    assert "3 labels" in fitted
    assert "accuracy (gout)" in fitted
    assert command("predict", model, paths[0]).splitlines()[0] == "asthma,gout,rare"
    contract = tmp_path / "contract.toml"
    keys = [dm.deploy.SigningKey.generate().public.hex() for _ in paths]
    parties = [f"--party=s{i}:20:{key}" for i, key in enumerate(keys)]
    command("contract", "make", contract, *parties, *asked, "--rounds", 3)
    agreed = read_contract(contract)
    table = dm.tables.read_table(paths[0])
    assert np.array_equal(agreed.tables.dataset(table).labels, sets[0])
    given = {f"s{i}": path for i, path in enumerate(paths)}
    done = rehearse(agreed, given)
    assert done.equals_simulation
    learned = agreed.dummy_problem.outline.model(done.released[0])
    assert learned.predict(table).shape == (20, LABELS)


@pytest.mark.parametrize(
    ("change", "label", "said"),
    [
        (("gout", ""), "asthma,gout", r"s0.csv, record 1: gout is missing"),
        (("gout", "maybe"), "asthma,gout", "record 1: gout is 'maybe', not one of 'no', 'yes'"),
        (("asthma", 2), "asthma,gout", "record 1: asthma is .2., neither true nor false"),
        (None, "asthma,goat", "no range of the label.*goat.*did you mean gout"),
        (None, "asthma,a", r"ranges of a: wanted {flag = true}.*got {range = \[-1, 1\]}"),
        (None, "asthma,asthma", "each once"),
        (None, "asthma,", "each once"),
        (None, ",".join(map(str, range(64))), "at most 63 columns"),
    ],
)
def test_what_is_no_label_is_named(change: Any, label: str, said: str, tmp_path: Path) -> None:
    paths = written(tmp_path, change)
    with pytest.raises(ValueError, match=said):
        read(paths, label)
    if change == ("gout", ""):
        assert read(paths, label, drop=True).labels.shape == (79, 2)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_changed_cell_changes_the_features_and_labels_of_its_record_alone(tmp_path: Path) -> None:
    def encoded(change: Any) -> Any:
        held = read(written(tmp_path, change)[:1], ",".join(NAMES))
        return np.concatenate([held.table.to_numpy(), held.labels], axis=1)

    before, read_again = encoded(None), 0
    for column in ("a", *NAMES):
        for cell in ("", "no", "yes", "true", 0, 1, 2.5, "x"):
            try:
                after = encoded((column, cell))
            except ValueError:
                continue  # the owner sees an error, and nothing is released
            assert np.array_equal(after[1:], before[1:])
            read_again += 1
    assert read_again > 10


@pytest.mark.parametrize("loss", ["softmax", "logistic"])
def test_a_weighted_record_contributes_its_clipped_weighted_gradient(loss: Any) -> None:
    x, codes = DRAW.normal(size=(60, 3)), DRAW.integers(2, size=60)
    labels, classes = (codes, 2) if loss == "softmax" else (2 * codes - 1, None)
    weights, bound = np.array([0.2, 1.0])[codes], 0.3
    model = dm.kernels.LinearModel(x, labels, loss, classes=classes, weights=weights)
    plain = dm.kernels.LinearModel(x, labels, loss, classes=classes)
    params = np.ones((1, x.shape[1] * (classes or 1)))
    each = np.stack([plain.gradient(params, np.array([[i]]))[0] for i in range(60)])
    each *= weights[:, np.newaxis]
    each *= np.minimum(1, bound / np.linalg.norm(each, axis=1, keepdims=True))
    batch = np.arange(60)[np.newaxis]
    found = model.gradient(params, batch, clipping_norm=bound, divide_by=1.0)[0]
    np.testing.assert_allclose(found, each.sum(axis=0), rtol=1e-12)
    assert 0.99 * bound < np.linalg.norm(each, axis=1).max() <= bound * (1 + 1e-12)
    np.testing.assert_allclose(
        model.record_losses(params, batch), weights * plain.record_losses(params, batch)
    )
    with pytest.raises(ValueError, match="weights: wanted 60 numbers from 0 to 1"):
        dm.kernels.LinearModel(x, labels, loss, classes=classes, weights=2 * weights)


def rare() -> tuple[Any, Any, Any]:
    x = DRAW.uniform(-1, 1, (4000, 2))
    ill = x[:, 0] + DRAW.normal(0, 0.3, 4000) > 1.0
    return x, np.where(ill, "yes", "no"), np.arange(4000) % 4


def test_rare_classes_are_recognised_and_verdicts_are_balanced(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    x, y, site = rare()
    shares = {"yes": 0.06, "no": 0.94}
    found = {}
    for given in (None, shares):
        model = dm.sklearn.PrivateClassifier(4.0, class_shares=given, random_state=0)
        found[given is None] = dm.sklearn.evaluate(
            model, x, y, groups=site, test_size=0.5, splits=1
        )
    balanced = [one.verdict.mean("balanced accuracy") for one in found.values()]
    assert balanced[1] > 0.8 > 0.7 > balanced[0]
    assert "balanced accuracy" in found[False].sentence
    assert found[False].verdict.heads[1:] == ["balanced accuracy", "accuracy", "AUC"]
    fitted = found[False].estimator
    assert fitted.report_.privacy.epsilon <= 4
    assert not any("which classes" in text for text in fitted.report_.privacy.assumptions)
    fitted.save(tmp_path / "m")
    assert dm.sklearn.PrivateClassifier.load(tmp_path / "m").class_shares == shares
    for wrong, said in (
        ({"yes": 0.5, "no": 0.4}, "which add up to 0.9"),
        ({"yes": 1.0, "no": 0.0}, "shares: wanted a finite number greater than 0"),
        ({"yes": 0.5, "n": 0.5}, "y is 'no', not one of 'n', 'yes'"),
        ({"no": 1.0}, "y: wanted at least 2 classes"),
    ):
        with pytest.raises(ValueError, match=said):
            dm.sklearn.PrivateClassifier(class_shares=wrong).fit(x, y, site)  # type: ignore[arg-type]

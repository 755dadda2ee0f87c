"""The estimators are scikit-learn's, and cost what they say."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpmesh as dm

pytest.importorskip("sklearn", minversion="1.6")

from sklearn import config_context
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.metrics import mean_poisson_deviance
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import parametrize_with_checks

from dpmesh.sklearn import FitReport, PrivateClassifier, PrivateRegressor, evaluate, tune
from dpmesh.sklearn.evaluation import draw_test_records

pytestmark = [
    pytest.mark.filterwarnings("ignore:all records are one site"),
    pytest.mark.filterwarnings("ignore:.* fits of this estimator and its clones"),
]


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([PrivateClassifier(random_state=0), PrivateRegressor(random_state=0)])
def test_scikit_learns_checks_pass(estimator: Any, check: Any) -> None:
    check(estimator)


@pytest.fixture(scope="module")
def tumours() -> tuple[Any, Any, Any, dict[str, Any]]:
    pytest.importorskip("pandas")
    table, benign = load_breast_cancer(as_frame=True, return_X_y=True)
    clinic = np.random.default_rng(0).integers(5, size=len(table))
    ranges = {name: [0, 1.1 * float(table[name].max())] for name in table}
    return table, np.where(benign, "benign", "malignant"), clinic, ranges


def test_a_fit_costs_its_epsilon_and_learns(tumours: Any) -> None:
    table, diagnosis, clinic, ranges = tumours
    model = PrivateClassifier(4.0, ranges=ranges).fit(table, diagnosis, groups=clinic)
    assert model.report_.privacy.epsilon == model.ledger_.cost(1e-5).epsilon <= 4.0 * (1 + 1e-9)
    assert model.report_.sites == len(model.sites_) == 5
    assert (model.report_.records, model.report_.counts_all_sites) == (569, True)
    assert "the server, which learns only noisy sums over all sites" in str(model.report_)
    assert [*model.classes_] == ["benign", "malignant"]
    assert any("public" in text for text in model.report_.privacy.assumptions)
    assert not any("seeded" in text for text in model.report_.privacy.assumptions)
    exact = PrivateClassifier(None, ranges=ranges).fit(table, diagnosis, groups=clinic)
    assert exact.score(table, diagnosis) > 0.9
    assert not exact.report_.privacy.is_private
    assert not np.array_equal(exact.model_.weights, model.model_.weights)


def test_the_rule_chooses_by_the_number_of_sites(tumours: Any) -> None:
    table, diagnosis, clinic, ranges = tumours
    two = np.arange(len(table)) % 2

    def fitted(groups: Any, **options: Any) -> PrivateClassifier:
        return PrivateClassifier(4.0, ranges=ranges, **options).fit(table, diagnosis, groups)

    for groups, options, algorithm in (
        (clinic, {}, "FederatedLearning"),
        (clinic, {"algorithm": "secure", "colluding": 3}, "FederatedLearning"),
        (clinic, {"algorithm": "gossip"}, "GradientDescent"),
        (clinic, {"topology": dm.topology.ring(5)}, "GradientDescent"),
        (two, {}, "GradientDescent"),
        (None, {}, "GradientDescent"),
    ):
        report = fitted(groups, **options).report_
        assert f"{algorithm}(" in report.algorithm
        assert report.privacy.epsilon <= 4 * (1 + 1e-9)
        adversary = "an adversary who reads all noisy messages"
        if algorithm == "FederatedLearning":
            adversary = "the server"
        assert f"adversary   {adversary}" in str(report)
        assert report.counts_all_sites is (algorithm == "FederatedLearning")
    three = fitted(clinic, algorithm="secure", colluding=3).report_
    assert "colludes with up to 3 sites" in str(three)
    with pytest.raises(ValueError, match="'gossip' at 2 sites; 'secure' needs 3"):
        fitted(two, algorithm="secure")
    with pytest.raises(ValueError, match="topology: wanted None with 'secure'"):
        fitted(clinic, algorithm="secure", topology=dm.topology.ring(5))


def test_noise_is_new_in_each_fit_unless_seeded(tumours: Any) -> None:
    table, diagnosis, clinic, ranges = tumours
    for seed, same in ((None, False), (3, True)):
        made = PrivateClassifier(ranges=ranges, random_state=seed)
        one, other = (made.fit(table, diagnosis, clinic).model_.weights for _ in range(2))
        assert np.array_equal(one, other) is same


def test_arrow_arrays_and_tables_are_fitted_alike(tumours: Any) -> None:
    arrow = pytest.importorskip("pyarrow")
    table, diagnosis, clinic, ranges = tumours
    kinds = (table, arrow.Table.from_pandas(table), table.to_numpy())
    given = (ranges, ranges, [*ranges.values()])
    models = [
        PrivateClassifier(ranges=one, random_state=0).fit(X, diagnosis, clinic)
        for X, one in zip(kinds, given, strict=True)
    ]
    for model in models[1:]:
        np.testing.assert_array_equal(model.model_.weights, models[0].model_.weights)


def test_classes_given_need_not_occur(tumours: Any) -> None:
    table, diagnosis, _, ranges = tumours
    three = ["benign", "malignant", "unclear"]
    model = PrivateClassifier(ranges=ranges, classes=three).fit(table, diagnosis)
    assert [*model.classes_] == three
    assert not any("which classes" in text for text in model.report_.privacy.assumptions)
    wanted = r"record 0.*: y is 'malignant', not one of 'benign', 'other'"
    with pytest.raises(ValueError, match=wanted):
        PrivateClassifier(ranges=ranges, classes=["benign", "other"]).fit(table, diagnosis)


def test_values_outside_are_noticed(tumours: Any) -> None:
    table, diagnosis, _, ranges = tumours
    with pytest.warns(UserWarning, match=r"ranges= is missing.* more columns; set ranges="):
        PrivateClassifier().fit(table, diagnosis)
    with pytest.warns(UserWarning, match="mean radius: 569 of 569 values are outside"):
        PrivateClassifier(ranges={**ranges, "mean radius": [0, 1]}).fit(table, diagnosis)
    with pytest.warns(UserWarning, match="set target_range="):
        PrivateRegressor(ranges=ranges).fit(table, table["mean area"])


def test_a_regression_learns_its_target(tumours: Any) -> None:
    table, _, clinic, ranges = tumours
    area = table["mean area"]
    inputs = table[["mean radius", "mean perimeter"]]
    own = {name: ranges[name] for name in inputs}
    model = PrivateRegressor(4.0, ranges=own, target_range=(0, 3000)).fit(inputs, area, clinic)
    assert model.score(inputs, area) > 0.5
    assert 0 <= model.predict(inputs).min() <= model.predict(inputs).max() <= 3000


def test_counts_are_learned_on_the_scale_of_logarithms(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    x, clinic = draw.uniform(-1, 1, (6000, 2)), draw.integers(3, size=6000)
    y = draw.poisson(np.exp(0.5 + 1.5 * x[:, 0]))
    model = PrivateRegressor(8.0, counts=20, random_state=0)
    model.set_params(ranges=(-1, 1)).fit(x, y, clinic)
    found, truth = model.predict(x), np.exp(0.5 + 1.5 * x[:, 0])
    assert 0 <= found.min() <= found.max() <= 20
    assert mean_poisson_deviance(y, found) < 1.15 * mean_poisson_deviance(y, truth)
    model.save(tmp_path / "m.dpmesh")
    loaded = dm.Model.load(tmp_path / "m.dpmesh")
    np.testing.assert_array_equal(loaded.predict(x), found)
    assert evaluate(model, x, y, clinic, splits=1).baselines.centralized > 0.4
    with pytest.raises(ValueError, match="counts: wanted None beside a target_range"):
        PrivateRegressor(counts=20, target_range=(0, 20)).fit(x, y)


def test_files_keep_the_estimator(tumours: Any, tmp_path: Path) -> None:
    table, diagnosis, clinic, ranges = tumours
    model = PrivateClassifier(4.0, ranges=ranges).fit(table, diagnosis, clinic)
    model.save(tmp_path / "m.dpmesh")
    loaded = PrivateClassifier.load(tmp_path / "m.dpmesh")
    np.testing.assert_array_equal(loaded.predict_proba(table), model.predict_proba(table))
    assert (loaded.epsilon, loaded.report_) == (4.0, model.report_)
    with pytest.raises(ValueError, match=r"wanted a model that PrivateRegressor.save wrote"):
        PrivateRegressor.load(tmp_path / "m.dpmesh")
    assert clone(loaded).fit(table, diagnosis).n_features_in_ == 30
    assert {"against", "together"} <= model.report_.as_dict().keys()  # as files have them
    old = {name: value for name, value in model.report_.as_dict().items() if name != "against"}
    assert FitReport.from_dict(old).threat_model.startswith("an adversary who reads")


@pytest.mark.slow
def test_a_network_learns_what_no_linear_model_can(tmp_path: Path) -> None:
    jax = pytest.importorskip("jax")

    def network() -> Any:
        def start(key: Any) -> Any:
            own, other = jax.random.split(key)
            return 4 * jax.random.normal(own, (2, 16)), jax.random.normal(other, (16, 2))

        return start, lambda params, x: jax.nn.relu(x @ params[0]) @ params[1]

    x = np.random.default_rng(0).uniform(-1, 1, (3000, 2))
    y, sites = np.where(x[:, 0] * x[:, 1] > 0, "same", "other"), np.arange(3000) % 5
    made = PrivateClassifier(16.0, network=network, fit_intercept=False, random_state=0)
    fitted = clone(made).fit(x, y, sites)
    linear = made.set_params(network=None, features="columns").fit(x, y, sites)
    assert fitted.score(x, y) > 0.85 > 0.7 > linear.score(x, y)
    with pytest.raises(ValueError, match=r"one whose scores have shape \(3,\)"):
        made.set_params(network=network).fit(x, np.arange(3000) % 3, sites)
    assert dm.privacy.total_cost([fitted.ledger_], delta=1e-5).epsilon <= 16
    fitted.save(tmp_path / "m")
    with pytest.raises(ValueError, match="network: wanted the function that makes"):
        PrivateClassifier.load(tmp_path / "m")
    loaded = PrivateClassifier.load(tmp_path / "m", network=network)
    np.testing.assert_array_equal(loaded.predict_proba(x), fitted.predict_proba(x))


def test_in_pipelines_and_scikit_learns_cross_validation(tumours: Any) -> None:
    table, diagnosis, clinic, ranges = tumours
    model = PrivateClassifier(8.0, ranges=ranges)
    steps = make_pipeline(FunctionTransformer(), model)
    steps.fit(table, diagnosis, privateclassifier__groups=clinic)
    assert len(model.sites_) == 5
    with pytest.warns(UserWarning, match="fit more than once"):
        found = cross_val_score(model, table, diagnosis, params={"groups": clinic}, cv=2)
    assert found.shape == (2,)


@pytest.mark.slow
def test_an_evaluation_holds_out_a_part_of_each_site() -> None:
    X, y = load_digits(return_X_y=True)
    site = (y + np.random.default_rng(0).integers(2, size=len(y))) % 10
    estimator = PrivateClassifier(8.0, ranges=(0, 16))
    found = evaluate(estimator, X, y, groups=site)
    assert not hasattr(estimator, "model_")
    kept = sum(count - round(count / 4) for count in np.bincount(site))
    assert found.estimator.report_.records == kept
    # two digits of ten are at most a third of the test records, and the federation sees all
    assert found.baselines.single_sites.max() < 0.35 < found.score < found.baselines.centralized
    assert found.sentence in str(found)
    assert "significantly better than 10 of 10 sites, inconclusive for none" in found.sentence
    assert "On records like its own no site gains: do not join for these." in found.sentence
    assert found.verdict.local_gain is not None
    assert found.verdict.local_gain.high < 0
    assert "The epsilon is against the server" in str(found)


def test_other_algorithms_are_calibrated_to_the_epsilon() -> None:
    X, y = load_digits(return_X_y=True)
    X, y = X[:300], y[:300] % 2

    def federated(noise: float) -> dm.FederatedLearning:
        return dm.FederatedLearning(
            dm.ClientUpdates(clients=6, sampling_rate=1.0, clipping_norm=1.0, steps=2),
            noise_multiplier=noise,
        )

    model = PrivateClassifier(3.0, ranges=(0, 16), algorithm=federated, rounds=3)
    model.fit(X, y, groups=np.arange(300) % 6)
    assert model.report_.privacy.epsilon == pytest.approx(3.0, rel=1e-3)
    assert model.report_.privacy.unit == "user"
    assert model.report_.threat_model.startswith("an adversary who reads")

    def masked(noise: float) -> dm.FederatedLearning:
        sums = dm.algorithms.SecureAggregation(dim=130, rounds=3, colluding=2)
        return replace(federated(noise), combination=sums)

    secret = PrivateClassifier(3.0, ranges=(0, 16), algorithm=masked, rounds=3)
    secret.fit(X, y, groups=np.arange(300) % 6)
    assert secret.report_.privacy.epsilon == pytest.approx(3.0, rel=1e-3)
    assert "colludes with up to 2 sites" in secret.report_.threat_model
    with pytest.raises(ValueError, match="rounds: wanted a number of rounds"):
        clone(model).set_params(rounds=None).fit(X, y)


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"epsilon": -1}, "epsilon: wanted a finite number greater than 0"),
        ({"epsilon": "2"}, "epsilon: wanted a finite number"),
        ({"algorithm": "sums"}, "algorithm: wanted one of"),
        ({"delta": 0}, "Gaussian noise has no finite epsilon at delta 0"),
        ({"ranges": {"x": [0, 1]}}, "names of columns of the table .*, got 'x'"),
        ({"ranges": 5}, "a mapping, a TOML file, or .* got 5"),
        ({"classes": "ab"}, "classes: wanted a list of all classes"),
        ({"algorithm": lambda _: None, "noise": "InTime"}, "whose function names its noise"),
        ({"algorithm": dm.GradientDescent}, "a function that makes one for a noise"),
    ],
)
def test_parameters_that_do_not_fit_are_named(parameters: Any, said: str) -> None:
    X, y = load_digits(return_X_y=True)
    with pytest.raises(ValueError, match=said):
        PrivateClassifier(**{"ranges": (0, 16), **parameters}).fit(X, y)


def test_what_is_missing_or_only_named_is_refused() -> None:
    X, y = np.zeros((4, 1)), np.array(["a", "b", "a", "b"], object)
    model = PrivateClassifier()
    for groups in ([None, "n", "s", "s"], [1.0, np.nan, 2.0, 2.0]):
        with pytest.raises(ValueError, match=r"groups .the site. is missing"):
            model.fit(X, y, groups=groups)
        with pytest.raises(ValueError, match=r"groups .the site. is missing"):
            evaluate(model, X, y, groups=groups)
    with pytest.raises(ValueError, match="groups: wanted the site of each of the 4 records"):
        model.fit(X, y, groups=[1, 2])
    with pytest.raises(ValueError, match=r"groups: .* such as table\['site'\], got 'site'"):
        model.fit(X, y, groups="site")
    with pytest.raises(ValueError, match=r"y: .* such as table\['diagnosis'\], got 'ill'"):
        model.fit(X, "ill")
    missing = np.array(["a", None, "a", "b"], object)
    for call in (model.fit, lambda *of: evaluate(model, *of), lambda *of: tune(model, [{}], *of)):
        with pytest.raises(ValueError, match=r"record 1, .*: y has no label .*; leave it out"):
            call(X, missing)
    mixed = np.array([1, "1", 0, 0.0, True, False], object)
    fitted = PrivateClassifier().fit(np.zeros((6, 1)), mixed, groups=["0", 0, 1, 1.0, "2", 2])
    assert fitted.classes_.tolist() == [0, 1]
    assert fitted.report_.sites == 3
    assert fitted.score(np.zeros((6, 1)), mixed) == 0.5
    with pytest.raises(ValueError, match=r"target_range: wanted .low, high., .* got 5"):
        PrivateRegressor(target_range=5).fit(X, np.zeros(4))  # type: ignore[arg-type]


def test_groups_reach_a_fit_by_routing_and_nothing_becomes_one_site_in_silence() -> None:
    X, y = load_digits(return_X_y=True)
    X, y, site = X[:300], y[:300], np.arange(300) % 3
    model = PrivateClassifier(8.0, ranges=(0, 16), classes=range(10), random_state=0)
    with config_context(enable_metadata_routing=True):
        asked = clone(model).set_fit_request(groups=True)
        search = GridSearchCV(asked, {"rounds": [8, 16]}, cv=2)
        with pytest.warns(UserWarning, match="each fit costs its epsilon; dm.sklearn.tune keeps"):
            search.fit(X, y, groups=site)
    report = search.best_estimator_.report_
    assert report.sites == 3
    assert "of this fit alone: scikit-learn's search and cross-validation" in str(report)
    with pytest.warns(UserWarning, match=r"all records are one site; give groups="):
        alone = model.fit(X, y)
    for text in ("all records are one site", "NOT private: seeded noise", "1 site with"):
        assert text in str(alone.report_)


@pytest.mark.slow
def test_epsilons_are_compared_with_noise_of_their_own_and_the_kept_one_is_fitted_again() -> None:
    draw = np.random.default_rng(0)
    X = draw.uniform(-1, 1, (200, 2))
    y, sites = X[:, 0] > 0, np.arange(200) % 4
    model = dm.sklearn.PrivateClassifier(random_state=0)
    found = dm.sklearn.evaluate(model, X, y, sites, splits=2, epsilons=(4, 1, 2), keep=2)
    assert [*found.by_epsilon] == [1, 2, 4]
    assert found.estimator.epsilon == 2
    assert found.estimator.report_.records == 200
    assert "scores at epsilon 1, 2, 4 were looked at" in str(found.estimator.report_)
    assert "scores at epsilon 1, 2, 4 were looked at" in str(found.estimator.model_.about)
    assert "at most 88.1 of 100" in found.estimator.report_.plain_words
    assert found.estimator.random_state != 0
    lines = str(found).splitlines()
    assert " ".join(lines[0].split()) == (
        "epsilon unit adversary accuracy 95% interval beside single sites"
    )
    assert len({line[:4] for line in lines[1:4]}) == 3
    smallest = dm.sklearn.evaluate(model, X, y, sites, splits=1, epsilons=(4, 2))
    assert smallest.estimator.epsilon == 2
    for wrong, said in (({"keep": 1}, "keep: wanted epsilons"), ({"epsilons": []}, "at least 1")):
        with pytest.raises(ValueError, match=said):
            dm.sklearn.evaluate(model, X, y, sites, **wrong)
    with pytest.raises(ValueError, match="keep"):
        dm.sklearn.evaluate(model, X, y, sites, epsilons=(1, 2), keep=3)


@pytest.mark.slow
def test_all_epsilons_share_their_splits_and_none_shares_its_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    draw = np.random.default_rng(0)
    X = draw.uniform(-1, 1, (240, 4))
    y, sites = X[:, 0] > 0, np.arange(240) % 4
    fits = []
    fit = PrivateClassifier.fit

    def kept(self: Any, *data: Any, **groups: Any) -> Any:
        fits.append((fit(self, *data, **groups), data[1]))
        return self

    monkeypatch.setattr(PrivateClassifier, "fit", kept)
    model = PrivateClassifier(random_state=0, rounds=20)
    found = evaluate(model, X, y, sites, splits=3, epsilons=(0.2, 0.4))
    first, second = found.by_epsilon.values()
    for one, other in zip(first.baselines_by_split, second.baselines_by_split, strict=True):
        np.testing.assert_array_equal(one.single_sites, other.single_sites)
        assert (one.centralized, one.majority_class) == (other.centralized, other.majority_class)
    seeds = [fitted.random_state for fitted, _ in fits]
    assert len({*seeds}) == len(seeds) == 7
    weights = np.array([fitted.model_.weights.ravel() for fitted, _ in fits[:6]])
    between = np.abs(np.corrcoef(weights))[np.triu_indices(6, 1)]
    assert between.max() < 0.99  # a shared noise differs by its scale alone
    again = evaluate(model, X, y, sites, splits=3, epsilons=(0.2, 0.4))
    assert again.by_epsilon[0.2].score == first.score


def test_test_records_are_stratified_by_site_and_class() -> None:
    draw = np.random.RandomState(0)
    owners = np.repeat([0, 1, 2], [40, 80, 8])
    classes = np.where(np.arange(128) % 4 == 0, "rare", "common")
    out = draw_test_records(owners, 0.25, draw, classes=classes)
    for site, count in ((0, 10), (1, 20), (2, 2)):
        own = out & (owners == site)
        assert own.sum() == count
        assert abs((classes[own] == "rare").sum() - count / 4) <= 1
    other = draw_test_records(owners, 0.25, draw, classes=classes)
    assert (out != other).any()


@pytest.mark.parametrize("estimator", [PrivateClassifier, PrivateRegressor])
def test_an_estimator_shows_what_scikit_learn_has_and_files(estimator: type) -> None:
    """All else that it can do is for this package, and stands in no table of contents."""
    shown = {name for name in dir(estimator) if not name.startswith("_")}
    kept = {"load", "save"}
    kept |= {"predict_proba"} if estimator is PrivateClassifier else set()
    requests = {"set_fit_request", "set_score_request", "get_metadata_routing"}
    assert shown == kept | requests | {"fit", "get_params", "predict", "score", "set_params"}


def test_an_evaluation_tells_after_each_fit() -> None:
    x = np.random.default_rng(0).uniform(-1, 1, (90, 2))
    fits: list[None] = []
    model = PrivateClassifier(4.0, ranges=(-1, 1), classes=[False, True], random_state=0)
    evaluate(
        model,
        x,
        x[:, 0] > 0,
        np.arange(90) % 3,
        splits=2,
        epsilons=(1.0, 2.0),
        on_fit=lambda: fits.append(None),
    )
    assert len(fits) == 2 * 2  # splits and epsilons

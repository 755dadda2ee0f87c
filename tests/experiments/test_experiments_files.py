"""Experiments on files of one's own: tables, arrays, LIBSVM, sites, models by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpmesh as dm
from dpmesh.experiments import Experiment, Result, read, run_sweep
from dpmesh.experiments.results import load_results
from dpmesh.experiments.summary import compared, grouped, sentences

pytest.importorskip("sklearn")
pd = pytest.importorskip("pandas")

TEXT = """
[run]
rounds = 4
seed = 1
delta = 1e-5

[data]
files = "site*.csv"
label = "ill"
ranges = "ranges.toml"

[algorithm]
kind = "FederatedLearning"
contribution = {kind = "RecordGradients"}
combination = {kind = "SecureAggregation"}
epsilon = 4
"""
SUMS = "".join(TEXT.splitlines(keepends=True)[-4:-1])
"""Its lines of secure sums."""

RANGES = 'age = [0, 100]\nward = ["n", "s"]\nill = ["no", "yes"]\n'


def people(site: int, records: int = 20) -> Any:
    draw = np.random.default_rng(site)
    age = draw.integers(20, 80, size=records)
    ward = draw.choice(["n", "s"], size=records)
    ill = np.where(age + draw.normal(0, 9, size=records) > 50, "yes", "no")
    return pd.DataFrame({"age": age, "ward": ward, "unused": "x", "ill": ill})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ranges.toml").write_text(RANGES)
    for site in range(4):
        people(site).to_csv(f"site{site}.csv", index=False)
    return tmp_path


def experiment(*changes: tuple[str, str], text: str = TEXT) -> Experiment:
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    Path("experiment.toml").write_text(text)
    return Experiment.of(read("experiment.toml"))


def test_each_file_is_a_site_and_public_numbers_are_filled_in(folder: Path) -> None:
    own = experiment()
    problem = own.problem()
    assert (own.nodes, problem.nodes, problem.loss, problem.classes) == (4, 4, "softmax", 2)
    assert problem.records.tolist() == [16] * 4
    assert problem.test.records == 16
    expected = dm.tables.Columns.of({"age": [0, 100], "ward": ["n", "s"]}, ["age", "ward"])
    first = people(0)
    table = expected.encode([first["age"].to_numpy(), first["ward"].to_numpy()]).features
    assert {*map(tuple, problem.train.features[problem.partition[0]])} <= {*map(tuple, table)}
    algorithm: Any = own.algorithm
    of = algorithm.contribution
    assert (of.clients, of.records, algorithm.combination.dim) == (4, 64, problem.dim)
    assert algorithm.plan(4).cost(1e-5).epsilon == pytest.approx(4, rel=1e-2)
    assert algorithm.plan(4).cost(1e-5).epsilon <= 4


@pytest.mark.parametrize("kind", ["parquet", "npz", "arrow"])
def test_a_column_names_the_site_and_some_sites_are_only_tested(folder: Path, kind: str) -> None:
    table = pd.concat([people(site).assign(clinic=f"c{site}") for site in range(4)])
    table = table.reset_index(drop=True)
    if kind == "npz":
        texts = {name: table[name].to_numpy().astype(str) for name in ("ward", "ill", "clinic")}
        np.savez("all.npz", age=table["age"].to_numpy(), **texts)
    else:
        {"parquet": table.to_parquet, "arrow": table.to_feather}[kind](f"all.{kind}")
    where = f'"all.{kind}"\nsite = "clinic"\ntest_sites = ["c3"]'
    own = experiment(('"site*.csv"', where))
    problem = own.problem()
    assert problem.records.tolist() == [20] * 3
    assert problem.test.records == 20
    labels = (people(3)["ill"] == "yes").to_numpy().astype(int)
    np.testing.assert_array_equal(problem.test.labels, labels)


@pytest.mark.parametrize("loss", ["softmax", "logistic"])
def test_a_run_of_files_predicts_a_file(folder: Path, loss: str) -> None:
    from command import command

    Path("own.toml").write_text(TEXT + f'\n[problem]\nloss = "{loss}"\n')
    assert not run_sweep(read("own.toml"), "results", processes=1)
    model = Result.load("results/run").model()
    missing = command("predict", "results", "site0.csv", code=2)
    assert "name one of its runs, such as results/run" in missing
    found = command("predict", "results/run", "site0.csv").split()[1:]
    assert found == model.predict(people(0)).tolist()
    assert {*found} <= {"no", "yes"}


def test_numbers_libsvm_and_margins(folder: Path) -> None:
    target = "ranges.toml", 'ranges.toml"\ncolumns = ["ward"]\nintercept = false #'
    assert experiment(target).problem().train.dim == 2
    (folder / "ranges.toml").write_text(RANGES.replace("[0, 100]", "{target = [0, 100]}"))
    regression = experiment(('label = "ill"', 'label = "age"')).problem()
    (folder / "ranges.toml").write_text(RANGES)
    assert (regression.loss, regression.classes) == ("squared", None)
    assert np.abs(regression.train.labels).max() <= 1
    margins = experiment(("[algorithm]", '[problem]\nloss = "logistic"\n\n[algorithm]')).problem()
    assert {*margins.train.labels.tolist()} == {-1, 1}
    for site in range(3):
        lines = [f"{i % 2} {1 + i % 3}:1.5 4:2" for i in range(10)]
        Path(f"s{site}.svm").write_text("\n".join(lines) + "\n")
    plain = ('label = "ill"\nranges = "ranges.toml"', "dim = 6\nclasses = [0, 1, 2]")
    sparse = experiment(("site*.csv", "s*.svm"), plain).problem()
    assert (sparse.nodes, sparse.train.dim, sparse.classes) == (3, 6, 3)
    Path("s0.svm").write_text("0 1:1\n0.5 1:1\n")
    with pytest.raises(ValueError, match=r"s0\.svm, record 2: label is 0\.5, not one of 0, 1, 2"):
        experiment(("site*.csv", "s*.svm"), plain)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("site*.csv", "none*.csv", "no file matches none"),
        ('"site*.csv"', "[]", r"line 8: data\.files: wanted at least 1 file"),
        ('label = "ill"', "", r"data\.label: wanted the column to predict, one of age, ward"),
        ('label = "ill"', 'label = "il"', r"line 9: data\.label: wanted .*, got 'il'"),
        ("ranges.toml", 'ranges.toml"\ntest_sites = ["s"] #', r"test_sites: wanted some of site0"),
        ('ranges = "ranges.toml"', 'columns = ["age"]', r"data\.ranges: wanted a TOML file of"),
        ('ranges = "ranges.toml"', "ranges = [0, 1]", r"data\.classes: .* or target = \[0, 100\]"),
        ("delta = 1e-5", "", r"run\.delta: wanted a positive number"),
        ("epsilon = 4", "epsilon = 4\nnoise_multiplier = 1.0", r"algorithm\.epsilon: .* got both"),
    ],
)
def test_what_does_not_fit_is_named(folder: Path, old: str, new: str, message: str) -> None:
    with pytest.raises((ValueError, OSError), match=message):
        experiment((old, new))


def test_gossip_by_secure_sums_takes_its_network_from_the_file(folder: Path) -> None:
    gossip = (SUMS, 'kind = "SecureGossip"\n')
    made = experiment(gossip, text=TEXT + '\n[topology]\nkind = "complete"\n')
    assert made.algorithm.topology == dm.topology.complete(4)
    assert made.algorithm.records == 64  # of all sites: of 80 a fifth is for tests
    assert 3.9 < made.algorithm.plan(4).cost(1e-5).epsilon <= 4
    with pytest.raises(ValueError, match=r"topology: wanted a table \[topology\] for SecureGossip"):
        experiment(gossip)


@pytest.mark.slow
def test_algorithms_that_travel_differently_run_from_one_file_at_one_epsilon(folder: Path) -> None:
    swept = """
[topology]
kind = "ring"

[sweep]
algorithm = [
    {kind = "FederatedLearning", epsilon = 4, contribution = SITES, combination = MASKED},
    {kind = "GradientDescent", epsilon = 4},
    {kind = "QuantizedGossip", epsilon = 4, STEPS, sample_size = 4},
    {kind = "FederatedLearning", epsilon = 4, contribution = LOCAL},
    {kind = "WithReplacement", epsilon = 4, batch_size = 4},
    {kind = "OnlineLearning", epsilon = 4},
    {kind = "GradientDescent", epsilon = "none"},
]
"""
    swept = swept.replace("STEPS", "step_size = 0.5, consensus_step_size = 0.5")
    swept = swept.replace("SITES", '{kind = "RecordGradients"}')
    swept = swept.replace("MASKED", '{kind = "SecureAggregation"}')
    swept = swept.replace("LOCAL", '{kind = "ClientUpdates", steps = 1}')
    Path("experiment.toml").write_text(TEXT.partition("[algorithm]")[0] + "[algorithm]\n" + swept)

    assert run_sweep(read("experiment.toml"), folder / "results", processes=1) == []
    groups = grouped(load_results(folder / "results")[0])
    assert len(groups) == 7
    for name, (result,) in groups.items():
        least, most = (3, 4) if "none" not in name else (float("inf"),) * 2
        assert least <= result.privacy.epsilon <= most * (1 + 1e-9), name
        assert "1 run gives no verdict" in sentences({"": [result]})[0]
    settings = compared(groups).table
    assert "OnlineLearning" in [row[0] for row in settings.rows]
    assert [row[-2] for row in settings.rows] == ["-"] * 7
    (leader,) = sentences(groups)
    assert "Whether that is clear takes 5 runs each" in leader


@pytest.mark.slow
def test_models_are_named_by_module_and_function(folder: Path, monkeypatch: Any) -> None:
    pytest.importorskip("jax")
    (folder / "of_mine.py").write_text("""
import jax.numpy as jnp

class Module:  # as Flax has it
    def init(self, key, x):
        return {"w": jnp.zeros((len(x), 2))}
    def apply(self, params, x):
        return x @ params["w"]

def pair():
    return (lambda key: jnp.zeros((4, 2))), (lambda w, x: x @ w)

three = 3
""")
    monkeypatch.syspath_prepend(folder)
    descent = (
        SUMS,
        'kind = "FederatedLearning"\ncontribution = {kind = "ClientUpdates", steps = 1}\n',
    )

    def named(model: str, kind: str = "jax") -> Any:
        table = f'[problem]\nkind = "{kind}"\nmodel = "{model}"\n\n[algorithm]'
        return experiment(descent, ("[algorithm]", table))

    run = named("of_mine:Module").simulate()
    assert run.released.shape == (1, 8)
    assert run.privacy.epsilon <= 4
    assert run.baselines is None
    assert named("of_mine:pair").problem().dim == 8
    run.save(folder / "run")
    with pytest.raises(ValueError, match="the function that makes of_mine:Module"):
        Result.load(folder / "run").model()
    model = Result.load(folder / "run").model(network="of_mine:Module")
    assert model.predict(people(5)).tolist() == run.model().predict(people(5)).tolist()
    for wrong in ("of_mine", "not_there:pair", "of_mine:three"):
        with pytest.raises(ValueError, match=r"problem\.model: wanted a function as"):
            named(wrong).problem()

"""``dpmesh fit`` and ``dpmesh predict``, as a new user runs them."""

from __future__ import annotations

import re
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import numpy as np
import pytest
from command import command

import dpmesh as dm

pandas = pytest.importorskip("pandas")
pytest.importorskip("sklearn")

RANGES = """
age = [0, 100]
sex = ["f", "m"]
weight = {range = [0, 200], missing = true}
diagnosis = ["ill", "well"]
"""


NETWORK = """
import jax
import jax.numpy as jnp


def make(hidden=8):
    def start(key):
        own, other = jax.random.split(key)
        hidden_layer = jax.random.normal(own, (6, hidden))
        return {"hidden": hidden_layer, "out": 0.1 * jax.random.normal(other, (hidden, 2)),
                "bias": jnp.zeros(2)}

    def scores(params, x):
        return jax.nn.relu(x @ params["hidden"]) @ params["out"] + params["bias"]

    return start, scores


def larger():
    return make(9)
"""


@pytest.fixture
def sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    age, sex = draw.uniform(0, 100, 240), draw.choice(["f", "m"], 240)
    table = pandas.DataFrame({"id": range(240), "age": age, "sex": sex})
    table["weight"] = np.where(draw.random(240) < 0.1, np.nan, draw.uniform(40, 120, 240))
    table["diagnosis"] = np.where(age > 50, "ill", "well")
    table["clinic"] = draw.choice(["north", "south", "west"], 240)
    Path("sites").mkdir()
    for name, own in table.groupby("clinic"):
        own.drop(columns="clinic").to_parquet(f"sites/{name}.parquet")
    table.to_csv("all.csv", index=False)
    table.drop(columns=["diagnosis", "id"]).head(7).to_csv("new.csv", index=False)
    Path("ranges.toml").write_text(RANGES)
    return tmp_path


def call(*arguments: str, code: int = 0) -> str:
    said = command(*arguments, code=code)
    return " ".join(said.split()) if code else said


FIT = ("--label", "diagnosis", "--epsilon", "8", "--ranges", "ranges.toml")
FIVE = ("--splits", "5")
"""As many as a verdict needs: half of the default."""


def test_files_of_sites_become_a_model_and_a_page(sites: Path) -> None:
    said = call("fit", *map(str, Path("sites").glob("*.parquet")), *FIT, *FIVE, "--seed", "1")
    assert "240 records at 3 sites; 3 columns used to predict diagnosis: classes" in said
    assert "not used, since they have no range: id" in said
    assert "At epsilon 8 " in said
    assert "95% interval of the difference" in said
    assert "The epsilon is against the server" in said
    assert "epsilon = 8, delta = 1e-05" in said
    page = Path("model.html").read_text()
    assert "95% interval of the difference" in page
    assert re.search(r"<button>balanced accuracy</button></th><th.{0,30}>AUC<", page)
    assert "range = [0, 200], may be missing" in page
    assert page.index("Scores computed without noise: for the data owners only") < page.index(
        "<h1>"
    )
    assert "<pre>" not in page
    assert not re.search(r"[A-Za-z]+\([a-z_]+=", page)  # no repr
    assert "learning rate (step size)" in page
    assert "each site&#x27;s own records" in page
    assert page.count("<figure>") == 1
    predicted = call("predict", "model.dpmesh", "new.csv", "--probabilities")
    first, *lines = predicted.splitlines()
    assert first == "prediction,probability of ill,probability of well"
    expected = dm.Model.load("model.dpmesh").predict(pandas.read_csv("new.csv"))
    assert [line.split(",")[0] for line in lines] == expected.tolist()
    assert call("predict", "model.dpmesh", "new.csv", "--output", "out.csv") == "wrote out.csv\n"
    assert Path("out.csv").read_text().splitlines()[1:] == expected.tolist()


@pytest.mark.slow
def test_a_public_page_has_no_scores(sites: Path) -> None:
    files = [*map(str, Path("sites").glob("*.parquet"))]
    options = ["--splits", "2", "--epsilon", "8,4", "--seed", "1", "--public", "public.html"]
    said = call("fit", *files, "--label", "diagnosis", "--ranges", "ranges.toml", *options)
    assert "wrote public.html, without scores" in said
    page, public = Path("model.html").read_text(), Path("public.html").read_text()
    assert page.count("<figure>") == 2
    for score in ("accuracy", "figure>", "Scores computed", ".parquet", "not used", "joining"):
        assert score in page
        assert score not in public.replace("figure {", "")
    for fact in ("Guarantee", "Threat model", "NOT private", "model.dpmesh", "range = [0, 200]"):
        assert fact in public


@pytest.mark.slow
def test_one_file_with_a_column_of_sites(sites: Path) -> None:
    one = call("fit", "all.csv", "--site", "clinic", *FIT, "--seed", "1")
    assert "240 records at 3 sites" in one
    assert "240 records at 1 site;" in call("fit", "all.csv", *FIT)
    assert "240 records at 3 sites" in call("fit", "sites/*.parquet", *FIT)


@pytest.mark.slow
def test_the_algorithm_can_be_chosen(sites: Path) -> None:
    gossip = call("fit", "sites/*.parquet", *FIT, "--algorithm", "gossip")
    assert "adversary   an adversary who reads all noisy messages" in gossip
    options = ("2,4" if word == "8" else word for word in FIT)
    shared = call("fit", "sites/*.parquet", *options, "--mechanism", "BetweenPartners")
    assert "adversary   an adversary who sees all messages and colludes with up to 1 node" in shared
    assert "privacy     epsilon = 2, delta = 1e-05\n" in shared
    assert re.search(r"assumption  against all other sites together, .* epsilon = [23]\.", shared)
    alone = call("fit", "sites/*.parquet", *FIT, "--colluding", "0")
    assert "colludes with no site" in alone
    many = call("fit", "sites/*.parquet", *FIT, "--colluding", "9")
    assert "they learn by gossip: a secure sum needs 11 sites, if 9 may collude" in many
    refused = call("fit", "all.csv", *FIT, "--algorithm", "secure", code=2)
    assert "'gossip' at 1 sites; 'secure' needs 3" in refused


@pytest.mark.slow
def test_a_network_is_named_by_module_and_function(sites: Path) -> None:
    pytest.importorskip("jax")
    Path("small_net.py").write_text(NETWORK)
    said = call("fit", "sites/*.parquet", *FIT, "--seed", "1", "--network", "small_net:make")
    assert "The baselines are linear models; the federation's has 66 parameters." in said
    assert "dpmesh predict model.dpmesh new.csv --network small_net:make" in said
    (refused,) = call("predict", "model.dpmesh", "new.csv", code=2).splitlines()
    assert "network: wanted the function that makes small_net:make" in refused
    again = ("predict", "model.dpmesh", "new.csv", "--network", "small_net:make")
    lines = call(*again, "--probabilities").splitlines()[1:]
    loaded = dm.Model.load("model.dpmesh", network="small_net:make")
    assert [line.split(",")[0] for line in lines] == loaded.predict(
        pandas.read_csv("new.csv")
    ).tolist()
    wrong = call("predict", "model.dpmesh", "new.csv", "--network", "small_net:larger", code=2)
    assert "one of 66 parameters, as was trained" in wrong


def test_a_label_of_numbers_makes_a_regression(sites: Path) -> None:
    weight = "weight = {range = [0, 200], missing = true}\n"
    Path("ranges.toml").write_text(f"age = [0, 100]\n{weight}")
    either = call("fit", "all.csv", "--label", "age", *FIT[2:], code=2)
    assert "wanted {classes = [0, 100]} for a classifier, {target = [0, 100]}" in either
    Path("ranges.toml").write_text(f"age = {{target = [0, 100]}}\n{weight}")
    fit = ("--label", "age", "--epsilon", "4", "--ranges", "ranges.toml", *FIVE)
    said = call("fit", "all.csv", *fit)
    assert "1 column used to predict age: a number (regression)" in said
    predicted = call("predict", "model.dpmesh", "new.csv").splitlines()[1:]
    assert all(0 <= float(value) <= 100 for value in predicted)
    assert "wanted a classifier" in call(
        "predict", "model.dpmesh", "new.csv", "--probabilities", code=2
    )


def test_a_report_states_against_whom_released_bounds_are_where_it_is_against_more(
    sites: Path,
) -> None:
    Path("draft.toml").write_text('age = {range = ["FILL IN", "FILL IN"]}\n')
    drafted = call(
        *("ranges", "sites/*.parquet", "--epsilon", "4", "--colluding", "0"),
        *("--fill", "draft.toml"),
    )
    Path("ranges.toml").write_text(drafted[drafted.index("#") :])
    printed = call(
        "stats", "sites/*.parquet", "--epsilon", "2", "--ranges", "ranges.toml", "--mean", "age"
    )
    assert "the guarantee is against the server and 1 of the sites" in printed
    assert "; for them the guarantee is against the server; if more collude" in printed


@pytest.mark.slow
def test_released_bounds_and_a_budget_of_a_folder(
    sites: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(sites))  # where folders are marked
    draw = np.random.default_rng(0)
    age = draw.normal(60, 12, 900)
    visits = draw.poisson(np.exp(0.05 * (age - 50)))
    pandas.DataFrame({"age": age, "visits": visits}).to_csv("visits.csv", index=False)
    Path("draft.toml").write_text(
        'age = {range = ["FILL IN", "FILL IN"]}\nvisits = {counts = 10}\n'
    )
    folder = ("--folder", "party")
    call("contract", "keys", "party", "--epsilon", "3.6")
    drafted = call("ranges", "visits.csv", "--epsilon", "1", "--fill", "draft.toml", *folder)
    Path("ranges.toml").write_text(drafted[drafted.index("#") :])
    assert "age = {range = [32.0, 128.0]}" in drafted
    assert "party: epsilon = 1 of 3.6" in drafted
    given = ("visits.csv", "--epsilon", "2", "--ranges", "ranges.toml", *folder)
    printed = call("stats", *given, "--mean", "age")
    spent = re.search(r"party: epsilon = (2\.\d+) of 3.6", printed)
    reported = re.search(r"epsilon = (2\.\d+), ", printed)  # with the ranges, in the report
    assert spent
    assert reported
    assert float(reported[1]) < float(spent[1]) < 1.02 * float(reported[1])  # by a filter
    assert "bounds in the file of ranges were released from these records" in printed
    said = call("fit", *given, "--label", "visits", "--splits", "1")
    assert "1 column used to predict visits: a number" in said
    predicted = [float(one) for one in call("predict", "model.dpmesh", "visits.csv").split()[1:]]
    assert max(predicted) <= 10
    over = call("fit", *given, "--label", "visits", "--splits", "1", "--output", "no.npz", code=2)
    assert "more than the budget" in over
    assert not Path("no.npz").exists()
    call("contract", "keys", "other", "--epsilon", "8")
    copytree("other", "older")
    call("stats", *given[:-1], "other", "--mean", "age")
    rmtree("other")
    Path("older").rename("other")
    reported = call("stats", *given[:-1], "other", "--mean", "age", code=2)
    assert "dpmesh contract restored" in reported  # it has forgotten what the file of ranges cost
    restored = call("contract", "restored", "other")
    assert "other once more: epsilon = 3." in restored  # 1 and 2, twice
    with pytest.raises(ValueError, match="wanted ranges from public knowledge alone"):
        dm.tables.read_ranges("ranges.toml")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"--folder": "party", "--seed": "1"}, "--folder: wanted no --seed beside it"),
        (
            {"--folder": "party", "--mechanism": "BetweenPartners"},
            "--folder: wanted no --mechanism",
        ),
        ({"--mechanism": "InTime"}, "Invalid value for '--mechanism'"),
        ({"--label": "outcome"}, "ranges.toml has no range of the label. Add a line such as"),
        ({"--epsilon": "0"}, "epsilon: wanted a finite number greater than 0, got 0"),
        ({"--ranges": "nothing.toml"}, "nothing.toml"),
        ({"--site": "hospital"}, "site: wanted a column of the tables"),
        ({"--delta": "0"}, "Gaussian noise has no finite epsilon at delta 0"),
        ({"--test-size": "1"}, "test_size: wanted a number in (0, 1)"),
        ({"--output": "all.csv/model"}, "cannot write into this folder"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(
    sites: Path, changed: dict[str, str], said: str
) -> None:
    given = {**dict(zip(FIT[::2], FIT[1::2], strict=True)), **changed}
    options = [part for pair in given.items() for part in pair]
    assert said in call("fit", "all.csv", *options, code=2)


@pytest.mark.parametrize(
    ("name", "changed", "said"),
    [
        ("fit", {"--epsilon": "0"}, "epsilon: wanted a finite number greater than 0"),
        ("fit", {"--epsilon": "1,-2"}, "epsilon: wanted a finite number greater than 0"),
        ("fit", {"--delta": "2"}, "delta: wanted a number in [0, 1)"),
        ("fit", {"--delta": "0"}, "Gaussian noise has no finite epsilon at delta 0"),
        ("fit", {"--network": "nonsense"}, 'model: wanted a function as "module:function"'),
        ("fit", {"--features": "hast"}, "did you mean hats?"),
        ("fit", {"--test-size": "1"}, "test_size: wanted a number in (0, 1)"),
        ("stats", {"--epsilon": "0", "--label": None}, "epsilon: wanted a finite number"),
        ("stats", {"--delta": "1", "--label": None}, "delta: wanted a number in [0, 1)"),
    ],
)
def test_wrong_numbers_and_names_are_refused_before_a_file_is_read(
    sites: Path, name: str, changed: dict[str, str | None], said: str
) -> None:
    options = {**dict(zip(FIT[::2], FIT[1::2], strict=True)), **changed}
    given = [part for pair in options.items() if pair[1] is not None for part in pair]
    reported = call(name, "missing.csv", *map(str, given), code=2)
    assert said in reported
    assert "missing.csv" not in reported


@pytest.mark.slow
def test_files_that_do_not_fit_are_named(sites: Path) -> None:
    assert "no file matches sites/*.csv" in call("fit", "sites/*.csv", *FIT, code=2)
    assert "--epsilon is given 2 times" in call("fit", "all.csv", *FIT, "--epsilon", "3", code=2)
    assert "wanted one that ends in .csv" in call("fit", "ranges.toml", *FIT, code=2)
    small: Any = pandas.read_csv("all.csv").drop(columns="sex")
    small.to_csv("small.csv")
    said = call("fit", "all.csv", "small.csv", *FIT)
    assert "small.csv, sex: no such column; all values count as missing" in said
    assert "got 'sex'" in call("fit", "small.csv", *FIT, code=2)
    small.drop(columns="age").to_csv("small.csv")
    said = call("fit", "all.csv", "small.csv", *FIT, code=2)
    assert "small.csv: wanted a column 'age', got the columns , id, weight" in said
    assert "sex" not in said.rpartition("Error")[2]  # which the file does not have
    Path("sites/north.parquet").write_bytes(b"PAR1 damaged")
    assert "is not a table of this kind" in call("fit", "sites/north.parquet", *FIT, code=2)

"""``dpmesh stats --regress`` and ``--pairs``, and ``dpmesh synthesize``, as a clerk uses them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from command import command

from dpmesh.statistics.two_way import NO_DATA

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RANGES = """
age = {range = [0, 100], missing = true}
arm = ["standard", "new"]
died = {flag = true}
visits = [0, 10]
months = [0, 24]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pandas = pytest.importorskip("pandas")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ranges.toml").write_text(RANGES)
    for site in range(3):
        draw = np.random.default_rng(site)
        age = draw.uniform(20, 90, 1500)
        arm = draw.choice(["standard", "new"], 1500)
        score = -2 + 0.04 * (age - 20) - (arm == "new")
        table = {
            "age": np.where(draw.random(1500) < 0.05, np.nan, age.round()),
            "arm": arm,
            "died": (draw.random(1500) < 1 / (1 + np.exp(-score))).astype(int),
            "visits": np.minimum(draw.poisson(np.exp(0.2 + age / 100)), 10),
            "months": draw.integers(1, 25, 1500),
        }
        pandas.DataFrame(table).to_csv(tmp_path / f"{site}.csv", index=False)
    return tmp_path


def stats(*options: str, code: int = 0) -> str:
    return command(
        "stats", "*.csv", "--epsilon", "8", "--ranges", "ranges.toml", *options, code=code
    )


@pytest.mark.slow
def test_regressions_are_printed_and_written(folder: Path) -> None:
    options = ["--regress", "died~age,arm", "--regress", "visits ~ age, arm : poisson"]
    options += ["--survival", "months,died:12", "--by", "arm"]
    shown = stats(*options, "--output", "found.html")
    for text in (
        "died ~ age + arm (logistic)",
        "arm, new against standard",
        "odds ratio, age, per unit",
        "visits ~ age + arm (poisson)",
        "rate ratio, arm, new against standard",
        "hazard ratio, arm new against standard",
        "at risk at months",
    ):
        assert text in shown
        assert text in (folder / "found.html").read_text()
    stats(*options, "--output", "found.json")
    saved = json.loads((folder / "found.json").read_text())
    fit = saved["answers"][1]["fit"]
    assert len(fit["coefficients"]) == len(fit["noise_covariance"]) == 3
    assert saved["answers"][1]["rows"][1]["p_value"] < 0.05


@pytest.mark.parametrize(
    ("formula", "said"),
    [
        ("died", "--regress: wanted a target, ~ and terms"),
        ("~age", "--regress: wanted a target, ~ and terms"),
        ("died~age,", "--regress: wanted columns, separated by commas"),
        ("died~age,age", "each once"),
        ("died~agee", "did you mean age?"),
        ("died~age:poison", "did you mean poisson?"),
        ("visits~age:logistic", "declare {flag = true}"),
        ("arm~age", "a flag or a number as the target"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_formulas_that_do_not_fit_are_named(formula: str, said: str) -> None:
    assert said in stats("--regress", formula, code=2)


def test_weights_divide_the_budget_between_questions(folder: Path) -> None:
    asked = ("--mean", "age", "--histogram", "arm", "--output")
    stats(*asked, "equal.json")
    stats(*asked, "weighted.json", "--weights", "1,15")
    answers = [
        json.loads((folder / name).read_text())["answers"]
        for name in ("equal.json", "weighted.json")
    ]
    noises = [[answer["rows"][-1]["noise"] for answer in of_run] for of_run in answers]
    ratios = np.divide(noises[1], noises[0])
    # by mu^2 of 1/8 and 15/8 of an equal share; the noise of a variance depends on its estimate
    assert ratios == pytest.approx([np.sqrt(8), np.sqrt(8 / 15)], rel=0.1)


@pytest.mark.parametrize(
    ("weights", "said"),
    [
        ("1,2,3", "wanted 2 numbers, one for each question (Mean, Histogram), got 3"),
        ("1,x", "--weights: wanted numbers separated by commas, as 1,4, got '1,x'"),
        ("1,0", "--weights: wanted a finite number greater than 0"),
    ],
)
def test_weights_that_do_not_fit_are_named_before_a_file_is_read(
    weights: str, said: str, folder: Path
) -> None:
    (folder / "0.csv").write_text("no table")
    shown = stats("--mean", "age", "--histogram", "arm", "--weights", weights, code=2)
    assert said in " ".join(shown.split())


def test_a_contract_has_the_weights_of_its_command(folder: Path) -> None:
    options = ["--ranges", "ranges.toml", "--epsilon", "4"]
    options += [
        "--question",
        "mean=age",
        "--question",
        "histogram=arm",
        "--question",
        "weights=1,3",
    ]
    for name in ("north", "south", "west"):
        key = command("contract", "keys", name, "--epsilon", "9").split('"')[1]
        options += ["--party", f"{name}:1500:{key}"]
    command("contract", "make", "contract.toml", *options)
    assert "weights = [1.0, 3.0]" in (folder / "contract.toml").read_text()
    assert "allowed" in command("contract", "check", "contract.toml")


def test_rows_are_drawn_from_files_and_from_answers(folder: Path) -> None:
    fixed = ["--epsilon", "8", "--ranges", "ranges.toml", "--rows", "400"]
    shown = command("synthesize", "*.csv", *fixed, "--output", "drawn.csv", "--bins", "6")
    assert NO_DATA in shown
    lines = (folder / "drawn.csv").read_text().splitlines()
    assert lines[0] == "age,arm,died,visits,months"
    assert len(lines) == 401
    beside = tomllib.loads((folder / "drawn.csv.toml").read_text())
    assert beside["text"] == NO_DATA
    assert beside["epsilon"] <= 8
    assert beside["bins"] == {"age": 6, "visits": 6, "months": 6}
    assert len(beside["errors"]) == 10
    (folder / "drawn.csv").unlink()
    stats("--pairs", "age,arm,died:5", "--output", "answers.json")
    for file in (folder / "0.csv", folder / "1.csv", folder / "2.csv", folder / "ranges.toml"):
        file.unlink()  # no data are read
    drawn = []
    for _ in range(2):
        command("synthesize", "answers.json", "--rows", "50", "--output", "new.csv", "--seed", "7")
        drawn.append((folder / "new.csv").read_text())
    assert drawn[0] == drawn[1]
    assert drawn[0].startswith("age,arm,died\n")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["*.csv", "--rows", "9", "--output", "a.csv", "--epsilon", "1"], "--ranges: wanted"),
        (["*.csv", "--rows", "9", "--output", "a.txt"], "--output: wanted a file that ends in"),
        (
            ["a.json", "--rows", "9", "--output", "a.csv", "--epsilon", "1"],
            "--epsilon: wanted none",
        ),
    ],
)
def test_what_does_not_fit_is_named(options: list[str], said: str) -> None:
    assert said in command("synthesize", *options, code=2)


def test_help_says_what_drawn_rows_are_not() -> None:
    shown = " ".join(command("synthesize", "--help").replace("│", " ").split())
    assert "They hold no new information" in shown
    assert "as if they were records are wrong" in shown


def test_the_page_says_what_drawn_rows_are_not(folder: Path) -> None:
    stats("--pairs", "age,arm:4", "--output", "found.html")
    assert "hold no new information" in (folder / "found.html").read_text()

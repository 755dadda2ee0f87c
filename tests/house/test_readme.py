"""README's six quickstarts run as they stand; each names the extra without which it cannot."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpmesh as dm

ROOT = Path(__file__).parent.parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINES = 120
"""What a newcomer reads to the end."""


def needs(module: str, extra: str) -> Any:
    return pytest.importorskip(module, reason=f"needs the extra {extra}")


def block(language: str, holds: str) -> str:
    """Return README's one block of a language that holds a text."""
    (found,) = (
        text
        for text in re.findall(rf"^```{language}\n(.*?)^```", README, re.S | re.M)
        if holds in text
    )
    return str(found)


def lines(shell: str) -> list[list[str]]:
    """Return the words of each command, without comments."""
    return [shlex.split(line, comments=True) for line in shell.splitlines()]


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= LINES


@pytest.mark.slow
def test_the_classifier_prints_the_table_below_it(capsys: pytest.CaptureFixture[str]) -> None:
    needs("sklearn", "data")
    exec(block("python", "PrivateClassifier"), {})
    printed = capsys.readouterr().out
    shown = block("text", "majority class")
    numberless = [re.sub(r"[\d.]+", "#", text) for text in (shown, printed)]
    assert numberless[1].startswith(numberless[0])
    # what the sentence below the table says in short
    assert "the federation is better than single sites" in printed
    assert "On records like its own no site gains: do not join for these." in printed
    assert "The epsilon is against the server" in printed


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three sites whose older people are ill more often."""
    needs("typer", "cli")
    needs("sklearn", "data")
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    Path("sites").mkdir()
    for site in ("east", "north", "south"):
        ages = draw.integers(20, 90, 60)
        rows = [f"{age},{'ill' if age > 55 else 'well'}\n" for age in ages]
        Path(f"sites/{site}.csv").write_text("age,diagnosis\n" + "".join(rows))
    Path("new.csv").write_text("age\n30\n80\n")
    return tmp_path


def follow_the_command_line() -> str:
    """Draft ranges, fill them in, fit and predict; return the predictions."""
    from command import command

    drafted, fitted, predicted = lines(block("sh", "dpmesh fit"))
    assert drafted[-2:] == [">", "ranges.toml"]
    draft = command(*drafted[1:-2])
    public = {"age": '"FILL IN", "FILL IN"', "diagnosis": 'categories = ["FILL IN"]'}
    assert all(blank in draft for blank in public.values())
    draft = draft.replace(public["age"], "0, 120")
    Path("ranges.toml").write_text(draft.replace(public["diagnosis"], 'classes = ["ill", "well"]'))
    assert "epsilon = 2, delta = 1e-05" in command(*fitted[1:])
    return command(*predicted[1:])


def test_tables_are_fitted_from_the_command_line(tables: Path) -> None:
    assert follow_the_command_line().splitlines() == ["prediction", "well", "ill"]


def test_the_jax_model_trains(capsys: pytest.CaptureFixture[str]) -> None:
    needs("jax", "jax")
    needs("sklearn", "data")
    exec(block("python", "JaxProblem"), {})
    printed = capsys.readouterr().out
    assert "one user" in printed
    assert re.search(r"epsilon = [\d.]+, delta = 0.001", printed)


def test_the_pytorch_model_takes_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    torch = needs("torch", "torch")
    needs("sklearn", "data")
    (problem,) = re.findall(r"`(dm\.problems\.TorchProblem\(.*?)`\s+replaces the", README)
    program = block("python", "JaxProblem").replace("import jax\n", "")
    program = re.sub(r"dm\.problems\.JaxProblem\(\n.*\n\)", lambda _: problem, program)
    assert problem in program
    exec(program, {"torch": torch})
    assert "one user" in capsys.readouterr().out


def test_the_flower_app_has_two_changed_lines(
    caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    needs("flwr.app", "flower")
    request.getfixturevalue("inside_an_app")
    from federated_parts import changed
    from flower_clients import ALGORITHM, NAMES, Clients, make_problem, run
    from flwr.clientapp import ClientApp
    from flwr.serverapp.strategy import FedAvg

    from dpmesh.deploy.flower import DPFedLS, private_update

    marks = re.findall(r"^([+-])(.*)$", block("diff", "DPFedLS"), re.M)
    assert [mark for mark, _ in marks] == ["-", "+", "-", "+"]
    named_clients = partial(DPFedLS, parties=NAMES)  # as the configuration of clients names them
    names: dict[str, Any] = {"dm": dm, "FedAvg": FedAvg, "DPFedLS": named_clients}
    names |= {"ClientApp": ClientApp, "private_update": private_update}
    names["algorithm"] = changed(ALGORITHM, clipping_norm=0.5, noise_multiplier=4.0)
    for mark in "-+":  # an app as it was, and as it becomes
        exec("\n".join(line for sign, line in marks if sign == mark), names)
    assert isinstance(names["app"], ClientApp)

    caplog.set_level("INFO", logger="flwr")
    run(names["strategy"], Clients(make_problem(), private_update(clipping_norm=0.5)), 2)
    assert any("epsilon = " in line for line in caplog.messages)
    assert 0 < names["strategy"].report.epsilon <= 4.0


@pytest.mark.slow
def test_an_epsilon_is_checked(tables: Path) -> None:
    follow_the_command_line()
    from command import command

    run_of_opacus, verified, audited = lines(block("sh", "dpmesh verify"))
    assert "epsilon = " in command(*run_of_opacus[1:])
    assert "consistent with its own mechanism" in command(*verified[1:])
    # few runs: a minute and a half of the default's show more, and nothing else
    assert "no violation found" in command(*audited[1:], "--runs", 20, "--canaries", 20)


@pytest.mark.slow
def test_without_the_extras_each_quickstart_says_which_it_needs() -> None:
    code = (
        "import sys, pytest\n"
        "for module in ('sklearn', 'jax', 'torch', 'flwr', 'typer'):\n"
        "    sys.modules[module] = None\n"
        "sys.exit(pytest.main(['-q', '-rs', '-p', 'no:cacheprovider', '-k', 'not short and not "
        "without', sys.argv[1]]))"
    )
    asked = [sys.executable, "-c", code, __file__]
    said = subprocess.run(asked, capture_output=True, text=True, cwd=ROOT)
    reasons = set(re.findall(r"needs the extra (\w+)", said.stdout))
    assert reasons == {"data", "cli", "jax", "torch", "flower"}, said.stdout

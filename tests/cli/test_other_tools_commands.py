"""``dpmesh privacy dp-sgd`` and ``dpmesh verify dp-sgd``: exit codes, JSON and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("typer")

from typer.testing import CliRunner

from dpmesh.cli import app
from dpmesh.privacy.other_tools import dp_sgd

SIZES = ("--records", "600", "--batch-size", "60", "--epochs", "2", "--noise-multiplier", "2")
EPSILON = dp_sgd(records=600, batch_size=60, epochs=2).epsilon(2.0, delta=1e-5)


def call(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*arguments])
    return result.exit_code, result.output


def test_a_claim_that_is_too_small_ends_with_code_1() -> None:
    code, output = call("verify", "dp-sgd", *SIZES, "--claims", f"{EPSILON * 1.01:.6f}")
    assert code == 0, output
    assert output.startswith("ok    dp-sgd: claims epsilon =")
    code, output = call("verify", "dp-sgd", *SIZES, "--claims", f"{EPSILON * 0.9:.6f}")
    assert code == 1
    assert "too small by" in output
    claim = ("--claims", f"{EPSILON * 1.01:.6f}", "--relation", "replace-one")
    assert call("verify", "dp-sgd", *SIZES, *claim)[0] == 1


def test_the_cost_of_a_run_is_printed_and_calibrated() -> None:
    code, output = call("privacy", "dp-sgd", *SIZES, "--json")
    assert code == 0, output
    found = json.loads(output)
    assert found["epsilon"] == pytest.approx(EPSILON)
    assert found["epsilon_by_relation"]["replace_one"] > EPSILON
    assert (found["releases"], found["unit"]) == (20, "record")
    assert "assumes Poisson sampling" in found["assumption"]
    code, output = call("privacy", "dp-sgd", *SIZES[:-2], "--epsilon", f"{EPSILON:.9f}", "--json")
    assert json.loads(output)["noise_multiplier"] == pytest.approx(2.0, rel=1e-3)
    code, output = call("privacy", "fedavg", *FEDAVG, "--noise-multiplier", "1")
    assert code == 0
    assert "one user" in output


FEDAVG = ("--clients", "100", "--cohort", "10", "--rounds", "2")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("verify", "dp-sgd", *SIZES), "--claims: wanted the epsilon that is claimed"),
        (("privacy", "dp-sgd", *SIZES, "--epsilon", "1"), "either --noise-multiplier or --epsilon"),
        (("privacy", "gaussian"), "either --noise-multiplier or --epsilon"),
        (("verify", "dp-sdg", *SIZES), "did you mean dp-sgd?"),
        (("verify", "missing.dpmesh"), "there is no such file or folder"),
    ],
)
def test_what_is_missing_is_named(arguments: tuple[str, ...], said: str) -> None:
    code, output = call(*arguments)
    assert code == 2
    assert said in " ".join(output.replace("│", " ").split())


def test_a_toml_file_states_runs_of_other_tools(tmp_path: Path) -> None:
    file = tmp_path / "theirs.toml"
    lines = ["records = 600", "batch_size = 60", "epochs = 2", "noise_multiplier = 2"]
    text = "\n".join(["[dp-sgd]", *lines])
    file.write_text(
        f"{text}\nclaims = {EPSILON * 1.01}\n[laplace]\nnoise_multiplier = 2\nclaims = 0.5"
    )
    code, output = call("verify", str(file))
    assert code == 0, output
    assert output.count("ok    ") == 2
    file.write_text(f"{text}\nclaims = {EPSILON / 2}\n")
    assert call("verify", str(file))[0] == 1
    file.write_text(f"{text}\n")
    assert "keys claims" in call("verify", str(file))[1]
    file.write_text(f"{text}\nclaims = 9\nsize = 3\n")
    code, output = call("verify", str(file))
    assert code == 2
    assert "size" in output

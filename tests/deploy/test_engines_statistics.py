"""Statistics under a contract: questions of all parties, one sum, the same answers for each."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from intervals import distance

import dpmesh as dm
from dpmesh.deploy import Contract, Folder, Node, Router, read_contract
from dpmesh.deploy.outcome import verified
from dpmesh.statistics.ask import RecordVectors, read_columns
from dpmesh.tables import as_table

RANGES = {"age": [0, 100], "stage": ["I", "II", "III"], "ill": {"range": [0, 10], "missing": True}}
QUESTIONS = {"mean": "age,ill", "histogram": ["stage", "age:4"]}
NAMES, RECORDS = ["north", "south", "west"], 400


def tables() -> list[dict[str, Any]]:
    """The patients of each hospital."""
    rng, found = np.random.default_rng(4), []
    for age in (30, 50, 70):
        table: dict[str, Any] = {"age": rng.normal(age, 10, RECORDS).round(1)}
        table["stage"] = rng.choice(["I", "II", "III"], RECORDS)
        table["ill"] = rng.integers(0, 11, RECORDS).astype(float)
        found.append(table)
    return found


def content(keys: list[str]) -> dict[str, Any]:
    party = {"records": RECORDS, "epsilon": 2.0, "delta": 1e-5}
    parties = [{"name": n, "signing_key": k, **party} for n, k in zip(NAMES, keys, strict=True)]
    terms = {"rounds": 1, "public_key": "05" * 32, "deadline": 9.0, "quorum": 3}
    algorithm = {"kind": "RecordSums", "noise_to_sensitivity": 3.0}
    asked = {"contract": terms, "ranges": RANGES, "questions": QUESTIONS}
    return {**asked, "algorithm": algorithm, "party": parties}


@pytest.mark.parametrize("rehearsal", [True, False])
def test_each_party_has_the_answers_of_one_process(rehearsal: bool, tmp_path: Path) -> None:
    folders = [Folder.create(tmp_path / name, epsilon=9.0, delta=1e-5) for name in NAMES]
    contract = Contract.of(content([each.signing.public.hex() for each in folders]))
    records = [contract.tables.dataset(table) for table in tables()]
    nodes = [
        Node(contract, *each, rehearsal=rehearsal) for each in zip(folders, records, strict=True)
    ]
    router = Router(contract)
    while not router.done:
        for party, message in router.requests().items():
            router.take(party, nodes[party].answer(message))
    found = [node.statistics() for node in nodes]
    assert found[0] == found[1] == found[2]
    written = json.loads(json.dumps(found[1].as_dict()))
    assert verified(written, contract) == (NAMES[1], 1, tuple(NAMES))
    for changed in ({"records": 7}, {"provenance": {**written["provenance"], "party": NAMES[0]}}):
        with pytest.raises(ValueError, match="signed it"):
            verified(written | changed, contract)
    for other in (3, written | {"provenance": [1]}, written | {"provenance": {"party": "p"}}):
        with pytest.raises(ValueError, match="that dpmesh node wrote"):
            verified(other, contract)
    assert found[0].privacy.epsilon <= 2.0
    together = {name: np.concatenate([table[name] for table in tables()]) for name in RANGES}
    columns, _ = read_columns(contract.tables.questions, as_table(together))
    parts = tuple(np.split(np.arange(3 * RECORDS), 3))
    whole: Any = RecordVectors(questions=contract.tables.questions, columns=columns, parts=parts)
    key = contract.public_key
    run = dm.simulate(contract.algorithm, whole, rounds=1, key=key, delta=1e-5, metrics=[])
    assert np.array_equal(run.released, nodes[0].released) == rehearsal
    mean = next(row for row in found[0].answers[0].rows if row.name == "age, mean")
    assert distance(mean, together["age"].mean()) < 3.0


def as_toml(tables_of: dict[str, Any]) -> str:
    """Return tables of settings as a TOML file has them."""
    from dpmesh.cli._sites import to_toml

    lines: list[str] = []
    for name, table in tables_of.items():
        for row in table if isinstance(table, list) else [table]:
            lines.append(f"[[{name}]]" if isinstance(table, list) else f"[{name}]")
            lines += [f"{key} = {to_toml(value)}" for key, value in row.items()]
    return "\n".join(lines) + "\n"


def test_answers_of_a_contract_are_verified_with_its_plan(tmp_path: Path) -> None:
    testing = pytest.importorskip("typer.testing")
    from dpmesh.cli import app

    folders = [Folder.create(tmp_path / name, epsilon=9.0, delta=1e-5) for name in NAMES]
    agreed = tmp_path / "contract.toml"
    agreed.write_text(as_toml(content([each.signing.public.hex() for each in folders])))
    contract = read_contract(agreed)
    records = [contract.tables.dataset(table) for table in tables()]
    nodes = [Node(contract, *each) for each in zip(folders, records, strict=True)]
    router = Router(contract)
    while not router.done:
        for party, message in router.requests().items():
            router.take(party, nodes[party].answer(message))
    answers = tmp_path / "answers.json"
    written = json.loads(json.dumps(nodes[0].statistics().as_dict()))
    answers.write_text(json.dumps(written))

    def verify(*options: str) -> tuple[int, str]:
        came = testing.CliRunner().invoke(app, ["verify", str(answers), *options])
        return came.exit_code, came.output

    assert verify()[0] == 0
    code, output = verify("--contract", str(agreed))
    assert code == 0, output
    assert f"signed by {NAMES[0]}" in output
    assert f"sealed by {', '.join(NAMES)}" in output
    written["privacy"]["epsilon"] /= 2
    answers.write_text(json.dumps(written))
    assert verify()[0] == 1
    code, output = verify("--contract", str(agreed))
    assert code == 2  # what was signed is another file
    for folder in folders:
        folder.close()


LEARN = ["--label", "stage", "--rounds", "4"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ["--question", "mean=age,ill", "--question", "histogram=stage"],
        [],  # about all columns
        ["--question", "mean=age", "--colluding", "0", "--dropouts", "1"],
        [*LEARN, "--algorithm", "secure", "--colluding", "0", "--dropouts", "1"],
        [*LEARN, "--mechanism", "BetweenPartners"],
    ],
)
def test_contracts_are_made_from_public_numbers_and_rehearsed(
    options: list[str], tmp_path: Path
) -> None:
    testing = pytest.importorskip("typer.testing")
    from dpmesh.cli import app

    def command(*arguments: str) -> str:
        came = testing.CliRunner().invoke(app, [*arguments])
        assert came.exit_code == 0, came.output
        return str(came.output)

    file, ranges = str(tmp_path / "contract.toml"), tmp_path / "ranges.toml"
    stages = (
        'stage = {classes = ["I", "II", "III"]}'
        if "--label" in options
        else 'stage = ["I", "II", "III"]'
    )
    ranges.write_text(f"age = [0, 100]\n{stages}\nill = {{range = [0, 10], missing = true}}\n")
    made = ["contract", "make", file, "--ranges", str(ranges), "--epsilon", "2", *options]
    for name, table in zip(NAMES, tables(), strict=True):
        key = command("contract", "keys", str(tmp_path / name), "--epsilon", "4").split('"')[1]
        made += ["--party", f"{name}:{RECORDS}:{key}"]
        rows = [",".join(map(str, row)) for row in zip(*table.values(), strict=True)]
        (tmp_path / f"{name}.csv").write_text("\n".join([",".join(table), *rows]) + "\n")
    printed = command(*made)
    learns_sums = "secure" in options
    assert ("forecast     accuracy on " in printed) == learns_sums
    assert ("3 in the rounds, 1 before them" in printed) == learns_sums
    shown = command("contract", "check", file)
    assert re.search("north +epsilon = (2|1.9[0-9]*) of 2 allowed", shown)
    assert ("FirstStage of" in shown) == ("secure" in options)
    assert "the same bits" in command("contract", "rehearse", file)


@pytest.mark.parametrize(
    ("table", "changes", "match"),
    [
        ("questions", {"mean": "weight"}, "weight"),
        ("questions", {"means": "age"}, "wanted one of mean"),
        ("questions", {"table": ["age"]}, "2 columns"),
        ("problem", {"loss": "logistic"}, "learn no model"),
        ("algorithm", {"kind": "OnlineLearning", "epsilon": 2.0}, "wanted RecordSums"),
        (
            "algorithm",
            {"kind": "RecordSums", "noise_to_sensitivity": 3.0, "dim": 4},
            "follows from",
        ),
        (
            "algorithm",
            {"kind": "RecordSums", "noise_to_sensitivity": 3.0, "secure": False},
            "server",
        ),
        ("algorithm", {"kind": "RecordSums", "noise_to_sensitivity": 1.0}, "the plan costs"),
    ],
)
def test_questions_that_do_not_fit_are_refused(table: str, changes: Any, match: str) -> None:
    keys = [dm.deploy.SigningKey.generate().public.hex() for _ in NAMES]
    with pytest.raises(ValueError, match=match):
        Contract.of(content(keys) | {table: changes})

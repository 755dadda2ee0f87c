"""Regressions, pairs and survival under a contract: several sums, the same answers for each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from intervals import distance

import dpmesh as dm
from dpmesh.deploy import Contract, Folder, Node, Router
from dpmesh.deploy.outcome import verified
from dpmesh.statistics.ask import Asked, read_columns
from dpmesh.statistics.pairs import pairs_in
from dpmesh.tables import as_table

RANGES: dict[str, Any] = {
    "age": {"range": [0, 100], "missing": True},
    "arm": ["standard", "new"],
    "died": {"flag": True},
    "visits": [0, 10],
    "months": [0, 24],
}
QUESTIONS: dict[str, Any] = {
    "regress": ["died~age,arm", "visits~age:poisson", "months~age,arm"],
    "survival": "months,died",
    "by": "arm",
    "pairs": "age,arm,died:4",
}
NAMES, RECORDS = ["north", "south", "west"], 1500


def tables() -> list[dict[str, Any]]:
    """The patients of each hospital."""
    found = []
    for site in range(3):
        draw = np.random.default_rng(site)
        age = draw.uniform(20, 90, RECORDS)
        arm = draw.choice(["standard", "new"], RECORDS)
        score = -2 + 0.04 * (age - 20) - (arm == "new")
        table = {
            "age": np.where(draw.random(RECORDS) < 0.05, np.nan, age.round()),
            "arm": arm,
            "died": (draw.random(RECORDS) < 1 / (1 + np.exp(-score))).astype(int),
            "visits": np.minimum(draw.poisson(np.exp(0.2 + age / 100)), 10),
            "months": draw.integers(1, 25, RECORDS),
        }
        found.append(table)
    return found


def content(keys: list[str]) -> dict[str, Any]:
    party = {"records": RECORDS, "epsilon": 9.0, "delta": 1e-5}
    parties = [{"name": n, "signing_key": k, **party} for n, k in zip(NAMES, keys, strict=True)]
    terms = {"rounds": 7, "public_key": "05" * 32, "deadline": 9.0, "quorum": 3}
    algorithm = {"kind": "AdaptiveSums", "noise_to_sensitivity": 0.7}
    asked = {"contract": terms, "ranges": RANGES, "questions": QUESTIONS}
    return {**asked, "algorithm": algorithm, "party": parties}


@pytest.mark.parametrize("rehearsal", [True, False])
def test_each_party_has_the_answers_of_one_process_though_one_restarts(
    rehearsal: bool, tmp_path: Path
) -> None:
    folders = [Folder.create(tmp_path / name, epsilon=99.0, delta=1e-5) for name in NAMES]
    contract = Contract.of(content([each.signing.public.hex() for each in folders]))
    records = [contract.tables.dataset(table) for table in tables()]
    nodes = [
        Node(contract, *each, rehearsal=rehearsal) for each in zip(folders, records, strict=True)
    ]
    router, turns = Router(contract), 0
    while not router.done:
        for party, message in router.requests().items():
            router.take(party, nodes[party].answer(message))
        turns += 1
        if turns == 12:  # it was stopped, and starts again from its folder
            folders[1].close()
            folders[1] = Folder.open(tmp_path / NAMES[1])
            nodes[1] = Node(contract, folders[1], records[1], rehearsal=rehearsal)
    found = [node.statistics() for node in nodes]
    assert found[0] == found[1] == found[2]
    assert found[0].privacy.epsilon <= 9.0
    written = json.loads(json.dumps(found[1].as_dict()))
    assert verified(written, contract) == (NAMES[1], 7, tuple(NAMES))
    logistic, poisson, linear = (answer for answer in found[0].answers if answer.fit is not None)
    assert logistic.rows[2].high < 0
    assert distance(poisson.rows[1], 0.01) < 3.0
    assert distance(linear.rows[1], 0.0) < 3.0
    assert pairs_in(found[0].answers).records == 3 * RECORDS
    assert found[0].synthesize(40).table.records == 40
    together = {name: np.concatenate([table[name] for table in tables()]) for name in RANGES}
    questions = contract.tables.questions
    assert questions is not None
    columns, _ = read_columns(questions, as_table(together))
    parts = tuple(np.split(np.arange(3 * RECORDS), 3))
    whole: Any = Asked(questions=questions, columns=columns, parts=parts)
    key = contract.public_key
    run = dm.simulate(contract.algorithm, whole, rounds=7, key=key, delta=1e-5, metrics=[])
    assert np.array_equal(run.released, nodes[0].released) == rehearsal


@pytest.mark.parametrize("options", [[], ["--colluding", "0", "--dropouts", "1"]])
def test_a_contract_of_regressions_is_made_checked_and_rehearsed(
    options: list[str], tmp_path: Path
) -> None:
    testing = pytest.importorskip("typer.testing")
    pandas = pytest.importorskip("pandas")
    from dpmesh.cli import app

    def command(*arguments: str) -> str:
        came = testing.CliRunner().invoke(app, [*arguments])
        assert came.exit_code == 0, came.output
        return str(came.output)

    file, ranges = tmp_path / "contract.toml", tmp_path / "ranges.toml"
    ranges.write_text(
        'age = {range = [0, 100], missing = true}\narm = ["standard", "new"]\n'
        "died = {flag = true}\nvisits = [0, 10]\nmonths = [0, 24]\n"
    )
    made = ["contract", "make", str(file), "--ranges", str(ranges), "--epsilon", "8", *options]
    made += ["--question", "regress=died~age,arm", "--question", "pairs=age,died"]
    for name, table in zip(NAMES, tables(), strict=True):
        key = command("contract", "keys", str(tmp_path / name), "--epsilon", "9").split('"')[1]
        made += ["--party", f"{name}:{RECORDS}:{key}"]
        pandas.DataFrame(table).to_csv(tmp_path / f"{name}.csv", index=False)
    command(*made)
    text = file.read_text()
    assert "rounds = 7" in text
    assert 'kind = "AdaptiveSums"' in text
    assert 'pairs = "age,died:' in text  # bins follow from the noise, and are stated
    assert "allowed" in command("contract", "check", str(file))
    assert "the same bits" in command("contract", "rehearse", str(file))


@pytest.mark.parametrize(
    ("table", "changes", "match"),
    [
        ("questions", {"regress": "died~agee"}, "did you mean age"),
        ("questions", {"pairs": "age,arm"}, "a number of bins, as age,sex:8"),
        ("algorithm", {"kind": "RecordSums", "noise_to_sensitivity": 3.0}, "wanted AdaptiveSums"),
        ("algorithm", {"kind": "AdaptiveSums", "noise_to_sensitivity": 0.1}, "the plan costs"),
        (
            "algorithm",
            {"kind": "AdaptiveSums", "noise_to_sensitivity": 0.7, "lengths": [3]},
            "follows from",
        ),
        ("questions", {"mean": "age"}, "wanted RecordSums"),
    ],
)
def test_questions_that_do_not_fit_are_refused(table: str, changes: Any, match: str) -> None:
    keys = [dm.deploy.SigningKey.generate().public.hex() for _ in NAMES]
    with pytest.raises(ValueError, match=match):
        Contract.of(content(keys) | {table: changes})


def test_other_rounds_than_the_questions_have_are_refused() -> None:
    keys = [dm.deploy.SigningKey.generate().public.hex() for _ in NAMES]
    whole = content(keys)
    whole["contract"] = {**whole["contract"], "rounds": 5}
    with pytest.raises(ValueError, match="wanted 7, the rounds of these questions, got 5"):
        Contract.of(whole)

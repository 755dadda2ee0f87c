"""Regressions, pairs and survival under a contract: several sums, the same answers for each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from intervals import distance
from network_parties import HERE, Commands, certificate

import dpmesh as dm
from dpmesh.deploy import Contract, Folder, Node, Router, read_contract
from dpmesh.deploy.outcome import verified
from dpmesh.statistics.ask import RecordVectors, read_columns
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


def tables(sites: int = 3) -> list[dict[str, Any]]:
    """The patients of each hospital."""
    found = []
    for site in range(sites):
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
    whole: Any = RecordVectors(questions=questions, columns=columns, parts=parts)
    key = contract.public_key
    run = dm.simulate(contract.algorithm, whole, rounds=7, key=key, delta=1e-5, metrics=[])
    assert np.array_equal(run.released, nodes[0].released) == rehearsal


def test_a_lost_party_costs_those_who_stay_one_attempt_of_the_plan(tmp_path: Path) -> None:
    names = [*NAMES, "east"]
    folders = [Folder.create(tmp_path / name, epsilon=99.0, delta=1e-5) for name in names]
    party = {"records": RECORDS, "epsilon": 9.0, "delta": 1e-5}
    whole = content([each.signing.public.hex() for each in folders[:3]])
    last = {"name": "east", "signing_key": folders[3].signing.public.hex(), **party}
    whole["party"] = [*whole["party"], last]
    whole["algorithm"] = {**whole["algorithm"], "dropouts": 1, "noise_to_sensitivity": 1.0}
    contract = Contract.of(whole)
    plan = contract.plan.cost(1e-5).epsilon
    assert len(contract.plan.releases) == 14  # each of 7 rounds, and once more
    records = [contract.tables.dataset(table) for table in tables(4)]
    nodes = [Node(contract, *each, rehearsal=False) for each in zip(folders, records, strict=True)]
    now = [0.0]
    router = Router(contract, lambda: now[0])
    lost_at = 9
    for step in range(600):
        if router.done or router.failure:
            break
        moved = False
        for number, message in router.requests().items():
            if number != 3 or step < lost_at:
                router.take(number, nodes[number].answer(message))
                moved = True
        now[0] += 0.01 if moved else 1.0
        if router.waits_since() > 9.0:
            router.close()
    assert not router.failure
    assert router.missing == ["east"]
    answers = [node.statistics() for node in nodes[:3]]
    assert answers[0] == answers[1] == answers[2]
    for folder in folders[:3]:
        charged = folder.ledger(contract)
        assert 7 < len(charged.releases) <= 8  # the attempt that "east" broke is charged, too
        spent = folder.spent(contract)
        assert spent is not None
        assert spent.epsilon == charged.cost(1e-5).epsilon
        assert spent.epsilon <= plan == folder.cost() == folder.reserved(contract).epsilon
        assert {*charged.releases} <= {*contract.plan.releases}
    assert folders[3].cost() == plan  # reserved in whole when it joined
    sent = folders[3].ledger(contract).releases
    assert 0 < len(sent) < 7
    assert {*sent} <= {*contract.plan.releases}


def command(*arguments: str) -> str:
    """Run a command in this process; return what it prints."""
    testing = pytest.importorskip("typer.testing")
    from dpmesh.cli import app

    came = testing.CliRunner().invoke(app, [*arguments])
    assert came.exit_code == 0, came.output
    return str(came.output)


def made_by_command(folder: Path, options: list[str]) -> Path:
    """Return a contract of regressions and pairs, beside the parties' folders and tables."""
    pandas = pytest.importorskip("pandas")
    file, ranges = folder / "contract.toml", folder / "ranges.toml"
    ranges.write_text(
        'age = {range = [0, 100], missing = true}\narm = ["standard", "new"]\n'
        "died = {flag = true}\nvisits = [0, 10]\nmonths = [0, 24]\n"
    )
    made = ["contract", "make", str(file), "--ranges", str(ranges), "--epsilon", "8", *options]
    made += ["--question", "regress=died~age,arm", "--question", "pairs=age,died"]
    for name, table in zip(NAMES, tables(), strict=True):
        key = command("contract", "keys", str(folder / name), "--epsilon", "9").split('"')[1]
        made += ["--party", f"{name}:{RECORDS}:{key}"]
        pandas.DataFrame(table).to_csv(folder / f"{name}.csv", index=False)
    command(*made)
    return file


@pytest.mark.slow
def test_three_parties_over_http_have_the_same_answers_though_one_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    file = made_by_command(tmp_path, [])
    contract = read_contract(file)
    signed, key = map(str, certificate(tmp_path))
    run = Commands(tmp_path)

    def start(name: str) -> None:
        arguments = {
            "--data": tmp_path / f"{name}.csv",
            "--folder": tmp_path / name,
            "--router": f"https://{HERE}:{port}",
            "--certificate": signed,
            "--output": tmp_path / f"{name}.json",
        }
        flat = [str(part) for pair in arguments.items() for part in pair]
        run.start(name, "node", str(file), *flat)

    try:
        run.start(
            "router",
            "router",
            str(file),
            "--port",
            "0",
            "--certificate",
            signed,
            "--certificate-key",
            key,
        )
        port = run.wait_for("router", "listening at ").split(HERE + ":")[1].split()[0]
        for name in NAMES:
            start(name)
        run.wait_for("west", "round 2 of")
        run.processes["west"].kill()
        run.processes["west"].wait()
        start("west")
        for name in NAMES:
            assert "it holds the answers" in run.wait_for(name, "wrote")
        run.wait_for("router", "the run is over")
    finally:
        for process in run.processes.values():
            process.kill()
            process.wait()
    written = [json.loads((tmp_path / f"{name}.json").read_text()) for name in NAMES]
    assert written[0]["answers"] == written[1]["answers"] == written[2]["answers"]
    for name, answers in zip(NAMES, written, strict=True):
        assert verified(answers, contract) == (name, 7, tuple(NAMES))
        folder = Folder.open(tmp_path / name)
        assert folder.ledger(contract) == contract.plan
        folder.close()


@pytest.mark.parametrize("options", [[], ["--colluding", "0", "--dropouts", "1"]])
def test_a_contract_of_regressions_is_made_checked_and_rehearsed(
    options: list[str], tmp_path: Path
) -> None:
    file = made_by_command(tmp_path, options)
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

"""Contracts that are hostile or do not hold: each is refused, and runs no code of its own."""

from __future__ import annotations

import re
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from mesh_parties import ALGORITHMS, Parties

from dpmesh.algorithms import Calibrated
from dpmesh.defaults import Sizes, choose
from dpmesh.deploy import Contract, Folder, read_contract
from dpmesh.deploy.assembly import check_algorithm

EXAMPLE = Path(__file__).parents[2] / "examples" / "three_hospitals"
NETWORK = 'loss = "softmax"\nclasses = 2\nfeature_norm = 1.0'
ONLINE = {"kind": "OnlineLearning", "epsilon": 2.0, "delta": 1e-5}
TURNS = {
    "kind": "WithoutReplacement",
    "batch_size": 2,
    "epsilon": 2.0,
    "delta": 1e-5,
    "controller": {"kind": "AlwaysGlobal"},
    "step_size": 0.5,
}
CASES = {  # what is replaced in which file, and by what
    "contract": [
        ("records = 180\nnoise", "records = 10000\nnoise"),
        ('name = "south"', 'name = "../../x"'),
        ('name = "south"', 'name = "so\\nuth"'),
        ('name = "south"', 'name = "\\u001b[2J"'),
        *(('name = "south"', f'name = "{name}"') for name in ("", ".hidden", "a/b", "a, b")),
        ('name = "south"', f'name = "{"x" * 10**6}"'),
        ('name = "south"', 'name = "\\u202ehtuos"'),
        ('name = "south"', 'name = "north"'),
        *(("epsilon = 2.0", f"epsilon = {value}") for value in ("nan", "inf", "-1")),
        *(("delta = 1e-5", f"delta = {value}") for value in ("1.0", "0.9", "0")),
        *(
            ("noise_multiplier = 40.0", f"noise_multiplier = {value}")
            for value in ("0", "nan", "1e-300", "inf", "true")
        ),
        *(("clipping_norm = 0.5", f"clipping_norm = {value}") for value in ("inf", "nan", "1e308")),
        *(("step_size = 3.13", f"step_size = {value}") for value in ("-1", "nan")),
        *(
            ("rounds = 101", f"rounds = {value}")
            for value in ("1000000000", "18446744073709551616", "0", "1.5")
        ),
        *(("quorum = 2", f"quorum = {value}") for value in ("0", "1", "4")),
        *(("deadline = 60.0", f"deadline = {value}") for value in ("-1", "nan", "inf")),
        *(
            ("largest_row = 100.0", f"largest_row = {value}")
            for value in ("inf", "1e300", "1e12", "nan")
        ),
        *(
            ("radius = [7, 37]", f"radius = {value}")
            for value in ("[7, inf]", "[37, 7]", "[7, 7]", "[-1e308, 1e308]")
        ),
        *(
            (NETWORK, f'kind = "jax"\nmodel = "{name}"')
            for name in ("os:abort", "evil:net", "antigravity:x")
        ),
        ('kind = "GradientDescent"', 'kind = "WithoutReplacement"\ncalibration = "paper"'),
        ('kind = "GradientDescent"', 'kind = "FederatedLearning"'),
        ('kind = "GradientDescent"', 'kind = "__import__"'),
        ("[topology]", "[evil]\nx = 1\n[topology]"),
        ("[topology]", "[topology.__class__]\nx = 1\n[topology]"),
        ('kind = "complete"', 'kind = "directed_cycle"'),
        *(('kind = "complete"', f'kind = "complete"\nkeep = {value}') for value in ("0.0", "nan")),
        ("[topology]", "[x]\na = " + "[" * 3000 + "]" * 3000 + "\n[topology]"),
    ],
    "secure_sum": [
        *(("colluding = 1", f"colluding = {value}") for value in ("2", "3", "-1")),
        ("noise_multiplier = 31.16", "noise_multiplier = 2.0"),
        ("colluding = 1", "dropouts = 2\ncolluding = 1"),
        ("colluding = 1", "records = 9\ncolluding = 1"),
        ("rounds = 61", "rounds = 10000000"),
    ],
}


@pytest.mark.parametrize("file", CASES)
def test_hostile_contracts_are_refused_in_one_sentence(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "evil.py").write_text("raise SystemExit('the code of a contract ran')\n")
    good, place = (EXAMPLE / f"{file}.toml").read_text(), tmp_path / "contract.toml"
    for old, new in CASES[file]:
        assert old in good, old
        place.write_text(good.replace(old, new, 1))
        with pytest.raises(ValueError, match=re.escape(str(place))) as refused:
            read_contract(place)
        assert len(str(refused.value)) < 600 + len(str(place)), new[:100]
        assert "\x1b" not in str(refused.value)


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "contract.toml"
    for content in (b"\xff\xfe[contract]", b"\0\1\2", b"", b"[contract]\n" * 2):
        place.write_bytes(content)
        with pytest.raises(ValueError, match=re.escape(str(place))):
            read_contract(place)


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a contract says."""
    parties = Parties(tmp_path_factory.mktemp("content"))
    for folder in parties.folders:
        folder.close()
    return parties.content


@pytest.mark.parametrize(
    ("table", "changes", "match"),
    [
        (
            "algorithm",
            {"kind": "FederatedLearning", "sampling_rate": 0.5},
            "wanted one of contribution",
        ),
        ("algorithm", {"kind": "OnlineLearning", "epsilon": "none"}, "wanted noise"),
        ("algorithm", {"kind": "WithoutReplacement", "calibration": "paper"}, "that is proved"),
        (
            "algorithm",
            ONLINE | {"noise": {"kind": "BetweenPartners", "star": False}},
            "the proof is for a whole graph",
        ),
        (
            "algorithm",
            ONLINE | {"noise": {"kind": "BetweenPartners", "grid": 2.0**-16}},
            "a router chooses after",
        ),
        ("algorithm", TURNS | {"noise": {"kind": "InTime"}}, "no proof if a node misses turns"),
        (
            "algorithm",
            {"kind": "PushSum", "records": 9, "noise_multiplier": 10.0},
            "messages_need_no_trust",
        ),
        ("contract", {"rounds": 11}, "at most 10, as many as the records last"),
        ("problem", {"loss": "logistic"}, "a public bound on the norm of a record"),
        ("contract", {"largest_row": 1e20}, "rounds longer rows"),
        ("contract", {"public_key": "12"}, "hexadecimal"),
        ("contract", {"features": "five"}, "a number of features"),
        ("topology", {"kind": "torus", "rows": 2, "columns": 3}, "rows x columns = 4"),
        ("party", [], "at least 2"),
        ("strange", {}, "wanted one of contract"),
        ("signing_key", "01" + 31 * "00", "an Ed25519 key"),  # of order 1
        ("signing_key", "ec" + 30 * "ff" + "7f", "an Ed25519 key"),  # 2
        ("signing_key", 32 * "00", "an Ed25519 key"),  # 4
        ("signing_key", "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05", "Ed"),
        ("signing_key", 31 * "00" + "01", "an Ed25519 key"),  # no point
        ("signing_key", "f0" + 30 * "ff" + "7f", "an Ed25519 key"),  # 2^255 - 16 is 3
        ("records", 5, "records"),
        ("name", 65 * "x", "at most 64"),
        ("delta", 0.1, "delta: wanted less than 1 / records"),
    ],
)
def test_a_contract_that_does_not_hold_is_refused(
    table: str, changes: Any, match: str, content: dict[str, Any]
) -> None:
    content = deepcopy(content)
    if table in content["party"][0]:
        content["algorithm"] = ALGORITHMS["gradient descent"]
        assert Contract.of(content)
        content["party"][0][table] = changes
    else:
        content[table] = content[table] | changes if table == "contract" else changes
    with pytest.raises(ValueError, match=match):
        Contract.of(content)


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("algorithm", {"calibrate": True}),
        ("contract", {"calibrate": True}),
        ("algorithm", {"kind": "Calibrated"}),
    ],
)
def test_a_contract_refuses_calibration_and_names_the_proof_that_is_missing(
    table: str, change: dict[str, Any], content: dict[str, Any]
) -> None:
    content = deepcopy(content)
    content[table] = content[table] | change
    key = "kind" if "kind" in change else "calibrate"
    with pytest.raises(
        ValueError, match=rf"{table}\.{key}: wanted none .* no proof yet for a last sum of moments"
    ):
        Contract.of(content)


def test_calibration_that_a_module_brings_is_refused_too(content: dict[str, Any]) -> None:
    sizes = Sizes(nodes=4, fewest_records=40, total_records=160, dim=3, features=3)
    chosen = choose(sizes, epsilon=4.0, delta=1e-5, task="regression", calibrate=True)
    assert isinstance(chosen.algorithm, Calibrated)
    contract = Contract.of(deepcopy(content))
    with pytest.raises(ValueError, match=r"algorithm\.moments: wanted none under a contract"):
        check_algorithm(contract.settings, chosen.algorithm, None, contract.terms)


def test_a_node_whose_contract_asks_for_calibration_charges_nothing(tmp_path: Path) -> None:
    testing = pytest.importorskip("typer.testing")
    from dpmesh.cli import app

    text = (EXAMPLE / "secure_sum.toml").read_text()
    contract, folder = tmp_path / "contract.toml", tmp_path / "north"
    contract.write_text(text.replace("[algorithm]\n", "[algorithm]\ncalibrate = true\n"))
    Folder.create(folder, epsilon=9.0, delta=1e-5).close()
    data = EXAMPLE / "north.csv"
    arguments = ["node", str(contract), "--data", str(data), "--folder", str(folder)]
    came = testing.CliRunner().invoke(app, [*arguments, "--router", "https://127.0.0.1:1"])
    assert came.exit_code == 2
    assert "no proof yet for a last sum of moments" in " ".join(came.output.split())
    opened = Folder.open(folder)
    assert opened.cost() == 0
    opened.close()


def test_a_network_runs_no_code_that_its_reader_did_not_name(content: dict[str, Any]) -> None:
    content = deepcopy(content) | {"problem": {"kind": "jax", "model": "os:abort"}}
    for module in (None, "mesh_parties"):
        with pytest.raises(ValueError, match="--module os if you want to run its code"):
            Contract.of(content, module)


def test_an_algorithm_of_ones_own_is_hashed_with_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = deepcopy(Parties(tmp_path).content) | {"algorithm": {"kind": "Mine", "epsilon": 2.0}}
    file = tmp_path / "my_algorithm.py"
    file.write_text("import dpmesh as dm\n\nclass Mine(dm.OnlineLearning):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        ValueError, match=r"any messages of theirs \(messages_need_no_trust\), got Mine"
    ):
        Contract.of(content, "my_algorithm")  # what its base proves may hold no more
    file.write_text(
        file.read_text().replace("pass", "messages_need_no_trust = 'it changes nothing'")
    )
    del sys.modules["my_algorithm"]
    hashed = Contract.of(content, "my_algorithm").hash
    file.write_text(file.read_text() + "# another\n")
    assert Contract.of(content, "my_algorithm").hash != hashed


def test_another_contract_has_another_hash_and_costs_what_it_says(tmp_path: Path) -> None:
    parties = Parties(tmp_path)
    content = deepcopy(parties.content)
    assert Contract.of(content).hash == parties.contract.hash
    content["party"][0]["epsilon"] = 999.0
    assert Contract.of(content).hash != parties.contract.hash
    content["party"][0]["epsilon"] = 1.0
    with pytest.raises(ValueError, match=r"at least 2.* for p0"):
        Contract.of(content)


def test_the_order_of_columns_is_part_of_the_hash_and_that_of_other_lines_is_not() -> None:
    """Two parties that encode the columns in two orders would add up unlike coordinates."""
    content = read_contract(EXAMPLE / "secure_sum.toml").settings.content
    contract = Contract.of(content)
    ranges = dict(reversed(content["ranges"].items()))
    turned = Contract.of({**content, "ranges": ranges})
    assert contract.tables.columns.names != turned.tables.columns.names
    assert contract.hash != turned.hash
    terms = dict(reversed(content["contract"].items()))
    assert contract.hash == Contract.of({**content, "contract": terms}).hash


def test_contracts_of_sums_that_do_not_fit_are_refused() -> None:
    content = read_contract(EXAMPLE / "secure_sum.toml").settings.content
    records, sums = {"kind": "RecordGradients"}, {"kind": "SecureAggregation", "colluding": 1}
    for table, change, said in [
        ("algorithm", {"contribution": records | {"records": 5}}, "follows from the contract"),
        (
            "algorithm",
            {"contribution": records | {"neighboring_relation": "add_remove"}},
            "replace_one",
        ),
        ("algorithm", {"combination": sums | {"dropouts": 1}}, "2 honest sites"),
        ("algorithm", {"combination": sums | {"bits": 62}}, "bits"),
        ("contract", {"quorum": 2}, "quorum: wanted 3"),
        ("contract", {"numbers": "float32"}, "numbers: wanted float64"),
        ("topology", {"kind": "complete"}, "have a server and no topology"),
    ]:
        changed = {**content, table: content.get(table, {}) | change}
        with pytest.raises(ValueError, match=said):
            Contract.of(changed)
    poor = [content["party"][0] | {"epsilon": 1.0}, *content["party"][1:]]
    with pytest.raises(ValueError, match=r"wanted at least 1\.99888 for north"):
        Contract.of({**content, "party": poor})


@pytest.mark.slow
def test_a_server_that_sees_each_part_is_refused(tmp_path: Path) -> None:
    content = Parties(tmp_path, "clients").content
    trusted = content["algorithm"] | {"combination": {"kind": "TrustedServer"}}
    with pytest.raises(ValueError, match="trust no server with their updates"):
        Contract.of({**content, "algorithm": trusted})

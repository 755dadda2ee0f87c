"""Files that somebody else wrote: a contract, a model, answers. Each is refused in one sentence."""

from __future__ import annotations

import json
import random
import tracemalloc
import zipfile
from collections.abc import Callable
from copy import deepcopy
from io import BytesIO
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mesh_parties import Parties

from dpmesh._untrusted import (
    LONGEST_TEXT,
    LONGEST_VALUE,
    MOST_DEPTH,
    check_depth,
    read_json,
    shortened,
)
from dpmesh.deploy import Contract, read_contract
from dpmesh.deploy.outcome import verified
from dpmesh.tables import Columns, Number
from dpmesh.tables.models import Model, Outline

EXAMPLE = Path(__file__).parents[2] / "examples" / "three_hospitals" / "contract.toml"
GOOD = EXAMPLE.read_text(encoding="utf-8")
TERMS, _ = GOOD.split("[[party]]", 1)
KIND = 'kind = "GradientDescent"'
FEDERATED = 'kind = "FederatedLearning"\ncontribution = '
LONG = 10**6

CONTRACTS: dict[str, Callable[[], str]] = {
    "parties that are a number": lambda: f"party = 3\n{TERMS}",
    "parties that are numbers": lambda: f"party = [1, 2, 3]\n{TERMS}",
    "a party that is a list": lambda: f"party = [[1], [2], [3]]\n{TERMS}",
    "one party": lambda: f'{TERMS}\n[party]\nname = "a"\n',
    "a kind that is a table": lambda: GOOD.replace(KIND, "kind = {a = 1}", 1),
    "a kind that is a list": lambda: GOOD.replace(KIND, "kind = [1]", 1),
    "a long kind": lambda: GOOD.replace(KIND, f'kind = "{"k" * LONG}"', 1),
    "a part whose kind is a table": lambda: GOOD.replace(KIND, FEDERATED + "{kind = {a = 1}}", 1),
    "a part whose kind is a list": lambda: GOOD.replace(KIND, FEDERATED + "{kind = [1]}", 1),
    "a key of 2,000 parts": lambda: f"a{'.a' * 2000} = 1\n{GOOD}",
    "a key of 200,000 quoted parts": lambda: "'a'" + ".'a'" * 200_000 + f" = 1\n{GOOD}",
    "a key of 200,000 parts with dots": lambda: '"a.b"' + '."a.b"' * 200_000 + f" = 1\n{GOOD}",
    "quotes without end": lambda: "x = " + '"\\"' * 2**20 + f"\n{GOOD}",
    "a header of 100,000 parts": lambda: f"[h{'.h' * 100_000}]\n{GOOD}",
    "a list 100,000 deep": lambda: f"x = {'[' * 10**5}{']' * 10**5}\n{GOOD}",
    "a table 5,000 deep": lambda: f"x = {'{a=' * 5000}1{'}' * 5000}\n{GOOD}",
    "a long key": lambda: f"{'k' * LONG} = 1\n{GOOD}",
    "a long header": lambda: f"[{'h' * LONG}]\n{GOOD}",
    "a long value": lambda: GOOD.replace("quorum = 2", f'quorum = "{"q" * LONG}"', 1),
    "a long name": lambda: GOOD.replace('"north"', f'"{"n" * LONG}"', 1),
    "a million rounds": lambda: GOOD.replace("rounds = 101", "rounds = 1_000_000", 1),
    "70,000 parties": lambda: TERMS + "[[party]]\n" * 70_000,
}


@pytest.mark.parametrize("lie", CONTRACTS)
def test_a_hostile_contract_is_refused_in_a_sentence(lie: str, tmp_path: Path) -> None:
    text, file = CONTRACTS[lie](), tmp_path / "contract.toml"
    assert text != GOOD
    file.write_text(text, encoding="utf-8")
    begun = process_time()
    with pytest.raises(ValueError, match=r"contract\.toml") as error:
        read_contract(file)
    assert process_time() - begun < 10
    assert len(str(error.value)) < LONGEST_TEXT + 2 * LONGEST_VALUE + len(str(file))


@pytest.mark.parametrize("parts", ["a key of 200,000 quoted parts", "a header of 100,000 parts"])
def test_a_deep_key_takes_no_memory(parts: str, tmp_path: Path) -> None:
    """A parser takes gigabytes, as it notes each table with all those around it."""
    file = tmp_path / "contract.toml"
    file.write_text(CONTRACTS[parts](), encoding="utf-8")
    tracemalloc.start()
    with pytest.raises(ValueError, match="more than 64 parts"):
        read_contract(file)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 50 * 2**20


PARTS = ["a", "-1", '"a.b"', "'a\"b'", '"a\\"."', '""', "'#'", '"x, y = ["']
BEFORE = ["", "x = 1 # it's\n", "x = '''\n\" '''\n", 'x = """\n\' \\""""""\n', "x = '\\'\n"]


@given(
    before=st.sampled_from(BEFORE),
    parts=st.lists(st.sampled_from(PARTS), min_size=1, max_size=100),
    dot=st.sampled_from([".", " . ", "\t."]),
    around=st.sampled_from(["{} = 1", "[{}]", 'y = ["""\'""", {{ {} = 1 }}]']),
)
def test_a_key_is_refused_by_its_number_of_parts(
    before: str, parts: list[str], dot: str, around: str
) -> None:
    text = before + around.format(dot.join(parts))
    if len(parts) <= MOST_DEPTH:
        check_depth(text)
        return
    with pytest.raises(ValueError, match="more than 64 parts"):
        check_depth(text)


def test_dots_in_strings_comments_and_numbers_are_no_keys() -> None:
    dots = "a." * 500
    numbers = ", ".join(["0.25"] * 500)
    check_depth(f"x = '{dots}'\ny = \"{dots}\"  # {dots}\nz = [{numbers}]\nw = '''{dots}'''\n")


def test_a_file_larger_than_any_contract_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "contract.toml"
    with file.open("wb") as sparse:
        sparse.truncate(2**40)
    with pytest.raises(ValueError, match="at most 67108864 bytes, got 1099511627776"):
        read_contract(file)


def _hostile(random_: random.Random) -> Any:
    """Return a value that no field wants."""
    values: list[Any] = [None, True, -1, 0, 1e308, float("nan"), float("inf"), 2**70, "", "x" * 999]
    values += ["none", [], {}, [[]], [{}], {"kind": {}}, {"kind": []}, {"a": {"a": {}}}, b"", -0.0]
    return random_.choice(values)


def _places(table: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return where values are in tables and lists."""
    entries = enumerate(table) if isinstance(table, list) else table.items()
    found = []
    for key, value in entries:
        found.append((*path, key))
        if isinstance(value, (dict, list)):
            found += _places(value, (*path, key))
    return found


@pytest.mark.parametrize("algorithm", ["online", "both", "sums", "without replacement", "clients"])
def test_no_value_of_a_contract_ends_in_another_error(algorithm: str, tmp_path: Path) -> None:
    parties = Parties(tmp_path, algorithm)
    for folder in parties.folders:
        folder.close()
    random_ = random.Random(5)
    places, refused = _places(parties.content), list[str]()
    for _ in range(150):
        content = deepcopy(parties.content)
        *path, last = random_.choice(places)
        table: Any = content
        for key in path:
            table = table[key]
        table[last] = _hostile(random_)
        try:
            Contract.of(content)
        except ValueError as error:
            refused.append(str(error))
    assert len(refused) > 75
    assert max(map(len, refused)) < 2 * LONGEST_TEXT


@pytest.fixture(scope="module")
def model() -> Model:
    unit = Number(low=0.0, high=1.0)
    outline = Outline(columns=Columns(names=("a",), kinds=(unit,)), target=unit)
    return outline.model(np.ones((1, outline.columns.dim)), {})


def _archive(file: Path, weights: bytes, about: str) -> None:
    text = BytesIO()
    np.save(text, np.array(about))
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("weights.npy", weights)
        archive.writestr("about.npy", text.getvalue())


def _array(values: Any) -> bytes:
    file = BytesIO()
    np.save(file, values)
    return file.getvalue()


def _header_of(shape: str) -> bytes:
    """Return an array whose header says that it is larger."""
    whole = _array(np.ones((1, 2)))
    return whole.replace(b"(1, 2), }" + b" " * (len(shape) - 6), f"{shape}, }}".encode(), 1)


@pytest.mark.slow
def test_a_hostile_model_is_refused(model: Model, tmp_path: Path) -> None:
    file = tmp_path / "model.npz"
    model.save(file)
    with np.load(file) as held:
        about, weights = str(held["about"]), held["weights"]
    deep = about[:-1] + f', "deep": {"[" * 10**5}{"]" * 10**5}}}'
    lies = {
        "NaN": (_array(np.full_like(weights, np.nan)), about),
        "infinite": (_array(np.full_like(weights, np.inf)), about),
        "texts": (_array(np.array([["a", "b"]])), about),
        "8 TB": (_header_of("(1000000000000, 1)"), about),
        "100 GB": (_header_of("(12500000000, 1)"), about),
        "negative": (_header_of("(-1, 2)"), about),
        "a bomb": (_array(np.zeros((10**7, 4))), about),
        "deep": (_array(weights), deep),
        "a list": (_array(weights), "[]"),
        "a number": (_array(weights), "3"),
    }
    for name, (held_weights, text) in lies.items():
        _archive(file, held_weights, text)
        tracemalloc.start()
        with pytest.raises(ValueError, match="holds no model of dpmesh") as error:
            Model.load(file)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert len(str(error.value)) < 400, name
        assert name in ("8 TB", "100 GB") or most < 50 * 2**20, name


def test_no_changed_byte_of_a_model_ends_in_another_error(model: Model, tmp_path: Path) -> None:
    file, random_ = tmp_path / "model.npz", random.Random(6)
    model.save(file)
    whole, refused = file.read_bytes(), list[str]()
    for _ in range(300):
        changed = bytearray(whole)
        for _ in range(random_.randrange(1, 4)):
            changed[random_.randrange(len(changed))] = random_.randrange(256)
        file.write_bytes(changed[: random_.choice([len(changed), random_.randrange(len(changed))])])
        try:
            Model.load(file)
        except ValueError as error:
            refused.append(str(error))
    assert len(refused) > 200
    assert max(map(len, refused)) < LONGEST_TEXT


def test_hostile_answers_are_refused(tmp_path: Path) -> None:
    file, parties = tmp_path / "answers.json", Parties(tmp_path, nodes=2)
    file.write_text("[" * 10**5 + "]" * 10**5)
    with pytest.raises(ValueError, match=r"answers\.json: .* JSON file in UTF-8, got one too"):
        read_json(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"answers\.json: wanted a JSON file"):
        read_json(file)
    origin: dict[str, Any] = {"contract": "", "party": "p0", "rounds": 4, "signature": ""}
    for seals in ([3], [None], [{}], ["zz"], [["a"]]):
        with pytest.raises(ValueError):  # noqa: PT011
            verified({"provenance": {**origin, "seals": seals}}, parties.contract)
    assert json.dumps(origin)


def test_a_long_value_keeps_its_ends() -> None:
    assert shortened("short") == "short"
    text = shortened("a" * 500 + "b" * 500)
    assert len(text) <= LONGEST_VALUE
    assert text.startswith("a")
    assert " ... " in text
    assert text.endswith("b")

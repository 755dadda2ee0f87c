"""Every number of every file that ``dpmesh verify`` reads, changed: accepted only if true."""

from __future__ import annotations

import copy
import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest

pytest.importorskip("typer")
pytest.importorskip("sklearn")

from typer.testing import CliRunner

import dpmesh as dm
from dpmesh._files import read_toml
from dpmesh.accounting import gdp_epsilon, gdp_mu
from dpmesh.cli import app
from dpmesh.cli._sites import to_toml
from dpmesh.cli.claimed_files import verification_of
from dpmesh.deploy import Folder, Position
from dpmesh.deploy.steps import KnownContract
from dpmesh.privacy.plan import Plan, total_cost

Place = tuple[Any, ...]

NOT_READ = (
    "answers",
    "history",
    "traffic",
    "baselines",
    "outline",
    "settings",
    "measured",
    "columns",
    "weights",
    "row",
)
"""Parts of files on which no claim rests."""


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """A file with claims, as plain content.

    Parameters
    ----------
    content
        What the file holds.
    write
        Writes other content, and returns the path of the file.
    claims
        Reads the pairs of epsilon and delta that other content states.
    true_epsilon
        The least epsilon that the releases of the unchanged file allow, at a delta.
    """

    content: Any
    write: Callable[[Any], Path]
    claims: Callable[[Any], Sequence[tuple[float, float]]]
    true_epsilon: Callable[[Any, float], float]


def numbers(content: Any, place: Place = ()) -> Iterator[Place]:
    """Yield the places of all numbers in plain content."""
    items = content.items() if isinstance(content, dict) else enumerate(content)
    for name, value in items:
        if name in NOT_READ:
            continue
        if isinstance(value, (dict, list)):
            yield from numbers(value, (*place, name))
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            yield (*place, name)


def changed(value: float) -> list[float]:
    """Return numbers that differ from this one in one digit: the first one, or the last one."""
    if isinstance(value, int):
        return [value - 1, value + 1]
    unit = 10.0 ** np.floor(np.log10(abs(value))) if value else 1.0
    last = unit / 1e5
    return [float(value - unit / 2), float(value + unit), float(value - last), float(value + last)]


def at(content: Any, place: Place) -> Any:
    """Return the value at a place."""
    for name in place:
        content = content[name]
    return content


def with_value(content: Any, place: Place, value: float) -> Any:
    """Return content with another value at a place."""
    other = copy.deepcopy(content)
    at(other, place[:-1])[place[-1]] = value
    return other


def check_every_number(claimed: Claimed) -> None:
    """Change one number after the other, and require that what is accepted is true."""
    assert not verification_of(claimed.write(claimed.content)).refuted
    accepted = refused = 0
    for place in numbers(claimed.content):
        for value in changed(at(claimed.content, place)):
            other = with_value(claimed.content, place, value)
            file = claimed.write(other)
            try:
                is_refused = verification_of(file).refuted
            except (ValueError, TypeError, IndexError, KeyError, OverflowError):
                is_refused = True
            if is_refused:
                refused += 1
                continue
            accepted += 1
            for epsilon, delta in claimed.claims(other):
                assert epsilon >= claimed.true_epsilon(other, delta) * (1 - 1e-5), (place, value)
    assert accepted >= 3
    assert refused >= 3


def text_in(content: dict[str, Any]) -> str:
    """Return plain tables as a TOML file has them."""
    lines = [f"{name} = {to_toml(one)}" for name, one in content.items() if not _is_table(one)]
    for name, one in content.items():
        if isinstance(one, dict):
            lines += ["", f"[{name}]", *(f"{key} = {to_toml(value)}" for key, value in one.items())]
        elif _is_table(one):
            for row in one:
                lines += ["", f"[[{name}]]"]
                lines += [f"{key} = {to_toml(value)}" for key, value in row.items()]
    return "\n".join(lines) + "\n"


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) or (
        isinstance(value, list) and bool(value) and isinstance(value[0], dict)
    )


def plans_of(content: dict[str, Any], name: str) -> list[Plan]:
    return [*map(Plan.from_dict, content.get("earlier", ())), Plan.from_dict(content[name])]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tables, and ranges whose bounds of age were released from them."""
    folder = tmp_path_factory.mktemp("tables")
    draw = np.random.default_rng(0)
    for site in range(3):
        ages = draw.normal(50, 10, 400).round().clip(18, 99)
        rows = [f"{age:g},{'b' if age > 50 else 'a'}" for age in ages]
        (folder / f"s{site}.csv").write_text("\n".join(["age,kind", *rows]) + "\n")
    draft = folder / "draft.toml"
    draft.write_text('age = {range = ["FILL IN", "FILL IN"]}\nkind = {categories = ["a", "b"]}\n')
    found = _invoke("ranges", *_files(folder), "--epsilon", "0.5", "--fill", str(draft))
    (folder / "ranges.toml").write_text(found)
    return folder


def _files(folder: Path) -> list[str]:
    return [str(folder / f"s{site}.csv") for site in range(3)]


def _invoke(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_answers(tables: Path, tmp_path: Path) -> None:
    file = tmp_path / "answers.json"
    stats = ["--epsilon", "1", "--ranges", str(tables / "ranges.toml"), "--output", str(file)]
    _invoke("stats", *_files(tables), *stats, "--mean", "age")
    content = json.loads(file.read_text())
    plans = plans_of(content, "ledger")
    assert len(plans) == 2
    alone = total_cost([plans[1]], 1e-5).epsilon
    assert content["privacy"]["epsilon"] > 1.05 * alone
    content["privacy"]["epsilon"] = alone  # that of the answers, without the released bounds
    file.write_text(json.dumps(content))
    assert verification_of(file).refuted
    content = json.loads(file.read_text())
    content["privacy"]["epsilon"] = total_cost(plans, 1e-5).epsilon

    def write(other: Any) -> Path:
        file.write_text(json.dumps(other))
        return file

    check_every_number(
        Claimed(
            content=content,
            write=write,
            claims=lambda other: [(other["privacy"]["epsilon"], other["privacy"]["delta"])],
            true_epsilon=lambda _, delta: total_cost(plans, delta).epsilon,
        )
    )


def test_synthetic_tables(tables: Path, tmp_path: Path) -> None:
    output = tmp_path / "drawn.csv"
    options = ["--epsilon", "3", "--ranges", str(tables / "ranges.toml"), "--rows", "20"]
    options += ["--bins", "2"]
    _invoke("synthesize", *_files(tables), *options, "--output", str(output))
    assert not verification_of(output).refuted
    beside = tmp_path / "drawn.csv.toml"
    content, _ = read_toml(beside)
    content["ledgers"] = json.loads(content["ledgers"])
    plans = [*map(Plan.from_dict, content["ledgers"])]
    for name in ("bins", "errors"):
        del content[name]

    def write(other: dict[str, Any]) -> Path:
        beside.write_text(text_in({**other, "ledgers": json.dumps(other["ledgers"])}))
        return beside

    check_every_number(
        Claimed(
            content=content,
            write=write,
            claims=lambda other: [(other["epsilon"], other["delta"])],
            true_epsilon=lambda _, delta: total_cost(plans, delta).epsilon,
        )
    )


@pytest.mark.slow
def test_models_of_bounds_that_were_released(tables: Path, tmp_path: Path) -> None:
    output, ranges = tmp_path / "model.dpmesh", tmp_path / "ranges.toml"
    public = (tables / "ranges.toml").read_text().replace("categories", "classes")
    ranges.write_text(public)
    options = ["--epsilon", "1", "--ranges", str(ranges), "--label", "kind", "--splits", "1"]
    _invoke("fit", *_files(tables), *options, "--output", str(output))
    verification = verification_of(output)
    assert not verification.refuted
    assert "larger than this plan needs" not in str(verification)
    with np.load(output) as arrays:
        held = dict(arrays)
    content = json.loads(str(held["about"]))
    del content["about"]["earlier"]
    edited = tmp_path / "edited.dpmesh"
    _save(edited, held, content)
    assert "larger than this plan needs" in str(verification_of(edited))


def _save(path: Path, held: dict[str, Any], content: dict[str, Any]) -> None:
    with path.open("wb") as file:
        np.savez(file, **{**held, "about": np.array(json.dumps(content))})


def test_runs(tmp_path: Path) -> None:
    data = dm.data.unit_norm(dm.data.breast_cancer())
    parts = dm.data.iid(data, 4, np.random.default_rng(0))
    problem = dm.LinearProblem(data, parts, "logistic")
    algorithm = dm.OnlineLearning(epsilon=2.0, delta=1e-5)
    run = dm.simulate(algorithm, problem, dm.topology.ring(4), rounds=3, delta=1e-5, metrics=[])
    run.save(tmp_path)
    content = json.loads((tmp_path / "run.json").read_text())

    def write(other: Any) -> Path:
        (tmp_path / "run.json").write_text(json.dumps(other))
        return tmp_path

    check_every_number(
        Claimed(
            content=content,
            write=write,
            claims=lambda other: [(other["privacy"]["epsilon"], other["privacy"]["delta"])],
            true_epsilon=lambda _, delta: run.ledger.cost(delta).epsilon,
        )
    )


def test_epsilons_of_single_nodes(tmp_path: Path) -> None:
    sensitivity = dm.noise.Sensitivity(1.0, "l2", "a count")
    releases = [
        dm.privacy.Release(0, dm.noise.Gaussian(5.0 + node), sensitivity, nodes=(node,))
        for node in range(3)
    ]
    plan = Plan(releases=tuple(releases), neighboring_relation="replace_one", unit="record")
    report = dm.privacy.report(plan, 1e-5, nodes=4)
    content = {"privacy": report.as_dict(), "ledger": plan.as_dict()}
    np.save(tmp_path / "released.npy", np.zeros((4, 1)))
    edited = [content]
    for place, smaller in enumerate((-1.0, 0.01, 0.01)):
        edited.append(with_value(content, ("privacy", "by_node", place), smaller))
    edited.append(with_value(content, ("privacy", "releases"), 0))
    for other in edited:
        (tmp_path / "run.json").write_text(json.dumps(other))
        assert verification_of(tmp_path).refuted == (other is not content)


def _contract(budget: float) -> dict[str, Any]:
    """Return the contract of four parties with fresh keys."""
    keys = [dm.deploy.SigningKey.generate().public.hex() for _ in range(4)]
    parties = [
        {"name": f"p{i}", "signing_key": key, "records": 10, "epsilon": budget, "delta": 1e-5}
        for i, key in enumerate(keys)
    ]
    return {
        "contract": {
            "rounds": 4,
            "public_key": "05" * 32,
            "largest_row": 1e3,
            "deadline": 10.0,
            "quorum": 3,
            "features": 5,
        },
        "problem": {"loss": "logistic", "feature_norm": 1.0},
        "algorithm": {"kind": "OnlineLearning", "epsilon": 2.0},
        "topology": {"kind": "ring"},
        "party": parties,
    }


def test_contracts(tmp_path: Path) -> None:
    file = tmp_path / "contract.toml"

    def write(other: Any) -> Path:
        file.write_text(text_in(other))
        return file

    check_every_number(
        Claimed(
            content=_contract(2.5),
            write=write,
            claims=lambda other: [(one["epsilon"], one["delta"]) for one in other["party"]],
            true_epsilon=lambda other, _: float(other["algorithm"]["epsilon"]),
        )
    )


def test_a_party_with_too_small_an_epsilon_is_named(tmp_path: Path) -> None:
    content = _contract(2.5)
    content["party"][2]["epsilon"] = 1.9
    file = tmp_path / "contract.toml"
    file.write_text(text_in(content))
    result = CliRunner().invoke(app, ["verify", str(file)])
    assert result.exit_code == 1
    assert re.search("WRONG .*for p2.*1.9", result.output)


def _columns(database: Path, table: str) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(database)) as connection:
        connection.row_factory = sqlite3.Row
        rows = connection.execute(f"select rowid as row, * from {table}").fetchall()
        return [dict(row) for row in rows]


def test_ledgers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    kept, folder = tmp_path / "kept", tmp_path / "party"
    sensitivity = dm.noise.Sensitivity(1.0, "l2", "a count")
    counts = [dm.privacy.Release(t, dm.noise.Gaussian(20.0), sensitivity) for t in range(3)]
    plans = [
        Plan(releases=tuple(counts), neighboring_relation="replace_one", unit="record"),
        dm.OnlineLearning(epsilon=0.5, delta=1e-6).plan(2),
    ]
    own = Folder.create(kept, epsilon=2.0, delta=1e-5)
    own.spend(KnownContract(b"\1" * 32, plans[0]))
    joined = KnownContract(b"\2" * 32, plans[1])
    own.join(joined, "digest", seeded=False)
    with own.transaction():
        own.charge_step(joined, Position(0, 0), (), (plans[1].releases[0],))
    own.close()
    parsed = {"contracts": "plan", "steps": "charged"}
    content: dict[str, Any] = {}
    for table in ("party", *parsed):
        rows = _columns(kept / "node.db", table)
        for row in rows:
            if table in parsed:
                row[parsed[table]] = json.loads(row[parsed[table]])
        content[table] = rows

    def write(other: dict[str, Any]) -> Path:
        if not folder.exists():
            copytree(kept, folder)
        with closing(sqlite3.connect(folder / "node.db")) as connection, connection:
            for table, rows in other.items():
                for row in rows:
                    names = [name for name in row if name != "row"]
                    values = [_stored(row[name]) for name in names]
                    sets = ", ".join(f"{name} = ?" for name in names)
                    update = f"update {table} set {sets} where rowid = ?"
                    connection.execute(update, (*values, row["row"]))
        return folder

    mu = gdp_mu(np.array([20.0] * 3))
    assert total_cost(plans[:1], 1e-5).epsilon == pytest.approx(gdp_epsilon(delta=1e-5, mu=mu))
    check_every_number(
        Claimed(
            content=content,
            write=write,
            claims=lambda other: [(one["epsilon"], one["delta"]) for one in other["party"]],
            true_epsilon=lambda _, delta: total_cost(plans, delta).epsilon,
        )
    )


def _stored(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, (dict, list)) else value


def test_runs_of_other_tools(tmp_path: Path) -> None:
    file = tmp_path / "theirs.toml"
    content = {"gaussian": {"releases": 3, "noise_multiplier": 5.0, "delta": 1e-5, "claims": 1.33}}

    def write(other: Any) -> Path:
        file.write_text(text_in(other))
        return file

    def true_epsilon(other: Any, delta: float) -> float:
        stated = other["gaussian"]
        mu = gdp_mu(np.full(stated["releases"], float(stated["noise_multiplier"])))
        return gdp_epsilon(delta=delta, mu=mu)

    check_every_number(
        Claimed(
            content=content,
            write=write,
            claims=lambda other: [(other["gaussian"]["claims"], other["gaussian"]["delta"])],
            true_epsilon=true_epsilon,
        )
    )

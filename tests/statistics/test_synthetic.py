"""Synthetic rows: the oracle, sensitivity, errors by pair, refusals, and the words beside them."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dpmesh as dm
from dpmesh.statistics import Mean, Pairs, ask
from dpmesh.statistics.ask import questions_about, read_columns
from dpmesh.statistics.synthetic import (
    draw_from_tree,
    fit_table,
    margins_of,
    project,
    rake,
    resample,
    synthesize,
    tree_of,
)
from dpmesh.statistics.two_way import NO_DATA, PairTables
from dpmesh.tables import as_table

ORACLE_FILE = Path(__file__).parents[1] / "oracles" / "oracles-one-release.json"
ORACLES = json.loads(ORACLE_FILE.read_text())
EXAMPLE, RAKED = ORACLES["pairs_example"], ORACLES["rake_example"]


def by_pair(named: dict[str, Any]) -> dict[tuple[int, int], np.ndarray]:
    found = {}
    for name, table in named.items():
        a, b = (int(place) for place in name.strip("()").split(","))
        found[a, b] = np.array(table)
    return found


def noisy_example() -> dict[tuple[int, int], np.ndarray]:
    records, sizes = np.array(EXAMPLE["records"]), EXAMPLE["sizes"]
    found = by_pair(EXAMPLE["noise"])
    for a, b in found:
        cells = records[:, a] * sizes[b] + records[:, b]
        counts = np.bincount(cells, minlength=sizes[a] * sizes[b]).reshape(sizes[a], sizes[b])
        found[a, b] = found[a, b] + counts
    return found


def test_tables_and_tree_are_those_of_the_oracle() -> None:
    noisy, sizes, sd = noisy_example(), EXAMPLE["sizes"], EXAMPLE["sd"]
    margins = margins_of(noisy, sizes, 40)
    for margin, wanted in zip(margins, EXAMPLE["margins"], strict=True):
        np.testing.assert_allclose(margin, wanted, rtol=1e-9)
    near = {
        (a, b): fit_table(counts, margins[a], margins[b], 40, sd)
        for (a, b), counts in noisy.items()
    }
    for pair, wanted in by_pair(EXAMPLE["tables"]).items():
        np.testing.assert_allclose(near[pair].table, wanted, rtol=1e-8)
    for pair, kept in by_pair(EXAMPLE["kept"]).items():
        assert near[pair].dependence == pytest.approx(float(kept))
    tables = {pair: found.table for pair, found in near.items()}
    assert [list(edge) for edge in tree_of(tables, 3)] == EXAMPLE["tree"]
    rows = draw_from_tree(tree_of(tables, 3), tables, margins, 200_000, np.random.default_rng(0))
    for (a, b), shares in by_pair(EXAMPLE["tree_pairs"]).items():
        cells = rows[:, a] * sizes[b] + rows[:, b]
        drawn = np.bincount(cells, minlength=shares.size).reshape(shares.shape) / len(rows)
        np.testing.assert_allclose(drawn, shares, atol=5e-3)


def test_weights_are_those_of_the_oracle() -> None:
    tables = by_pair(EXAMPLE["tables"])
    weights = rake(np.array(RAKED["rows"]), tables, EXAMPLE["sizes"])
    np.testing.assert_allclose(weights, RAKED["weights"], rtol=1e-8)


def test_rows_are_drawn_as_often_as_their_weight_says() -> None:
    weights = np.array([0.5, 0.3, 0.2])
    drawn = resample(np.arange(3)[:, np.newaxis], weights, 17, np.random.default_rng(0))
    counts = np.bincount(drawn.ravel(), minlength=3)
    assert (np.abs(counts - 17 * weights) < 1).all()


def test_projection_is_the_nearest_point() -> None:
    draw = np.random.default_rng(0)
    counts = draw.normal(2, 5, (3, 4))
    found = project(counts, 20.0)
    assert (found >= 0).all()
    assert found.sum() == pytest.approx(20)
    for _ in range(200):
        other = draw.dirichlet(np.ones(12)).reshape(3, 4) * 20
        assert np.square(counts - found).sum() <= np.square(counts - other).sum() + 1e-9


@pytest.mark.parametrize("case", ORACLES["pairs"], ids=lambda case: str(case["sizes"]))
def test_records_are_as_far_apart_as_is_charged(case: Any) -> None:
    ranges = {
        f"c{nth}": [f"v{place}" for place in range(size - 1)] or ["only"]
        for nth, size in enumerate(case["sizes"])
    }
    question = Pairs(*ranges, bins=2)
    about = questions_about([question], ranges)
    rows = [*product(*([*levels, None] for levels in ranges.values()))]
    table = {name: np.array([row[nth] for row in rows], object) for nth, name in enumerate(ranges)}
    columns, _ = read_columns(about, as_table(table))
    vectors = question.vectors(columns).toarray()
    squares = np.square(vectors).sum(axis=1)
    apart = squares[:, np.newaxis] + squares - 2 * vectors @ vectors.T
    size = question.size(about.kinds)
    assert np.sqrt(apart.max()) == pytest.approx(size.distance)
    assert size.distance == pytest.approx(case["claimed"], rel=1e-6)
    assert np.sqrt(squares.max()) == pytest.approx(size.norm)
    assert vectors.shape[1] == size.dim


RANGES: dict[str, Any] = {
    "age": {"range": [0, 100], "missing": True},
    "sex": ["f", "m"],
    "ill": {"flag": True},
    "seen": {"dates": ["2020-01-01", "2021-01-01"]},
}


def patients(records: int, seed: int = 0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    age = np.clip(draw.normal(50, 20, records), 0, 100)
    start = np.datetime64("2020-01-01")
    return {
        "age": np.where(draw.random(records) < 0.1, np.nan, age),
        "sex": draw.choice(["f", "m"], records),
        "ill": (draw.random(records) < age / 120).astype(int),
        "seen": start + draw.integers(0, 366, records).astype("timedelta64[D]"),
    }


def two_way(question: Pairs, table: dict[str, Any]) -> dict[tuple[int, int], np.ndarray]:
    about = questions_about([question], RANGES)
    columns, _ = read_columns(about, as_table(table))
    records = len(table["sex"])
    counts = np.asarray(question.vectors(columns).sum(axis=0))
    answer = question.answer(about.kinds, counts, 0.0, records)
    assert answer.pairs is not None
    return {pair: held / records for pair, held in answer.pairs.tables.items()}


@pytest.mark.parametrize("sites", [1, 5])
def test_tables_of_drawn_rows_are_near_those_of_all_records(sites: int) -> None:
    table = patients(6000)
    asked = Pairs(*RANGES)
    site = np.arange(6000) % sites
    # So much noise that chance dependence of 6,000 records is far below it.
    found = ask(asked, table, site, ranges=RANGES, epsilon=1.0, key=dm.Key.seeded(0))
    tables = found.answers[0].pairs
    assert tables is not None
    drawn = found.synthesize(20_000, seed=3)
    bins = len(tables.columns[3].edges) - 1
    true = two_way(Pairs(*RANGES, bins=bins), table)
    again = two_way(Pairs(*RANGES, bins=bins), dict(zip(RANGES, drawn.table.columns, strict=True)))
    for error, pair in zip(drawn.errors, true, strict=True):
        apart = np.abs(true[pair] - again[pair]).sum() / 2
        assert apart <= error.bound
        assert 0.2 < error.estimate / max(apart, 0.002) < 5
    shown = {error.pair: error.shows_dependence for error in drawn.errors}
    assert shown["age and ill"]
    assert not shown["sex and seen"]
    assert list(drawn.shown().heads)[-1] == "dependence"
    assert "cannot be shown" in str(drawn.shown())


def test_rows_follow_from_the_seed_and_the_released_tables_alone(tmp_path: Path) -> None:
    found = ask(Pairs(*RANGES, bins=5), patients(2000), ranges=RANGES, epsilon=4.0)
    one = found.synthesize(500, seed=1)
    saved = json.loads(json.dumps(found.as_dict()))
    again = synthesize(PairTables.from_dict(saved["answers"][0]["pairs"]), 500, seed=1)
    assert one.to_csv() == again.to_csv()
    assert one.to_csv() != found.synthesize(500, seed=2).to_csv()
    lines = one.to_csv().splitlines()
    assert lines[0] == "age,sex,ill,seen"
    assert len(lines) == 501
    ages = np.array([value for value in one.table.columns[0] if value is not None])
    assert ((ages >= 0) & (ages <= 100)).all()
    assert {*one.table.columns[2]} == {0, 1}
    for seen in one.table.columns[3][:20]:
        assert "2020-01-01" <= seen <= "2021-01-01"


def test_what_must_be_said_stands_beside_the_rows() -> None:
    found = ask(Pairs("sex", "ill"), patients(3000), ranges=RANGES, epsilon=4.0)
    drawn = found.synthesize(100)
    assert NO_DATA in str(found)
    assert drawn.as_dict()["text"] == NO_DATA
    assert "are wrong" in NO_DATA
    assert drawn.as_dict()["errors"][0]["pair"] == "sex and ill"


def test_other_questions_may_stand_beside_pairs_and_share_the_budget() -> None:
    table = patients(4000)
    site = np.arange(4000) % 4
    asked = [Mean("age"), Pairs("sex", "ill", "seen")]
    found = ask(asked, table, site, ranges=RANGES, epsilon=2.0, key=dm.Key.seeded(0))
    assert found.privacy.epsilon <= 2.0
    assert found.answers[0].rows[1].estimate == pytest.approx(50, abs=3)
    assert found.synthesize(50).table.records == 50


@pytest.mark.parametrize(
    ("asked", "match"),
    [
        (lambda: Pairs("a"), "columns: wanted at least 2"),
        (lambda: Pairs(*(f"c{nth}" for nth in range(65))), "columns: wanted at most 64"),
        (lambda: Pairs("a", "b", bins=1), "bins: wanted"),
        (lambda: ask(Pairs(*RANGES), patients(200), ranges=RANGES, epsilon=0.5), "at least .* for"),
        (
            lambda: ask(Pairs("age", "seen", bins=4000), patients(200), ranges=RANGES, epsilon=1),
            "cells of all tables together",
        ),
        (
            lambda: ask(Mean("age"), patients(90), ranges=RANGES, epsilon=9).synthesize(9),
            "one of Pairs",
        ),
        (lambda: PairTables.from_dict({"columns": 3}), "dpmesh stats --pairs wrote"),
    ],
)
def test_what_does_not_fit_is_refused(asked: Any, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        asked()


class PairsAtRootTwo(Pairs):
    """Charges all tables as one."""

    def size(self, kinds: Any) -> Any:
        return super().size(kinds)._replace(distance=np.sqrt(2))


def test_tables_that_are_charged_as_one_are_found() -> None:
    planted = PairsAtRootTwo("sex", "ill", "age", bins=2)
    about = questions_about([planted], RANGES)
    table = {"sex": np.array(["f", "m"]), "ill": np.array([0, 1]), "age": np.array([0.0, 100.0])}
    columns, _ = read_columns(about, as_table(table))
    one, other = planted.vectors(columns).toarray()
    assert np.linalg.norm(one - other) > 1.5 * planted.size(about.kinds).distance

"""Statistics: sensitivities by brute force, answers beside oracles, coverage, planted mistakes."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import dpmesh as dm
from dpmesh.algorithms.record_sums import RecordSums
from dpmesh.audit import alone, couple
from dpmesh.statistics import Correlation, Histogram, Mean, Quantiles, Question, TwoWay, ask
from dpmesh.statistics.ask import RecordVectors, questions_about
from dpmesh.statistics.bounds import Bounds, bounds
from dpmesh.statistics.geometry import Column, Size, one_hot
from dpmesh.statistics.kaplan_meier import Cells, curve
from dpmesh.statistics.survival import Survival
from dpmesh.tables import as_table

RANGES = {
    "age": {"range": [0, 100], "missing": True},
    "bmi": [10, 50],
    "stage": ["I", "II"],
    "arm": {"flag": True},
    "months": [0, 10],
    "died": {"flag": True},
}
GRID: dict[str, list[Any]] = {
    "age": [None, *np.linspace(0, 100, 9)],
    "bmi": [*np.linspace(10, 50, 9)],
    "stage": [None, "I", "II"],
    "arm": [0, 1],
    "months": [0, 4, 9.9, 10],
    "died": [0, 1],
}
ASKED: dict[str, Question] = {
    "mean": Mean("bmi"),
    "mean of two": Mean("age", "bmi"),
    "histogram": Histogram("age", bins=4),
    "categories": Histogram("stage"),
    "quantiles": Quantiles("bmi", bins=4),
    "two-way": TwoWay("stage", "arm"),
    "correlation": Correlation("age", "bmi"),
    "correlation with a flag": Correlation("bmi", "arm"),
    "survival": Survival("months", "died", "arm", bins=3),
    "bounds": Bounds("bmi"),
}


def columns_of(table: dict[str, list[Any]]) -> dict[str, Column]:
    held = as_table({name: np.array(values, dtype=object) for name, values in table.items()})
    kinds = {name: dm.tables.ranges.as_range(name, RANGES[name]) for name in table}
    return {name: Column.read(name, kind, held)[0] for name, kind in kinds.items()}


def all_vectors(questions: list[Question]) -> tuple[np.ndarray, list[tuple[Size, ...]]]:
    """Return the vectors of all records on the grid, each divided by its question's distance."""
    names = [*dict.fromkeys(name for question in questions for name in question.names)]
    records = [*product(*(GRID[name] for name in names))]
    columns = columns_of({n: [r[i] for r in records] for i, n in enumerate(names)})
    about = questions_about(questions, RANGES)
    asked = RecordVectors(questions=about, columns=columns, parts=(np.arange(len(records)),))
    return np.concatenate([*asked.vectors(0)]), about.sizes


def largest_distance(vectors: np.ndarray) -> float:
    squares = np.square(vectors).sum(axis=1)
    apart = squares[:, np.newaxis] + squares - 2 * vectors @ vectors.T
    return float(np.sqrt(apart.max()))


@pytest.mark.parametrize("question", ASKED.values(), ids=ASKED.keys())
def test_records_are_as_far_apart_as_is_charged(question: Question) -> None:
    vectors, ((size,),) = all_vectors([question])
    assert vectors.shape[1] == size.dim
    assert np.linalg.norm(vectors, axis=1).max() * size.distance <= size.norm * (1 + 1e-12)
    found = largest_distance(vectors)
    assert found <= 1 + 1e-12
    # A triangle of products is furthest apart where records are orthogonal, which few grids hold.
    assert found == pytest.approx(1.0) or isinstance(question, Correlation)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.sampled_from([*ASKED.values()]), min_size=2, max_size=3))
def test_questions_together_are_charged_as_one_vector(questions: list[Question]) -> None:
    vectors, sizes = all_vectors(questions)
    some = vectors[np.random.default_rng(0).permutation(len(vectors))[:400]]
    assert largest_distance(some) <= np.sqrt(len(sizes)) * (1 + 1e-12)


@given(st.floats(-1, 1), st.floats(-1, 1))
def test_moments_of_any_two_numbers_are_that_close(x: float, y: float) -> None:
    one, other = (np.array([z, z**2, z**3 / 4, z**4 / 4]) for z in (x, y))
    assert np.square(one - other).sum() <= 4.25 * (1 + 1e-12)


def test_the_bound_on_moments_is_a_polynomial_without_a_root() -> None:
    """Of s = x + y, at the largest d = x - y = 2 - s: see docs/privacy/statistics.md."""
    s = np.polynomial.Polynomial([0, 1])
    d = 2 - s
    apart = d**2 * (1 + s**2 + ((3 * s**2 + d**2) / 16) ** 2 + (s * (s**2 + d**2) / 8) ** 2)
    roots = (apart - 4.25).roots()
    real = roots[np.abs(roots.imag) < 1e-9].real
    assert not ((real > 1e-6) & (real <= 2)).any()
    assert apart(0.0) == pytest.approx(4.25)
    assert apart(1.0) < 4.25


def patients(n: int, seed: int = 0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    to_event, left = draw.exponential(6, n), draw.uniform(1, 25, n)
    age = np.clip(draw.normal(60, 15, n), 0, 100)
    return {
        "age": np.where(draw.random(n) < 0.1, np.nan, age),
        "bmi": np.clip(12 + 0.2 * age + draw.normal(0, 5, n), 10, 50),
        "stage": draw.choice(["I", "II"], n, p=[0.7, 0.3]),
        "arm": draw.integers(2, size=n),
        "months": np.minimum(to_event, left),
        "died": (to_event <= left).astype(int),
    }


def exactly(question: Question, table: dict[str, np.ndarray]) -> Any:
    """Answer without noise."""
    columns = columns_of({name: [*table[name]] for name in question.names})
    kinds = {name: column.kind for name, column in columns.items()}
    total = question.vectors(columns).sum(axis=0)
    return question.answer(kinds, total, 0.0, len(table["bmi"]))


def test_answers_without_noise_are_those_of_numpy_and_scipy() -> None:
    table = patients(4000)
    age, bmi = table["age"], table["bmi"]
    whole = ~np.isnan(age)
    count, mean, variance = exactly(Mean("age"), table).rows
    assert count.estimate == whole.sum()
    assert mean.estimate == pytest.approx(age[whole].mean())
    assert mean.sampling == pytest.approx(1.96 * stats.sem(age[whole]), rel=1e-4)
    assert variance.estimate == pytest.approx(age[whole].var(ddof=1))
    (r,) = exactly(Correlation("age", "bmi"), table).rows
    oracle = stats.pearsonr(age[whole], bmi[whole])
    assert r.estimate == pytest.approx(oracle.statistic)
    assert [r.low, r.high] == pytest.approx(oracle.confidence_interval(0.95), abs=1e-9)
    for row, q in zip(exactly(Quantiles("bmi", bins=64), table).rows, (25, 50, 75), strict=True):
        assert row.estimate == pytest.approx(np.percentile(bmi, q), abs=40 / 64)
        assert row.low <= np.percentile(bmi, q) <= row.high
    shown = {row.name: row.estimate for row in exactly(TwoWay("stage", "arm"), table).rows}
    both = (table["stage"] == "II") & (table["arm"] == 1)
    assert shown["stage II, arm true"] == pytest.approx(both.sum())
    counts = [row.estimate for row in exactly(Histogram("age", bins=5), table).rows]
    assert counts == pytest.approx([*np.histogram(age[whole], 5, (0, 100))[0], (~whole).sum()])


def test_curves_and_the_log_rank_test_are_those_of_scipy() -> None:
    table = patients(6000)
    table["arm"] = np.where(np.arange(6000) % 2, 1, 0)
    one = table["arm"] == 1
    found = exactly(Survival("months", "died", "arm", bins=40), table)
    samples = []
    for group in (~one, one):
        time, died = table["months"][group], table["died"][group] == 1
        samples.append(stats.CensoredData.right_censored(time, ~died))
    marks = np.arange(1, 41) / 4
    for sample, rows in zip(samples, (found.rows[:40], found.rows[40:]), strict=True):
        exact = stats.ecdf(sample).sf.evaluate(marks)
        np.testing.assert_allclose([row.estimate for row in rows], exact, atol=2e-3)
    # Both p-values are of one hypothesis; scipy's has no end of time, and ours is simulated.
    assert found.p_value == pytest.approx(stats.logrank(*samples).pvalue, abs=0.12)
    table["months"] = np.where(one, table["months"] * 0.85, table["months"])
    assert exactly(Survival("months", "died", "arm", bins=40), table).p_value < 0.01


def test_slopes_of_a_curve_are_those_of_differences() -> None:
    draw = np.random.default_rng(0)
    cells = draw.integers(5, 30, 13).astype(float)
    found, noise = curve(Cells.of(cells), 1e-3), 1e-3
    square = np.zeros(6)
    for i in range(13):
        moved = cells.copy()
        moved[i] += 1e-4
        square += np.square((curve(Cells.of(moved), 0.0).survival - found.survival) / 1e-4)
    np.testing.assert_allclose(found.noise, noise * np.sqrt(square), rtol=1e-3)


@pytest.mark.parametrize(
    ("question", "row", "truth"),
    [
        (Mean("bmi"), 1, "mean"),
        (Mean("bmi"), 2, "variance"),
        (Histogram("stage"), 0, "stage"),
        (Quantiles("bmi"), 1, "median"),
    ],
)
def test_intervals_cover(question: Question, row: int, truth: str) -> None:
    """In small; docs/statistics_accuracy.md has more. Fewer than 85 of 100: 1 of 10,000 times."""
    people, draw, records = patients(50_000, seed=9), np.random.default_rng(1), 800
    wanted = {
        "mean": people["bmi"].mean(),
        "variance": people["bmi"].var(),
        "stage": records * (people["stage"] == "I").mean(),
        "median": np.median(people["bmi"]),
    }[truth]
    columns = columns_of({name: [*people[name]] for name in question.names})
    kinds = {name: column.kind for name, column in columns.items()}
    vectors, hits = question.vectors(columns), 0
    for _ in range(100):
        total = vectors[draw.integers(len(vectors), size=records)].sum(axis=0)
        found = question.answer(kinds, total + 8 * draw.standard_normal(len(total)), 8.0, records)
        hits += found.rows[row].low <= wanted <= found.rows[row].high
    assert hits >= 85


@pytest.mark.parametrize("sites", [1, 2, 5])
def test_one_release_answers_all_and_costs_what_was_asked(sites: int) -> None:
    table = patients(3000)
    site = np.arange(3000) % sites
    asked = [Mean("age"), Histogram("stage"), Survival("months", "died")]
    found = ask(asked, table, site, ranges=RANGES, epsilon=1.0, key=dm.Key.seeded(0))
    assert found.privacy.epsilon <= 1.0
    assert found.privacy.epsilon == pytest.approx(1.0, abs=1e-5)
    assert found.ledger.cost(1e-5).epsilon == found.privacy.epsilon
    assert len(found.ledger.releases) == 1
    assert ("server" in found.threat_model) == (sites > 2)
    assert found.answers[0].rows[1].estimate == pytest.approx(60, abs=8)
    alone = ask(asked[:1], table, site, ranges=RANGES, epsilon=1.0, key=dm.Key.seeded(0))
    ratio = found.answers[0].rows[1].noise / alone.answers[0].rows[1].noise
    assert ratio == pytest.approx(np.sqrt(3), rel=0.05)
    text = str(found)
    assert "3000 records" in text
    assert "95% interval" in text
    assert found.as_dict()["answers"][1]["rows"][0]["name"] == "I"


def test_released_bounds_hold_most_numbers_and_no_lone_one() -> None:
    draw = np.random.default_rng(0)
    table = {
        "loss": np.append(-draw.gamma(3, 5, 3999), -1e7),
        "share": draw.uniform(0.3, 0.9, 4000),
        "zero": np.zeros(4000),
        "none": np.full(4000, np.nan),
    }
    found, release = bounds([*table], table, np.arange(4000) % 4, epsilon=1.0)
    assert found.keys() == {"loss", "share"}  # all zeros have no range
    low, high = found["loss"]
    assert ((table["loss"] >= low) & (table["loss"] <= high)).mean() > 0.95
    assert low >= -128
    assert found["share"] == (0.25, 1.0)
    assert release.privacy.epsilon == pytest.approx(1.0, abs=1e-5)
    with pytest.raises(ValueError, match=r"epsilon: wanted at least .* records for bounds of loss"):
        bounds([*table], table, epsilon=0.03)


def test_too_few_records_are_named() -> None:
    asked = [Mean("age", "months"), Survival("months", "died")]
    key = dm.Key.seeded(0)  # noise alone looks like enough records in 6 of 100 runs
    found = ask(asked, patients(40), ranges=RANGES, epsilon=0.1, key=key)
    assert "too few records at this noise: age, mean, age, variance, months, mean" in str(found)
    assert any(row.estimate != row.estimate for row in found.answers[1].rows)


class HalfMean(Mean):
    """Charges half of how far a mean moves."""

    def size(self, kinds: Any) -> Size:
        size = super().size(kinds)
        return size._replace(distance=size.distance / 2)


@dataclass(frozen=True)
class RiskOfItsOwn(Survival):
    """Releases the numbers at risk, too, and charges one cell."""

    def size(self, kinds: Any) -> Size:
        return Size(self.cells(kinds) + self.bins, np.sqrt(1 + self.bins), np.sqrt(2))

    def vectors(self, columns: Any) -> np.ndarray:
        time = columns[self.time].cell(self.bins)
        risk = np.arange(self.bins) <= time[:, np.newaxis]
        return np.hstack([super().vectors(columns), risk])


class ShortCorrelation(Correlation):
    """Charges products as if records had norm 1."""

    def size(self, kinds: Any) -> Size:
        return super().size(kinds)._replace(distance=np.sqrt(2))


class ManyAsOne(Histogram):
    """Charges two histograms as one."""

    def size(self, kinds: Any) -> Size:
        return Size(2 * self.cells(kinds), np.sqrt(2), np.sqrt(2))

    def vectors(self, columns: Any) -> np.ndarray:
        (cells,) = {self.cells({n: c.kind for n, c in columns.items()})}
        return np.tile(one_hot(self.cell(columns), cells), 2)


ENDS: dict[str, Any] = {"bmi": [10.0, 50.0], "age": [0.0, 100.0], "months": [0.0, 9.9]}
ENDS |= {"died": [0, 1], "stage": ["I", "II"]}


def coupled(question: Question) -> Any:
    """Audit the release of a question on tables whose first record differs as far as it can."""
    problems = []
    for end in (0, 1):
        columns = columns_of(
            {name: [ENDS[name][end], *[ENDS[name][0]] * 11] for name in question.names}
        )
        parts = tuple(np.array_split(np.arange(12), 4))
        about = questions_about([question], RANGES)
        problems.append(RecordVectors(questions=about, columns=columns, parts=parts))
    public: Any = {"sites": 4, "records": 12, **about.sums}
    algorithm = RecordSums.for_budget(epsilon=1.0, delta=1e-5, **public)
    return couple(algorithm, *problems, alone, rounds=1)


def test_audits_find_planted_mistakes_and_no_other() -> None:
    for honest in (Mean("bmi"), Survival("months", "died"), Correlation("age", "bmi")):
        assert not coupled(honest).violated, coupled(honest)
    assert coupled(Mean("bmi")).movements[0].distance == pytest.approx(1, rel=1e-3)
    for planted in (
        HalfMean("bmi"),
        RiskOfItsOwn("months", "died"),
        ShortCorrelation("age", "bmi"),
        ManyAsOne("stage"),
    ):
        assert "moved by" in "".join(coupled(planted).faults), planted


@pytest.mark.parametrize(
    ("questions", "others", "wanted"),
    [
        ([], {}, "questions: wanted questions such as Mean"),
        (Mean("ages"), {}, "question: wanted a column with a public range .*'ages'.*did you mean"),
        (Mean("stage"), {}, "stage: wanted a number or a flag"),
        (Survival("months", "stage"), {}, "stage: wanted a flag"),
        (Histogram("bmi"), {"epsilon": 0.0}, "epsilon: wanted"),
        (Histogram("bmi"), {"delta": 0.0}, "delta: wanted"),
        (Histogram("bmi"), {"ranges": [0, 1]}, "ranges: wanted a mapping"),
        (Quantiles("stage"), {}, "stage: wanted a number or a date"),
    ],
)
def test_what_does_not_fit_is_named(questions: Any, others: Any, wanted: str) -> None:
    with pytest.raises(ValueError, match=wanted):
        ask(questions, patients(50), **{"ranges": RANGES, "epsilon": 1.0, **others})


def test_a_question_that_repeats_a_column_is_refused() -> None:
    for wrong in (
        lambda: Mean(),
        lambda: Correlation("bmi"),
        lambda: TwoWay("arm", "arm"),
        lambda: Survival("months", "months"),
        lambda: Quantiles("bmi", at=(0.0,)),
    ):
        with pytest.raises(ValueError, match="wanted"):
            wrong()


@pytest.mark.slow
def test_a_clerk_asks_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pandas = pytest.importorskip("pandas")
    from command import command

    monkeypatch.chdir(tmp_path)
    for site, separator in enumerate(",;\t"):
        table = pandas.DataFrame(patients(400, seed=site)).assign(seen="2020-02-03", note="x")
        table["age"] = ["unknown", *table["age"][1:]]
        table.to_csv(f"{site}.csv", sep=separator, decimal=[".", ",", "."][site], index=False)
    Path("ranges.toml").write_text(
        'age = {range = [0, 100], missing = true}\nbmi = [10, 50]\nstage = ["I", "II"]\n'
        "arm = {flag = true}\nmonths = [0, 10]\ndied = {flag = true}\n"
        'seen = {dates = ["2019-01-01", "2021-01-01"]}\n'
    )

    def run(*options: str, code: int = 0) -> str:
        fixed = ["stats", "*.csv", "--epsilon", "2", "--ranges", "ranges.toml"]
        return command(*fixed, *options, code=code)

    plain = run()
    for text in ("1200 records at 3 sites", "age, mean", "stage, count", "median", "2020-0"):
        assert text in plain
    assert "0.csv, age: 1 of 400 values, such as " in plain
    options = ["--mean", "bmi", "--histogram", "age:5", "--quantiles", "bmi", "--by", "arm"]
    options += ["--table", "stage,arm", "--correlation", "age, bmi", "--survival", "months,died"]
    for output in ("found.html", "found.json"):
        assert "log-rank test of arm" in run(*options, "--output", output)
        assert "log-rank test of arm" in Path(output).read_text()
    for wrong, said in (
        (["--by", "arm"], "--by: wanted --survival beside it"),
        (["--table", "stage"], "--table: wanted 2 columns, as a,b"),
        (["--output", "a.txt"], "--output: wanted a file that ends in .html or .json"),
        (["--mean", "bmj"], "did you mean bmi?"),
    ):
        assert said in run(*wrong, code=2)

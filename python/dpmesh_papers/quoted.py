"""Numbers that pages quote from committed results: write them into the pages, or compare.

``python -m dpmesh_papers.quoted`` writes the numbers of today's results into the pages; with
``--check`` it only lists what differs. It does the same for two kinds of files in docs/results that
follow from other results: the list of results and their commands (made.txt), and the tables of
`dpmesh_papers.paper_tables`.

A `Claim` is a piece of a page with a name in braces in place of each number. One function for each
group of results yields its claims.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from dpmesh._epsilons import rounded_up
from dpmesh_papers import paper_tables
from dpmesh_papers._output import checkout
from dpmesh_papers._scaffold import Row, compared, kinds, only, pick, read
from dpmesh_papers.benchmark.cells import ALONE, ALONE_PRIVATE, MAJORITY, POOLED
from dpmesh_papers.benchmark.results import AS_MAJORITY, Provenance, lines_of, shown, splits_of
from dpmesh_papers.benchmark.results import read as read_benchmark
from dpmesh_papers.demonstration import METHODS, means

ROOT = checkout()
RESULTS = ROOT / "docs" / "results"
README = "README.md"
CLAIMS = "docs/claims.md"
FINDINGS = "docs/findings.md"
FEDERATED = "docs/algorithms/federated.md"
WITHOUT_REPLACEMENT = "docs/algorithms/without_replacement.md"
RANDOM_ALLOCATION = "docs/privacy/random_allocation_accuracy.md"
SECURE_AGGREGATION = "docs/secure_aggregation_accuracy.md"

NUMBER = r"(?:[\d.,]+(?: ± [\d.]+)?|[a-z ]+?)"
"""Pattern of a number with or without its interval, or of the words of a verdict."""

# Methods of the benchmark, by their names in its tables.
GOSSIP = "gradient descent by gossip"
AGGREGATED = "secure aggregation, momentum, private centering"
CENTRAL = "central DP-SGD, momentum"


@dataclass(frozen=True)
class Claim:
    """A piece of a page that quotes numbers.

    Parameters
    ----------
    page
        Path of the page in the checkout.
    text
        The piece, with a name in braces in place of each number. The page may wrap its lines at
        other places.
    numbers
        The numbers as the page prints them, by name.
    """

    page: str
    text: str
    numbers: Mapping[str, str]


def claim(page: str, text: str, **numbers: str) -> Claim:
    """Return the claim of a page with these numbers."""
    return Claim(page, text, numbers)


def claims() -> Iterator[Claim]:
    """Yield all claims."""
    yield from online_claims()
    yield from quantized_claims()
    yield from smoothing_claims()
    yield from accountant_claims()
    yield from claims_under_much_noise()
    yield from claims_beside_pfl()
    yield from token_claims()
    yield from controller_claims()
    yield from figure_claims()
    yield from allocation_claims()
    yield from demo_claims()
    yield from estimator_claims()
    yield from readme_claims()
    yield from digits_claims()
    yield from image_claims()
    yield from secure_sum_claims()


def rows_of(name: str) -> list[Row]:
    """Return the rows of a committed result."""
    return read(RESULTS / f"{name}.csv")


def result(name: str, **wanted: object) -> Row:
    """Return the row of a committed result that has these values."""
    return only(rows_of(name), **wanted)


def with_interval(mean: float, half_width: float) -> str:
    """Return a mean and half the width of its interval, with one decimal."""
    return f"{mean:.1f} ± {half_width:.1f}"


def accuracy(row: Row) -> str:
    """Return the accuracy of a row in percent, with its interval."""
    return with_interval(row["accuracy"], row["interval"])


def released_accuracy(row: Row) -> str:
    """Return the accuracy of a row's released models in percent, with its interval."""
    return with_interval(row["released"], row["released_interval"])


def online_claims() -> Iterator[Claim]:
    """Yield the claims on online learning: its regret bound (45), and its private SVM on RCV1."""
    regret = result("online-counterexample", dim=20, epsilon=0.2, rounds=1_000_000)
    yield claim(
        CLAIMS,
        "| bound (45), epsilon 0.2, 1,000,000 rounds, 20 numbers | {printed} |",
        printed=f"{regret['printed']:,.0f}",
    )
    yield claim(CLAIMS, "| measured regret | {regret} |", regret=f"{regret['regret']:,.0f}")

    svm = result("online-table1", epsilon=1.0, nodes=64)
    ours = with_interval(svm["accuracy"], svm["accuracy_interval"])
    majority = f"{svm['chance']:.1f}"
    yield claim(CLAIMS, "the paper's noise and learning rates | {ours}% |", ours=ours)
    yield claim(
        FINDINGS,
        "the paper's learning rates; the paper has {paper} | yes | {ours} |",
        paper=f"{svm['paper']:.2f}",
        ours=ours,
    )
    yield claim(CLAIMS, "| majority class | {majority}% |", majority=majority)
    yield claim(FINDINGS, "| majority-class baseline | | {majority} |", majority=majority)

    arrival = result("online-allocated", nodes=64, batch=38, sampling="arrival")
    yield claim(
        FINDINGS, "data-independent learning rates | yes | {arrival} |", arrival=accuracy(arrival)
    )
    allocated = accuracy(result("online-allocated", nodes=64, batch=7, sampling="allocation"))
    yield claim(
        CLAIMS,
        "| RCV1, 64 nodes, epsilon 1, random allocation | {allocated}% |",
        allocated=allocated,
    )
    yield claim(FINDINGS, "random allocation | yes | {allocated} |", allocated=allocated)


def quantized_claims() -> Iterator[Claim]:
    """Yield the claims on quantized gossip beside unquantized messages and noise on gradients."""
    quantized, unquantized, perturbed = (
        result("quantized-figure4", algorithm=name, epsilon=1.0, round=200)
        for name in ("quantized", "not quantized", "noise on gradients")
    )

    def percent(row: Row) -> str:
        return with_interval(100 * row["accuracy"], 100 * row["interval"])

    yield claim(CLAIMS, "| quantized gossip | {ours}% |", ours=percent(quantized))
    times_fewer_bits = unquantized["bits"] / quantized["bits"]
    of_64_bits = f"{times_fewer_bits:.1f}"
    of_32_bits = f"{times_fewer_bits / 2:.1f}"
    yield claim(CLAIMS, "against messages of 64 bits a number | {times} times |", times=of_64_bits)
    yield claim(CLAIMS, "against messages of 32 bits a number | {times} times |", times=of_32_bits)
    yield claim(
        FINDINGS,
        "algorithm, {times} times fewer bits than messages of 64 bits a number | yes | {ours} |",
        times=of_64_bits,
        ours=percent(quantized),
    )
    yield claim(FINDINGS, "(`quantized-figure4`, {seeds} seeds)", seeds=str(quantized["seeds"]))
    yield claim(
        FINDINGS,
        "Theorem 1 charges {epsilon} for the first run",
        epsilon=rounded_up(quantized["paper_epsilon"], 3),
    )

    yield claim(
        CLAIMS, "| noise on gradients, 64 bits a number | {theirs}% |", theirs=percent(perturbed)
    )
    yield claim(
        FINDINGS,
        "| noise on gradients, 64 bits a number | yes | {theirs} |",
        theirs=percent(perturbed),
    )
    verdict = compared(perturbed, quantized).replace("no clear difference", "not clearly ahead")
    yield claim(CLAIMS, "\n\nNoise on gradients is {verdict}.", verdict=verdict)
    yield claim(FINDINGS, "Noise on gradients is {verdict},", verdict=verdict)


Sampling = Literal["uniform", "poisson"]
"""Samplings of clients in Table 2 of the federated paper."""

SmoothedNoise = Literal["paper", "tight"]
"""Noise in Table 2 of the federated paper: by its theorems, or by exact accounting."""

SAMPLINGS: tuple[Sampling, ...] = ("uniform", "poisson")


class SmoothingTable:
    """Committed results of Table 2 of the federated paper: DP-Fed with and without smoothing."""

    EPSILONS = (6, 7, 8, 9)

    def __init__(self) -> None:
        self._rows = rows_of("federated-table2")

    def with_fixed_smoothing(
        self, sampling: Sampling, noise: SmoothedNoise, epsilon: float
    ) -> list[Row]:
        """Return the rows of a cell by ascending smoothing; the first one has none.

        The row whose smoothing is chosen from the releases is left out.
        """
        rows = pick(self._rows, sampling=sampling, noise=noise, epsilon=epsilon)
        return [row for row in rows if row["smoothing"] is not None]

    def plain(self, sampling: Sampling, noise: SmoothedNoise, epsilon: float) -> Row:
        """Return the row without smoothing."""
        return self.with_fixed_smoothing(sampling, noise, epsilon)[0]

    def best(self, sampling: Sampling, noise: SmoothedNoise, epsilon: float) -> float:
        """Return the accuracy of the best fixed smoothing, in percent."""
        _, *smoothed = self.with_fixed_smoothing(sampling, noise, epsilon)
        return float(max(row["accuracy"] for row in smoothed))

    def gain(self, sampling: Sampling, noise: SmoothedNoise, epsilon: float) -> float:
        """Return the points that the best fixed smoothing adds; 0 if all lose."""
        plain: float = self.plain(sampling, noise, epsilon)["accuracy"]
        return max(0.0, self.best(sampling, noise, epsilon) - plain)

    def gap_to_paper(self, sampling: Sampling) -> float:
        """Return our accuracy less the paper's at its noise, in points, on average."""
        gaps = [
            row["by_protocol"] - row["paper"]
            for epsilon in self.EPSILONS
            for row in self.with_fixed_smoothing(sampling, "paper", epsilon)
        ]
        return float(np.mean(gaps))

    def share_of_noise(self, sampling: Sampling) -> float:
        """Return the noise that exact accounting needs at epsilon 6, over the paper's."""
        needed: float = self.plain(sampling, "tight", 6)["noise_std"]
        papers: float = self.plain(sampling, "paper", 6)["noise_std"]
        return needed / papers


def smoothing_claims() -> Iterator[Claim]:
    """Yield the claims on Table 2 of the federated paper."""
    table = SmoothingTable()
    plain = f"{table.plain('uniform', 'paper', 6)['accuracy']:.2f}"
    smoothed = f"{table.best('uniform', 'paper', 6):.2f}"
    yield claim(
        CLAIMS, "| at the paper's noise | {plain} | {smoothed} |", plain=plain, smoothed=smoothed
    )
    yield claim(
        FINDINGS,
        "the paper has 78.4 and 83.6 | yes | {plain} | {smoothed} |",
        plain=plain,
        smoothed=smoothed,
    )
    plain = f"{table.plain('uniform', 'tight', 6)['accuracy']:.2f}"
    smoothed = f"{table.best('uniform', 'tight', 6):.2f}"
    yield claim(
        CLAIMS, "needs by exact accounting | {plain} | {smoothed} |", plain=plain, smoothed=smoothed
    )
    yield claim(
        FINDINGS,
        "by exact accounting | yes | {plain} | {smoothed} |",
        plain=plain,
        smoothed=smoothed,
    )

    yield claim(
        FEDERATED,
        "exact accounting needs {uniform}% of this standard\n"
        "deviation with uniform sampling, and {poisson}% with Poisson sampling.",
        uniform=f"{100 * table.share_of_noise('uniform'):.0f}",
        poisson=f"{100 * table.share_of_noise('poisson'):.0f}",
    )
    gains_at_6 = [table.gain(sampling, "paper", 6) for sampling in SAMPLINGS]
    yield claim(
        FEDERATED,
        "smoothing raises\nthe accuracy by {low} to {high} points",
        low=f"{min(gains_at_6):.1f}",
        high=f"{max(gains_at_6):.1f}",
    )
    gains_at_exact_noise = [
        table.gain(sampling, "tight", epsilon)
        for sampling in SAMPLINGS
        for epsilon in SmoothingTable.EPSILONS
    ]
    largest_gain = f"{max(gains_at_exact_noise):.1f}"
    yield claim(FEDERATED, "smoothing gains at\nmost {points} points", points=largest_gain)
    yield claim(
        FINDINGS,
        "we are {below} points\nbelow the paper on average with uniform sampling, {above} "
        "above with Poisson. At the noise that epsilon needs\nsmoothing gains at most {points}.",
        below=f"{-table.gap_to_paper('uniform'):.1f}",
        above=f"{table.gap_to_paper('poisson'):.1f}",
        points=largest_gain,
    )


def claims_under_much_noise() -> Iterator[Claim]:
    """Yield the claims on Figure 4 of the federated paper: a network under much noise."""
    rows = pick(rows_of("federated-figure4"), noise_to_sensitivity=3.0, step_size=0.125)
    plain = [row["accuracy"] for row in pick(rows, model="DP-Fed")]
    smoothed = [row["accuracy"] for row in pick(rows, model="DP-Fed-LS")]
    yield claim(
        FEDERATED,
        "After the last\nround the network has {smoothed}% with smoothing and {plain}% without; "
        "its best round without smoothing has {best}%",
        smoothed=f"{smoothed[-1]:.1f}",
        plain=f"{plain[-1]:.1f}",
        best=f"{max(plain):.1f}",
    )


def claims_beside_pfl() -> Iterator[Claim]:
    """Yield the claim on accuracies of pfl-research, less ours of the same cell, in points."""
    rows = rows_of("beside-pfl")
    ours = pick(rows, library="dpmesh")
    theirs = pick(rows, library="pfl")
    gaps = [
        their_row["accuracy"] - our_row["accuracy"]
        for our_row, their_row in zip(ours, theirs, strict=True)
    ]
    yield claim(
        FEDERATED,
        "pfl's mean accuracies are\n{least} to {most} points higher.",
        least=f"{max(0, min(gaps)):.1f}",
        most=f"{max(gaps):.1f}",
    )


def table2_row(method: str, noise: str) -> Row:
    """Return the row of a method at 10 nodes in Table II of the without-replacement paper."""
    return result("without-replacement-table2", case="convex", nodes=10, method=method, noise=noise)


def figure_row(number: int, method: str, noise: str) -> Row:
    """Return the row of a method at epsilon 1 in a figure of the without-replacement paper."""
    return result(f"without-replacement-figure{number}", method=method, epsilon=1.0, noise=noise)


def epsilon_proved(row: Row) -> str:
    """Return the proved epsilon of a row, rounded up to three digits."""
    return rounded_up(row["epsilon_proved"], 3)


def token_claims() -> Iterator[Claim]:
    """Yield what the pages of claims and of findings say of SGD without replacement."""
    all_global = table2_row("fully collaborative", "paper")
    learned = table2_row("Algorithm 1", "paper")
    random = table2_row("5 % at random", "paper")
    cost = epsilon_proved(learned)
    yield claim(
        CLAIMS,
        "| all updates global, the paper's noise | {cost} | {reached}% |",
        cost=cost,
        reached=f"{all_global['released']:.2f}",
    )
    yield claim(
        CLAIMS,
        "| learned controller (its decisions are not covered), the paper's noise | {cost} "
        "| {reached}% |",
        cost=cost,
        reached=f"{learned['released']:.2f}",
    )
    yield claim(
        FINDINGS,
        "all updates global; the paper has 76.8 | {cost} | yes | {reached} |",
        cost=cost,
        reached=f"{all_global['released']:.2f}",
    )
    yield claim(
        FINDINGS,
        "learned controller; the paper has 80.5 | {cost} | no | {reached} |",
        cost=cost,
        reached=f"{learned['released']:.2f}",
    )
    yield claim(
        FINDINGS,
        "5% of the updates global, at random | {cost} | yes | {reached} |",
        cost=cost,
        reached=f"{random['released']:.2f}",
    )

    with_replacement = released_accuracy(figure_row(3, "with replacement", "proved"))
    yield claim(CLAIMS, "| SGD with replacement | 1 | {reached}% |", reached=with_replacement)
    yield claim(
        FINDINGS,
        "| SGD with replacement, the same images at several nodes | 1 | yes | {reached} |",
        reached=with_replacement,
    )
    algorithm_1 = released_accuracy(figure_row(3, "Algorithm 1", "proved"))
    yield claim(CLAIMS, "(its decisions are not covered) | 1 | {reached}% |", reached=algorithm_1)
    yield claim(
        FINDINGS,
        "| Algorithm 1, the same images at several nodes | 1 | no | {reached} |",
        reached=algorithm_1,
    )
    yield claim(
        FINDINGS,
        "has epsilon {baseline} with a method that has epsilon {learned} (",
        baseline=epsilon_proved(figure_row(3, "with replacement", "paper")),
        learned=epsilon_proved(figure_row(3, "Algorithm 1", "paper")),
    )


def controller_claims() -> Iterator[Claim]:
    """Yield the claims on controllers in Table II of the without-replacement paper."""
    methods = {
        'always global ("fully collaborative")': "fully collaborative",
        "learned, as in the paper": "Algorithm 1",
        "learned from public information": "deep Q, public",
        "random, 5% global": "5 % at random",
        "every 20th round": "every 20th round",
    }
    for name, method in methods.items():
        at_papers_noise = table2_row(method, "paper")
        at_epsilon_1 = table2_row(method, "proved")
        papers_accuracy = " "
        if at_papers_noise["paper"] is not None:
            papers_accuracy = f" {at_papers_noise['paper']:.2f} "
        ours = at_papers_noise["released"]
        half_width = at_papers_noise["released_interval"]
        proved = at_epsilon_1["released"]
        half_width_proved = at_epsilon_1["released_interval"]
        yield claim(
            WITHOUT_REPLACEMENT,
            f"| {name} |{papers_accuracy}| {{ours}} | {{proved}} |",
            ours=f"{ours:.2f} ± {half_width:.2f}",
            proved=f"{proved:.0f} ± {half_width_proved:.0f}",
        )
    yield claim(
        WITHOUT_REPLACEMENT,
        "noise is {with_intercept} points from the paper on average over\nthe ten cells; without "
        "it, {without}. We",
        with_intercept=mean_gap_to_table2("without-replacement-table2"),
        without=mean_gap_to_table2("without-replacement-table2-intercept"),
    )


def mean_gap_to_table2(name: str) -> str:
    """Return the distance of full collaboration at the paper's noise from the paper, on average."""
    rows = pick(rows_of(name), method="fully collaborative", noise="paper")
    return f"{np.mean([abs(row['released'] - row['paper']) for row in rows]):.1f}"


FIGURES = {
    1: "Covertype, convex",
    2: "Covertype, strongly convex",
    3: "MNIST, convex",
    4: "MNIST, strongly convex",
}
"""Figures of the without-replacement paper: data and problem."""

METHODS_OF_FIGURES = {
    "baseline": "with replacement",
    "every": "every 20th round",
    "random": "5 % at random",
    "all_global": "fully collaborative",
    "learned": "Algorithm 1",
}
"""Methods of those figures, by their names in claims."""


def figure_claims() -> Iterator[Claim]:
    """Yield the claims on the figures of the without-replacement paper, on its own page."""
    paper, proved = (
        {name: figure_row(3, method, noise) for name, method in METHODS_OF_FIGURES.items()}
        for noise in ("paper", "proved")
    )
    yield claim(
        WITHOUT_REPLACEMENT,
        "(10 seeds, half of the 95% interval) it reaches {baseline}, every 20th round {every}, "
        "random\ndecisions {random} and full collaboration {all_global}, all proved.",
        baseline=released_accuracy(proved["baseline"]),
        every=released_accuracy(proved["every"]),
        random=released_accuracy(proved["random"]),
        all_global=released_accuracy(proved["all_global"]),
    )
    yield claim(
        WITHOUT_REPLACEMENT,
        "Algorithm 1 reaches {learned}; its controller looks",
        learned=released_accuracy(proved["learned"]),
    )
    yield claim(
        WITHOUT_REPLACEMENT,
        "the baseline costs {cost_of_baseline} and reaches\n{baseline}, Algorithm 1 costs "
        "{cost_of_learned} and reaches {learned}:",
        cost_of_baseline=epsilon_proved(paper["baseline"]),
        baseline=released_accuracy(paper["baseline"]),
        cost_of_learned=epsilon_proved(paper["learned"]),
        learned=released_accuracy(paper["learned"]),
    )
    yield claim(
        WITHOUT_REPLACEMENT,
        "SGD with replacement pays {baseline}, Algorithm 1 pays {learned} |",
        baseline=epsilon_proved(paper["baseline"]),
        learned=epsilon_proved(paper["learned"]),
    )
    yield claim(
        WITHOUT_REPLACEMENT,
        "where the order turns round: {baseline} against {learned} (",
        baseline=f"{proved['baseline']['released']:.1f}",
        learned=f"{proved['learned']['released']:.1f}",
    )

    ahead = 0
    cells = " | ".join(f"{{{name}}}" for name in METHODS_OF_FIGURES)
    for number, problem in FIGURES.items():
        rows = {
            name: figure_row(number, method, "proved")
            for name, method in METHODS_OF_FIGURES.items()
        }
        accuracies = {name: released_accuracy(row) for name, row in rows.items()}
        yield Claim(WITHOUT_REPLACEMENT, f"| {number}: {problem} | {cells} |", accuracies)
        verdict = compared(rows["baseline"], rows["learned"], "released", "released_interval")
        ahead += verdict == "ahead"
    yield claim(
        WITHOUT_REPLACEMENT,
        "On {figures} of the four SGD with replacement is clearly ahead of Algorithm 1.",
        figures=str(ahead),
    )


def allocation_claims() -> Iterator[Claim]:
    """Yield the claims on random allocation in SGD without replacement."""
    paper, rule = (
        result("without-replacement-allocated", step=step, sampling="allocation")
        for step in ("paper", "rule")
    )
    yield claim(
        CLAIMS, "data-independent learning rates | 1 | {reached}% |", reached=accuracy(rule)
    )
    yield claim(
        FINDINGS,
        "global, the paper's learning rates | 1 | yes | {reached} |",
        reached=accuracy(paper),
    )
    yield claim(
        FINDINGS,
        "| the same, data-independent learning rates | 1 | yes | {reached} |",
        reached=accuracy(rule),
    )

    def beside_replacement(allocated: Row) -> str:
        """Return the verdict on random allocation beside SGD with replacement, at its steps."""
        step = allocated["step"]
        replaced = result("without-replacement-allocated", step=step, sampling="replaced")
        return compared(allocated, replaced).replace("no clear difference", "inconclusive")

    yield claim(
        WITHOUT_REPLACEMENT,
        "by 95% intervals: with the paper's steps {paper},\n"
        "with data-independent learning rates {rule}.",
        paper=beside_replacement(paper),
        rule=beside_replacement(rule),
    )


def accountant_claims() -> Iterator[Claim]:
    """Yield the claims on the rounds that exact accounting allows, from Figure S9's text."""
    text = (RESULTS / "federated-figureS9.txt").read_text()
    sentence = re.search(r"exact accounting allows (\d+)\.", text)
    assert sentence is not None
    rounds = sentence[1]
    yield claim(FINDINGS, "exact accounting allows {rounds} (", rounds=rounds)
    yield claim(FEDERATED, "| exact accounting allows {rounds} rounds (", rounds=rounds)


def demo_claims() -> Iterator[Claim]:
    """Yield the claims on the demo: digits split by class, and sites that are alike."""
    rows = means(rows_of("demo"))
    by_class, alike = kinds(rows, "sites")
    secure_sum, gossip, single_site = METHODS

    def accuracies(method: str) -> dict[str, str]:
        """Return the accuracies on digits split by class, by epsilon: ``at_1``, ``at_2`` .."""
        rows_of_method = pick(rows, sites=by_class, method=method)
        return {f"at_{row['epsilon']:g}": accuracy(row) for row in rows_of_method}

    at_1_and_2 = "| {at_1}% | {at_2}% |"
    yield Claim(CLAIMS, f"| secure aggregation {at_1_and_2}", accuracies(secure_sum))
    yield Claim(CLAIMS, f"| gossip (decentralized) {at_1_and_2}", accuracies(gossip))
    at_all = "| {at_1} | {at_2} | {at_4} | {at_8}"
    yield Claim(
        FINDINGS,
        f"| secure aggregation | a server colluding with one site {at_all}",
        accuracies(secure_sum),
    )
    yield Claim(FINDINGS, f"| gossip | reads all messages {at_all}", accuracies(gossip))

    federated_rows = pick(rows, sites=alike, method=secure_sum)
    single_site_rows = pick(rows, sites=alike, method=single_site)
    gains = [
        federated["accuracy"] - single["accuracy"]
        for federated, single in zip(federated_rows, single_site_rows, strict=True)
    ]
    yield claim(
        CLAIMS,
        "the federation gains {low} to {high} points over a\nsingle-site model",
        low=f"{min(gains):.1f}",
        high=f"{max(gains):.1f}",
    )


def estimator_claims() -> Iterator[Claim]:
    """Yield the accuracies and the times of estimators with default settings."""
    images = [float(row["accuracy"]) for row in rows_of("scattering")]
    yield claim(
        "docs/estimator_recipes.md",
        "it learns {accuracy}% of the test images (mean of {divisions} divisions into sites, "
        "standard deviation {deviation})",
        accuracy=f"{np.mean(images):.1f}",
        divisions=str(len(images)),
        deviation=f"{np.std(images, ddof=1):.2f}",
    )

    def seconds(features: str) -> str:
        """Return the processor seconds of a fit with these features."""
        return f"{result('goals', what=f'fit of 40,000 x 54, {features}')['mean']:.1f}"

    yield claim(
        "docs/learning_rates.md",
        "a fit of 40,000 records with 54 columns takes {rule} processor seconds, with the columns "
        "alone {columns}.",
        rule=seconds("features by the rule"),
        columns=seconds("columns"),
    )

    def percent(task: str) -> str:
        """Return the accuracy on a task under secure aggregation at epsilon 1."""
        row = result("goals", what=f"{task}, secure sum")
        return with_interval(row["mean"], row["interval"])

    yield claim(
        "docs/privacy/first_stage_accuracy.md",
        "under secure aggregation at epsilon 1, the accuracy on digits by class is {digits}%, "
        "and on breast cancer {cancer}% (",
        digits=percent("digits-by-class"),
        cancer=percent("breast-cancer"),
    )


class BenchmarkTable:
    """Committed results of a task of the benchmark.

    Parameters
    ----------
    task
        Name of the task.
    """

    def __init__(self, task: str) -> None:
        cells, _ = read_benchmark(RESULTS)
        self._lines = {line.method: line for line in lines_of(cells, task)}

    def accuracy(self, method: str, epsilon: float) -> str:
        """Return the accuracy of a method at an epsilon, as tables print it.

        A baseline has the same one at each epsilon.
        """
        return shown(self._lines[method].at(epsilon), self._lines[MAJORITY].first)

    def mean(self, baseline: str) -> str:
        """Return the accuracy of a baseline without its interval."""
        return self.accuracy(baseline, 1.0).partition(" ")[0]


README_TASKS = {
    "digits, non-i.i.d., 10 sites": "digits-by-class",
    "Covertype, 4 sites": "covertype",
    "MNIST, scattering features, 10 nodes": "mnist-10-scattering",
}
"""The tasks of README's table of results."""

README_THREAT_MODELS = {
    "the server is trusted | added once, by the server": CENTRAL,
    "| added once in total: each site adds a share": AGGREGATED,
    "in total little more than once": "gossip, noise between partners",
    "| reads all messages | added by every node to each message": GOSSIP,
}
"""The rows of README's table of threat models, and those of the benchmark."""


def readme_claims() -> Iterator[Claim]:
    """Yield README's threat models and results, from the benchmark."""
    digits = BenchmarkTable("digits-by-class")
    for row, method in README_THREAT_MODELS.items():
        yield claim(README, f"{row} | {{percent}}% |", percent=digits.accuracy(method, 1.0))
    for name, task in README_TASKS.items():
        table = BenchmarkTable(task)
        yield claim(
            README,
            f"| {name} | {{majority}} | {{single_site}} | {{at_1}} | {{at_4}} | {{central}} |",
            majority=table.mean(MAJORITY),
            single_site=table.mean(ALONE),
            at_1=table.accuracy(AGGREGATED, 1.0),
            at_4=table.accuracy(AGGREGATED, 4.0),
            central=table.accuracy(CENTRAL, 1.0),
        )


def digits_claims() -> Iterator[Claim]:
    """Yield the claims on digits by class in the benchmark: random allocation, and networks."""
    table = BenchmarkTable("digits-by-class")

    def percent(method: str, epsilon: float) -> str:
        return table.accuracy(method, epsilon).replace(AS_MAJORITY, "as the majority class")

    methods = {
        "online learning": "online learning",
        "online learning, allocated": "online learning, allocated",
        "SGD without replacement, 5% of the updates global": "SGD without replacement",
        "SGD without replacement, allocated, all updates global": (
            "SGD without replacement, allocated"
        ),
        "gradient descent by gossip, full batches": GOSSIP,
    }
    for name, method in methods.items():
        yield claim(
            RANDOM_ALLOCATION,
            f"| {name} | {{at_1}} | {{at_4}} |",
            at_1=percent(method, 1.0),
            at_4=percent(method, 4.0),
        )
    ring = percent("gradient descent on a ring", 4.0)
    muffliato = percent("Muffliato on a ring, 8 mixings", 4.0)
    yield claim(
        CLAIMS,
        "at epsilon 4 reaches {ring}%, and {muffliato}% with 8 mixings",
        ring=ring,
        muffliato=muffliato,
    )
    networks = {
        "complete graph | reads all messages": percent(GOSSIP, 4.0),
        "ring, 8 mixings of each message | reads all messages": muffliato,
        "meetings | any single node ([weaker adversary](privacy/views.md))": percent(
            "gradient descent at meetings", 4.0
        ),
        "ring | reads all messages": ring,
    }
    for name, accuracy_of_network in networks.items():
        yield claim(FINDINGS, f"| {name} | {{percent}} |", percent=accuracy_of_network)


def image_claims() -> Iterator[Claim]:
    """Yield the claims on MNIST in the benchmark: by pixels, and by scattering features."""
    methods = {
        AGGREGATED: AGGREGATED,
        "gossip, noise between partners": "gossip, noise between partners",
        GOSSIP: GOSSIP,
        "single node, without privacy": ALONE,
    }
    yield from claims_on_two_tasks(FINDINGS, ("mnist-10", "mnist-10-scattering"), methods)


def secure_sum_claims() -> Iterator[Claim]:
    """Yield the accuracy of secure aggregation beside other rows of the benchmark."""
    secure_sum = "secure aggregation, 1 site may collude"
    secure_gossip = "secure gossip, 1 neighbour may collude"
    methods = {
        "centralized, without privacy |": POOLED,
        "central DP-SGD | reads models": "central DP-SGD, all records in a batch",
        "secure aggregation, momentum | server and 1 site": "secure aggregation, momentum",
        "secure aggregation | server and 1 site": secure_sum,
        "federated | reads models": "federated",
        "secure aggregation | server and a third of the sites": (
            "secure aggregation, a third may collude"
        ),
        "secure gossip | reads sums, and 1 neighbour": secure_gossip,
        "gossip | reads messages": GOSSIP,
        "single site, without privacy |": ALONE,
        "single site, private | reads messages": ALONE_PRIVATE,
    }
    tasks = ("digits-by-class", "breast-cancer")
    yield from claims_on_two_tasks(SECURE_AGGREGATION, tasks, methods)
    digits = BenchmarkTable("digits-by-class")
    yield claim(
        SECURE_AGGREGATION,
        "At epsilon 1 it is {secure_gossip}%, against {secure_sum}% for secure aggregation over "
        "all sites and {gossip}% for gossip.",
        secure_gossip=digits.accuracy(secure_gossip, 1.0),
        secure_sum=digits.accuracy(secure_sum, 1.0),
        gossip=digits.accuracy(GOSSIP, 1.0),
    )


def claims_on_two_tasks(
    page: str, tasks: tuple[str, str], methods: Mapping[str, str]
) -> Iterator[Claim]:
    """Yield the rows of a page's table of two benchmark tasks, at epsilon 1 and 4.

    Parameters
    ----------
    page
        The page.
    tasks
        Names of the tasks.
    methods
        Methods of the benchmark, by the first cells of the page's rows.
    """
    first, second = (BenchmarkTable(task) for task in tasks)
    for row, method in methods.items():
        yield claim(
            page,
            f"| {row} | {{first_at_1}} | {{first_at_4}} | {{second_at_1}} | {{second_at_4}} |",
            first_at_1=first.accuracy(method, 1.0),
            first_at_4=first.accuracy(method, 4.0),
            second_at_1=second.accuracy(method, 1.0),
            second_at_4=second.accuracy(method, 4.0),
        )


def written(page: str, text: str, numbers: Mapping[str, str]) -> str:
    """Return a page with these numbers in place of those that it has, its lines as they are.

    Parameters
    ----------
    page
        Text of the page.
    text, numbers
        As of a `Claim`.

    Raises
    ------
    LookupError
        If the text stands there not exactly once.
    """
    names = re.findall(r"\{(\w+)\}", text)
    between_numbers = re.split(r"\{\w+\}", text)
    pattern = f"({NUMBER})".join(map(_any_spacing, between_numbers))
    matches = list(re.finditer(pattern, page))
    if len(matches) != 1:
        raise LookupError(f"wanted once on the page: {text}")
    (match,) = matches
    parts = []
    end = 0
    for group, name in enumerate(names, start=1):
        parts += [page[end : match.start(group)], numbers[name]]
        end = match.end(group)
    return "".join([*parts, page[end:]])


def _any_spacing(text: str) -> str:
    """Return a pattern of a piece of text, whose lines may be wrapped anywhere."""
    return r"\s+".join(re.escape(word) for word in re.split(r"\s+", text))


def list_of_results() -> str:
    """Return a table of the committed results: their commands, days and commits."""
    lines = ["| command | on | commit |", "|---|---|---|"]
    for path in sorted(RESULTS.glob("*.json")):
        record = json.loads(path.read_text())
        if path.stem == "benchmark":
            lines += lines_of_benchmark(record["made"])
            continue
        command = f"dpmesh reproduce {record.get('experiment')}"
        if "program" in record:
            command = f"python -m {record['program']}"
        if "seeds" in record:
            command += f" --seeds {record['seeds']}"
        lines.append(f"| `{command}` | {record['date']} | {record['commit']} |")
    return "\n".join([*lines, ""])


def lines_of_benchmark(records: Mapping[str, Provenance]) -> list[str]:
    """Return the lines of the benchmark's tasks in the list of results.

    `records` has the settings of each task's run.
    """
    cells, _ = read_benchmark(RESULTS)
    lines = []
    for task, record in records.items():
        options = "".join(f" --epsilon {epsilon:g}" for epsilon in record["epsilons"])
        if record["records"] != "all":
            options += f" --records {record['records']}"
        options += f" --seeds {splits_of(cells, task)}"
        lines.append(
            f"| `dpmesh benchmark {task}{options}` | {record['date']} | {record['commit']} |"
        )
    return lines


def generated_files() -> Iterator[tuple[Path, str]]:
    """Yield the files of docs/results that follow from other results, and their contents."""
    yield RESULTS / "made.txt", list_of_results()
    cells, _ = read_benchmark(RESULTS)
    for task, table in paper_tables.tables(cells).items():
        yield RESULTS / f"{task}.md", f"{table}\n"


def main(check: bool) -> int:
    """Print what differs from the results, and write it unless `check`.

    Returns the number of differences, or 0 if they are written: the exit code of the program.
    """
    differences = 0
    for path, content in generated_files():
        if path.exists() and path.read_text() == content:
            continue
        differences += 1
        print(f"{path.name}: differs from the results")
        if not check:
            path.write_text(content)
    for quotation in claims():
        path = ROOT / quotation.page
        page = path.read_text()
        new_page = written(page, quotation.text, quotation.numbers)
        if new_page == page:
            continue
        differences += 1
        print(f"{quotation.page}: {quotation.text.format(**quotation.numbers)}")
        if not check:
            path.write_text(new_page)
    if check:
        return differences
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))

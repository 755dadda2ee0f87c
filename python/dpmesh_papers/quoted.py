"""Numbers that pages quote from committed results: write them into the pages, or compare.

A claim is a piece of a page with a name in braces for each number.
``python -m dpmesh_papers.quoted`` writes the numbers of today's results into the pages; with
``--check`` it only lists what differs.
"""

from __future__ import annotations

import json
import re
import sys
from typing import TypeAlias

import numpy as np

from dpmesh._epsilons import rounded_up
from dpmesh_papers import paper_tables
from dpmesh_papers._output import checkout
from dpmesh_papers._scaffold import Row, compared, kinds, only, pick, read
from dpmesh_papers.benchmark.cells import ALONE, ALONE_PRIVATE, MAJORITY, POOLED
from dpmesh_papers.benchmark.results import AS_MAJORITY, lines_of, shown, splits_of
from dpmesh_papers.benchmark.results import read as read_benchmark
from dpmesh_papers.demonstration import METHODS, means

ROOT = checkout()
NUMBER = r"(?:[\d.,]+(?: ± [\d.]+)?|[a-z ]+?)"
"""Or the words of a verdict."""
GOSSIP = "gradient descent by gossip"


def result(name: str, **wanted: object) -> Row:
    """Return the row of a committed result that has these values."""
    return only(read(ROOT / "docs" / "results" / f"{name}.csv"), **wanted)


Claims: TypeAlias = dict[tuple[str, str], dict[str, str]]
"""The numbers of each claim, by page and text."""


def claims() -> Claims:
    """Return all claims."""
    return (
        of_claims()
        | of_readme()
        | of_controllers()
        | of_allocation()
        | of_smoothing()
        | of_findings()
        | of_much_noise()
        | of_peers()
        | of_demo()
        | of_benchmark()
        | of_scattering()
        | of_goals()
        | of_pixels()
        | of_sums()
    )


def of_claims() -> Claims:
    """Return the claims on the papers, of the pages of claims and of findings."""
    regret = result("online-counterexample", dim=20, epsilon=0.2, rounds=1_000_000)
    svm = result("online-table1", epsilon=1.0, nodes=64)
    at_1 = {"epsilon": 1.0, "round": 200}
    quantized, floats, rival = (
        result("quantized-figure4", algorithm=name, **at_1)
        for name in ("quantized", "not quantized", "noise on gradients")
    )
    words = {"ahead": "behind", "behind": "ahead", "no clear difference": "not clearly ahead"}
    table = {"case": "convex", "nodes": 10, "noise": "paper"}
    shared = {"noise": "proved", "epsilon": 1.0}
    before, learned, random = (
        result("without-replacement-table2", method=name, **table)
        for name in ("fully collaborative", "Algorithm 1", "5 % at random")
    )
    baseline, learned_proved = (
        result("without-replacement-figure3", method=name, **shared)
        for name in ("with replacement", "Algorithm 1")
    )
    smoothed = [
        [
            result("federated-table2", sampling="uniform", epsilon=6, noise=noise, smoothing=s)
            for s in (0.0, 1.0, 2.0, 3.0)
        ]
        for noise in ("paper", "tight")
    ]
    secret, arrival = (
        result("online-allocated", nodes=64, batch=batch, sampling=name)
        for batch, name in ((7, "allocation"), (38, "arrival"))
    )
    papers, ruled = (
        result("without-replacement-allocated", step=name, sampling="allocation")
        for name in ("paper", "rule")
    )
    plain, best = ([f"{pick:.2f}" for pick in _plain_and_best(rows)] for rows in smoothed)
    online = _accuracy(svm)
    allocated = _accuracy(secret)
    bits = f"{floats['bits'] / quantized['bits']:.1f}"
    cost = rounded_up(learned["epsilon_proved"], 3)
    chance = f"{svm['chance']:.1f}"
    claimed = f"{svm['paper']:.2f}"
    quantizes = _percent(quantized)
    noises = _percent(rival)
    trusted = _released(baseline)
    ours_of_figure = _released(learned_proved)
    claims_page = {
        "| bound (45), epsilon 0.2, 1,000,000 rounds, 20 numbers | {printed} |": {
            "printed": f"{regret['printed']:,.0f}"
        },
        "| measured regret | {regret} |": {"regret": f"{regret['regret']:,.0f}"},
        "the paper's noise and learning rates | {ours}% |": {"ours": online},
        "| majority class | {chance}% |": {"chance": chance},
        "| RCV1, 64 nodes, epsilon 1, random allocation | {secret}% |": {"secret": allocated},
        "| quantized gossip | {ours}% |": {"ours": quantizes},
        "against messages of 64 bits a number | {saved} times |": {"saved": bits},
        "against messages of 32 bits a number | {saved} times |": {
            "saved": f"{floats['bits'] / quantized['bits'] / 2:.1f}"
        },
        "| noise on gradients, 64 bits a number | {rival}% |": {"rival": noises},
        "\n\nNoise on gradients is {verdict}.": {"verdict": words[compared(quantized, rival)]},
        "| at the paper's noise | {plain} | {smoothed} |": {
            "plain": plain[0],
            "smoothed": plain[1],
        },
        "needs by exact accounting | {needed} | {best} |": {"needed": best[0], "best": best[1]},
        "| all updates global, the paper's noise | {cost} | {before}% |": {
            "cost": cost,
            "before": f"{before['released']:.2f}",
        },
        "| learned controller (its decisions are not covered), the paper's noise | {cost} "
        "| {learned}% |": {"cost": cost, "learned": f"{learned['released']:.2f}"},
        "(its decisions are not covered) | 1 | {alone}% |": {"alone": ours_of_figure},
        "| SGD with replacement | 1 | {trusted}% |": {"trusted": trusted},
        "data-independent learning rates | 1 | {ruled}% |": {"ruled": _accuracy(ruled)},
    }
    findings_page = {
        "the paper's learning rates; the paper has {paper} | yes | {ours} |": {
            "paper": claimed,
            "ours": online,
        },
        "| majority-class baseline | | {chance} |": {"chance": chance},
        "data-independent learning rates | yes | {known} |": {"known": _accuracy(arrival)},
        "random allocation | yes | {secret} |": {"secret": allocated},
        "(`quantized-figure4`, {seeds} seeds)": {"seeds": str(quantized["seeds"])},
        "algorithm, {saved} times fewer bits than messages of 64 bits a number | yes | {ours} |": {
            "saved": bits,
            "ours": quantizes,
        },
        "| noise on gradients, 64 bits a number | yes | {rival} |": {"rival": noises},
        "Noise on gradients is {verdict},": {"verdict": words[compared(quantized, rival)]},
        "Theorem 1 charges {charged} for the first run": {
            "charged": rounded_up(quantized["paper_epsilon"], 3)
        },
        "the paper has 78.4 and 83.6 | yes | {plain} | {best} |": {
            "plain": plain[0],
            "best": plain[1],
        },
        "by exact accounting | yes | {plain} | {best} |": {"plain": best[0], "best": best[1]},
        **{
            f"{name} | {{cost}} | {proved} | {{reached}} |": {
                "cost": cost,
                "reached": f"{row['released']:.2f}",
            }
            for name, proved, row in (
                ("all updates global; the paper has 76.8", "yes", before),
                ("learned controller; the paper has 80.5", "no", learned),
                ("5% of the updates global, at random", "yes", random),
            )
        },
        "| SGD with replacement, the same images at several nodes | 1 | yes | {trusted} |": {
            "trusted": trusted
        },
        "| Algorithm 1, the same images at several nodes | 1 | no | {own} |": {
            "own": ours_of_figure
        },
        "global, the paper's learning rates | 1 | yes | {papers} |": {"papers": _accuracy(papers)},
        "| the same, data-independent learning rates | 1 | yes | {ruled} |": {
            "ruled": _accuracy(ruled)
        },
    }
    pages = {"docs/claims.md": claims_page, "docs/findings.md": findings_page}
    return {(page, text): numbers for page in pages for text, numbers in pages[page].items()}


README_ROWS = {
    "digits, non-i.i.d., 10 sites": "digits-by-class",
    "Covertype, 4 sites": "covertype",
    "MNIST, scattering features, 10 nodes": "mnist-10-scattering",
}
"""The tasks of README's table of results."""

AGGREGATED = "secure sum, momentum, first stage"
CENTRAL = "central DP-SGD, momentum"
README_MODELS = {
    "the server is trusted | added once, by the server": CENTRAL,
    "| added once in total: each site adds a share": AGGREGATED,
    "in total little more than once": "gossip, noise between partners",
    "| reads all messages | added by every node to each message": GOSSIP,
}
"""The rows of README's table of threat models, and those of the benchmark."""


def of_readme() -> Claims:
    """Return README's threat models and results, from the benchmark."""
    cells, _ = read_benchmark(ROOT / "docs" / "results")

    def cell(task: str, method: str, epsilon: float) -> str:
        line = next(line for line in lines_of(cells, task) if line.method == method)
        chance = next(line for line in lines_of(cells, task) if line.method == MAJORITY).first
        return shown(line.at(epsilon), chance)

    claims: Claims = {}
    for start, method in README_MODELS.items():
        value = cell("digits-by-class", method, 1.0)
        claims["README.md", f"{start} | {{value}}% |"] = {"value": value}
    for name, task in README_ROWS.items():
        claims[
            "README.md", f"| {name} | {{majority}} | {{alone}} | {{e1}} | {{e4}} | {{central}} |"
        ] = {
            "majority": cell(task, MAJORITY, 1.0).partition(" ")[0],
            "alone": cell(task, ALONE, 1.0).partition(" ")[0],
            "e1": cell(task, AGGREGATED, 1.0),
            "e4": cell(task, AGGREGATED, 4.0),
            "central": cell(task, CENTRAL, 1.0),
        }
    return claims


def of_demo() -> Claims:
    """Return the claims on the demo, of the pages of claims and of findings."""
    rows = means(read(ROOT / "docs" / "results" / "demo.csv"))
    split, alike = kinds(rows, "sites")
    shown = {}
    for name in METHODS[:2]:
        for row in pick(rows, sites=split, method=name):
            shown[f"{name[:6].strip()}{row['epsilon']:g}"] = _with(row["accuracy"], row["interval"])
    secure, _, alone = (pick(rows, sites=alike, method=name) for name in METHODS)
    gains = [
        federated["accuracy"] - single["accuracy"]
        for federated, single in zip(secure, alone, strict=True)
    ]
    return {
        ("docs/claims.md", "| secure aggregation | {secure1}% | {secure2}% |"): shown,
        ("docs/claims.md", "| gossip (decentralized) | {gossip1}% | {gossip2}% |"): shown,
        **{
            (
                "docs/findings.md",
                " | ".join([f"| {name}", *(f"{{{key}{epsilon}}}" for epsilon in (1, 2, 4, 8))]),
            ): shown
            for name, key in (
                ("secure aggregation | a server colluding with one site", "secure"),
                ("gossip | reads all messages", "gossip"),
            )
        },
        (
            "docs/claims.md",
            "the federation gains {low} to {high} points over a\nsingle-site model",
        ): {"low": f"{min(gains):.1f}", "high": f"{max(gains):.1f}"},
    }


def of_controllers() -> Claims:
    """Return the claims of the page on the paper without replacement."""
    page = "docs/algorithms/without_replacement.md"
    claims = {}
    names = {
        'always global ("fully collaborative")': "fully collaborative",
        "learned, as in the paper": "Algorithm 1",
        "learned from public information": "deep Q, public",
        "random, 5% global": "5 % at random",
        "every 20th round": "every 20th round",
    }
    for name, method in names.items():
        table = {"case": "convex", "nodes": 10, "method": method}
        at_its, at_1 = (
            result("without-replacement-table2", noise=noise, **table)
            for noise in ("paper", "proved")
        )
        printed = " "
        if at_its["paper"] is not None:
            printed = f" {at_its['paper']:.2f} "
        ours = f"{at_its['released']:.2f} ± {at_its['released_interval']:.2f}"
        at_epsilon_1 = f"{at_1['released']:.0f} ± {at_1['released_interval']:.0f}"
        text = f"| {name} |{printed}| {{ours}} | {{proved}} |"
        claims[page, text] = {"ours": ours, "proved": at_epsilon_1}
    methods = {
        "baseline": "with replacement",
        "every": "every 20th round",
        "random": "5 % at random",
        "global_": "fully collaborative",
        "learned": "Algorithm 1",
    }
    paper, proved = (
        {
            key: result("without-replacement-figure3", method=method, epsilon=1.0, noise=noise)
            for key, method in methods.items()
        }
        for noise in ("paper", "proved")
    )
    shown = {key: _with(row["released"], row["released_interval"]) for key, row in proved.items()}
    learned = shown.pop("learned")
    costs = _costs(paper)
    text = (
        "(10 seeds, half of the 95% interval) it reaches {baseline}, every 20th round {every}, "
        "random\ndecisions {random} and full collaboration {global_}, all proved."
    )
    claims[page, text] = shown
    claims[page, "Algorithm 1 reaches {learned}; its controller looks"] = {"learned": learned}
    reached = {
        f"{key}_at": _with(paper[key]["released"], paper[key]["released_interval"])
        for key in ("baseline", "learned")
    }
    text = (
        "the baseline costs {baseline} and reaches\n{baseline_at}, Algorithm 1 costs {learned} and "
        "reaches {learned_at}:"
    )
    claims[page, text] = {**costs, **reached}
    text = "where the order turns round: {baseline} against {learned} ("
    means = {key: f"{proved[key]['released']:.1f}" for key in ("baseline", "learned")}
    claims[page, text] = means
    ahead = 0
    figures = {
        1: "Covertype, convex",
        2: "Covertype, strongly convex",
        3: "MNIST, convex",
        4: "MNIST, strongly convex",
    }
    for number, problem in figures.items():
        rows = {
            key: result(
                f"without-replacement-figure{number}", method=method, epsilon=1.0, noise="proved"
            )
            for key, method in methods.items()
        }
        cells = " | ".join(f"{{{key}}}" for key in methods)
        text = f"| {number}: {problem} | {cells} |"
        claims[page, text] = {
            key: _with(row["released"], row["released_interval"]) for key, row in rows.items()
        }
        with_interval = {
            key: {**row, "interval": row["released_interval"]} for key, row in rows.items()
        }
        verdict = compared(with_interval["baseline"], with_interval["learned"], "released")
        ahead += verdict == "ahead"
    text = "On {ahead} of the four SGD with replacement is clearly ahead of Algorithm 1."
    claims[page, text] = {"ahead": str(ahead)}
    text = "SGD with replacement pays {baseline}, Algorithm 1 pays {learned} |"
    claims[page, text] = costs
    text = (
        "noise is {with_one} points from the paper on average over\nthe ten cells; without one, "
        "{without}. What"
    )
    claims[page, text] = {"with_one": _gap_of_table2(""), "without": _gap_of_table2("-intercept")}
    return claims


def of_allocation() -> Claims:
    """Return the claims on secret mini-batches, compared with the baseline."""
    says = {
        name: compared(
            result("without-replacement-allocated", step=name, sampling="allocation"),
            result("without-replacement-allocated", step=name, sampling="replaced"),
        )
        for name in ("paper", "rule")
    }
    says = {
        step: verdict.replace("no clear difference", "inconclusive")
        for step, verdict in says.items()
    }
    text = (
        "by 95% intervals: with the paper's steps {paper},\n"
        "with data-independent learning rates {rule}."
    )
    return {("docs/algorithms/without_replacement.md", text): says}


def _gap_of_table2(kind: str) -> str:
    """Return how far full collaboration at the paper's noise is from the paper, on average."""
    rows = read(ROOT / "docs" / "results" / f"without-replacement-table2{kind}.csv")
    shown = pick(rows, method="fully collaborative", noise="paper")
    return f"{np.mean([abs(row['released'] - row['paper']) for row in shown]):.1f}"


def _costs(paper: dict[str, Row]) -> dict[str, str]:
    """Return what a record pays at the paper's noise for epsilon 1."""
    return {key: rounded_up(paper[key]["epsilon_proved"], 3) for key in ("baseline", "learned")}


def of_smoothing() -> Claims:
    """Return the claims on the federated paper's Table 2."""
    rows = read(ROOT / "docs" / "results" / "federated-table2.csv")
    gains = {
        noise: [
            _gain(pick(rows, noise=noise, sampling=sampling, epsilon=epsilon))
            for sampling in ("uniform", "poisson")
            for epsilon in (6, 7, 8, 9)
        ]
        for noise in ("paper", "tight")
    }
    at_6 = sorted(gains["paper"][index] for index in (0, 4))
    gap = {
        sampling: np.mean(
            [
                row["by_protocol"] - row["paper"]
                for row in pick(rows, sampling=sampling, noise="paper")
                if isinstance(row["smoothing"], float)
            ]
        )
        for sampling in ("uniform", "poisson")
    }
    most = f"{max(gains['tight']):.1f}"
    shares = {
        sampling: f"{100 * _share_of_noise(rows, sampling):.0f}"
        for sampling in ("uniform", "poisson")
    }
    return {
        (
            "docs/algorithms/federated.md",
            "exact accounting needs {uniform}% of this standard\n"
            "deviation with uniform sampling, and {poisson}% with Poisson sampling.",
        ): shares,
        (
            "docs/algorithms/federated.md",
            "smoothing raises\nthe accuracy by {low} to {high} points",
        ): {"low": f"{at_6[0]:.1f}", "high": f"{at_6[1]:.1f}"},
        ("docs/algorithms/federated.md", "smoothing gains at\nmost {most} points"): {"most": most},
        (
            "docs/findings.md",
            "we are {below} points\nbelow the paper on average with uniform sampling, {above} "
            "above with Poisson. At the noise that epsilon needs\nsmoothing gains at most {most}.",
        ): {"below": f"{-gap['uniform']:.1f}", "above": f"{gap['poisson']:.1f}", "most": most},
    }


def _share_of_noise(rows: list[Row], sampling: str) -> float:
    """Return the noise that exact accounting needs at epsilon 6, over the paper's."""
    paper, tight = (
        only(rows, sampling=sampling, epsilon=6, smoothing=0.0, noise=noise)["noise_std"]
        for noise in ("paper", "tight")
    )
    return float(tight / paper)


def of_much_noise() -> Claims:
    """Return the claims of the federated page on a network under much noise."""
    rows = read(ROOT / "docs" / "results" / "federated-figure4.csv")
    plain, smoothed = (
        [
            row["accuracy"]
            for row in pick(rows, noise_to_sensitivity=3.0, step_size=0.125, model=model)
        ]
        for model in ("DP-Fed", "DP-Fed-LS")
    )
    text = (
        "After the last\nround the network has {smoothed}% with smoothing and {plain}% without; "
        "its best round without smoothing has {best}%"
    )
    numbers = {"smoothed": smoothed[-1], "plain": plain[-1], "best": max(plain)}
    shown = {name: f"{number:.1f}" for name, number in numbers.items()}
    return {("docs/algorithms/federated.md", text): shown}


def _gain(rows: list[Row]) -> float:
    """Return the accuracy that the best fixed smoothing adds."""
    fixed = {row["smoothing"]: row["accuracy"] for row in rows if row["smoothing"] != "chosen"}
    return float(max(fixed.values()) - fixed[0.0])


def of_findings() -> Claims:
    """Return numbers in the sentences of the page of findings."""
    page = "docs/findings.md"
    paper = {
        key: result("without-replacement-figure3", method=name, epsilon=1.0, noise="paper")
        for key, name in (("baseline", "with replacement"), ("learned", "Algorithm 1"))
    }
    text = (ROOT / "docs" / "results" / "federated-figureS9.txt").read_text()
    allowed = re.search(r"exact accounting allows (\d+)\.", text)
    assert allowed is not None
    return {
        (page, "has epsilon {baseline} with a method that has epsilon {learned} ("): _costs(paper),
        (page, "exact accounting allows {allowed} ("): {"allowed": allowed[1]},
        ("docs/algorithms/federated.md", "| exact accounting allows {allowed} rounds ("): {
            "allowed": allowed[1]
        },
    }


def of_scattering() -> Claims:
    """Return the accuracy of an estimator on MNIST."""
    accuracies = [
        float(row["accuracy"]) for row in read(ROOT / "docs" / "results" / "scattering.csv")
    ]
    text = (
        "it learns {accuracy}% of the test images (mean of {divisions} divisions into sites, "
        "standard deviation {spread})"
    )
    numbers = {
        "accuracy": f"{np.mean(accuracies):.1f}",
        "spread": f"{np.std(accuracies, ddof=1):.2f}",
    }
    return {("docs/estimator_recipes.md", text): {**numbers, "divisions": str(len(accuracies))}}


def of_peers() -> Claims:
    """Return how far another library's mean accuracies are above ours."""
    rows = read(ROOT / "docs" / "results" / "beside-pfl.csv")
    gaps = [
        theirs["accuracy"] - ours["accuracy"]
        for ours, theirs in zip(*[iter(rows)] * 2, strict=True)
    ]
    text = "pfl's mean accuracies are\n{least} to {most} points higher."
    numbers = {"least": f"{max(0, min(gaps)):.1f}", "most": f"{max(gaps):.1f}"}
    return {("docs/algorithms/federated.md", text): numbers}


def of_goals() -> Claims:
    """Return what an estimator learns, and how long it takes."""
    text = (
        "a fit of 40,000 records with 54 columns takes {rule} processor seconds, with the columns "
        "alone {columns}."
    )
    fit = "fit of 40,000 x 54, "
    whats = {"rule": "features by the rule", "columns": "columns"}
    numbers = {
        key: f"{result('goals', what=fit + what)['mean']:.1f}" for key, what in whats.items()
    }
    digits, cancer = (
        result("goals", what=f"{task}, secure sum") for task in ("digits-by-class", "breast-cancer")
    )
    more = (
        "under secure aggregation at epsilon 1, digits by class are learned to {digits}% "
        "and breast\n"
        "cancer to {cancer}% ("
    )
    rows = {"digits": digits, "cancer": cancer}
    learned = {key: _with(row["mean"], row["interval"]) for key, row in rows.items()}
    return {
        ("docs/learning_rates.md", text): numbers,
        ("docs/privacy/first_stage.md", more): learned,
    }


def of_benchmark() -> Claims:
    """Return the claims on digits by class in the benchmark."""
    cells, _ = read_benchmark(ROOT / "docs" / "results")
    lines = {line.method: line for line in lines_of(cells, "digits-by-class")}
    chance = lines[MAJORITY].first

    def at(method: str, epsilon: float) -> str:
        accuracy = shown(lines[method].at(epsilon), chance)
        return accuracy.replace(AS_MAJORITY, "as the majority class")

    page = "docs/privacy/random_allocation_accuracy.md"
    named = {
        "online learning": "online learning",
        "online learning, allocated": "online learning, allocated",
        "SGD without replacement, 5% of the updates global": "SGD without replacement",
        "SGD without replacement, allocated, all updates global": (
            "SGD without replacement, allocated"
        ),
        "gradient descent by gossip, full batches": GOSSIP,
    }
    claims: Claims = {
        (page, f"| {name} | {{at_1}} | {{at_4}} |"): {"at_1": at(row, 1.0), "at_4": at(row, 4.0)}
        for name, row in named.items()
    }
    numbers = {
        "gossip": at("gradient descent by gossip", 4.0),
        "ring": at("gradient descent on a ring", 4.0),
        "mixed": at("Muffliato on a ring, 8 mixings", 4.0),
        "meetings": at("gradient descent at meetings", 4.0),
    }
    claims["docs/claims.md", "at epsilon 4 reaches {ring}%, and {mixed}% with 8 mixings"] = numbers
    adversaries = {
        "complete graph | reads all messages": "gossip",
        "ring, 8 mixings of each message | reads all messages": "mixed",
        "meetings | any single node ([weaker adversary](privacy/views.md))": "meetings",
        "ring | reads all messages": "ring",
    }
    for row, key in adversaries.items():
        claims["docs/findings.md", f"| {row} | {{{key}}} |"] = {key: numbers[key]}
    return claims


def of_pixels() -> Claims:
    """Return the findings on images: pixels and scattering features."""
    names = "secure sum, momentum, first stage", "gossip, noise between partners", GOSSIP
    rows = {name: name for name in names} | {"single node, without privacy": ALONE}
    return _beside("docs/findings.md", ("mnist-10", "mnist-10-scattering"), rows)


def of_sums() -> Claims:
    """Return the accuracy of secure aggregation beside other rows of the benchmark."""
    one_sum = "secure sums | server and 1 site"
    neighbours = "secure gossip | reads sums, and 1 neighbour"
    gossip = "gossip | reads messages"
    rows = {
        "centralized, without privacy |": POOLED,
        "central DP-SGD | reads models": "central DP-SGD, all records in a batch",
        "secure sums, momentum | server and 1 site": "secure sum, momentum",
        one_sum: "secure sum, 1 site may collude",
        "federated | reads models": "federated",
        "secure sums | server and a third of the sites": "secure sum, a third may collude",
        neighbours: "secure gossip, 1 neighbour may collude",
        gossip: GOSSIP,
        "single site, without privacy |": ALONE,
        "single site, private | reads messages": ALONE_PRIVATE,
    }
    page = "docs/secure_aggregation_accuracy.md"
    claims = _beside(page, ("digits-by-class", "breast-cancer"), rows)
    digits = [claims[page, _row(row)] for row in (neighbours, gossip, one_sum)]
    text = (
        "At epsilon 1 it is {own}%, against {sums}% for one secure sum of all sites and {gossip}% "
        "for gossip."
    )
    values = (numbers["one_1"] for numbers in digits)
    return claims | {(page, text): dict(zip(("own", "gossip", "sums"), values, strict=True))}


def _row(name: str) -> str:
    return f"| {name} | {{one_1}} | {{one_4}} | {{two_1}} | {{two_4}} |"


def _beside(page: str, tasks: tuple[str, str], rows: dict[str, str]) -> Claims:
    """Return rows of two benchmark tasks at epsilon 1 and 4, by the names that a page has."""
    cells, _ = read_benchmark(ROOT / "docs" / "results")
    lines_of_tasks = [{line.method: line for line in lines_of(cells, task)} for task in tasks]
    return {
        (page, _row(name)): {
            f"{which}_{epsilon}": shown(lines[row].at(epsilon), lines[MAJORITY].first)
            for which, lines in zip(("one", "two"), lines_of_tasks, strict=True)
            for epsilon in (1, 4)
        }
        for name, row in rows.items()
    }


def _plain_and_best(rows: list[Row]) -> tuple[float, float]:
    return rows[0]["accuracy"], max(row["accuracy"] for row in rows[1:])


def _accuracy(row: Row) -> str:
    name = "interval"
    if name not in row:
        name = "accuracy_interval"
    return _with(row["accuracy"], row[name])


def _percent(row: Row) -> str:
    return _with(100 * row["accuracy"], 100 * row["interval"])


def _released(row: Row) -> str:
    return _with(row["released"], row["released_interval"])


def _with(mean: float, half: float) -> str:
    return f"{mean:.1f} ± {half:.1f}"


def written(page: str, text: str, numbers: dict[str, str]) -> str:
    """Return a page with these numbers in place of those that it has, its lines as they are.

    Raises
    ------
    LookupError
        If the text stands there not exactly once.
    """
    names = re.findall(r"\{(\w+)\}", text)
    pieces = [_any_spacing(piece) for piece in re.split(r"\{\w+\}", text)]
    matches = list(re.finditer(f"({NUMBER})".join(pieces), page))
    if len(matches) != 1:
        raise LookupError(f"wanted once on the page: {text}")
    parts, end = [], 0
    for group, name in enumerate(names, start=1):
        parts += [page[end : matches[0].start(group)], numbers[name]]
        end = matches[0].end(group)
    return "".join([*parts, page[end:]])


def _any_spacing(piece: str) -> str:
    """Return a pattern of a piece of text, whose lines may be wrapped anywhere."""
    return r"\s+".join(re.escape(word) for word in re.split(r"\s+", piece))


def list_of_results() -> str:
    """Return a table of the committed results: their commands, days and commits."""
    lines = ["| command | on | commit |", "|---|---|---|"]
    for path in sorted((ROOT / "docs" / "results").glob("*.json")):
        record = json.loads(path.read_text())
        if path.stem == "benchmark":
            cells = read_benchmark(path.parent)[0]
            for task, task_record in record["made"].items():
                options = "".join(f" --epsilon {epsilon:g}" for epsilon in task_record["epsilons"])
                if task_record["records"] != "all":
                    options += f" --records {task_record['records']}"
                options += f" --seeds {splits_of(cells, task)}"
                command = f"dpmesh benchmark {task}{options}"
                lines.append(f"| `{command}` | {task_record['date']} | {task_record['commit']} |")
            continue
        if "program" in record:
            command = f"python -m {record['program']}"
        else:
            command = f"dpmesh reproduce {record['experiment']}"
        if "seeds" in record:
            command += f" --seeds {record['seeds']}"
        lines.append(f"| `{command}` | {record['date']} | {record['commit']} |")
    return "\n".join([*lines, ""])


def main(check: bool) -> int:
    """Write or compare all pages; return how many claims differ."""
    different = 0
    list_file = ROOT / "docs" / "results" / "made.txt"
    if not list_file.exists() or list_file.read_text() != list_of_results():
        different += 1
        print(f"{list_file.name}: differs from the results")
        if not check:
            list_file.write_text(list_of_results())
    cells, _ = read_benchmark(ROOT / "docs" / "results")
    for task, table in paper_tables.tables(cells).items():
        path = ROOT / "docs" / "results" / f"{task}.md"
        if not path.exists() or path.read_text() != f"{table}\n":
            different += 1
            print(f"{path.name}: differs from the benchmark")
            if not check:
                path.write_text(f"{table}\n")
    for (name, text), numbers in claims().items():
        page = (ROOT / name).read_text()
        new = written(page, text, numbers)
        if new != page:
            different += 1
            print(f"{name}: {text.format(**numbers)}")
            if not check:
                (ROOT / name).write_text(new)
    return different if check else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))

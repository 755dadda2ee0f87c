"""Test records like a site's own: dealt by label, and judged for every run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn")

import dpmesh as dm
from dpmesh.demo import problems
from dpmesh.experiments import Result
from dpmesh.experiments.summary import verdict
from dpmesh.run.populations import owners_by_label


@pytest.mark.parametrize("seed", range(20))
def test_test_records_are_dealt_by_the_shares_of_their_labels(seed: int) -> None:
    draw = np.random.default_rng(seed)
    sites, classes = int(draw.integers(1, 8)), int(draw.integers(1, 5))
    labels = draw.integers(classes, size=int(draw.integers(1, 300)))
    owners = draw.integers(sites, size=len(labels))
    tested = draw.integers(classes + 1, size=int(draw.integers(0, 200)))  # one was never seen
    dealt = owners_by_label(labels, owners, tested, sites=sites)
    assert dealt.shape == tested.shape
    for label in range(classes + 1):
        records, trained = tested == label, labels == label
        count = int(records.sum())
        for site in range(sites):
            share = (owners[trained] == site).mean() if trained.any() else 1 / sites
            assert abs((dealt[records] == site).sum() - share * count) <= 1 + 1e-9


def test_targets_of_a_regression_are_dealt_by_their_size() -> None:
    draw = np.random.default_rng(0)
    targets = draw.uniform(0, 1, 1000)
    owners = (targets > 0.5).astype(np.int64)
    tested = draw.uniform(0, 1, 400)
    dealt = owners_by_label(targets, owners, tested, sites=2, by_value=True)
    assert np.mean(dealt == (tested > 0.5)) > 0.95


@pytest.fixture(scope="module")
def run() -> dm.Run:
    """Ten sites with two of ten digits each."""
    problem = next(iter(problems(dm.Key.seeded(0)).values()))
    choice = dm.defaults.choose(
        dm.defaults.Sizes.of(problem), epsilon=8.0, delta=1e-5, algorithm="secure"
    )
    return dm.simulate(
        choice.algorithm,
        problem,
        choice.topology,
        rounds=choice.rounds,
        key=dm.Key.seeded(1),
        delta=1e-5,
        metrics=[],
    )


def test_a_run_is_judged_on_records_like_each_site_has(run: dm.Run, tmp_path: Path) -> None:
    population = run.population
    assert population is not None
    assert population.tested.sum() == run.problem.test.records
    assert population.single_sites.mean() > 0.95  # two digits are easy to tell apart
    assert run.baselines is not None
    assert run.baselines.single_sites.mean() < 0.3  # of all ten it knows two
    assert "each site's own records" in str(run)
    run.save(tmp_path)
    saved = Result.load(tmp_path)
    assert saved.population is not None
    assert saved.population.as_dict() == population.as_dict()
    assert str(saved) == str(run)
    several = verdict([saved] * 6)
    assert several is not None
    assert several.no_site_gains
    assert "do not join for these" in several.sentence
    names = [row.name for row in several.rows_by_population]
    assert names[:3] == ["all sites' records", "each site's own records", "worst-served site"]


def test_models_of_nodes_are_judged_at_their_own_node() -> None:
    problem = next(iter(problems(dm.Key.seeded(0)).values()))
    dm.baselines.compute(problem)
    draw = np.random.default_rng(0)
    models = draw.normal(size=(problem.nodes, problem.dim))
    each = dm.baselines.population_of(problem, models)
    for node in (0, 7):
        one = dm.baselines.population_of(problem, models[node : node + 1])
        assert each.federation[node] == one.federation[node]

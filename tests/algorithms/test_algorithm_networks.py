"""Every algorithm of the registry trains a small network, in JAX and in PyTorch."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from federated_parts import changed
from problems import NETWORKS, network_records
from twins import shorten

import dpmesh as dm
from dpmesh import topology
from dpmesh._ragged import Walks
from dpmesh.algorithms import SecureAggregation
from dpmesh.algorithms.registry import NODES, RECORDS, REGISTRY, ROUNDS
from dpmesh.audit import couple
from dpmesh.keys import Key
from dpmesh.privacy.views import OneNode
from dpmesh.problems.dense import DenseProblem, as_ragged, microbatches
from dpmesh.run import StopRun
from dpmesh.run.failing import carrier_for

DELTA = 1e-5
EXAMPLES: dict[str, Any] = {entry.name: entry.example for entry in REGISTRY if entry.learns}
EXAMPLES["federated, control variates"] = changed(
    EXAMPLES["federated"], epochs=None, steps=3, control_variates=True
)

UPDATES = ("federated", "federated, control variates")
"""They clip updates, not gradients of single records."""

each = pytest.mark.parametrize("name", EXAMPLES)
in_both = pytest.mark.parametrize("kind", NETWORKS)


@cache  # which compiles once
def make(kind: str, *, extreme: bool = False, **options: Any) -> Any:
    return NETWORKS[kind](*network_records(extreme=extreme), regularization=0.1, **options)


def algorithm_for(name: str, problem: Any) -> Any:
    """The registry's example, with what a network needs."""
    algorithm = EXAMPLES[name]
    if isinstance(algorithm, dm.SecureGossip):
        return replace(algorithm, dim=problem.dim)
    if isinstance(secure := getattr(algorithm, "combination", None), SecureAggregation):
        return replace(algorithm, combination=replace(secure, dim=problem.dim))
    if isinstance(algorithm, dm.WithReplacement):
        return replace(algorithm, clipping_norm=0.5)
    if isinstance(algorithm, dm.WithoutReplacement):
        return replace(
            algorithm, clipping_norm=0.5, controller=dm.algorithms.controllers.AlwaysGlobal()
        )
    return algorithm


def network_of(algorithm: Any) -> Any:
    return topology.ring(NODES) if algorithm.communication == "gossip" else None


def run(algorithm: Any, problem: Any, **options: Any) -> dm.Run:
    arguments = {"rounds": ROUNDS, "key": Key.seeded(0), "delta": DELTA, "metrics": []} | options
    return dm.simulate(algorithm, problem, network_of(algorithm), **arguments)


def stop_after_three(rounds: int, values: Any) -> None:
    if rounds == 3:
        raise StopRun


@pytest.mark.slow
@in_both
@each
def test_it_trains_a_network_by_its_plan_to_the_same_bits(
    name: str, kind: str, tmp_path: Any
) -> None:
    problem = make(kind)
    algorithm = algorithm_for(name, problem)
    result, parts = run(algorithm, problem), problem.for_nodes(np.arange(NODES))
    planned = algorithm.plan(ROUNDS, problem).cost(DELTA).epsilon
    assert 0 < result.privacy.epsilon <= planned
    assert result.parameters.dtype == np.float32
    assert result.parameters.shape[1] == problem.dim
    assert np.isfinite(result.parameters).all()
    run(
        algorithm,
        parts,
        checkpoint=tmp_path / "run",
        metrics=dm.Metrics([], callback=stop_after_three),
    )
    again = run(algorithm, parts, checkpoint=tmp_path / "run")
    np.testing.assert_array_equal(again.parameters, result.parameters)
    np.testing.assert_array_equal(again.released, result.released)


@in_both
@each
def test_an_extreme_record_moves_no_release_further_than_declared(name: str, kind: str) -> None:
    problem = make(kind)
    algorithm = algorithm_for(name, problem)
    found = audited(algorithm, problem, make(kind, extreme=True))
    assert not found.violated, found
    assert any(movement.distance > 0 for movement in found.movements)


def audited(algorithm: Any, problem: Any, neighbor: Any) -> Any:
    rounds = ROUNDS
    if isinstance(algorithm, dm.WithReplacement):  # whose batches have the record in them
        algorithm = replace(algorithm, batch_size=RECORDS)
        rounds = NODES * algorithm.turns_of_a_node
    elif isinstance(algorithm, dm.OnlineLearning):
        options = {"batch_size": 6, "clipping_norm": 0.1, "projection": "none", "delta": DELTA}
        algorithm, rounds = replace(algorithm, **options), 2
    elif isinstance(algorithm, dm.QuantizedGossip):
        algorithm = replace(algorithm, sample_size=RECORDS)
    carrier = carrier_for(algorithm, problem, network_of(algorithm), None, Key.seeded(0))
    return couple(algorithm, problem, neighbor, carrier, rounds=rounds, key=Key.seeded(3))


class ClipsTheMean(DenseProblem):
    """Clips what a batch adds up to instead of each record: a mistake that learns well."""

    def gradient_sum(self, params, batches, *, clipping_norm, norm="l2"):
        sums = super().gradient_sum(params, batches, clipping_norm=None, norm=norm)
        counts = np.diff(as_ragged(batches)[0])
        return np.stack([shorten(g, n * clipping_norm) for g, n in zip(sums, counts, strict=True)])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in UPDATES])
def test_an_audit_finds_clipping_that_is_not_of_single_records(name: str) -> None:
    pair = [copy(make("jax", extreme=extreme)) for extreme in (False, True)]
    for problem in pair:
        object.__setattr__(problem, "__class__", type("W", (ClipsTheMean, type(problem)), {}))
    assert audited(algorithm_for(name, pair[0]), *pair).violated


@in_both
@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("clipping_norm", [None, 0.4])
def test_sums_equal_those_of_records_one_by_one(kind: str, norm: Any, clipping_norm: Any) -> None:
    problem = make(kind, nodes_at_once=2, records_at_once=4)
    rng = np.random.default_rng(0)
    params = rng.normal(size=(6, problem.dim)).astype(np.float32)
    lengths = [3, 0, 9, 1, 12, 4]
    batches = np.cumsum([0, *lengths]), rng.permutation(48)[: sum(lengths)]
    found = problem.gradient_sum(params, batches, clipping_norm=clipping_norm, norm=norm)
    for row, w in enumerate(params):
        expected = np.zeros(problem.dim)
        for record in batches[1][batches[0][row] : batches[0][row + 1]]:
            g = problem.gradient(w[np.newaxis], np.array([[record]]))[0] - np.float32(0.1) * w
            if clipping_norm is not None:
                g = shorten(g, clipping_norm, 1 if norm == "l1" else 2)
            expected += g
        np.testing.assert_allclose(found[row], expected, rtol=1e-3, atol=1e-4)
    with pytest.raises(ValueError, match="norm: wanted "):
        problem.gradient_sum(params, batches, clipping_norm=1.0, norm="max")


@pytest.mark.slow
@in_both
def test_training_with_other_terms_equals_steps_one_by_one(kind: str) -> None:
    problem = make(kind)
    more = np.random.default_rng(1).normal(size=(2, problem.dim)).astype(np.float32)
    start = problem.initial(Key.seeded(0))
    batches = np.arange(0, 25, 4), np.arange(24)
    walks = Walks(np.array([0, 4, 6]), batches)
    terms = {"proximal": 0.7, "correction": more}
    found = problem.local_training(start, walks, step_size=0.5, radius=0.8, **terms)
    for node in range(2):
        update = np.zeros_like(start)
        for step in range(walks.steps[node], walks.steps[node + 1]):
            g = problem.gradient(start + update, np.arange(4 * step, 4 * step + 4)[np.newaxis])
            update = shorten((update - 0.5 * (g + 0.7 * update + more[node]))[0], 0.8)[np.newaxis]
        np.testing.assert_allclose(found[node], update[0], rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@in_both
def test_a_rows_bits_depend_on_no_other_row(kind: str) -> None:
    problem = make(kind, records_at_once=4)
    params = np.random.default_rng(0).normal(size=(NODES, problem.dim)).astype(np.float32)
    lengths = np.array([5, 1, 12, 3])
    starts, order = problem.full_batches
    batches = [order[starts[i] : starts[i] + n] for i, n in enumerate(lengths)]
    together = problem.gradient_sum(
        params, (np.cumsum([0, *lengths]), np.concatenate(batches)), clipping_norm=0.3
    )
    for row, batch in enumerate(batches):
        alone = problem.gradient_sum(params[row, None], batch[np.newaxis], clipping_norm=0.3)
        np.testing.assert_array_equal(alone[0], together[row])


def test_microbatches_hold_every_record_once() -> None:
    rng = np.random.default_rng(1)
    lengths = rng.integers(0, 20, 50)
    indptr = np.cumsum([0, *lengths])
    found: list[list[int]] = [[] for _ in lengths]
    for owners, indices, used in microbatches((indptr, np.arange(indptr[-1])), size=6, at_once=7):
        assert len(owners) <= 7
        assert indices.shape[1] <= 6
        for owner, some, mask in zip(owners, indices, used, strict=True):
            found[owner] += some[mask].tolist()
            assert set(some) <= set(range(indptr[owner], indptr[owner + 1]))
    assert np.concatenate(found).tolist() == list(range(indptr[-1]))


def test_what_rests_on_convexity_is_refused() -> None:
    problem, key = make("jax"), Key.seeded(0)
    for algorithm, message in (
        (dm.WithoutReplacement(batch_size=2), "clipping_norm: wanted a number, with AlwaysGlobal"),
        (EXAMPLES["with-replacement"], "clipping_norm: wanted a number, since the loss"),
        (replace(EXAMPLES["quantized"], mode="paper", smoothness=1.0), "mode: wanted 'safe' or 'p"),
    ):
        with pytest.raises(ValueError, match=message):
            algorithm.init(problem, key)
    with pytest.raises(ValueError, match=r"controller: wanted AlwaysGlobal\(\) with a clipping"):
        dm.WithoutReplacement(clipping_norm=1.0)
    public = replace(
        algorithm_for("without-replacement", problem), public_data=problem.test.take([0])
    )
    with pytest.raises(ValueError, match="public_data: wanted None for a JaxProblem"):
        public.init(problem, key)
    report = (
        EXAMPLES["gradient-descent"]
        .plan(3, problem)
        .cost(DELTA, view=OneNode(topology=topology.ring(NODES)))
    )
    assert "no linear model of known smoothness" in str(report)

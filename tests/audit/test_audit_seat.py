"""The audit from one node's seat: right claims pass, planted mistakes of accounting are flagged."""

from __future__ import annotations

import numpy as np
import pytest
from view_systems import metropolis

from dpmesh.audit import GaussianClaim, audit_view
from dpmesh.audit.linear_run import LinearRun, Visible, from_scores
from dpmesh.kernels.views import Mixing, solve_pair, view_system
from dpmesh.keys import Key
from dpmesh.privacy.views import Coalition, LastOnly, Node, PublishedMean
from dpmesh.topology import ring

NODES, ROUNDS = 8, 10
RING = metropolis(NODES, [[i, (i + 1) % NODES] for i in range(NODES)])
MOVES = np.array([0.0] + [1.0] * (ROUNDS - 1))


def _run(target: int, *, others_forget: bool = False) -> LinearRun:
    contractions = np.ones((ROUNDS, NODES))
    if others_forget:
        contractions[:] = 0.0
        contractions[:, target] = 1.0
    return LinearRun(
        matrices=[RING] * ROUNDS,
        contractions=contractions,
        moves=MOVES,
        noise=np.ones(ROUNDS),
        target=target,
    )


def _seen(*observers: int) -> Visible:
    seen = np.zeros((ROUNDS, NODES), dtype=bool)
    for v in observers:
        seen[:, RING[v] > 0] = True
    return seen


def _proved(observers: tuple[int, ...], target: int) -> float:
    mixings = [Mixing(t, t, RING) for t in range(ROUNDS)]
    system = view_system(mixings, noise=np.ones(ROUNDS), fresh=MOVES, nodes=NODES)
    return solve_pair(system, observers, target).mu


def _flagged(run: LinearRun, seen: Visible, claim: float) -> bool:
    weights, chosen = run.weights(seen), np.flatnonzero(seen.reshape(-1))
    generator = np.random.default_rng(5)
    with_record, without = (
        run.messages(10_000, moved, generator)[:, chosen] @ weights for moved in (True, False)
    )
    of = GaussianClaim(claim)
    return from_scores(of, with_record, without, confidence=0.95, method="seen").violated


def test_right_claims_pass() -> None:
    assert not _flagged(_run(2), _seen(0), _proved((0,), 2))
    assert not _flagged(_run(1, others_forget=True), _seen(0), _proved((0,), 1))


def test_a_neighbour_whose_messages_were_left_out_is_found() -> None:
    assert _flagged(_run(1), _seen(0), _proved((0,), 2))


def test_fixed_inputs_are_found() -> None:
    """The exact mu with every other node's step taken as given is no bound."""
    claim = _run(1).mu(_seen(0))
    assert claim < _run(1, others_forget=True).mu(_seen(0))
    assert _flagged(_run(1, others_forget=True), _seen(0), claim)


@pytest.mark.parametrize("second", [1, 4])
def test_a_forgotten_second_member_is_found(second: int) -> None:
    assert _flagged(_run(2), _seen(0, second), _proved((0,), 2))


def test_forgotten_final_messages_are_found() -> None:
    seen = _seen(0)
    seen[-1] = True
    assert _flagged(_run(4), seen, _proved((0,), 4))


@pytest.mark.slow
def test_simulated_messages_follow_the_law() -> None:
    run, seen = _run(2), _seen(0, 3)
    runs = 40_000
    moved, still = (
        run.messages(runs, positive, np.random.default_rng(1))[:, seen.reshape(-1)]
        for positive in (True, False)
    )
    np.testing.assert_allclose(moved.mean(0) - still.mean(0), run.shift(seen), atol=1e-9)
    spread = run.covariance(seen)
    np.testing.assert_allclose(np.cov(still.T), spread, atol=6 * spread.max() / np.sqrt(runs))


SEAT = Node(node=0, topology=ring(NODES))
AUDIT = {"rounds": ROUNDS, "runs": 400, "confidence": 0.99, "key": Key.seeded(0)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("view", "target", "forgetful", "claim"),
    [
        (SEAT, 2, False, None),
        (SEAT, 1, True, None),
        # what is proved against node 0 alone, of which node 1 is forgotten
        (Coalition(nodes=(0, 1), topology=ring(NODES)), 2, False, 1.353),
    ],
)
def test_runs_of_gradient_descent_refute_wrong_claims_alone(view, target, forgetful, claim) -> None:
    """The key is fixed: a right claim would be refuted by 1 of 100 keys at most."""
    result = audit_view(view, target=target, forgetful=forgetful, mu=claim, **AUDIT)
    assert result.violated == (claim is not None)
    assert result.lower_bound > 0.1


@pytest.mark.parametrize(
    ("view", "options", "message"),
    [
        (LastOnly(topology=ring(4)), {}, "view: wanted any one node"),
        (Node(node=0, topology=ring(4)), {"target": 0}, "target: wanted a node outside"),
        (Node(node=0, topology=ring(4), also=(PublishedMean(),)), {}, "without published"),
        (Node(node=0, topology=ring(4)), {"rounds": 1}, "rounds: wanted an integer of at least 2"),
    ],
)
def test_what_cannot_be_audited_is_named(view, options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        audit_view(view, **({"rounds": 4, "runs": 20} | options))


def test_the_command_audits_from_a_seat() -> None:
    testing = pytest.importorskip("typer.testing")
    from dpmesh.cli import app

    quick = ["--view", "0", "--topology", "ring", "--nodes", "4", "--rounds", "3", "--runs", "100"]
    result = testing.CliRunner().invoke(app, ["audit", *quick, "--confidence", "0.9999999"])
    assert result.exit_code == 0
    assert result.output.count("messages in the view of node 0") == 2
    wrong = testing.CliRunner().invoke(app, ["audit", "online", *quick])
    assert wrong.exit_code == 2

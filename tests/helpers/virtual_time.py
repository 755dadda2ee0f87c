"""Runs of a contract in this process, whose deadlines pass in virtual time."""

from __future__ import annotations

from collections.abc import Callable

from mesh_parties import Parties

from dpmesh.deploy import Router

DEADLINE = 10.0


class Clock:
    """Virtual time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run(
    parties: Parties,
    router: Router,
    clock: Clock,
    hears: Callable[[int, int], bool] = lambda party, step: True,
    answers: Callable[[int, bytes], bytes] = lambda party, answer: answer,
    most: int = 400,
) -> None:
    """Run to the end; `hears` says which party hears at which step, `answers` what it sends."""
    for step in range(most):
        if router.done or router.failure:
            return
        run_once(parties, router, clock, hears, answers, step)
    raise AssertionError(f"it does not end: {router.open_position}, {router.waits_for}")


def run_once(
    parties: Parties,
    router: Router,
    clock: Clock,
    hears: Callable[[int, int], bool] = lambda party, step: True,
    answers: Callable[[int, bytes], bytes] = lambda party, answer: answer,
    step: int = 0,
) -> None:
    """Ask all parties that hear once, and close what waits for longer than a deadline."""
    moved = False
    for party, message in router.requests().items():
        if hears(party, step):
            router.take(party, answers(party, parties.nodes[party].answer(message)))
            moved = True
    clock.now += 0.01 if moved else 1.0
    if router.waits_since() > DEADLINE:
        router.close()

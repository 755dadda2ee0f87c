"""Sums of different lengths, one after another, and sums over neighbours, between parties."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mesh_parties import Sums, is_ask
from scipy import stats

from dpmesh.deploy import Contract, Position, Router
from dpmesh.deploy.router_faults import Faults
from dpmesh.deploy.router_sums import SumRouting
from dpmesh.deploy.signing import unpack
from dpmesh.deploy.sums import HEADER, MASKED_PARTS, TOTAL, WITHDRAWAL, MaskedPart, Total, add_parts
from dpmesh.deploy.wire import StepQuestion, kind_of, read_question, refusal_reason
from dpmesh.kernels import mask_and_pack


@pytest.fixture
def staged(tmp_path: Path) -> Iterator[Sums]:
    """Four parties that add up records before they learn; one of them may be lost."""
    made = Sums(tmp_path, "first stage", quorum=3)
    yield made
    for folder in made.folders:
        folder.close()


def test_each_kind_of_sum_has_its_own_attempts_in_one_plan(staged: Sums) -> None:
    router = Router(staged.contract)

    def lost(party: int, message: bytes) -> bool:
        return party == 2 and (
            router.open_position == (0, 1) or (router.open_position == (0, 0) and is_ask(message))
        )

    staged.run(router, lost)
    rounds = [[one.round for one in own.ledger(staged.contract).releases] for own in staged.folders]
    assert rounds == [[0, 1, 0, 1, 2, 3], [0, 1, 0, 1, 2, 3], [], [0, 1, 0, 1, 2, 3]]
    assert len(staged.contract.plan.releases) == 7  # of each kind one more
    np.testing.assert_array_equal(staged.nodes[2].released, staged.nodes[0].released)
    assert all(node.is_sealed for node in staged.nodes)


def test_a_contract_states_the_noise_of_its_first_stage(staged: Sums) -> None:
    for stage, said in (
        ({"noise_to_sensitivity": "rule"}, "first_stage: wanted noise as a number"),
        ({"noise_to_sensitivity": 7.0, "moment_noise": 0.0}, "first_stage.moment_noise: wanted"),
    ):
        with pytest.raises(ValueError, match=said):
            Contract.of(staged.content | {"first_stage": stage})


def test_the_mean_is_released_no_more_often_than_planned(staged: Sums) -> None:
    ask = staged.asks(Router(staged.contract))[0]
    for attempt in range(3):
        answer = staged.answer(0, staged.other(ask, position=Position(0, attempt)))
        assert kind_of(answer) == (MASKED_PARTS if attempt < 2 else WITHDRAWAL)


def test_a_router_that_confuses_lengths_is_refused(staged: Sums) -> None:
    contract, router = staged.contract, Router(staged.contract)
    first, second = contract.planned.sum_at(0), contract.planned.sum_at(1)
    assert (first.dim, second.dim) == (5, 6)
    ask = staged.asks(router, 1)[0]
    (total,) = (Total.read(m, contract) for m in ask.attached if kind_of(m) == TOTAL)
    rest = [m for m in ask.attached if kind_of(m) != TOTAL]
    longer = mask_and_pack(np.zeros(6, np.int64), second.modulus_bits)
    later = replace(total.header, position=Position(1))
    for lie, reason in [
        (replace(total, packed=longer), "bad total"),
        (replace(total, packed=total.packed + b"x"), "bad total"),
        (replace(total, header=later), "not the next round"),
        (replace(total, header=later, packed=longer), "not the next round"),
    ]:
        answer = staged.answer(0, StepQuestion(ask.position, (*rest, lie.as_bytes(contract))))
        assert refusal_reason(answer) == reason
    skips = staged.other(StepQuestion(ask.position, tuple(rest)), position=Position(2))
    assert refusal_reason(staged.answer(0, skips)) == "not the next round"
    part = staged.part(0, ask)
    for short in (replace(part, packed=part.packed[:-1]), replace(part, header=total.header)):
        with pytest.raises(ValueError, match="part of the length"):
            MaskedPart.read(short.as_bytes(contract), contract)


def test_a_restored_party_knows_what_the_others_spent_of_each_kind(
    staged: Sums, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SumRouting, "_count_costs", lambda self: None)  # it leaves nobody out
    router = Router(staged.contract)
    staged.asks(router)
    old = staged.backup(1)
    staged.asks(router, 3)
    staged.restart(1, old)
    staged.run(router)
    assert staged.nodes[1].protocol.spent == (1, 5)  # as if it had sent the attempt that it refused
    assert staged.nodes[1].is_sealed


# Sums over neighbours


@pytest.fixture
def ring(tmp_path: Path) -> Iterator[Sums]:
    """Six parties on a ring with chords: each has four neighbours, and one that is none."""
    near = {"topology": {"kind": "random_regular", "degree": 4}, "dim": 2000}
    made = Sums(tmp_path, "neighbour sums", nodes=6, changes={"clipping_norm": 0.5}, **near)
    yield made
    for folder in made.folders:
        folder.close()


def sent_to(made: Sums, receiver: int, asks: dict[int, StepQuestion]) -> list[MaskedPart]:
    """Return what its neighbours send for the sum of a party."""
    asked = made.contract.planned.first_sum.neighbors[receiver]
    parts = [part for party in asked for part in made.parts(party, asks[party])]
    return [part for part in parts if part.header.dealer == receiver]


def altered(made: Sums, ask: StepQuestion, receiver: int, **changes: Any) -> StepQuestion:
    """Return a question with another header for the sum of one party."""
    headers = [replace(h, **changes) if h.dealer == receiver else h for h in made.headers(ask)]
    rest = [m for m in ask.attached if kind_of(m) != HEADER]
    return StepQuestion(
        ask.position, (*rest, *(header.as_bytes(made.contract) for header in headers))
    )


def total_of(made: Sums, parts: list[MaskedPart]) -> bytes:
    header = replace(parts[0].header, sealed_tag_secret=b"")
    return Total(header, *add_parts(parts, made.contract)).as_bytes(made.contract)


def test_a_sum_over_neighbours_opens_for_its_receiver_alone_and_each_part_is_uniform(
    ring: Sums,
) -> None:
    asks = ring.asks(Router(ring.contract))
    whole, w = (
        ring.contract.planned.first_sum,
        ring.contract.algorithm.init(ring.whole, ring.contract.public_key),
    )
    values = next(ring.contract.algorithm.round(w, 0, ring.whole, ring.contract.public_key)).values
    parts = sent_to(ring, 0, asks)
    rows = whole.steps_of(values)[[*whole.neighbors[0]]].sum(axis=0)
    error = np.sqrt(((ring.opened(parts) - rows) ** 2).mean())
    assert 0.8 < error / (2 * whole.smallest_share) < 1.2  # four shares of noise
    for seen in ([0], [1], [0, 1, 2]):
        counts = np.bincount(ring.opened([parts[i] for i in seen]) % 256, minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-6
    (stranger,) = {*range(1, 6)} - {*whole.neighbors[0]}
    assert len(ring.parts(0, asks[0])) == 4
    _, _, _, *sealed = unpack(ring.nodes[0].pairwise_secrets().deal_tag_secret())
    assert [party for party, secret in enumerate(sealed) if not secret] == [0, stranger]


@pytest.mark.parametrize("what", ["one", "all", "kept"])
def test_a_router_that_lies_about_a_transcript_opens_nothing_that_counts(
    what: str, ring: Sums, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it sends all neighbours the same lie, it opens their sum, which the receiver refuses."""
    monkeypatch.setattr(Faults, "has_reserve", lambda *_: True)  # it spends another attempt
    router = Router(ring.contract)
    asks = ring.asks(router, 1)
    lied = {
        "one": ring.contract.planned.first_sum.neighbors[0][:1],
        "all": range(1, 6),
        "kept": (),
    }[what]
    other = {
        n: altered(ring, ask, 0, transcript=b"another") for n, ask in asks.items() if n in lied
    }
    parts = sent_to(ring, 0, asks | other)
    is_uniform = np.abs(ring.opened(parts).astype(float)).max() > 2.0**60
    assert is_uniform == (what == "one")
    for party, ask in asks.items():
        ring.nodes[party].answer(ask.as_bytes(ring.contract))
    for party, ask in asks.items():
        router.take(party, ring.nodes[party].answer(ask.as_bytes(ring.contract)))
    ask = read_question(router.requests()[0], ring.contract)
    rest = [m for m in ask.attached if kind_of(m) != TOTAL]
    answer = ring.answer(0, StepQuestion(ask.position, (*rest, total_of(ring, parts))))
    assert refusal_reason(answer) == (None if what == "kept" else "bad total")


def test_a_restored_party_repeats_its_parts_for_headers_that_stay(tmp_path: Path) -> None:
    """With one noise for all its sums, the others would open again with other noise."""
    made = Sums(tmp_path, "neighbour sums", nodes=5, dim=6)
    asks = made.asks(Router(made.contract), 1)
    old = made.backup(0)
    first = {party: made.parts(party, ask) for party, ask in asks.items()}[0]
    made.restart(0, old)
    question = made.answer(0, asks[0])
    heard = [made.nodes[party].answer(question) for party in range(1, 5)]
    rest = [message for message in asks[0].attached if kind_of(message) != HEADER]
    lie = [
        replace(h, transcript=b"lie" * (h.dealer == 3) or h.transcript)
        for h in made.headers(asks[0])
    ]
    headers = (header.as_bytes(made.contract) for header in lie)
    again = {
        part.header.dealer: part.packed
        for part in made.parts(0, StepQuestion(Position(1), (*rest, question, *heard, *headers)))
    }
    same = {part.header.dealer: part.packed == again[part.header.dealer] for part in first}
    assert same == {1: True, 2: True, 3: False, 4: True}


def test_hostile_headers_and_totals_of_sums_over_neighbours_are_refused(ring: Sums) -> None:
    asks = ring.asks(Router(ring.contract), 1)
    ask, near = asks[0], ring.contract.planned.first_sum.neighbors[0]
    header = next(h for h in ring.headers(ask) if h.dealer == near[0])
    twice = header.as_bytes(ring.contract)
    (total,) = (Total.read(m, ring.contract) for m in ask.attached if kind_of(m) == TOTAL)
    of_another = replace(total, header=header).as_bytes(ring.contract)
    rest = [m for m in ask.attached if kind_of(m) != TOTAL]
    for lie, reason in [
        (StepQuestion(ask.position, (*ask.attached, twice)), "malformed"),
        (altered(ring, ask, near[0], dealer=near[1]), "malformed"),  # two parts of one sum
        (altered(ring, ask, near[0], position=Position(1, 1)), "malformed"),
        (altered(ring, ask, near[0], cohort=header.cohort[1:]), "bad cohort"),
        (altered(ring, ask, near[0], cohort=tuple(range(6))), "bad cohort"),
        (altered(ring, ask, near[0], sealed_tag_secret=bytes(60)), "bad key"),
        (StepQuestion(ask.position, (*rest, of_another)), "not the next round"),
    ]:
        assert refusal_reason(ring.answer(0, lie)) == reason
    assert not refusal_reason(ring.answer(0, ask))


def test_a_round_with_a_finer_grid_has_noise_of_its_own_for_each_value(tmp_path: Path) -> None:
    """Noise depends on what is added up in this round: a coarser grid would hide a difference."""
    step = {"step_size": {"kind": "PowerLaw", "scale": 64.0, "exponent": -6.0}}
    made = Sums(tmp_path, "neighbour sums", changes=step)
    made.asks(Router(made.contract), 1)
    first, now = made.contract.planned.first_sum, made.contract.algorithm.sums(1)
    values = np.zeros((1, 5)), np.full((1, 5), 2 * now.grid)
    assert first.grid > 8 * now.grid
    channel = made.nodes[0]._channel
    assert channel.noise_key(values[0]) != channel.noise_key(values[1])
    for folder in made.folders:
        folder.close()

"""Sums between parties: what opens, what does not, what each attempt costs, and who lies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mesh_parties import Sums
from scipy import stats

from dpmesh.deploy import Contract, Position, Router
from dpmesh.deploy.node_sums import MOST_WRONG_TOTALS
from dpmesh.deploy.schedule import bytes_of_round
from dpmesh.deploy.signing import SigningKey, pack
from dpmesh.deploy.sums import (
    MASKED_PARTS,
    TOTAL,
    WITHDRAWAL,
    PairwiseSecrets,
    RunSecrets,
    Total,
    add_parts,
)
from dpmesh.deploy.wire import (
    ROLLBACK_QUESTION,
    SIGNATURE,
    Signature,
    StepQuestion,
    kind_of,
    refusal_reason,
)
from dpmesh.kernels import mask_and_pack, unpack_sum

Lie = Callable[[int, StepQuestion], StepQuestion]
"""What a router sends a party instead."""


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Sums]:
    """Four parties, of which one may be lost and one may collude."""
    changes = {"combination": {"kind": "SecureAggregation", "colluding": 1, "dropouts": 1}}
    made = Sums(tmp_path, dim=40, quorum=3, changes=changes, budget=50.0)
    yield made
    for folder in made.folders:
        folder.close()


# What an honest run gives: `test_engines_mesh.py` has the simulator's bits through all kills


def test_a_run_ends_with_one_sealed_model_and_every_ledger_is_its_plan(made: Sums) -> None:
    router = made.run()
    assert all(node.is_sealed for node in made.nodes)
    for node in made.nodes:
        np.testing.assert_array_equal(node.released, made.nodes[0].released)
        ledger = node.folder.ledger(made.contract)
        assert ledger.releases == made.contract.plan.releases[:4]  # one more for a lost party
        assert node.local_model().tobytes() == node.released.tobytes()
    assert router.missing == []


def test_each_part_is_uniform_and_so_are_all_but_one_together(tmp_path: Path) -> None:
    made = Sums(tmp_path, dim=5000, rounds=1)
    asks = made.asks(Router(made.contract))
    parts = [made.part(party, ask) for party, ask in asks.items()]
    for seen in ([0], [1], [2], [3], [0, 1, 2]):
        counts = np.bincount(made.opened([parts[i] for i in seen]) % 256, minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-6
    assert made.is_open(made.opened(parts), made.own(), 4)
    for folder in made.folders:
        folder.close()


@pytest.mark.slow
@pytest.mark.parametrize(("parties", "dim"), [(4, 1000), (40, 1000)])
def test_parts_take_few_bytes_more_than_their_numbers(
    parties: int, dim: int, tmp_path: Path
) -> None:
    made = Sums(tmp_path, nodes=parties, dim=dim, rounds=2, rehearsal=True, records=2)
    sent = {}

    def lost(party: int, message: bytes) -> bool:
        answer = made.nodes[party].answer(message)
        if kind_of(answer) == b"dpmesh parts 1":
            sent[party] = len(answer)
        return False

    router = made.run(lost=lost)
    least = made.contract.planned.first_sum.message_bytes
    assert {*sent.values()} == {min(sent.values())}
    assert least < sent[0] <= 1.05 * least
    assert bytes_of_round(made.contract) <= 2.5 * parties * least
    assert router.bytes <= 2 * 1.3 * bytes_of_round(made.contract) + 800 * parties**2
    for folder in made.folders:
        folder.close()


def test_sums_open_between_machines_whose_arithmetic_differs(made: Sums) -> None:
    """Masks depend on the totals, which are integers, and not on what is computed from them."""
    honest = made.contract.algorithm.round

    class Rounds:
        def round(self, state: Any, *rest: Any) -> Any:
            w = state.w + 1e-12 * np.arange(1, 41)
            return honest(replace(state, w=w), *rest)

        def __getattr__(self, name: str) -> Any:
            return getattr(made.contract.algorithm, name)

    other = Contract.of(made.content)
    vars(other)["algorithm"] = Rounds()
    made.nodes[2].schedule.contract = other
    made.run()
    transcripts = {node.transcript for node in made.nodes}
    assert len(transcripts) == 1
    assert not np.array_equal(made.nodes[2].released, made.nodes[0].released)


# Parties that are lost


def test_a_lost_party_costs_an_attempt_and_comes_back_for_the_end(made: Sums) -> None:
    router = Router(made.contract)
    made.run(router, lambda party, _: party == 2 and router.open_position in [(1, 0), (1, 1)])
    assert [len(folder.ledger(made.contract).releases) for folder in made.folders] == [5, 5, 1, 5]
    assert all(node.is_sealed for node in made.nodes)
    np.testing.assert_array_equal(made.nodes[2].released, made.nodes[0].released)


def test_no_more_attempts_are_answered_than_are_planned(made: Sums) -> None:
    router = Router(made.contract)
    asks = made.asks(router)
    for attempt in range(6):
        ask = made.other(asks[0], position=Position(0, attempt))
        answer = made.answer(0, ask)
        assert kind_of(answer) == (MASKED_PARTS if attempt < 5 else WITHDRAWAL)
    assert made.folders[0].ledger(made.contract) == made.contract.plan


def test_too_few_are_no_cohort(made: Sums) -> None:
    ask = made.asks(Router(made.contract))[0]
    for cohort in ((0, 1), (1, 2, 3), ()):
        assert refusal_reason(made.answer(0, made.other(ask, cohort=cohort))) == "bad cohort"
    assert made.part(0, made.other(ask, cohort=(0, 1, 3))).header.cohort == (0, 1, 3)


@pytest.mark.parametrize("reused", [False, True])
def test_the_part_of_a_lost_party_that_comes_late_opens_nothing_of_its_own(
    reused: bool, made: Sums, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first sum, completed late, minus the second has the noise of both attempts.

    Planted: if the survivors' noise were the same in both, one share alone would be left.
    """
    if reused:
        monkeypatch.setattr(
            PairwiseSecrets, "noise_seed", lambda self, agreement: self._own_tag_secret()
        )
    asks = made.asks(Router(made.contract))
    first = [made.part(party, ask) for party, ask in asks.items()]
    again = {"position": Position(0, 1), "cohort": (0, 1, 3)}
    second = [made.part(party, made.other(asks[party], **again)) for party in (0, 1, 3)]
    left_over = made.opened(first) - made.opened(second)
    assert made.is_open(left_over, made.own(2), 1) == reused
    assert not made.is_open(made.opened([second[0], second[1], first[2], second[2]]), 0, 16)


def test_a_router_that_is_started_anew_gets_the_same_parts(made: Sums) -> None:
    router = Router(made.contract)
    made.run(router, lambda party, _: party == 2 and router.open_position in [(1, 0), (1, 1)])
    again = Router(made.contract)
    made.run(again)
    assert [len(folder.ledger(made.contract).releases) for folder in made.folders] == [5, 5, 1, 5]
    assert again.ended == router.ended
    assert again.routing.totals.by_step == {}  # nobody has missed one


# A router that lies


def wrong(packed: bytes, made: Sums, how: str) -> bytes:
    sums = made.contract.planned.first_sum
    total = unpack_sum([packed], sums.dim, sums.modulus_bits)
    changed = {
        "a million": np.full_like(total, 10**6),
        "doubled": 2 * total,
        "one number": total + (np.arange(len(total)) == 7),
    }[how]
    return mask_and_pack(changed, sums.modulus_bits)


@pytest.mark.parametrize("how", ["a million", "doubled", "one number"])
@pytest.mark.parametrize("several", [False, True])
def test_a_total_that_is_not_the_sum_is_refused_by_its_tag(
    how: str, several: bool, made: Sums
) -> None:
    asks = made.asks(Router(made.contract), 1)
    for party, ask in asks.items():
        if party > 0 and not several:
            continue
        (total,) = (Total.read(m, made.contract) for m in ask.attached if kind_of(m) == TOTAL)
        lie = replace(total, packed=wrong(total.packed, made, how)).as_bytes(made.contract)
        rest = [m for m in ask.attached if kind_of(m) != TOTAL]
        assert (
            refusal_reason(made.answer(party, StepQuestion(ask.position, (*rest, lie))))
            == "bad total"
        )
    assert not refusal_reason(made.answer(1, asks[1]))


def test_a_sum_without_a_part_is_refused_and_another_attempt_follows(made: Sums) -> None:
    router = Router(made.contract)
    parts = [made.part(party, ask) for party, ask in made.asks(router).items()]
    for part, party in zip(parts, range(4), strict=True):
        router.take(party, pack(MASKED_PARTS, part.as_bytes(made.contract)))
    packed, tag = add_parts(parts[1:], made.contract)
    totals = router.routing.totals.by_step
    totals[0] = [replace(totals[0][0], packed=packed, tag=tag)]
    made.run(router)
    assert router.missing == []
    releases = [len(folder.ledger(made.contract).releases) for folder in made.folders]
    assert releases == [1, 5, 5, 5]  # the total without p0 opens: its part counts as wrong
    assert all(node.is_sealed for node in made.nodes)


def test_a_router_that_guesses_totals_stops_the_node(made: Sums) -> None:
    ask = made.asks(Router(made.contract), 1)[0]
    (total,) = (Total.read(m, made.contract) for m in ask.attached if kind_of(m) == TOTAL)
    rest = [m for m in ask.attached if kind_of(m) != TOTAL]
    made.nodes[0].protocol._wrong_totals = MOST_WRONG_TOTALS
    lie = replace(total, tag=total.tag ^ 1).as_bytes(made.contract)
    assert refusal_reason(made.answer(0, StepQuestion(ask.position, (*rest, lie)))) == "bad total"
    assert refusal_reason(made.answer(0, ask)) == "stopped"


@pytest.mark.parametrize("what", ["nothing", "round", "cohort", "attempt", "total", "keys"])
def test_parties_that_are_told_different_things_open_nothing(what: str, made: Sums) -> None:
    asks = made.asks(Router(made.contract), 1)
    parts = [made.part(party, asks[party]) for party in range(3)]
    node, header = made.nodes[3], made.header(asks[3])
    group, before = node.pairwise_secrets(), node.transcript
    (total,) = (Total.read(m, made.contract) for m in asks[3].attached if kind_of(m) == TOTAL)
    _, transcript = group.open_total(total, before)
    others: dict[str, dict[str, Any]] = {
        "round": {"position": Position(1, 3)},
        "attempt": {"position": Position(1, 1)},
        "cohort": {"cohort": (1, 2, 3)},
    }
    if what == "keys":  # as if a router had shown it another key of somebody
        group.keys_hash = bytes(32)
    if what == "total":  # as if another one had been accepted
        transcript = bytes(32)
    altered = replace(header, **others.get(what, {}))
    parts.append(group.masked_part(altered, transcript, np.zeros(40, np.int64)))
    largest = np.abs(made.opened(parts)).max()
    assert (largest > 2.0 ** (made.contract.planned.first_sum.modulus_bits - 2)) == (
        what != "nothing"
    )
    honest = np.abs(made.opened(parts[:3])).max()
    assert honest > 2.0 ** (made.contract.planned.first_sum.modulus_bits - 2)


def test_a_router_opens_no_attempt_before_the_last_one(made: Sums) -> None:
    """Both opened, their difference would be the part of who was left out."""
    asks = made.asks(Router(made.contract))
    first = [made.part(party, ask) for party, ask in asks.items()]
    made.part(0, made.other(asks[0], position=Position(0, 1), cohort=(0, 1, 3)))
    total = Total(made.header(asks[0]), *add_parts(first, made.contract)).as_bytes(made.contract)
    late = made.other(asks[0], position=Position(1))
    assert (
        refusal_reason(made.answer(0, StepQuestion(late.position, (*late.attached, total))))
        == "not the next round"
    )


def test_keys_are_those_that_their_parties_signed_for_this_run(made: Sums) -> None:
    contract, ask = made.contract, made.asks(Router(made.contract))[0]
    signing = made.folders[2].signing
    own = {Signature.read(m, contract).party: m for m in ask.attached if kind_of(m) == SIGNATURE}
    key = Signature.read(own[1], contract).key
    for bad, said in [
        (Signature.of(contract, 2, SigningKey.generate(), bytes(31) + b"\1"), "not signed by p2"),
        (Signature.of(contract, 1, signing, key), "not signed by p2"),
        (Signature.of(contract, 2, signing), "not signed by p2"),
        (Signature.of(contract, 2, signing, bytes(32)), "bad key"),  # of order 1
        (Signature.of(contract, 2, signing, b"\1" + bytes(31)), "bad key"),
        (Signature.of(contract, 2, signing, key), "bad key"),  # another's
    ]:
        rest = [m for m in ask.attached if m != own[2]]
        assert refusal_reason(made.answer(0, StepQuestion(ask.position, (*rest, bad)))) == said
    made.part(0, ask)
    second = Signature.of(contract, 2, signing, RunSecrets.generate().public_key)
    later = made.other(ask, position=Position(0, 1))
    rest = [m for m in later.attached if m != own[2]]
    before = made.nodes[0].pairwise_secrets().keys_hash
    made.part(0, StepQuestion(later.position, (*rest, second)))
    assert (
        made.nodes[0].pairwise_secrets().keys_hash == before
    )  # keys of the first step are those of the run


def test_a_secret_of_tags_that_nobody_sealed_is_refused(made: Sums) -> None:
    ask = made.asks(Router(made.contract))[1]
    for changes in ({"sealed_tag_secret": bytes(60)}, {"sealed_tag_secret": b""}, {"dealer": 2}):
        assert refusal_reason(made.answer(1, made.other(ask, **changes))) == "bad key"


# Folders that are restored


@pytest.mark.parametrize("same", [True, False])
def test_a_restored_party_opens_nothing_that_is_not_charged(same: bool, made: Sums) -> None:
    """Asked the same, it answers the same bytes; asked something else, nothing opens."""
    asks = made.asks(Router(made.contract))
    old = made.backup(1)
    sent = [made.part(party, ask) for party, ask in asks.items()]
    made.restart(1, old)
    made.nodes[1]._confirmed = True  # whatever its others say
    ask = asks[1] if same else made.other(asks[1], cohort=(0, 1, 3))
    again = made.part(1, ask)
    assert (again == sent[1]) == same
    if not same:
        assert not made.is_open(made.opened([sent[0], again, sent[3]]), 0, 16)


def test_a_changed_record_gets_other_noise_for_the_same_header(made: Sums) -> None:
    """Else a party that was restored, and its records corrected, would show by how much."""
    asks = made.asks(Router(made.contract))
    old, records = made.backup(1), made.records[1]
    sent = made.part(1, asks[1])
    made.restart(1, old)
    made.nodes[1]._confirmed = True
    other = replace(records, labels=np.where(np.arange(10) == 3, -records.labels, records.labels))
    made.nodes[1].problem = made.contract.problem(other, 1)
    difference = made.opened([sent]) - made.opened([made.part(1, asks[1])])
    unused = 64 - made.contract.planned.first_sum.modulus_bits
    apart = difference << unused >> unused
    assert np.sqrt((apart.astype(float) ** 2).mean()) > made.contract.planned.first_sum.share


def test_planted_noise_that_is_fresh_in_a_repeated_attempt_is_open(
    made: Sums, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = made.asks(Router(made.contract))
    old, fresh = made.backup(1), iter(range(10**9))
    monkeypatch.setattr(PairwiseSecrets, "noise_seed", lambda *_: next(fresh).to_bytes(32, "big"))
    sent = made.part(1, asks[1])
    made.restart(1, old)
    made.nodes[1]._confirmed = True
    difference = made.opened([sent]) - made.opened([made.part(1, asks[1])])
    unused = 64 - made.contract.planned.first_sum.modulus_bits
    assert np.abs(difference << unused >> unused).max() < 10 * made.contract.planned.first_sum.share


def test_a_restored_party_takes_over_what_the_others_know(made: Sums) -> None:
    router = Router(made.contract)
    made.asks(router)
    old = made.backup(1)
    asks = made.asks(router, 2)
    for party in (0, 2, 3):
        made.part(party, asks[party])
    made.restart(1, old)
    stale = made.other(asks[1], position=Position(1))
    fresh = made.nodes[1].answer(stale.as_bytes(made.contract))
    heard = tuple(made.nodes[party].answer(fresh) for party in (0, 2, 3))
    answer = made.answer(1, StepQuestion(stale.position, (*stale.attached, *heard)))
    assert refusal_reason(answer) == "not the next round"
    assert made.nodes[1].protocol.spent == (3,)
    assert refusal_reason(made.answer(1, asks[1])) == "not the next round"  # it needs older totals
    router.take(1, made.nodes[1].answer(asks[1].as_bytes(made.contract)))
    made.run(router)
    assert router.missing == []
    assert made.nodes[1].is_sealed


def test_a_refused_question_neither_confirms_by_few_nor_hides_a_sum(made: Sums) -> None:
    router = Router(made.contract)
    asks = made.asks(router, 1)
    old = made.backup(0)
    for party, ask in asks.items():
        made.part(party, ask)
    made.restart(0, old)
    fresh = made.answer(0, asks[0])
    heard = [made.nodes[party].answer(fresh) for party in range(1, made.contract.nodes)]
    header = made.header(asks[0])
    few = replace(header, cohort=(0, 1)).as_bytes(made.contract)  # one other, who may lie
    assert (
        refusal_reason(made.answer(0, StepQuestion(Position(1), (fresh, heard[0], few))))
        == "bad cohort"
    )
    assert not made.nodes[0]._confirmed
    bare = StepQuestion(
        Position(1), (fresh, *heard, header.as_bytes(made.contract))
    )  # without the total
    assert refusal_reason(made.answer(0, bare)) == "not the next round"
    made.part(0, made.other(asks[0], position=Position(1, 1)))
    assert made.nodes[0].protocol.spent == (3,)


def kill_once_charged(made: Sums, party: int, message: bytes, path: Path | None = None) -> None:
    """Kill a node that has stored and charged a step, and computed nothing; start it anew."""

    def kill(*_: object) -> bytes:
        raise KeyboardInterrupt

    made.nodes[party]._finish_step = kill  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        made.nodes[party].answer(message)
    made.restart(party, path)


@pytest.mark.parametrize("algorithm", ["sums", "neighbour sums"])
def test_an_attempt_of_a_party_killed_once_charged_counts_once(
    algorithm: str, tmp_path: Path
) -> None:
    """The others wait for its report on their starts, and are charged for this attempt, too."""
    made = Sums(tmp_path, algorithm, nodes=5, rounds=3)
    assert made.contract.planned.reserve_by_kind == (0,)
    killed = set[int]()

    def dies(party: int, message: bytes) -> bool:
        """Kill party 3 in its first attempt, before it has reported on any start."""
        if party != 3 or killed:
            return False
        if made.may_answer(party, message):
            kill_once_charged(made, party, message)
            killed.add(party)
            return False  # the message reaches the node that was started anew
        return kind_of(message) == ROLLBACK_QUESTION

    router = made.run(lost=dies)
    assert killed
    assert not router.gone
    for node, folder in zip(made.nodes, made.folders, strict=True):
        assert node.is_done
        assert not node.ended_early
        assert folder.ledger(made.contract) == made.contract.plan
        assert node.protocol.spent == (3,)
        folder.close()


def test_a_restored_party_killed_once_charged_still_knows_what_it_forgot(made: Sums) -> None:
    asks = made.asks(Router(made.contract), 1)
    old = made.backup(0)
    for party, ask in asks.items():
        made.part(party, ask)
    made.restart(0, old)
    later = made.other(asks[0], position=Position(1, 1))

    def confirmed() -> StepQuestion:
        fresh = made.answer(0, later)
        heard = [made.nodes[party].answer(fresh) for party in range(1, made.contract.nodes)]
        return StepQuestion(later.position, (fresh, *heard, *later.attached))

    kill_once_charged(made, 0, confirmed().as_bytes(made.contract), old)
    made.part(0, confirmed())
    assert made.nodes[0].protocol.spent == (3,)
    made.nodes[0].protocol._has_spent(Position(2))
    assert made.nodes[0].protocol.spent == (3,)


def test_secrets_are_erased_at_the_end_and_never_printed(made: Sums) -> None:
    secrets = made.nodes[0]._secrets
    assert secrets.local_secret.hex() not in repr(secrets)
    made.run()
    for file in (made.path / "p0").iterdir():
        assert secrets.local_secret not in file.read_bytes()
    made.restart(0)
    assert made.nodes[0].is_sealed
    assert refusal_reason(
        made.nodes[0].answer(StepQuestion(Position(9), ()).as_bytes(made.contract))
    )


def test_a_model_that_too_few_signed_is_not_sealed(made: Sums) -> None:
    router = Router(made.contract)
    made.run(router, lambda *_: bool(router.routing.ended.clear()))
    assert [node.is_sealed for node in made.nodes] == [False] * 4

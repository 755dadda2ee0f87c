"""Sums between parties: what opens, what does not, what each attempt costs, and who lies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from mesh_parties import Parties
from scipy import stats

from dpmesh.deploy import Contract, Folder, Position, Router, read_contract, router_of
from dpmesh.deploy.signing import SigningKey, pack, unpack
from dpmesh.deploy.sum_node import MOST_TRIES
from dpmesh.deploy.sums import HEADER, PARTS, TOTAL, Group, Header, Part, RunSecrets, Total, added
from dpmesh.deploy.traffic import bytes_of_round
from dpmesh.deploy.wire import HEARD, SIGNED, Ask, Fresh, Signature, kind_of, refused
from dpmesh.kernels import mask_and_pack, unpack_sum

Lie = Callable[[int, Ask], Ask]
"""What a router sends a party instead."""


class Sums(Parties):
    """Parties that add up sums, and how to ask them by hand."""

    def __init__(self, path: Path, algorithm: str = "sums", **terms: Any) -> None:
        super().__init__(path, algorithm, **{"rehearsal": False, **terms})

    def asks(self, router: Router, t: int = 0) -> dict[int, Ask]:
        """Return what an honest router asks in a round, of parties that may answer it."""
        for _ in range(100):
            held: dict[int, Ask] = {}
            for party, message in router.requests().items():
                if router.at == Position(t) and self.may_answer(party, message):
                    held[party] = Ask.read(message, self.contract)  # type: ignore[assignment]
                else:
                    router.take(party, self.nodes[party].answer(message))
            if len(held) == len(self.nodes):
                return held
            for asked in [*router._asked.values()]:  # also of parties that are held
                for node in self.nodes:
                    fresh = Fresh.together(self.contract, asked)
                    router.take(node.number, node.answer(fresh))
        raise AssertionError(f"it hangs at {router.at}")

    def may_answer(self, party: int, message: bytes) -> bool:
        """Whether all others have confirmed a party's start."""
        if not is_ask(message):
            return False
        said = [m for m in Ask.read(message, self.contract).attached if kind_of(m) == HEARD]
        return self.nodes[party]._confirmed or len(said) >= len(self.nodes) - 1

    def answer(self, party: int, ask: Ask) -> bytes:
        """Return a party's answer; if it refuses, it is charged nothing."""
        before = self.folders[party].ledger(self.contract)
        answer = self.nodes[party].answer(ask.as_bytes(self.contract))
        if refused(answer):
            assert self.folders[party].ledger(self.contract) == before
        return answer

    def part(self, party: int, ask: Ask) -> Part:
        return self.parts(party, ask)[0]

    def parts(self, party: int, ask: Ask) -> list[Part]:
        _, *parts = unpack(self.answer(party, ask))
        return [Part.read(each, self.contract) for each in parts]

    def other(self, ask: Ask, **changes: Any) -> Ask:
        """Return a question with another header."""
        header = replace(self.header(ask), **changes)
        rest = [m for m in ask.attached if kind_of(m) != HEADER]
        return Ask(header.at, (*rest, header.as_bytes(self.contract)))

    def opened(self, parts: list[Part]) -> Any:
        """Return what a router can open of parts, in steps of the grid."""
        sums = self.contract.sums
        return unpack_sum([part.packed for part in parts], sums.dim, sums.modulus_bits)

    def header(self, ask: Ask) -> Header:
        return self.headers(ask)[0]

    def headers(self, ask: Ask) -> list[Header]:
        found = (m for m in ask.attached if kind_of(m) == HEADER)
        return [Header.read(each, self.contract) for each in found]

    def own(self, party: int | None = None) -> Any:
        """Return a party's rounded vector of round 0, or the sum of all."""
        contract = self.contract
        w = contract.algorithm.init(self.whole, contract.public_key).w
        sums = contract.algorithm.contribution.sums(w, 0, self.whole, contract.public_key)
        return (sums.sum(axis=0) if party is None else sums[party]) / contract.sums.grid

    def is_open(self, total: Any, vector: Any, shares: float) -> bool:
        """Whether a total is a vector with so many shares of noise, and not uniform."""
        error = np.sqrt(((total - vector) ** 2).mean())
        return bool(error < 1.7 * np.sqrt(shares) * self.contract.sums.share)

    def restart(self, party: int, path: Path | None = None) -> None:
        """Start a party anew from its folder, or from a copy of it."""
        self.folders[party].close()
        self.folders[party] = Folder.open(path or self.path / self.names[party])
        self.nodes[party] = self.node(party)

    def backup(self, party: int) -> Path:
        """Copy the folder of a party, which goes on."""
        self.folders[party].close()
        copy = copytree(self.path / self.names[party], self.path / f"backup {party}")
        self.folders[party] = Folder.open(self.path / self.names[party])
        self.nodes[party].folder = self.folders[party]
        self.nodes[party]._confirmed = True
        return copy


def is_ask(message: bytes) -> bool:
    return kind_of(message) == b"dpmesh ask 1"


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
        assert node.own_model().tobytes() == node.released.tobytes()
    assert router.missing == []


def test_each_part_is_uniform_and_so_are_all_but_one_together(tmp_path: Path) -> None:
    made = Sums(tmp_path, dim=5000, rounds=1)
    asks = made.asks(router_of(made.contract))
    parts = [made.part(party, ask) for party, ask in asks.items()]
    for seen in ([0], [1], [2], [3], [0, 1, 2]):
        counts = np.bincount(made.opened([parts[i] for i in seen]) % 256, minlength=256)
        assert stats.chisquare(counts).pvalue > 1e-6
    assert made.is_open(made.opened(parts), made.own(), 4)
    for folder in made.folders:
        folder.close()


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
    least = made.contract.sums.message_bytes
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
    vars(other._assembly)["algorithm"] = Rounds()
    made.nodes[2]._schedule.contract = other
    made.run()
    transcripts = {node.transcript for node in made.nodes}
    assert len(transcripts) == 1
    assert not np.array_equal(made.nodes[2].released, made.nodes[0].released)


# Parties that are lost


def test_a_lost_party_costs_an_attempt_and_may_come_back(made: Sums) -> None:
    router = router_of(made.contract)
    made.run(router, lambda party, _: party == 2 and router.at in [(1, 0), (1, 1)])
    assert [len(folder.ledger(made.contract).releases) for folder in made.folders] == [5, 5, 2, 5]
    assert all(node.is_sealed for node in made.nodes)
    np.testing.assert_array_equal(made.nodes[2].released, made.nodes[0].released)


def test_no_more_attempts_are_answered_than_are_planned(made: Sums) -> None:
    router = router_of(made.contract)
    asks = made.asks(router)
    for attempt in range(6):
        ask = made.other(asks[0], at=Position(0, attempt))
        answer = made.answer(0, ask)
        assert refused(answer) == (None if attempt < 5 else "over budget")
    assert made.folders[0].ledger(made.contract) == made.contract.plan


def test_too_few_are_no_cohort(made: Sums) -> None:
    ask = made.asks(router_of(made.contract))[0]
    for cohort in ((0, 1), (1, 2, 3), ()):
        assert refused(made.answer(0, made.other(ask, cohort=cohort))) == "bad cohort"
    assert made.part(0, made.other(ask, cohort=(0, 1, 3))).header.cohort == (0, 1, 3)


@pytest.mark.parametrize("reused", [False, True])
def test_the_part_of_a_lost_party_that_comes_late_opens_nothing_of_its_own(
    reused: bool, made: Sums, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first sum, completed late, minus the second has the noise of both attempts.

    Planted: if the survivors' noise were the same in both, one share alone would be left.
    """
    if reused:
        monkeypatch.setattr(Group, "noise", lambda self, agreement: self._own_tags())
    asks = made.asks(router_of(made.contract))
    first = [made.part(party, ask) for party, ask in asks.items()]
    again = {"at": Position(0, 1), "cohort": (0, 1, 3)}
    second = [made.part(party, made.other(asks[party], **again)) for party in (0, 1, 3)]
    left_over = made.opened(first) - made.opened(second)
    assert made.is_open(left_over, made.own(2), 1) == reused
    assert not made.is_open(made.opened([second[0], second[1], first[2], second[2]]), 0, 16)


def test_a_router_that_is_started_anew_gets_the_same_parts(made: Sums) -> None:
    router = router_of(made.contract)
    made.run(router, lambda party, _: party == 2 and router.at in [(1, 0), (1, 1)])
    again = router_of(made.contract)
    made.run(again)
    assert [len(folder.ledger(made.contract).releases) for folder in made.folders] == [5, 5, 2, 5]
    assert [t.as_bytes(made.contract) for (t,) in again._totals] == [
        t.as_bytes(made.contract) for (t,) in router._totals
    ]


# A router that lies


def wrong(packed: bytes, made: Sums, how: str) -> bytes:
    sums = made.contract.sums
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
    asks = made.asks(router_of(made.contract), 1)
    for party, ask in asks.items():
        if party > 0 and not several:
            continue
        (total,) = (Total.read(m, made.contract) for m in ask.attached if kind_of(m) == TOTAL)
        lie = replace(total, packed=wrong(total.packed, made, how)).as_bytes(made.contract)
        rest = [m for m in ask.attached if kind_of(m) != TOTAL]
        assert refused(made.answer(party, Ask(ask.at, (*rest, lie)))) == "bad total"
    assert not refused(made.answer(1, asks[1]))


def test_a_sum_without_a_part_is_refused_and_another_attempt_follows(made: Sums) -> None:
    router = router_of(made.contract)
    parts = [made.part(party, ask) for party, ask in made.asks(router).items()]
    for part, party in zip(parts, range(4), strict=True):
        router.take(party, pack(PARTS, part.as_bytes(made.contract)))
    packed, tag = added(parts[1:], made.contract)
    router._totals[-1] = [replace(router._totals[-1][0], packed=packed, tag=tag)]
    made.run(router)
    assert router.missing == []
    assert [len(folder.ledger(made.contract).releases) for folder in made.folders] == [5] * 4
    assert all(node.is_sealed for node in made.nodes)


def test_a_router_that_guesses_totals_stops_the_node(made: Sums) -> None:
    ask = made.asks(router_of(made.contract), 1)[0]
    (total,) = (Total.read(m, made.contract) for m in ask.attached if kind_of(m) == TOTAL)
    rest = [m for m in ask.attached if kind_of(m) != TOTAL]
    made.nodes[0]._tries = MOST_TRIES
    lie = replace(total, tag=total.tag ^ 1).as_bytes(made.contract)
    assert refused(made.answer(0, Ask(ask.at, (*rest, lie)))) == "bad total"
    assert refused(made.answer(0, ask)) == "stopped"


@pytest.mark.parametrize("what", ["nothing", "round", "cohort", "attempt", "total", "keys"])
def test_parties_that_are_told_different_things_open_nothing(what: str, made: Sums) -> None:
    asks = made.asks(router_of(made.contract), 1)
    parts = [made.part(party, asks[party]) for party in range(3)]
    node, header = made.nodes[3], made.header(asks[3])
    group, before = node._group_of(), node.transcript
    (total,) = (Total.read(m, made.contract) for m in asks[3].attached if kind_of(m) == TOTAL)
    _, transcript = group.opened(total, before)
    others: dict[str, dict[str, Any]] = {
        "round": {"at": Position(1, 3)},
        "attempt": {"at": Position(1, 1)},
        "cohort": {"cohort": (1, 2, 3)},
    }
    if what == "keys":  # as if a router had shown it another key of somebody
        group.root = bytes(32)
    if what == "total":  # as if another one had been accepted
        transcript = bytes(32)
    altered = replace(header, **others.get(what, {}))
    parts.append(group.part(altered, transcript, np.zeros(40, np.int64)))
    largest = np.abs(made.opened(parts)).max()
    assert (largest > 2.0 ** (made.contract.sums.modulus_bits - 2)) == (what != "nothing")
    honest = np.abs(made.opened(parts[:3])).max()
    assert honest > 2.0 ** (made.contract.sums.modulus_bits - 2)


def test_a_router_opens_no_attempt_before_the_last_one(made: Sums) -> None:
    """Both opened, their difference would be the part of who was left out."""
    asks = made.asks(router_of(made.contract))
    first = [made.part(party, ask) for party, ask in asks.items()]
    made.part(0, made.other(asks[0], at=Position(0, 1), cohort=(0, 1, 3)))
    total = Total(made.header(asks[0]), *added(first, made.contract)).as_bytes(made.contract)
    late = made.other(asks[0], at=Position(1))
    assert refused(made.answer(0, Ask(late.at, (*late.attached, total)))) == "not the next round"


def test_keys_are_those_that_their_parties_signed_for_this_run(made: Sums) -> None:
    contract, ask = made.contract, made.asks(router_of(made.contract))[0]
    signing = made.folders[2].signing
    own = {Signature.read(m, contract).party: m for m in ask.attached if kind_of(m) == SIGNED}
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
        assert refused(made.answer(0, Ask(ask.at, (*rest, bad)))) == said
    made.part(0, ask)
    second = Signature.of(contract, 2, signing, RunSecrets.generate().public)
    later = made.other(ask, at=Position(0, 1))
    rest = [m for m in later.attached if m != own[2]]
    before = made.nodes[0]._group_of().root
    made.part(0, Ask(later.at, (*rest, second)))
    assert made.nodes[0]._group_of().root == before  # keys of the first step are those of the run


def test_a_secret_of_tags_that_nobody_sealed_is_refused(made: Sums) -> None:
    ask = made.asks(router_of(made.contract))[1]
    for changes in ({"sealed": bytes(60)}, {"sealed": b""}, {"dealer": 2}):
        assert refused(made.answer(1, made.other(ask, **changes))) == "bad key"


# Folders that are restored


@pytest.mark.parametrize("same", [True, False])
def test_a_restored_party_opens_nothing_that_is_not_charged(same: bool, made: Sums) -> None:
    """Asked the same, it answers the same bytes; asked something else, nothing opens."""
    asks = made.asks(router_of(made.contract))
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
    asks = made.asks(router_of(made.contract))
    old, records = made.backup(1), made.records[1]
    sent = made.part(1, asks[1])
    made.restart(1, old)
    made.nodes[1]._confirmed = True
    other = replace(records, labels=np.where(np.arange(10) == 3, -records.labels, records.labels))
    made.nodes[1]._problem = made.contract.problem(other, 1)
    difference = made.opened([sent]) - made.opened([made.part(1, asks[1])])
    unused = 64 - made.contract.sums.modulus_bits
    apart = difference << unused >> unused
    assert np.sqrt((apart.astype(float) ** 2).mean()) > made.contract.sums.share


def test_planted_noise_that_is_fresh_in_a_repeated_attempt_is_open(
    made: Sums, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = made.asks(router_of(made.contract))
    old, fresh = made.backup(1), iter(range(10**9))
    monkeypatch.setattr(Group, "noise", lambda *_: next(fresh).to_bytes(32, "big"))
    sent = made.part(1, asks[1])
    made.restart(1, old)
    made.nodes[1]._confirmed = True
    difference = made.opened([sent]) - made.opened([made.part(1, asks[1])])
    unused = 64 - made.contract.sums.modulus_bits
    assert np.abs(difference << unused >> unused).max() < 10 * made.contract.sums.share


def test_a_restored_party_takes_over_what_the_others_know(made: Sums) -> None:
    router = router_of(made.contract)
    made.asks(router)
    old = made.backup(1)
    asks = made.asks(router, 2)
    for party in (0, 2, 3):
        made.part(party, asks[party])
    made.restart(1, old)
    stale = made.other(asks[1], at=Position(1))
    fresh = made.nodes[1].answer(stale.as_bytes(made.contract))
    heard = tuple(made.nodes[party].answer(fresh) for party in (0, 2, 3))
    answer = made.answer(1, Ask(stale.at, (*stale.attached, *heard)))
    assert refused(answer) == "not the next round"
    assert made.nodes[1]._spent == (3,)
    assert refused(made.answer(1, asks[1])) == "not the next round"  # it needs older totals
    router.take(1, made.nodes[1].answer(asks[1].as_bytes(made.contract)))
    made.run(router)
    assert router.missing == []
    assert made.nodes[1].is_sealed


def test_secrets_are_erased_at_the_end_and_never_printed(made: Sums) -> None:
    secrets = made.nodes[0]._secrets
    assert secrets.own.hex() not in repr(secrets)
    made.run()
    for file in (made.path / "p0").iterdir():
        assert secrets.own not in file.read_bytes()
    made.restart(0)
    assert made.nodes[0].is_sealed
    assert refused(made.nodes[0].answer(Ask(Position(9), ()).as_bytes(made.contract)))


def test_a_model_that_too_few_signed_is_not_sealed(made: Sums) -> None:
    router = router_of(made.contract)
    made.run(router, lambda *_: bool(router.seals.clear()))
    assert [node.is_sealed for node in made.nodes] == [False] * 4


# Sums of different lengths, one after another


@pytest.fixture
def staged(tmp_path: Path) -> Iterator[Sums]:
    """Four parties that add up records before they learn; one of them may be lost."""
    made = Sums(tmp_path, "first stage", quorum=3)
    yield made
    for folder in made.folders:
        folder.close()


def test_each_kind_of_sum_has_its_own_attempts_in_one_plan(staged: Sums) -> None:
    router = router_of(staged.contract)

    def lost(party: int, message: bytes) -> bool:
        return party == 2 and (router.at == (0, 1) or (router.at == (0, 0) and is_ask(message)))

    staged.run(router, lost)
    rounds = [[one.round for one in own.ledger(staged.contract).releases] for own in staged.folders]
    assert rounds == [[0, 1, 0, 1, 2, 3], [0, 1, 0, 1, 2, 3], [0, 1, 2], [0, 1, 0, 1, 2, 3]]
    assert len(staged.contract.plan.releases) == 7  # of each kind one more
    np.testing.assert_array_equal(staged.nodes[2].released, staged.nodes[0].released)
    assert all(node.is_sealed for node in staged.nodes)


def test_a_contract_states_the_noise_of_its_first_stage(staged: Sums) -> None:
    for stage, said in (
        ({"noise_multiplier": "rule"}, "first_stage: wanted noise as a number"),
        ({"noise_multiplier": 7.0, "moment_noise": 0.0}, "first_stage.moment_noise: wanted"),
    ):
        with pytest.raises(ValueError, match=said):
            Contract.of(staged.content | {"first_stage": stage})


def test_the_mean_is_released_no_more_often_than_planned(staged: Sums) -> None:
    ask = staged.asks(router_of(staged.contract))[0]
    for attempt in range(3):
        answer = staged.answer(0, staged.other(ask, at=Position(0, attempt)))
        assert refused(answer) == (None if attempt < 2 else "over budget")


def test_a_router_that_confuses_lengths_is_refused(staged: Sums) -> None:
    contract, router = staged.contract, router_of(staged.contract)
    first, second = contract.sums_at(0), contract.sums_at(1)
    assert (first.dim, second.dim) == (5, 6)
    ask = staged.asks(router, 1)[0]
    (total,) = (Total.read(m, contract) for m in ask.attached if kind_of(m) == TOTAL)
    rest = [m for m in ask.attached if kind_of(m) != TOTAL]
    longer = mask_and_pack(np.zeros(6, np.int64), second.modulus_bits)
    later = replace(total.header, at=Position(1))
    for lie, reason in [
        (replace(total, packed=longer), "bad total"),
        (replace(total, packed=total.packed + b"x"), "bad total"),
        (replace(total, header=later), "not the next round"),
        (replace(total, header=later, packed=longer), "not the next round"),
    ]:
        answer = staged.answer(0, Ask(ask.at, (*rest, lie.as_bytes(contract))))
        assert refused(answer) == reason
    skips = staged.other(Ask(ask.at, tuple(rest)), at=Position(2))
    assert refused(staged.answer(0, skips)) == "not the next round"
    part = staged.part(0, ask)
    for short in (replace(part, packed=part.packed[:-1]), replace(part, header=total.header)):
        with pytest.raises(ValueError, match="part of the length"):
            Part.read(short.as_bytes(contract), contract)


def test_a_restored_party_knows_what_the_others_spent_of_each_kind(staged: Sums) -> None:
    router = router_of(staged.contract)
    staged.asks(router)
    old = staged.backup(1)
    staged.asks(router, 3)
    staged.restart(1, old)
    staged.run(router)
    assert staged.nodes[1]._spent == (1, 4)
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


def sent_to(made: Sums, receiver: int, asks: dict[int, Ask]) -> list[Part]:
    """Return what its neighbours send for the sum of a party."""
    asked = made.contract.sums.neighbors[receiver]
    parts = [part for party in asked for part in made.parts(party, asks[party])]
    return [part for part in parts if part.header.dealer == receiver]


def altered(made: Sums, ask: Ask, receiver: int, **changes: Any) -> Ask:
    """Return a question with another header for the sum of one party."""
    headers = [replace(h, **changes) if h.dealer == receiver else h for h in made.headers(ask)]
    rest = [m for m in ask.attached if kind_of(m) != HEADER]
    return Ask(ask.at, (*rest, *(header.as_bytes(made.contract) for header in headers)))


def total_of(made: Sums, parts: list[Part]) -> bytes:
    header = replace(parts[0].header, sealed=b"")
    return Total(header, *added(parts, made.contract)).as_bytes(made.contract)


def test_a_sum_over_neighbours_opens_for_its_receiver_alone_and_each_part_is_uniform(
    ring: Sums,
) -> None:
    asks = ring.asks(router_of(ring.contract))
    whole, w = (
        ring.contract.sums,
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
    _, _, _, *sealed = unpack(ring.nodes[0]._group_of().dealt())
    assert [party for party, secret in enumerate(sealed) if not secret] == [0, stranger]


@pytest.mark.parametrize("what", ["one", "all", "kept"])
def test_a_router_that_lies_about_a_transcript_opens_nothing_that_counts(
    what: str, ring: Sums
) -> None:
    """If it sends all neighbours the same lie, it opens their sum, which the receiver refuses."""
    router = router_of(ring.contract)
    asks = ring.asks(router, 1)
    lied = {"one": ring.contract.sums.neighbors[0][:1], "all": range(1, 6), "kept": ()}[what]
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
    ask = Ask.read(router.requests()[0], ring.contract)
    rest = [m for m in ask.attached if kind_of(m) != TOTAL]
    answer = ring.answer(0, Ask(ask.at, (*rest, total_of(ring, parts))))
    assert refused(answer) == (None if what == "kept" else "bad total")


def test_hostile_headers_and_totals_of_sums_over_neighbours_are_refused(ring: Sums) -> None:
    asks = ring.asks(router_of(ring.contract), 1)
    ask, near = asks[0], ring.contract.sums.neighbors[0]
    header = next(h for h in ring.headers(ask) if h.dealer == near[0])
    twice = header.as_bytes(ring.contract)
    (total,) = (Total.read(m, ring.contract) for m in ask.attached if kind_of(m) == TOTAL)
    of_another = replace(total, header=header).as_bytes(ring.contract)
    rest = [m for m in ask.attached if kind_of(m) != TOTAL]
    for lie, reason in [
        (Ask(ask.at, (*ask.attached, twice)), "malformed"),
        (altered(ring, ask, near[0], dealer=near[1]), "malformed"),  # two parts of one sum
        (altered(ring, ask, near[0], at=Position(1, 1)), "malformed"),
        (altered(ring, ask, near[0], cohort=header.cohort[1:]), "bad cohort"),
        (altered(ring, ask, near[0], cohort=tuple(range(6))), "bad cohort"),
        (altered(ring, ask, near[0], sealed=b""), "bad key"),
        (Ask(ask.at, (*rest, of_another)), "not the next round"),
    ]:
        assert refused(ring.answer(0, lie)) == reason
    assert not refused(ring.answer(0, ask))


def test_a_round_with_a_finer_grid_has_noise_of_its_own_for_each_value(tmp_path: Path) -> None:
    """Noise depends on what is added up in this round: a coarser grid would hide a difference."""
    step = {"step_size": {"kind": "PowerLaw", "scale": 64.0, "exponent": -6.0}}
    made = Sums(tmp_path, "neighbour sums", changes=step)
    made.asks(router_of(made.contract), 1)
    first, now = made.contract.sums, made.contract.algorithm.sums(1)
    values = np.zeros((1, 5)), np.full((1, 5), 2 * now.grid)
    assert first.grid > 8 * now.grid
    channel = made.nodes[0]._channel
    assert channel._step_key(values[0]) != channel._step_key(values[1])
    for folder in made.folders:
        folder.close()


# Contracts


def test_contracts_of_sums_that_do_not_fit_are_refused() -> None:
    example = Path(__file__).parents[2] / "examples" / "three_hospitals" / "secure_sum.toml"
    content = read_contract(example).settings.content
    records, sums = {"kind": "RecordGradients"}, {"kind": "SecureAggregation", "colluding": 1}
    for table, change, said in [
        ("algorithm", {"contribution": records | {"records": 5}}, "follows from the contract"),
        (
            "algorithm",
            {"contribution": records | {"neighboring_relation": "add_remove"}},
            "replace_one",
        ),
        ("algorithm", {"combination": sums | {"dropouts": 1}}, "2 honest sites"),
        ("algorithm", {"combination": sums | {"bits": 62}}, "bits"),
        ("contract", {"quorum": 2}, "quorum: wanted 3"),
        ("contract", {"numbers": "float32"}, "numbers: wanted float64"),
        ("topology", {"kind": "complete"}, "have a server and no topology"),
    ]:
        changed = {**content, table: content.get(table, {}) | change}
        with pytest.raises(ValueError, match=said):
            Contract.of(changed)
    poor = [content["party"][0] | {"epsilon": 1.0}, *content["party"][1:]]
    with pytest.raises(ValueError, match=r"wanted at least 1\.99888 for north"):
        Contract.of({**content, "party": poor})


def test_a_server_that_sees_each_part_is_refused(tmp_path: Path) -> None:
    content = Sums(tmp_path, "clients").content
    trusted = content["algorithm"] | {"combination": {"kind": "TrustedServer"}}
    with pytest.raises(ValueError, match="without a server that sees each part"):
        Contract.of({**content, "algorithm": trusted})

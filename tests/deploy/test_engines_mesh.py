"""Node and router, without a transport: the simulator's bits, one release each, refusals."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import mesh_fuzz
import numpy as np
import pytest
from mesh_parties import ALGORITHMS, NETWORK, PARTNERS, SUMS, Parties, Started

import dpmesh as dm
from dpmesh.deploy import Node, Position, Router, Row
from dpmesh.deploy.row import ROW
from dpmesh.deploy.signing import SigningKey, pack, unpack
from dpmesh.deploy.sums import TAG_SECRET
from dpmesh.deploy.wire import (
    BEFORE,
    ROLLBACK_REPORT,
    ReleaseIndex,
    RollbackQuestion,
    StepQuestion,
    kind_of,
    read_question,
    refusal_reason,
)

each = pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name != "noisy"])


@pytest.mark.slow
@each
def test_nodes_made_anew_for_each_message_and_asked_twice_have_the_simulators_bits(
    algorithm: str, tmp_path: Path
) -> None:
    parties = Parties(tmp_path, algorithm)
    router = Router(parties.contract)
    while not router.done:
        for party, message in router.requests().items():
            answer = parties.node(party).answer(message)
            again = parties.node(party).answer(message)
            assert again == answer or kind_of(answer) == TAG_SECRET  # sealed by a random nonce
            router.take(party, answer)
    simulated = parties.simulated()
    models = parties.models()[: len(simulated.parameters)]
    np.testing.assert_array_equal(models, simulated.parameters)
    released = np.concatenate([node.released for node in parties.nodes])
    np.testing.assert_array_equal(released[: len(simulated.released)], simulated.released)
    for folder in parties.folders:
        spent = folder.ledger(parties.contract).cost(1e-5).epsilon
        planned = parties.contract.plan.cost(1e-5).epsilon
        assert spent <= planned <= simulated.privacy.epsilon * 1.3
        if algorithm != "with replacement":  # chance decides whose turn it is
            assert spent == pytest.approx(planned, rel=1e-9)


@pytest.mark.parametrize(
    "algorithm", [name for name in ALGORITHMS if name not in ("noisy", *SUMS, *PARTNERS)]
)
def test_a_node_runs_each_round_once_and_made_anew_computes_the_same(
    algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parties = Parties(tmp_path, algorithm, rehearsal=False)
    contract, router = parties.contract, Router(parties.contract)
    kind, begun = type(contract.algorithm), []
    run_round = kind.round

    def counted(self: Any, state: Any, t: int, *rest: Any) -> Any:
        begun.append(t)
        return run_round(self, state, t, *rest)

    while not router.done:
        for party, message in router.requests().items():
            with monkeypatch.context() as patched:
                patched.setattr(kind, "round", counted)
                answer = parties.nodes[party].answer(message)
            router.take(party, answer)
            if kind_of(answer) == ROW:
                position = Row.read(answer, contract).position
                step = parties.folders[party].step(contract, position)
                assert parties.node(party)._computed(step)[1] == answer
    assert len(begun) == contract.nodes * contract.terms.rounds


@pytest.mark.parametrize("algorithm", ["quantized", "several mixings", "without replacement"])
def test_a_deployed_run_draws_noise_of_its_own(algorithm: str, tmp_path: Path) -> None:
    one, other = (Parties(tmp_path / name, algorithm, rehearsal=False) for name in ("one", "other"))
    for parties in (one, other):
        parties.run()
    assert np.abs(one.models() - other.models()).max() > 1e-3
    assert np.abs(one.models()[:1] - one.simulated().parameters[:1]).max() > 1e-3


@pytest.mark.parametrize("planted", ["", "forgotten", "rebuilt"])
def test_planted_noise_in_time_that_is_not_what_was_sent_is_caught(
    planted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart later rows go on from the very noise of earlier ones, which is stored."""
    parties, resumed = Parties(tmp_path, "in time"), Node._resumed

    def other(self: Node, until: Position) -> Any:
        channel = resumed(self, until)
        for rows in (channel.noise.memory, channel.noise.in_round):
            for name, row in rows.items():
                rows[name] = replace(row, earlier=tuple(0 * each for each in row.earlier))
            if planted == "forgotten":
                rows.clear()
        return channel

    router = Router(parties.contract)
    while router.open_position != Position(3):
        for party, message in router.requests().items():
            router.take(party, parties.nodes[party].answer(message))
    if planted:
        monkeypatch.setattr(Node, "_resumed", other)
    answer = parties.node(0).answer(router.requests()[0])
    assert refusal_reason(answer) == ("stopped" if planted == "forgotten" else None)
    if planted != "forgotten":
        parties.nodes[0] = parties.node(0)
        parties.run(router)
        same = np.array_equal(parties.models(), parties.simulated().parameters)
        assert same == (planted == "")


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["gradient descent", "with replacement"])
def test_a_network_has_the_simulators_bits(algorithm: str, tmp_path: Path) -> None:
    pytest.importorskip("jax")
    changes = {"clipping_norm": 1.0}
    parties = Parties(tmp_path, algorithm, nodes=2, problem=NETWORK, changes=changes)
    parties.run()
    simulated = parties.simulated()
    models = parties.models()[: len(simulated.parameters)]
    assert models.shape[1] == parties.contract.dim == 21
    np.testing.assert_array_equal(models, simulated.parameters)


@pytest.mark.parametrize(
    ("algorithm", "terms", "message"),
    [
        ("gradient descent", {"numbers": "float64"}, "contract.numbers: wanted 'float32' for a"),
        ("with replacement", {}, "clipping_norm: wanted a number, since the loss"),
        ("without replacement", {}, "clipping_norm: wanted a number, with AlwaysGlobal"),
    ],
)
def test_a_network_whose_proof_is_missing_is_refused(
    algorithm: str, terms: dict[str, Any], message: str, tmp_path: Path
) -> None:
    pytest.importorskip("jax")
    with pytest.raises(ValueError, match=re.escape(message)):
        Parties(tmp_path, algorithm, nodes=2, problem=NETWORK, **terms)


def test_a_lost_node_is_missing_and_catches_up_with_its_own_row(tmp_path: Path) -> None:
    """As in the simulator's network: both ends of its links put the weight on themselves."""
    parties = Parties(tmp_path, "gradient descent", rounds=6)
    router = Router(parties.contract)

    def lost(party: int, message: bytes) -> bool:
        position = router.open_position
        return party == 2 and position is not None and 1 <= position.round < 3

    parties.run(router, lost)
    assert router.missing == []
    ledger = parties.folders[2].ledger(parties.contract)
    assert ledger == parties.contract.plan
    assert np.isfinite(parties.models()).all()
    contract, state = parties.contract, parties.whole.zeros()
    for t in range(6):
        matrix = contract.topology.matrix(t)
        if t in (1, 2):
            matrix = matrix.keep_edges(~(matrix.edges == 2).any(axis=1))
        noisy = state.copy()
        if t:
            scale = 5.0 * 2 / 10
            noisy = dm.kernels.add_noise("gaussian", state, scale, contract.public_key.stream(1, t))
        b = dm.kernels.mix(matrix.weights, noisy)
        state = b - parties.whole.gradient(b, parties.whole.full_batches, clipping_norm=1.0)
    np.testing.assert_allclose(parties.models(), state, rtol=1e-12)


@pytest.mark.parametrize("algorithm", ["online", "without replacement"])
def test_a_run_pauses_below_the_quorum_and_says_for_whom(algorithm: str, tmp_path: Path) -> None:
    parties = Parties(tmp_path, algorithm, quorum=4)
    router = Router(parties.contract)
    for _ in range(20):
        for party, message in router.requests().items():
            if party != 2 or router.open_position is None:
                router.take(party, parties.nodes[party].answer(message))
    assert not router.close()
    assert router.waits_for == ["p2"]
    parties.run(router)
    assert router.done


def test_a_router_that_is_started_anew_gets_the_same_answers(tmp_path: Path) -> None:
    parties = Parties(tmp_path, "online")
    router = Router(parties.contract)
    for _ in range(3):
        for party, message in router.requests().items():
            router.take(party, parties.nodes[party].answer(message))
    assert router.open_position == Position(2)
    parties.run()
    np.testing.assert_array_equal(parties.models(), parties.simulated().parameters)


@pytest.mark.slow
@pytest.mark.parametrize("turn", [0, 1])
@pytest.mark.parametrize("killed", [False, True])
def test_a_holder_that_misses_the_deadline_of_a_turn_takes_its_next_one(
    killed: bool, turn: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row comes late, or it is killed between the charge and the row."""
    parties = Parties(tmp_path, "with replacement", rounds=12)
    router = Router(parties.contract)
    (holder,), turns = router.schedule.senders(router.schedule.after(None)), [0]

    def dies(*_: object) -> None:
        raise mesh_fuzz.Killed

    def lost(party: int, message: bytes) -> bool:
        if party != holder or not isinstance(
            read_question(message, parties.contract), StepQuestion
        ):
            return False
        turns[0] += 1
        if turns[0] != turn + 1:
            return False
        with monkeypatch.context() as patched, suppress(mesh_fuzz.Killed):
            if killed:
                patched.setattr(Node, "_computed", dies)
            parties.nodes[party].answer(message)
        parties.nodes[party] = parties.node(party)
        return True

    parties.run(router, lost)
    assert turns[0] > 2
    assert router.missing == []
    assert parties.nodes[holder].last_position == router.schedule.end


def test_a_party_that_starts_again_and_again_keeps_nobody_from_the_run(tmp_path: Path) -> None:
    """The others confirm their own starts, and answer their rounds."""
    parties = Parties(tmp_path, rehearsal=False)
    contract, router = parties.contract, Router(parties.contract)
    for turn in range(100):
        for party in range(4):
            if router.open_position is not None:
                fresh = RollbackQuestion(3, ReleaseIndex(0, BEFORE), turn.to_bytes(16, "big"))
                router.take(3, RollbackQuestion.together(contract, [fresh]))
            message = router.request(party)
            if message is not None and (party != 3 or router.open_position is None):
                router.take(party, parties.nodes[party].answer(message))
        if turn % 10 == 9:
            router.close()
    assert router.done
    assert router.missing == ["p3"]


@pytest.mark.parametrize("claim", ["nothing", "forged", "another's", "not later", "a part more"])
def test_who_claims_a_later_row_proves_it_or_counts_as_silent(claim: str, tmp_path: Path) -> None:
    """Party 0 starts again after round 1; one of those who hear it claims that it was restored."""
    started = Started(tmp_path, rehearsal=False, quorum=4)
    parties, router, contract = started.parties, started.router, started.parties.contract
    liar = min(router.schedule.confirmers(Position(2), 0)[0])
    row, key = started.rows[0], parties.folders[liar].signing
    later = {
        "forged": forged(row, key, party=0, position=Position(3)),
        "another's": forged(row, key, party=liar, position=Position(3)),
        "not later": parties.folders[0].step(contract, Position(1)).answer,
    }
    parties.nodes[0] = parties.node(0)
    for _ in range(20):
        for party, message in router.requests().items():
            answer = parties.nodes[party].answer(message)
            if kind_of(answer) == ROLLBACK_REPORT and party == liar and claim != "nothing":
                *fields, _ = unpack(answer)
                fields = [*fields[:-1], pack(later[claim]) if claim in later else b""]
                fields += [b""] if claim == "a part more" else []
                answer = pack(*fields, key.sign(*fields))
            router.take(party, answer)
    assert router.gone == {}
    assert router.done == (claim == "nothing")
    assert router.waits_for == ([] if router.done else ["p0", f"p{liar}"])


def longer(row: bytes) -> bytes:
    """Return a row whose party has a number of too many bytes."""
    kind, of, round_, exchange, party, *rest = unpack(row)
    return pack(kind, of, round_, exchange, b"\1" + party, *rest)


def forged(row: Row, key: SigningKey, **changes: Any) -> bytes:
    return Row(**(vars(row) | changes)).signed(key)


BAD_ROWS: list[tuple[dict[str, Any], str]] = [
    ({"encoded_values": np.full(5, 1e154).tobytes()}, "bad row of p1"),
    ({"encoded_values": np.full(5, np.nan).tobytes()}, "bad row of p1"),
    ({"encoded_values": np.full(5, 447.3).tobytes()}, "bad row of p1"),  # longer than largest_row
    ({"encoded_values": np.zeros(4).tobytes()}, "bad row of p1"),
    ({"dtype": "float32"}, "bad row of p1"),
    ({"dtype": "object"}, "bad row of p1"),
    ({"shape": (1, 4)}, "bad row of p1"),
    ({"position": Position(0)}, "bad row of p1"),
    ({"party": 2}, "malformed"),  # which it did not sign
    ({"contract": bytes(32)}, "malformed"),
    ({"party": 2**32 - 1}, "malformed"),
    ({"mixed_rows": bytes(7)}, "malformed"),
    ({"mixed_rows": bytes(8) + b"\xff" * 36}, "malformed"),  # of a party that there is not
]


def test_a_row_that_fails_the_public_checks_is_refused_and_nothing_is_charged(
    tmp_path: Path,
) -> None:
    started = Started(tmp_path)
    (row,) = (row for row in started.rows if row.party == 1)
    key = started.parties.folders[1].signing
    others = tuple(row.signed(started.parties.folders[row.party].signing) for row in started.rows)
    bad = [
        (StepQuestion(Position(2), (forged(row, key, **changes), *others[1:])), reason)
        for changes, reason in BAD_ROWS
    ]
    for ask, reason in bad:
        assert refusal_reason(started.answer(ask)) == reason
    good = started.answer(started.ask)
    assert refusal_reason(good) is None
    for ask, _ in bad:
        assert started.answer(ask) == good  # asked again with other rows: the same bits


def test_a_hostile_router_gets_one_release_and_each_refusal_says_why(tmp_path: Path) -> None:
    started = Started(tmp_path)
    contract, (position, rows) = started.parties.contract, started.ask
    node, (first, *_) = started.parties.nodes[0], rows
    stranger = Row.read(first, contract)
    for ask, reason in (
        (StepQuestion(Position(3), rows), "not the next round"),
        (StepQuestion(Position(2, 1), rows), "not the next round"),
        (StepQuestion(Position(2**32 - 1), rows), "not the next round"),
        (StepQuestion(position, (first, first)), "bad row of p1"),
        (StepQuestion(position, (forged(stranger, SigningKey.generate()),)), "malformed"),
    ):
        assert refusal_reason(started.answer(ask)) == reason
    for message, reason in (
        (b"", "malformed"),
        (b"\xff" * 40, "malformed"),
        (pack(b"dpmesh ask 1", contract.hash, b"1"), "malformed"),
        (pack(b"dpmesh ask 1", bytes(32)), "another contract"),
        (pack(b"dpmesh ask 1", contract.hash, bytes(9), bytes(4)), "malformed"),
        (pack(b"dpmesh fresh 2", contract.hash, b"\xff" * 9, bytes(16)), "malformed"),
        (pack(b"dpmesh ask 1", contract.hash, b"\0\0\0\2", bytes(4), longer(first)), "malformed"),
    ):
        assert refusal_reason(node.answer(message)) == reason
    alone = started.answer(
        StepQuestion(position, ())
    )  # every neighbour withheld: it goes on by itself
    assert started.answer(started.ask) == alone


def test_a_row_signed_twice_is_named(tmp_path: Path) -> None:
    started = Started(tmp_path)
    (row,) = (row for row in started.rows if row.party == 1)
    started.answer(started.ask)
    other = forged(row, started.parties.folders[1].signing, encoded_values=np.ones(5).tobytes())
    started.answer(StepQuestion(Position(2), (other,)))
    assert started.parties.nodes[0].protocol.witness.equivocating == {"p1"}


def test_a_party_that_sends_each_neighbour_another_row_is_named_by_a_third(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each of its neighbours sees one row alone; both sign what they mixed."""
    parties = Parties(tmp_path, rounds=6)
    contract, router = parties.contract, Router(parties.contract)
    while not router.done:
        for party, message in router.requests().items():
            asked = read_question(message, contract)
            if party == 3 and isinstance(asked, StepQuestion):
                rows = [Row.read(row, contract) for row in asked.attached if kind_of(row) == ROW]
                lies = [
                    forged(
                        row, parties.folders[row.party].signing, encoded_values=np.ones(5).tobytes()
                    )
                    if row.party == 2
                    else row.signed(parties.folders[row.party].signing)
                    for row in rows
                ]
                signed = [each for each in asked.attached if kind_of(each) != ROW]
                message = StepQuestion(asked.position, (*signed, *lies)).as_bytes(contract)
            router.take(party, parties.nodes[party].answer(message))
    assert parties.nodes[0].protocol.witness.disputed == {"p2"}
    assert re.search("p[13] and p[13] have different rows of p2", caplog.text)
    assert parties.nodes[2].protocol.witness.disputed == {"p2"}  # it knows what it sent


def test_a_failure_after_the_charge_stops_the_node_with_one_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    started = Started(tmp_path)

    def fails(*_: object) -> None:
        raise ValueError("a word planted in the records")

    node = started.parties.nodes[0]
    monkeypatch.setattr(node, "_computed", fails)
    message = started.ask.as_bytes(started.parties.contract)
    answers = [node.answer(message)]
    monkeypatch.undo()
    answers += [
        node.answer(message),
        node.answer(StepQuestion(Position(2), ()).as_bytes(node.contract)),
    ]
    assert [refusal_reason(answer) for answer in answers] == ["stopped"] * 3
    assert b"planted" not in b"".join(answers)
    assert "planted" in caplog.text
    assert len(started.parties.folders[0].ledger(node.contract).releases) == 3  # it is charged


@pytest.mark.slow
def test_random_schedules_release_once_and_end() -> None:
    mesh_fuzz.run_schedules(range(40))

"""Whatever rows a hostile router shows a node: a record moves its messages by what is charged."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import mesh_fuzz
import numpy as np
import pytest
from mesh_parties import ALGORITHMS, Parties

import dpmesh as dm
from dpmesh.algorithms.base import reason_messages_need_no_trust
from dpmesh.deploy import Folder, Node, Position
from dpmesh.deploy.row import check_norms

LARGEST = 1e3


def neighbours(path: Path, algorithm: str) -> tuple[Node, Node]:
    """Two nodes with the same keys, of records that differ in one, as far as they can."""
    everything = {"quantized": "sample_size", "public point": "sample_size"}
    everything["with replacement"] = "batch_size"  # so that samples have the record
    changes = {everything[algorithm]: 10} if algorithm in everything else {}
    parties = Parties(path, algorithm, largest_row=LARGEST, changes=changes)
    one, own = parties.nodes[0], parties.records[0]
    features, labels = own.features.copy(), own.labels.copy()
    labels[0] = -labels[0]
    other = Node.__new__(Node)
    vars(other).update(vars(one))
    other.problem = parties.contract.problem(dm.Dataset(features, labels, "neighbour"), 0)
    other.protocol = type(one.protocol)(other)
    return one, other


def hostile(rng: np.random.Generator, dim: int) -> Any:
    """A row of any length that passes the checks: 0, small, large or as long as it may be."""
    row = rng.normal(size=(1, dim))
    longest = LARGEST * (1 - 1e-12)
    return row / np.linalg.norm(row) * rng.choice([0.0, 1e-3, 1.0, 30.0, longest])


@pytest.mark.slow
@pytest.mark.parametrize(
    "algorithm", ["online", "quantized", "public point", "gradient descent", "several mixings"]
)
def test_a_record_moves_a_gossiping_node_by_what_is_charged_for_any_rows(
    algorithm: str, tmp_path: Path
) -> None:
    one, other = neighbours(tmp_path, algorithm)
    contract, rng, largest = one.contract, np.random.default_rng(0), 0.0
    for _ in range(150):
        states = [one.initial_state, other.initial_state]
        for t in range(contract.terms.rounds - 1):
            rows, until = {}, Position(t + 1)
            for exchange in range(contract.patterns.exchange_count(t)):
                sent = {party: hostile(rng, contract.dim) for party in rng.permutation(4)[:3]}
                sent[0] = hostile(rng, contract.dim)  # given what it sent itself
                rows[Position(t, exchange)] = sent
            for i, node in enumerate((one, other)):
                rounds = node.protocol.channel_from(states[i], t)
                rounds.rows.update(deepcopy(rows))
                rounds.run_to(until, ())
                states[i] = rounds.state
            a, b = (contract.algorithm.parameters(state) for state in states)
            moved, release = np.linalg.norm(a - b), contract.planned.releases(0, t + 1)[0]
            bound = contract.planned.as_charged(release).sensitivity.bound
            assert moved <= bound
            largest = max(largest, moved / bound)
    assert largest > 0.3


@pytest.mark.parametrize("algorithm", ["without replacement", "with replacement"])
def test_a_lying_holder_moves_a_record_by_at_most_what_is_charged(
    algorithm: str, tmp_path: Path
) -> None:
    one, other = neighbours(tmp_path, algorithm)
    contract, rng, largest = one.contract, np.random.default_rng(0), 0.0
    turns = [
        Position(t, k)
        for t in range(contract.terms.rounds)
        for k, holder in enumerate(one.schedule.token_holders(t))
        if holder == 0
    ]
    rounds = range(contract.terms.rounds)
    unit = max(contract.algorithm.least_scale_factor(t, one.problem) for t in rounds)
    for position in turns * 60:
        sent: dict[Position, Any] = {}
        for t in range(position.round + 1):
            for k, holder in enumerate(one.schedule.token_holders(t)):
                if holder == 0 and Position(t, k) < position:
                    sent[Position(t, k)] = {0: None}  # given what it sent itself
                elif Position(t, k) < position and rng.random() < 0.7:
                    sent[Position(t, k)] = {holder: hostile(rng, contract.dim)}
        packets = []
        for node in (one, other):
            rounds = node.protocol.channel_from(node.initial_state)
            rounds.rows.update(deepcopy(sent))
            packets.append(rounds.run_to(position, ()).values)
        if packets[0] is None:
            assert packets[1] is None
            continue
        moved = np.linalg.norm(packets[0] - packets[1])
        assert moved <= unit * (1 + contract.planned.rounding_share)
        largest = max(largest, moved / unit)
    assert largest > 0.1


def test_a_row_beyond_the_bound_is_refused_whatever_the_records(tmp_path: Path) -> None:
    contract = neighbours(tmp_path, "online")[0].contract
    for row in (np.full((1, 5), 1e154), np.full((1, 5), np.inf), np.full((1, 5), LARGEST)):
        with pytest.raises(ValueError, match="norm at most 1000"):
            check_norms(row, contract)


def test_charges_cover_the_rounding_of_long_rows(tmp_path: Path) -> None:
    """Against plain arithmetic: the noise stays, the distance grows by the rounding."""
    contract = Parties(tmp_path, "gradient descent", largest_row=1e6).contract
    release = contract.planned.releases(0, 1)[0]
    more = 4 * 2.0**-52 * 1e6 * contract.terms.rounds / release.sensitivity.bound
    charged = contract.planned.as_charged(release)
    assert charged.sensitivity.bound == pytest.approx(release.sensitivity.bound * (1 + more))
    assert charged.mechanism.noise_scale(charged.sensitivity, 5) == pytest.approx(
        release.mechanism.noise_scale(release.sensitivity, 5)
    )
    assert contract.plan.cost(1e-5).epsilon > contract.algorithm.plan(4).cost(1e-5).epsilon


def test_schedules_catch_a_node_that_answers_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: asked again, it forgets its answer and takes the rows that come this time."""
    step, last = Folder.step, Folder.last_step

    def forgets(self: Node, ask: Any) -> bytes:
        key = (self.contract.hash, *ask.position)
        found = step(self.folder, self.contract, ask.position)
        if found is not None and found == last(self.folder, self.contract):
            with self.folder.transaction():
                where = "where contract = ? and round = ? and exchange = ?"
                self.folder._file.execute(f"delete from steps {where}", key)
        return answer(self, ask)

    answer = Node._step
    monkeypatch.setattr(Node, "_step", forgets)
    with pytest.raises(AssertionError, match="schedule"):
        mesh_fuzz.run_schedules(range(40))


def test_schedules_catch_a_charge_that_comes_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: nothing is charged before the row is computed, so a kill loses the charge."""
    charge_step = Folder.charge_step

    def uncharged(
        self: Folder, contract: Any, position: Any, rows: Any, charged: Any, **options: Any
    ) -> None:
        charge_step(self, contract, position, rows, (), **options)

    monkeypatch.setattr(Folder, "charge_step", uncharged)
    with pytest.raises(AssertionError, match="schedule"):
        mesh_fuzz.run_schedules(range(10))


def test_each_algorithm_of_a_mesh_is_tried() -> None:
    kinds = {settings["kind"] for settings in ALGORITHMS.values()}
    for entry in dm.algorithms.registry.REGISTRY:
        if entry.kind.communication not in ("gossip", "token"):
            continue
        is_accepted = bool(reason_messages_need_no_trust(entry.example))
        assert not is_accepted or entry.kind.__name__ in kinds, (
            f"contracts accept {entry.kind.__name__}, since it states messages_need_no_trust: add "
            "its table to ALGORITHMS in tests/helpers/mesh_parties.py, and its name there to the "
            "tests of this file that show a node hostile rows"
        )

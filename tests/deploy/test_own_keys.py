"""Noise and coins of parties that each have a key of their own: no rehearsal, with one for all.

A rehearsal draws everything from the contract's public key, so that it has the simulator's bits.
What differs between parties, values, rounds and sums is seen only without it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mesh_parties import Parties

import dpmesh as dm
from dpmesh._privacy_types import Sensitive
from dpmesh.algorithms import Message, RecordSums
from dpmesh.deploy import Position, Row
from dpmesh.deploy.exchange import RowChannel
from dpmesh.deploy.partner_nonces import PartnerNonces
from dpmesh.deploy.row import PROCESS_NONCE_BYTES
from dpmesh.keys import Purpose

NODES = 4


@dataclass(frozen=True, kw_only=True)
class TwoSums(RecordSums):
    """Releases the sum of all records' vectors twice in a round."""

    def release_of(self, t: int) -> Any:
        once = super().release_of(t)
        return once, once

    def round(self, state: Any, t: int, problem: Any, key: Any) -> Any:
        values = Sensitive(np.zeros((problem.nodes, self.dim)))
        first = yield Message(values, super().release_of(t))
        second = yield Message(values, super().release_of(t))
        return replace(state, total=np.concatenate([first, second]))


@dataclass
class Sites:
    """Sites whose records are not asked for."""

    nodes: int
    test: None = None

    def vectors(self, node: int) -> Any:
        yield np.zeros((1, 64))


def test_two_sums_of_a_round_have_noise_of_their_own() -> None:
    algorithm = TwoSums(dim=64, sites=NODES, records=200, noise_to_sensitivity=4.0, secure=True)
    run = dm.simulate(
        algorithm, Sites(NODES), rounds=1, key=dm.Key.seeded(7), delta=1e-5, metrics=[]
    )
    first, second = run.parameters
    assert np.abs(first).sum() > 0
    assert (first != second).mean() > 0.5
    # Independent noise: a correlation beyond 5 standard errors is one of a million.
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(64)


def channel(parties: Parties, records: dm.Dataset) -> RowChannel:
    """The rounds of node 0 under one key and one context, on these records."""
    problem = parties.contract.problem(records, 0)
    node = parties.nodes[0]
    return RowChannel(node.schedule, 0, problem, node.key, b"context", node.initial_state)


@pytest.mark.parametrize("algorithm", ["online", "gradient descent", "quantized"])
def test_other_values_have_other_noise_under_the_same_inputs(
    algorithm: str, tmp_path: Path
) -> None:
    """Another processor, or records that were corrected, give other values of the same state."""
    parties = Parties(tmp_path, algorithm, rehearsal=False)
    rounds = channel(parties, parties.records[0])
    rounds.run_to(Position(0), ())
    values = np.ones((1, 5))
    close = values.copy()
    close[0, 4] = np.nextafter(1, 2)
    drawn = [
        float(dm.kernels.uniform(1, rounds.noise_key(Sensitive(each)).stream(Purpose.NOISE))[0])
        for each in (values, values.copy(), close, values.astype(np.float32), values.T)
    ]
    assert drawn[0] == drawn[1]
    assert len({*drawn}) == 4


def test_other_secrets_of_partners_have_other_noise_of_the_node_itself(tmp_path: Path) -> None:
    parties = Parties(tmp_path, "partners", rehearsal=False)
    values = Sensitive(np.ones((1, 5)))
    streams = []
    for seeds in ({1: b"a" * 32}, {1: b"a" * 32}, {1: b"b" * 32}, {}):
        rounds = channel(parties, parties.records[0])
        rounds.set_partner_seeds(seeds)
        rounds.run_to(Position(0), ())
        drawn = dm.kernels.uniform(1, rounds.noise_key(values).stream(Purpose.NOISE))
        streams.append(float(drawn[0]))
    assert streams[0] == streams[1]
    assert len({*streams}) == 3


def test_each_record_is_drawn_for_one_round_of_an_allocation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parties = Parties(tmp_path, "allocated online", rehearsal=False, rounds=6)
    kind = type(parties.contract.algorithm)
    examples = kind.examples
    used = np.zeros((NODES, 10), np.int64)

    def counted(self: Any, t: int, problem: Any, key: Any) -> Any:
        found = examples(self, t, problem, key)
        used[problem.members[0]] += np.bincount(found[1], minlength=10)
        return found

    parties.contract.patterns.check_thoroughly()
    for t in range(6):
        parties.contract.patterns.exchange_count(t)
        parties.contract.patterns.expected(t)
    monkeypatch.setattr(kind, "examples", counted)
    assert not parties.run().gone
    np.testing.assert_array_equal(used, np.ones_like(used))


def test_a_partner_counts_only_if_both_have_heard_of_each_other(tmp_path: Path) -> None:
    parties = Parties(tmp_path, "partners", rehearsal=False)
    schedule = parties.nodes[0].schedule
    other, *_ = schedule.partners(1, 0)
    own, theirs = (PartnerNonces(schedule, node, rehearsal=False) for node in (0, other))

    def row(partners: PartnerNonces, party: int) -> Row:
        contract = parties.contract
        said = partners.nonces_to_sign(1)
        return Row(contract.hash, Position(0), party, 0, "float64", (1, 5), b"", b"", said)

    def counted() -> dict[int, bytes]:
        return own.agreed(row(own, 0), [row(theirs, other)])

    assert counted() == {}
    theirs.update(0, own.process_nonce)
    assert counted() == {}  # it has heard of this node, which has not heard of it
    own.update(other, theirs.process_nonce)
    assert counted() == {other: theirs.process_nonce}
    own.update(other, b"x" * PROCESS_NONCE_BYTES)
    assert counted() == {}  # it has started anew since this node heard of it

"""Secrets between parties: what a node counts on, whatever a router shows and whoever restarts."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
from mesh_parties import Parties

import dpmesh as dm
from dpmesh.deploy import Folder, Node, Position, Router
from dpmesh.deploy.exchange import RowChannel
from dpmesh.deploy.row import ROW
from dpmesh.deploy.wire import StepQuestion, kind_of, read_question, refusal_reason
from dpmesh.keys import Key, Purpose
from dpmesh.noise import correlated
from dpmesh.noise.correlated.secrets import Secrets
from dpmesh.privacy.plan import Plan
from dpmesh.run.noise import NoiseRows


def mu_of(factors: np.ndarray, shifted: list[int], unknown: np.ndarray) -> float:
    """mu of one unit in these rows, of noise `factors` times the normals that are unknown."""
    shift = np.zeros(len(factors))
    shift[shifted] = 1
    left = factors[:, unknown]
    return float(np.sqrt(shift @ np.linalg.solve(left @ left.T, shift)))


@pytest.mark.slow
def test_a_star_holds_whatever_all_others_do() -> None:
    """Random graphs, one-ended secrets, missing rows and coalitions: brute force is never above."""
    rng, largest = np.random.default_rng(5), 0.0
    for _ in range(400):
        nodes = int(rng.integers(3, 8))
        pairs = [(i, j) for i in range(nodes) for j in range(i) if rng.random() < 0.8]
        of_claim = {"pairs": pairs, "coalition": int(rng.integers(0, 3)), "star": True}
        sizes = rng.uniform(0.2, 1.0), rng.uniform(0.2, 3.0)
        secrets = Secrets(nodes=nodes, own=sizes[0], shared=sizes[1], **of_claim)
        noise = np.zeros((nodes, nodes + len(pairs)))
        for node in range(nodes):
            held = secrets.counting(
                node, rng.permutation(nodes)[: rng.integers(nodes + 1)].tolist()
            )
            noise[node, node] = held.own
            for i, j in held.pairs.tolist():
                noise[node, nodes + pairs.index((j, i))] = held.shared * (1 if node == i else -1)
        colluding = rng.permutation(nodes)[: secrets.coalition].tolist()
        honest = [node for node in range(nodes) if node not in colluding]
        known = [node in colluding for node in range(nodes)]
        unknown = ~np.array(known + [bool({*pair} & {*colluding}) for pair in pairs])
        sent = [node for node in honest if rng.random() < 0.9]
        for place, _ in enumerate(sent):
            mu = mu_of(noise[sent], [place], unknown)
            assert mu <= secrets.mu * (1 + 1e-9)
            largest = max(largest, mu / secrets.mu)
        claims = [secrets.mu_against(k) for k in range(nodes)]
        assert claims == sorted(claims)
        assert claims[-1] <= secrets.mu_against(None) * (1 + 1e-9)
        assert secrets.mu_of(colluding) <= secrets.mu_against(len(colluding)) * (1 + 1e-12)
    assert largest > 1 - 1e-6


def test_links_that_are_cut_elsewhere_would_show_a_node_whose_partners_all_count() -> None:
    """The page's example: a torus with mu = 1, of which a node and its partners are cut off."""
    whole = correlated.links(dm.topology.torus(4, 4).matrix(0))
    sizes = {"own": 0.30, "shared": 0.921}
    assert Secrets(nodes=16, pairs=whole, **sizes).mu == pytest.approx(1, abs=2e-3)
    left = Secrets(nodes=5, pairs=[(0, i) for i in range(1, 5)], **sizes)
    assert left.leverages(())[1][0] ** 0.5 == pytest.approx(1.55, abs=5e-3)


@pytest.mark.parametrize(("nodes", "coalition"), [(3, 0), (8, 2)])
def test_on_complete_graphs_a_star_is_the_whole_graph(nodes: int, coalition: int) -> None:
    network = dm.topology.complete(nodes)
    made = [
        correlated.BetweenPartners(topology=network, rounds=9, coalition=coalition, star=star)
        for star in (False, True)
    ]
    whole, own = (each.release(4.0, np.ones(8)).secrets for each in made)
    assert isinstance(whole, Secrets)
    assert isinstance(own, Secrets)
    assert own.own == pytest.approx(whole.own, rel=1e-9)
    assert own.shared == pytest.approx(whole.shared, rel=1e-9)


def test_a_star_is_charged_by_its_claim_also_after_it_was_stored() -> None:
    network = dm.topology.torus(3, 3)
    noise = correlated.Both(topology=network, rounds=9, bands=2, coalition=1, star=True)
    algorithm = dm.OnlineLearning(epsilon=2.0, delta=1e-5, noise=noise)
    plan = algorithm.plan(9)
    assert plan.cost(1e-5).epsilon == pytest.approx(2.0, rel=1e-6)
    assert Plan.from_dict(plan.as_dict()).cost(1e-5) == plan.cost(1e-5)
    against = [
        plan.cost(1e-5, view=dm.privacy.views.EverybodyButPartners(coalition=c)).epsilon
        for c in range(5)
    ]
    assert against[0] == against[1] == plan.cost(1e-5).epsilon < against[2] < against[3]
    everybody = {
        plan.cost(1e-5, view=view).full_view_epsilon
        for view in (
            dm.privacy.views.EverybodyButPartners(coalition=1),
            dm.privacy.views.OneNode(topology=network),
        )
    }
    assert everybody == {against[4]}  # all four partners: own noise alone
    known = f"who know each secret, a run has epsilon = {dm.privacy.rounded_up(against[4])}"
    assert any(known in text for text in dm.privacy.report(plan, 1e-5).assumptions)
    with pytest.raises(ValueError, match="partners that hold the same record"):
        replace(plan, copies=2)


def test_a_short_number_of_a_process_moves_no_other_in_what_a_node_signs(tmp_path: Path) -> None:
    parties = Parties(tmp_path, "partners", rehearsal=False, topology={"kind": "complete"})
    partners, numbers = parties.nodes[0].protocol.partner_nonces, [bytes([n]) * 8 for n in range(4)]
    for party in (1, 2, 3):
        partners.update(party, numbers[party])
    partners.update(1, b"short")
    assert partners.nonces_to_sign(1) == b"".join([partners.process_nonce, *numbers[1:]])


class Read:
    """What the noise of each row was made of: normals that the test draws again, and factors."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.rows: dict[int, list[Any]] = defaultdict(list)
        share, step_key, draw = RowChannel.set_partner_seeds, RowChannel.noise_key, NoiseRows.draw
        now: dict[str, Any] = {}

        def shared(channel: Any, seeds: Any) -> None:
            now.update(node=channel.node, seeds=seeds)
            share(channel, seeds)

        def keyed(channel: Any, values: Any) -> Any:
            now["key"] = step_key(channel, values)
            return now["key"]

        def drawn(rows: Any, key: Any, mechanism: Any, t: int, values: Any) -> Any:
            noise, joint = draw(rows, key, mechanism, t, values), mechanism.joint
            unit = joint.recursion[mechanism.row, 0] / joint.noise_to_sensitivity
            self.rows[t].append(now | {"noise": noise[0] * unit})
            return noise

        patch.setattr(RowChannel, "set_partner_seeds", shared)
        patch.setattr(RowChannel, "noise_key", keyed)
        patch.setattr(NoiseRows, "draw", drawn)

    def worst(self) -> float:
        """Return the largest mu of a round, at noise multiplier 1, of one row of a node."""
        return max(map(self._worst, self.rows))

    def _worst(self, t: int) -> float:
        rows = self.rows[t]
        normals = [_normals(row["key"], Purpose.NOISE, t, row["node"], row) for row in rows]
        held = [(row["node"], *each) for row in rows for each in row["seeds"].items()]
        pairs = {(min(node, j), max(node, j), seed) for node, j, seed in held}
        for i, j, seed in pairs:
            key = Key.seeded(int.from_bytes(seed, "big"))
            normals.append(_normals(key, Purpose.PAIR, t, j * (j - 1) // 2 + i, rows[0]))
        drawn, flat = np.stack(normals), np.stack([row["noise"] for row in rows])
        factors = np.linalg.lstsq(drawn.T, flat.T, rcond=None)[0].T
        np.testing.assert_allclose(factors @ drawn, flat, atol=1e-9)
        mus = []
        for node in range(4):
            own = [place for place, row in enumerate(rows) if row["node"] == node]
            mus.append(mu_of(factors, own, np.ones(len(drawn), bool)) / len(own) ** 0.5)
        return max(mus)


def _normals(key: Key, purpose: int, t: int, number: int, row: dict[str, Any]) -> Any:
    stream = key.stream(purpose, t)
    return dm.kernels.gaussian((1, row["noise"].size), 1.0, stream, nodes=[number])[0]


@pytest.mark.parametrize("planted", ["", "links cut elsewhere", "number kept"])
def test_noise_read_back_is_what_is_charged_and_planted_mistakes_are_seen(
    planted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A router cuts rows, a node is killed, and three folders are restored in round 4."""
    if planted == "links cut elsewhere":  # the plan's own noise, whoever counts
        counting = Secrets.counting
        monkeypatch.setattr(
            Secrets, "counting", lambda of, *rest: replace(counting(of, *rest), own=of.own)
        )
    read, rng = Read(monkeypatch), np.random.default_rng(2)
    changes = {"noise": {"kind": "BetweenPartners"}, "mixings": 1}
    own: dict[str, Any] = {"changes": changes, "topology": {"kind": "complete"}, "dim": 60}
    parties = Parties(tmp_path, "partners", rehearsal=False, rounds=6, **own)
    contract, router = parties.contract, Router(parties.contract)

    def cut(ask: StepQuestion, share: float) -> bytes:
        kept = [m for m in ask.attached if kind_of(m) != ROW or rng.random() >= share]
        return StepQuestion(ask.position, tuple(kept)).as_bytes(contract)

    def answer(party: int, message: bytes) -> bytes:
        ask = read_question(message, contract)
        if not isinstance(ask, StepQuestion):
            return parties.nodes[party].answer(message)
        if (party, ask.position) == (1, Position(2)):
            parties.nodes[1] = parties.node(1)  # which is asked again once others have answered
        if ask.position != Position(4) or party == 0:
            return parties.nodes[party].answer(cut(ask, 0.2 * (ask.position < Position(4))))
        copytree(tmp_path / f"p{party}", place := tmp_path / f"copy {party}")
        sent = parties.nodes[party].answer(message)
        restored = Node(contract, Folder.open(place), parties.records[party])
        restored._confirmed = True  # by a router that hides what others say
        if planted == "number kept":
            restored.protocol.partner_nonces.process_nonce = parties.nodes[
                party
            ].protocol.partner_nonces.process_nonce
        restored.key = Key.generate()  # as its noise is under other rows
        assert refusal_reason(restored.answer(message)) is None
        return sent

    while not router.done:
        for party, message in router.requests().items():
            router.take(party, answer(party, message))
    assert [len(read.rows[t]) for t in range(1, 6)] == [4, 4, 4, 7, 4]
    assert {len(row["seeds"]) for row in read.rows[5]} == {3}
    assert {len(row["seeds"]) for t in (2, 3) for row in read.rows[t]} >= {0, 2}
    worst = read.worst()
    assert worst <= 1 + 1e-9 if planted == "" else worst > 1.2

"""Contracts and parties for tests of the mesh: each with a folder of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np

import dpmesh as dm
from dpmesh.deploy import Contract, Folder, Node, Position, Router, Row
from dpmesh.deploy.signing import unpack
from dpmesh.deploy.sums import HEADER, Header, MaskedPart
from dpmesh.deploy.wire import (
    ROLLBACK_REPORT,
    RollbackQuestion,
    StepQuestion,
    kind_of,
    read_question,
    refusal_reason,
)
from dpmesh.kernels import unpack_sum

PUBLIC = "05" * 32
ONLINE = {"kind": "OnlineLearning", "epsilon": 2.0}
GAUSSIAN = ONLINE | {"delta": 1e-5}
ALLOCATED = {"sampling": "allocation", "records": 10}
DESCENT = {"kind": "GradientDescent", "records": 10, "noise_multiplier": 10.0}
STEPS = {"step_size": 0.5, "consensus_step_size": 0.5, "sample_size": 2, "noise_std": 0.5}
QUANTIZED = {"kind": "QuantizedGossip", **STEPS}
TURNS = {"kind": "WithoutReplacement", "batch_size": 2}
GRADIENTS = {"kind": "RecordGradients"}
UPDATES = {"kind": "ClientUpdates", "clipping_norm": 0.5, "sampling_rate": 0.5, "steps": 2}
SUMMED = {"kind": "FederatedLearning", "combination": {"kind": "SecureAggregation"}}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "online": ONLINE,
    "noisy": ONLINE | {"epsilon": 0.01},
    "allocated online": {"kind": "OnlineLearning", "delta": 1e-5, "batch_size": 2, **ALLOCATED},
    "in time": GAUSSIAN | {"noise": {"kind": "InTime", "bands": 2}},
    "partners": DESCENT | {"mixings": 2, "noise": {"kind": "BetweenPartners", "mixings": 2}},
    "both": GAUSSIAN | {"noise": {"kind": "Both", "bands": 2}},
    "quantized": QUANTIZED | {"compressor": {"kind": "Quantizer", "step": 0.1}},
    "public point": {
        **QUANTIZED,
        "mode": "public_point",
        "compressor": {"kind": "Levels", "levels": 4},
    },
    "gradient descent": DESCENT,
    "several mixings": DESCENT | {"mixings": 2},
    "without replacement": {
        **TURNS,
        "step_size": 0.5,
        "arrival_rate": 0.8,
        "controller": {"kind": "RandomGlobal", "rate": 0.5},
    },
    "allocated without replacement": {
        **TURNS,
        **ALLOCATED,
        "step_size": 0.02,
        "controller": {"kind": "Periodic", "period": 2},
        "decisions": "together",
    },
    "with replacement": {
        "kind": "WithReplacement",
        "records": 10,
        "noise_multiplier": 4.0,
        "batch_size": 2,
        "visits": 2,
    },
    "sums": {**SUMMED, "contribution": GRADIENTS, "noise_multiplier": 18.0, "step_size": 2.0},
    "clients": {**SUMMED, "contribution": UPDATES | {"batch_size": 4}, "noise_multiplier": 3.0},
    "neighbour sums": {"kind": "SecureGossip", "noise_multiplier": 18.0, "step_size": 2.0},
}
STAGES = {
    "first stage": {"noise_to_sensitivity": 7.0},
    "second moment": {"noise_to_sensitivity": 7.0, "moment_noise": 5.0},
}
ALGORITHMS |= dict.fromkeys(STAGES, ALGORITHMS["sums"])
PARTNERS = ("partners", "both")
SUMS = ("sums", "clients", *STAGES, "neighbour sums")


def network() -> Any:
    """Return a network in JAX: a hidden layer of 3 units on 5 features, for two classes."""
    import jax
    import jax.numpy as jnp

    def start(key: Any) -> Any:
        return {"in": jax.random.normal(key, (5, 3)), "out": jnp.ones((3, 2))}

    return start, lambda params, x: jnp.tanh(x @ params["in"]) @ params["out"]


NETWORK: dict[str, Any] = {"kind": "jax", "model": "mesh_parties:network"}


class Parties:
    """Parties with folders under `path`, and their contract."""

    def __init__(
        self,
        path: Path,
        algorithm: str = "online",
        *,
        nodes: int = 4,
        rounds: int = 4,
        records: int = 10,
        dim: int = 5,
        budget: float = 1000.0,
        rehearsal: bool = True,
        marks: Path | None = None,
        changes: dict[str, Any] | None = None,
        problem: dict[str, Any] | None = None,
        topology: dict[str, Any] | None = None,
        module: str | None = None,
        **terms: Any,
    ) -> None:
        self.path = path
        self.rehearsal = rehearsal
        self.names = [f"p{i}" for i in range(nodes)]
        rng = np.random.default_rng(3)
        x = rng.normal(size=(nodes * records, dim))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        if problem is not None:
            terms.setdefault("numbers", "float32")
        lower = -1 if problem is None else 0  # a network has classes 0 and 1
        numbers = x.astype(terms.get("numbers", "float64"))
        everything = dm.Dataset(numbers, np.where(x[:, 0] > 0, 1, lower), "synthetic")
        parts = np.split(np.arange(len(x)), nodes)
        self.records = [everything.take(part) for part in parts]
        budget_and_marks: dict[str, Any] = {"epsilon": budget, "delta": 1e-5, "marks": marks}
        self.folders = [Folder.create(path / name, **budget_and_marks) for name in self.names]
        settings = ALGORITHMS[algorithm] | (changes or {})
        ring = {"kind": "ring"}
        quorum = terms.pop("quorum", nodes if algorithm in SUMS else nodes // 2 + 1)
        if algorithm in ("sums", "clients", *STAGES):
            losses_allowed = {"colluding": int(quorum == nodes), "dropouts": nodes - quorum}
            settings["combination"] = losses_allowed | settings["combination"]
        self.content: dict[str, Any] = {
            "format": 2,
            "contract": {
                "rounds": rounds,
                "public_key": PUBLIC,
                "largest_row": 1e3,
                "deadline": 10.0,
                "quorum": quorum,
                "features": dim,
                **terms,
            },
            "problem": problem or {"loss": "logistic", "feature_norm": 1.0},
            "algorithm": settings,
            "party": [
                {
                    "name": name,
                    "signing_key": folder.signing.public.hex(),
                    "records": records,
                    "epsilon": budget,
                    "delta": 1e-5,
                }
                for name, folder in zip(self.names, self.folders, strict=True)
            ],
        }
        if algorithm in STAGES:
            self.content["first_stage"] = STAGES[algorithm]
        if algorithm == "neighbour sums":
            self.content["topology"] = topology or {"kind": "complete"}
        elif not settings["kind"].startswith("With") and algorithm not in SUMS:
            self.content["topology"] = topology or ring | {"keep": 0.8}
        own_module = __name__ if problem is not None else module
        self.contract = Contract.of(self.content, own_module)
        self.whole = self.contract.problem_of(everything, parts)
        self.nodes = [self.node(i) for i in range(nodes)]

    def node(self, number: int) -> Node:
        """Return the node of a party, made anew from its folder."""
        folder_and_records = self.folders[number], self.records[number]
        return Node(self.contract, *folder_and_records, rehearsal=self.rehearsal)

    def models(self) -> Any:
        """Return all parties' own models."""
        return np.concatenate([node.local_model() for node in self.nodes])

    def simulated(self) -> Any:
        """Return the run of the simulator, under the contract's key."""
        contract = self.contract
        return dm.simulate(
            contract.algorithm,
            self.whole,
            contract.topology,
            rounds=contract.terms.rounds,
            key=contract.public_key,
            delta=1e-5,
            metrics=[],
        )

    def run(self, router: Router | None = None, lost: Any = lambda party, message: False) -> Router:
        """Run to the end in this process; `lost` says which messages do not arrive."""
        if router is None:
            router = Router(self.contract)
        while not router.done:
            moved = False
            for party, message in router.requests().items():
                if not lost(party, message):
                    moved = True
                    router.take(party, self.nodes[party].answer(message))
            if not moved:
                assert router.close(), router.waits_for
        return router


class Started:
    """Parties whose node 0 has answered rounds 0 and 1, and the question for round 2."""

    def __init__(self, path: Path, algorithm: str = "online", **terms: Any) -> None:
        self.parties = Parties(path, algorithm, **terms)
        self.router = Router(self.parties.contract)
        while self.router.open_position != Position(2):
            for party, message in self.router.requests().items():
                self.router.take(party, self.parties.nodes[party].answer(message))
        self.ask = read_question(self.router.requests()[0], self.parties.contract)
        self.rows = [Row.read(row, self.parties.contract) for row in self.ask.attached]

    def answer(self, ask: StepQuestion) -> bytes:
        before = self.parties.folders[0].ledger(self.parties.contract)
        answer = self.parties.nodes[0].answer(ask.as_bytes(self.parties.contract))
        if refusal_reason(answer):
            assert self.parties.folders[0].ledger(self.parties.contract) == before
        return answer


class Sums(Parties):
    """Parties whose contract adds up sums, with methods to ask them by hand."""

    def __init__(self, path: Path, algorithm: str = "sums", **terms: Any) -> None:
        super().__init__(path, algorithm, **{"rehearsal": False, **terms})

    def asks(self, router: Router, t: int = 0) -> dict[int, StepQuestion]:
        """Return what an honest router asks in a round, of parties that may answer it."""
        for _ in range(100):
            asks: dict[int, StepQuestion] = {}
            for party, message in router.requests().items():
                if router.open_position == Position(t) and self.may_answer(party, message):
                    asks[party] = read_question(message, self.contract)  # type: ignore[assignment]
                else:
                    router.take(party, self.nodes[party].answer(message))
            if len(asks) == len(self.nodes):
                return asks
            for question in [*router._questions.values()]:  # also of parties that are held
                for node in self.nodes:
                    fresh = RollbackQuestion.together(self.contract, question)
                    router.take(node.number, node.answer(fresh))
        raise AssertionError(f"it hangs at {router.open_position}")

    def may_answer(self, party: int, message: bytes) -> bool:
        """Return True if all others have confirmed a party's start."""
        if not is_ask(message):
            return False
        confirmations = [
            m
            for m in read_question(message, self.contract).attached
            if kind_of(m) == ROLLBACK_REPORT
        ]
        return self.nodes[party]._confirmed or len(confirmations) >= len(self.nodes) - 1

    def answer(self, party: int, ask: StepQuestion) -> bytes:
        """Return a party's answer; if it refuses, it is charged nothing."""
        before = self.folders[party].ledger(self.contract)
        answer = self.nodes[party].answer(ask.as_bytes(self.contract))
        if refusal_reason(answer):
            assert self.folders[party].ledger(self.contract) == before
        return answer

    def part(self, party: int, ask: StepQuestion) -> MaskedPart:
        return self.parts(party, ask)[0]

    def parts(self, party: int, ask: StepQuestion) -> list[MaskedPart]:
        _, *parts = unpack(self.answer(party, ask))
        return [MaskedPart.read(part, self.contract) for part in parts]

    def other(self, ask: StepQuestion, **changes: Any) -> StepQuestion:
        """Return a question with another header."""
        header = replace(self.header(ask), **changes)
        attached = [m for m in ask.attached if kind_of(m) != HEADER]
        return StepQuestion(header.position, (*attached, header.as_bytes(self.contract)))

    def opened(self, parts: list[MaskedPart]) -> Any:
        """Return what a router can open of parts, in steps of the grid."""
        sums = self.contract.planned.first_sum
        return unpack_sum([part.packed for part in parts], sums.dim, sums.modulus_bits)

    def header(self, ask: StepQuestion) -> Header:
        return self.headers(ask)[0]

    def headers(self, ask: StepQuestion) -> list[Header]:
        messages = (m for m in ask.attached if kind_of(m) == HEADER)
        return [Header.read(message, self.contract) for message in messages]

    def own(self, party: int | None = None) -> Any:
        """Return a party's rounded vector of round 0, or the sum of all."""
        contract = self.contract
        w = contract.algorithm.init(self.whole, contract.public_key).w
        sums = contract.algorithm.contribution.sums(w, 0, self.whole, contract.public_key)
        if party is None:
            return sums.sum(axis=0) / contract.planned.first_sum.grid
        return sums[party] / contract.planned.first_sum.grid

    def is_open(self, total: Any, vector: Any, shares: float) -> bool:
        """Return True if a total is a vector with so many shares of noise, and not uniform."""
        error = np.sqrt(((total - vector) ** 2).mean())
        return bool(error < 1.7 * np.sqrt(shares) * self.contract.planned.first_sum.share)

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

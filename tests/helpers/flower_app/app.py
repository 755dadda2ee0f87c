"""A Flower app of federated learning and several contracts, for the test of a deployment."""

from __future__ import annotations

import os
import pickle
import time
from contextlib import closing
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

import dpmesh as dm
from dpmesh.deploy.flower import Courier, DPFedLS, answers, flat, private_update, unflat
from dpmesh.deploy.signing import pack, unpack

CLIENTS = 4
ROUNDS = 1
STEP = 0.5
KEY = dm.Key.seeded(3)
NAMES = [f"p{client}" for client in range(CLIENTS)]
ALGORITHM = dm.FederatedLearning(
    dm.ClientUpdates(
        clients=CLIENTS,
        sampling_rate=1.0,
        clipping_norm=0.3,
        sampling="uniform",
        batch_size=50,
        steps=1,
        step_size=STEP,
    ),
    noise_multiplier=1.4,
)

client_app = ClientApp(mods=[private_update(ALGORITHM.contribution.clipping_norm)])
server_app = ServerApp()


def make_problem() -> dm.LinearProblem:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(40, 4))
    train = dm.Dataset(x, np.where(x[:, 0] > 0, 1, -1), "synthetic")
    return dm.LinearProblem(train, tuple(np.split(rng.permutation(40), CLIENTS)), "logistic")


def public() -> tuple[Path, dict]:
    """Return the folder of the deployment, and what the test put there."""
    folder = Path(os.environ["DPMESH_FLOWER_RESULT"]).parent
    return folder, pickle.loads((folder / "public").read_bytes())


@client_app.train()
def train(message: Message, context: Context) -> Message:
    start = message.content["arrays"]
    problem = make_problem()
    node = NAMES.index(context.node_config["dpmesh-party"])
    w = flat(start)
    trained = problem.step(w, STEP, problem.records_of(np.array([node])), out=w.copy())
    content = RecordDict({"arrays": unflat(trained, start), "m": MetricRecord({"loss": 0.0})})
    return Message(content, reply_to=message)


@answers(client_app)
def answer(question: bytes, context: Context) -> bytes:
    """Answer for the party's nodes of all contracts, as Flower starts a process each time."""
    folder, public_data = public()
    party = NAMES.index(context.node_config["dpmesh-party"])
    from dpmesh import deploy

    replies = []
    for (name, content), message in zip(public_data["mesh"].items(), unpack(question), strict=True):
        with closing(deploy.Folder.open(folder / name / NAMES[party])) as opened:
            contract = deploy.Contract.of(content)
            records = public_data["records"][party]
            node = deploy.Node(contract, opened, records, rehearsal=True)
            replies.append(node.answer(message) if message else b"")
    return pack(*replies)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    folder, public_data = public()
    results = {}
    if "federated" in public_data:
        strategy = DPFedLS(ALGORITHM, delta=1e-5, key=KEY, parties=NAMES)
        federated = strategy.start(grid, ArrayRecord({"w": Array(np.zeros(4))}), num_rounds=ROUNDS)
        results = {"federated": flat(federated.arrays)}
    results["missing"] = route_meshes(grid, folder, public_data["mesh"])
    new = folder / "new.npz"
    np.savez(new, **results)
    new.replace(folder / "result")


def route_meshes(grid: Grid, folder: Path, contents: dict) -> list[str]:
    """Route all meshes at once, as `route` does one; return who is missing in each.

    A file for each round appears when all meshes have come to it.
    """
    from dpmesh import deploy

    routers = [deploy.Router(deploy.Contract.of(content)) for content in contents.values()]
    courier = Courier(grid, NAMES)
    questions = dict[int, bytes]()
    while not all(router.done for router in routers):
        requests = [router.requests() for router in routers]
        for party in {*range(CLIENTS)} - questions.keys():
            if any(party in messages for messages in requests):
                questions[party] = pack(*(messages.get(party, b"") for messages in requests))
        for party, replies in courier.exchange(questions).items():
            del questions[party]
            for router, answer in zip(routers, unpack(replies), strict=True):
                if answer:
                    router.take(party, answer)
        for router in routers:
            if router.waits_since() > router.contract.terms.deadline:
                router.close()
        reached = min(
            -1 if router.open_position is None else router.open_position.round for router in routers
        )
        for t in range(reached + 1):
            (folder / f"round{t}").touch()
        time.sleep(0.5)
    return [", ".join(router.missing) for router in routers]

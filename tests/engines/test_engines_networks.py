"""A network under secure sums and on Flower: the simulator's models.

`test_engines_mesh.py` and `test_engines_mpi.py` have one on the mesh and over ranks.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from problems import jax_network, network_records

import dpmesh as dm
from dpmesh._ragged import Walks
from dpmesh.engines.secure import Contract, Folder, Server, Site, in_process, record_sums, train
from dpmesh.keys import Key

DELTA = 1e-5


def test_secure_sums_have_the_simulators_bits(tmp_path: Path) -> None:
    problem, key = jax_network(*network_records(), regularization=0.1), Key.seeded(4)
    sites = problem.nodes
    algorithm = dm.CrossSiloSGD(
        dim=problem.dim, sites=sites, records=problem.train.records, rounds=3, noise_multiplier=9.0
    )
    folders = [Folder.create(tmp_path / str(i), epsilon=8.0, delta=DELTA) for i in range(sites)]
    keys = tuple(folder.signing.public for folder in folders)
    contract = Contract(numbers=algorithm.secure_sum, model="a network", site_keys=keys)
    sums = [record_sums(contract, algorithm, problem.for_nodes([i])) for i in range(sites)]
    answering = [
        Site(contract, folder, own, rehearsal=key)
        for folder, own in zip(folders, sums, strict=True)
    ]
    server = Server(contract, in_process(answering))
    found = train(server, algorithm, problem.initial(key), regularization=0.1)
    simulated = dm.simulate(algorithm, problem, rounds=3, key=key, delta=DELTA, metrics=[])
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, simulated.released)


@pytest.mark.usefixtures("inside_an_app")
def test_flower_has_the_simulators_models() -> None:
    """Up to the rounding of a model less the global one, in float32."""
    app = pytest.importorskip("flwr.app", reason="needs the extra 'flower'")
    from flower_clients import STEP, Clients, L

    from dpmesh.engines.flower import DPFedLS, flat, private_update

    problem, key = jax_network(*network_records()), Key.seeded(3)
    algorithm = dm.FederatedLearning(
        dm.ClientUpdates(
            clients=problem.nodes,
            sampling_rate=1.0,
            clipping_norm=L,
            sampling="uniform",
            batch_size=50,
            steps=1,
            step_size=STEP,
        ),
        noise_multiplier=0.7,
    )

    class Networks(Clients):
        def train(self, message: Any, context: Any) -> Any:
            (arrays,) = message.content.array_records.values()
            w, client = flat(arrays), self.nodes[message.metadata.dst_node_id]
            one_step = Walks(np.array([0, 1]), problem.records_of(np.array([client])))
            moved = w + problem.local_training(w, one_step, step_size=STEP, radius=L)
            content = app.RecordDict({"model": record(moved), "m": app.MetricRecord({})})
            return app.Message(content, reply_to=message)

    def record(w: Any) -> Any:
        return app.ArrayRecord({"w": app.Array(w.ravel())})

    strategy = DPFedLS(algorithm, delta=DELTA, key=key)
    clients = Networks(problem, private_update(L), problem.nodes)
    found = flat(strategy.start(clients, record(problem.initial(key)), 3).arrays)
    simulated = dm.simulate(algorithm, problem, rounds=3, key=key, delta=DELTA)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, simulated.parameters, rtol=1e-5, atol=1e-5)
    assert strategy.report == replace(simulated.privacy, not_covered=())

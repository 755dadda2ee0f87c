"""A network under secure sums and on Flower: the simulator's models.

`test_engines_mesh.py` and `test_engines_mpi.py` have one on the mesh and over ranks.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mesh_parties import NETWORK, Parties
from problems import jax_network, network_records

import dpmesh as dm
from dpmesh._ragged import Walks
from dpmesh.keys import Key

DELTA = 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["sums", "clients"])
def test_sums_between_parties_have_the_simulators_bits(algorithm: str, tmp_path: Path) -> None:
    pytest.importorskip("jax")
    parties = Parties(tmp_path, algorithm, problem=NETWORK)
    parties.run()
    simulated = parties.simulated().released
    assert simulated.dtype == np.float32
    for node in parties.nodes:
        np.testing.assert_array_equal(node.released, simulated)


@pytest.mark.slow
@pytest.mark.usefixtures("inside_an_app")
def test_flower_has_the_simulators_models() -> None:
    """Up to the rounding of a model less the global one, in float32."""
    app = pytest.importorskip("flwr.app", reason="needs the extra 'flower'")
    from flower_clients import STEP, Clients, L

    from dpmesh.deploy.flower import DPFedLS, flat, private_update

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
        noise_multiplier=1.4,
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

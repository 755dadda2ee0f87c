"""Flower's own simulation: clients in JAX, of whom one answers late and one drops out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dpmesh as dm

pytestmark = pytest.mark.slow  # processes of Flower

PROGRAM = Path(__file__).parents[1] / "helpers" / "flower_simulation.py"


def test_a_simulation_gives_the_models_of_ours_and_survives_faults(tmp_path: Path) -> None:
    """In the last round two of five clients are missing: it costs what the others do."""
    for module in ("flwr", "jax", "ray"):
        pytest.importorskip(module, reason="needs flwr[simulation] and the extra 'jax'")
    from flower_simulation import ALGORITHM, CLIENTS, KEY, ROUNDS, make_problem

    result = tmp_path / "result.npz"
    path = [str(Path(dm.__file__).parent.parent), str(PROGRAM.parent)]
    environment = {
        **os.environ,
        "FLWR_HOME": str(tmp_path),
        "FLWR_TELEMETRY_ENABLED": "0",
        "PYTHONPATH": os.pathsep.join(path),
    }
    run = subprocess.run(
        [sys.executable, str(PROGRAM), str(result)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.exists(), run.stdout + run.stderr
    found = np.load(result)
    assert found["answers"].tolist() == [CLIENTS, CLIENTS, CLIENTS - 2]
    problem = make_problem()
    for rounds in range(1, ROUNDS + 1):
        simulated = dm.simulate(ALGORITHM, problem, rounds=rounds, key=KEY, delta=1e-5)
        assert found["epsilons"][rounds - 1] == simulated.privacy.epsilon
        close = np.allclose(found["models"][rounds - 1], simulated.parameters[0], atol=1e-6)
        assert close is (rounds < ROUNDS)

"""An algorithm and a mechanism of a user's module, together through every door."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import command
from mesh_parties import Parties

from dpmesh.algorithms import registry
from dpmesh.experiments import Experiment, read
from dpmesh.noise import Independent

PAGE = Path(__file__).parents[2] / "docs" / "own_mechanism.md"

ALGORITHM = '''

import dpmesh as dm
from dpmesh.algorithms.registry import Entry, register
from dpmesh.privacy import Sensitive


class Damped(dm.GradientDescent):
    """Gradient descent whose nodes go half of the way."""

    messages_need_no_trust = "what others send is post-processing"

    def round(self, state, t, problem, key):
        after = yield from super().round(state, t, problem, key)
        return type(after)(Sensitive((state.x + after.x) / 2))


register(
    Entry(
        name="damped",
        kind=Damped,
        example=Damped(records=4, noise_multiplier=4.0),
        asked=("records", "copies"),
    )
)
'''

EXPERIMENT = """format = 2
[run]
rounds = 3
seed = 1
delta = 1e-5
[data]
source = "digits"
positive = [5, 6, 7, 8, 9]
records = 200
[partition]
kind = "iid"
nodes = 4
[problem]
loss = "logistic"
feature_norm = 1.0
[topology]
kind = "complete"
[algorithm]
kind = "Damped"
noise_multiplier = 40.0
noise = {kind = "Logistic"}
"""


@pytest.fixture
def newcomers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A temporary module with both, in the working folder."""
    (mechanism,) = re.findall(r"^```python\n(\"\"\"Logistic.*?)^```", PAGE.read_text(), re.S | re.M)
    (tmp_path / "newcomers.py").write_text(mechanism + ALGORITHM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    import newcomers  # type: ignore[import-not-found]

    yield newcomers
    sys.modules.pop("newcomers")
    registry.REGISTRY[:] = [entry for entry in registry.REGISTRY if entry.name != "damped"]
    registry.KINDS.pop("Damped", None)


def test_a_file_runs_both(newcomers: Any, tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    experiment = Experiment.of(read(tmp_path / "experiment.toml", "newcomers"))
    algorithm: Any = experiment.algorithm
    assert type(algorithm) is newcomers.Damped
    assert algorithm.noise == Independent(newcomers.Logistic)
    assert experiment.simulate().privacy.epsilon == pytest.approx(0.1, rel=0.01)


def test_four_parties_of_a_contract_run_both(newcomers: Any, tmp_path: Path) -> None:
    changes = {"kind": "Damped", "noise": {"kind": "Logistic"}}
    parties = Parties(tmp_path / "p", "gradient descent", changes=changes, module="newcomers")
    assert len(parties.nodes) == 4
    assert type(parties.contract.algorithm) is newcomers.Damped
    parties.run()
    np.testing.assert_array_equal(parties.models(), parties.simulated().parameters)


def test_commands_price_and_audit_both(newcomers: Any) -> None:
    both = ("newcomers:damped", "--mechanism", "newcomers:Logistic")
    asked = ("--records", "50", "--noise", "100", "--rounds", "5")
    assert "logistic of Logistic, scale 2 where" in command("privacy", *both, *asked)
    few = ("--runs", "20", "--canaries", "20", "--seed", "1")
    assert "no violation found" in command("audit", *both, *few)

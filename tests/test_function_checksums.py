"""A function is known by what it does, in every process alike."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from dpmesh.run.functions import code_checksum
from dpmesh.run.identity import identity

SOURCE = """
import functools
import numpy as np

FACTOR = 2.0
NAMES = {"one", "two", "three"}

def helper(x):
    return FACTOR * x

def make(weights, scale=1.0):
    def loss(x, y, *, shift=0.5):
        if y in {"alpha", "beta", "gamma", "delta"} or x in NAMES:
            return 0.0
        return sum(map(lambda w: scale * w * helper(x), weights)) + shift
    return loss

loss = make(np.arange(3.0))
"""


def module(source: str, name: str = "user") -> types.ModuleType:
    made = types.ModuleType(name)
    exec(compile(source, f"{name}.py", "exec"), made.__dict__)
    return made


def checksum(source: str) -> int | None:
    return code_checksum(module(source).loss)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("scale * w", "scale + w"),  # bytecode of a nested function
        ('"gamma"', '"Gamma"'),  # a constant in a set
        ("return 0.0", "return 1.0"),
        ("shift=0.5", "shift=0.6"),
        ("scale=1.0", "scale=1.5"),  # closed over
        ("np.arange(3.0)", "np.arange(4.0)"),
        ("return FACTOR * x", "return FACTOR + x"),  # what it calls
        ("FACTOR = 2.0", "FACTOR = 2.5"),
        ('"three"}', '"four"}'),
        ("weights)) + shift", "weights[:2])) + shift"),
    ],
)
def test_another_code_or_value_has_another_checksum(before: str, after: str) -> None:
    assert SOURCE.count(before) == 1
    assert checksum(SOURCE.replace(before, after)) != checksum(SOURCE)


def test_places_and_what_is_not_read_do_not_count() -> None:
    moved = "# a comment\n\n\n" + SOURCE.replace("    return FACTOR", "\n    return FACTOR")
    more = SOURCE + "\nOTHER = 1\ndef other(x):\n    return x\n"
    assert checksum(moved) == checksum(more) == checksum(SOURCE)


def test_every_process_finds_the_same_checksum(tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text("\n\n" + SOURCE)
    program = (
        "from dpmesh.run.functions import code_checksum; import user;"
        "print(code_checksum(user.loss))"
    )
    for seed in ("1", "2", "3"):
        environment = os.environ | {"PYTHONHASHSEED": seed}
        found = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            check=True,
            text=True,
        )
        assert int(found.stdout) == checksum(SOURCE)


def test_partial_bound_and_wrapped_functions_are_read_too() -> None:
    user = module(SOURCE)

    class Model:
        def loss(self, x: float) -> float:
            return x

    wrapped = functools.wraps(user.loss)(lambda *a: user.loss(*a))
    one, other = (functools.partial(user.make, scale=scale) for scale in (1.0, 2.0))
    assert code_checksum(one) != code_checksum(other)
    assert code_checksum(one) == code_checksum(functools.partial(module(SOURCE).make, scale=1.0))
    assert None not in {code_checksum(Model().loss), code_checksum(wrapped)}
    assert {code_checksum(value) for value in (None, 1.0, Model, Model(), len, np.exp)} == {None}


@pytest.mark.parametrize(
    "made",
    [
        sparse.csr_array,
        sparse.coo_matrix,
        lambda x: pytest.importorskip("jax.numpy").asarray(x),
        lambda x: pytest.importorskip("torch").tensor(x),
        lambda x: pytest.importorskip("pandas").DataFrame(x),
    ],
)
def test_arrays_of_other_libraries_are_read_too(made: Any) -> None:
    def loss_of(x: np.ndarray[Any, Any]) -> Any:
        weights = made(x)
        return lambda y: weights @ y

    one, same, other = (code_checksum(loss_of(factor * np.eye(2))) for factor in (1, 1, 2))
    assert one == same != other


OBJECTS = """
class Network:
    def __init__(self, temperature):
        self.temperature = temperature
    def loss(self, x):
        return x / self.temperature

def made(temperature):
    network = Network(temperature)
    return lambda x: network.loss(x)
"""


@pytest.mark.parametrize("loss_of", ["made({})", "Network({}).loss"])
def test_what_an_object_holds_is_read_too(loss_of: str) -> None:
    one, same, other = (
        code_checksum(eval(loss_of.format(temperature), vars(module(OBJECTS))))
        for temperature in (1.0, 1.0, 2.0)
    )
    assert one == same != other


def test_what_a_module_of_pytorch_holds_is_read_too() -> None:
    """A start that is a copy of a trained module: with the same noise, another one shows."""
    torch = pytest.importorskip("torch")

    def start_of(weight: float) -> Any:
        trained = torch.nn.Linear(2, 2)
        torch.nn.init.constant_(trained.weight, weight)
        torch.nn.init.zeros_(trained.bias)
        return lambda: trained

    one, same, other = (code_checksum(start_of(weight)) for weight in (1.0, 1.0, 2.0))
    assert one == same != other


def test_a_run_leaves_its_functions_checksum_as_it_is() -> None:
    """Python rewrites bytecode as it runs, and once more for who traces it."""
    loss = module(SOURCE).loss
    before = code_checksum(loss)
    for _ in range(100):
        loss(1.0, "other")
    traced = sys.gettrace()
    sys.settrace(lambda *_: None)
    loss(1.0, "other")
    sys.settrace(traced)
    assert code_checksum(loss) == before


def test_a_function_that_calls_itself_ends() -> None:
    source = "def loss(x):\n    return loss(x - 1) if x else unknown\n"
    assert checksum(source) == checksum(source) != checksum(source.replace("- 1", "- 2"))


@dataclass(frozen=True)
class Holder:
    part: Any


def test_runs_of_other_functions_are_other_runs() -> None:
    user, edited = module(SOURCE), module(SOURCE.replace("FACTOR * x", "FACTOR + x"))

    def runs(loss: Any) -> list[Any]:
        holders = Holder(loss), Holder(Holder(loss)), Holder(np.array([1.0]))
        return [identity(holder, holder, None, None, 1) for holder in holders]

    here, again, there = runs(user.loss), runs(module(SOURCE).loss), runs(edited.loss)
    assert here == again
    assert [a == b for a, b in zip(here, there, strict=True)] == [False, False, True]
    assert "0x" not in here[0]["algorithm"]

"""The contract of algorithms on ranks: the bits of one process, or a refusal before any release."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import registry_sweep
from registry_sweep import CASES, EXAMPLES
from test_engines_mpi import succeed

FEW = [number for number, (_, change) in enumerate(CASES) if not change][::4]
"""One algorithm of four, unchanged: a few seconds. The slow test below has all of them."""


def outcomes(folder: Path, numbers: list[int], *, ranks: int = 3) -> dict[str, str]:
    """Return what cases did on ranks, by what was changed."""
    file = folder / "outcomes.json"
    program = registry_sweep.__file__
    succeed(ranks, "-m", "mpi4py", program, file, json.dumps(numbers), program=False)
    found: dict[str, str] = json.loads(file.read_text())
    assert len(found) == len(numbers)
    return {str(CASES[int(number)]): outcome for number, outcome in found.items()}


def test_the_sweep_has_every_algorithm_that_learns() -> None:
    assert {name for name, _ in CASES} == {*EXAMPLES}
    assert len(CASES) > 8 * len(EXAMPLES)


def test_algorithms_have_the_bits_of_one_process_on_ranks(tmp_path: Path) -> None:
    found = outcomes(tmp_path, FEW, ranks=2)
    assert {*found.values()} <= {"same", "refused"}, found
    assert "same" in found.values()


@pytest.mark.slow
def test_each_parameter_and_mechanism_has_the_bits_of_one_process_or_is_refused(
    tmp_path: Path,
) -> None:
    """All algorithms in one launch: to start three ranks takes as long as the cases of one."""
    found = outcomes(tmp_path, [*range(len(CASES))])
    wrong = {case: found[case] for case in found if found[case] not in ("same", "refused")}
    assert not wrong

"""Secure sums over MPI: integers that add up to the bits of one process on any number of ranks."""

from __future__ import annotations

import json
from importlib import util
from pathlib import Path

import mpi_sums_program
import numpy as np
import pytest
from test_engines_mpi import assert_same, launch, stop, succeed

import dpmesh as dm

PROGRAM = ("-m", "mpi4py", Path(mpi_sums_program.__file__))
NAMES = ["full", "sampled", "full float32", "sampled float32", "clients", "sampled clients"]
NAMES += ["neighbours", "neighbours float32"]


WITH_JAX = [] if util.find_spec("jax") is None else ["network"]


@pytest.fixture(scope="module")
def on_three_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the runs of three ranks, all of one launch: to start them takes longest."""
    folder = tmp_path_factory.mktemp("ranks")
    saved = dm.Checkpoint(folder / "resumed" / "sampled" / "checkpoint", every=2)
    with pytest.raises(KeyboardInterrupt):
        mpi_sums_program.run("sampled", checkpoint=saved, callback=stop)
    ended = launch(2, *PROGRAM, folder, "failing", program=False)
    assert ended.returncode != 0
    path = folder / "failing" / "checkpoint"
    failed = "rank 1 of 2 failed: ArithmeticError: the round went wrong"
    assert ended.stderr.count(f"{failed} (5 rounds are in {path})") == 2
    cases = [*NAMES, *WITH_JAX, "resumed/sampled", "failing"]
    succeed(3, *PROGRAM, folder, *cases, program=False)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", [*NAMES, *WITH_JAX])
def test_sums_on_three_ranks_have_the_bits_of_one_process(name: str, on_three_ranks: Path) -> None:
    assert_same_and_resumable(name, 3, on_three_ranks / name)


@pytest.mark.slow
def test_sums_on_one_rank_have_the_bits_of_one_process(tmp_path: Path) -> None:
    succeed(1, *PROGRAM, tmp_path, *NAMES, program=False)
    for name in NAMES:
        assert_same_and_resumable(name, 1, tmp_path / name)


def assert_same_and_resumable(name: str, ranks: int, folder: Path) -> None:
    """Models, history, ledger and traffic; and a checkpoint that one process can go on from."""
    alone = mpi_sums_program.run(name)
    assert_same(folder, alone)
    assert_same(folder, mpi_sums_program.run(name, checkpoint=folder / "checkpoint"))
    planned = mpi_sums_program.ALGORITHMS[name].plan(mpi_sums_program.ROUNDS)
    made = alone.ledger.releases
    assert list(made) == list(planned.releases[: len(made)])
    assert len(made) == mpi_sums_program.ROUNDS
    words = 8 * alone.parameters.size * mpi_sums_program.ROUNDS if ranks > 1 else 0
    assert json.loads((folder / "sent.json").read_text()) == [[words, words]] * ranks


@pytest.mark.slow
def test_ranks_go_on_with_sums_from_the_checkpoint_of_one_process(on_three_ranks: Path) -> None:
    assert_same(on_three_ranks / "resumed" / "sampled", mpi_sums_program.run("sampled"))


@pytest.mark.slow
def test_a_site_that_fails_stops_all_ranks_and_others_go_on(on_three_ranks: Path) -> None:
    assert_same(on_three_ranks / "failing", mpi_sums_program.run("failing"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ranks", "said"),
    [
        ("full", 5, "ranks: wanted an integer of at least 1 and below 5, got 5"),
        ("three", 2, "ValueError: problem: wanted one with 3 clients, got 2 of 4"),
        ("in the clear", 2, "ValueError: release: wanted a sum of all nodes, since they are on"),
        ("server", 1, "engine: ranks have no trusted server, which is one process that sees"),
    ],
)
def test_what_does_not_add_up_on_ranks_is_refused(
    name: str, ranks: int, said: str, tmp_path: Path
) -> None:
    ended = launch(ranks, *PROGRAM, tmp_path, name, program=False)
    assert ended.returncode != 0
    assert said in ended.stderr
    assert not (tmp_path / name / "run.json").exists()


def test_a_bad_site_is_named_by_its_number_in_the_whole() -> None:
    whole = mpi_sums_program.make("full")
    held = [len(part) for part in whole.partition]
    few = mpi_sums_program.silos(records_per_client=max(held) - 1)
    at = int(np.argmax(held))
    with pytest.raises(ValueError, match=rf"got {max(held)} at client {at}"):
        few.init(whole.for_nodes([1, at]), dm.Key.seeded(1))

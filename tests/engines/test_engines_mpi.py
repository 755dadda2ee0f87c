"""Gossip over MPI: the same bits for any number of ranks, and no row travels that need not."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from importlib import util
from pathlib import Path
from typing import Any

import mpi_program
import numpy as np
import pytest
from scipy import sparse

import dpmesh as dm
from dpmesh import kernels, topology
from dpmesh.engines.blocks import blocks, boundary

PROGRAM = Path(__file__).parents[1] / "helpers" / "mpi_program.py"


def busiest(weights: sparse.csr_array, parts: list[np.ndarray]) -> int:
    """Rows that the rank receives that receives most."""
    return max(sum(boundary(weights, parts, rank).receive) for rank in range(len(parts)))


@pytest.fixture(params=["with METIS", "without METIS"])
def metis(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    there = util.find_spec("pymetis") is not None
    if request.param == "without METIS":
        monkeypatch.setattr(util, "find_spec", lambda name: None)
    elif not there:
        pytest.skip("needs pymetis")
    return request.param == "with METIS"


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 12])
def test_blocks_hold_every_node_once_and_cut_few_links(ranks: int, metis: bool) -> None:
    scattered = np.random.default_rng(0).permutation(12)
    weights = topology.ring(12).matrix(0).weights[scattered][:, scattered]
    parts = blocks(weights, ranks)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(12))
    assert {len(part) for part in parts} == {12 // ranks}
    most = 2 if metis else 4  # the order folds a ring: a run of it has two pieces
    assert busiest(weights, parts) <= (most if ranks > 1 else 0)


@pytest.mark.parametrize(
    ("graph", "least"),
    [
        (topology.torus(32, 32), 64),  # squares or strips
        (topology.random_regular(400, 4, key=dm.Key.seeded(0)), 80),
    ],
    ids=["torus", "random regular"],
)
def test_a_quarter_of_a_graph_has_a_small_boundary(graph, least: int, metis: bool) -> None:
    weights = graph.matrix(0).weights
    parts = blocks(weights, 4)
    assert max(map(len, parts)) <= 1.01 * graph.nodes / 4
    assert busiest(weights, parts) <= (1.4 if metis else 2.6) * least


def test_more_ranks_than_nodes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"ranks: wanted an integer .* below 5, got 5"):
        blocks(topology.ring(4).matrix(0).weights, 5)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_boundaries_fit_each_other_and_give_the_bits_of_one_process(ranks: int) -> None:
    graph = topology.random_regular(20, 4, key=dm.Key.seeded(0)).matrix(0)
    x = np.random.default_rng(1).normal(size=(20, 3)).astype(np.float32)
    whole = kernels.mix(graph.weights, x)
    parts = blocks(graph.weights, ranks)
    across = [boundary(graph.weights, parts, rank) for rank in range(ranks)]
    for rank, mine in enumerate(across):
        came = [x[parts[other]][across[other].send[rank]] for other in range(ranks)]
        assert [len(rows) for rows in came] == mine.receive
        assert len(came[rank]) == 0
        mixed = kernels.mix(mine.weights, np.vstack([x[parts[rank]], *came]))
        np.testing.assert_array_equal(mixed, whole[parts[rank]])
        needed = np.setdiff1d(graph.weights[parts[rank]].indices, parts[rank])
        assert sum(mine.receive) == len(needed)


def launch(ranks: int, *arguments: object, program: bool = True) -> subprocess.CompletedProcess:
    pytest.importorskip("mpi4py")
    here = str(Path(sys.executable).parent)
    launcher = shutil.which("mpiexec", path=here) or shutil.which("mpiexec")
    if launcher is None:
        pytest.skip("needs mpiexec")
    python = [sys.executable, "-m", "mpi4py", PROGRAM] if program else [sys.executable]
    command = [launcher, "-n", str(ranks), *python, *arguments]
    open_mpi = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    }
    # There are more ranks than cores: one that waits must not keep a core busy.
    idle = {"MPIR_CVAR_ENABLE_HEAVY_YIELD": "1", "OMPI_MCA_mpi_yield_when_idle": "1"}
    return subprocess.run(
        list(map(str, command)),
        env={**os.environ, **open_mpi, **idle},
        capture_output=True,
        text=True,
        timeout=600,
    )


def succeed(ranks: int, *arguments: object, program: bool = True) -> str:
    done = launch(ranks, *arguments, program=program)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def without_baselines(run: str) -> dict[str, Any]:
    """What a run stores, but for what only a process that holds all records can compute."""
    stored: dict[str, Any] = json.loads(run)
    of_all_records = ("baselines", "measured", "population")
    return {name: value for name, value in stored.items() if name not in of_all_records}


def assert_same(folder: Path, alone: dm.Run) -> None:
    np.testing.assert_array_equal(np.load(folder / "parameters.npy"), alone.parameters)
    np.testing.assert_array_equal(np.load(folder / "released.npy"), alone.released)
    assert without_baselines((folder / "run.json").read_text()) == without_baselines(
        json.dumps(alone.as_dict())
    )
    assert (folder / "ledger.txt").read_text() == str(alone.ledger)


PACKED = ["quantized", "narrow", "levels", "sparse", "discrete"]
PERSONAL = ["groups", "each", "packed"]
TOKEN = ["token", "learned", "with replacement"]


RESUMED = ["online", "token", "learned"]
TOGETHER = [*mpi_program.TOGETHER, "token in time"]
ANYWHERE = ["online", "local steps", *PACKED, *PERSONAL, *TOKEN, "one learns"]
"""Algorithms that run on three ranks and on one."""


def stop(round: int, values: object) -> None:
    """End a process in the middle of a run."""
    if round == 6:
        raise KeyboardInterrupt


@pytest.fixture(scope="module")
def on_three_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the runs of three ranks, all of one launch: to start them takes longest."""
    folder = tmp_path_factory.mktemp("ranks")
    for name in RESUMED:
        saved = dm.Checkpoint(folder / "resumed" / name / "checkpoint", every=2)
        with pytest.raises(KeyboardInterrupt):
            mpi_program.run(name, "varying", checkpoint=saved, callback=stop)
    with_jax = ["hidden layer"] if util.find_spec("jax") is not None else []
    names = {
        "ring": [*TOGETHER, "resting", "overspending"],
        "varying": [*ANYWHERE, *with_jax, "ended"],
        "resumed": RESUMED,
    }
    cases = [f"{network}/{name}" for network in names for name in names[network]]
    succeed(3, folder, *cases)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", TOGETHER)
def test_noise_that_works_together_is_that_of_one_process(name: str, on_three_ranks: Path) -> None:
    """Secrets of partners on different ranks; and a checkpoint that one process can go on from."""
    assert_same_and_resumable(name, "ring", on_three_ranks / "ring" / name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ANYWHERE, "hidden layer"])
def test_three_ranks_have_the_bits_of_one_process(name: str, on_three_ranks: Path) -> None:
    if name == "hidden layer":
        pytest.importorskip("jax")
    assert_same_and_sparing(name, on_three_ranks / "varying" / name)


@pytest.mark.slow
def test_one_rank_has_the_bits_of_one_process(tmp_path: Path) -> None:
    succeed(1, tmp_path, *(f"varying/{name}" for name in ANYWHERE))
    for name in ANYWHERE:
        assert_same_and_sparing(name, tmp_path / "varying" / name)


def assert_same_and_resumable(name: str, network: str, folder: Path) -> None:
    """Models, history and ledger; and a checkpoint that one process can go on from."""
    assert_same(folder, mpi_program.run(name, network))
    assert_same(folder, mpi_program.run(name, network, checkpoint=folder / "checkpoint"))


def assert_same_and_sparing(name: str, folder: Path) -> None:
    """The same, and no row travels that need not."""
    assert_same_and_resumable(name, "varying", folder)
    for sent, least in json.loads((folder / "sent.json").read_text()):
        assert sent == least if name not in [*PACKED, "packed"] else least <= sent


@pytest.mark.slow
def test_ranks_with_keys_of_their_own_start_at_the_same_point(on_three_ranks: Path) -> None:
    start = np.load(on_three_ranks / "ring" / "resting" / "parameters.npy")
    assert start.any()
    np.testing.assert_array_equal(start, np.repeat(start[:1], mpi_program.NODES, axis=0))


@pytest.mark.slow
def test_the_keys_of_all_ranks_count(tmp_path: Path) -> None:
    """The noise of one rank's nodes is that of its own key, also in rounds that run again."""
    succeed(2, tmp_path, "ring/own keys")
    run = json.loads((tmp_path / "ring" / "own keys" / "run.json").read_text())
    assert "NOT private: seeded noise" in str(run["privacy"]["assumptions"])
    succeed(2, tmp_path, "ring/own keys")
    refused = launch(2, tmp_path, "ring/own keys again")
    assert refused.returncode != 0
    assert "key: wanted that of the run in the checkpoint" in refused.stderr
    other_nodes = launch(2, tmp_path, "ring/own keys dealt anew")
    assert other_nodes.returncode != 0
    assert "nodes of each rank: wanted " in other_nodes.stderr


def test_ranks_that_do_not_release_the_same_are_stopped(tmp_path: Path) -> None:
    refused = launch(2, tmp_path, "ring/less noise elsewhere")
    assert refused.returncode != 0
    assert "releases: wanted the same on all ranks" in refused.stderr


@pytest.mark.parametrize(
    ("name", "named"), [("another epsilon", "algorithm"), ("more rounds", "rounds")]
)
def test_ranks_that_do_not_run_the_same_are_refused(name: str, named: str, tmp_path: Path) -> None:
    refused = launch(2, tmp_path, f"ring/{name}")
    assert refused.returncode != 0
    assert f"{named}: wanted the same on all ranks" in refused.stderr


@pytest.mark.slow
def test_what_other_ranks_released_in_a_round_over_the_budget_is_counted(
    on_three_ranks: Path,
) -> None:
    run = json.loads((on_three_ranks / "ring" / "overspending" / "run.json").read_text())
    alone = mpi_program.run("overspending", "ring")
    assert alone.settings["rounds"] == "3 of 8: there the budget ended"
    assert [release.round for release in alone.ledger.releases][-1] == 3
    assert run["privacy"] == json.loads(json.dumps(alone.privacy.as_dict()))


@pytest.mark.slow
def test_packed_rows_travel_packed(tmp_path: Path) -> None:
    """Two ranks of a ring: 2 rows from each in a round, of 5 float64 unpacked."""
    cases = ("ring/online", "ring/quantized")
    succeed(2, tmp_path, *cases)
    floats, packed = (json.loads((tmp_path / case / "sent.json").read_text()) for case in cases)
    assert floats == [[mpi_program.ROUNDS * 2 * 40] * 2] * 2
    for (sent, least), (unpacked, _) in zip(packed, floats, strict=True):
        # a length of 8 bytes for each of at most 2 widths of codes
        assert least <= sent <= least + mpi_program.ROUNDS * 2 * 8 < unpacked


@pytest.mark.slow
@pytest.mark.parametrize("name", RESUMED)
def test_ranks_go_on_from_the_checkpoint_of_one_process(name: str, on_three_ranks: Path) -> None:
    assert_same(on_three_ranks / "resumed" / name, mpi_program.run(name, "varying"))


@pytest.mark.slow
def test_an_engine_takes_a_number_of_numpy_and_names_what_is_no_network() -> None:
    pytest.importorskip("mpi4py", reason="needs the extra 'mpi'")
    code = "import numpy; from dpmesh.engines.mpi import MpiEngine; "
    code += "assert list(MpiEngine(numpy.uint8(3)).nodes) == [0, 1, 2]; MpiEngine('ring')"
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "ValueError: topology: wanted a topology of dpmesh.topology, or the n" in failed.stderr


FAILED_SAVE = """
from types import SimpleNamespace
from dpmesh.engines.mpi import MpiEngine
engine = MpiEngine(3)
engine.communicator = SimpleNamespace(size=1, allgather=lambda text: [text])
engine._ended = True
def keep():
    raise MemoryError
print(engine._failure_report(ValueError("x"), keep))
"""


@pytest.mark.slow
def test_a_failed_save_without_a_text_is_named_by_its_type() -> None:
    pytest.importorskip("mpi4py", reason="needs the extra 'mpi'")
    command = [sys.executable, "-c", FAILED_SAVE]
    report = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert report == (
        "rank 0 of 1 failed: ValueError: x (nothing more could be saved: MemoryError)"
    )


@pytest.mark.slow
def test_a_callback_ends_the_run_on_all_ranks(on_three_ranks: Path) -> None:
    folder = on_three_ranks / "varying" / "ended"
    run = json.loads((folder / "run.json").read_text())
    assert run["settings"]["rounds"] == "3 of 8: there the callback ended it"
    whole = mpi_program.run("ended", "varying")
    resumed = mpi_program.run("ended", "varying", checkpoint=folder / "checkpoint")
    assert_released(resumed, whole)


def test_a_callback_that_fails_ends_the_run_on_all_ranks(tmp_path: Path) -> None:
    ended = launch(3, tmp_path, "varying/tracker down")
    assert ended.returncode != 0
    reported = "rank 0 of 3 failed: ConnectionError: nobody listens (the last checkpoint is "
    assert ended.stderr.count(reported) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "said", "rounds"),
    [
        ("value", "rank 1 of 3 failed: ValueError: values: wanted finite", 5),
        ("after", "rank 1 of 3 failed: ArithmeticError: the round went wrong", 5),
        ("token value", "rank 1 of 3 failed: ValueError: values: wanted finite", 5),
        ("terminated", "KeyboardInterrupt", 6),
        ("killed", "", 4),
    ],
)
def test_a_rank_that_fails_leaves_a_checkpoint_of_what_was_whole(
    how: str, said: str, rounds: int, tmp_path: Path
) -> None:
    ended = launch(3, tmp_path, f"varying/{how}")
    assert ended.returncode != 0
    path = tmp_path / "varying" / how / "checkpoint"
    assert said in ended.stderr
    if how in ("value", "after", "token value"):
        assert f"({rounds} rounds are in {path})" in ended.stderr
    with np.load(path) as file:
        assert json.loads(file["header"].tobytes())["progress"]["fields"]["rounds"] == rounds
    whole = mpi_program.run(how, "varying")
    assert_released(mpi_program.run(how, "varying", checkpoint=path), whole)


def assert_released(one: dm.Run, other: dm.Run) -> None:
    np.testing.assert_array_equal(one.released, other.released)
    assert one.history.as_dicts() == other.history.as_dicts()


EXPERIMENT = """
[run]
rounds = 6
seed = 1

[data]
source = "digits"
positive = [5, 6, 7, 8, 9]

[partition]
kind = "iid"
nodes = 4
equal_sizes = true

[problem]
kind = "linear"
loss = "logistic"

[topology]
kind = "ring"

[algorithm]
kind = "OnlineLearning"
epsilon = 4.0

[sweep]
algorithm.batch_size = [1, 2]
"""


TOKEN_EXPERIMENT = EXPERIMENT.replace(
    """[topology]
kind = "ring"

[algorithm]
kind = "OnlineLearning"
epsilon = 4.0
""",
    """[algorithm]
kind = "WithoutReplacement"
epsilon = 4.0
controller = {kind = "RandomGlobal", rate = 0.5}
""",
).replace('loss = "logistic"', 'loss = "logistic"\nfeature_norm = 1.0')


ALLOCATED = """epsilon = 4.0
delta = 1e-5
sampling = "allocation"
records = 359
"""
"""The records of the smallest node: batches of one or two are often empty, and have no loss."""


PARTS = """contribution = {kind = "RecordGradients"}
combination = {kind = "SecureAggregation"}
"""
SUMS_EXPERIMENT = (
    EXPERIMENT.replace('[topology]\nkind = "ring"\n', "")
    .replace('"OnlineLearning"', f'"FederatedLearning"\n{PARTS}')
    .replace("seed = 1", "seed = 1\ndelta = 1e-5")
    .replace("batch_size = [1, 2]", "step_size = [1.0, 2.0]")
)


TOGETHER_EXPERIMENT = TOKEN_EXPERIMENT.replace(
    "epsilon = 4.0\n", ALLOCATED + 'decisions = "together"\n'
).replace('"RandomGlobal", rate = 0.5', '"Periodic", period = 2')


@pytest.mark.slow
@pytest.mark.parametrize(
    ("experiment", "ranks"),
    [
        (EXPERIMENT.replace("epsilon = 4.0\n", ALLOCATED), 3),
        (TOGETHER_EXPERIMENT, 2),
        (SUMS_EXPERIMENT, 2),
    ],
    ids=["gossip", "token", "sums"],
)
def test_an_experiment_from_a_file_runs_on_ranks(
    experiment: str, ranks: int, tmp_path: Path
) -> None:
    """On few ranks, since each of them takes a core for as long as the slowest."""
    pytest.importorskip("sklearn")
    testing = pytest.importorskip("typer.testing")
    from dpmesh.cli import app

    file = tmp_path / "experiment.toml"
    file.write_text(experiment)
    command = ["-m", "dpmesh", "run", file, "--engine", "mpi", "--output", tmp_path / "ranks"]
    said = succeed(ranks, *command, program=False)
    assert f"to go on after an end: mpiexec -n {ranks} dpmesh run {file} --engine mpi" in said
    assert "MB from a rank to others" in said
    assert said.count(f"a page of them: {tmp_path / 'ranks' / 'report.html'}") == 1
    assert len(re.search(r"processes by rank: (.*)", said)[1].split(", ")) == ranks
    here = ["run", str(file), "--output", str(tmp_path / "alone"), "--processes", "1"]
    assert testing.CliRunner().invoke(app, here).exit_code == 0
    files = sorted(path.relative_to(tmp_path / "alone") for path in (tmp_path / "alone").rglob("*"))
    assert len(files) > 8
    for name in files:
        of_ranks, of_one = tmp_path / "ranks" / name, tmp_path / "alone" / name
        if name.name == "run.json":
            assert without_baselines(of_ranks.read_text()) == without_baselines(of_one.read_text())
        elif name.suffix in (".json", ".csv", ".npy"):
            assert of_ranks.read_bytes() == of_one.read_bytes()


@pytest.mark.slow
def test_rank_0_says_how_far_a_run_is(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("typer")
    file = tmp_path / "experiment.toml"
    file.write_text(EXPERIMENT)
    at_once = "from dpmesh.experiments import ranks; ranks.PAUSE = 0; import runpy; "
    program = at_once + "runpy.run_module('dpmesh', run_name='__main__')"
    options = ["--engine", "mpi", "--output", tmp_path / "ranks"]
    said = succeed(2, "-c", program, "run", file, *options, program=False)
    assert re.findall(r": (\d) of 6 rounds", said) == 2 * list("123456")


@pytest.mark.slow
def test_what_cannot_run_on_ranks_is_named_once(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("typer")
    file = tmp_path / "experiment.toml"
    file.write_text(EXPERIMENT.replace("nodes = 4", "nodes = 2"))
    ended = launch(3, "-m", "dpmesh", "run", file, "--engine", "mpi", program=False)
    assert ended.returncode != 0
    assert ended.stderr.count("partition.nodes") == 1
    assert "wanted at least 3, one for each rank" in ended.stderr


@pytest.mark.slow
def test_a_simulated_network_is_refused_on_ranks_before_anything_is_written(tmp_path: Path) -> None:
    pytest.importorskip("sklearn")
    pytest.importorskip("typer")
    file, folder = tmp_path / "experiment.toml", tmp_path / "ranks"
    file.write_text(EXPERIMENT + "\n[network]\nloss = 0.1\n")
    command = ["-m", "dpmesh", "run", file, "--engine", "mpi", "--output", folder]
    ended = launch(2, *command, program=False)
    assert ended.returncode != 0
    assert ": network: wanted no such table on MPI" in ended.stderr
    assert not folder.exists()

"""Files of results are whole or not there, and an error names what cannot be written, early."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from command import command

import dpmesh as dm
from dpmesh import _files
from dpmesh._files import replace_text, replacing, writable_folder

EXPERIMENT = """
[run]
rounds = 2
[data]
source = "digits"
positive = [1]
[partition]
kind = "iid"
nodes = 2
[problem]
kind = "linear"
loss = "logistic"
[topology]
kind = "ring"
[algorithm]
kind = "OnlineLearning"
"""


@pytest.fixture(params=["a file", "below a file", "read-only"])
def unwritable(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    place = tmp_path / "there"
    if request.param == "read-only":
        if os.name != "posix" or os.geteuid() == 0:
            pytest.skip("who runs this may write everywhere")
        place.mkdir(0o500)
        return place
    place.write_text("mine")
    return place if request.param == "a file" else place / "results"


def never(*_: object, **__: object) -> None:
    raise AssertionError("began to work")


@pytest.mark.parametrize(
    ("asked", "work"),
    [
        (["demo"], "dpmesh.demo.run_demo"),
        (["reproduce", "federated-figureS15"], "dpmesh_papers.federated_signals.figure_s15"),
        (["run", "experiment.toml"], "dpmesh.experiments.sweep.run_into"),
    ],
    ids=["demo", "reproduce", "run"],
)
def test_a_command_tells_it_before_its_runs(
    asked: list[str], work: str, unwritable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    monkeypatch.chdir(tmp_path)
    Path("experiment.toml").write_text(EXPERIMENT)
    monkeypatch.setattr(work, never)
    said = command(*asked, "--output", unwritable, code=2)
    assert "cannot write into this folder: " in said
    assert str(unwritable) in said


@pytest.mark.slow
def test_a_report_tells_it_before_its_figures(
    unwritable: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    (tmp_path / "experiment.toml").write_text(EXPERIMENT)
    command("run", tmp_path / "experiment.toml", "--output", tmp_path / "results")
    monkeypatch.setattr("dpmesh.experiments.page.page", never)
    for output, said in (
        (unwritable / "page.html", "cannot write into this folder: "),
        (tmp_path, "target: wanted a file that ends in .html, .tex or .csv, got a folder"),
    ):
        assert said in command("report", tmp_path / "results", "--output", output, code=2)


def test_new_folders_are_on_disk_once_they_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name is on disk once the folder that lists it is synced."""
    synced: list[Path] = []
    monkeypatch.setattr(_files, "sync", synced.append)
    writable_folder(tmp_path / "new" / "folder")
    assert {*synced} == {tmp_path, tmp_path / "new"}


def test_a_writable_folder_is_made_and_left_empty(tmp_path: Path) -> None:
    folder = writable_folder(tmp_path / "new" / "folder")
    assert list(folder.iterdir()) == []
    assert writable_folder(folder) == folder


@pytest.fixture(scope="module")
def run() -> dm.Run:
    features = np.random.default_rng(0).normal(size=(40, 50)) / 9
    train = dm.Dataset(features, np.where(features[:, 0] > 0, 1, -1), "small")
    problem = dm.LinearProblem(train, np.arange(40).reshape(4, 10), "hinge")
    ring, key = dm.topology.ring(4), dm.Key.seeded(0)
    return dm.simulate(dm.OnlineLearning(epsilon=1.0), problem, ring, rounds=10, key=key)


@contextmanager
def a_disk_of(size: int) -> Iterator[None]:
    """Let no file grow beyond so many bytes."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


WRITERS: dict[str, Callable[[dm.Run, Path], None]] = {
    "run.json": lambda run, path: run.save(path.parent),
    "history.csv": lambda run, path: run.history.to_csv(path),
    "page.html": lambda run, path: replace_text(path, str(run) * 20),
}


@pytest.mark.parametrize("size", [200, 600])  # of which buffers hold the rest, or not
@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_leaves_what_was_there_and_names_the_file(name, size, run, tmp_path) -> None:
    path = tmp_path / name
    with a_disk_of(size), pytest.raises(OSError, match="File too large") as caught:
        WRITERS[name](run, path)
    assert str(path) in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    WRITERS[name](run, path)
    whole = {file: file.read_bytes() for file in tmp_path.iterdir()}
    with a_disk_of(size), pytest.raises(OSError, match="before is untouched") as caught:
        WRITERS[name](run, path)
    assert str(path) in str(caught.value)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == whole


def test_models_that_are_too_large_leave_no_half_of_a_run(run, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(dm.Run, "as_dict", lambda run: {})
    with a_disk_of(600), pytest.raises(OSError, match=r"File too large: '.*released\.npy'$"):
        run.save(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", WRITERS)
def test_a_folder_in_place_of_a_file_is_named(name, run, tmp_path) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(IsADirectoryError, match=f"cannot write this file: .*{name}'$"):
        WRITERS[name](run, tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_in_place_of_a_folder_is_told(name, run, tmp_path) -> None:
    (tmp_path / "results").touch()
    reported = "cannot write this file: Not a directory: '.*results.*'$"
    for folder in (tmp_path / "results", tmp_path / "results" / "below"):
        with pytest.raises(NotADirectoryError, match=reported):
            WRITERS[name](run, folder / name)


def test_writers_of_one_file_do_not_meet_and_leave_nothing(tmp_path) -> None:
    path = tmp_path / "a [file]"
    replace_text(path, "old")
    other = tmp_path / ".a [file].2.01234567.new"  # that of "a [file].2"
    other.touch()
    killed = replacing(path)
    left = killed.__enter__()  # and never ends
    left.write(b"ha")
    assert path.read_bytes() == b"old"
    with replacing(path) as slow:
        slow.write(b"slow")
        replace_text(path, "fast")
        assert path.read_bytes() == b"fast"
        slow.write(b"ly")
    assert path.read_bytes() == b"fast"  # the slow one was not done when it was written
    assert sorted(tmp_path.iterdir()) == [other, path]


@pytest.mark.skipif(sys.platform == "win32", reason="links take a privilege there")
def test_a_link_stays_and_a_device_is_written_to(tmp_path) -> None:
    link, path = tmp_path / "link", tmp_path / "folder" / "file"
    link.symlink_to(path)
    replace_text(link, "text")
    assert link.is_symlink()
    assert path.read_text() == "text"
    replace_text(os.devnull, "text")
    assert not Path(os.devnull).is_file()


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_permissions_are_those_of_other_new_files(tmp_path) -> None:
    (tmp_path / "touched").touch()
    replace_text(tmp_path / "text", "text")
    with replacing(tmp_path / "secret", mode=0o600):
        pass
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes["text"] == modes["touched"]
    assert modes["secret"] == 0o600

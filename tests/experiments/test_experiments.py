"""Experiments from files: what is wrong is named with its line, and only what is missing is run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpmesh.experiments import Experiment, Result, read, run_sweep
from dpmesh.experiments.experiment import PUBLIC, all_keys
from dpmesh.experiments.sweep import cells, rounds_left
from dpmesh.noise import Quantizer, correlated
from dpmesh.run import LogNormal, Uniform, simulate
from dpmesh.settings import Settings
from dpmesh.settings.parts import INNER_KINDS, SECTIONS, part_fields

pytest.importorskip("sklearn")

TEXT = """\
[run]
rounds = 6
seed = 1
delta = 1e-5
metrics = ["accuracy", "loss"]

[data]
source = "digits"
positive = [5, 6, 7, 8, 9]

[partition]
kind = "iid"
nodes = 4

[problem]
loss = "logistic"

[topology]
kind = "ring"
keep = 0.7

[algorithm]
kind = "OnlineLearning"
step_size = {kind = "InverseSqrt", scale = 4.0}
radius = 10

[network]
latency = {kind = "Exponential", mean = 0.05}

[sweep]
seeds = [1, 2]
algorithm.epsilon = [1.0, "none"]
"""

DATA = TEXT[TEXT.index("[data]") : TEXT.index("[partition]")]


def write(folder: Path, text: str = TEXT) -> Path:
    path = folder / "experiment.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("rounds = 6", "rounds = 0", r"line 2: run\.rounds: wanted an integer of at least 1"),
        ("rounds = 6", "round = 6", r"line 2: run\.round: wanted .* did you mean rounds\?"),
        ("rounds = 6", "", r"line 1: run\.rounds: wanted a value: Number of rounds"),
        ("delta = 1e-5", "delta = 1.0", r"line 4: run\.delta: wanted a number in \[0, 1\)"),
        ('"digits"', '"digts"', r"line 8: data\.source: .*'digts'; did you mean digits\?"),
        ("[5, 6, 7, 8, 9]", '["a"]', r"line 9: data\.positive\[0\]: wanted an integer, got 'a'"),
        ("[5, 6, 7, 8, 9]", "[10]", r"line 9: data\.positive: wanted labels of digits, got \[10\]"),
        ("nodes = 4", 'nodes = "4"', r"line 13: partition\.nodes: wanted an integer, got '4'"),
        ("nodes = 4", "nodes = 5000", r"line 13: partition\.nodes: wanted at most"),
        ('kind = "iid"', 'kind = "id"', r"line 12: partition\.kind: .*did you mean iid\?"),
        ('"logistic"', '"log"', r"line 16: problem\.loss: wanted one of 'logistic', .*got 'log'"),
        ("keep = 0.7", "keep = 1.7", r"line 20: topology\.keep: wanted a number in \(0, 1\]"),
        ("keep = 0.7", "kep = 0.7", r"line 20: topology\.kep: wanted .* did you mean keep\?"),
        ('kind = "ring"', "kind = []", r"line 19: topology\.kind: wanted one of ring, .*got \[\]"),
        (
            'kind = "ring"',
            'kind = "torus"\nrows = 4611686018427387904\ncolumns = 1',
            r"line 20: topology\.rows: wanted rows x columns = 4, .*got 4611686018427387904 x 1",
        ),
        ('kind = "ring"', "", r"line 18: topology\.kind: wanted one of ring, .*got none"),
        ("radius = 10", "radius = -1", r"line 25: algorithm\.radius: wanted a finite number great"),
        ("radius = 10", "radius = true", r"line 25: algorithm\.radius: wanted a number, got True"),
        ("InverseSqrt", "Sqrt", r"line 24: algorithm\.step_size\.kind: wanted one of Constant, "),
        ("scale = 4.0", "size = 4.0", r"line 24: algorithm\.step_size\.size: wanted one of scale"),
        ("mean = 0.05", "mean = 0.0", r"line 28: network\.latency\.mean: wanted a finite number"),
        (
            '"Exponential"',
            '"Exp"',
            r"line 28: .*wanted one of Exponential, LogNormal, Uniform, got",
        ),
        ('{kind = "Exponential", mean = 0.05}', '"a"', "wanted a number or a table whose kind is"),
        ("seeds", "seed", r"line 31: sweep\.seed: wanted one of seeds, .* did you mean seeds\?"),
        ("[1, 2]", "[1, -2]", r"line 31: run\.seed: wanted an integer of at least 0, got -2"),
        ("[1, 2]", '[1, "a"]', r"line 31: run\.seed: wanted an integer or \"none\", got 'a'"),
        ("[1, 2]", "[]", r"line 31: sweep\.seeds: wanted a list of values, got \[\]"),
        ("[1, 2]", "[1, 1]", r"line 30: sweep: wanted runs that all differ, got .*seed=1 2 times"),
        ("epsilon = [1.0", "epsilon = [-1.0", r"line 32: algorithm\.epsilon: wanted a finite num"),
        ("algorithm.epsilon", "algorithm.e", r"line 32: algorithm\.e: wanted one of"),
        ("algorithm.epsilon", "algoritm.epsilon", r"sweep\.algoritm: .* did you mean algorithm\?"),
        ("[network]", "[networks]", r"line 27: networks: wanted one of .* did you mean network\?"),
        ("[run]", "[[run]]", r"line 1: run: wanted a table, of which run\.seed is swept, got \[{"),
        (
            "algorithm.epsilon",
            "algorithm.radius.of",
            r"line 25: algorithm\.radius: wanted a table, of which algorithm\.radius\.of is swept",
        ),
        ("[problem]", "[problem", r"Expected .*line 15"),
        (
            '[data]\nsource = "digits"\npositive = [5, 6, 7, 8, 9]\n',
            "",
            r"data: wanted a table \[data\]",
        ),
        (
            TEXT[TEXT.index("[data]") : TEXT.index("[problem]")],
            "",
            r"data: wanted a table \[data\], a table \[partition\], got none; add lines such as",
        ),
        ("nodes = 4\n", "", r"partition\.nodes: wanted the line nodes = 4, or more, got none"),
        ("[sweep]", "[budget]\nepsilon = 0\n[sweep]", r"line 31: budget\.epsilon: wanted a finite"),
        ("[sweep]", "[budget]\n[sweep]", r"line 30: budget\.epsilon: wanted a value"),
        (
            "[sweep]",
            "[budget]\nepsilon = 0.5\n[sweep]",
            r"line 2: run\.rounds: wanted at most 1, which epsilon = 0\.5 .* got 6, which cost",
        ),
    ],
)
def test_errors_name_the_line_and_the_key(old: str, new: str, message: str, tmp_path) -> None:
    assert TEXT.count(old) == 1
    path = write(tmp_path, TEXT.replace(old, new))
    try:
        failed = run_sweep(read(path), tmp_path / "results", processes=1)
    except ValueError as error:
        failed = [(None, error)]
        assert not (tmp_path / "results").exists()
    assert re.match(rf"{re.escape(str(path))}(, |: ).*{message}", str(failed[0][1]), re.S)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("rounds: wanted less", "file, line 2: run.rounds: wanted less"),
        ("problem: wanted another", "file, line 5: problem: wanted another"),
        ("topology: wanted a network", "file: topology: wanted a network"),
        ("smoothness: wanted more", "file, line 4: algorithm.smoothness: wanted more"),
        ("nodes: wanted more", "file: nodes: wanted more"),
    ],
)
def test_what_does_not_fit_together_is_named_by_the_table_that_it_came_from(
    error: str, message: str
) -> None:
    content = {"run": {"rounds": 6}, "algorithm": {"smoothness": 1, "nodes": 4}}
    content |= {"problem": {}, "partition": {"nodes": 4}}
    lines = {"run": 1, "run.rounds": 2, "algorithm": 3, "algorithm.smoothness": 4, "problem": 5}

    def simulate(problem: object, topology: object, rounds: int) -> None:
        raise ValueError(error)

    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Settings(content, "file", lines).call(
            "run", simulate, problem=None, topology=None, rounds=6
        )


@pytest.mark.slow
def test_a_slip_is_mended_and_the_same_command_runs(tmp_path) -> None:
    slip = TEXT.replace("positive = [5, 6, 7, 8, 9]", "")  # labels of ten digits
    assert run_sweep(read(write(tmp_path, slip)), tmp_path / "results", processes=1)
    assert not run_sweep(read(write(tmp_path)), tmp_path / "results", processes=1)


def test_a_file_is_utf_8_whatever_the_system_writes(tmp_path) -> None:
    path = tmp_path / "experiment.toml"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.encode())
    assert read(path).content == read(write(tmp_path)).content
    path.write_bytes(TEXT.replace("ring", "anneau entrelac\u00e9").encode("latin-1"))
    with pytest.raises(ValueError, match=r"experiment\.toml: not a TOML file in UTF-8: 'utf-"):
        read(path)


@pytest.mark.parametrize(
    ("table", "latency"),
    [
        ('{kind = "LogNormal", median = 0.1, sigma = 1.0}', LogNormal(median=0.1, sigma=1.0)),
        ('{kind = "Uniform", low = 0.05, high = 0.1}', Uniform(low=0.05, high=0.1)),
        ("0.2", 0.2),
    ],
)
def test_every_kind_of_time_can_be_written(table: str, latency: object, tmp_path) -> None:
    text = TEXT.replace('{kind = "Exponential", mean = 0.05}', table)
    assert Experiment.of(read(write(tmp_path, text))).network.latency == latency


@pytest.mark.slow
def test_every_cell_is_run_once_and_missing_ones_again(tmp_path) -> None:
    settings, folder, reported = read(write(tmp_path)), tmp_path / "results", []
    assert [cell.changes for cell in cells(settings)] == [
        {"algorithm.epsilon": epsilon, "run.seed": seed}
        for epsilon in (1.0, "none")
        for seed in (1, 2)
    ]
    assert rounds_left(settings, folder) == 24
    assert run_sweep(settings, folder, processes=1, progress=reported.append) == []
    assert sum(reported) == 24
    names = [path.name for path in sorted(folder.iterdir()) if path.is_dir()]
    assert names == sorted(cell.name for cell in cells(settings))
    first, *others = (folder / name / "result.json" for name in names)
    times = [path.stat().st_mtime_ns for path in others]
    first.unlink()
    assert rounds_left(settings, folder) == 6
    assert run_sweep(settings, folder, processes=1) == []
    assert first.exists()
    left = first.with_name("checkpoint")  # as by a run that was killed once it was finished
    left.write_text("private")
    assert run_sweep(settings, folder, processes=1) == []
    assert not left.exists()
    assert [path.stat().st_mtime_ns for path in others] == times
    files = {path.name for path in (folder / names[0]).iterdir()}
    assert files == {"history.csv", "released.npy", "result.json", "run.json"}


def test_folders_may_be_texts_and_settings_may_not(tmp_path) -> None:
    text = TEXT.partition("[sweep]")[0]
    assert not run_sweep(read(write(tmp_path, text)), str(tmp_path / "results"), processes=1)
    assert Result.load(str(tmp_path / "results" / "run")).changes == {}
    with pytest.raises(ValueError, match=r"settings: wanted what .*read returns, got 'a\.toml'"):
        run_sweep("a.toml", tmp_path)


@pytest.mark.slow
def test_a_run_from_a_file_is_the_run_of_its_parts(tmp_path) -> None:
    settings = read(write(tmp_path))
    experiment = Experiment.of(settings.replaced({"run.seed": 2}))
    run = simulate(
        experiment.algorithm,
        experiment.problem(),
        experiment.topology,
        rounds=6,
        key=experiment.key,
        delta=1e-5,
        metrics=["accuracy", "loss"],
        engine=experiment.network,
    )
    run_sweep(settings, tmp_path / "results", processes=1)
    folder = tmp_path / "results" / "algorithm.epsilon=1.0,seed=2"
    np.testing.assert_array_equal(np.load(folder / "released.npy"), run.released)
    result = Result.load(folder)
    privacy = run.privacy
    assert privacy is not None
    privacy = replace(privacy, assumptions=(*privacy.assumptions, PUBLIC))
    assert result.privacy == privacy
    assert repr(result) == f"algorithm.epsilon 1.0\nrun.seed    2\n{replace(run, privacy=privacy)}"
    np.testing.assert_array_equal(result.history["accuracy"], run.history["accuracy"])


@pytest.mark.slow
def test_a_run_within_its_budget_is_the_run_without(tmp_path) -> None:
    text = TEXT.replace(', "none"]', "]").replace("delta = 1e-5\n", "")
    within = text + "[budget]\nepsilon = 1.0\ndelta = 1e-6\n"
    for name, each in (("without", text), ("within", within)):
        assert not run_sweep(read(write(tmp_path, each)), tmp_path / name, processes=1)
    without, within = (
        Result.load(tmp_path / name / "algorithm.epsilon=1.0,seed=1")
        for name in ("without", "within")
    )
    assert (without.privacy.delta, within.privacy.delta) == (0.0, 1e-6)
    assert str(without.history.records) == str(within.history.records)


@pytest.mark.slow
def test_processes_give_the_same_bits_and_failures_stop_nobody_else(tmp_path) -> None:
    """The data set of one cell is not there: known only when it is loaded."""
    text = TEXT.replace("seeds = [1, 2]", 'seeds = [1]\ndata.source = ["digits", "mnist"]')
    text = text.replace("[data]\n", f"[data]\nfolder = '{tmp_path}/nowhere'\n")
    settings = read(write(tmp_path, text))
    failed = run_sweep(settings, tmp_path / "two", processes=2)
    assert [cell.changes["data.source"] for cell, _ in failed] == ["mnist", "mnist"]
    assert [type(error) for _, error in failed] == [FileNotFoundError] * 2
    assert len(run_sweep(settings, tmp_path / "one", processes=1)) == 2
    done = sorted(path.parent.name for path in (tmp_path / "two").glob("*/result.json"))
    assert len(done) == 2
    for name in done:
        one, two = (tmp_path / folder / name / "released.npy" for folder in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


@pytest.mark.slow
def test_an_interrupted_run_goes_on_from_its_checkpoint(tmp_path) -> None:
    settings = read(write(tmp_path))
    run_sweep(settings, tmp_path / "whole", processes=1)

    def stop(rounds: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_sweep(settings, tmp_path / "stopped", processes=1, progress=stop)
    first = tmp_path / "stopped" / cells(settings)[0].name
    assert (first / "checkpoint").exists()
    assert run_sweep(settings, tmp_path / "stopped", processes=1) == []
    assert not (first / "checkpoint").exists()
    for cell in cells(settings):
        one, two = (tmp_path / f / cell.name / "released.npy" for f in ("whole", "stopped"))
        assert one.read_bytes() == two.read_bytes()


@pytest.mark.slow
def test_results_of_other_settings_are_not_mixed(tmp_path) -> None:
    run_sweep(read(write(tmp_path)), tmp_path / "results", processes=1)
    other = read(write(tmp_path, TEXT.replace("radius = 10", "radius = 20")))
    message = (
        "folder: wanted a new one, or that of results of these .* whose algorithm.radius is 10"
    )
    with pytest.raises(ValueError, match=message):
        run_sweep(other, tmp_path / "results")
    longer = read(write(tmp_path, TEXT.replace("rounds = 6", "rounds = 6\nevery = 2")))
    with pytest.raises(ValueError, match=r"whose run\.every is left out"):
        run_sweep(longer, tmp_path / "results")
    wider = read(write(tmp_path, TEXT.replace("[1, 2]", "[1, 2, 3]")))
    assert run_sweep(wider, tmp_path / "results", processes=1) == []


def test_results_of_other_values_of_the_same_name_are_not_taken_for_these(tmp_path) -> None:
    """Half of the noise would have had the folder, and the results, of the whole."""

    def swept(step_size: str) -> Settings:
        text = TEXT.replace("seeds = [1, 2]", "").replace('[1.0, "none"]', "[1.0]")
        return read(write(tmp_path, f"{text}algorithm.step_size = [{step_size}]\n"))

    one = swept('{kind = "PowerLaw", scale = 2.0, exponent = 1.0}')
    other = swept('{kind = "PowerLaw", exponent = 2.0, scale = 1.0}')
    assert cells(one)[0].name == cells(other)[0].name
    assert run_sweep(one, tmp_path / "results", processes=1) == []
    with pytest.raises(ValueError, match=r"folder: wanted .* of these settings, got .*PowerLaw"):
        run_sweep(other, tmp_path / "results", processes=1)
    assert run_sweep(one, tmp_path / "results", processes=1) == []


@pytest.mark.parametrize(
    ("kind", "noise"),
    [
        ('OnlineLearning"\nepsilon = 2.0\ndelta = 1e-5', correlated.InTime),
        ('GradientDescent"\nepsilon = 2.0\nclipping_norm = 1.0', correlated.BetweenPartners),
        ('OnlineLearning"\nepsilon = 2.0\ndelta = 1e-5', correlated.Both),
    ],
)
def test_noise_that_works_together_is_a_key_of_a_file(
    kind: str, noise: type[correlated.CorrelatedStrategy], tmp_path: Path
) -> None:
    """Its topology and rounds are those of the file, which may also be swept over."""
    text = TEXT[: TEXT.index("[algorithm]")].replace("keep = 0.7\n", "")
    table = f'[algorithm]\nkind = "{kind}\nnoise = {{kind = "{noise.__name__}"}}'
    settings = read(write(tmp_path, text + table))
    experiment = Experiment.of(settings)
    assert experiment.algorithm.noise == noise(topology=experiment.topology, rounds=6)
    swept = settings.replaced({"algorithm.noise": {"kind": "InTime", "bands": 7}})
    with pytest.raises(ValueError, match=r"algorithm\.noise\.bands: wanted .* got 7"):
        Experiment.of(swept)


def test_every_key_is_described() -> None:
    makers = [maker for kinds in SECTIONS.values() for maker in kinds.values()]
    listed = all_keys()
    for maker in [*makers, *INNER_KINDS.values()]:
        for name, entry in part_fields(maker).items():
            assert len(entry.text) > 10, f"{maker.__name__}.{name} has no description"
            assert f"  {name}" in listed
    assert part_fields(Quantizer)["step"].text.endswith("at most step**2 / 4.")


@pytest.mark.parametrize(
    "algorithm",
    [
        'kind = "FederatedLearning"\nnoise_multiplier = "none"\n'
        'contribution = {kind = "ClientUpdates", sampling_rate = 0.5, epochs = 1}\n'
        'denoiser = {kind = "LaplacianSmoothing", smoothing = 1.0}\n'
        'optimizer = {kind = "ServerAdam"}\naverage = {kind = "Average", since = 2}',
        pytest.param(
            'kind = "FederatedLearning"\nepsilon = 4\n'
            'contribution = {kind = "ClientUpdates", sampling_rate = 0.5, epochs = 1}\n'
            'combination = {kind = "SecureAggregation"}',
            marks=pytest.mark.slow,
        ),
        'kind = "FederatedLearning"\nepsilon = 4\ncontribution = {kind = "RecordGradients"}',
        'kind = "WithoutReplacement"\nepsilon = 1.0\ncontroller = {kind = "Periodic", period = 2}\n'
        "batch_size = 5",
    ],
)
def test_algorithms_without_a_network_run_too(algorithm: str, tmp_path) -> None:
    table = re.search(r"\[algorithm\].*?radius = 10\n", TEXT, re.S)
    assert table is not None
    text = TEXT.replace(table[0], f"[algorithm]\n{algorithm}\n")
    text = text.replace('[topology]\nkind = "ring"\nkeep = 0.7\n', "")
    text = text.replace('"logistic"', '"logistic"\nfeature_norm = 1.0')
    text = text[: text.index("[sweep]")].replace('metrics = ["accuracy", "loss"]\n', "")
    assert run_sweep(read(write(tmp_path, text)), tmp_path / "results") == []
    assert Result.load(tmp_path / "results" / "run").history.last("seconds") > 0


@pytest.mark.slow
def test_algorithms_are_compared_in_a_sweep(tmp_path) -> None:
    docs = (Path(__file__).parent.parent.parent / "docs" / "simulator.md").read_text()
    tables = re.findall(r"```toml\n(.*?)```", docs, re.S)
    (sweep,) = (table for table in tables if re.match(r"\[sweep\]\n.*\nalgorithm = ", table))
    text = tables[0].partition("[sweep]")[0] + sweep.replace("[1, 2, 3]", "[1]")
    assert not run_sweep(read(write(tmp_path, text)), tmp_path / "results", processes=1)
    runs = [Result.load(path) for path in (tmp_path / "results").glob("algorithm=*")]
    assert sorted(run.changes["algorithm"]["kind"][:6] for run in runs) == ["Gradie", "Online"]

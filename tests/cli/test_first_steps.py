"""What a newcomer does first: import, the demo, the commands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import command

import dpmesh as dm


def test_importing_the_package_loads_nothing_heavy() -> None:
    heavy = "{'numpy', 'scipy', 'networkx', 'sklearn', 'matplotlib', 'jax', 'dp_accounting'}"
    code = f"import sys, dpmesh; print(*({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert found.stdout.strip() == ""


@pytest.mark.parametrize("name", dm.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(dm, name) is not None
    assert name in dir(dm)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        dm.nonsense  # noqa: B018


@pytest.mark.slow
def test_the_demo_writes_a_figure_and_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    import dpmesh.plots.panels as figures

    labels: list[str] = []
    drawn = figures.drawn

    def watched(panels: list[Any]) -> Any:
        for panel in panels:
            labels.extend([*(line.label for line in panel.lines), *panel.levels])
        return drawn(panels)

    monkeypatch.setattr(figures, "drawn", watched)
    output = command("demo", "--output", tmp_path, "--seed", 1)
    assert set(labels) == {
        "secure aggregation, private",
        "gossip (decentralized), private",
        "single site, private",
        "single site, not private",
        "centralized, not private",
        "majority class",
    }
    assert "epsilon = 2, delta = 1e-05" in output
    assert "NOT private: seeded noise" in output
    page = (Path(__file__).parent.parent.parent / "docs" / "index.md").read_text()
    printed = page.partition("`--seed 1` it prints:\n\n```text\n")[2].partition("```")[0]
    assert printed
    shown = [" ".join(re.sub(r"[\d.]+", "#", text).split()) for text in (printed, output)]
    assert shown[0] in shown[1]
    pays, alike = json.loads((tmp_path / "demo.json").read_text())
    for panel in (pays, alike):
        assert panel["verdict"] in output
        for scores in ("scores", "gossip"):
            assert np.shape(panel[scores]) == (len(panel["epsilons"]), 5)
        reported = [own["epsilon"] for own in panel["privacy"]]
        assert reported == pytest.approx(panel["epsilons"])
        assert all(own["alone"] for own in panel["baselines"])
    # a site that sees two of ten digits cannot recognise the others, whatever it does
    assert max(pays["baselines"][0]["alone"]) < 0.35 < np.mean(pays["scores"][-1])
    own = "but not on records like their own"
    assert pays["verdict"] == f"Improves on single sites, {own}"
    assert "On records like its own no site gains: do not join for these." in output
    assert np.mean(pays["scores"][0]) > np.mean(pays["gossip"][0]) + 0.1
    assert "Little improvement on single sites" in alike["verdict"]
    assert "the server and 1 of the sites" in output
    assert (tmp_path / "demo.png").stat().st_size > 10_000


@pytest.mark.slow
def test_reproduce_lists_runs_and_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")

    def refused(*arguments: str) -> str:
        return command("reproduce", *arguments, code=2)

    listed = " ".join(command("reproduce").split())
    assert "federated-table2 mnist logistic regression" in listed
    command("reproduce", "federated-figureS15", "--output", tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".csv", ".txt", ".png", ".json"}
    assert "seeds: wanted none" in refused("federated-figureS15", "--seeds", "2")
    assert "did you mean reproduce?" in command("reprodce", code=2)
    assert "wanted module:name, with mine.py" in command("privacy", "mine:own", code=2)
    unknown = refused("nonsense")
    assert ("name: wanted one of" in unknown, "did you mean" in unknown) == (True, False)
    assert "did you mean federated-table2?" in refused("federated-tabel2")
    monkeypatch.setenv("DPMESH_DATA", str(tmp_path))
    assert "DPMESH_DATA: wanted rcv1_train.binary.bz2" in refused("online-table1")
    monkeypatch.delenv("DPMESH_DATA", raising=False)
    output = refused("online-table1")
    assert "--datasets: wanted a folder whose subfolder rcv1 holds rcv1_train.binary.bz2" in output
    assert "libsvmtools" in output


@pytest.mark.parametrize(
    ("name", "taken"),
    [
        ("audit", "Audit a privacy claim"),
        ("fit", "the table of one site"),
        ("predict", "dpmesh fit"),
        ("reproduce", "List"),
        ("report", "dpmesh run"),
        ("run", "TOML file"),
    ],
)
def test_what_a_command_takes_is_said_beside_its_help_of_arguments(name: str, taken: str) -> None:
    """Some versions of what parses the command line leave out the help of arguments."""
    shown = command(name, "--help")
    assert taken in " ".join(shown.partition("Arguments")[0].split())


def test_reproduce_names_the_folders_in_which_loaders_look(tmp_path, monkeypatch) -> None:
    from dpmesh_papers.catalog import REPRODUCTIONS

    monkeypatch.setenv("DPMESH_DATA", str(tmp_path))
    looked_for = set()
    loaders = dm.data.covertype, dm.data.mnist, dm.data.rcv1, dm.data.shakespeare, dm.data.svhn
    for load in loaders:
        with pytest.raises(FileNotFoundError) as caught:
            load()
        folder = str(caught.value).partition(" in ")[2].partition("; get")[0]
        looked_for.add(str(Path(folder).relative_to(tmp_path)))
    assert {shown.data for shown in REPRODUCTIONS.values() if shown.data} == looked_for


def test_a_command_names_the_extra_that_it_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    typer = pytest.importorskip("typer")
    from dpmesh.cli._errors import reporting_errors

    def lacking(package: str) -> None:
        raise ModuleNotFoundError(name=package)

    with pytest.raises(typer.Exit):
        reporting_errors(lacking)("matplotlib.figure")
    assert "this needs matplotlib: pip install matplotlib" in capsys.readouterr().err
    with pytest.raises(ModuleNotFoundError):
        reporting_errors(lacking)("dpmesh.nonsense")


@pytest.mark.slow
def test_a_name_that_needs_an_extra_says_which() -> None:
    code = """
import sys
import scipy.signal  # which looks at torch while it is imported
for package in ("flwr", "jax", "matplotlib", "mpi4py", "pandas", "sklearn", "torch", "tqdm"):
    sys.modules[package] = None
from importlib import import_module
import numpy as np
import dpmesh as dm
train = dm.Dataset(np.ones((4, 1)), np.ones(4))
problem = dm.LinearProblem(train, np.arange(4).reshape(2, 2), "logistic")
algorithm, ring = dm.OnlineLearning(), dm.topology.ring(2)
dm.simulate(algorithm, problem, ring, rounds=1)
for needed in (
    lambda: dm.data.digits(),
    lambda: dm.deploy.flower.DPFedLS,
    lambda: dm.engines.mpi,
    lambda: import_module("dpmesh.deploy.flower").private_update,
    lambda: import_module("dpmesh.engines.mpi"),
    lambda: dm.plots.network([[0, 1]], 2),
    lambda: dm.problems.JaxProblem,
    lambda: dm.problems.TorchProblem,
    lambda: dm.problems.networks,
    lambda: dm.run.History().to_pandas(),
    lambda: dm.simulate(algorithm, problem, ring, rounds=1, metrics=dm.Metrics(progress=True)),
):
    try:
        needed()
    except ModuleNotFoundError as error:
        print(str(error).partition("pip install ")[2])
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    engines = "flwr mpi4py"
    wanted = f"scikit-learn {engines} {engines} matplotlib jax torch jax pandas pyarrow tqdm"
    assert said.stdout.split() == wanted.split()


@pytest.mark.skipif(sys.platform == "win32", reason="pipes break in another way there")
def test_a_command_whose_reader_leaves_ends_in_silence() -> None:
    pytest.importorskip("typer")
    asked = [sys.executable, "-m", "dpmesh", "reproduce"]
    ran = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    ran.stdout.close()
    with ran.stderr:
        assert ran.stderr.read() == b""
    ran.wait()


@pytest.mark.parametrize("name", ["--help", "doctor", "--version"])
def test_the_command_line_loads_nothing_heavy_to_answer(name: str) -> None:
    pytest.importorskip("typer")
    code = (
        "import atexit, sys; sys.argv = ['dpmesh', sys.argv[1]]\n"
        "heavy = {'numpy', 'scipy', 'networkx', 'sklearn', 'matplotlib', 'jax'}\n"
        "atexit.register(lambda: print('heavy:', *(heavy & set(sys.modules))))\n"
        "from dpmesh.__main__ import main; main()"
    )
    asked = [sys.executable, "-c", code, name]
    found = subprocess.run(asked, capture_output=True, check=True, text=True)
    assert found.stdout.splitlines()[-1].strip() == "heavy:"


@pytest.mark.slow
def test_audits_and_engines_are_there_without_an_import_of_their_own() -> None:
    code = "import dpmesh as dm; print(dm.audit.couple, dm.engines.blocks.blocks)"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    for module in (dm.noise, dm.engines, dm.problems):
        assert set(module.__all__) == set(dir(module))
        with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
            module.nonsense  # noqa: B018


@pytest.mark.slow
def test_the_runs_of_the_demo_share_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sklearn")
    from dpmesh.demo import run_demo

    class EnoughError(Exception):
        pass

    keys: list[dm.Key | None] = []
    simulate = dm.simulate

    def watch(*given: Any, key: dm.Key | None, **options: Any) -> dm.Run:
        keys.append(key)
        if len(keys) == 20:
            raise EnoughError
        return simulate(*given, key=key, **options)

    monkeypatch.setattr(dm, "simulate", watch)
    for key in (dm.Key.generate(), dm.Key.seeded(1)):
        keys.clear()
        with pytest.raises(EnoughError):
            run_demo(key, lambda panel: None)
        if key.is_seeded:
            assert len({dm.keys.fingerprint(own) for own in keys if own is not None}) == 20
        else:  # each run takes a new key
            assert keys == [None] * 20


MANY = 7
"""Options of a command from which on they stand in groups."""


def every_command() -> dict[str, Any]:
    """Return each command by its words."""
    typer = pytest.importorskip("typer.main")
    from dpmesh.cli import app

    commands: dict[str, Any] = {}

    def walk(words: str, shown: Any) -> None:
        shown = getattr(shown, "imported_command", lambda: shown)()
        names = shown.list_commands(None) if hasattr(shown, "list_commands") else []
        for name in names:
            walk(f"{words} {name}".strip(), shown.get_command(None, name))
        if not names:
            commands[words] = shown

    walk("", typer.get_command(app))
    return commands


def options_of(shown: Any) -> list[Any]:
    return [one for one in shown.params if one.param_type_name == "option" and one.name != "help"]


def test_many_options_of_a_command_stand_in_groups() -> None:
    for words, shown in every_command().items():
        options = options_of(shown)
        if len(options) > MANY and words not in ("benchmark", "reproduce"):
            assert {one.opts[0] for one in options if not one.rich_help_panel} == set(), words


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("fit", ["Data", "Privacy", "Learning", "Output", "Text files"]),
        ("stats", ["Data", "Privacy", "Questions", "Output", "Text files"]),
        ("synthesize", ["Data", "Privacy", "Output", "Text files"]),
        ("audit", ["Claim", "Audit", "Adversary's view"]),
        ("node", ["Data", "Privacy", "Connection", "Output", "Operation", "Text files"]),
        ("router", ["Connection", "Operation"]),
        ("run", ["Output", "Operation"]),
    ],
)
def test_help_shows_options_in_groups(name: str, groups: list[str]) -> None:
    shown = command(name, "--help")
    assert all(f"─ {group} ─" in shown for group in groups)
    ungrouped = shown.partition("─ Options ─")[2].partition("╰")[0]
    assert re.findall(r"--[a-z-]+", ungrouped) == ["--help"]


def test_help_is_an_imperative_or_a_noun_phrase() -> None:
    """It opens with no relative clause, pronoun or default, and ends a sentence."""
    clause = re.compile(r"(What|Whether|How|Who|Which|Whose|Where|By default|It|As|Of|If)\b")
    for words, shown in every_command().items():
        for option in options_of(shown):
            stated = option.help or ""
            assert stated.endswith("."), (words, option.opts)
            assert not clause.match(stated), (words, option.opts, stated)


def test_a_mistyped_name_gets_the_nearest_one() -> None:
    for mistyped, meant in [
        (("audti",), "audit"),
        (("contract", "chekc"), "check"),
        (("privacy", "dp-sgb"), "dp-sgd"),
        (("audit", "gradient-descnet"), "gradient-descent"),
        (("audit", "gradient-descent", "--mechanism", "Laplac"), "Laplace"),
        (("audit", "--view", "one", "--topology", "metings"), "meetings"),
        (
            ("privacy", "federated", "--noise", "1", "--clients", "9", "--sampling", "poison"),
            "poisson",
        ),
        (("run", "missing.toml", "--engin", "mpi"), "--engine"),
        (("reproduce", "federated-tabel2"), "federated-table2"),
        (("benchmark", "digits-by-clas"), "digits-by-class"),
        (("fit", "a.csv", "--labl", "b"), "--label"),
    ]:
        assert meant in command(*mistyped, code=2).replace("│", ""), mistyped


EXAMPLE = Path(__file__).parents[2] / "examples" / "three_hospitals" / "contract.toml"
PLAN = ["--sites", "3", "--records", "20", "--features", "2", "--epsilon", "8", "--algorithm"]


@pytest.mark.parametrize(
    ("module", "words", "moves"),
    [
        ("audit", ["audit", "gaussian", "--runs", "20", "--canaries", "20"], 2),
        ("fit", ["fit", "{}", "--label", "b", "--epsilon", "1", "--ranges", "{}.toml"], 1),
        pytest.param("start", ["forecast", *PLAN, "gossip"], 30, marks=pytest.mark.slow),
        ("mesh", ["contract", "check", str(EXAMPLE)], 3),
        ("_sites", ["stats", "{}", "--epsilon", "9", "--ranges", "{}.toml", "--mean", "a"], 3),
        ("_asking", ["stats", "{}", "--epsilon", "9", "--ranges", "{}.toml", "--mean", "a"], 1),
        ("synthesize", ["synthesize", "{}.json", "--rows", "9", "--output", "{}.drawn.csv"], 15),
        ("ranges", ["ranges", "{}"], 1),
    ],
)
def test_what_takes_seconds_moves_a_bar(
    module: str, words: list[str], moves: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("sklearn")
    from contextlib import contextmanager
    from importlib import import_module

    moved: list[int] = []

    monkeypatch.chdir(tmp_path)
    table = tmp_path / "table.csv"
    rows = [f"{i % 7},{'yes' if i % 7 > 3 else 'no'}\n" for i in range(60)]
    table.write_text("a,b\n" + "".join(rows))
    Path(f"{table}.toml").write_text('a = [0, 10]\nb = {classes = ["no", "yes"]}\n')
    splits = ["--splits", "1"] if module == "fit" else []
    if module == "synthesize":
        options = ["--epsilon", "9", "--pairs", "a,b:2", "--output", f"{table}.json"]
        command("stats", str(table), "--ranges", f"{table}.toml", *options)
    totals: list[int | None] = []

    @contextmanager
    def bar(total: int | None, *, unit: str, shown: bool = True) -> Any:
        totals.append(total)
        yield moved.append

    monkeypatch.setattr(import_module(f"dpmesh.cli.{module}"), "progress_bar", bar)
    command(*(word.format(table) for word in words), *splits)
    assert sum(moved) >= moves
    assert totals in ([None], [sum(moved)])  # a bar with an end reaches it

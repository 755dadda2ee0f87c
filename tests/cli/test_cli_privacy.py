"""``dpmesh privacy``: the numbers of the library, and clear words for what does not fit."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from command import command

import dpmesh as dm
from dpmesh import accounting
from dpmesh.privacy import Report, rounded_up

get_command = pytest.importorskip("typer.main").get_command

FEDERATED = ["federated", "--clients", "1000", "--sampling-rate", "0.05"]
QUANTIZED = [
    *("quantized", "--step-size", "0.01", "--consensus-step-size", "0.05"),
    *("--sample-size", "50"),
]


def ask(*arguments: str) -> str:
    return command("privacy", *arguments)


def number(name: str, output: str) -> float:
    found = re.search(rf"^{name} .*?(\d[-+0-9.e]*)", output, re.MULTILINE)
    assert found, output
    return float(found[1].rstrip(","))


def test_every_algorithm_is_priced_and_audited() -> None:
    from dpmesh.algorithms.registry import REGISTRY
    from dpmesh.cli.audit import case_names
    from dpmesh.cli.other_tools import COMMANDS
    from dpmesh.cli.privacy import privacy
    from dpmesh.noise.mechanisms import KINDS
    from dpmesh.settings.parts import SECTIONS

    priced = {*get_command(privacy).list_commands(None)}
    names = {entry.name for entry in REGISTRY}
    assert priced == names | {*COMMANDS}
    assert {*case_names()} == names | {kind.distribution for kind in KINDS}
    learn = {entry.kind.__name__ for entry in REGISTRY if entry.learns}
    assert learn == {*SECTIONS["algorithm"]}


@pytest.mark.parametrize("name", ["cross-silo", "federated", "gradient-descent", "record-sums"])
def test_a_parameter_that_a_file_would_fill_is_asked_for(name: str) -> None:
    assert "Missing option" in command("privacy", name, "--noise", "2", code=2)


NEWCOMER = """
import dpmesh as dm
from dpmesh.algorithms.registry import Entry, register

class HeavyBall(dm.GradientDescent):
    messages_need_no_trust = "what others send is post-processing"

register(
    Entry(
        name="heavy-ball",
        kind=HeavyBall,
        example=HeavyBall(records=4, noise_multiplier=4.0),
        asked=("records", "copies"),
    )
)
"""


def test_an_algorithm_of_ones_own_is_priced_audited_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dpmesh.algorithms import registry
    from dpmesh.deploy.contract import read_contract

    (tmp_path / "newcomer.py").write_text(NEWCOMER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    try:
        asked = ("--records", "9", "--rounds", "5", "--epsilon", "2")
        assert "privacy     epsilon = 2," in ask("newcomer:heavy-ball", *asked)
        quick = ["--runs", "50", "--canaries", "50", "--seed", "1", *asked]
        assert "claim     mu = 0.5" in command("audit", "newcomer:heavy-ball", *quick)
        hospitals = Path(__file__).parents[2] / "examples" / "three_hospitals" / "contract.toml"
        own = hospitals.read_text().replace('"GradientDescent"', '"HeavyBall"')
        (tmp_path / "contract.toml").write_text(own)
        assert type(read_contract("contract.toml").algorithm).__name__ == "HeavyBall"
        with pytest.raises(ValueError, match="name: wanted one that is not taken"):
            registry.register(registry.entry_of("heavy-ball"))
    finally:
        registry.REGISTRY[:] = [each for each in registry.REGISTRY if each.name != "heavy-ball"]
        registry.KINDS.pop("HeavyBall", None)


def test_a_parameter_without_a_description_has_no_help() -> None:
    from dpmesh.algorithms.registry import Entry
    from dpmesh.cli.algorithm_commands import command_of

    @dataclass(frozen=True, kw_only=True)
    class Damped(dm.GradientDescent):
        """Gradient descent whose docstring does not describe its parameter."""

        damping: float = 1.0

    example = Damped(records=4, noise_multiplier=4.0)
    entry = Entry(name="damped", kind=Damped, example=example, asked=("damping",))
    (option,) = (option for option in command_of(entry).params if option.name == "damping")
    assert option.help == ""


def test_the_help_of_an_algorithm_describes_each_parameter() -> None:
    from dpmesh.algorithms.registry import REGISTRY
    from dpmesh.cli._options import ALGORITHM
    from dpmesh.cli.algorithm_commands import command_of

    for entry in REGISTRY:
        for option in command_of(entry).params:
            if getattr(option, "rich_help_panel", "") == ALGORITHM:
                is_described = option.help not in ("", None) and "As in" not in option.help
                assert is_described, (
                    f"{entry.name}: describe {option.name} in the docstring of "
                    f"{entry.kind.__name__}; its first clause is the help of `dpmesh privacy`"
                )


def test_a_contract_finds_a_module_in_this_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the command does, whose `sys.path` begins with the folder of the program."""
    (tmp_path / "steady_descent.py").write_text(
        "import dpmesh as dm\n\nclass Steady(dm.GradientDescent):\n"
        "    messages_need_no_trust = 'what others send is post-processing'\n"
    )
    hospitals = Path(__file__).parents[2] / "examples" / "three_hospitals" / "contract.toml"
    text = hospitals.read_text().replace('"GradientDescent"', '"Steady"')
    (tmp_path / "contract.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    checked = command("contract", "check", "contract.toml", "--module", "steady_descent")
    assert "algorithm    Steady over" in checked


def test_the_noise_of_secure_sums() -> None:
    public = ["--clients", "5", "--records", "500", "--dim", "31", "--rounds", "50"]
    output = ask("cross-silo", *public, "--epsilon", "2")
    noise = number("noise", output)
    assert number("privacy", output) <= 2
    assert number("privacy", ask("cross-silo", *public, "--noise", str(1.1 * noise))) < 1.9


@pytest.mark.parametrize(
    ("view", "words"), [("one", "any one"), ("3,7", "3, 7"), ("any-2", "any 2")]
)
def test_gradient_descent_is_priced_against_a_view(view: str, words: str) -> None:
    question = ["gradient-descent", "--records", "400", "--rounds", "9", "--nodes", "9"]
    found = ask(*question, "--epsilon", "2", "--view", view)
    assert re.search(rf"^view  .*epsilon = 2 against .*{words}", found, re.MULTILINE), found
    assert number("privacy", found) > 2.0 >= number("view", found)
    assert number("noise", found) < number("noise", ask(*question, "--epsilon", "2"))


def test_quantized_gossip_and_online_learning_are_priced_against_a_view() -> None:
    sizes = ["--step-size", "0.5", "--consensus-step-size", "0.3", "--sample-size", "20"]
    question = ["quantized", *sizes, "--mode", "public_point", "--rounds", "9", "--nodes", "9"]
    found = ask(*question, "--epsilon", "2", "--view", "one")
    assert number("privacy", found) > 2.0 >= number("view", found)
    found = ask("online", "--epsilon", "2", "--delta", "1e-5", "--rounds", "6", "--view", "one")
    assert "nothing less is proved against any one node" in found  # which hears the very message


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (["--view", "two"], "view: wanted one, last, any-2, or numbers of nodes"),
        (["--view", "99"], "node: wanted"),
        (["--view", "one", "--topology", "star"], "topology: wanted one of 'meetings'"),
    ],
)
def test_a_view_that_does_not_fit_is_named(option: list[str], message: str) -> None:
    question = ["privacy", "gradient-descent", "--records", "9", "--noise", "1", "--rounds", "3"]
    assert message in command(*question, *option, code=2)


@pytest.mark.parametrize(
    ("question", "warning"),
    [
        ("federated --clients 9 --sampling-rate .5 --noise 2 --rounds 3", "delta is above 1 / 9: "),
        ("online --epsilon 2", "delta should be well below 1 / number of records"),
    ],
)
def test_a_large_delta_is_named(question: str, warning: str) -> None:
    assert f"Warning: {warning}" in ask(*question.split(), "--delta", "0.5")


def test_an_algorithm_answers_in_json() -> None:
    asked = ["gradient-descent", "--records", "100", "--noise", "4", "--rounds", "10"]
    answer = json.loads(ask(*asked, "--json"))
    assert (answer["noise"], answer["rounds"]) == (4.0, 10)
    report = Report.from_dict(answer["report"])
    assert ask(*asked).splitlines()[2:] == str(report).splitlines()


@pytest.mark.slow
def test_several_epsilons_of_an_algorithm_are_a_table() -> None:
    asked = [*FEDERATED, "--rounds", "30"]
    each = [number("noise", ask(*asked, "--epsilon", epsilon)) for epsilon in ("1", "2")]
    head, *rows = ask(*asked, "--epsilon", "1", "--epsilon", "2").splitlines()
    assert head.split() == ["epsilon", "noise", "rounds", "delta"]
    assert [float(row.split()[1]) for row in rows] == each


@pytest.mark.slow
def test_help_fits_on_a_screen() -> None:
    from dpmesh.cli.privacy import privacy

    for name in get_command(privacy).list_commands(None):
        shown = command("privacy", name, "--help", terminal_width=80)
        assert len(shown.splitlines()) <= 45
        assert not re.search(r" (K|L|v|in \(0|for t = 1|for t = 1, 2)\.", shown)  # cut short


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampling", "compose", "relation"),
    [
        ("poisson", accounting.poisson_gaussian_noise_to_sensitivity, "add_remove"),
        ("uniform", accounting.fixed_size_gaussian_noise_to_sensitivity, "replace_one"),
    ],
)
def test_federated_noise_epsilon_and_rounds_are_one_question(sampling, compose, relation) -> None:
    base = [*FEDERATED, "--sampling", sampling, "--clipping-norm", "0.3"]
    answer = ask(*base, "--epsilon", "2", "--rounds", "100")
    noise = number("noise", answer)
    public = {"sampling_rate": 0.05, "neighboring_relation": relation, "count": 100}
    expected = compose(target_epsilon=2.0, target_delta=1e-5, **public)
    moved = 2 if sampling == "uniform" else 1
    assert noise == pytest.approx(moved * expected, rel=1e-6)
    std = 0.3 * noise
    assert f"gaussian, scale {rounded_up(std)} where a user moves a release by" in answer
    assert relation.replace("_", "-") in answer
    noise_option = ["--noise", str(1.0001 * noise)]
    assert number("rounds", ask(*base, "--epsilon", "2", *noise_option)) == 100
    spent = number("privacy", ask(*base, "--rounds", "100", *noise_option))
    assert spent == pytest.approx(2.0, rel=1e-3)
    assert spent <= 2.0


def test_online_laplace_and_gaussian() -> None:
    laplace = ask("online", "--epsilon", "0.5", "--dim", "100", "--clipping-norm", "2")
    assert number("noise", laplace) == 2.0
    # 2 alpha L sqrt(dim) / epsilon
    assert "laplace, scale 40 where a record moves a release by 2)" in laplace
    assert "any number" in laplace
    assert "releases" not in laplace
    gaussian = ask("online", "--epsilon", "1", "--delta", "1e-5", "--batch-size", "2")
    assert number("noise", gaussian) == pytest.approx(
        accounting.analytic_gaussian_noise_to_sensitivity(target_epsilon=1.0, target_delta=1e-5),
        rel=1e-7,
    )
    shown = str(number("noise", gaussian))  # rounded up, so that what is copied keeps the budget
    assert "epsilon = 1, delta = 1e-05" in ask("online", "--noise", shown, "--delta", "1e-5")
    assert number("privacy", ask("online", "--noise", "4")) == 0.25


def test_quantized() -> None:
    answer = ask(*QUANTIZED, "--epsilon", "1", "--rounds", "60", "--mode", "public_point")
    noise = str(1.0001 * number("noise", answer))
    rounds = ask(*QUANTIZED, "--epsilon", "1", "--noise", noise, "--mode", "public_point")
    assert number("rounds", rounds) == 60


def test_without_replacement() -> None:
    options = ["--delta", str(1 / 60_000**2), "--models", "10", "--batch-size", "50"]
    answer = ask("without-replacement", "--epsilon", "1", *options)
    assert number("noise", answer) == pytest.approx(5.7050377, rel=1e-6)
    assert f"scale {rounded_up(5.7050377 * 10**0.5)} where" in answer
    assert number("privacy", ask("without-replacement", "--noise", "4", "--models", "3")) > 0.5


def test_gradient_descent() -> None:
    answer = ask("gradient-descent", "--records", "50", "--epsilon", "2", "--rounds", "30")
    noise = number("noise", answer)
    mu = 2 * 29**0.5 / noise
    assert accounting.gdp_epsilon(delta=1e-5, mu=mu) == pytest.approx(2.0, rel=1e-6)
    assert f"noise multiplier: gaussian, scale {rounded_up(noise / 50)} where" in answer


@pytest.mark.slow
def test_with_replacement() -> None:
    base = ["with-replacement", "--records", "1000", "--models", "10"]
    answer = ask(*base, "--epsilon", "1")
    noise = number("noise", answer)
    public = {"sampling_rate": 0.05, "neighboring_relation": "replace_one", "count": 100}
    expected = accounting.fixed_size_gaussian_noise_to_sensitivity(
        target_epsilon=1.0, target_delta=1e-5, **public
    )
    assert noise == pytest.approx(2 * 10**0.5 * expected, rel=1e-6)
    assert number("rounds", answer) == 100  # of a node: five visits of 1000 records by 50
    assert f"scale {rounded_up(noise / 2)} where a record moves a release" in answer
    assert number("privacy", ask(*base, "--noise", str(1.0001 * noise))) == pytest.approx(1, 1e-3)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("federated --noise 1", "options: wanted two of .*, got --noise"),
        ("federated", "options: wanted two of --epsilon, --noise and --rounds, got none"),
        (
            "federated --noise 1 --epsilon 1 --rounds 1",
            "options: wanted two of .*, got --epsilon, --noise, --rounds",
        ),
        ("federated --epsilon -1 --rounds 1", "epsilon: wanted a finite number gr"),
        ("federated --noise 0 --rounds 1", "noise: wanted a finite number greater"),
        ("federated --noise 1 --rounds 0", "rounds: wanted an integer of at least 1"),
        ("federated --noise 1 --rounds 1000000000", "rounds: wanted at most 1"),
        (
            "federated --noise 1 --rounds 1 --sampling both",
            "sampling: wanted one of 'poisson', 'uniform', 'cyclic', 'allocation', got 'both'",
        ),
        (
            "federated --clients 9 --sampling-rate 2 --noise 1 --rounds 1",
            r"sampling_rate: wanted a number in \(0, 1\], got 2",
        ),
        ("federated --noise 0.1 --epsilon 1", "epsilon: wanted at least .*, got 1"),
        (
            "federated --rounds 5 --epsilon 1 --delta 1",
            r"delta: wanted a number in \[0, 1\), got 1",
        ),
        ("online", "options: wanted either --epsilon or --noise, got none"),
        ("online --epsilon 1 --noise 1", "options: wanted either .*, got both"),
        ("online --epsilon 1 --dim 0", "dim: wanted an integer of at least 1"),
        ("quantized --noise 1 --rounds 9 --mode x", "mode: wanted one of"),
        ("without-replacement --epsilon 1 --models 0", "models: wanted an integer"),
        ("with-replacement --records 100", "options: wanted either --epsilon or --noise"),
        (
            "with-replacement --records 9 --noise 1",
            "batch_size: wanted at most 9, the records of a node, got 50",
        ),
        ("gradient-descent --records 0 --noise 1 --rounds 2", "records: want"),
        ("without-replacement --epsilon 1 --delta 0", "delta: wanted a number in"),
    ],
)
def test_what_does_not_fit_is_told(asked: str, message: str) -> None:
    name, *options = asked.split()
    usual = {"federated": FEDERATED, "quantized": QUANTIZED}.get(name, [name])
    usual = [name] if "--clients" in options else usual
    said = command("privacy", *usual, *options, code=2)
    assert re.search(f"^Error: {message}", said), said

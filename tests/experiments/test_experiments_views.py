"""A budget against a view in an experiment file."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpmesh.experiments import Experiment, read

pytest.importorskip("sklearn")

TEXT = """\
[run]
rounds = 8
seed = 1

[data]
source = "digits"
positive = [5, 6, 7, 8, 9]

[partition]
kind = "iid"
nodes = 6
equal_sizes = true

[problem]
loss = "logistic"
feature_norm = 1.0

[topology]
kind = "meetings"

[algorithm]
kind = "GradientDescent"
noise_multiplier = 2.0

[budget]
epsilon = 6.0
delta = 1e-5

[view]
kind = "OneNode"
"""


def load(folder: Path, text: str) -> Experiment:
    path = folder / "experiment.toml"
    path.write_text(text)
    return Experiment.of(read(path))


def test_a_file_has_a_budget_against_a_view(tmp_path: Path) -> None:
    """Eight rounds cost more against everybody than the budget allows."""
    run = load(tmp_path, TEXT).simulate()
    assert "against any one node" in str(run.privacy.view)
    assert run.privacy.epsilon > 6.0
    everybody = TEXT[: TEXT.index("[view]")]
    with pytest.raises(ValueError, match=r"run\.rounds: wanted at most"):
        load(tmp_path, everybody)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ('kind = "Coalition"\nnodes = [1, 4]', "against nodes 1, 4 together"),
        ('kind = "Links"\nlinks = [[0, 1], [2, 3]]', "against a listener on 2 links"),
        ('kind = "Node"\nnode = 2\nalso = [{kind = "PublishedMean"}]', "and the published mean of"),
    ],
)
def test_a_file_names_who_looks_on(table: str, words: str, tmp_path: Path) -> None:
    experiment = load(tmp_path, TEXT.replace('kind = "OneNode"', table))
    assert words in str(experiment.budget)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[budget]\nepsilon = 6.0\ndelta = 1e-5\n", "", r"view: wanted tables \[budget\]"),
        ('kind = "OneNode"', 'kind = "Coalition"', r"view\.nodes: wanted a value for Coal"),
        ('kind = "OneNode"', 'kind = "Node"', r"view\.node: wanted a value for N"),
        ('kind = "OneNode"', 'kind = "Node"\nnode = 6', r"view\.node: wanted an integer .* below"),
        ('kind = "OneNode"', 'kind = "Two"', r"view\.kind: wanted one of OneNode, Node"),
    ],
)
def test_a_view_that_does_not_fit_is_named(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        load(tmp_path, TEXT.replace(old, new))

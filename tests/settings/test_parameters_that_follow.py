"""Parameters that follow from public sizes are the same in files, contracts and the rule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command import command

import dpmesh as dm
from dpmesh.algorithms import RecordGradients, SecureAggregation
from dpmesh.defaults.run_sizes import RunSizes, names_following
from dpmesh.deploy import Contract, read_contract
from dpmesh.deploy.signing import SigningKey
from dpmesh.noise.correlated import BetweenPartners, CorrelatedStrategy, InTime
from dpmesh.noise.rounding import DOUBLE
from dpmesh.settings.parts import INNER_KINDS, PROTOCOLS, SECTIONS, part_fields

RECORDS = (40, 50, 60, 70)
DIM = 4
"""Three columns and a constant; each of two classes has a weight for each."""
RANGES = "a = [0.0, 1.0]\nb = [0.0, 1.0]\nc = [0.0, 1.0]\ny = ['no', 'yes']\n"


def made_contract(folder: Path, *options: str) -> Contract:
    """Return the contract that ``dpmesh contract make`` writes."""
    (folder / "ranges.toml").write_text(RANGES)
    path = folder / "contract.toml"
    parties: list[str] = []
    for number, records in enumerate(RECORDS):
        key = SigningKey.generate().public.hex()
        parties += ["--party", f"p{number}:{records}:{key}"]
    ranges = str(folder / "ranges.toml")
    public = ["--ranges", ranges, "--label", "y", "--epsilon", "3", *parties]
    command("contract", "make", str(path), *public, *options)
    return read_contract(path)


def chosen(method: Any, noise: Any = None, dropouts: int = 0) -> Any:
    """Return the algorithm that the rule chooses for the parties."""
    sizes = dm.defaults.Sizes(
        nodes=len(RECORDS),
        fewest_records=min(RECORDS),
        total_records=sum(RECORDS),
        dim=2 * DIM,
        features=DIM,
    )
    return dm.defaults.choose(
        sizes,
        epsilon=3.0,
        delta=1e-5,
        algorithm=method,
        noise=noise,
        dropouts=dropouts,
        reserve=len(RECORDS) if dropouts else None,  # an attempt that fails for each party
        between_parties=True,
    ).algorithm


@pytest.mark.slow
@pytest.mark.parametrize("dropouts", [0, 1])
def test_a_made_contract_adds_up_what_the_rule_chooses(tmp_path: Path, dropouts: int) -> None:
    contract = made_contract(tmp_path, "--algorithm", "secure", "--dropouts", str(dropouts))
    expected = chosen("secure", dropouts=dropouts)
    learning = expected.algorithm  # after a first stage
    contribution = replace(learning.contribution, records_per_client=max(RECORDS))
    learning = replace(learning, contribution=contribution)
    assert contract.algorithm == replace(expected, algorithm=learning)


@pytest.mark.parametrize("noise", [None, "BetweenPartners"])
def test_a_made_contract_gossips_what_the_rule_chooses(tmp_path: Path, noise: Any) -> None:
    options = [] if noise is None else ["--mechanism", noise]
    contract = made_contract(tmp_path, "--algorithm", "gossip", *options)
    expected = chosen("gossip", noise)
    rounded = expected.noise_multiplier * (1 + DOUBLE.share)
    made: Any = contract.algorithm
    assert replace(made, noise=None) == replace(expected, noise=None, noise_multiplier=rounded)
    if noise is None:
        assert made.noise is None
    else:
        same_network = replace(expected.noise, topology=contract.topology)
        assert made.noise == same_network


def test_a_part_gets_what_it_names_alone() -> None:
    sizes = RunSizes(
        nodes=4,
        rounds=7,
        data=lambda: dm.defaults.Sizes(nodes=4, fewest_records=5, total_records=30, dim=3),
        topology=lambda: dm.topology.ring(4),
    )
    assert sizes.part(RecordGradients) == RecordGradients(clients=4, records=30)
    assert sizes.part(SecureAggregation, colluding=2) == SecureAggregation(
        dim=3, rounds=7, colluding=2
    )
    assert {*sizes.following(InTime)} == {"topology", "rounds"}
    assert {*sizes.following(BetweenPartners)} == {"topology", "rounds", "star"}
    assert sizes.following(dm.GradientDescent) == {}


def test_what_follows_is_a_parameter_and_no_file_must_state_it() -> None:
    kinds = {*INNER_KINDS.values(), *SECTIONS["algorithm"].values(), *PROTOCOLS[CorrelatedStrategy]}
    following = {kind: names_following(kind) for kind in kinds}
    assert sum(map(bool, following.values())) >= 6
    for kind, names in following.items():
        parameters = part_fields(kind)
        assert not any(parameters[name].required for name in names if name in parameters)


def test_sizes_without_data_refuse_what_follows_from_data() -> None:
    with pytest.raises(ValueError, match="data: wanted public sizes of the data"):
        RunSizes(nodes=4, rounds=3).part(RecordGradients)

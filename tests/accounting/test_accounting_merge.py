"""Many kinds of rounds are replaced by mixtures that dominate them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpmesh.accounting._merge import RoundKinds, merge
from dpmesh.accounting._pairs import (
    GAUSSIAN,
    LAPLACE,
    DominatingPair,
    FixedSize,
    Poisson,
    integer_laplace,
)

KINDS = 300
LOSSES = np.concatenate([[0.0], np.geomspace(1e-6, 300.0, 40)])

LAWS = {"gaussian": GAUSSIAN, "laplace": LAPLACE, "discrete_laplace": integer_laplace()}
SAMPLINGS = {"all": DominatingPair, "poisson": Poisson, "fixed_size": FixedSize}
NAMES = [f"{law}-{sampling}" for law in LAWS for sampling in SAMPLINGS]
PAIRS = [sampling(law) for law in LAWS.values() for sampling in SAMPLINGS.values()]


@pytest.mark.parametrize("pair", PAIRS, ids=NAMES)
@settings(max_examples=5, deadline=None)
@given(
    lowest_ratio=st.floats(math.log(0.02), math.log(3.0)).map(math.exp),
    lowest_rate=st.sampled_from([1e-4, 0.01, 0.5, 1.0]),
    span=st.floats(1.5, 20.0),
)
def test_a_mixture_dominates_the_round_that_it_replaces(
    pair: DominatingPair, lowest_ratio: float, lowest_rate: float, span: float
) -> None:
    noise_ratio = np.geomspace(lowest_ratio, span * lowest_ratio, KINDS)
    rate = np.minimum(1.0, np.geomspace(lowest_rate, span * lowest_rate, KINDS))
    (merged,) = merge([RoundKinds(pair, rate, noise_ratio, np.ones(KINDS))])
    chosen = np.arange(0, KINDS, 7)
    profiles_of_nodes = [
        pair.profiles(float(q), float(s), LOSSES, 0.0)
        for q, s in zip(merged.rate, merged.noise_ratio, strict=True)
    ]
    for kind in chosen.tolist():
        profiles = pair.profiles(float(rate[kind]), float(noise_ratio[kind]), LOSSES, 0.0)
        nodes = merged.mixtures.nodes[kind]
        weights = merged.mixtures.weights[kind]
        for direction, profile in enumerate(profiles):
            of_nodes = [profiles_of_nodes[node][direction] for node in nodes.tolist()]
            mixture = sum(w * of.values for w, of in zip(weights, of_nodes, strict=True))
            rounding = profile.errors + sum(of.errors for of in of_nodes)
            assert (mixture >= profile.values * (1 - 1e-12) - rounding).all()


def test_rounds_of_little_gaussian_noise_are_not_merged() -> None:
    """Below 1 / sqrt(12) the profile is concave in the squared noise ratio at small losses."""
    pair = DominatingPair(GAUSSIAN)
    noise_ratio = np.geomspace(0.2, 3.0, KINDS)
    (merged,) = merge([RoundKinds(pair, np.ones(KINDS), noise_ratio, np.ones(KINDS))])
    nodes_of_kind = (merged.mixtures.weights > 0).sum(axis=1)
    is_small = noise_ratio < 1 / math.sqrt(12)
    assert (nodes_of_kind[is_small] == 1).all()
    assert np.isin(noise_ratio[is_small], merged.noise_ratio).all()
    assert (nodes_of_kind[~is_small] > 1).any()

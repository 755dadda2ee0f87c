"""Few rounds, tiny rates, tiny deltas, a million rounds: tight, never too small, and monotone."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq
from scipy.stats import norm

from dpmesh import accounting
from dpmesh.accounting import _compose
from dpmesh.accounting._merge import RoundKinds, merge
from dpmesh.accounting._pairs import GAUSSIAN, DominatingPair, FixedSize, Poisson
from dpmesh.accounting._poisson_pairs import ReplacedGaussian

PAIRS = (Poisson(GAUSSIAN), FixedSize(GAUSSIAN), ReplacedGaussian(), DominatingPair(GAUSSIAN))


class Setting(NamedTuple):
    rate: float
    noise: float
    count: int
    delta: float


def log_uniform(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(math.log(low), math.log(high)).map(lambda x: min(high, math.exp(x)))


SETTINGS = st.builds(
    Setting,
    log_uniform(1e-6, 1.0),
    log_uniform(0.1, 30.0),
    log_uniform(1, 1e6).map(round),
    log_uniform(1e-12, 1e-3),
)


def rounds(pair, setting: Setting) -> RoundKinds:
    rate, noise, count = (np.array([float(x)]) for x in setting[:3])
    return RoundKinds(pair, rate, noise, count)


def epsilon(pair, setting: Setting) -> float:
    return _compose.composed_epsilon(setting.delta, rounds(pair, setting))


def once(setting: Setting) -> float:
    """The exact epsilon of one Poisson-sampled release, of a unit that is removed."""
    q, z = setting.rate, setting.noise

    def excess(e: float) -> float:
        a = z * (math.log1p(math.expm1(e) / q)) + 0.5 / z
        return (1 - q) * norm.sf(a) + q * norm.sf(a - 1 / z) - math.exp(e) * norm.sf(a)

    if excess(0.0) <= setting.delta:
        return 0.0
    return brentq(lambda e: excess(e) - setting.delta, 0, 300, xtol=1e-14)


def finer(pair, setting: Setting) -> float:
    """On a grid ten times finer than the finest that was used by default."""
    merged = merge([rounds(pair, setting)])
    return _compose._epsilon_on_grid(merged, setting.delta, 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: type(pair).__name__)
@settings(max_examples=4, deadline=None)
@given(setting=SETTINGS, few=st.booleans())
def test_epsilon_is_that_of_a_grid_ten_times_finer(pair, setting: Setting, few: bool) -> None:
    setting = setting._replace(count=1 + setting.count % 20 if few else setting.count)
    assert epsilon(pair, setting) <= 1.05 * finer(pair, setting) + 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: type(pair).__name__)
@settings(max_examples=4, deadline=None)
@given(setting=SETTINGS, times=st.floats(1.01, 3.0))
def test_epsilon_is_monotone(pair, setting: Setting, times: float) -> None:
    here = epsilon(pair, setting)
    slack = 2e-3 * here + 1e-7
    for dearer in (
        setting._replace(rate=min(1.0, times * setting.rate)),
        setting._replace(noise=setting.noise / times),
        setting._replace(count=math.ceil(times * setting.count)),
        setting._replace(delta=setting.delta / times),
    ):
        assert epsilon(pair, dearer) >= here - slack, dearer


@settings(deadline=None)
@given(SETTINGS)
def test_one_round_costs_what_the_closed_form_says(setting: Setting) -> None:
    one = setting._replace(count=1)
    assert epsilon(Poisson(GAUSSIAN), one) == pytest.approx(once(one), rel=1e-6, abs=1e-9)
    exact = accounting.gdp_epsilon(delta=one.delta, mu=1 / one.noise)
    assert epsilon(DominatingPair(GAUSSIAN), one) == pytest.approx(exact, rel=1e-6, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "least"),
    [
        # the epsilon of a hundred rounds is no less than that of ten, that of ten than of one
        (Setting(1e-3, 0.667, 10, 1e-9), 1.76),
        (Setting(1e-3, 0.667, 100, 1e-9), 2.31),
        (Setting(1e-4, 0.8, 10, 1e-10), 0.0927),
        (Setting(1e-4, 0.8, 100, 1e-10), 0.153),
        (Setting(1e-3, 0.833, 10, 1e-10), 0.78),
    ],
)
def test_few_rounds_lie_between_two_bounds(setting: Setting, least: float) -> None:
    """The lower one is dp-accounting's optimistic estimate."""
    lower = (
        pld.from_gaussian_mechanism(
            setting.noise,
            sampling_prob=setting.rate,
            pessimistic_estimate=False,
            value_discretization_interval=5e-5,
        )
        .self_compose(setting.count)
        .get_epsilon_for_delta(setting.delta)
    )
    found = epsilon(Poisson(GAUSSIAN), setting)
    assert lower <= found <= 1.05 * lower + 1e-3
    assert found >= least


def test_next_to_no_noise_changes_epsilon_continuously() -> None:
    """It was 43 times as large from noise 0.01 down, where losses exceed any fixed interval."""
    found = [
        epsilon(Poisson(GAUSSIAN), Setting(0.01, noise, 1000, 1e-5)) * noise**2
        for noise in (0.0101, 0.01, 0.0099, 0.001, 1e-5)
    ]
    assert found == pytest.approx([13.0] * 5, rel=0.03)

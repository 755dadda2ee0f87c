"""1,000 distinct rounds: our Rényi curves against dp-accounting's, and calibration to a budget.

dp-accounting is timed on 10 of the rounds, with its default orders; its time grows in proportion.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import dp_accounting
import numpy as np
from dp_accounting import rdp as reference
from dp_accounting.rdp.rdp_privacy_accountant import DEFAULT_RDP_ORDERS

from benches.measure import Case
from dpmesh import accounting

logging.disable()
ROUNDS = 1000
THEIR_ROUNDS = 10
POPULATION = 1000
"""Records, of which samples of fixed size are taken."""
GENERATOR = np.random.default_rng(0)
RATE = GENERATOR.integers(1, 200, ROUNDS) / 1000
"""Sampling rate of each round."""
NOISE = GENERATOR.uniform(0.7, 5, ROUNDS)
"""Noise of each round over its sensitivity."""


def theirs_poisson() -> object:
    accountant = reference.RdpAccountant()
    for rate, noise in zip(RATE[:THEIR_ROUNDS], NOISE[:THEIR_ROUNDS], strict=True):
        gaussian = dp_accounting.GaussianDpEvent(noise)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(rate, gaussian))
    return accountant.get_epsilon(1e-5)


def theirs_fixed_size() -> object:
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = reference.RdpAccountant(neighboring_relation=relation)
    for rate, noise in zip(RATE[:THEIR_ROUNDS], NOISE[:THEIR_ROUNDS], strict=True):
        gaussian = dp_accounting.GaussianDpEvent(noise)
        size = int(POPULATION * rate)
        event = dp_accounting.SampledWithoutReplacementDpEvent(POPULATION, size, gaussian)
        accountant.compose(event)
    return accountant.get_epsilon(1e-5)


POISSON = {"neighboring_relation": "add_remove"}
FIXED_SIZE = {"neighboring_relation": "replace_one"}
OURS = {
    "poisson": lambda: accounting.rdp_poisson_gaussian(
        sampling_rate=RATE, noise_to_sensitivity=NOISE, orders=DEFAULT_RDP_ORDERS, **POISSON
    ),
    "poisson, all our orders": lambda: accounting.rdp_poisson_gaussian(
        sampling_rate=RATE, noise_to_sensitivity=NOISE, **POISSON
    ),
    "fixed size": lambda: accounting.rdp_fixed_size_gaussian(
        sampling_rate=RATE,
        noise_to_sensitivity=NOISE,
        orders=DEFAULT_RDP_ORDERS,
        bound="theorem_27",
        **FIXED_SIZE,
    ),
    "fixed size, epsilon by the dominating pair": lambda: accounting.fixed_size_gaussian_epsilon(
        delta=1e-5, sampling_rate=RATE, noise_to_sensitivity=NOISE, accountant="rdp", **FIXED_SIZE
    ),
    "noise for epsilon 2": lambda: accounting.poisson_gaussian_noise_to_sensitivity(
        target_epsilon=2.0,
        target_delta=1e-5,
        sampling_rate=RATE,
        relative_noise=NOISE,
        accountant="rdp",
        **POISSON,
    ),
}

THEIR_WAY = {"poisson": theirs_poisson, "fixed size": theirs_fixed_size}


def cases() -> Iterator[Case]:
    for name, ours in OURS.items():
        peer = "dp-accounting"
        yield Case(
            f"1,000 rounds, {name}",
            ours,
            peers={peer: THEIR_WAY[name]} if name in THEIR_WAY else {},
            part={peer: THEIR_ROUNDS / ROUNDS},
            most=0.1 if name.startswith("noise") else 0.05,
        )

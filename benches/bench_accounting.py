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
ROUNDS, THEIRS = 1000, 10
GENERATOR = np.random.default_rng(0)
RATE = GENERATOR.integers(1, 200, ROUNDS) / 1000
NOISE = GENERATOR.uniform(0.7, 5, ROUNDS)


def theirs_poisson() -> object:
    accountant = reference.RdpAccountant()
    for q, s in zip(RATE[:THEIRS], NOISE[:THEIRS], strict=True):
        gaussian = dp_accounting.GaussianDpEvent(s)
        accountant.compose(dp_accounting.PoissonSampledDpEvent(q, gaussian))
    return accountant.get_epsilon(1e-5)


def theirs_fixed_size() -> object:
    relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    accountant = reference.RdpAccountant(neighboring_relation=relation)
    for q, s in zip(RATE[:THEIRS], NOISE[:THEIRS], strict=True):
        gaussian = dp_accounting.GaussianDpEvent(s)
        size = int(1000 * q)
        event = dp_accounting.SampledWithoutReplacementDpEvent(1000, size, gaussian)
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
            part={peer: THEIRS / ROUNDS},
            most=0.1 if name.startswith("noise") else 0.05,
        )

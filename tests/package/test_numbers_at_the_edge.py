"""Numbers of any kind and size find what Python's own find, or a `ValueError` that names them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import dpmesh as dm
import dpmesh.kernels as kernels
from dpmesh import accounting, data, noise, privacy, run, topology
from dpmesh.accounting import papers
from dpmesh.keys import Key
from dpmesh_papers.deep_q import DeepQ
from dpmesh_papers.repeats import Repeats

KEY = Key.seeded(1)
ROW = noise.Sensitivity(1.0, "l2", "a record")
DATA = data.Dataset(np.ones((6, 2)), np.arange(6) % 2)
TINY, HUGE = Fraction(1, 10**400), Fraction(10**400, 3)


def packed(message: Any, shape: Any) -> kernels.Packed:
    return kernels.Packed(message=message, bits=4, shape=shape, dtype=np.dtype(np.int32))


def gossip(smoothness: Any) -> dm.QuantizedGossip:
    return dm.QuantizedGossip(
        step_size=0.1, consensus_step_size=0.5, sample_size=2, noise_std=1.0, smoothness=smoothness
    )


def sensitivities(smoothness: Any) -> Any:
    numbers: dict[str, Any] = {"consensus_step_size": 0.5, "gradient_bound": 2.0, "sample_size": 2}
    return papers.quantized.sensitivities(
        3, step_size=0.1, mode="safe", smoothness=smoothness, **numbers
    )


def history(round: Any = 1, at_least: Any = 0) -> Any:
    kept = run.History()
    kept.add(round, {"loss": 1.0})
    return kept.first("loss", at_least)


REFUSED: list[tuple[str, Callable[[Any], Any], list[Any]]] = [
    (
        "rounds",
        lambda n: dm.GradientDescent(records=5, noise_multiplier=2.0).plan(n),
        [np.int8(-128), np.int64(-(2**63))],
    ),
    ("dim", lambda n: noise.Laplace(1.0).noise_scale(ROW, n), [-1, 2.0, 10**400, "a", None]),
    ("smoothness", gossip, [None, "a", Decimal(1), 1j, HUGE, np.array([1.0]), np.nan, True]),
    ("smoothness", sensitivities, [None, "a", Decimal("nan"), HUGE, np.array([1.0]), 0]),
    ("divisor", lambda x: data.scaled(DATA, x), [1j, np.complex64(1), "2", HUGE, 10**400]),
    ("message", lambda b: kernels.unpack(packed(b, (3,))), [None, "ab", bytearray(2)]),
    ("shape", lambda s: kernels.unpack(packed(b"", s)), [None, (1.5,), (-1,), (2**62, 9)]),
    ("shape", lambda n: kernels.uniform((n, n), KEY.stream(1, 0)), [2**40]),
    ("round", dm.algorithms.controllers.Periodic(3).may_be_global, [None, 1.5, -1]),
    ("round", DeepQ(anneal_rounds=5).exploration, [None, 1.5, -1]),
    ("round", history, [1.5, None]),
    ("at_least", lambda x: history(at_least=x), [None, "a", 10**400, np.nan]),
    ("edge_probability", lambda p: topology.erdos_renyi(6, p, key=KEY), [5e-324, 1e-20]),
    ("value", privacy.rounded_up, [None, "a", 10**400, HUGE, 1j]),
    ("digits", lambda n: privacy.rounded_up(1.25, n), [0, 1.5, 2**40, 10**400, None]),
    ("dim", lambda n: noise.Quantizer(0.1).decode([b""], n, "f8"), [None, 1.5, -1, 10**400]),
    ("rows", lambda n: noise.RandomSparsifier(0.5).decode_packet(b"", n, 2, "f8"), [None, 1.5, -1]),
    ("nodes", lambda n: privacy.Release(1, noise.Gaussian(1.0), ROW, nodes=n), [(), (np.nan,)]),
    ("noise_to_sensitivity", accounting.rdp_gaussian, [np.longdouble("1e4000")]),
]


@pytest.mark.parametrize(("argument", "take", "values"), REFUSED)
def test_what_does_not_fit_is_named(
    argument: str, take: Callable[[Any], Any], values: list[Any]
) -> None:
    for value in values:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(ValueError, match=rf"^{argument}: wanted"):
                take(value)


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int64, np.uint64])
def test_narrow_integers_do_not_wrap_around(kind: Any) -> None:
    texts = {"a": "what is it, then? " * 300}
    narrow, own = (data.next_characters(texts, window=w, least_records=9) for w in (kind(100), 100))
    assert np.array_equal(narrow.train.features, own.train.features)
    assert type(noise.Laplace(1.0).noise_scale(ROW, kind(100))) is float
    assert dm.algorithms.controllers.Periodic(128).may_be_global(kind(127))
    release = privacy.Release(kind(100), noise.Gaussian(1.0), ROW, batch=kind(100))
    assert type(release.round) is type(release.batch) is int
    records = data.Dataset(np.ones((1200, 2)), np.where(np.arange(1200) % 2, 1, -1))
    problem = dm.LinearProblem(records, data.iid(records, 100, np.random.default_rng(0)), "hinge")
    assert Repeats.deal(problem, kind(3), key=KEY).problem.nodes == 300


def test_infinity_is_a_smoothness_of_any_kind() -> None:
    for infinity in (np.inf, np.float32(np.inf), np.longdouble(np.inf)):
        assert gossip(infinity) == gossip(np.inf)
        assert np.array_equal(sensitivities(infinity), sensitivities(np.inf), equal_nan=True)

"""Secure sums: grid, shares of noise, masks, modulus, and what a wrong one would do."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from masked_sums import masked_sum, masked_vectors, secrets_of
from scipy import stats

from dpmesh.accounting.shares import sum_of_shares_epsilon
from dpmesh.kernels import (
    discrete_gaussian,
    get_threads,
    mask_and_pack,
    row_norms,
    set_threads,
    unpack_sum,
)
from dpmesh.kernels.masking import MASK_PURPOSE
from dpmesh.keys import Key
from dpmesh.noise.secure import DistributedDiscreteGaussian, SecureSum, encode
from dpmesh.noise.secure.mechanism import wrapped
from dpmesh.noise.secure.sizes import calibrated_sum
from dpmesh.noise.sensitivity import Sensitivity

BITS = st.sampled_from([8, 21, 31, 32, 33, 63, 64])
ONE_IN_A_MILLION = 1e-6  # how often a test of uniformity fails a uniform sequence


def numbers(**changed: Any) -> SecureSum:
    public: dict[str, Any] = {"dim": 12, "sites": 5, "records": 300, "noise_to_sensitivity": 2.0}
    return SecureSum(**{**public, **changed})


def centred(value: int, bits: int) -> int:
    half = 1 << bits - 1
    return (value + half) % (1 << bits) - half


# Masks


@given(st.data(), st.integers(2, 7), BITS, st.integers(1, 20))
def test_masks_cancel_over_any_cohort_bit_for_bit(data: Any, n: int, bits: int, dim: int) -> None:
    cohort = sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=2)))
    values = np.random.default_rng(dim).integers(-(2**62), 2**62, size=(n, dim))
    vectors = masked_vectors(values, secrets_of(n, bits), cohort, bits)
    want = [centred(sum(int(values[i, j]) for i in cohort), bits) for j in range(dim)]
    assert unpack_sum(list(vectors.values()), dim, bits).tolist() == want


def test_masks_of_a_hundred_sites_cancel() -> None:
    values = np.random.default_rng(0).integers(-1000, 1000, size=(100, 9))
    vectors = masked_vectors(values, secrets_of(100, 1), range(100), 33)
    assert unpack_sum(list(vectors.values()), 9, 33).tolist() == values.sum(axis=0).tolist()


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_each_vector_and_the_sum_of_all_but_one_are_uniform(bits: int) -> None:
    values = np.full((4, 20_000), 5)  # nothing random beneath the masks
    vectors = masked_vectors(values, secrets_of(4, bits), range(4), bits)
    all_but_one = unpack_sum([vectors[0], vectors[1], vectors[2]], 20_000, bits)
    for message in (*vectors.values(), mask_and_pack(all_but_one, bits)):
        flat = np.frombuffer(message, np.uint8)
        counts = np.bincount(flat, minlength=256)
        assert stats.chisquare(counts).pvalue > ONE_IN_A_MILLION


def test_a_site_with_another_secret_makes_the_sum_uniform() -> None:
    values = np.zeros((3, 20_000), np.int64)
    secrets = secrets_of(3, 1)
    other = secrets_of(3, 2)
    mixed = [secrets[0], secrets[1], other[2]]
    total = unpack_sum([*masked_vectors(values, mixed, range(3), 16).values()], 20_000, 16)
    counts = np.bincount(total % 256, minlength=256)
    assert stats.chisquare(counts).pvalue > ONE_IN_A_MILLION


def test_the_difference_of_two_vectors_under_one_mask_is_open() -> None:
    """What reuse of masks would do: a secret must serve one sum only."""
    secrets = secrets_of(3, 1)
    first, second = (np.full((3, 6), v) for v in (3, 10))
    under = [masked_vectors(v, secrets, range(3), 32)[0] for v in (first, second)]
    opened = [unpack_sum([message], 6, 32) for message in under]
    assert (opened[1] - opened[0]).tolist() == [7] * 6


@given(st.binary(min_size=32, max_size=32), BITS, st.integers(1, 40))
def test_mask_words_are_the_key_stream_of_aes(secret: bytes, bits: int, dim: int) -> None:
    size = 4 if bits <= 32 else 8
    nonce = MASK_PURPOSE.to_bytes(4, "big") + bytes(12)
    ciphers = pytest.importorskip("cryptography.hazmat.primitives.ciphers")
    mode = ciphers.modes.CTR(nonce)
    cipher = ciphers.Cipher(ciphers.algorithms.AES(secret), mode).encryptor()
    raw = cipher.update(bytes(size * dim))
    words = [int.from_bytes(raw[size * j :][:size], "little") % 2**bits for j in range(dim)]
    for subtracts, sign in ((False, 1), (True, -1)):
        pairs = {"subtract" if subtracts else "add": [secret]}
        message = mask_and_pack(np.zeros(dim, np.int64), bits, **pairs)
        want = [centred(sign * word, bits) for word in words]
        assert unpack_sum([message], dim, bits).tolist() == want


@given(st.integers(1, 64), st.integers(1, 50), st.integers(0, 10))
def test_packing_is_undone(bits: int, dim: int, seed: int) -> None:
    values = np.random.default_rng(seed).integers(-(2**63), 2**63, size=dim)
    message = mask_and_pack(values, bits)
    as_number = sum(int(v) % 2**bits << bits * j for j, v in enumerate(values))
    assert message == as_number.to_bytes((dim * bits + 7) // 8, "little")
    assert unpack_sum([message], dim, bits).tolist() == [centred(int(v), bits) for v in values]


def test_long_vectors_are_masked_the_same_on_any_threads() -> None:
    values = np.random.default_rng(0).integers(-(2**20), 2**20, size=200_003)
    before, messages = get_threads(), []
    try:
        for threads in (1, 8):
            set_threads(threads)
            messages.append(mask_and_pack(values, 21, add=[b"1" * 32], subtract=[b"2" * 32]))
    finally:
        set_threads(before)
    assert messages[0] == messages[1]
    back = mask_and_pack(np.zeros(200_003, np.int64), 21, add=[b"2" * 32], subtract=[b"1" * 32])
    assert (unpack_sum([messages[0], back], 200_003, 21) == values).all()


def test_messages_and_secrets_that_do_not_fit_are_refused() -> None:
    for secret in (b"short", "x" * 32):
        with pytest.raises(ValueError, match="secret: wanted 32 bytes, got another") as caught:
            mask_and_pack([1, 2], 9, add=[secret])  # type: ignore[list-item]
        assert "short" not in str(caught.value)
    for bits in (0, 65):
        with pytest.raises(ValueError, match="bits"):
            mask_and_pack([1, 2], bits)
    with pytest.raises(ValueError, match="message: wanted 3 bytes, 2 numbers of 9 bits"):
        unpack_sum([bytes(2)], 2, 9)
    with pytest.raises(ValueError, match="padding of zeros"):
        unpack_sum([bytes([0, 0, 0xFC])], 2, 9)


# The sum


def test_the_sum_has_the_same_bits_with_and_without_masks_and_on_any_threads() -> None:
    public = numbers(dim=3000, sites=7)
    sums = np.random.default_rng(0).normal(size=(7, 3000))
    stream = Key.seeded(3).stream(1, 5)
    without = DistributedDiscreteGaussian(public)
    want = without.release(sums, Sensitivity(2.0, "l2", "2 C"), stream)
    before = get_threads()
    try:
        for threads in (1, 8):
            set_threads(threads)
            assert (masked_sum(public, sums, stream) == want).all()
    finally:
        set_threads(before)


def test_the_sum_is_the_sum_of_the_rounded_sums_and_shares() -> None:
    public = numbers()
    sums = np.random.default_rng(1).normal(size=(5, 12))
    stream = Key.seeded(4).stream(1, 2)
    share = discrete_gaussian((5, 12), public.share, stream)
    steps = [[round(v / public.grid) for v in row] for row in sums.tolist()]
    want = [
        (sum(steps[i][j] for i in range(5)) + int(share[:, j].sum())) * public.grid
        for j in range(12)
    ]
    assert masked_sum(public, sums, stream)[0].tolist() == want


# Sensitivity


@given(st.integers(0, 2**32), st.sampled_from(["replace_one", "add_remove"]))
def test_one_record_moves_the_integers_by_at_most_the_sensitivity(seed: int, relation: Any) -> None:
    rng = np.random.default_rng(seed)
    public = numbers(neighboring_relation=relation, grid_steps=int(2 ** rng.integers(2, 12)))
    rest = rng.normal(size=(1, 12)) * 10
    one, other = rng.normal(size=(2, 12))
    one /= np.linalg.norm(one)
    other = -one if rng.random() < 0.5 else other / np.linalg.norm(other)
    if relation == "add_remove":
        other = 0 * other
    moved = encode(public, rest + one) - encode(public, rest + other)
    assert row_norms(moved.astype(float))[0] <= public.sensitivity


def test_a_sensitivity_without_the_price_of_rounding_is_exceeded() -> None:
    """Planted: distance S claimed; every coordinate just below one half, a step of S / sqrt(d)."""
    public = numbers(
        dim=400, grid_steps=4, neighboring_relation="add_remove", noise_to_sensitivity=20.0
    )
    without = np.full((1, 400), (0.5 - 1e-12) * public.grid)
    record = np.full((1, 400), 1 / 20)  # norm 1
    moved = encode(public, without + record) - encode(public, without)
    distance = row_norms(moved.astype(float))[0]
    assert distance == 20 > public.steps
    assert distance <= public.sensitivity == pytest.approx(24)


def test_replace_one_needs_both_records() -> None:
    """Planted: S + sqrt(d) claimed for a record replaced by its opposite."""
    public, added = numbers(), numbers(neighboring_relation="add_remove")
    record = np.eye(1, 12)
    moved = encode(public, record) - encode(public, -record)
    distance = row_norms(moved.astype(float))[0]
    assert added.sensitivity < distance <= public.sensitivity


# Noise


def shares(public: SecureSum, stream: Any) -> Any:
    """Return the noise of each of five sites."""
    return public.noise(0, np.arange(5), stream)


def leftover(share: float, honest: int, seed: int) -> Any:
    """Return what a coalition is left with after it subtracts all that it knows of a sum."""
    stream = Key.seeded(seed).stream(1)
    return discrete_gaussian((honest, 40_000), share, stream).sum(axis=0)


def is_enough(unknown: Any, variance: float) -> bool:
    """Return whether noise of this variance is not refuted: at 6 standard errors of a variance."""
    return bool(unknown.var() > variance * (1 - 6 * math.sqrt(2 / len(unknown))))


@pytest.mark.parametrize(("colluding", "dropouts"), [(0, 0), (1, 0), (2, 1)])
def test_the_noise_against_a_coalition_is_what_is_claimed(colluding: int, dropouts: int) -> None:
    public = numbers(colluding=colluding, dropouts=dropouts, dim=40_000)
    claimed = (public.noise_to_sensitivity * public.sensitivity) ** 2
    noisy = shares(public, Key.seeded(5).stream(1))
    unknown = noisy[colluding + dropouts :].sum(axis=0)  # the worst: dropped out, and subtracted
    assert is_enough(unknown, claimed)
    assert unknown.var() < claimed * 1.1


@pytest.mark.parametrize(
    "planted",
    [
        pytest.param(lambda p: p.share * math.sqrt(p.honest) / p.sites, id="sigma over n"),
        pytest.param(
            lambda p: p.share * math.sqrt(p.honest / p.sites), id="sigma over sqrt(n), one colludes"
        ),
        pytest.param(lambda p: 0.0, id="share forgotten"),
    ],
)
def test_planted_shares_are_flagged(planted: Any) -> None:
    public = numbers()
    claimed = (public.noise_to_sensitivity * public.sensitivity) ** 2
    assert is_enough(leftover(public.share, public.honest, 1), claimed)
    assert not is_enough(leftover(planted(public), public.honest, 1), claimed)


def test_a_seed_that_sites_share_is_flagged() -> None:
    """Planted: a coalition subtracts its own noise once for every honest site."""
    public = numbers(dim=1000)
    one = discrete_gaussian(1000, public.share, Key.seeded(1).stream(1))
    total = np.tile(one, (5, 1)).sum(axis=0)
    assert not is_enough(total - 5 * one, (public.noise_to_sensitivity * public.sensitivity) ** 2)
    correlation = np.corrcoef(shares(public, Key.seeded(1).stream(1)))
    assert np.abs(correlation - np.eye(5)).max() < 6 / math.sqrt(1000)


# The modulus


def test_too_few_bits_are_refused_and_would_be_off_by_multiples_of_the_modulus() -> None:
    public = numbers()
    with pytest.raises(ValueError, match=f"bits: wanted at least {public.modulus_bits}"):
        numbers(bits=public.modulus_bits - 1)
    total = np.array([2 ** (public.modulus_bits - 1) - 1, 5])
    bits = public.modulus_bits - 1
    wrong = unpack_sum([mask_and_pack(total, bits)], 2, bits) - total
    assert wrong.tolist() == [-(2**bits), 0]


def test_no_sum_at_the_bound_wraps_around() -> None:
    public = numbers(rounds=100)
    most = np.full((5, 12), public.records * public.steps // 5)
    for t in range(1000):
        noisy = most + shares(public, Key.seeded(2).stream(1, t))
        total = noisy.sum(axis=0)
        sent = [mask_and_pack(row, public.modulus_bits) for row in noisy]
        assert (unpack_sum(sent, 12, public.modulus_bits) == total).all()


@given(
    st.integers(1, 5000),
    st.integers(3, 50),
    st.integers(1, 10**5),
    st.floats(0.5, 60),
    st.floats(0.01, 1),
)
def test_the_rule_for_bits_keeps_the_bound_on_wraps(
    dim: int, sites: int, records: int, z: float, rate: float
) -> None:
    public = numbers(
        dim=dim,
        sites=sites,
        records=records,
        noise_to_sensitivity=z,
        sampling_rate=rate,
        records_per_site=min(records, 10_000),
        rounds=7,
    )
    assert public.wrap_probability <= 2**-20
    room = 2.0 ** (public.modulus_bits - 2) - 1  # one bit fewer would not hold the largest sum
    assert room < public._largest_sum + 10 * public.share * math.sqrt(sites)


@pytest.mark.parametrize("records", [1_000, 700_000, 1_000_000, 1_400_000])
@pytest.mark.parametrize("relation", ["replace_one", "add_remove"])
def test_many_records_take_a_coarser_grid(records: int, relation: Any) -> None:
    dim = 2426
    public = numbers(
        dim=dim, sites=8, records=records, noise_to_sensitivity=20.0, neighboring_relation=relation
    )
    most = 2.0 * records * (records + 2) + 2 * dim
    assert most * 2.0**-53 * public.steps <= 1
    finest = 2 ** math.ceil(math.log2(2**7 * math.sqrt(dim)))
    assert (
        public.steps == finest or most * 2.0**-53 * 2 * public.steps > 1
    )  # no coarser than needed
    moved = 2 if relation == "replace_one" else 1
    assert public.sensitivity <= 1.03 * moved * public.steps


# Bad input


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"colluding": 4}, "sites: wanted at least 2 honest sites left"),
        ({"sites": 3, "dropouts": 1}, "5 - 1 - 1|3 - 1 - 1 = 1"),
        ({"grid_steps": 3}, "grid_steps: wanted a power of 2"),
        ({"grid_steps": 1, "noise_to_sensitivity": 0.1}, "share of noise between 4 and"),
        ({"noise_to_sensitivity": 1e9}, "share of noise between 4 and 2\\*\\*25 steps"),
        ({"records": 2 * 10**9}, "records_per_site: wanted so few records"),
        ({"records_per_site": 301}, "records_per_site"),
        ({"sampling_rate": 0.0}, "sampling_rate"),
        ({"neighboring_relation": "zero_out"}, "neighboring_relation"),
        ({"clipping_norm": math.inf}, "clipping_norm"),
        ({"bits": 8}, "wrap around with a probability of at most 2\\*\\*-20"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        numbers(**changed)


def test_sums_that_do_not_fit_are_refused() -> None:
    public = numbers()
    good = np.zeros((5, 12))
    for bad, said in [
        (good.astype(np.float32), "float64"),
        (good[:, :3], "shape"),
        (good[:4], "a row for each of 5 sites"),
        (good + np.nan, "finite"),
    ]:
        with pytest.raises(ValueError, match=said):
            encode(public, bad, 5)


def test_a_larger_grid_is_taken_where_the_share_would_be_too_small() -> None:
    public = numbers(noise_to_sensitivity=0.005, dim=1)
    assert public.share >= 4
    assert public.steps > 2**7


def test_calibration_keeps_the_budget_and_attempts_cost() -> None:
    sums = SecureSum(dim=31, sites=5, records=427, rounds=22, noise_to_sensitivity=1.0)
    calibrated = calibrated_sum(sums, epsilon=1.0, delta=1e-5)
    assert 0.999999 <= calibrated.epsilon(1e-5) <= 1.0
    with_dropout = calibrated_sum(replace(sums, dropouts=1), epsilon=1.0, delta=1e-5)
    assert with_dropout.noise_to_sensitivity > calibrated.noise_to_sensitivity
    assert with_dropout.share > calibrated.share * math.sqrt(4 / 3)
    noisier_sums = replace(sums, noise_to_sensitivity=30.0)
    assert calibrated_sum(noisier_sums, epsilon=1.0, delta=1e-5) == calibrated


def test_samples_cost_less_under_add_remove_alone() -> None:
    def cost(relation: Any, rate: float) -> float:
        return sum_of_shares_epsilon(
            delta=1e-5,
            noise_to_sensitivity=2.0,
            scale=25.0,
            share=8.0,
            sites=10,
            dim=100,
            neighboring_relation=relation,
            sampling_rate=rate,
        )

    assert cost("replace_one", 0.1) == cost("replace_one", 1.0) == cost("add_remove", 1.0)
    assert cost("add_remove", 0.1) < 0.5 * cost("add_remove", 1.0)


def test_errors_of_samplers_take_their_part_of_delta() -> None:
    """10 sites draw 10^6 numbers each: 2^-73 for each is 1.06e-15, and counts at least twice."""

    def cost(delta: float) -> float:
        return sum_of_shares_epsilon(
            delta=delta,
            noise_to_sensitivity=10.0,
            scale=1000.0,
            share=400.0,
            sites=10,
            dim=10**6,
            neighboring_relation="replace_one",
        )

    assert cost(2e-15) == math.inf
    assert cost(1e-14) < 1


@pytest.mark.parametrize(
    "parts", [[range(7)], [[0, 1, 2], [3, 4], [5, 6]], [[6, 2], [0, 1, 3, 4, 5]]]
)
def test_parts_of_some_sites_add_up_to_the_sum_with_masks(parts: list[Any]) -> None:
    public = numbers(dim=30, sites=7)
    sums = np.random.default_rng(2).normal(size=(7, 30))
    stream, total = Key.seeded(3).stream(1, 5), np.zeros((1, 30), np.int64)
    mechanism = DistributedDiscreteGaussian(public)
    for part in map(np.array, parts):
        total += mechanism.part(sums[part], part, stream).totals()
    assert (mechanism.opened(total) == masked_sum(public, sums, stream)).all()


@pytest.mark.parametrize("bits", [20, 40, 64])
def test_sums_of_words_beyond_64_bits_are_those_of_integers(bits: int) -> None:
    """Parts may wrap around: adding 2**64 to one changes nothing modulo 2**bits."""
    words = np.random.default_rng(bits).integers(-(2**63), 2**63 - 1, (4, 50), endpoint=True)
    half = 2 ** (bits - 1)
    want = [(sum(column) + half) % 2**bits - half for column in words.T.tolist()]
    assert wrapped(SimpleNamespace(modulus_bits=bits), words.sum(axis=0)).tolist() == want

"""Keys show nothing, are never stored, and open the streams that the cipher's standard says."""

from __future__ import annotations

import copy
import hashlib
import hmac
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refused import refused

from dpmesh import kernels
from dpmesh.keys import Key, Purpose, fingerprint, generator


def first_words(key: Key, purpose: int = 1, round: int = 0, node: int = 0) -> list[int]:
    words = np.empty(16, dtype=np.uint32)
    key.stream(purpose, round).words(node, words)
    return words.tolist()


def test_a_fingerprint_tells_no_word_that_is_used() -> None:
    """False alarm in 1 of 2e7 runs."""
    key = Key.generate()
    reported = bytes.fromhex(fingerprint(key).removeprefix("aes-"))
    assert len(reported) == 128 // 8
    for purpose in set(Purpose) - {Purpose.CHECKPOINT}:
        used = np.array(first_words(key, purpose), "<u4").tobytes()
        assert reported[:4] not in (used[i : i + 4] for i in range(0, 64, 4))


def test_the_seed_is_the_key_lowest_byte_first() -> None:
    # RFC 8439, 2.4.2: block 1 of this key and nonce, here with the nonce as (purpose, round, node).
    seed = int.from_bytes(bytes(range(32)), "little")
    words = np.empty(32, dtype=np.uint32)
    Key.seeded(seed, cipher="chacha20").stream(0x09, 0x4A).words(0, words)
    block_1 = words[16:].astype("<u4").tobytes()
    assert block_1.hex().startswith("10f1e7e4d13b5915500fdd1fa32071c4")


def test_every_part_of_the_address_counts() -> None:
    draws = [
        first_words(Key.seeded(1)),
        first_words(Key.seeded(2)),
        first_words(Key.seeded(1, cipher="chacha20")),
        first_words(Key.seeded(1), purpose=2),
        first_words(Key.seeded(1), round=1),
        first_words(Key.seeded(1), node=1),
    ]
    assert len({tuple(words) for words in draws}) == len(draws)
    assert first_words(Key.seeded(1)) == draws[0]


def test_generated_keys_differ() -> None:
    assert first_words(Key.generate()) != first_words(Key.generate())


@pytest.mark.parametrize("call", [Key, lambda: Key(1), lambda: Key(seed=1)])
def test_a_call_of_the_class_says_how_keys_are_made(call: Callable[[], object]) -> None:
    ways = r"Key\.generate\(\), Key\.seeded\(seed\) or Key\.load\(path\)"
    with pytest.raises(TypeError, match=f"a Key is made by {ways}"):
        call()


@pytest.mark.parametrize("cipher", ["aes", "chacha20"])
def test_a_key_says_its_cipher_and_whether_it_is_seeded_and_no_more(cipher: str) -> None:
    for key, seeded in [(Key.generate(cipher), False), (Key.seeded(5, cipher), True)]:
        for thing in (key, key.stream(Purpose.NOISE, 3)):
            assert thing.cipher == cipher
            assert thing.is_seeded is seeded
            name = type(thing).__name__
            assert repr(thing) == f"{name}(cipher='{cipher}', is_seeded={seeded})"
            assert not hasattr(thing, "__dict__")


@pytest.mark.parametrize("store", [pickle.dumps, copy.copy, copy.deepcopy])
def test_keys_and_streams_are_never_stored(store: Callable[[object], object]) -> None:
    key = Key.generate()
    with pytest.raises(TypeError, match="a Key cannot be pickled or copied: keys are never stored"):
        store(key)
    with pytest.raises(TypeError, match="a Stream cannot be pickled"):
        store(key.stream(1))


@pytest.mark.parametrize("cipher", ["aes", "chacha20"])
def test_a_derived_key_is_the_hmac_of_the_bytes(cipher: str) -> None:
    """HMAC-SHA-256 under the key, by Python's own: RFC 2104."""
    seed, data = 2**200 + 12345, b"round 7 of node 3"
    derived = hmac.new(seed.to_bytes(32, "little"), data, hashlib.sha256).digest()
    expected = Key.seeded(int.from_bytes(derived, "little"), cipher)
    assert first_words(Key.seeded(seed, cipher).derive(data)) == first_words(expected)


@given(one=st.binary(max_size=100), other=st.binary(max_size=100))
def test_derived_keys_differ_with_their_bytes_alone(one: bytes, other: bytes) -> None:
    key = Key.seeded(3)
    words, same, others = (first_words(key.derive(data)) for data in (one, one, other))
    assert words == same
    assert (words == others) == (one == other)
    assert words != first_words(key)
    assert words != first_words(Key.seeded(4).derive(one))
    assert words != first_words(key.derive(other).derive(one))


def test_a_derived_key_keeps_what_its_key_says_of_itself() -> None:
    nodes = np.array([3, 0], dtype=np.uint32)
    for key in (Key.generate("chacha20"), Key.seeded(5)):
        derived = key.derive(b"inputs")
        assert (derived.cipher, derived.is_seeded) == (key.cipher, key.is_seeded)
        whole = kernels.gaussian((4, 6), 1.0, derived.stream(Purpose.NOISE))
        part = kernels.gaussian((2, 6), 1.0, key.for_nodes(nodes).derive(b"inputs").stream(1))
        np.testing.assert_array_equal(part, whole[nodes])


def test_purposes_are_distinct_and_0_stays_free() -> None:
    assert sorted(Purpose) == list(range(1, len(Purpose) + 1))


def test_purposes_keep_their_numbers() -> None:
    """Two with one number would be one; another number would draw other values."""
    assert [*Purpose] == [*range(1, 16)]


def test_generators_repeat_and_differ() -> None:
    def draw(*address: int) -> list[int]:
        return generator(Key.seeded(3), *address).integers(2**62, size=4).tolist()

    draws = [draw(1), draw(2), draw(1, 1), draw(1, 0, 1)]
    assert len({tuple(d) for d in draws}) == 4
    assert draw(1) == draws[0]


@pytest.mark.parametrize("dim", [1, 7, 600])
def test_a_key_for_some_nodes_draws_their_rows_of_the_whole(dim: int) -> None:
    key, nodes = Key.seeded(5), np.array([3, 0, 6], dtype=np.uint32)
    mine = key.for_nodes(nodes)
    assert mine.is_seeded
    whole = kernels.gaussian((8, dim), 1.0, key.stream(Purpose.NOISE, 2))
    part = kernels.gaussian((3, dim), 1.0, mine.stream(Purpose.NOISE, 2))
    np.testing.assert_array_equal(part, whole[nodes])
    named = kernels.gaussian((2, dim), 1.0, mine.stream(Purpose.NOISE, 2), nodes=[2, 0])
    np.testing.assert_array_equal(named, whole[[6, 3]])
    fewer = mine.for_nodes(np.array([2, 0], dtype=np.uint32)).stream(Purpose.NOISE, 2)
    np.testing.assert_array_equal(kernels.gaussian((2, dim), 1.0, fewer), named)
    fewer = mine.stream(Purpose.NOISE, 2).for_nodes(np.array([2, 0], dtype=np.uint32))
    assert fewer.is_seeded
    np.testing.assert_array_equal(kernels.gaussian((2, dim), 1.0, fewer), named)
    integers = kernels.discrete_gaussian((8, dim), 9.0, key.stream(Purpose.NOISE, 2))
    part = kernels.discrete_gaussian((3, dim), 9.0, mine.stream(Purpose.NOISE, 2))
    np.testing.assert_array_equal(part, integers[nodes])
    with pytest.raises(ValueError, match=r"nodes: wanted nodes below 3, .* the key is for, got 3"):
        kernels.gaussian((1, dim), 1.0, mine.stream(Purpose.NOISE, 2), nodes=[3])
    with pytest.raises(ValueError, match=r"nodes: wanted nodes below 3, .* the key is for, got 7"):
        mine.for_nodes(np.array([7], dtype=np.uint32))
    with pytest.raises(ValueError, match=r"nodes: wanted nodes below 3, .* the key is for, got 7"):
        mine.stream(Purpose.NOISE, 2).for_nodes(np.array([7], dtype=np.uint32))
    with pytest.raises(ValueError, match="nodes: wanted one for each of 4 rows, got 3"):
        kernels.gaussian((4, dim), 1.0, mine.stream(Purpose.NOISE, 2))
    with pytest.raises(ValueError, match="nodes: wanted distinct nodes, got 3 twice"):
        kernels.gaussian((2, dim), 1.0, key.for_nodes(nodes[[0, 0]]).stream(Purpose.NOISE, 2))


@pytest.mark.parametrize("cipher", ["aes", "chacha20"])
def test_a_saved_key_opens_the_same_streams(cipher: str, tmp_path: Path) -> None:
    key = Key.generate(cipher)
    key.save(tmp_path / "key")
    loaded = Key.load(str(tmp_path / "key"))
    assert first_words(loaded) == first_words(key)
    assert (loaded.cipher, loaded.is_seeded) == (cipher, False)
    with pytest.raises(FileExistsError, match="key"):
        Key.generate().save(tmp_path / "key")
    assert first_words(Key.load(tmp_path / "key")) == first_words(key)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Key.load(tmp_path / "nowhere")
    (tmp_path / "text").write_text("dpmesh key 1, aes\n")
    with pytest.raises(ValueError, match=r"path: wanted a file that Key\.save wrote, got"):
        Key.load(tmp_path / "text")
    with pytest.raises(ValueError, match="key: wanted a key from the operating system"):
        Key.seeded(1).save(tmp_path / "seeded")


def test_a_key_that_cannot_be_written_whole_leaves_no_file(tmp_path: Path) -> None:
    """It would be in the way of the next `save`, and no key."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20, hard))
    try:
        with pytest.raises(OSError, match="key"):
            Key.generate().save(tmp_path / "key")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    Key.generate().save(tmp_path / "key")


test_bad_input_is_named = refused(
    (lambda: Key.generate("des"), "cipher: wanted 'aes' or 'chacha20', got 'des'"),
    (lambda: Key.seeded(1, "des"), "cipher: wanted 'aes' or 'chacha20', got 'des'"),
)

"""Keys are those of a plain MAC over each prefix, and nothing a client sends can make two prefixes share one."""

from __future__ import annotations

import hashlib
import random
import threading

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st
from wavepp_worker import token_ids
from wavepp_worker.block_keys import BYTES_AT_ONCE, KEY_BYTES, BlockKeyMaker, BlockKeys

SECRET = bytes(range(32))


def aes(key: bytes, block: bytes) -> bytes:
    return Cipher(algorithms.AES(key), modes.ECB()).encryptor().update(block)


def plain_keys(secret: bytes, root: bytes, tokens: bytes, block_size: int) -> list[bytes]:
    """PMAC's digests and their EMAC as they are written down, one cipher call at a time."""
    width = 4 * block_size
    parts = -(-width // 16)
    derived = hashlib.shake_256(b"WavePP block keys" + secret).digest(16 * (3 + parts))
    part, chain, final, *masks = (derived[at : at + 16] for at in range(0, len(derived), 16))

    def digest(block: bytes) -> bytes:
        block, total = block.ljust(16 * parts, b"\0"), bytes(16)
        for at, mask in enumerate(masks):
            total = xor(total, aes(part, xor(block[16 * at : 16 * at + 16], mask)))
        return total

    blocks = [digest(tokens[width * at : width * (at + 1)]) for at in range(len(tokens) // width)]
    state, keys = bytes(16), []
    for absorbed in (root[:16], root[16:], *blocks):
        state = aes(chain, xor(state, absorbed))
        keys.append(aes(final, state))
    return keys[2:]


def xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def plain_root(*parts: str) -> bytes:
    return hashlib.sha256(
        b"".join(len(part.encode()).to_bytes(4, "little") + part.encode() for part in parts)
    ).digest()


def keys(
    tokens: bytes, block_size: int = 4, secret: bytes = SECRET, model: str = "m", **apart: str
) -> list[bytes]:
    return BlockKeys(BlockKeyMaker(secret, model, block_size).keys(tokens, **apart))[:]


@settings(deadline=None)
@given(
    st.binary(max_size=600),
    st.integers(1, 9),
    st.binary(min_size=32, max_size=32),
    st.text(max_size=5),
    st.text(max_size=5),
)
def test_keys_are_those_of_a_plain_mac(
    tokens: bytes, block: int, secret: bytes, salt: str, lora: str
) -> None:
    """Of every block size, whole cipher blocks or not, and whatever is left of the last block."""
    expected = plain_keys(secret, plain_root("m", salt, lora), tokens, block)
    assert keys(tokens, block, secret, salt=salt, lora=lora) == expected


@pytest.mark.parametrize("block", [1, 3, 32])
def test_long_prompts_are_encrypted_in_parts_of_one_chain(block: int) -> None:
    tokens = random.Random(block).randbytes(2 * BYTES_AT_ONCE // (4 if block < 4 else 1) + 4 * 50)
    made = keys(tokens, block)
    assert len(made) == len(tokens) // (4 * block)
    assert made == plain_keys(SECRET, plain_root("m", "", ""), tokens, block)


def test_keys_never_change_from_one_version_to_another() -> None:
    """S67: a restarted process finds the blocks on disk by these keys."""
    made = keys(token_ids.pack([1, 2, 3, 4]), block_size=2)
    assert [key.hex() for key in made] == [
        "df542948e72be691fd4d6fefe6a5ef1f",
        "9dd895eff7eb93a48821e7ad08181b81",
    ]


def test_forged_keys_whatever_a_client_changes_all_later_keys_are_others() -> None:
    """The chain of 64-bit hashes under a public seed that this replaces was forged in seconds."""
    ids = list(range(100, 116))
    plain = keys(token_ids.pack(ids))
    seen = set(plain)
    for at in range(len(ids)):
        changed = ids.copy()
        changed[at] ^= 1
        made = keys(token_ids.pack(changed))
        assert made[: at // 4] == plain[: at // 4]
        assert seen.isdisjoint(made[at // 4 :])
        seen.update(made)
    for others in (
        keys(token_ids.pack(ids), salt="tenant"),
        keys(token_ids.pack(ids), lora="tenant"),
        keys(token_ids.pack(ids), salt="t", lora="enant"),
        keys(token_ids.pack(ids), model="other"),
        keys(token_ids.pack(ids[4:])),
        keys(token_ids.pack([*ids[8:], *ids[:8]])),
        keys(token_ids.pack(ids), block_size=5),
    ):
        assert seen.isdisjoint(others)
        seen.update(others)


@pytest.mark.parametrize("byte", range(32))
def test_forged_keys_are_of_no_use_under_another_secret(byte: int) -> None:
    """What a client works out with a replica of its own says nothing about ours: every byte of the secret counts."""
    tokens = token_ids.pack(list(range(64)))
    other = bytearray(SECRET)
    other[byte] ^= 1
    assert not set(keys(tokens)) & set(keys(tokens, secret=bytes(other)))
    ours, theirs = (BlockKeyMaker(secret, "m", 4) for secret in (SECRET, bytes(other)))
    assert ours.secret_id != theirs.secret_id
    assert SECRET.hex() not in ours.secret_id


def test_forged_keys_no_key_gives_the_next_one_away() -> None:
    """Without the last encryption, the key after a block would be the key before it and the digest, encrypted."""
    derived = hashlib.shake_256(b"WavePP block keys" + SECRET).digest(64)
    part, chain, _, mask = (derived[at : at + 16] for at in range(0, 64, 16))
    first, second = keys(bytes(2 * KEY_BYTES), block_size=4)
    assert second != aes(chain, xor(first, aes(part, mask)))


def test_a_secret_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="the secret has 31 bytes, it takes 32"):
        BlockKeyMaker(bytes(31), "m", 4)


@given(st.lists(st.binary(min_size=16, max_size=16), max_size=20), st.data())
def test_packed_keys_are_a_sequence(plain: list[bytes], data: st.DataObject) -> None:
    packed = BlockKeys.of(plain)
    assert list(packed) == plain
    assert [packed[at] for at in range(-len(plain), len(plain))] == plain + plain
    start, stop = data.draw(st.integers(-25, 25)), data.draw(st.integers(-25, 25))
    assert packed[start:stop] == plain[start:stop]
    assert (len(packed), packed == BlockKeys.of(plain)) == (len(plain), True)
    for beyond in (len(plain), -len(plain) - 1):
        with pytest.raises(IndexError, match=f"there are {len(plain)}"):
            packed[beyond]
    for key in plain:
        assert packed.index(key) == plain.index(key)
        assert key in packed


def test_an_index_is_of_whole_keys() -> None:
    """Bytes that only look like a key, as they lie across two, are none."""
    packed = BlockKeys(bytes(8) + bytes(range(1, 17)) + bytes(range(1, 9)) + bytes(range(1, 17)))
    assert packed.index(bytes(range(1, 17))) == 2
    assert packed.index(packed[1], 1) == 1
    for start, stop in ((3, None), (0, 2)):
        with pytest.raises(ValueError, match="no block has key"):
            packed.index(bytes(range(1, 17)), start, stop)


def test_threads_may_share_a_maker() -> None:
    maker = BlockKeyMaker(SECRET, "m", 2)
    prompts = [random.Random(seed).randbytes(4000) for seed in range(4)]
    expected = [maker.keys(tokens) for tokens in prompts]
    wrong = []

    def work() -> None:
        for _ in range(50):
            wrong.extend(at for at, tokens in enumerate(prompts) if maker.keys(tokens) != expected[at])

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong

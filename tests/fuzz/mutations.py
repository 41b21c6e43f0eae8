"""Valid messages, damaged: what a broken, old or hostile peer sends. Pure; all randomness is the caller's."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence

MOST_BYTES = 1 << 20

Mutation = Callable[[bytes, random.Random], bytes]


def _flip_bits(message: bytes, draw: random.Random) -> bytes:
    damaged = bytearray(message)
    for _ in range(draw.choice((1, 1, 2, 8))):
        if damaged:
            damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
    return bytes(damaged)


def _truncate(message: bytes, draw: random.Random) -> bytes:
    return message[: draw.randrange(len(message) + 1)]


def _lengthen(message: bytes, draw: random.Random) -> bytes:
    return message + draw.randbytes(draw.choice((1, 4, 100, 70_000)))


def _replace(message: bytes, draw: random.Random) -> bytes:
    """A number, type or length somewhere in it becomes another."""
    at = draw.randrange(len(message) + 1)
    odd = draw.choice(
        [
            b"\x00",
            b"\xc0",  # msgpack: nil
            b"\xc1",  # never used
            b"\xcf" + b"\xff" * 8,
            b"\xd3\x80" + b"\0" * 7,
            struct.pack(">Bd", 0xCB, float("nan")),
            struct.pack(">Bd", 0xCB, float("inf")),
            b"\xdb\xff\xff\xff\xff",  # a string of 4 GiB
            b"\xdd\xff\xff\xff\xff",  # an array of 2^32
            b"\xdf\xff\xff\xff\xff",  # a map of 2^32
            b"\x91" * 2000,  # arrays in arrays
            b"\xff\xff\xff\xff",
            b"\x00\x00\x00\x80",
        ]
    )
    return message[:at] + odd + message[at + draw.choice((0, 1, len(odd))) :]


def _long_length(message: bytes, draw: random.Random) -> bytes:
    """A wrong length in front."""
    size = draw.choice((0, 1, len(message), 4 << 20, (4 << 20) + 1, 0x7FFFFFFF, 0xFFFFFFFF))
    return struct.pack(draw.choice("<>") + "I", size) + message[4:]


def _repeat(message: bytes, draw: random.Random) -> bytes:
    return message * draw.choice((2, 3, 50))


def _noise(message: bytes, draw: random.Random) -> bytes:
    return draw.randbytes(draw.choice((0, 1, 3, 4, 64, 5000)))


def _cut_out(message: bytes, draw: random.Random) -> bytes:
    start, end = sorted(draw.randrange(len(message) + 1) for _ in range(2))
    return message[:start] + message[end:]


def _as_it_is(message: bytes, draw: random.Random) -> bytes:
    return message


MUTATIONS: tuple[Mutation, ...] = (
    _flip_bits,
    _flip_bits,
    _truncate,
    _lengthen,
    _replace,
    _replace,
    _long_length,
    _repeat,
    _noise,
    _cut_out,
    _as_it_is,
)


def conversation(valid: Sequence[bytes], draw: random.Random) -> list[bytes]:
    """What one connection carries: up to eight messages in any order, most of them damaged once or twice."""
    said = []
    for _ in range(draw.choice((1, 1, 1, 2, 3, 8))):
        message = draw.choice(valid)
        for _ in range(draw.choice((1, 1, 2))):
            message = draw.choice(MUTATIONS)(message, draw)
        said.append(message[:MOST_BYTES])
    return said

"""How many tokens of KV fit beside weights and activations, where several processes share a device. Pure.

What is free is shared out after the weights, and the room for activations, of all who are named; who has asked for its
KV in tokens gets just that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wavepp_worker.errors import ConfigError

DEFAULT_FRACTIONS = {"cpu": 0.1, "cuda": 0.9}
"""Of what is free beside weights and activations: a GPU is there for this alone, a host has other things to do."""
PROCESS_ROOM = {"cpu": 1 << 29, "cuda": 1 << 30}
"""Bytes for a process itself and its libraries: interpreter and torch on a host, context and workspaces on a GPU."""
_GIB = 1 << 30


@dataclass(frozen=True)
class Share:
    """One process on a device.

    Attributes:
        device: ``cpu`` or a GPU such as ``cuda:0``.
        weights: bytes.
        room: bytes for activations and the process itself.
        token_bytes: of KV, for one token, with its part of the snapshots that are kept.
        tokens: of KV, if that many are asked for; None for a fraction of what is left.
        fraction: of what is left on the device beside all weights and room.
        beside: bytes that it keeps on the same device besides, such as a tier, or the states of requests that run.
    """

    device: str
    weights: int
    room: int
    token_bytes: int
    tokens: int | None
    fraction: float
    beside: int = 0

    @property
    def asked(self) -> int:
        """Bytes that it takes for certain."""
        return self.weights + self.beside + (self.tokens or 0) * self.token_bytes


def share_out(shares: Sequence[Share], free: Callable[[str], int]) -> list[int]:
    """Tokens of KV for each.

    Args:
        shares: of all processes that are started together.
        free: bytes that a device has left.

    Raises:
        ConfigError: they do not fit; names ``kv_tokens`` or ``kv_memory_fraction``.
    """
    devices: dict[str, list[Share]] = defaultdict(list)
    for share in shares:
        devices[share.device].append(share)
    for_a_token: dict[str, float] = {}
    for device, here in devices.items():
        have, asked = free(device), sum(share.asked for share in here)
        room = sum(share.room for share in here)
        open_ones = [share for share in here if share.tokens is None]
        if asked > have or (open_ones and asked + room >= have):
            raise ConfigError(_too_much(device, have, here, open_ones))
        for_a_token[device] = (have - asked - room) / max(1, sum(share.token_bytes for share in open_ones))
    return [
        int(share.fraction * for_a_token[share.device]) if share.tokens is None else share.tokens
        for share in shares
    ]


def _too_much(device: str, have: int, here: Sequence[Share], open_ones: Sequence[Share]) -> str:
    weights, room = sum(share.weights for share in here), sum(share.room for share in here)
    pools = sum(share.asked - share.weights for share in here)
    place = "this machine" if device == "cpu" else device
    if open_ones:
        return (
            f"kv_memory_fraction: {have / _GIB:.1f} GiB are free on {place}, of which weights take "
            f"{weights / _GIB:.1f} and processes and activations up to {room / _GIB:.1f}, so that nothing is left for "
            "KV; choose a smaller model, more GPUs, or set kv_tokens"
        )
    return (
        f"kv_tokens: asks for {pools / _GIB:.1f} GiB of KV, over all ranks and with tiers in memory, beside "
        f"{weights / _GIB:.1f} GiB of weights, but {have / _GIB:.1f} GiB are free on {place}; lower it"
    )


def activation_room(device: str, tokens: int, width: int, longest: int, kv_numbers: int) -> int:
    """Bytes that a process needs besides weights and KV, estimated upwards.

    Args:
        tokens: most that it computes at once.
        width: numbers of a token's activations at their widest.
        longest: tokens of the longest request, whose keys and values attention may gather in one layer.
        kv_numbers: of one token in one layer.
    """
    several_copies = 8 * tokens * width
    return PROCESS_ROOM["cpu" if device == "cpu" else "cuda"] + 4 * (
        several_copies + 2 * longest * kv_numbers
    )


def check_pool(fraction: float, tokens: int, block_size: int, longest: int) -> None:
    """Refuse a fraction whose pool holds not one request.

    Raises:
        ConfigError: names ``kv_memory_fraction``.
    """
    pool = tokens // block_size * block_size
    if pool < max(longest, block_size):
        raise ConfigError(
            f"kv_memory_fraction: {fraction:g} of the memory that is free beside weights and activations is a pool of "
            f"{pool} tokens, too small for one request of {longest} tokens; raise it, set kv_tokens, or set "
            f"max_model_len to at most {pool}"
        )

"""KV events as Dynamo reads them from a ZeroMQ socket: a message of three frames, msgpack within."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from wavepp_worker import token_ids
from wavepp_worker.cache.moves import Tier
from wavepp_worker.dynamo.kv_events import ClearedEvent, KvEvent, RemovedEvent, signed

MEDIA = {Tier.DEVICE: "GPU", Tier.HOST: "CPU_PINNED", Tier.DISK: "DISK"}
"""What Dynamo calls our tiers: device, host_pinned and disk in its router."""

_encoder = msgspec.msgpack.Encoder()


def message(number: int, events: Sequence[KvEvent], block_size: int) -> list[bytes]:
    """The frames of one message: topic, number, batch of events.

    Args:
        number: of the message, one more than that of the one before.
        block_size: tokens of a block.
    """
    batch = [time.time(), [_event(event, block_size) for event in events], 0]
    return [b"", number.to_bytes(8, "big"), _encoder.encode(batch)]


def _event(event: KvEvent, block_size: int) -> dict[str, Any]:
    if isinstance(event, ClearedEvent):
        return {"type": "AllBlocksCleared"}
    hashes = [signed(block_hash) for block_hash in event.hashes]
    if isinstance(event, RemovedEvent):
        return {"type": "BlockRemoved", "block_hashes": hashes, "medium": MEDIA[event.tier]}
    first = event.blocks[0]
    return {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": None if first.parent is None else signed(first.parent),
        "token_ids": token_ids.unpack(b"".join(block.tokens for block in event.blocks)).tolist(),
        "block_size": block_size,
        "medium": MEDIA[event.tier],
        "lora_name": first.lora or None,
        "cache_salt": first.salt or None,
    }

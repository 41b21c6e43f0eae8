"""The frames that Dynamo's listener reads."""

from __future__ import annotations

import msgspec
from wavepp_worker import token_ids
from wavepp_worker.cache.moves import Tier
from wavepp_worker.dynamo.kv_event_wire import message
from wavepp_worker.dynamo.kv_events import ClearedEvent, RemovedEvent, ReusableBlock, StoredEvent


def test_a_message_has_its_number_and_events_with_the_names_that_dynamo_has_for_tiers() -> None:
    block = ReusableBlock(2**64 - 1, token_ids.pack([7, 8]), "", "", Tier.HOST)
    events = [
        ClearedEvent(),
        StoredEvent((2**63,), (block,), Tier.HOST),
        RemovedEvent((5, 2**64 - 2), Tier.DISK),
    ]
    topic, number, batch = message(258, events, 2)
    assert (topic, number) == (b"", b"\0\0\0\0\0\0\1\2")
    when, told, dp_rank = msgspec.msgpack.decode(batch)
    assert (when > 1e9, dp_rank) == (True, 0)
    assert told == [
        {"type": "AllBlocksCleared"},
        {
            "type": "BlockStored", "block_hashes": [-(2**63)], "parent_block_hash": -1, "token_ids": [7, 8],
            "block_size": 2, "medium": "CPU_PINNED", "lora_name": None, "cache_salt": None,
        },
        {"type": "BlockRemoved", "block_hashes": [5, -2], "medium": "DISK"},
    ]  # fmt: skip

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from wavepp_worker.errors import EngineDead
from wavepp_worker.handoff.offer import RankAddress
from wavepp_worker.runtime.client.description import engine_description
from wavepp_worker.runtime.client.kv_pools import LEAST_SNAPSHOTS
from wavepp_worker.runtime.protocol.engine_config import EngineConfig
from wavepp_worker.worker_description import RankDescription

CONFIG = EngineConfig(
    model=Path("/m"),
    pp=2,
    block_size=16,
    kv_tokens=(100, 200),
    host_kv_tokens=(0, 50),
    disk_kv_tokens=320,
    disk_path=Path("/d"),
)


def address(rank: int, layers: tuple[int, int]) -> RankAddress:
    return RankAddress(
        rank=rank,
        host="127.0.0.1",
        port=rank + 1,
        layers=layers,
        block_size=16,
        dtype="bfloat16",
        bytes_per_token=100 + rank,
        transport="socket",
    )


def test_each_rank_has_its_layers_its_process_and_whole_blocks_of_every_tier() -> None:
    told = engine_description(CONFIG, [address(0, (0, 3)), address(1, (3, 5))], [7, 8])
    assert (told.role, told.dtype, told.device) == ("prefill", "bfloat16", CONFIG.device)
    assert told.transport == "socket"
    assert told.ranks == (
        RankDescription(layers=3, kv_tokens=96, bytes_per_token=100, disk_tokens=320, pid=7),
        RankDescription(layers=2, kv_tokens=192, bytes_per_token=101, host_tokens=48, disk_tokens=320, pid=8),
    )


def test_the_states_of_recurrent_layers_are_told_of_the_ranks_that_have_some() -> None:
    recurrent = msgspec.structs.replace(address(0, (0, 3)), state_bytes=640)
    told = engine_description(CONFIG, [recurrent, address(1, (3, 5))], [7, 8])
    states = CONFIG.max_num_seqs + LEAST_SNAPSHOTS
    assert [(rank.states, rank.state_bytes) for rank in told.ranks] == [(states, 640), (0, 0)]


def test_an_engine_that_is_not_ready_or_hands_nothing_off_is_not_described() -> None:
    with pytest.raises(EngineDead, match="only ranks that are ready to hand KV off can be described"):
        engine_description(CONFIG, [address(0, (0, 3))], [7, 8])

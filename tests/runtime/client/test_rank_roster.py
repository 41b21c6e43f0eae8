from __future__ import annotations

from typing import Any

from wavepp_worker.handoff.offer import RankAddress
from wavepp_worker.runtime.client.rank_roster import RankRoster
from wavepp_worker.runtime.protocol.events import Heartbeat, RankReady


def address(rank: int) -> RankAddress:
    what: dict[str, Any] = {"block_size": 4, "dtype": "float32", "bytes_per_token": 8, "transport": "socket"}
    return RankAddress(rank=rank, host="127.0.0.1", port=rank + 1, layers=(rank, rank + 1), **what)


def beat(rank: int) -> Heartbeat:
    return Heartbeat(rank=rank, wave_age=0.0, waiting=rank, running=0, used_blocks=0, waves=0, rounds=0)


def test_ready_once_every_rank_has_said_so() -> None:
    roster = RankRoster(3)
    assert not roster.ready(RankReady(rank=2, handoff=address(2)), 0.0)
    assert not roster.ready(RankReady(rank=2, handoff=address(2)), 0.0)
    assert roster.missing() == [0, 1]
    assert not roster.ready(RankReady(rank=0, handoff=address(0)), 0.0)
    assert roster.ready(RankReady(rank=1, handoff=address(1)), 0.0)
    assert roster.missing() == []
    assert roster.handoff_addresses() == tuple(map(address, range(3)))


def test_ranks_that_hand_nothing_off_have_no_address() -> None:
    roster = RankRoster(1)
    assert roster.ready(RankReady(rank=0, handoff=None), 0.0)
    assert roster.handoff_addresses() == ()


def test_a_rank_is_silent_once_its_last_sign_of_life_is_too_old() -> None:
    roster = RankRoster(2)
    assert roster.silent(since=100.0) is None, "a rank that still loads says nothing"
    roster.ready(RankReady(rank=1, handoff=None), 5.0)
    roster.alive(0, 7.0)
    assert roster.silent(since=5.0) is None
    assert roster.silent(since=6.0) == 1
    roster.alive(1, 8.0)
    assert roster.silent(since=6.0) is None


def test_loads_are_in_rank_order() -> None:
    roster = RankRoster(2)
    roster.beat(beat(1))
    roster.beat(beat(0))
    assert [each.rank for each in roster.beats()] == [0, 1]

"""The one publisher of a worker: whoever reads ends up with what there is, however slow, whenever it comes."""

from __future__ import annotations

import os
import random
import time
from typing import Any

import msgspec
import pytest
import zmq
from wavepp_worker.dynamo import kv_event_thread
from wavepp_worker.dynamo.kv_event_thread import KvEventThread
from wavepp_worker.runtime.protocol.index_delta import IndexDelta

from tests.support.fake_router import BLOCK, stored
from tests.support.waiting import wait_until

CLEARED = {"type": "AllBlocksCleared"}


class Reader:
    """Reads as Dynamo does, and keeps the blocks by their hashes."""

    def __init__(self, endpoint: str, hwm: int = 1000) -> None:
        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.set(zmq.RCVHWM, hwm)
        self._socket.connect(endpoint)
        self._socket.subscribe(b"")
        self.numbers: list[int] = []
        self.events: list[dict[str, Any]] = []
        self.blocks: set[int] = set()

    def read(self) -> set[int]:
        while self._socket.poll(0):
            topic, number, batch = self._socket.recv_multipart()
            assert topic == b""
            self.numbers.append(int.from_bytes(number, "big"))
            _, events, dp_rank = msgspec.msgpack.decode(batch)
            assert dp_rank == 0
            for event in events:
                self.events.append(event)
                match event["type"]:
                    case "AllBlocksCleared":
                        self.blocks.clear()
                    case "BlockStored":
                        self.blocks.update(event["block_hashes"])
                    case "BlockRemoved":
                        self.blocks.difference_update(event["block_hashes"])
        return self.blocks

    def close(self) -> None:
        self._socket.close(linger=0)


def test_a_stored_chain_is_published_with_all_that_identifies_it() -> None:
    events = KvEventThread(BLOCK)
    events.start()
    reader = Reader(events.endpoint)
    events.on_index(stored(2**64 - 1, 5, salt="s", lora="l"))
    events.on_index(stored(6, parent=5, salt="s", lora="l"))
    wait_until(lambda: len(reader.read()) == 3)
    assert reader.events[0] == CLEARED
    first = reader.events[1]
    assert (first["block_hashes"][:2], first["parent_block_hash"], first["block_size"]) == (
        [-1, 5],
        None,
        BLOCK,
    )
    assert first["token_ids"][:2] == [(2**64 - 1) % 1000, 7]
    assert (first["lora_name"], first["cache_salt"], first["medium"]) == ("l", "s", "GPU")
    assert reader.numbers == list(range(len(reader.numbers)))
    events.close()
    events.close()


def test_s64_whoever_begins_to_read_anew_is_told_that_all_is_cleared_and_then_all_there_is() -> None:
    """What was restored from disk comes before anybody reads; what is published while nobody does is lost."""
    events = KvEventThread(BLOCK)
    events.on_index(stored(1, 2))
    events.start()
    first = Reader(events.endpoint)
    wait_until(lambda: first.read() == {1, 2})
    first.close()
    for number in range(10, 20):
        events.on_index(stored(number))
    events.on_index(IndexDelta(removed=(2,)))
    second = Reader(events.endpoint)
    wait_until(lambda: second.read() == {1, *range(10, 20)})
    assert second.events[0] == CLEARED
    events.close()
    second.close()


def test_s64_readers_that_come_and_go_get_nothing_before_all_is_cleared_and_who_stays_gets_all() -> None:
    """Also where one comes while something is on its way to others."""
    events = KvEventThread(BLOCK)
    events.start()
    draw, readers, told = random.Random(64), list[Reader](), set[int]()
    for number in range(1000):
        if draw.random() < 0.3:
            readers.append(Reader(events.endpoint))
        if len(readers) > 1 and draw.random() < 0.3:
            gone = readers.pop(draw.randrange(len(readers)))
            gone.read()
            assert gone.events[:1] in ([], [CLEARED])
            gone.close()
        events.on_index(stored(number))
        told.add(number)
        time.sleep(draw.choice((0.0, 0.0, 0.001)))
    # One that is not read holds up the others.
    wait_until(lambda: [reader.read() for reader in readers] == [told] * len(readers))
    for reader in readers:
        assert reader.events[0] == CLEARED
        assert reader.numbers == list(range(reader.numbers[0], reader.numbers[-1] + 1)), "nothing was dropped"
        reader.close()
    events.close()


def test_s65_who_reads_slowly_holds_up_nobody_loses_nothing_and_costs_no_more_than_what_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two hundred thousand changes of a thousand blocks while nobody takes a message."""
    monkeypatch.setattr(kv_event_thread, "MOST_WAITING", 2)
    events = KvEventThread(BLOCK)
    events.start()
    reader = Reader(events.endpoint, hwm=2)
    events.on_index(stored(1))
    wait_until(lambda: reader.read() == {1})
    for turn in range(200):
        for first in range(100, 1100, 10):
            hashes = tuple(range(first, first + 10))
            events.on_index(stored(*hashes) if turn % 2 == 0 else IndexDelta(removed=hashes[::-1]))
            assert len(events._pending) <= 1001
    events.on_index(stored(*range(100, 110)))
    wait_until(lambda: reader.read() == {1, *range(100, 110)})
    assert reader.numbers == list(range(len(reader.numbers))), "no message was dropped"
    assert len(reader.events) < 40_000
    events.close()
    reader.close()


def test_its_socket_is_its_owners_alone_and_goes_with_it() -> None:
    events = KvEventThread(BLOCK)
    events.start()
    directory = events.endpoint.removeprefix("ipc://").rpartition("/")[0]
    assert os.stat(directory).st_mode & 0o077 == 0
    events.close()
    assert not os.path.exists(directory)
    KvEventThread(BLOCK).close()

from __future__ import annotations

from typing import Any

import pytest
from wavepp_worker.dynamo.kv_event_thread import KvEventThread

from tests.support.fake_router import BLOCK, FakeRouter, stored
from tests.support.waiting import wait_until


def test_a_stored_chain_is_published_with_all_that_identifies_it() -> None:
    router, events = FakeRouter(), KvEventThread(BLOCK)
    events.start(router)
    events.on_index(stored(2**64 - 1, 5, salt="s", lora="l"))
    events.on_index(stored(6, parent=5, salt="s", lora="l"))
    wait_until(lambda: len(router.blocks) == 3)
    events.close()
    tokens, hashes, parent, lora, salt = router.calls[0][1]
    assert (tokens[:2], hashes[:2], parent, lora, salt) == ([(2**64 - 1) % 1000, 7], [-1, 5], None, "l", "s")


def test_what_came_before_the_publisher_is_published_once_it_is_there() -> None:
    router, events = FakeRouter(), KvEventThread(BLOCK)
    events.on_index(stored(1, 2))
    events.start(router)
    wait_until(lambda: set(router.blocks) == {1, 2})
    events.close()
    events.close()


def test_a_publisher_that_fails_once_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(FakeRouter):
        def publish_stored(self, *args: Any, **kwargs: Any) -> None:
            if not self.calls:
                self.calls.append(("failed", None))
                raise RuntimeError("no route")
            super().publish_stored(*args, **kwargs)

    router, events = Failing(), KvEventThread(BLOCK)
    events.start(router)
    events.on_index(stored(1))
    wait_until(lambda: router.calls)
    events.on_index(stored(9))
    wait_until(lambda: 9 in router.blocks)
    events.close()
    assert "does not learn of 1 blocks" in caplog.text

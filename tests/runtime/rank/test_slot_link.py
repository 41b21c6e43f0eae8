from __future__ import annotations

import time
from pathlib import Path

import pytest
import zmq
from wavepp_worker.errors import EngineDead, PositionMismatch
from wavepp_worker.runtime.protocol.slots import EdgesTried, SlotRead, SlotWritten
from wavepp_worker.runtime.rank import slot_link
from wavepp_worker.runtime.rank.slot_link import SlotLink


def test_who_binds_may_come_after_who_connects_and_each_message_is_of_the_kind_that_is_due(
    scratch: Path,
) -> None:
    with zmq.Context() as context:
        after, before = (SlotLink(context, f"ipc://{scratch}/e", 5.0, binds=binds) for binds in (False, True))
        after.send(EdgesTried(problem="none"))
        before.send(SlotWritten(wave=3))
        assert before.receive(EdgesTried, "tell").problem == "none"
        with pytest.raises(PositionMismatch, match=r"was to read, and sent SlotWritten\(wave=3\)"):
            after.receive(SlotRead, "read")
        before.close()
        after.close()


def test_a_silent_rank_is_waited_for_as_long_as_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """And for as long as its end may take to be known elsewhere, which says more."""
    monkeypatch.setattr(slot_link, "GIVE_WAY_SECONDS", 0.3)
    with zmq.Context() as context:
        link = SlotLink(context, "inproc://edge", 60.0, binds=True)
        begun = time.monotonic()
        with pytest.raises(EngineDead, match=r"was to read, has died or hangs \(nothing came for 0.1 s\)"):
            link.receive(SlotRead, "read", 0.1)
        assert 0.4 <= time.monotonic() - begun < 5
        link.close()

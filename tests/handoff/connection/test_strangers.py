"""Who makes room when too many are silent."""

from __future__ import annotations

from wavepp_worker.handoff.connection.strangers import Strangers


def test_a_crowd_pushes_out_its_own_oldest() -> None:
    strangers = Strangers(4)
    assert [strangers.enter(name, "here") for name in "abc"] == [None] * 3
    assert strangers.enter("x", "there") is None
    assert strangers.enter("y", "there") == "a"
    assert strangers.enter("d", "here") == "b"
    assert len(strangers) == 4


def test_who_is_known_or_gone_counts_no_longer() -> None:
    strangers = Strangers(2)
    strangers.enter("a", "here")
    strangers.enter("b", "here")
    strangers.leave("a")
    strangers.leave("a")
    strangers.leave("nobody")
    assert strangers.enter("c", "here") is None
    assert strangers.push_out() == "b"
    assert strangers.push_out() == "c"
    assert strangers.push_out() is None
    assert len(strangers) == 0

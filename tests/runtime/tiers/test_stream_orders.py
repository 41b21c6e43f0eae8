"""Waves, copies between tiers and reads of the hand-off on streams of one device, in any order that these allow.

The books, the tiers and their streams are the real ones; the device does what is queued when a seed says so. Every
wave and every read looks at the bytes that it finds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from wavepp_worker.runtime.tiers.copy_stream import CopyStream
from wavepp_worker.runtime.tiers.tier_store import TierStore

from tests.support.deferred_blocks import WrongContent
from tests.support.deferred_life import drive

SEEDS = 80
"""Orders that every run of the tests looks at, of each ownership."""
MORE_SEEDS = 10_000
CAUGHT = 300
"""Orders within which each planted mistake is noticed, whatever the ownership; most are in the first few."""

OWNERSHIP = pytest.mark.parametrize("leases", [True, False], ids=["leases", "none"])

follow = CopyStream.follow

MISTAKES: dict[str, tuple[type, str, Callable[..., Any]]] = {
    "waves wait for no copies": (CopyStream, "follow", lambda stream, runs: None),
    "waves wait for one run less": (CopyStream, "follow", lambda stream, runs: follow(stream, runs - 1)),
    "copies wait for no waves": (CopyStream, "touch_blocks", lambda stream: None),
    "what is copied is offered": (CopyStream, "under_way", lambda stream, runs: False),
    "no block is known to be copied": (TierStore, "last_run", lambda store, window, blocks: 0),
    "the host waits for no copies": (CopyStream, "wait", lambda stream, runs=None: None),
}


def look(seeds: Iterable[int], leases: bool) -> None:
    """Raise an AssertionError that names the first seed with which something is wrong."""
    for seed in seeds:
        try:
            drive(seed, leases=leases)
        except Exception as error:
            raise AssertionError(f"seed {seed}, leases={leases}: {error}") from error


@OWNERSHIP
def test_nobody_finds_what_should_not_be_there_in_any_order_of_streams(leases: bool) -> None:
    look(range(SEEDS), leases)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@OWNERSHIP
def test_nor_in_thousands_of_orders(leases: bool) -> None:
    look(range(SEEDS, MORE_SEEDS), leases)


@OWNERSHIP
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_noticed(mistake: str, leases: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MISTAKES[mistake])
    with pytest.raises(AssertionError) as noticed:
        look(range(CAUGHT), leases)
    assert isinstance(noticed.value.__cause__, WrongContent), "it broke something else"

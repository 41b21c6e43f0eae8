"""Faults of the disk at every call, under a rank's own books: nobody fails, nothing wrong is reused."""

from __future__ import annotations

import errno
import logging
import os
import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from wavepp_worker.block_keys import BlockKeys
from wavepp_worker.cache.moves import Copy, Tier
from wavepp_worker.cache.window_spec import WindowSpec
from wavepp_worker.model.kv.paged_kv import TorchPagedKV
from wavepp_worker.runtime.protocol.events import CacheChanges
from wavepp_worker.runtime.protocol.rounds import Admit
from wavepp_worker.runtime.tiers import disk_store
from wavepp_worker.runtime.tiers.disk_tier import DiskTier
from wavepp_worker.runtime.tiers.tier_store import TierStore, WindowTiers

from tests.support.cache_bench import key
from tests.support.kept_tensors import kept
from tests.support.rank_books import BLOCK, RankBooks

SPEC = WindowSpec("attention", "full", 8, host_blocks=2, disk_blocks=12)
SHAPE = kept((2, 3), (2, 3))


@dataclass
class FaultyOs:
    """Passes on to the real calls; the one numbered ``at``, of reads and writes together, does what ``fault`` says."""

    at: int = -1
    fault: str = ""
    calls: int = 0
    patched: dict[str, Any] = field(default_factory=dict)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("pread", "preadv", "pwrite"):
            self.patched[name] = getattr(os, name)
            monkeypatch.setattr(disk_store.os, name, self.wrapped(name))

    def wrapped(self, name: str) -> Any:
        real = self.patched[name]

        def call(file: int, what: Any, start: int) -> Any:
            self.calls += 1
            if self.calls - 1 != self.at:
                return real(file, what, start)
            if self.fault == "cut off":
                os.ftruncate(file, start)
            elif self.fault == "short" and name == "pwrite":
                return real(file, memoryview(what)[: max(1, len(what) // 2)], start)
            elif self.fault == "flip":
                (old,) = self.patched["pread"](file, 1, start) or b"\0"
                self.patched["pwrite"](file, bytes([old ^ 4]), start)
            elif self.fault.isupper():
                code = getattr(errno, self.fault)
                raise OSError(code, os.strerror(code))
            return real(file, what, start)

        return call


class RankOnDisk:
    """A rank whose blocks have real bytes: those of a key are drawn from it."""

    def __init__(self, path: Path, leases: bool = True) -> None:
        self.memory = TorchPagedKV(range(1), [SHAPE], SPEC.blocks, BLOCK, torch.float32, torch.device("cpu"))
        self.disk = DiskTier(path, SPEC.disk_blocks, self.memory.block_bytes, "test")
        self.tiers = TierStore([WindowTiers(self.memory, SPEC.host_blocks, self.disk)])
        self.books = RankBooks([SPEC], leases=leases, tiers=self.tiers)
        self.books.cache.restore((each.key, each.parent, each.slot) for each in self.tiers.restore(0))
        self.books.parts.reports.restored()
        self.reused = 0

    def content(self, key: Any) -> torch.Tensor:
        drawn = random.Random(key).randbytes(self.memory.block_bytes)
        return torch.frombuffer(bytearray(drawn), dtype=torch.uint8).clone() & 0x3F

    def prepare(self, name: str, prompt: list[int]) -> int:
        """Admit a request as the only rank of a replica would."""
        local = self.books.announce(name, prompt)
        ownership, endpoint = (
            self.books.parts.actions.ownership,
            self.books.cache.hint(local.keys, len(prompt)),
        )
        claim = ownership.prepare([Admit(name, endpoint)], 0)[0]
        while not claim.committed:
            assert 0 <= claim.endpoint < endpoint
            endpoint = claim.endpoint
            claim = ownership.reconcile(Admit(name, endpoint))
        ownership.admitted(Admit(name, endpoint))
        return endpoint

    def run(self, name: str, prompt: list[int]) -> None:
        """What is reused must be what was computed under its keys; compute the rest."""
        endpoint = self.prepare(name, prompt)
        self.books.lifecycle.materialise(name)
        local = self.books.requests.known(name)
        assert local.table is not None
        for at in range(endpoint // BLOCK):
            found = self.memory.export_blocks(local.table[at : at + 1])[0]
            assert found.equal(self.content(local.keys[at])), f"block {at} of {name} is another one"
        for at in range(endpoint // BLOCK, len(local.keys)):
            self.memory.import_blocks(local.table[at : at + 1], self.content(local.keys[at])[None])
        self.books.execute(local, len(prompt))
        self.reused += endpoint

    def close(self) -> None:
        self.books.at_rest()
        assert self.tiers.prefetched() == 0
        self.tiers.run(self.books.cache.flush())
        self.tiers.close()


def traffic(rank: RankOnDisk, seed: int, count: int = 14) -> None:
    draw = random.Random(seed)
    for number in range(count):
        topic, length = draw.randrange(4), draw.randrange(5, 8 * BLOCK)
        rank.run(f"r{number}", [topic] * length)
        rank.books.cache.check()


def life(path: Path, seed: int) -> int:
    """One process over the file; returns the tokens that were reused."""
    rank = RankOnDisk(path)
    traffic(rank, seed)
    rank.close()
    return rank.reused


def faults() -> Iterator[tuple[str, int]]:
    """From the first block on: what keeps a file from being created is refused at the start."""
    for number, fault in enumerate(("EIO", "ENOSPC", "cut off", "short", "flip")):
        for at in range(4 + 3 * number, 240, 15):
            yield fault, at


@pytest.mark.parametrize("at", range(3))
def test_a_disk_that_fails_at_the_start_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, at: int
) -> None:
    FaultyOs(at, "EIO").install(monkeypatch)
    life(tmp_path / "file", 0)
    assert len(caplog.messages) == 1


def test_without_faults_much_is_reused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the faults of the next test meet something."""
    system = FaultyOs()
    system.install(monkeypatch)
    assert sum(life(tmp_path / "file", seed) for seed in range(2)) > 300
    assert system.calls >= 240


@pytest.mark.parametrize(("fault", "at"), list(faults()))
def test_a_fault_at_any_call_ends_nobody_and_nothing_wrong_is_reused(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fault: str,
    at: int,
) -> None:
    FaultyOs(at, fault).install(monkeypatch)
    told = []
    for seed in range(2):
        caplog.clear()
        life(tmp_path / "file", seed)
        told += [text for text in caplog.messages if "switched off" in text]
        assert "switched off" not in "".join(caplog.messages[:-1]), "one warning, and nothing after it"
    assert len(told) == 1 if fault.isupper() else len(told) <= 1


@pytest.mark.parametrize("leases", [True, False])
def test_what_was_promised_is_there_though_the_disk_loses_it_before_it_is_taken(
    tmp_path: Path, leases: bool, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "file"
    rank = RankOnDisk(path, leases)
    for topic in range(3):
        rank.run(f"first {topic}", [topic] * 8 * BLOCK)
    rank.close()
    rank = RankOnDisk(path, leases)
    assert rank.prepare("again", [2] * 8 * BLOCK) >= 4 * BLOCK
    if leases:
        assert rank.tiers.prefetched() >= 4
    os.truncate(path, 0)
    before = rank.reused
    rank.books.lifecycle.materialise("again")
    local = rank.books.requests.known("again")
    assert local.table is not None
    for at in range(local.position // BLOCK):
        assert rank.memory.export_blocks(local.table[at : at + 1])[0].equal(rank.content(local.keys[at]))
    rank.books.execute(local, 8 * BLOCK)
    assert caplog.messages == []
    rank.run("lost", [1] * 8 * BLOCK)
    assert rank.reused == before
    assert len(caplog.messages) == 1
    assert "is switched off until the next start (the file was cut off)" in caplog.messages[0]
    for number in range(6):
        rank.run(f"after {number}", [number % 3] * 8 * BLOCK)
    assert len(caplog.messages) == 1
    rank.close()


@pytest.mark.parametrize("fails", [True, False])
def test_who_leases_what_is_on_its_way_to_disk_waits_until_it_is_there_or_lost(
    tmp_path: Path, fails: bool
) -> None:
    rank = RankOnDisk(tmp_path / "file")
    rank.run("first", [1] * 8 * BLOCK)
    rank.run("second", [2] * 4 * BLOCK)
    store = rank.disk._store
    assert store is not None
    writing, goes_on, write = threading.Event(), threading.Event(), store.write

    def slow(*block: Any) -> None:
        writing.set()
        assert goes_on.wait(60)
        if fails:
            raise OSError(errno.EIO, "failed")
        write(*block)

    store.write = slow  # type: ignore[method-assign]
    rank.prepare("third", [3] * BLOCK)
    loop = threading.Thread(target=rank.books.lifecycle.materialise, args=("third",), daemon=True)
    loop.start()
    assert writing.wait(60)
    committed: list[bool] = []
    local = rank.books.announce("again", [1] * 7 * BLOCK)
    admit = Admit("again", rank.books.cache.match(local.keys, 7 * BLOCK))
    assert admit.endpoint > 0
    ownership = rank.books.parts.actions.ownership
    wave = threading.Thread(
        target=lambda: committed.append(ownership.prepare([admit], 0)[0].committed), daemon=True
    )
    wave.start()
    wave.join(0.1)
    goes_on.set()
    for thread in (loop, wave):
        thread.join(60)
        assert not thread.is_alive()
    for name in ("again", "third"):
        rank.books.lifecycle.let_go(name)
    assert committed == [not fails]
    rank.books.at_rest()
    assert rank.tiers.prefetched() == 0


def test_the_router_is_told_at_once_what_a_failed_disk_held(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = RankOnDisk(tmp_path / "file")
    for topic in range(2):
        rank.run(f"first {topic}", [topic] * 8 * BLOCK)
    rank.books.events.told.clear()
    system = FaultyOs(0, "ENOSPC")
    system.install(monkeypatch)
    rank.run("next", [2] * 8 * BLOCK)
    removed = [each for told in rank.books.events.of(CacheChanges) for each in BlockKeys(told.removed)]
    with rank.books.cache.windows() as (window,):
        assert {node.tier for node in window.tree.nodes.values()} == {Tier.DEVICE, Tier.HOST}
        assert not window.tree.copies
        assert not {node.key for node in window.tree.nodes.values()} & set(removed)
    assert len(removed) == 14


def test_requests_that_share_what_is_staged_share_its_memory(tmp_path: Path) -> None:
    tier = DiskTier(tmp_path / "file", 3, 10, "test")
    for slot in range(3):
        assert tier.write(slot, key(slot + 7), None, bytes([slot]) * 10)
    copies = [Copy(0, key(slot + 7), Tier.DISK, slot) for slot in range(3)]
    assert tier.prefetch("a", copies) == []
    assert tier.prefetch("b", copies[:2]) == []
    assert tier.prefetched == 3
    tier.drop_prefetched("a")
    tier.drop_prefetched("a")
    assert tier.prefetched == 2
    out = bytearray(10)
    assert tier.read_into(0, key(7), out)
    assert tier.prefetched == 1
    assert tier.prefetch("c", [Copy(0, key(99), Tier.DISK, 2)]) == [Copy(0, key(99), Tier.DISK, 2)]
    for name in "bc":
        tier.drop_prefetched(name)
    assert tier.prefetched == 0
    assert (tier._holders, tier._held) == ({}, {})
    tier.check()
    tier.close()


def test_the_disk_may_fail_while_what_it_kept_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    tier = DiskTier(tmp_path / "file", 3, 10, "test")
    FaultyOs(0, "EIO").install(monkeypatch)
    assert tier.restore() == []
    assert tier.off
    assert not tier.write(0, key(1), None, bytes(10))
    tier.check()
    assert len(caplog.messages) == 1

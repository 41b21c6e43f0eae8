"""A small KV memory, and the hand-off halves of a prefill worker and of a decode worker over it."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import torch
from wavepp_worker.handoff.decode.receiver import KVReceiver
from wavepp_worker.handoff.offer import BootstrapAddress, FirstToken, Offer
from wavepp_worker.handoff.prefill.bootstrap_server import BootstrapServer
from wavepp_worker.handoff.secret import Secret
from wavepp_worker.handoff.transport import make_source
from wavepp_worker.model.kv.block_regions import BlockRegions
from wavepp_worker.model.sampled_token import SampledToken
from wavepp_worker.model.stage import NOTHING_PASSED

os.environ.setdefault("NIXL_LOG_LEVEL", "WARN")
os.environ.setdefault("UCX_LOG_LEVEL", "error")

HOST = "127.0.0.1"
MODEL = "tiny-model"
SECRET = Secret(b"of every request in these tests.")
FIRST = FirstToken(first=SampledToken(7, -0.5, ((7, -0.5),)), reused_tokens=3)


class FakeKV:
    """Implements ``PagedKV`` with plain loops; layer ``i`` has ``1 + i % 2`` heads, so they differ."""

    def __init__(self, layers: range, num_blocks: int, block: int, width: int = 4) -> None:
        self.layers = layers
        self.num_blocks = num_blocks
        self.block_size = block
        self.device = torch.device("cpu")
        self.states = None
        self.pools = [
            torch.full((num_blocks, block, (1 + layer % 2) * width), -1.0)
            for layer in layers
            for _ in ("keys", "values")
        ]
        self.bytes_per_token = sum(pool[0, 0].numel() * pool.element_size() for pool in self.pools)
        self.spans: tuple[int, ...] = (0,)
        self.before_export: Callable[[int, int], None] = lambda start, end: None
        self.before_import: Callable[[int, int], None] = lambda start, end: None
        self.exporting = 0

    def rows(self, table: torch.Tensor, start: int, end: int) -> Iterator[tuple[int, int]]:
        for token in range(start, end):
            yield int(table[token // self.block_size]), token % self.block_size

    def export_tokens(self, block_table: torch.Tensor, start: int, end: int) -> torch.Tensor:
        self.exporting += 1
        try:
            self.before_export(start, end)
            parts = [
                torch.stack([pool[block, row] for block, row in self.rows(block_table, start, end)])
                for pool in self.pools
            ]
            return torch.cat([part.reshape(-1) for part in parts]).view(torch.uint8)
        finally:
            self.exporting -= 1

    def import_tokens(
        self,
        block_table: torch.Tensor,
        start: int,
        end: int,
        layers: range,
        payload: torch.Tensor,
        firsts: Mapping[int, int] = NOTHING_PASSED,
    ) -> None:
        self.before_import(start, end)
        values, at = payload.view(torch.float32), 0
        skip = 2 * (layers.start - self.layers.start)
        for pool in self.pools[skip : skip + 2 * len(layers)]:
            for block, row in self.rows(block_table, start, end):
                pool[block, row] = values[at : at + pool.shape[2]]
                at += pool.shape[2]
        assert at == len(values)

    def block_regions(self, layers: range | None = None) -> BlockRegions:
        skip = 2 * (layers.start - self.layers.start) if layers is not None else 0
        pools = self.pools[skip : skip + 2 * len(layers or self.layers)]
        return BlockRegions.of([(pool.data_ptr(), pool[0].numel() * 4, 0, len(pool)) for pool in pools])

    def regions(self) -> list[tuple[int, int]]:
        return [(pool.data_ptr(), pool.numel() * 4) for pool in self.pools]

    def write(self, table: torch.Tensor, start: int, end: int, seed: int) -> None:
        """What a forward of these tokens would leave behind."""
        for index, pool in enumerate(self.pools):
            layer, kind = self.layers.start + index // 2, index % 2
            for token, (block, row) in enumerate(self.rows(table, start, end), start):
                pool[block, row] = value(seed, layer, kind, token) + torch.arange(pool.shape[2]) / 64

    def wrong(self, table: torch.Tensor, start: int, end: int, seed: int) -> int:
        """How many rows are not what ``write`` leaves."""
        wrong = 0
        for index, pool in enumerate(self.pools):
            layer, kind = self.layers.start + index // 2, index % 2
            for token, (block, row) in enumerate(self.rows(table, start, end), start):
                expected = value(seed, layer, kind, token) + torch.arange(pool.shape[2]) / 64
                wrong += not torch.equal(pool[block, row], expected)
        return wrong


def room_of(server: BootstrapServer, room: int) -> BootstrapAddress:
    """What whoever claims a room of ``server`` is told."""
    return BootstrapAddress(host=HOST, port=server.port, room=room, secret=server.secret(room))


def value(seed: int, layer: int, kind: int, token: int) -> float:
    return float(seed * 4096 + token * 64 + layer * 2 + kind)


class Prefill:
    """The hand-off half of a prefill worker: a bootstrap server, and one source per rank over its own KV."""

    def __init__(
        self,
        transport: str,
        parts: tuple[tuple[int, int], ...] = ((0, 5),),
        blocks: tuple[int, ...] = (4,),
        timeout: float = 20.0,
        num_blocks: int = 64,
        width: int = 4,
        **server: Any,
    ) -> None:
        self.settled: list[tuple[int, str, str]] = []
        self.cancelled: list[str] = []
        self.server = BootstrapServer(HOST, 0, on_cancel=self._cancel, **server)
        self.kvs = [
            FakeKV(range(*part), num_blocks, block, width) for part, block in zip(parts, blocks, strict=True)
        ]
        self.sources = [
            make_source(
                transport,
                rank=rank,
                host=HOST,
                kv=kv,
                dtype=torch.float32,
                timeout=timeout,
                on_settled=lambda name, how, rank=rank: self.settled.append((rank, name, how)),
            )
            for rank, kv in enumerate(self.kvs)
        ]
        self.tables: dict[str, list[torch.Tensor]] = {}

    def offer(self, name: str, tokens: int, *, seed: int = 1, ready: int = 0) -> Offer:
        """Blocks in an odd order on every rank; ``[0, ready)`` are written."""
        self.tables[name] = []
        for kv, source in zip(self.kvs, self.sources, strict=True):
            generator = torch.Generator().manual_seed(seed)
            order = torch.randperm(kv.num_blocks, generator=generator)
            table = order[: -(-tokens // kv.block_size)].clone()
            self.tables[name].append(table)
            kv.write(table, 0, ready, seed)
            source.expect(name, SECRET)
            source.offer(name, table, tokens, ready)
        return self.describe(name, tokens)

    def describe(self, name: str, tokens: int, model: str = MODEL) -> Offer:
        ranks = tuple(source.address for source in self.sources)
        return Offer(request_id=name, secret=SECRET, prompt_tokens=tokens, model_id=model, ranks=ranks)

    def compute(self, name: str, start: int, end: int, seed: int = 1) -> None:
        for kv, source, table in zip(self.kvs, self.sources, self.tables[name], strict=True):
            kv.write(table, start, end, seed)
            source.advance(name, end)

    def at(self, room: int) -> BootstrapAddress:
        return room_of(self.server, room)

    def how(self, name: str) -> list[str]:
        return [how for _, settled, how in self.settled if settled == name]

    def _cancel(self, offer: Offer) -> None:
        self.cancelled.append(offer.request_id)
        for source in self.sources:
            source.withdraw(offer.request_id)

    def close(self) -> None:
        for source in self.sources:
            source.close()
        self.server.close()


class Decode:
    """The hand-off half of a decode worker, with fresh blocks for every request."""

    def __init__(self, num_layers: int = 5, block: int = 3, num_blocks: int = 128, width: int = 4) -> None:
        self.kv = FakeKV(range(num_layers), num_blocks, block, width)
        self.receiver = KVReceiver(self.kv, num_layers, torch.float32, MODEL, HOST)
        self.used = 0
        self.tables: dict[str, torch.Tensor] = {}

    async def allocate(self, offer: Offer) -> torch.Tensor:
        count = -(-offer.prompt_tokens // self.kv.block_size)
        table = torch.arange(self.used, self.used + count).flip(0)
        self.used += count
        self.tables[offer.request_id] = table
        return table

    def holds(self, name: str, tokens: int) -> bool:
        """Whether the first tokens of a request (of seed 1) are here."""
        return name in self.tables and self.kv.wrong(self.tables[name], 0, tokens, 1) == 0

    def receive(self, prefill: Prefill, room: int, timeout: float = 15.0, **values: Any) -> Awaitable[Any]:
        allocate = values.get("allocate", self.allocate)
        return self.receiver.receive(prefill.at(room), allocate, timeout)

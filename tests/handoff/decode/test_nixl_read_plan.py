"""Where NIXL reads from and to, without NIXL."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wavepp_worker.errors import HandoffError, HandoffMismatch
from wavepp_worker.handoff.decode.nixl_read_plan import plan_read, token_runs
from wavepp_worker.handoff.offer import RankAddress
from wavepp_worker.handoff.pull_messages import KvRegions
from wavepp_worker.model.kv.paged_kv import TorchPagedKV
from wavepp_worker.model.stage import PagedKV

from tests.support.handoff_sides import FakeKV
from tests.support.kept_tensors import kept


def offered(layers: range, block: int, *windows: tuple[int, int]) -> RankAddress:
    return RankAddress(
        rank=0,
        host="127.0.0.1",
        port=1,
        layers=(layers.start, layers.stop),
        block_size=block,
        dtype="float32",
        bytes_per_token=64,
        transport="nixl",
        windows=windows,
    )


def regions_of(kv: PagedKV, tables: torch.Tensor, start: int, end: int) -> KvRegions:
    """What a rank says of these tokens; ``tables``: a row for each window."""
    regions, blocks = kv.block_regions(), tables[:, start // kv.block_size : -(-end // kv.block_size)]
    return KvRegions(
        request_id="a",
        start=start,
        end=end,
        sizes=tuple(regions.sizes.tolist()),
        addresses=regions.addresses(blocks.numpy()).astype("<u8").tobytes(),
    )


def carry_out(plan: tuple[np.ndarray, np.ndarray, np.ndarray], pools: list[torch.Tensor]) -> None:
    """By plain copies; fails where an address is in none of ``pools``."""
    memory = [pool.numpy().reshape(-1).view(np.uint8) for pool in pools]

    def view(address: int, size: int) -> np.ndarray:
        for array in memory:
            offset = address - array.ctypes.data
            if offset >= 0 and offset + size <= array.size:
                return array[offset : offset + size]
        raise AssertionError("an address outside all pools")

    for at, to, size in zip(*(part.tolist() for part in plan), strict=True):
        view(to, size)[:] = view(at, size)


def test_runs_are_cut_at_every_block_of_either_size() -> None:
    starts, lengths = token_runs(2, 13, 4, 6)
    assert starts.tolist() == [2, 4, 6, 8, 12]
    assert lengths.tolist() == [2, 2, 2, 4, 1]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_plan_copies_exactly_the_tokens(data: st.DataObject) -> None:
    """The plan, carried out with plain copies, moves these tokens of these layers and nothing else."""
    block, own_block = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 7))
    end = data.draw(st.integers(1, 40))
    start = data.draw(st.integers(0, end - 1))
    first = data.draw(st.integers(0, 3))
    layers = range(first, data.draw(st.integers(first + 1, 4)))
    source, target = FakeKV(layers, 40, block), FakeKV(range(4), 40, own_block)
    table, own_table = torch.randperm(40), torch.randperm(40)
    source.write(table, 0, end, 1)
    message = regions_of(source, table[None], start, end)
    plan = plan_read(message, offered(layers, block), end, target, own_table)
    carry_out(plan, source.pools + target.pools)
    assert plan[2].sum() == source.bytes_per_token * (end - start)
    expected = FakeKV(range(4), 40, own_block)
    payload = source.export_tokens(table, start, end)
    expected.import_tokens(own_table, start, end, layers, payload)
    assert all(torch.equal(a, b) for a, b in zip(expected.pools, target.pools, strict=True))


def test_other_shapes_are_refused() -> None:
    source, target = FakeKV(range(1), 4, 4, width=8), FakeKV(range(1), 4, 4, width=4)
    good, rank = regions_of(source, torch.arange(4)[None], 0, 4), offered(range(1), 4)
    with pytest.raises(HandoffMismatch, match="the blocks of layers 0 to 0 have other shapes than here"):
        plan_read(good, rank, 4, target, torch.arange(4))
    cut = KvRegions(request_id="a", start=0, end=4, sizes=good.sizes, addresses=good.addresses[:-8])
    with pytest.raises(HandoffError, match="not one per region and block"):
        plan_read(cut, rank, 4, source, torch.arange(4))


@pytest.mark.parametrize("own_block", [3, 4, 5])
def test_of_windows_what_decoding_sees_is_read(own_block: int) -> None:
    """Beside a layer that keeps everything; the same is there as over a socket, and nothing else is offered."""
    block, tokens, span = 4, 27, 5
    caches = [kept((2, 4), (2, 4)), dataclasses.replace(kept((1, 6), (1, 2)), policy="sliding", span=span)]
    device = torch.device("cpu")
    source = TorchPagedKV(range(2), caches, 20, block, torch.float32, device, 0, lambda _: 9)
    target, expected = (
        TorchPagedKV(range(2), caches, 20, own_block, torch.float32, device) for _ in range(2)
    )
    pools = [pool for kv in (source, target) for layer in range(2) for pool in kv.pools(layer)]
    for pool in pools[:4]:
        pool.copy_(torch.randn(pool.shape))
    rank = offered(range(2), block, (span, 32))
    (first,) = rank.firsts(tokens).values()
    whole = -(-tokens // block)
    tables = torch.stack([torch.randperm(20)[:whole], torch.randperm(9)[:whole]])
    tables[1, : first // block] = -1
    own = torch.randperm(20)
    for start, end in ((0, 9), (9, 17), (17, 27)):
        plan = plan_read(regions_of(source, tables, start, end), rank, tokens, target, own)
        carry_out(plan, pools)
        payload = source.export_tokens(tables, start, end)
        assert plan[2].sum() == len(payload)
        expected.import_tokens(own, start, end, range(2), payload, rank.firsts(tokens))
    for layer in range(2):
        assert all(map(torch.equal, expected.pools(layer), target.pools(layer)))
    gone = tables.clone()
    gone[0, 3] = -1
    more = tables.clone()
    more[1, 3] = 1
    for wrong in (gone, more):
        with pytest.raises(HandoffMismatch, match="offers other blocks of its windows than decoding sees"):
            plan_read(regions_of(source, wrong, 9, 17), rank, tokens, target, own)


def test_what_windows_alone_have_let_go_of_is_not_read() -> None:
    cache = dataclasses.replace(kept((1, 4), (1, 4)), policy="sliding", span=4)
    source, target = (
        TorchPagedKV(range(1), [cache], 20, 4, torch.float32, torch.device("cpu")) for _ in range(2)
    )
    tables = torch.tensor([[-1, -1, -1, 3, 2]])
    assert not any(
        len(part)
        for part in plan_read(
            regions_of(source, tables, 0, 12), offered(range(1), 4, (4, 32)), 18, target, torch.arange(20)
        )
    )

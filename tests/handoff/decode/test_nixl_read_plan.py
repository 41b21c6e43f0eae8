"""Where NIXL reads from and to, without NIXL."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from wavepp_worker.errors import HandoffError
from wavepp_worker.handoff.decode.nixl_read_plan import plan_read, token_runs
from wavepp_worker.handoff.pull_messages import KvRegions

from tests.support.handoff_sides import FakeKV


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
    blocks = table[start // block : -(-end // block)].tolist()
    addresses = [[address for address, _ in source.block_regions(index)] for index in blocks]
    message = KvRegions(
        request_id="a",
        start=start,
        end=end,
        sizes=tuple(size for _, size in source.block_regions(0)),
        addresses=np.array(addresses, dtype="<u8").tobytes(),
    )
    memory = [pool.numpy().reshape(-1).view(np.uint8) for pool in source.pools + target.pools]

    def view(address: int, size: int) -> np.ndarray:
        for array in memory:
            offset = address - array.ctypes.data
            if offset >= 0 and offset + size <= array.size:
                return array[offset : offset + size]
        raise AssertionError("an address outside all pools")

    sources, targets, sizes = plan_read(message, block, layers, target, own_table)
    for at, to, size in zip(sources.tolist(), targets.tolist(), sizes.tolist(), strict=True):
        view(to, size)[:] = view(at, size)
    assert sizes.sum() == source.bytes_per_token * (end - start)
    expected = FakeKV(range(4), 40, own_block)
    payload = source.export_tokens(table, start, end)
    expected.import_tokens(own_table, start, end, layers, payload)
    assert all(torch.equal(a, b) for a, b in zip(expected.pools, target.pools, strict=True))


def test_other_shapes_are_refused() -> None:
    source, target = FakeKV(range(1), 4, 4, width=8), FakeKV(range(1), 4, 4, width=4)
    regions = source.block_regions(0)
    good = KvRegions(
        request_id="a",
        start=0,
        end=4,
        sizes=tuple(size for _, size in regions),
        addresses=np.array([[address for address, _ in regions]], dtype="<u8").tobytes(),
    )
    with pytest.raises(HandoffError, match="the blocks of layers 0 to 0 have other shapes than here"):
        plan_read(good, 4, range(1), target, torch.arange(4))
    cut = KvRegions(request_id="a", start=0, end=4, sizes=good.sizes, addresses=good.addresses[:-8])
    with pytest.raises(HandoffError, match="not one per region and block"):
        plan_read(cut, 4, range(1), source, torch.arange(4))

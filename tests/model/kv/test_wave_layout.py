from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from wavepp_worker.errors import WaveppError
from wavepp_worker.model.kv import wave_layout, window_layout
from wavepp_worker.model.kv.wave_layout import current_wave, lay_out_wave, running
from wavepp_worker.model.stage import Chunk

CPU = torch.device("cpu")
FIRST, SECOND = torch.tensor([7, 2]), torch.tensor([5])


def test_a_prefill_wave_writes_its_chunks_and_reads_each_request_from_its_start() -> None:
    wave = lay_out_wave([Chunk(3, 2, FIRST, False), Chunk(0, 2, SECOND, True)], 4, CPU)
    assert not wave.decode
    assert wave.positions.tolist() == [[3, 4, 0, 1]]
    assert wave.window(0, 0).write_slots.tolist() == [31, 8, 20, 21]
    assert wave.window(0, 0).read_slots is not None
    assert wave.window(0, 0).read_slots.tolist() == [28, 29, 30, 31, 8, 20, 21]
    assert wave.tokens == 4


@pytest.mark.parametrize("start", [0, 3])
def test_all_that_a_device_has_to_know_of_a_wave_goes_there_by_one_copy(
    start: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a window of everything and one of two tokens; nothing is read where no chunk has a prefix."""
    chunks = [Chunk(start, 2, FIRST, True), Chunk(0, 2, SECOND, False), Chunk(0, 1, SECOND, True)]
    copied: list[torch.Tensor] = []
    for module in (wave_layout, window_layout):
        monkeypatch.setattr(module, "to_device", lambda tensor, device: copied.append(tensor) or tensor)
    brought = lay_out_wave(chunks, 4, torch.device("meta"), (0, 2))
    assert len(copied) == 1
    monkeypatch.undo()
    plain = lay_out_wave(chunks, 4, CPU, (0, 2))
    assert brought.positions.tolist() == plain.positions.tolist() == [[start, start + 1, 0, 1, 0]]
    assert brought.wanted.tolist() == plain.wanted.tolist() == [1, 4]
    for number, span in enumerate((0, 2)):
        there, here = brought.window(number, span), plain.window(number, span)
        assert torch.equal(there.write_slots, here.write_slots)
        assert (there.read_slots is None) == (here.read_slots is None) == (start == 0)
        if there.read_slots is not None and here.read_slots is not None:
            assert torch.equal(there.read_slots, here.read_slots)
    assert len(copied) == 1


@pytest.mark.parametrize("chunks", [[], [Chunk(0, 0, FIRST, True)], [Chunk(-1, 2, FIRST, True)]])
def test_chunks_without_tokens_are_refused(chunks: list[Chunk]) -> None:
    with pytest.raises(WaveppError, match="chunks of at least one token"):
        lay_out_wave(chunks, 4, CPU)


def test_the_wave_that_runs_is_known_to_its_thread_only_while_it_runs() -> None:
    outer, inner = (lay_out_wave([Chunk(0, n, FIRST, True)], 4, CPU) for n in (1, 2))
    with running(outer):
        with running(inner):
            assert current_wave() is inner
        assert current_wave() is outer
    with pytest.raises(LookupError):
        current_wave()


def test_which_tokens_go_through_an_adapter_is_brought_without_a_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tokens side by side are a slice, which nobody has to bring."""
    brought: list[list[int]] = []
    monkeypatch.setattr(
        wave_layout, "to_device", lambda tensor, device: brought.append(tensor.tolist()) or tensor
    )
    chunks = [
        Chunk(0, length, torch.tensor([number]), False, adapter=name)
        for number, (name, length) in enumerate((("a", 2), ("b", 1), ("a", 1), ("", 2), ("c", 1), ("c", 2)))
    ]
    wave = lay_out_wave(chunks, 4, CPU)
    brought.clear()
    rows = wave.adapter_rows
    assert brought == [[0, 1, 3]]
    assert (rows["b"], rows["c"]) == (slice(2, 3), slice(6, 9))
    assert rows.keys() == {"a", "b", "c"}


@given(data=st.data())
def test_slots_that_a_device_makes_are_those_of_the_host(data: st.DataObject) -> None:
    """Chunks and decode steps, windows of any span, tables longer than need be, and blocks anywhere."""
    block_size = data.draw(st.sampled_from([1, 3, 4, 16]))
    decode = data.draw(st.booleans())
    spans = (0, *data.draw(st.lists(st.integers(1, 40), max_size=2)))
    chunks, free = (
        [],
        iter(torch.randperm(500, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 99))))),
    )
    for _ in range(data.draw(st.integers(1, 5))):
        start = data.draw(st.integers(1 if decode else 0, 50))
        length = 1 if decode else data.draw(st.integers(1, 30))
        blocks = -(-(start + length) // block_size) + data.draw(st.integers(0, 2))
        chunks.append(Chunk(start, length, torch.stack([next(free) for _ in range(blocks)]), True))
    in_place = data.draw(st.booleans())
    plain = lay_out_wave(chunks, block_size, CPU, spans)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wave_layout, "to_device", lambda tensor, device: tensor)
        # Whatever the one copy does not bring would be brought by another.
        patch.setattr(window_layout, "to_device", lambda tensor, device: tensor if device == CPU else 1 / 0)
        placed = lay_out_wave(chunks, block_size, torch.device("meta"), spans, in_place=in_place)
        for number, span in enumerate(spans):
            there, here = placed.window(number, span), plain.window(number, span)
            assert torch.equal(there.write_slots, here.write_slots)
            if in_place:
                assert torch.equal(there.read_blocks, here.read_blocks)
            elif here.read_slots is None:
                assert there.read_slots is None
            else:
                assert torch.equal(there.read_slots, here.read_slots)


def test_a_table_that_is_too_short_is_refused_before_a_device_uses_it() -> None:
    with pytest.raises(WaveppError, match=r"tokens \[3, 9\) need 3 blocks of 4 but the block table has 2"):
        lay_out_wave([Chunk(3, 6, FIRST, True)], 4, torch.device("meta"), (0,))

"""Activations in memory that two ranks share: what was written is what is read, and nobody waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch
import zmq
from wavepp_worker.errors import EngineDead, PositionMismatch
from wavepp_worker.runtime.protocol.slots import (
    SlotMessage,
    SlotRead,
    SlotsOffered,
    SlotsTaken,
    SlotWritten,
)
from wavepp_worker.runtime.protocol.waves import TensorMeta
from wavepp_worker.runtime.rank import slot_link
from wavepp_worker.runtime.rank.shared_slots import (
    ALIGNMENT,
    SLOTS,
    CannotShare,
    SlotReader,
    SlotWriter,
    slot_bytes,
)
from wavepp_worker.runtime.rank.slot_link import SlotLink

from tests.support.fake_sharing import fake_sharing

CPU = torch.device("cpu")
BOUND = 5.0
SOON = 0.2


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    monkeypatch.setattr(slot_link, "GIVE_WAY_SECONDS", 0.0)
    return fake_sharing(monkeypatch)


@pytest.fixture
def links() -> Iterator[tuple[SlotLink, SlotLink]]:
    with zmq.Context() as context:
        ends = [SlotLink(context, "inproc://edge", SOON, binds=binds) for binds in (True, False)]
        yield ends[0], ends[1]
        for end in ends:
            end.close()


@pytest.fixture
def beside() -> Iterator[Callable[[Callable[[], object]], threading.Thread]]:
    """Runs something in another thread, which must end."""
    threads: list[threading.Thread] = []

    def start(work: Callable[[], object]) -> threading.Thread:
        thread = threading.Thread(target=work, daemon=True)
        threads.append(thread)
        thread.start()
        return thread

    yield start
    for thread in threads:
        thread.join(BOUND)
        assert not thread.is_alive()


def waves() -> list[list[torch.Tensor]]:
    """Of every kind that stages send, growing and shrinking."""
    made = []
    for wave, tokens in enumerate([1, 1, 7, 3, 300, 2, 300, 1000, 0, 5]):
        hidden = (torch.arange(tokens * 5.0) + wave).view(tokens, 5).bfloat16()
        picked = torch.arange(wave % 3 * tokens, dtype=torch.int32).view(-1, max(tokens, 1))
        made.append([hidden, picked] if wave % 2 else [hidden])
    return made


def metas(tensors: list[torch.Tensor]) -> list[TensorMeta]:
    return [
        TensorMeta(str(number), str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
        for number, tensor in enumerate(tensors)
    ]


@pytest.mark.usefixtures("fake")
def test_waves_of_any_size_arrive_as_they_were_written(
    links: tuple[SlotLink, SlotLink], beside: Callable
) -> None:
    writer, reader = SlotWriter(links[0], CPU, BOUND), SlotReader(links[1], CPU)
    sent = waves()
    beside(lambda: [writer.write(tensors) for tensors in sent])
    for tensors in sent:
        came = reader.read(metas(tensors))
        assert [each.dtype for each in came] == [each.dtype for each in tensors]
        for each, tensor in zip(came, tensors, strict=True):
            assert torch.equal(each, tensor)


def test_no_slot_is_written_before_it_was_read(
    fake: SimpleNamespace, links: tuple[SlotLink, SlotLink], beside: Callable
) -> None:
    writer, reader = SlotWriter(links[0], CPU, BOUND), SlotReader(links[1], CPU)
    sent = [[torch.full((4,), float(wave))] for wave in range(SLOTS + 2)]
    gone: list[int] = []
    writing = beside(
        lambda: [gone.append(wave) for wave, tensors in enumerate(sent) if not writer.write(tensors)]
    )
    assert torch.equal(reader.read(metas(sent[0]))[0], sent[0][0])
    writing.join(SOON / 2)
    assert gone == [*range(SLOTS + 1)], "one slot is free again"
    for tensors in sent[1:]:
        assert torch.equal(reader.read(metas(tensors))[0], tensors[0])
    writing.join(BOUND)
    assert len(gone) == len(sent)
    writer.close(BOUND)
    assert fake.moments


def answered(link: SlotLink, *answers: SlotMessage) -> None:
    """As if the other rank had sent them."""
    for answer in answers:
        link.send(answer)


TAKEN = SlotsTaken(read=(b"moment",) * SLOTS)


def test_streams_wait_for_the_other_rank_and_the_host_for_messages_alone(
    fake: SimpleNamespace, links: tuple[SlotLink, SlotLink]
) -> None:
    writer = SlotWriter(links[0], CPU, BOUND)
    answered(links[1], TAKEN)
    writer.write([torch.ones(3)])
    assert fake.calls == [
        "copying waits for a moment of another rank",
        "copying keeps a tensor",
        "copying notes a moment",
    ]
    assert None not in fake.allocated_on
    offer = links[1].receive(SlotsOffered, "offer")
    assert links[1].receive(SlotWritten, "write") == SlotWritten(wave=0)
    del fake.calls[:]
    reader = SlotReader(links[1], CPU)
    answered(links[0], offer, SlotWritten(wave=0))
    (came,) = reader.read([TensorMeta("hidden", "float32", (3,))])
    assert came.tolist() == [1.0, 1.0, 1.0]
    assert fake.calls == [
        "copying waits for a moment of another rank",
        "copying notes a moment",
        "computing waits for copying",
        "computing keeps a tensor",
    ]


def test_memory_that_cannot_be_had_is_said_on_both_sides(
    fake: SimpleNamespace, links: tuple[SlotLink, SlotLink]
) -> None:
    fake.limit = 100
    with pytest.raises(CannotShare, match=r"^CUDA out of memory$"):
        SlotWriter(links[0], CPU, BOUND).write([torch.ones(300)])
    with pytest.raises(CannotShare, match=r"^CUDA out of memory$"):
        SlotReader(links[1], CPU).read([TensorMeta("hidden", "float32", (300,))])


def test_memory_that_cannot_be_opened_is_said_on_both_sides(
    fake: SimpleNamespace, links: tuple[SlotLink, SlotLink], beside: Callable
) -> None:
    fake.reach = False
    said: list[str] = []

    def write() -> None:
        with pytest.raises(CannotShare) as caught:
            SlotWriter(links[0], CPU, BOUND).write([torch.ones(300)])
        said.append(str(caught.value))

    writing = beside(write)
    with pytest.raises(CannotShare, match=r"^invalid device context$"):
        SlotReader(links[1], CPU).read([TensorMeta("hidden", "float32", (300,))])
    writing.join(BOUND)
    assert said == ["invalid device context"]


@pytest.mark.usefixtures("fake")
def test_slots_of_another_size_than_announced_are_not_read(links: tuple[SlotLink, SlotLink]) -> None:
    writer = SlotWriter(links[0], CPU, BOUND)
    answered(links[1], TAKEN)
    writer.write([torch.ones(3)])
    with pytest.raises(CannotShare, match="1 slots of 32768 bytes were shared, not 2"):
        SlotReader(links[1], CPU).read([TensorMeta("hidden", "float32", (8192,))])


@pytest.mark.usefixtures("fake")
def test_a_wave_that_is_not_the_next_is_refused(links: tuple[SlotLink, SlotLink]) -> None:
    writer, reader = SlotWriter(links[0], CPU, BOUND), SlotReader(links[1], CPU)
    answered(links[1], TAKEN, SlotRead(wave=1))
    for _ in range(SLOTS):
        writer.write([torch.ones(3)])
    with pytest.raises(PositionMismatch, match="wave 1 of this edge is said to be read, not 0"):
        writer.write([torch.ones(3)])
    offer = links[1].receive(SlotsOffered, "offer")
    for _ in range(SLOTS):
        links[1].receive(SlotWritten, "write")
    answered(links[0], offer, SlotWritten(wave=4))
    with pytest.raises(PositionMismatch, match="wave 4 of this edge came, not 0"):
        reader.read([TensorMeta("hidden", "float32", (3,))])
    answered(links[0], TAKEN)
    with pytest.raises(
        PositionMismatch, match="was to send activations that it has announced, and sent SlotsTaken"
    ):
        reader.read([TensorMeta("hidden", "float32", (3,))])


@pytest.mark.usefixtures("fake")
def test_a_rank_that_is_silent_ends_the_wait(links: tuple[SlotLink, SlotLink]) -> None:
    with pytest.raises(EngineDead, match="was to share memory for a larger wave, has died or hangs"):
        SlotReader(links[1], CPU).read([TensorMeta("hidden", "float32", (3,))])
    writer = SlotWriter(links[0], CPU, BOUND)
    with pytest.raises(EngineDead, match="was to open memory that this rank shares, has died or hangs"):
        writer.write([torch.ones(3)])


def test_memory_is_let_go_of_when_nobody_reads_it_any_more(
    fake: SimpleNamespace, links: tuple[SlotLink, SlotLink]
) -> None:
    writer = SlotWriter(links[0], CPU, SOON)
    answered(links[1], TAKEN, SlotRead(wave=0))
    writer.write([torch.ones(3)])
    for moment in fake.moments:
        moment.over = False
    with pytest.raises(Exception, match="the next rank has not read a wave after 0 s"):
        writer.write([torch.ones(3000)])


@pytest.mark.parametrize("sizes", [[], [1], [ALIGNMENT], [ALIGNMENT + 1, 3], [3 * ALIGNMENT] * 3])
def test_a_slot_holds_its_tensors_each_aligned(sizes: list[int]) -> None:
    size = slot_bytes(sizes)
    assert size & (size - 1) == 0
    assert size >= sum(-(-each // ALIGNMENT) * ALIGNMENT for each in sizes)

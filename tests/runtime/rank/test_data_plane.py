"""The data plane over real sockets: a wave arrives as it was sent, and frames that are not its header's do not pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import zmq
from wavepp_worker.errors import PositionMismatch
from wavepp_worker.runtime.protocol.message import encode
from wavepp_worker.runtime.protocol.waves import Span, TensorMeta, WaveDone, WaveHeader
from wavepp_worker.runtime.rank.data_plane import DataPlane

SOON = 10_000
"""Milliseconds within which a message between two sockets of this process arrives."""

HEADER = WaveHeader(wave_id=4, spans=(Span("a", 0, 3, False), Span("b", 8, 2, True)), compute=(0.25, 0.5))


@pytest.fixture
def context() -> Iterator[zmq.Context[zmq.Socket[bytes]]]:
    with zmq.Context() as made:
        yield made


@pytest.fixture(params=["inproc", "ipc"])
def ring(
    request: pytest.FixtureRequest, context: zmq.Context[zmq.Socket[bytes]], tmp_path: Path
) -> Iterator[tuple[DataPlane, DataPlane]]:
    """Two ranks, each the next of the other."""
    place = tmp_path if request.param == "ipc" else ""
    addresses = [f"{request.param}://{place}/data{rank}" for rank in range(2)]
    first, last = (DataPlane(context, addresses[rank], addresses[1 - rank]) for rank in range(2))
    yield first, last
    first.close()
    last.close()


@pytest.fixture
def hand_made(context: zmq.Context[zmq.Socket[bytes]]) -> Iterator[tuple[Callable[..., None], DataPlane]]:
    """A rank, and a call that sends it a header with any frames."""
    plane = DataPlane(context, "inproc://here", "inproc://there")
    socket = context.socket(zmq.PUSH)
    socket.connect("inproc://here")

    def send(metas: tuple[TensorMeta, ...], *frames: bytes) -> None:
        header = WaveHeader(wave_id=4, spans=(), tensors=metas)
        socket.send_multipart([encode(header), *frames])
        assert plane.socket.poll(SOON)

    yield send, plane
    socket.close(linger=0)
    plane.close()


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.float8_e4m3fn,
        torch.int64,
        torch.int32,
        torch.uint8,
        torch.bool,
    ],
)
def test_every_dtype_arrives_bit_by_bit(ring: tuple[DataPlane, DataPlane], dtype: torch.dtype) -> None:
    first, last = ring
    sent = (torch.arange(15).reshape(5, 3) % 2).to(dtype)
    first.send_wave(HEADER, {"hidden": sent})
    assert last.socket.poll(SOON)
    message, activations = last.receive()
    got = activations["hidden"]
    assert (got.dtype, got.shape) == (dtype, (5, 3))
    assert torch.equal(got.view(torch.uint8), sent.view(torch.uint8))
    assert isinstance(message, WaveHeader)
    assert (message.wave_id, message.spans, message.compute) == (4, HEADER.spans, HEADER.compute)


def test_several_tensors_keep_their_names_and_shapes(ring: tuple[DataPlane, DataPlane]) -> None:
    first, last = ring
    sent = {
        "hidden": torch.randn(5, 8),
        "residual": torch.randn(5, 8).bfloat16(),
        "positions": torch.arange(5),
        "deep": torch.randn(5, 2, 3, 4),
    }
    first.send_wave(HEADER, sent)
    assert last.socket.poll(SOON)
    _, got = last.receive()
    assert list(got) == list(sent)
    for name, tensor in sent.items():
        assert torch.equal(got[name], tensor), name


def test_a_view_into_other_memory_arrives_as_what_it_shows(ring: tuple[DataPlane, DataPlane]) -> None:
    first, last = ring
    whole = torch.randn(8, 5, requires_grad=True)
    sent = {"transposed": whole.T, "every other": whole[::2], "tail": whole[6:]}
    first.send_wave(HEADER, sent)
    assert last.socket.poll(SOON)
    _, got = last.receive()
    for name, tensor in sent.items():
        assert torch.equal(got[name], tensor), name


def test_tensors_are_sent_from_where_they_lie(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    """A copy would hold up the rank's next wave; between threads of one process none is needed on the way either."""
    plane = DataPlane(context, "inproc://self", "inproc://self")
    # Of less, ZeroMQ's binding makes a copy in any case.
    sent = torch.zeros(zmq.COPY_THRESHOLD, dtype=torch.uint8)
    plane.send_wave(HEADER, {"hidden": sent})
    assert plane.socket.poll(SOON)
    _, got = plane.receive()
    assert got["hidden"].data_ptr() == sent.data_ptr()
    plane.close()


def test_waves_and_ends_come_in_order_and_around_the_ring(ring: tuple[DataPlane, DataPlane]) -> None:
    first, last = ring
    for wave_id in range(20):
        header = WaveHeader(wave_id=wave_id, spans=())
        first.send_wave(header, {"hidden": torch.full((1, 2), float(wave_id))})
    for wave_id in range(20):
        assert last.socket.poll(SOON)
        message, activations = last.receive()
        assert message.wave_id == wave_id
        assert activations["hidden"].tolist() == [[wave_id, wave_id]]
        last.send_done(WaveDone(wave_id=wave_id, compute=(0.5, 0.25)))
    for wave_id in range(20):
        assert first.socket.poll(SOON)
        assert first.receive() == (WaveDone(wave_id=wave_id, compute=(0.5, 0.25)), {})


def test_a_single_rank_is_its_own_next(context: zmq.Context[zmq.Socket[bytes]]) -> None:
    plane = DataPlane(context, "inproc://self", "inproc://self")
    plane.send_done(WaveDone(wave_id=1))
    assert plane.socket.poll(SOON)
    assert plane.receive() == (WaveDone(wave_id=1), {})
    plane.close()


HIDDEN = TensorMeta("hidden", "float32", (2, 3))


@pytest.mark.parametrize(
    ("metas", "frames", "complaint"),
    [
        ((HIDDEN,), (), "announces 1 tensors, 0 arrived"),
        ((HIDDEN,), (bytes(24), bytes(24)), "announces 1 tensors, 2 arrived"),
        ((), (bytes(24),), "announces 0 tensors, 1 arrived"),
        ((HIDDEN,), (bytes(20),), r"hidden is announced as float32 \(2, 3\), 24 bytes, but 20 bytes arrived"),
        ((HIDDEN,), (bytes(28),), "24 bytes, but 28 bytes arrived"),
        ((HIDDEN,), (bytes(23),), "24 bytes, but 23 bytes arrived"),
        ((HIDDEN,), (b"",), "24 bytes, but 0 bytes arrived"),
    ],
)
def test_frames_that_are_not_the_headers_are_refused(
    hand_made: tuple[Callable[..., None], DataPlane],
    metas: tuple[TensorMeta, ...],
    frames: tuple[bytes, ...],
    complaint: str,
) -> None:
    send, plane = hand_made
    send(metas, *frames)
    with pytest.raises(PositionMismatch, match=complaint):
        plane.receive()


def test_frames_that_are_the_headers_pass(hand_made: tuple[Callable[..., None], DataPlane]) -> None:
    send, plane = hand_made
    send((HIDDEN,), torch.arange(6.0).numpy().tobytes())
    _, activations = plane.receive()
    assert activations["hidden"].tolist() == [[0, 1, 2], [3, 4, 5]]

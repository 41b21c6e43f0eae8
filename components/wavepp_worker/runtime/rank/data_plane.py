"""The data plane: wave schedules and activations from each rank to the next, completions back to rank 0.

Sends never wait: ZeroMQ's own thread moves the bytes while the next wave computes, and a wait for a receive
releases the interpreter lock. Where ranks have a ``TensorPlane``, that carries the activations, and this one the
headers, which say what comes and in which order.
"""

from __future__ import annotations

import math

import msgspec
import torch
import zmq

from wavepp_worker.errors import PositionMismatch
from wavepp_worker.model.stage import Activations
from wavepp_worker.runtime.protocol.codec import Codec
from wavepp_worker.runtime.protocol.message import encode
from wavepp_worker.runtime.protocol.waves import DataMessage, TensorMeta, WaveDone, WaveHeader
from wavepp_worker.runtime.rank.tensor_plane import TensorPlane


class DataPlane:
    """One rank's in- and outgoing edge of the ring of ranks."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        incoming: str,
        outgoing: str,
        tensors: TensorPlane | None = None,
    ) -> None:
        """Bind ``incoming`` and connect to ``outgoing``, the next rank's ``incoming``.

        ``tensors``: carries the activations; None if the sockets do.
        """
        self.socket = context.socket(zmq.PULL)
        self.socket.set_hwm(0)
        self.socket.bind(incoming)
        self._out = context.socket(zmq.PUSH)
        self._out.set_hwm(0)
        self._out.connect(outgoing)
        self._tensors = tensors

    def send_wave(self, header: WaveHeader, activations: Activations) -> None:
        """Queue a wave for the next rank. The tensors must not be written to afterwards."""
        tensors = {name: tensor.detach().contiguous() for name, tensor in activations.items()}
        metas = tuple(
            TensorMeta(name, str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
            for name, tensor in tensors.items()
        )
        header = msgspec.structs.replace(header, tensors=metas)
        if self._tensors is not None:
            # First the header: who has that asks for the tensors.
            self._out.send(encode(header))
            self._tensors.send(list(tensors.values()))
            return
        frames = [tensor.cpu().view(torch.uint8).flatten().numpy().data for tensor in tensors.values()]
        self._out.send_multipart([encode(header), *frames], copy=False)

    def send_done(self, done: WaveDone) -> None:
        """Tell rank 0 that a wave left the last rank."""
        self._out.send(encode(done))

    def receive(self) -> tuple[DataMessage, Activations]:
        """The next message; the caller has polled ``socket``. Tensors share the received buffers.

        Raises:
            PositionMismatch: the frames are not those the header announces.
            EngineDead: what the header announces does not come.
        """
        head, *frames = self.socket.recv_multipart(copy=False)
        message = Codec.data.decode(head.buffer)
        metas = message.tensors if isinstance(message, WaveHeader) else ()
        expected = len(metas) if self._tensors is None else 0
        if expected != len(frames):
            raise PositionMismatch(f"{message} announces {expected} tensors, {len(frames)} arrived")
        if self._tensors is not None:
            return message, dict(
                zip((meta.name for meta in metas), self._tensors.receive(metas), strict=True)
            )
        activations = {}
        for meta, frame in zip(metas, frames, strict=True):
            dtype = getattr(torch, meta.dtype)
            announced = math.prod(meta.shape) * dtype.itemsize
            if len(frame) != announced:
                raise PositionMismatch(
                    f"{meta.name} is announced as {meta.dtype} {meta.shape}, {announced} bytes, "
                    f"but {len(frame)} bytes arrived"
                )
            activations[meta.name] = torch.frombuffer(frame.buffer, dtype=dtype).view(meta.shape)
        return message, activations

    def close(self) -> None:
        if self._tensors is not None:
            self._tensors.close()
        self.socket.close(linger=0)
        self._out.close(linger=500)

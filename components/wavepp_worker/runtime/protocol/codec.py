"""The decoders of the planes between the processes of one worker."""

from __future__ import annotations

import msgspec

from wavepp_worker.runtime.protocol.commands import Command
from wavepp_worker.runtime.protocol.events import Event
from wavepp_worker.runtime.protocol.rounds import RoundMessage
from wavepp_worker.runtime.protocol.waves import DataMessage


class Codec:
    """Decoders of the planes; each refuses a message that does not belong on its plane."""

    command: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
    event: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)
    round: msgspec.msgpack.Decoder[RoundMessage] = msgspec.msgpack.Decoder(RoundMessage)
    data: msgspec.msgpack.Decoder[DataMessage] = msgspec.msgpack.Decoder(DataMessage)

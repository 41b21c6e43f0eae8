"""A device that only takes time: what ``timed.json`` in a model directory says of it. Pure."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import msgspec

from wavepp_worker.errors import ConfigError

FILE_NAME = "timed.json"

_Positive = Annotated[float, msgspec.Meta(gt=0)]
_NotNegative = Annotated[float, msgspec.Meta(ge=0)]
_Count = Annotated[int, msgspec.Meta(ge=1)]


class Link(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Moving bytes: ``latency`` seconds for every transfer, then ``bandwidth`` bytes per second."""

    latency: _NotNegative
    bandwidth: _Positive

    def seconds(self, size: float) -> float:
        """Seconds that ``size`` bytes take."""
        return self.latency + size / self.bandwidth


class TimedModel(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model without weights: its shape, and how long a device of each stage takes.

    Costs are per layer, so that they hold for any number of stages and any partition.

    Attributes:
        name: for people.
        layers: decoder layers.
        vocabulary: token ids are below it.
        context_length: most positions of a prompt.
        wave_seconds: seconds per layer of every wave, whatever it carries.
        token_seconds: seconds per layer and token.
        context_seconds: seconds per layer, token, and token of context it attends to (itself included).
        activation_bytes: bytes that one token takes between two stages.
        kv_bytes: bytes of KV per layer and token.
        hop: from one stage to the next.
        to_host: from device to host memory.
        from_host: from host to device memory.
        speed: all times are divided by it.
    """

    name: str
    layers: _Count
    vocabulary: Annotated[int, msgspec.Meta(ge=2)]
    context_length: _Count
    wave_seconds: _NotNegative
    token_seconds: _Positive
    context_seconds: _NotNegative
    activation_bytes: _NotNegative
    kv_bytes: _NotNegative
    hop: Link
    to_host: Link
    from_host: Link
    speed: _Positive = 1.0

    @property
    def model_id(self) -> str:
        """32 hex digits that identify this model; ``speed`` does not count."""
        same_speed = msgspec.structs.replace(self, speed=1.0)
        return hashlib.blake2b(msgspec.json.encode(same_speed), digest_size=16).hexdigest()

    def wave_time(self, layers: int, spans: list[tuple[int, int]]) -> float:
        """Seconds that ``layers`` layers take for a wave of ``(start, length)`` chunks."""
        tokens = sum(length for _, length in spans)
        attended = sum(context_attended(start, length) for start, length in spans)
        work = self.wave_seconds + self.token_seconds * tokens + self.context_seconds * attended
        return layers * work / self.speed

    def hop_times(self, tokens: int) -> tuple[float, float]:
        """Seconds that the activations of ``tokens`` tokens occupy the link, and until they arrive after that."""
        occupied = tokens * self.activation_bytes / self.hop.bandwidth
        return occupied / self.speed, self.hop.latency / self.speed

    def copy_time(self, link: Link, layers: int, tokens: int) -> float:
        """Seconds that the KV of ``tokens`` tokens of ``layers`` layers takes over ``link``."""
        return link.seconds(layers * tokens * self.kv_bytes) / self.speed


def context_attended(start: int, length: int) -> float:
    """Tokens of context summed over the positions ``[start, start + length)``, each seeing itself."""
    return length * (start + (length + 1) / 2)


def is_timed(model_dir: Path) -> bool:
    """Whether a model directory describes a timed model."""
    return (model_dir / FILE_NAME).is_file()


def read_timed_model(model_dir: Path) -> TimedModel:
    """Read ``timed.json``.

    Raises:
        ConfigError: it is not valid; says which entry is wrong and what it may be.
    """
    file = model_dir / FILE_NAME
    try:
        return msgspec.json.decode(file.read_bytes(), type=TimedModel)
    except (OSError, msgspec.DecodeError) as error:
        raise ConfigError(f"model: {file} does not describe a timed model ({error}); correct it") from None


def write_timed_model(model_dir: Path, model: TimedModel) -> Path:
    """Make ``model_dir`` a timed model's directory, and return it."""
    model_dir.mkdir(parents=True, exist_ok=True)
    (model_dir / FILE_NAME).write_bytes(msgspec.json.format(msgspec.json.encode(model)) + b"\n")
    return model_dir

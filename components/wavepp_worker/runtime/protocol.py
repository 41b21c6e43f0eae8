"""Messages between the processes of one worker: commands, rounds, waves and events, and their codec.

Three planes, each its own connections:

* commands and events, between the engine client and the ranks;
* the rounds plane (``Plan``, ``Vote``, ``Tally``), rank 0 with every other rank;
* the data plane (``WaveHeader`` with tensors, ``WaveDone``), each rank with the next, the last with rank 0.
"""

from __future__ import annotations

import msgspec

from wavepp_worker.handoff.interface import RankAddress, Settled
from wavepp_worker.model.sampling import SampledToken
from wavepp_worker.runtime.messages import PrefillRequest, StageTiming


class Message(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Base of all messages: frozen, and tagged with the class name on the wire."""


class Submit(Message, frozen=True):
    """Engine to rank 0: a validated request."""

    request: PrefillRequest


class Abort(Message, frozen=True):
    """Engine to rank 0: let go of a request in whatever state it is; unknown ids are ignored."""

    request_id: str


class Audit(Message, frozen=True):
    """Engine to rank 0: every rank shall report its books."""

    audit_id: int


class Stop(Message, frozen=True):
    """Engine to rank 0: all ranks leave."""


Command = Submit | Abort | Audit | Stop


class Admit(msgspec.Struct, frozen=True):
    """A request and an endpoint (tokens): to prepare no further than there, to commit there, or agreed on."""

    request_id: str
    endpoint: int


class Plan(Message, frozen=True, omit_defaults=True):
    """Rank 0 to all: what to do in this round, in the order of the fields.

    Attributes:
        arrivals: requests every rank shall know from now on.
        release: requests every rank lets go of, whatever their state.
        hint: requests whose local reuse endpoint the vote shall carry.
        prepare: requests to lease and reserve for, first come first served; the vote carries a claim each.
        exempt: the only request of ``prepare`` may ignore the headroom, as no other holds a lease.
        reconcile: requests to commit at a lower endpoint; the vote carries a claim each.
        audit_id: if set, every rank reports its books.
        stop: every rank leaves after this round.
    """

    round_id: int
    arrivals: tuple[PrefillRequest, ...] = ()
    release: tuple[str, ...] = ()
    hint: tuple[str, ...] = ()
    prepare: tuple[Admit, ...] = ()
    exempt: bool = False
    reconcile: tuple[Admit, ...] = ()
    audit_id: int | None = None
    stop: bool = False


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """What one rank could do for one request.

    Attributes:
        endpoint: tokens it has pinned, or -1 if it has no room and holds nothing new.
        committed: it holds the room for everything after ``endpoint``, too.
    """

    endpoint: int
    committed: bool


class Vote(Message, frozen=True, omit_defaults=True):
    """One rank's local facts for one round; decides nothing by itself.

    Attributes:
        endpoints: tokens, for each of the plan's ``hint``.
        claims: for each of the plan's ``prepare``, then of its ``reconcile``.
    """

    round_id: int
    rank: int
    endpoints: tuple[int, ...] = ()
    claims: tuple[Claim, ...] = ()


class Tally(Message, frozen=True):
    """Rank 0 to all: every rank's vote of the round, in rank order. Each rank computes the outcome."""

    round_id: int
    votes: tuple[Vote, ...]


class Span(msgspec.Struct, frozen=True):
    """One request's chunk in a wave: tokens ``[start, start + length)``; ``last`` ends the prompt."""

    request_id: str
    start: int
    length: int
    last: bool


class TensorMeta(msgspec.Struct, frozen=True):
    """How to read the bytes of one boundary tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class WaveHeader(Message, frozen=True):
    """Rank s to rank s + 1, followed by one frame per tensor.

    Attributes:
        compute: seconds each earlier rank spent in this wave's forward, in rank order.
    """

    wave_id: int
    spans: tuple[Span, ...]
    tensors: tuple[TensorMeta, ...] = ()
    compute: tuple[float, ...] = ()


class WaveDone(Message, frozen=True):
    """Last rank to rank 0: every rank has executed the wave.

    Attributes:
        compute: seconds each rank took for it, in rank order.
    """

    wave_id: int
    compute: tuple[float, ...] = ()


class RankReady(Message, frozen=True):
    """A rank has loaded its layers and connected."""

    rank: int
    pid: int
    blocks: int
    handoff: RankAddress | None


class RankFailed(Message, frozen=True):
    """A rank is about to exit and says why; ``config`` if the configuration is at fault."""

    rank: int
    reason: str
    config: bool


class Heartbeat(Message, frozen=True):
    """A rank is alive: its load, and how long ago it last made progress.

    Attributes:
        wave_age: seconds since its last wave ended.
        waiting: requests not yet admitted (rank 0 only).
        running: admitted requests whose prompt is not done.
        handing_off: finished requests whose KV is held.
        waves: waves executed since start.
        rounds: rounds since start.
    """

    rank: int
    wave_age: float
    waiting: int
    running: int
    handing_off: int
    used_blocks: int
    waves: int
    rounds: int


class Admitted(Message, frozen=True):
    """Rank 0: all ranks admitted a request at one endpoint (tokens), after so many seconds."""

    request_id: str
    endpoint: int
    queued: float
    admission: float


class Released(Message, frozen=True):
    """Rank 0: all ranks have let go of an aborted request; an offered hand-off settles on its own."""

    request_id: str


class Finished(Message, frozen=True):
    """Last rank: a prompt is done.

    Attributes:
        stages: per rank, the compute seconds of the waves this request was part of.
    """

    request_id: str
    first: SampledToken
    stages: tuple[StageTiming, ...]


class HandoffSettled(Message, frozen=True):
    """A rank no longer holds a finished request's KV for a decode worker."""

    rank: int
    request_id: str
    outcome: Settled


class StoredRun(msgspec.Struct, frozen=True):
    """Blocks of one chain, parents first; ``tokens`` (uint32) is filled by rank 0 only."""

    keys: tuple[int, ...]
    parent: int | None
    tokens: bytes = b""
    salt: str = ""
    lora: str = ""


class CacheChanges(Message, frozen=True):
    """What became reusable on a rank, and what stopped being so, in that order of effect: removed first."""

    rank: int
    stored: tuple[StoredRun, ...] = ()
    removed: tuple[int, ...] = ()


class AuditReport(Message, frozen=True):
    """One rank's books.

    Attributes:
        problems: broken invariants; empty if sound.
        live: requests the rank still knows.
    """

    audit_id: int
    rank: int
    capacity: int
    free: int
    reusable: int
    live: tuple[str, ...]
    problems: tuple[str, ...]


Event = (
    RankReady
    | RankFailed
    | Heartbeat
    | Admitted
    | Released
    | Finished
    | HandoffSettled
    | CacheChanges
    | AuditReport
)
RoundMessage = Plan | Vote | Tally
DataMessage = WaveHeader | WaveDone

_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    return _encoder.encode(message)


class Codec:
    """Decoders of the three planes; each refuses a message that does not belong on its plane."""

    command: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
    event: msgspec.msgpack.Decoder[Event] = msgspec.msgpack.Decoder(Event)
    round: msgspec.msgpack.Decoder[RoundMessage] = msgspec.msgpack.Decoder(RoundMessage)
    data: msgspec.msgpack.Decoder[DataMessage] = msgspec.msgpack.Decoder(DataMessage)

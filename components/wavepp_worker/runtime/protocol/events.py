"""Events: what the ranks tell the engine client."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from wavepp_worker.cache.moves import Tier
from wavepp_worker.cache.results import TierFigures
from wavepp_worker.handoff.kv_source import Settled
from wavepp_worker.handoff.offer import RankAddress
from wavepp_worker.model.sampled_token import SampledToken
from wavepp_worker.runtime.protocol.message import Message
from wavepp_worker.runtime.protocol.prefill_trace import WaveTrace
from wavepp_worker.runtime.protocol.rank_state import RankState
from wavepp_worker.runtime.protocol.requests import StageTiming
from wavepp_worker.runtime.protocol.whereabouts import InLanes, Preparing, Queued, Running


class RankReady(Message, frozen=True):
    """A rank has loaded its layers and connected."""

    rank: int
    handoff: RankAddress | None


class RankFailed(Message, frozen=True):
    """A rank is about to exit and says why; ``config`` if the configuration is at fault."""

    rank: int
    reason: str
    config: bool


class Alive(Message, frozen=True):
    """A rank's process runs, whatever its threads do: from its watchdog, by the clock."""

    rank: int


class Heartbeat(Message, frozen=True):
    """A rank's load, and how long ago it last made progress; from its WAVE thread.

    Attributes:
        wave_age: seconds since its last wave ended.
        waiting: requests not yet admitted (rank 0 only).
        running: admitted requests whose prompt is not done.
        waves: waves executed since start, on rank 0 without those of probes alone.
        rounds: rounds about requests since start, on rank 0 without those about probes alone.
        busy: seconds that it computed since start.
        tiers: its blocks on device, in host memory and on disk; empty if it caches nothing.
        in_flight: waves that are in flight (rank 0 only).
        active: seconds since start in which some wave was (rank 0 only).
        idle: seconds since start in which it computed nothing, by cause.
    """

    rank: int
    wave_age: float
    waiting: int
    running: int
    used_blocks: int
    waves: int
    rounds: int
    busy: float = 0.0
    tiers: tuple[TierFigures, ...] = ()
    in_flight: int = 0
    active: float = 0.0
    idle: Mapping[str, float] = {}


class Admitted(Message, frozen=True):
    """Rank 0: all ranks admitted a request at one endpoint (tokens), after so many seconds.

    Attributes:
        at: monotonic seconds at which that was decided.
        discovery: of ``queued``, the seconds until its candidate was known.
        attempts: rounds in which it was prepared.
    """

    request_id: str
    endpoint: int
    queued: float
    admission: float
    at: float = 0.0
    discovery: float = 0.0
    attempts: int = 1


class Released(Message, frozen=True):
    """Rank 0: all ranks have let go of an aborted request; an offered hand-off settles on its own."""

    request_id: str


class Finished(Message, frozen=True):
    """Last rank: a prompt is done.

    Attributes:
        stages: per rank, the compute seconds of the waves this request was part of.
        waves: those waves, if the request is traced.
    """

    request_id: str
    first: SampledToken
    stages: tuple[StageTiming, ...]
    waves: tuple[WaveTrace, ...] = ()


class Failed(Message, frozen=True):
    """A rank could not do something for one request, and says why. It goes on; all shall let go of the request."""

    rank: int
    request_id: str
    reason: str


class HandoffSettled(Message, frozen=True):
    """A rank no longer holds a finished request's KV for a decode worker."""

    rank: int
    request_id: str
    outcome: Settled


class StoredRun(msgspec.Struct, frozen=True):
    """Blocks of one chain, parents first; only rank 0 knows tokens, salt and LoRA.

    Attributes:
        keys: packed keys of the blocks, see ``block_keys``.
        parent: key of the block before the first, None at the root.
        tokens: packed token ids of the blocks.
    """

    keys: bytes
    parent: bytes | None
    tokens: bytes = b""
    salt: str = ""
    lora: str = ""


class MovedBlocks(msgspec.Struct, frozen=True, array_like=True):
    """Reusable blocks that are on another tier than before: packed keys."""

    tier: Tier
    keys: bytes


class CacheChanges(Message, frozen=True, omit_defaults=True):
    """What became reusable on a rank, what stopped being so, and what moved; removed first, moved last.

    Attributes:
        stored: on the device, unless ``moved`` names them as well.
        removed: packed keys of blocks, leaves first.
    """

    rank: int
    stored: tuple[StoredRun, ...] = ()
    removed: bytes = b""
    moved: tuple[MovedBlocks, ...] = ()


class ForwardPass(Message, frozen=True):
    """Rank 0: a wave has left the last rank.

    Attributes:
        requests: of which it computed tokens.
        tokens: that it computed.
        context_tokens: before those, whose KV it read.
        seconds: since the wave before it ended, or since its launch if that was later.
        waiting_requests: admitted requests that no wave carries now.
        waiting_tokens: of admitted requests, that no wave has computed or carries.
    """

    requests: int
    tokens: int
    context_tokens: int
    seconds: float
    waiting_requests: int
    waiting_tokens: int


class AuditReport(Message, frozen=True):
    """One rank's books.

    Attributes:
        reusable: blocks on the device that nobody holds and that can be reused.
        attached: all blocks that can be reused, on any tier; the rank has told them as ``CacheChanges``.
        problems: broken invariants; empty if sound.
        live: requests the rank still knows.
    """

    audit_id: int
    rank: int
    capacity: int
    free: int
    reusable: int
    attached: int
    live: tuple[str, ...]
    problems: tuple[str, ...]


class Cleared(Message, frozen=True):
    """A rank has forgotten what could be reused and nobody held; the engine has heard of it as ``CacheChanges``.

    Attributes:
        forgotten: blocks on the device, in host memory and on disk.
        held: blocks that requests hold, and that can still be reused.
    """

    clear_id: int
    rank: int
    forgotten: tuple[int, int, int]
    held: int


class ProfileChanged(Message, frozen=True):
    """A rank has begun to record what it does, or ended that; or could not, and says why."""

    profile_id: int
    rank: int
    error: str = ""


class AdmissionExplained(Message, frozen=True):
    """Rank 0's WAVE thread: where requests are between their arrival and their end; those over are left out.

    Attributes:
        round_id: of the round that is open; None if none is.
        missing: ranks whose vote on it is missing.
    """

    question_id: int
    requests: tuple[Queued | Preparing | Running, ...]
    round_id: int | None = None
    missing: tuple[int, ...] = ()


class LanesExplained(Message, frozen=True):
    """Rank 0's LOOP thread: requests that have a lane or are in a wave.

    Attributes:
        in_flight: waves that are in flight.
        ring: most of them.
        on_device: of these, the newest that rank 0's own device has not computed yet.
    """

    question_id: int
    requests: tuple[InLanes, ...]
    in_flight: int
    ring: int
    on_device: int = 0


Event = (
    RankReady
    | RankFailed
    | Alive
    | Heartbeat
    | Admitted
    | Released
    | Finished
    | Failed
    | HandoffSettled
    | CacheChanges
    | AuditReport
    | Cleared
    | ProfileChanged
    | RankState
    | AdmissionExplained
    | LanesExplained
    | ForwardPass
)

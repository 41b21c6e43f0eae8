"""An engine's load: what its ledger counts and what its ranks' heartbeats say. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from wavepp_worker.runtime.client.request_ledger import RequestLedger
from wavepp_worker.runtime.protocol.events import Heartbeat
from wavepp_worker.runtime.protocol.load import EngineStats, RankLoad


def engine_stats(ledger: RequestLedger, beats: Sequence[Heartbeat], total_blocks: int) -> EngineStats:
    """The load of an engine.

    Args:
        beats: the ranks' last heartbeats, in rank order.
        total_blocks: KV blocks of the smallest rank.
    """
    unanswered = ledger.unanswered()
    # A heartbeat may be older than the last answer.
    queued = min(beats[0].waiting, unanswered) if beats else unanswered
    return EngineStats(
        queued=queued,
        running=unanswered - queued,
        holding=ledger.holding(),
        used_blocks=max((beat.used_blocks for beat in beats), default=0),
        total_blocks=total_blocks,
        prompt_tokens=ledger.prompt_tokens,
        reused_tokens=ledger.reused_tokens,
        finished=ledger.finished,
        failed=ledger.failed,
        waves=beats[0].waves if beats else 0,
        rounds=beats[0].rounds if beats else 0,
        last_wave_age=max((beat.wave_age for beat in beats), default=0.0),
        ranks=tuple(RankLoad(beat.busy, beat.tiers, beat.idle) for beat in beats),
        waves_in_flight=beats[0].in_flight if beats else 0,
        active=beats[0].active if beats else 0.0,
    )

"""What each wave was and took, as rank 0 tells the engine. Pure."""

from __future__ import annotations

from wavepp_worker.runtime.planning.lanes import Lanes
from wavepp_worker.runtime.protocol.events import ForwardPass
from wavepp_worker.runtime.protocol.waves import Span, WaveDone


class PassMeter:
    """Divides the time in which waves are in flight among them.

    Waves overlap, so each has the time since the one before it ended, or since its launch if that was later: their
    seconds add up to those in which some wave was in flight, and tokens through seconds are the replica's throughput.
    """

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._launched: dict[int, tuple[float, tuple[Span, ...]]] = {}
        self._ended = 0.0

    def launched(self, wave_id: int, spans: tuple[Span, ...], now: float) -> None:
        """Rank 0 begins with a wave at ``now``, monotonic seconds; of probes alone there is nothing to tell."""
        if self._lanes.asked_for(spans):
            self._launched[wave_id] = now, spans

    def ended(self, done: WaveDone) -> ForwardPass | None:
        """What to tell of a wave that left the last rank, if it is worth telling."""
        launched = self._launched.pop(done.wave_id, None)
        begun, self._ended = self._ended, max(self._ended, done.ended)
        if launched is None:
            return None
        at, spans = launched
        requests, tokens = self._lanes.in_no_wave()
        return ForwardPass(
            requests=len(spans),
            tokens=sum(span.length for span in spans),
            context_tokens=sum(span.start for span in spans),
            seconds=max(0.0, done.ended - max(at, begun)),
            waiting_requests=requests,
            waiting_tokens=tokens,
        )

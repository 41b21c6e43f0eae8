"""What a rank records: slices of time, each on a track.

Times are nanoseconds of one clock. The ranks of one host share it: Linux counts monotonic time once for all
processes. Ranks on different hosts do not: each rank's own slices stay right, but they are shifted against
another host's by the difference of the two clocks.
"""

from __future__ import annotations

import msgspec

from wavepp_worker.runtime.protocol.waves import Span

TRACKS = ("admission", "parked", "loop", "device", "answers")
"""Tracks in the order they are shown; on each, slices follow one another or lie within one another."""
FORWARD, LAUNCH = "forward", "launch"
"""Slices of a wave in a stage: while it computes, and while the host queues it on a device behind the host."""


class Slice(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Something that took a while.

    Attributes:
        track: one of ``TRACKS``.
        start: nanoseconds.
        end: nanoseconds, not before ``start``.
        wave: the wave it was done for.
        requests: ids of the requests it was done for, if not those of ``spans``.
        spans: the wave's chunks; filled for ``FORWARD`` and ``LAUNCH``.
    """

    track: str
    name: str
    start: int
    end: int
    wave: int | None = None
    requests: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()


class RankTimeline(msgspec.Struct, frozen=True):
    """One rank's slices, in any order; ``dropped`` older ones are missing."""

    rank: int
    slices: tuple[Slice, ...]
    dropped: int = 0

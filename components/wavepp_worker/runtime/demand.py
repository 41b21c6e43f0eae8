"""What clients ask of the pipeline, now and over the last waves. Pure."""

from __future__ import annotations

from collections import deque

from wavepp_worker.runtime.planner import PipelineView

WINDOW = 32
"""Waves by which the load is judged: some fills of the ring, so that a burst has ebbed away within them."""
EBB = 0.5
"""A load whose requests fell below this share of their most within the window comes in bursts."""


class Demand:
    """The requests that wait or are in flight, and the most there were of them during the last ``WINDOW`` waves.

    Clients that ask again when they are answered are missing for a moment, just when the next wave is planned:
    under a *steady* load the most that was seen is what there is.
    """

    def __init__(self) -> None:
        self._whole: dict[str, int] = {}
        self._supply = 0.0
        self._waves = deque([(0, 0, 0.0)] * WINDOW, maxlen=WINDOW)
        self.steady = False
        """Whether there were requests all the time, never less than ``EBB`` of their most."""
        self.requests = 0
        """Most requests at a time."""
        self.tokens = 0
        """Most tokens at a time, each request counted whole until its last wave is done."""

    def see(self, view: PipelineView) -> None:
        """Account for what the next wave is planned from."""
        known, whole = self._whole, {}
        for wave in view.in_flight:
            for span in wave:
                if span.request_id not in whole:
                    whole[span.request_id] = known.get(span.request_id, span.length)
        for lane in view.lanes:
            if lane.request_id not in whole:
                whole[lane.request_id] = known.get(lane.request_id, lane.left)
        self._whole = whole
        requests = [wave[0] for wave in self._waves]
        most = max(requests)
        self.steady = min(requests) >= EBB * most > 0
        self.requests = max(len(whole), most)
        self.tokens = max(sum(whole.values()), max(wave[1] for wave in self._waves))

    def supply(self, size: float) -> float:
        """The size of a wave that the requests supply: what they do now, or at most did under a steady load."""
        self._supply = size
        return max(size, max(wave[2] for wave in self._waves)) if self.steady else size

    def launched(self) -> None:
        """A wave was launched, planned from what was seen last."""
        self._waves.append((len(self._whole), sum(self._whole.values()), self._supply))

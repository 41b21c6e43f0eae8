"""What clients ask of the pipeline, now and over the last waves; for ``mpu``, not in the paper. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from wavepp_worker.runtime.planning.planner import PipelineView
from wavepp_worker.runtime.protocol.waves import Span

WINDOW_WAVES = 32
"""Waves by which the load is judged: some fills of the ring, so that a burst has ebbed away within them."""
MIN_STEADY_SHARE = 0.5
"""Share of the most requests at a time: a load that fell below it within the window comes in bursts."""


class Demand:
    """The requests that wait or are in flight, and the most there were of them during the last ``WINDOW_WAVES`` waves.

    Clients that ask again when they are answered are missing for a moment, just when the next wave is planned:
    under a *steady* load the most that was seen is what there is.
    """

    def __init__(self) -> None:
        self._whole: dict[str, int] = {}
        self._tokens = 0
        self._ending: deque[str] = deque()
        self._requests_of_waves = deque([0] * WINDOW_WAVES, maxlen=WINDOW_WAVES)
        self._tokens_of_waves = deque([0] * WINDOW_WAVES, maxlen=WINDOW_WAVES)
        self._supply_of_waves = deque([0.0] * WINDOW_WAVES, maxlen=WINDOW_WAVES)
        self.steady = False
        """Whether there were requests all the time, never less than ``MIN_STEADY_SHARE`` of the most."""
        self.requests = 0
        """Most requests at a time."""
        self.tokens = 0
        """Most tokens at a time, each request counted whole until its last wave is done."""

    def see(self, view: PipelineView) -> None:
        """Account for what the next wave is planned from."""
        # 128 lanes are too many to look at for each wave: only the last can be new, only waves that are done end any.
        whole, ending = self._whole, sum(span.last for wave in view.in_flight for span in wave)
        while len(self._ending) > ending:
            self._tokens -= whole.pop(self._ending.popleft(), 0)
        for lane in reversed(view.lanes):
            if lane.request_id in whole:
                break
            whole[lane.request_id] = lane.left
            self._tokens += lane.left
        if len(whole) != len(view.lanes) + ending:
            self._recount(view)
        most = max(self._requests_of_waves)
        self.steady = min(self._requests_of_waves) >= MIN_STEADY_SHARE * most > 0
        self.requests = max(len(self._whole), most)
        self.tokens = max(self._tokens, max(self._tokens_of_waves))

    def supply(self, now: float) -> float:
        """Tokens of a wave that the requests supply: what they do ``now``, or at most did under a steady load."""
        return max(now, max(self._supply_of_waves)) if self.steady else now

    def launched(self, spans: Sequence[Span], supply: float) -> None:
        """A wave was launched, planned from what was seen last: requests that supplied waves of ``supply`` tokens."""
        self._ending.extend(span.request_id for span in spans if span.last)
        self._requests_of_waves.append(len(self._whole))
        self._tokens_of_waves.append(self._tokens)
        self._supply_of_waves.append(supply)

    def _recount(self, view: PipelineView) -> None:
        """Somebody left without having ended."""
        present = {span.request_id: span.length for wave in view.in_flight for span in wave}
        present.update((lane.request_id, lane.left) for lane in view.lanes)
        self._whole = {each: self._whole.get(each, tokens) for each, tokens in present.items()}
        self._tokens = sum(self._whole.values())

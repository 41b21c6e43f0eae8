"""What clients ask of the pipeline, now and over the last waves; for ``mpu``, not in the paper. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from wavepp_worker.runtime.planning.planner import Lane, PipelineView
from wavepp_worker.runtime.protocol.waves import Span

WINDOW_WAVES = 32
"""Waves whose most requests, tokens and supply count under a steady load: some fills of the ring."""
STEADY_ANSWERS = 32
"""Answers since there was last one request more: from then on a load counts as steady."""


class Demand:
    """The requests that wait or are in flight, and the most there were of them during the last ``WINDOW_WAVES`` waves.

    Clients that ask again when they are answered (a closed loop) are missing for a moment, just when the next wave is
    planned: under such a *steady* load the most that was seen is what there is. It shows in what never happens: after
    an answer there is never one request more than before. Where requests come without waiting for answers, their number
    falls and rises all the time, with little load as in overload. So a load is steady until the number of requests
    rises above the most since it last fell by more than were answered at once, or until several came to an idle
    pipeline and all were answered before anybody else came; and again ``STEADY_ANSWERS`` later.
    """

    def __init__(self) -> None:
        self._whole: dict[str, int] = {}
        self._tokens = 0
        self._ending: deque[str] = deque()
        self._requests_of_waves = deque([0] * WINDOW_WAVES, maxlen=WINDOW_WAVES)
        self._tokens_of_waves = deque([0] * WINDOW_WAVES, maxlen=WINDOW_WAVES)
        self._supply_of_waves = deque([0.0] * WINDOW_WAVES, maxlen=WINDOW_WAVES)
        self._level, self._answers_at_level, self._waves_at_level = 0, 0, 0
        self._answered_at_once = deque([0], maxlen=STEADY_ANSWERS)
        self._answers: float = STEADY_ANSWERS
        self._answered = 0
        self.gone: tuple[str, ...] = ()
        """Requests that had left without having ended when it was last looked."""
        self.steady = True
        """Whether requests seem to come only from who was answered."""
        self.recent = True
        """Whether the last of the requests came within the last ``WINDOW_WAVES`` waves, but for those who ask again."""
        self.burst = True
        """Whether nobody has come after an answer since there were no requests: these may be all there will be."""
        self.requests = 0
        """Most requests at a time."""
        self.tokens = 0
        """Most tokens at a time, each request counted whole until its last wave is done."""

    @property
    def missing(self) -> int:
        """Requests less than the most at a time."""
        return self.requests - len(self._whole)

    def see(self, view: PipelineView) -> list[Lane]:
        """Account for what the next wave is planned from; returns who came, oldest first, then those behind others."""
        # 128 lanes are too many to look at for each wave: only the last can be new, only waves that are done end any.
        self.gone = ()
        whole, ending = self._whole, sum(span.last for wave in view.in_flight for span in wave)
        answered, came = 0, []
        while len(self._ending) > ending:
            self._tokens -= whole.pop(self._ending.popleft(), 0)
            answered += 1
        for lanes in (view.behind, view.lanes):
            for lane in reversed(lanes):
                if lane.request_id in whole:
                    break
                whole[lane.request_id] = lane.left
                self._tokens += lane.left
                came.append(lane)
        came.reverse()
        if len(whole) != len(view.lanes) + len(view.behind) + ending:
            came = self._recount(view, came)
        self._answered += answered
        if self._whole:
            self.burst = self.burst and not (came and self._answered)
        elif self.burst and self._answered > 1:
            self._answers = 0
        self._judge(len(self._whole), answered)
        if not self._whole:
            self.burst, self._answered = True, 0
        self.requests = max(len(self._whole), max(self._requests_of_waves))
        self.tokens = max(self._tokens, max(self._tokens_of_waves))
        return came

    def supply(self, now: float) -> float:
        """Tokens of a wave that the requests supply under a steady load: what they do ``now``, or at most did.

        What they did when the first of them came does not count: all of them had all of their tokens left.
        """
        return now if self.recent else max(now, max(self._supply_of_waves))

    def launched(self, spans: Sequence[Span], supply: float) -> None:
        """A wave was launched, planned from what was seen last: requests that supplied waves of ``supply`` tokens."""
        self._ending.extend(span.request_id for span in spans if span.last)
        self._requests_of_waves.append(len(self._whole))
        self._tokens_of_waves.append(self._tokens)
        self._supply_of_waves.append(supply)
        self._waves_at_level += 1

    def _judge(self, requests: int, answered: int) -> None:
        """Whether the load is steady, now that there are so many ``requests``, after some were ``answered``."""
        self._answers += answered
        self._answers_at_level += answered
        if answered:
            self._answered_at_once.append(answered)
        if requests > self._level:
            # Clients that begin do so before anybody is answered, or when those of a steady load have stopped.
            if self._answers_at_level:
                self._answers = 0
            self._level, self._answers_at_level, self._waves_at_level = requests, 0, 0
        elif not requests:
            self._level = 0
            if self.steady:
                self._answers_at_level = 0
        elif requests < self._level - max(self._answered_at_once):
            self._level = requests
        self.steady = self._answers >= STEADY_ANSWERS
        self.recent = self._waves_at_level < WINDOW_WAVES

    def _recount(self, view: PipelineView, came: list[Lane]) -> list[Lane]:
        """Somebody left without having ended, is crowded out, or came in front of others; returns all who ``came``."""
        present = {span.request_id: span.length for wave in view.in_flight for span in wave}
        present.update((lane.request_id, lane.left) for lane in (*view.lanes, *view.behind))
        new = {lane.request_id for lane in came} | (present.keys() - self._whole.keys())
        missing = self._whole.keys() - present.keys()
        present.update((each, 0) for each in missing if each in view.known)
        self.gone = tuple(missing - present.keys())
        self._whole = {each: self._whole.get(each, tokens) for each, tokens in present.items()}
        self._tokens = sum(self._whole.values())
        return [lane for lane in (*view.lanes, *view.behind) if lane.request_id in new]
